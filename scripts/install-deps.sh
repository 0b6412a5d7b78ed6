#!/usr/bin/env bash
# Installs the Debian 12 packages that carat needs and that are missing; touches no network when nothing is missing.
#   scripts/install-deps.sh          to build carat and to run its tests
#   scripts/install-deps.sh --demo   only to build carat and to fetch the demo's model
#   scripts/install-deps.sh --bench  also for the instruments in bench/
set -Eeuo pipefail
trap 'echo "install-deps.sh: failed at line $LINENO: $BASH_COMMAND" >&2' ERR

packages=(g++ cmake ninja-build libfmt-dev nlohmann-json3-dev libsimdjson-dev libcli11-dev libcurl4-openssl-dev libssl-dev
          libedit-dev libboost-dev libspdlog-dev prometheus-cpp-dev python3 python3-venv python3-pip ca-certificates)
case "${1:-}" in
  --demo) ;;
  "") packages+=(libgtest-dev chromium) ;;
  --bench) packages+=(libgtest-dev libbenchmark-dev python3-numpy) ;;
  *)
    echo "usage: scripts/install-deps.sh [--demo | --bench]" >&2
    exit 2
    ;;
esac

if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
  echo "install-deps.sh: this is no Debian system; what Debian calls ${packages[*]} is expected to be installed" >&2
  exit 0
fi

missing=()
for package in "${packages[@]}"; do
  status=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)
  [[ $status == installed ]] || missing+=("$package")
done
if [[ ${#missing[@]} -eq 0 ]]; then
  echo "All ${#packages[@]} Debian packages are installed."
  exit 0
fi

echo "Installing ${missing[*]}"
as_root=()
if [[ $(id -u) -ne 0 ]]; then
  if ! command -v sudo >/dev/null; then
    echo "install-deps.sh: as root, run: apt-get install ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
  [[ -t 0 ]] || as_root+=(-n) # without a terminal nobody can type a password
fi
apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300)
"${apt[@]}" update || echo "install-deps.sh: the package lists could not be refreshed; trying with those that are here" >&2
"${apt[@]}" install -y --no-install-recommends "${missing[@]}"
