#!/usr/bin/env bash
# From a fresh clone to a story: installs what is missing, builds carat, fetches Gemma 3 270M and lets it write.
# Everything that is there already is kept; a second run needs no network.
set -Eeuo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

doing="starting"
step() {
  doing=$1
  printf '\n==> %s\n' "$doing" >&2
}
trap 'echo "demo.sh: stopped while $doing; the lines above say why" >&2' ERR

step "installing the Debian packages that are missing"
scripts/install-deps.sh --demo >&2

step "building carat (build/release)"
cmake --preset release -DCARAT_BUILD_TESTS=OFF -Wno-dev >&2
cmake --build --preset release --target carat >&2

step "fetching the model gemma3-270m (253 MB, once)"
build/release/carat get gemma3-270m >&2

step "writing a story: carat generate gemma3-270m \"Write a short story …\""
build/release/carat generate gemma3-270m \
  "Write a short story about a lighthouse keeper who finds a message in a bottle." \
  --max-tokens 200 --temperature 0.8 --seed 7
