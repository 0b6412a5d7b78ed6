#!/usr/bin/env bash
# Checks the layout of the C++ sources with clang-format and the sources themselves with clang-tidy; changes nothing.
#   scripts/check.sh             all sources
#   scripts/check.sh PATTERN...  clang-tidy only for sources whose path matches one of these patterns
# Either tool is left out, with a notice, where it is not installed. Both are version 14 here: others may disagree.
set -Eeuo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

failed=no

if command -v clang-format >/dev/null; then
  echo "==> clang-format"
  while IFS= read -r file; do
    # clang-format does not know what an .inc file is.
    if ! clang-format --style=file --assume-filename="${file/%.inc/.cpp}" <"$file" | cmp -s - "$file"; then
      echo "$file is not formatted; run: clang-format -i --style=file $file"
      failed=yes
    fi
  done < <(git ls-files '*.h' '*.cpp' '*.inc')
else
  echo "NOTICE: clang-format is not installed, so the layout is not checked"
fi

if command -v clang-tidy >/dev/null && command -v run-clang-tidy >/dev/null; then
  echo "==> clang-tidy"
  cmake --preset release -DCARAT_BUILD_TESTS=ON -Wno-dev >/dev/null
  patterns=("$@")
  if [[ ${#patterns[@]} -eq 0 ]]; then patterns=("$PWD/(src|examples)/"); fi
  # The compile commands are those of GCC, whose warnings clang does not all know.
  run-clang-tidy -quiet -p build/release -extra-arg=-Wno-unknown-warning-option "${patterns[@]}" || failed=yes
else
  echo "NOTICE: clang-tidy is not installed, so it is not run"
fi

[[ $failed == no ]]
