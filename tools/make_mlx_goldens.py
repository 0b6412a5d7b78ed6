#!/usr/bin/env python3
"""Adds MLX quantisations to tests/goldens that the copied set lacks, with their float64 logits.

    make_mlx_goldens.py tests/goldens

mlx-lm quantises and saves the bf16 checkpoints of tests/goldens itself; gemma64 makes the reference from the saved file.
Every module's dequantisation is compared with MLX's. Needs mlx[cpu] and mlx-lm (0.32).
"""
import pathlib
import sys

import mlx.core as mx
import numpy as np
from mlx_lm import utils

import gemma64
import safetensors_file

BITS = (2, 3, 4, 5, 6, 8)


def all_bits(group):
    """Affine with every bit width in turn, module after module."""
    turn = iter(range(1 << 30))

    def settings(path, module):
        if not hasattr(module, "to_quantized") or module.weight.shape[-1] % group:
            return False
        return {"group_size": group, "bits": BITS[next(turn) % len(BITS)], "mode": "affine"}
    return settings


# (variant, source form, new form, mode, group, bits, per-module settings)
FORMS = [
    ("dense31", "bf16-hf", "mxfp8", "mxfp8", 32, 8, None),
    ("dense31", "bf16-hf", "nvfp4", "nvfp4", 16, 4, None),
    ("moe26w", "bf16-mlx", "nvfp4", "nvfp4", 16, 4, None),
    ("dense31", "bf16-hf", "affine-g32", "affine", 32, 4, all_bits(32)),
    ("untied", "bf16-hf", "affine-g128", "affine", 128, 4, all_bits(128)),
]


def check_against_mlx(directory):
    """Largest difference between MLX's float32 dequantisation and gemma64's float64 one, relative to the largest weight."""
    raw = mx.load(str(directory / "model.safetensors"))
    settings = utils.load_config(directory)["quantization"]
    weights = gemma64.load_directory(directory)[1]
    worst, modules = 0.0, 0
    for name in raw:
        module = name.removesuffix(".scales")
        if module == name or "switch_glu" in name:  # gemma64 has joined these; their format is the one of the others
            continue
        own = settings.get(module, settings)
        biases = raw.get(module + ".biases")
        scales = raw[name] if biases is None else raw[name].astype(mx.float32)
        theirs = mx.dequantize(raw[module + ".weight"], scales, None if biases is None else biases.astype(mx.float32),
                               group_size=own["group_size"], bits=own["bits"], mode=own.get("mode", "affine"),
                               **({} if biases is not None else {"dtype": mx.float32}))
        ours = weights[module.split("model.")[-1] + ".weight"] if "lm_head" not in module else weights["lm_head.weight"]
        worst = max(worst, np.max(np.abs(np.array(theirs, dtype=np.float64) - ours)) / np.max(np.abs(ours)))
        modules += 1
    return worst, modules


def main():
    mx.set_default_device(mx.cpu)
    root = pathlib.Path(sys.argv[1])
    for variant, source, form, mode, group, bits, predicate in FORMS:
        # mlx-lm takes the vocabulary of a nested config from its top level.
        model, config = utils.load_model(root / "models" / variant / source, model_config={"vocab_size": 512})
        model, config = utils.quantize_model(model, config, group, bits, mode=mode, quant_predicate=predicate)
        directory = root / "models" / variant / form
        utils.save_model(directory, model)
        utils.save_config(config, directory / "config.json")
        (directory / "model.safetensors.index.json").unlink()  # one file needs no index
        worst, modules = check_against_mlx(directory)
        config, weights = gemma64.load_directory(directory)
        stored = safetensors_file.read(root / "goldens" / f"{variant}.{source}.safetensors")
        tensors = gemma64.golden(config, weights, gemma64.array(stored["tokens"]).tolist())
        safetensors_file.write(root / "goldens" / f"{variant}.{form}.safetensors", tensors)
        logits = gemma64.array(tensors["hf64"])
        print(f"{variant}.{form}: {modules} modules within {worst:.1e} of MLX's; {np.max(np.abs(logits - gemma64.array(stored['hf64']))):.2f} "
              f"from the bf16 logits at most, {(directory / 'model.safetensors').stat().st_size} bytes", flush=True)


if __name__ == "__main__":
    main()
