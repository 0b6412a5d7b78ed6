#!/usr/bin/env python3
"""carat beside ik_llama.cpp (PyPI: ik-llama-cpp-python) on the same GGUF file and machine.

    vs_ik_llama_cpp.py --carat PATH --model GGUF [--venv DIR] [--wheel] [--threads N] [--prompt 512] [--generate 128]
                       [--rounds 5] [--json OUT]

The first run makes a virtual environment in DIR (default build/ik-llama-cpp) and builds the package in it from source for this
machine, which takes a quarter of an hour on two cores; --wheel takes PyPI's binary instead, which is built for AVX2.
side_by_side.py says how rounds are run and summed up. Exits with 3 and a sentence when the package cannot be
installed or refuses the model.
"""
import argparse
import os
import pathlib
import subprocess
import sys

import side_by_side as sides

HERE = pathlib.Path(__file__).resolve().parent
PACKAGE = "ik-llama-cpp-python"
RUNNER_REFUSED = 3


def prepare(venv, wheel):
    """The Python of an environment that has the package; Unavailable where it cannot be made."""
    python = venv / "bin" / "python"
    stamp = venv / "stamp"
    wanted = "wheel" if wheel else "source"
    if python.exists() and stamp.exists() and stamp.read_text() == wanted:
        return python
    print(f"installing {PACKAGE} ({wanted}) in {venv}", file=sys.stderr)
    venv.mkdir(parents=True, exist_ok=True)
    log = venv / "install.log"
    source = [] if wheel else ["--no-binary", PACKAGE, "--force-reinstall"]
    commands = [[sys.executable, "-m", "venv", "--clear", venv],
                [python, "-m", "pip", "install", "--disable-pip-version-check", *source, PACKAGE]]
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True, check=False,
                              env=os.environ | {"CMAKE_ARGS": "-DGGML_NATIVE=ON -DCMAKE_BUILD_TYPE=Release"})
        if done.returncode != 0:
            venv.mkdir(parents=True, exist_ok=True)
            log.write_text(done.stdout + done.stderr)
            raise sides.Unavailable(f"{PACKAGE} cannot be installed; {log} says why")
    stamp.write_text(wanted)
    return python


def peer_of(python):
    def bench(a):
        command = [str(python), str(HERE / "ik_llama_runner.py"), a.model, str(a.prompt), str(a.generate), str(a.threads)]
        try:
            text, _, peak = sides.run(command)
        except sides.Failure as failure:
            if f"exit status {RUNNER_REFUSED}" in str(failure):
                raise sides.Unavailable(f"ik_llama.cpp refuses {a.model}:\n{failure}") from failure
            raise
        result = sides.parse_json(text, command)
        values = {metric: sides.number(result, metric, command) for metric in ("prefill", "decode")}
        return values | {"peak memory": peak}, result
    return sides.Engine("ik_llama.cpp", bench)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sides.add_arguments(parser)
    parser.add_argument("--venv", type=pathlib.Path, default=HERE.parent / "build" / "ik-llama-cpp")
    parser.add_argument("--wheel", action="store_true", help="install PyPI's binary (AVX2) instead of building for this machine")
    a = parser.parse_args()
    sides.check_arguments(parser, a)
    try:
        python = prepare(a.venv, a.wheel)
    except sides.Unavailable as reason:
        sides.leave(reason)
    sides.compare(peer_of(python), a)


if __name__ == "__main__":
    main()
