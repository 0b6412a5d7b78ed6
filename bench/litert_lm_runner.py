"""Times a prompt and a generation with LiteRT-LM; run by vs_litert_lm.py with the Python that has litert-lm-api.

    litert_lm_runner.py MODEL PROMPT_TOKENS GENERATED_TOKENS THREADS

Prints JSON: {"prefill": tok/s, "decode": tok/s, "load": s}, LiteRT-LM's own figures of the second of two runs: the first one
writes a cache of repacked weights beside the model. Exits with 3 when the model is refused.
"""
import json
import sys

import litert_lm
from litert_lm import interfaces

REFUSED = 3


def main():
    path, prompt, generate, threads = sys.argv[1], *map(int, sys.argv[2:5])
    bench = litert_lm.Benchmark(model_path=path, backend=interfaces.CPU(thread_count=threads), prefill_tokens=prompt,
                                decode_tokens=generate)
    try:
        bench.run()
        info = bench.run()
    except RuntimeError as error:
        print(error, file=sys.stderr)
        sys.exit(REFUSED)
    print(json.dumps({"prefill": info.last_prefill_tokens_per_second, "decode": info.last_decode_tokens_per_second,
                      "load": info.init_time_in_second}))


if __name__ == "__main__":
    main()
