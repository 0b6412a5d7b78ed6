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

step "writing a story: carat generate gemma3-270m --raw \"…\""
# The model is a pretrained one: it answers nothing and continues anything, so it is given a beginning.
beginning='The Lighthouse Keeper and the Bottle. A bedtime story.

Once upon a time, a kind old lighthouse keeper named Tom lived alone on a small island. One morning he found a green bottle on the beach, and in the bottle there was a message. He opened it and read:'
printf '%s' "$beginning"
build/release/carat generate gemma3-270m --raw "$beginning" --max-tokens 124 --seed 1 \
  --temperature 0.6 --min-p 0.08 --repetition-penalty 1.1 --repetition-context 100
