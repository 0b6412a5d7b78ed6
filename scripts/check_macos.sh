#!/usr/bin/env bash
# Compiles every source of carat for macOS on Debian 12, without linking anything: PyPI's ziglang brings clang, macOS's
# headers and libc++, and the libraries' headers are Debian's. It shows that the sources fit that system, and no more:
# nothing can be run here.
#   scripts/check_macos.sh                  aarch64-macos and x86_64-macos
#   scripts/check_macos.sh TARGET...        these only
#   scripts/check_macos.sh TARGET SOURCE... this target, these sources
set -Eeuo pipefail
trap 'echo "check_macos.sh: failed at line $LINENO: $BASH_COMMAND" >&2' ERR
cd "$(dirname "${BASH_SOURCE[0]}")/.."

targets=() sources=()
for argument in "$@"; do
  case "$argument" in
    aarch64-macos | x86_64-macos) targets+=("$argument") ;;
    *.cpp) sources+=("$argument") ;;
    *)
      echo "usage: scripts/check_macos.sh [aarch64-macos|x86_64-macos]... [SOURCE.cpp]..." >&2
      exit 2
      ;;
  esac
done
[[ ${#targets[@]} -gt 0 ]] || targets=(aarch64-macos x86_64-macos)

export work=$PWD/build/macos
mkdir -p "$work/include/openssl"
if [[ ! -x $work/venv/bin/python ]]; then python3 -m venv "$work/venv"; fi
"$work/venv/bin/python" -m pip install -q 'ziglang==0.17.1'
export ZIG_GLOBAL_CACHE_DIR=$work/cache ZIG_LOCAL_CACHE_DIR=$work/cache

# /usr/include as a whole would bring Linux's own headers.
for header in boost fmt nlohmann spdlog CLI simdjson.h prometheus histedit.h; do
  [[ -e /usr/include/$header ]] || scripts/install-deps.sh
  ln -sfn "/usr/include/$header" "$work/include/$header"
done
multiarch=/usr/include/$(gcc -print-multiarch)
ln -sfn "$multiarch/curl" "$work/include/curl"
ln -sf /usr/include/openssl/*.h "$multiarch"/openssl/*.h "$work/include/openssl"

if [[ ${#sources[@]} -eq 0 ]]; then
  mapfile -t sources < <(git ls-files 'src/*.cpp' 'examples/*.cpp')
  cmake -D INPUT=web/index.html -D OUTPUT="$work/chat_page.cpp" -D HEADER=server/chat_page.h \
    -D NAME=carat::server::kChatPage -P cmake/embed_file.cmake
  sources+=(build/macos/chat_page.cpp)
fi

# compile TARGET SOURCE
compile() {
  local target=$1 source=$2 isa=()
  local avx2=(-mavx2 -mfma -mf16c) avx512=(-mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni)
  case "$target/$source" in # as src/CMakeLists.txt
    x86_64*kernels_avx2.cpp) isa=("${avx2[@]}") ;;
    x86_64*kernels_avx512.cpp) isa=("${avx2[@]}" "${avx512[@]}") ;;
    x86_64*kernels_amx.cpp) isa=("${avx2[@]}" "${avx512[@]}" -mamx-tile -mamx-int8) ;;
    aarch64*kernels_neon.cpp) isa=(-mcpu=apple_m1) ;;
  esac
  # Debian's Boost 1.74 uses traits that C++20 took out of the library, and does not know that this clang has coroutines.
  local boost=(-D_LIBCPP_ENABLE_CXX20_REMOVED_TYPE_TRAITS -DBOOST_ASIO_HAS_CO_AWAIT=1 -DBOOST_ASIO_HAS_STD_COROUTINE=1)
  local object=$work/$target/${source%.cpp}.o
  mkdir -p "$(dirname "$object")"
  if "$work/venv/bin/python" -m ziglang c++ -target "$target" -std=c++20 -O1 -Wall -Wextra -Werror -ffp-contract=off \
    -DCARAT_VERSION='""' "${boost[@]}" -isystem "$work/include" -Isrc -Iinclude "${isa[@]}" -c "$source" -o "$object" \
    >"$object.log" 2>&1; then
    echo "$target: $source compiles"
  else
    cat "$object.log" >&2
    echo "$target: $source does not compile"
    return 1
  fi
}
export -f compile

failed=no
for target in "${targets[@]}"; do
  # The first one builds what clang needs for the target, once for all.
  compile "$target" "${sources[0]}" || failed=yes
  printf '%s\0' "${sources[@]:1}" |
    xargs -0 -r -P "$(nproc)" -I{} bash -c 'compile "$0" "$1"' "$target" {} || failed=yes
done
[[ $failed == no ]] || exit 1
echo "${#sources[@]} sources compile for ${targets[*]}"
