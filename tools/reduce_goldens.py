#!/usr/bin/env python3
"""Copies the golden checkpoints into tests/goldens and keeps of their reference outputs what a test reads.

    reduce_goldens.py SOURCE tests/goldens

SOURCE holds models/VARIANT/FORM/* (copied as they are) and goldens/VARIANT.FORM.{safetensors,json}. Of the latter the
float64 reference and its greedy continuation stay, with the margins of that continuation (json: greedy_margin_hf64)
added as a tensor; the outputs of other engines and their statistics go.
"""
import json
import pathlib
import shutil
import struct
import sys

import safetensors_file

KEPT = ("tokens", "hf64", "greedy", "hf64_hidden")


def reduce_golden(source, target):
    tensors = safetensors_file.read(source)
    margins = json.loads(source.with_suffix(".json").read_text())["greedy_margin_hf64"]
    kept = {name: tensors[name] for name in KEPT if name in tensors}
    if len(margins) != kept["greedy"][1][0]:
        sys.exit(f"{source}: {len(margins)} margins for {kept['greedy'][1][0]} greedy tokens")
    kept["greedy_margin"] = ("F32", [len(margins)], struct.pack(f"<{len(margins)}f", *margins))
    safetensors_file.write(target, kept)


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    source, target = map(pathlib.Path, sys.argv[1:])
    for file in sorted((source / "models").glob("*/*/*")):
        copy = target / file.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copy)  # contents, not the mode: the source may be read-only
    (target / "goldens").mkdir(exist_ok=True)
    for file in sorted((source / "goldens").glob("*.safetensors")):
        reduce_golden(file, target / "goldens" / file.name)


if __name__ == "__main__":
    main()
