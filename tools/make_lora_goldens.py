#!/usr/bin/env python3
"""Makes tests/goldens/lora from a larger set: adapters in the files of PEFT and mlx-lm, and what they must produce.

    make_lora_goldens.py SOURCE tests/goldens

SOURCE/lora/VARIANT.safetensors holds random LoRA weights as `init.MODULE.lora_A` [rank, in] and `lora_B` [out, rank],
VARIANT.json the sequences and the losses of transformers' own modules in float64. The logits are those of gemma64.py
over weights with the adapter merged in float64; the losses that follow from them must be transformers'.
"""
import json
import pathlib
import sys

import numpy as np

import gemma64
import safetensors_file

# How transformers' multimodal class and its text class spell modules; mlx-lm spells the former's its own way.
PEFT_PREFIX = {"e2b": "base_model.model.model.language_model.", "moe26": "base_model.model.model."}
MLX_PREFIX = {"e2b": "language_model.model."}
LOSSES = ("sft_base_no_lora", "sft", "dpo", "dpo_policy_chosen_logp", "dpo_policy_rejected_logp")


def tensor(values):
    values = np.ascontiguousarray(values, dtype="<f4")
    return "F32", list(values.shape), values.tobytes()


def write(directory, name, tensors, config):
    directory.mkdir(parents=True, exist_ok=True)
    safetensors_file.write(directory / name, tensors)
    (directory / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")


def write_peft(directory, pairs, prefix, rank, alpha):
    tensors = {}
    for module, (a, b) in pairs.items():
        tensors[f"{prefix}{module}.lora_A.weight"] = tensor(a)
        tensors[f"{prefix}{module}.lora_B.weight"] = tensor(b)
    targets = sorted({module.rsplit(".", 1)[-1] for module in pairs})
    write(directory, "adapter_model.safetensors", tensors, {
        "alpha_pattern": {}, "base_model_name_or_path": "tiny", "bias": "none", "fan_in_fan_out": False,
        "inference_mode": True, "init_lora_weights": True, "layers_to_transform": None, "lora_alpha": alpha,
        "lora_bias": False, "lora_dropout": 0.0, "modules_to_save": None, "peft_type": "LORA", "r": rank,
        "rank_pattern": {}, "target_modules": targets, "task_type": "CAUSAL_LM", "use_dora": False,
        "use_rslora": False})


def write_mlx(directory, pairs, prefix, rank, scale, layers):
    tensors = {}
    for module, (a, b) in pairs.items():
        tensors[f"{prefix}{module}.lora_a"] = tensor(a.T)
        tensors[f"{prefix}{module}.lora_b"] = tensor(b.T)
    keys = sorted({module.split(".", 2)[-1] for module in pairs})
    write(directory, "adapters.safetensors", tensors, {
        "fine_tune_type": "lora", "lora_parameters": {"rank": rank, "dropout": 0.0, "scale": scale, "keys": keys},
        "num_layers": layers})


def completion_logp(config, weights, prompt, completion):
    """Log probabilities of the completion's tokens, and all logits."""
    logits = gemma64.forward(config, weights, prompt + completion)
    shifted = logits - np.max(logits, axis=-1, keepdims=True)
    logp = shifted - np.log(np.sum(np.exp(shifted), axis=-1, keepdims=True))
    positions = np.arange(len(prompt) - 1, len(prompt) + len(completion) - 1)
    return logp[positions, completion], logits


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    source, target = map(pathlib.Path, sys.argv[1:])
    for variant in ("e2b", "moe26"):
        stored = json.loads((source / "lora" / f"{variant}.json").read_text())
        raw = safetensors_file.read(source / "lora" / f"{variant}.safetensors")
        halves = {name: gemma64.array(entry) for name, entry in raw.items() if name.startswith("init.")}
        pairs = {name.removeprefix("model."): (halves[f"init.{name}.lora_A"], halves[f"init.{name}.lora_B"])
                 for name in stored["modules"]}
        rank, alpha = stored["rank"], stored["alpha"]

        config, weights = gemma64.load_directory(source / "models" / variant / stored["base_weights"])
        merged = dict(weights)
        for module, (a, b) in pairs.items():
            merged[module + ".weight"] = weights[module + ".weight"] + alpha / rank * (b @ a)
        first = stored["sft"][0]
        sums = {}
        for name, w in (("sft_base_no_lora", weights), ("sft", merged)):
            logp = np.concatenate([completion_logp(config, w, s["prompt"], s["completion"])[0] for s in stored["sft"]])
            sums[name] = -np.mean(logp)
        for name, loss in sums.items():
            if abs(loss - stored["f64"][name]) > 1e-9:
                sys.exit(f"{variant}: {name} is {loss}; transformers says {stored['f64'][name]}")
        _, logits = completion_logp(config, merged, first["prompt"], first["completion"])
        tokens = np.array(first["prompt"] + first["completion"], dtype="<i4")

        out = target / "lora"
        write_peft(out / variant / "peft", pairs, PEFT_PREFIX[variant], rank, alpha)
        if variant in MLX_PREFIX:
            write_mlx(out / variant / "mlx", pairs, MLX_PREFIX[variant], rank, alpha / rank,
                      config["num_hidden_layers"])
        safetensors_file.write(out / f"{variant}.safetensors", {
            "tokens": ("I32", [len(tokens)], tokens.tobytes()), "hf64": tensor(logits)})
        (out / f"{variant}.json").write_text(json.dumps({
            "model": f"{variant}/{stored['base_weights']}", "sft": stored["sft"], "pair": stored["pair"],
            "losses": {name: stored["f64"][name] for name in LOSSES}}) + "\n")
        print(f"{variant}: sft loss {sums['sft']:.12f}, without the adapter {sums['sft_base_no_lora']:.12f}")


if __name__ == "__main__":
    main()
