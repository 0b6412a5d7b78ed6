#!/usr/bin/env bash
# How close carat and llama.cpp come to the float64 reference on one Gemma 3 270M GGUF file, as one table.
#
#     fidelity_270m.sh MODEL.gguf [WORK_DIRECTORY]
#
# CARAT            the carat program                        (default: build/release/carat of this tree)
# PYTHON           a Python with tools/requirements.txt     (default: python3)
# LLAMA_CPP, LLAMA_CPP_BUILD  source and build of llama.cpp (default: its row is left out)
# IDS              the token ids                            (default: tests/data/english-1024.ids)
#
# The work directory (default: ./fidelity-270m) gets 1 GB per row of the table for 1,024 tokens. The reference in it is
# kept and used again while it is newer than the model and the ids.
set -eu

tools=$(cd "$(dirname "$0")" && pwd)
model=${1:?usage: fidelity_270m.sh MODEL.gguf [WORK_DIRECTORY]}
work=${2:-fidelity-270m}
carat=${CARAT:-$tools/../build/release/carat}
python=${PYTHON:-python3}
ids=${IDS:-$tools/../tests/data/english-1024.ids}
mkdir -p "$work"

reference=$work/reference.npy
if [ ! "$reference" -nt "$model" ] || [ ! "$reference" -nt "$ids" ]; then
    "$python" "$tools/oracle_270m.py" logits "$model" --ids "$ids" --out "$work/new.npy"
    mv "$work/new.npy" "$reference"
fi

rows=
for precision in exact fast; do
    "$carat" logits "$model" --ids-file "$ids" --out "$work/carat-$precision.npy" --precision "$precision"
    rows="$rows $work/carat-$precision.npy"
done
if [ -n "${LLAMA_CPP:-}" ] && [ -n "${LLAMA_CPP_BUILD:-}" ]; then
    "$python" "$tools/kl_llama_cpp.py" "$model" --ids "$ids" --out "$work/llama.cpp-prompt.npy"
    "$python" "$tools/kl_llama_cpp.py" "$model" --ids "$ids" --out "$work/llama.cpp-decode.npy" --batch 1
    rows="$rows $work/llama.cpp-prompt.npy $work/llama.cpp-decode.npy"
fi
# shellcheck disable=SC2086  # the paths in $rows are separate arguments
"$python" "$tools/kl.py" "$reference" $rows --ids "$ids"
