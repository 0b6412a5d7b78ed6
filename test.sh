#!/usr/bin/env bash
# Builds carat and runs all its tests; installs what is missing. A second run needs no network.
#   ./test.sh                the C++ tests, then the Python tests
#   ./test.sh --sanitizers   also the C++ tests under AddressSanitizer + UBSan, and under ThreadSanitizer
# Ends with one line "N passed, N failed, N skipped"; exits with 1 when anything failed.
set -Eeuo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
exec </dev/null

doing="starting"
step() {
  doing=$1
  printf '\n==> %s\n' "$doing"
}
trap 'echo "test.sh: stopped while $doing; the lines above say why" >&2' ERR

sanitizers=no
for argument in "$@"; do
  case $argument in
    --sanitizers) sanitizers=yes ;;
    *)
      echo "usage: ./test.sh [--sanitizers]" >&2
      exit 2
      ;;
  esac
done

reports=() # JUnit files, one a test run
failed=no

# run_tests REPORT COMMAND...: a failing run does not stop the others.
run_tests() {
  local report=$1
  shift
  rm -f "$report"
  reports+=("$report")
  "$@" || failed=yes
}

step "installing the Debian packages that are missing"
scripts/install-deps.sh

step "building carat and its tests (build/release)"
cmake --preset release -DCARAT_BUILD_TESTS=ON -Wno-dev
cmake --build --preset release

step "preparing the Python packages of the tests (.venv)"
# The stamp names what the environment was made from; it is written last, so a broken one is made anew.
wanted=$(python3 -c 'import sys; print(sys.version, sys.prefix)'; pwd; cat tests/python/requirements.txt)
if [[ ! -x .venv/bin/python || "$(cat .venv/stamp 2>/dev/null || true)" != "$wanted" ]]; then
  rm -rf .venv
  python3 -m venv .venv
  .venv/bin/python -m pip install --quiet --disable-pip-version-check -r tests/python/requirements.txt
  printf '%s\n' "$wanted" >.venv/stamp
fi

step "fetching the model gemma3-270m (253 MB, once)"
unset CARAT_MODEL_270M
if model=$(build/release/carat get gemma3-270m) && model=${model##*$'\n'} && [[ -f $model ]]; then
  export CARAT_MODEL_270M=$model
  echo "$model"
else
  echo "NOTICE: the model could not be fetched (see above), so the tests that need it are skipped"
fi

step "running the C++ tests (ctest)"
run_tests "$PWD/build/ctest-release.xml" \
  ctest --preset release --parallel 2 --no-tests=error --output-junit "$PWD/build/ctest-release.xml"

step "running the Python tests (pytest)"
run_tests "$PWD/build/pytest.xml" \
  .venv/bin/python -m pytest tests/python -ra -p no:cacheprovider --junitxml "$PWD/build/pytest.xml"

if [[ $sanitizers == yes ]]; then
  # ThreadSanitizer cannot live with the widest address space randomisation of newer kernels.
  fixed=()
  if setarch "$(uname -m)" -R true 2>/dev/null; then fixed=(setarch "$(uname -m)" -R); fi
  for preset in asan-ubsan tsan; do
    step "building the tests with sanitizers (build/$preset)"
    cmake --preset "$preset" -Wno-dev
    "${fixed[@]}" cmake --build --preset "$preset"
    step "running the C++ tests with sanitizers ($preset)"
    run_tests "$PWD/build/ctest-$preset.xml" env -u CARAT_MODEL_270M "${fixed[@]}" \
      ctest --preset "$preset" --parallel 2 --no-tests=error --output-junit "$PWD/build/ctest-$preset.xml"
  done
fi

step "adding up"
totals=$(python3 - "${reports[@]}" <<'PYTHON'
import os, sys
import xml.etree.ElementTree as tree

passed = failed = skipped = 0
for path in sys.argv[1:]:
    name = os.path.basename(path).removesuffix(".xml")
    try:
        cases = list(tree.parse(path).getroot().iter("testcase"))
    except (OSError, tree.ParseError) as error:
        print(f"{name}: no report ({error})")
        failed += 1
        continue
    broken = sum(case.find("failure") is not None or case.find("error") is not None for case in cases)
    left_out = sum(case.find("skipped") is not None for case in cases)
    print(f"{name}: {len(cases) - broken - left_out} passed, {broken} failed, {left_out} skipped")
    passed, failed, skipped = passed + len(cases) - broken - left_out, failed + broken, skipped + left_out
print(f"{passed} passed, {failed} failed, {skipped} skipped")
PYTHON
)
echo "$totals"
trap - ERR
[[ $failed == no && ${totals##*$'\n'} == *" 0 failed, "* ]]
