#!/usr/bin/env python3
"""How carat's speed changes with context, batch, prompt length and threads.

    scaling.py --carat PATH --model M --json OUT [--threads N] [--rounds 3] [--generate 32] [--only context,batch,prompt,threads] [--quick]

Runs `carat bench --json` for each point and takes its medians: decode against context length (0 to 32k tokens), decode of
1 to 32 sequences together, prefill of 128 to 8192 tokens, and both against 1 to N threads. Points beyond the model's context
are left out. --quick takes a few small points, to see that everything works. Prints a table; --json writes what plot.py draws.
"""
import argparse
import json
import os
import pathlib
import sys

import side_by_side as sides

CONTEXTS = (0, 1024, 2048, 4096, 8192, 16384, 32768)
BATCHES = (1, 2, 4, 8, 16, 32)
PROMPTS = (128, 256, 512, 1024, 2048, 4096, 8192)
SWEEPS = {  # name: (what varies, with its unit; what is measured)
    "context": ("tokens in the context", "decode"),
    "batch": ("sequences decoded together", "decode"),
    "prompt": ("prompt tokens", "prefill"),
    "threads": ("threads", "decode"),
    "threads_prefill": ("threads", "prefill"),
}


def thread_counts(most):
    """1, 2, 4 … and the most itself."""
    counts = [1]
    while counts[-1] * 2 < most:
        counts.append(counts[-1] * 2)
    return counts + [most] if most > 1 else counts


def points(a, context):
    """(sweep, value, flags of carat bench) for all that is asked for and fits the model's context."""
    decode = {"prompt": 0, "generate": a.generate, "threads": a.threads}
    prefill = {"prompt": 512, "generate": 0, "threads": a.threads}
    threads = thread_counts(a.threads)
    contexts, batches, prompts = CONTEXTS, BATCHES, PROMPTS
    if a.quick:
        contexts, batches, prompts, prefill["prompt"] = (0, 256), (1, 2), (32, 64), 32
    every = [("context", n, decode | {"depth": n}) for n in contexts]
    every += [("batch", n, decode | {"batch": n}) for n in batches]
    every += [("prompt", n, prefill | {"prompt": n}) for n in prompts]
    for n in threads:
        every += [("threads", n, decode | {"threads": n}), ("threads_prefill", n, prefill | {"threads": n})]
    wanted = set(a.only.split(",")) if a.only else {"context", "batch", "prompt", "threads"}

    def fits(flags):
        return flags.get("depth", 0) + max(flags["prompt"], flags["generate"] + 1) <= context
    return [point for point in every if point[0].split("_")[0] in wanted and fits(point[2])]


def measure(a, flags):
    command = [a.carat, "bench", a.model, "--rounds", str(a.rounds), "--json"]
    for flag, value in flags.items():
        command += [f"--{flag}", str(value)]
    return sides.parse_json(sides.run(command)[0], command)


def context_of(a):
    command = [a.carat, "inspect", a.model, "--json"]
    return sides.number(sides.parse_json(sides.run(command)[0], command)["architecture"], "max_positions", command)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--carat", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--json", metavar="OUT", type=pathlib.Path)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--generate", type=int, default=32, help="steps of each decoding run")
    parser.add_argument("--only", help="some of context, batch, prompt, threads, with commas between")
    parser.add_argument("--quick", action="store_true")
    a = parser.parse_args()
    unknown = set((a.only or "context").split(",")) - {"context", "batch", "prompt", "threads"}
    if unknown:
        parser.error(f"--only: {', '.join(sorted(unknown))}: expected some of context, batch, prompt, threads")
    if min(a.threads, a.rounds, a.generate) < 1:
        parser.error("--threads, --rounds and --generate must be at least 1")
    sweeps = {}
    device = ""
    try:
        for sweep, value, flags in points(a, context_of(a)):
            result = measure(a, flags)
            metric = SWEEPS[sweep][1]
            rate = sides.number(result, f"{metric}_tokens_per_second", [a.carat, "bench"])
            point = {"x": value, "tokens_per_second": rate, "rounds": result[f"{metric}_rounds"]}
            if metric == "decode":
                point["bandwidth_share"] = result["decode_bandwidth_share"]
            sweeps.setdefault(sweep, []).append(point)
            device = result["device"] if flags["threads"] == a.threads else device
            print(f"{sweep:16} {value:6}  {metric} {rate:9.1f} tok/s", flush=True)
    except sides.Failure as failure:
        sys.exit(str(failure))
    if a.json:
        a.json.write_text(json.dumps({
            "kind": "scaling", "model": os.path.basename(a.model.rstrip("/")), "device": device, "threads": a.threads, "rounds": a.rounds,
            "sweeps": [{"name": name, "x": SWEEPS[name][0], "metric": SWEEPS[name][1], "points": found} for name, found in sweeps.items()],
        }, indent=2) + "\n")


if __name__ == "__main__":
    main()
