#!/usr/bin/env python3
"""llama.cpp's logits at every position of a token file, for tools/kl.py.

    kl_llama_cpp.py MODEL.gguf --ids FILE.ids --out LOGITS.npy --source LLAMA_CPP --build LLAMA_CPP_BUILD
                    [--batch 512] [--cache f16] [--threads N]

LLAMA_CPP is its source tree (for the headers), LLAMA_CPP_BUILD a build folder with bin/libllama.so; the environment
variables of those names will do too. llama.cpp's structures change between versions, so instead of describing them to
ctypes this compiles tools/kl_llama_cpp.cpp against the headers at hand. --batch 1 takes its decoding path, more its
prompt path; --cache f32 also turns flash attention off, which would round it; the defaults are llama.cpp's own.
"""
import argparse
import os
import pathlib
import subprocess
import sys
import tempfile

import numpy as np


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--ids", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--source", default=os.environ.get("LLAMA_CPP"))
    parser.add_argument("--build", default=os.environ.get("LLAMA_CPP_BUILD"))
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--cache", default="f16", choices=("f16", "f32", "q8_0", "q4_0"))
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    args = parser.parse_args()
    if not args.source or not args.build:
        sys.exit("--source and --build (or LLAMA_CPP and LLAMA_CPP_BUILD) say where llama.cpp is")
    if args.batch < 1:
        sys.exit("--batch is a number of tokens, at least 1")
    source, libraries = pathlib.Path(args.source), pathlib.Path(args.build) / "bin"

    with tempfile.TemporaryDirectory() as folder:
        program = pathlib.Path(folder) / "kl_llama_cpp"
        subprocess.run([os.environ.get("CXX", "c++"), "-std=c++20", "-O1",
                        pathlib.Path(__file__).with_name("kl_llama_cpp.cpp"), "-o", program,
                        f"-I{source / 'include'}", f"-I{source / 'ggml' / 'include'}", f"-L{libraries}",
                        f"-Wl,-rpath,{libraries.resolve()}", "-lllama", "-lggml", "-lggml-base"], check=True)
        raw = pathlib.Path(args.out).with_suffix(".raw")  # beside the result: as large as that, /tmp may be small
        try:
            done = subprocess.run([program, args.model, args.ids, raw, str(args.batch), args.cache,
                                   str(args.threads)], stdout=subprocess.PIPE, text=True)
            if done.returncode:
                sys.exit(done.returncode)
            logits = np.memmap(raw, np.float32, "r").reshape(-1, int(done.stdout))
            out = np.lib.format.open_memmap(args.out, "w+", np.float32, logits.shape)
            for start in range(0, len(logits), 64):
                out[start:start + 64] = logits[start:start + 64]
            print(f"{args.out}: float32 {list(logits.shape)}")
        finally:
            raw.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
