#!/usr/bin/env python3
"""carat beside LiteRT-LM (PyPI: litert-lm-api) on this machine. The two do not read the same files.

    vs_litert_lm.py --carat PATH --model CARAT_MODEL --litertlm FILE [--venv DIR] [--threads N] [--prompt 512] [--generate 128]
                    [--rounds 5] [--json OUT]

FILE is a .litertlm: a published one, or what make_litertlm.py writes (Gemma 3 270M, int8). CARAT_MODEL should have the same shape
and about the same bytes, such as the 270M in Q8_0; the ratio says nothing about files that differ. The first run makes a virtual
environment in DIR (default build/litert-lm). side_by_side.py says how rounds are run and summed up; LiteRT-LM's rates are
its own figures, and its memory includes the cache of repacked weights that it writes beside FILE. Exits with 3 and a
sentence when the package cannot be installed or refuses the model.
"""
import argparse
import pathlib

import side_by_side as sides


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sides.add_arguments(parser)
    parser.add_argument("--litertlm", required=True, metavar="FILE", type=pathlib.Path)
    parser.add_argument("--venv", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[1] / "build" / "litert-lm")
    a = parser.parse_args()
    sides.check_arguments(parser, a)
    if not a.litertlm.is_file():
        parser.error(f"--litertlm {a.litertlm}: no such file")
    python = sides.prepare_venv(a.venv, "litert-lm-api")
    sides.compare(sides.scripted_peer("LiteRT-LM", python, "litert_lm_runner.py", a.litertlm), a)


if __name__ == "__main__":
    main()
