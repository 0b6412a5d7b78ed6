#!/usr/bin/env bash
# What formats of cached keys and values cost in fidelity: perplexity, and KL to the same engine's float32 cache, so that
# nothing else differs. One table for carat, one for llama.cpp.
#
#     kv_quality.sh MODEL.gguf [WORK_DIRECTORY]
#
# CARAT            the carat program                        (default: build/release/carat of this tree)
# PYTHON           a Python with tools/requirements.txt     (default: python3)
# LLAMA_CPP, LLAMA_CPP_BUILD  source and build of llama.cpp (default: its table is left out)
# IDS              the token ids                            (default: tests/data/english-1024.ids)
# SKIP             positions at the beginning to leave out  (default: 0)
# FORMATS          --kv names; q4@128 is --kv q4 --kv-recent 128 (default: below)
#
# The work directory (default: ./kv-quality) gets 1 GB per format for 1,024 tokens of a vocabulary of 262,144.
set -eu

tools=$(cd "$(dirname "$0")" && pwd)
model=${1:?usage: kv_quality.sh MODEL.gguf [WORK_DIRECTORY]}
work=${2:-kv-quality}
carat=${CARAT:-$tools/../build/release/carat}
python=${PYTHON:-python3}
ids=${IDS:-$tools/../tests/data/english-1024.ids}
formats=${FORMATS:-f16 bf16 q8 q8g64 q6 q5 q4 q4g64 turbo:k8v8 turbo:k8v4 turbo:k8v3 turbo:k8v2 turbo:k4v3}
mkdir -p "$work"

flags_of() { # of one of FORMATS
    case $1 in
    *@*) echo "--kv ${1%@*} --kv-recent ${1#*@}" ;;
    *) echo "--kv $1" ;;
    esac
}

echo "bytes of keys and values a token in full and in sliding layers"
for format in f32 $formats; do
    # shellcheck disable=SC2046  # separate arguments
    "$carat" inspect "$model" $(flags_of "$format") --json |
        "$python" -c "import json, sys; b = json.load(sys.stdin)['kv_cache']['bytes_per_token']
print(f'{sys.argv[1]:<12}{b[\"full\"]:>8}{b[\"sliding\"]:>8}')" "$format"
done

"$carat" logits "$model" --ids-file "$ids" --kv f32 --out "$work/f32.npy"
rows=
for format in $formats; do
    file=$work/$(echo "$format" | tr : -).npy
    # shellcheck disable=SC2046
    "$carat" logits "$model" --ids-file "$ids" $(flags_of "$format") --out "$file"
    rows="$rows $file"
done
# shellcheck disable=SC2086  # the paths in $rows are separate arguments
"$python" "$tools/kl.py" "$work/f32.npy" $rows --ids "$ids" --skip "${SKIP:-0}"
# shellcheck disable=SC2086
rm -f $rows

if [ -n "${LLAMA_CPP:-}" ] && [ -n "${LLAMA_CPP_BUILD:-}" ]; then
    rows=
    for format in f32 f16 q8_0 q4_0; do
        "$python" "$tools/kl_llama_cpp.py" "$model" --ids "$ids" --cache "$format" --out "$work/llama.cpp-$format.npy"
        [ "$format" = f32 ] || rows="$rows $work/llama.cpp-$format.npy"
    done
    # shellcheck disable=SC2086
    "$python" "$tools/kl.py" "$work/llama.cpp-f32.npy" $rows --ids "$ids" --skip "${SKIP:-0}"
fi
