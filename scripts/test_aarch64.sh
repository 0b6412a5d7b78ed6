#!/usr/bin/env bash
# Cross-compiles carat for 64-bit ARM on Debian 12 and tests it in qemu's user mode. The arm64 libraries go into a
# directory of their own; the system's packages stay as they are, apart from the cross-compiler and qemu.
#   scripts/test_aarch64.sh             the number formats and the kernels (test_quant, test_compute, test_cache)
#   scripts/test_aarch64.sh --all       every C++ test
#   scripts/test_aarch64.sh --program   only build/aarch64/carat; run it with
#                                       qemu-aarch64-static -L build/aarch64/sysroot build/aarch64/carat ...
set -Eeuo pipefail
trap 'echo "test_aarch64.sh: failed at line $LINENO: $BASH_COMMAND" >&2' ERR
cd "$(dirname "${BASH_SOURCE[0]}")/.."

case "${1:-}" in
  "") targets=(test_quant test_compute test_cache) tests='^(quant|compute|cache)\.' ;;
  --all) targets=(all) tests='.' ;;
  --program) targets=(carat) tests='' ;;
  *)
    echo "usage: scripts/test_aarch64.sh [--all|--program]" >&2
    exit 2
    ;;
esac

build=$PWD/build/aarch64
sysroot=$build/sysroot

as_root=()
[[ $(id -u) -eq 0 ]] || as_root=(sudo)
if ! command -v aarch64-linux-gnu-g++ >/dev/null || ! command -v qemu-aarch64-static >/dev/null; then
  "${as_root[@]}" apt-get -q update
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends \
    g++-aarch64-linux-gnu qemu-user-static cmake ninja-build
fi

# Apt resolves and fetches the arm64 packages in a world of its own, where nothing is installed yet; they are unpacked,
# not installed, so no maintainer script runs.
if [[ ! -e $sysroot/complete ]]; then
  rm -rf "$sysroot"
  mkdir -p "$sysroot"/apt/{lists,archives}/partial
  : >"$sysroot/apt/status"
  cat >"$sysroot/apt/conf" <<END
APT::Architecture "arm64";
APT::Architectures { "arm64"; };
APT::Install-Recommends "false";
Acquire::Languages "none";
Dir::State "$sysroot/apt";
Dir::State::status "$sysroot/apt/status";
Dir::Cache "$sysroot/apt";
APT::Sandbox::User "";
END
  apt=(env APT_CONFIG="$sysroot/apt/conf" apt-get -q)
  "${apt[@]}" update || echo "test_aarch64.sh: some package lists could not be fetched; trying with the others" >&2
  "${apt[@]}" install -y --download-only libfmt-dev nlohmann-json3-dev libsimdjson-dev libcli11-dev \
    libcurl4-openssl-dev libssl-dev libedit-dev libboost-dev libspdlog-dev prometheus-cpp-dev libgtest-dev
  for package in "$sysroot"/apt/archives/*.deb; do dpkg-deb -x "$package" "$sysroot"; done
  # Links from the root would leave the sysroot.
  find "$sysroot" -type l -lname '/*' | while IFS= read -r link; do
    ln -sfr "$sysroot$(readlink "$link")" "$link"
  done
  rm -rf "$sysroot/apt"
  touch "$sysroot/complete"
fi

cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCARAT_SYSROOT="$sysroot" \
  -DCMAKE_TOOLCHAIN_FILE="$PWD/cmake/aarch64-linux-gnu.cmake"
cmake --build "$build" --target "${targets[@]}"
[[ -z $tests ]] || ctest --test-dir "$build" -R "$tests" --output-on-failure -j "$(nproc)"
