"""Times a prompt and a generation with ik_llama.cpp; run by vs_ik_llama_cpp.py with the Python that has ik-llama-cpp-python.

    ik_llama_runner.py MODEL PROMPT_TOKENS GENERATED_TOKENS THREADS

Prints JSON: {"prefill": tok/s, "decode": tok/s}. As llama-bench does, it times the engine's calls alone, on made-up tokens,
after a run that warms it up: no tokenizer, no sampler. Exits with 3 when the model is refused.
"""
import json
import sys
import time

from ik_llama_cpp import _ctypes_api as api
from ik_llama_cpp._internals import IkContext, IkModel, make_batch_range

REFUSED = 3


def feed(context, count, start, chunk):
    """Seconds to compute `count` tokens from position `start`, `chunk` at a time, logits of each last one included."""
    begun = time.perf_counter()
    for done in range(0, count, chunk):
        tokens = [(13 + 7919 * (start + done + i)) % 20000 for i in range(min(chunk, count - done))]
        batch = make_batch_range(tokens, pos_start=start + done, logits_last=chunk == 1 or done + chunk >= count)
        status = context.decode(batch)
        api.llama_batch_free(batch)
        if status != 0:
            raise RuntimeError(f"llama_decode returned {status}")
    return time.perf_counter() - begun


def main():
    path, prompt, generate, threads = sys.argv[1], *map(int, sys.argv[2:5])
    try:
        model = IkModel(path)
    except RuntimeError as error:
        print(error, file=sys.stderr)
        sys.exit(REFUSED)
    # The library leaves flash attention to machines with AVX-VNNI, where it does not fail on long prompts.
    with open("/proc/cpuinfo", encoding="utf-8") as cpuinfo:
        flash = "avx_vnni" in cpuinfo.read()
    context = IkContext(model, n_ctx=prompt + generate + 64, n_threads=threads, flash_attn=flash)
    chunk = context._n_ubatch
    feed(context, min(prompt, 64), 0, chunk)
    feed(context, 2, min(prompt, 64), 1)
    context.kv_cache_clear()
    prefill = prompt / feed(context, prompt, 0, chunk)
    context.kv_cache_clear()
    feed(context, 1, 0, 1)
    decode = generate / feed(context, generate, 1, 1)
    print(json.dumps({"prefill": prefill, "decode": decode, "flash_attention": flash}))


if __name__ == "__main__":
    main()
