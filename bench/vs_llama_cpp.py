#!/usr/bin/env python3
"""carat beside llama.cpp on the same GGUF file and machine.

    vs_llama_cpp.py --carat PATH --llama-bench PATH --model GGUF [--threads N] [--prompt 512] [--generate 128]
                    [--rounds 5] [--json OUT] [--llama-completion PATH] [--evict]

side_by_side.py says how rounds are run and summed up. Reported beside the speeds: each process's peak resident memory as
the kernel counts it (pages of the mapped file included), and the seconds from starting a fresh process to its end after one
generated token. That last one needs llama-completion, by default the one beside llama-bench. --evict drops the model's
pages from the page cache before each of those starts (needs no rights, but pages that other processes map stay).
"""
import argparse
import pathlib

import side_by_side as sides


def bench_llama(a):
    command = [a.llama_bench, "-m", a.model, "-p", str(a.prompt), "-n", str(a.generate), "-t", str(a.threads), "-ngl", "0", "-r", "1", "-o", "json"]
    text, _, peak = sides.run(command)
    return parse_llama_bench(text, command) | {"peak memory": peak}, sides.parse_json(text, command)


def parse_llama_bench(text, command):
    """Metric -> value of llama-bench's JSON: one entry for the prompt and one for the generation."""
    values = {}
    result = sides.parse_json(text, command)
    for entry in result:
        values["prefill" if entry["n_gen"] == 0 else "decode"] = sides.number(entry, "avg_ts", command)
    if values.keys() != {"prefill", "decode"}:
        raise sides.Failure(f"{' '.join(command)}\nexpected one prompt and one generation result, found {len(result)} results")
    return values


def first_token_llama(a):
    # Without -c it would reserve a cache for the model's whole context; without --no-warmup run the model twice.
    return [a.llama_completion, "-m", a.model, "-p", sides.FIRST_TOKEN_PROMPT, "-n", "1", "-t", str(a.threads), "-ngl", "0", "-c", "2048",
            "-no-cnv", "--no-warmup", "--temp", "0"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sides.add_arguments(parser)
    parser.add_argument("--llama-bench", required=True)
    parser.add_argument("--llama-completion", help="default: beside llama-bench")
    a = parser.parse_args()
    sides.check_arguments(parser, a)
    if a.llama_completion is None:
        beside = pathlib.Path(a.llama_bench).with_name("llama-completion")
        a.llama_completion = str(beside) if beside.is_file() else None
    sides.compare(sides.Engine("llama.cpp", bench_llama, first_token_llama if a.llama_completion else None), a)


if __name__ == "__main__":
    main()
