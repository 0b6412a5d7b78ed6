"""Gemma 3 and Gemma 4 text models in float64, written for clarity: the reference of the goldens.

`forward(config, weights, tokens)` takes config.json's text part (a dict) and weights by their names in transformers'
checkpoints without the prefix ("layers.0.self_attn.q_proj.weight"), as float64 arrays. Matrices are [out, in].
`python3 gemma64.py DIRECTORY` checks it against every golden of a tests/goldens directory, whose logits came from
transformers' own modules run in float64.
"""
import json
import pathlib
import sys

import numpy as np

import safetensors_file


def rms_norm(x, weight=None, eps=1e-6):
    y = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps)
    return y if weight is None else y * weight


def gelu(x):
    return 0.5 * x * (1.0 + np.tanh(np.sqrt(2.0 / np.pi) * (x + 0.044715 * x**3)))


def softmax(x):
    e = np.exp(x - np.max(x, axis=-1, keepdims=True))
    return e / np.sum(e, axis=-1, keepdims=True)


def rotate(x, theta, partial=1.0, factor=1.0):
    """x [heads, tokens, head_dim]; pair i is (i, i + head_dim / 2); only the first `partial` of the pairs turn."""
    half = x.shape[-1] // 2
    frequency = theta ** (-np.arange(half) / half) / factor
    frequency[int(partial * half):] = 0.0
    angle = np.arange(x.shape[1])[:, None] * frequency
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)], axis=-1)


class Plan:
    """What each layer does, from the config."""

    def __init__(self, config):
        self.config = config
        self.gemma4 = config["model_type"].startswith("gemma4")
        self.layers = config["num_hidden_layers"]
        if "layer_types" in config:
            self.full = [kind == "full_attention" for kind in config["layer_types"]]
        else:
            self.full = [(i + 1) % config["sliding_window_pattern"] == 0 for i in range(self.layers)]
        shared = config.get("num_kv_shared_layers") or 0
        self.first_shared = self.layers - shared
        self.scale = 1.0 if self.gemma4 else config["query_pre_attn_scalar"] ** -0.5
        self.eps = config["rms_norm_eps"]

    def head_dim(self, layer):
        return self.config["global_head_dim"] if self.gemma4 and self.full[layer] else self.config["head_dim"]

    def norm_weight(self, stored):
        return stored if self.gemma4 else 1.0 + stored

    def donor(self, layer):
        if layer < self.first_shared:
            return layer
        return max(i for i in range(self.first_shared) if self.full[i] == self.full[layer])

    def rope(self, layer):
        c = self.config
        if "rope_parameters" in c:
            rope = c["rope_parameters"]["full_attention" if self.full[layer] else "sliding_attention"]
            partial = rope["partial_rotary_factor"] if rope["rope_type"] == "proportional" else 1.0
            return rope["rope_theta"], partial, rope.get("factor", 1.0)
        if not self.full[layer]:
            return c["rope_local_base_freq"], 1.0, 1.0
        return c["rope_theta"], 1.0, (c.get("rope_scaling") or {}).get("factor", 1.0)


def attention(plan, weights, layer, x, shared):
    """x [tokens, hidden]. `shared` collects each layer's keys and values for the layers without their own."""
    config, prefix, tokens, head_dim = plan.config, f"layers.{layer}.self_attn.", len(x), plan.head_dim(layer)

    def heads(y):
        return y.reshape(tokens, -1, head_dim).transpose(1, 0, 2)

    def norm(name, y):
        return rms_norm(y, plan.norm_weight(weights[prefix + name]), plan.eps)

    query = rotate(norm("q_norm.weight", heads(x @ weights[prefix + "q_proj.weight"].T)), *plan.rope(layer))
    if layer < plan.first_shared:
        raw_key = heads(x @ weights[prefix + "k_proj.weight"].T)
        k_eq_v = plan.gemma4 and plan.full[layer] and config["attention_k_eq_v"]
        value = raw_key if k_eq_v else heads(x @ weights[prefix + "v_proj.weight"].T)
        shared[layer] = (rotate(norm("k_norm.weight", raw_key), *plan.rope(layer)),
                         rms_norm(value, None, plan.eps) if plan.gemma4 else value)
    key, value = shared[plan.donor(layer)]
    repeat = len(query) // len(key)
    key, value = np.repeat(key, repeat, axis=0), np.repeat(value, repeat, axis=0)
    distance = np.arange(tokens)[:, None] - np.arange(tokens)[None, :]
    visible = distance >= 0
    if not plan.full[layer]:
        visible &= distance < config["sliding_window"]
    scores = np.where(visible, query @ key.transpose(0, 2, 1) * plan.scale, -np.inf)
    mixed = (softmax(scores) @ value).transpose(1, 0, 2).reshape(tokens, -1)
    return mixed @ weights[prefix + "o_proj.weight"].T


def experts(plan, weights, prefix, x, router_input):
    scores = rms_norm(router_input, None, plan.eps) * weights[prefix + "router.scale"] * router_input.shape[1] ** -0.5
    probabilities = softmax(scores @ weights[prefix + "router.proj.weight"].T)
    gate_up, down = weights[prefix + "experts.gate_up_proj"], weights[prefix + "experts.down_proj"]
    width, out = down.shape[2], np.zeros_like(x)
    for token, p in enumerate(probabilities):
        chosen = np.argsort(-p, kind="stable")[:plan.config["top_k_experts"]]
        for expert in chosen:
            weight = p[expert] / np.sum(p[chosen]) * weights[prefix + "router.per_expert_scale"][expert]
            both = gate_up[expert] @ x[token]
            out[token] += weight * (down[expert] @ (gelu(both[:width]) * both[width:]))
    return out


def forward(config, weights, tokens, hidden_states=None):
    """Logits [tokens, vocab]. `hidden_states`, a list, receives the embeddings, each layer's output and the normed end."""
    plan = Plan(config)

    def norm(name, y):
        return rms_norm(y, plan.norm_weight(weights[name + ".weight"]), plan.eps)

    h = weights["embed_tokens.weight"][tokens] * config["hidden_size"] ** 0.5
    states = [h]
    pli_width = config.get("hidden_size_per_layer_input") or 0
    if pli_width:
        token_part = weights["embed_tokens_per_layer.weight"][tokens] * pli_width**0.5
        context = h @ weights["per_layer_model_projection.weight"].T * config["hidden_size"] ** -0.5
        shape = (len(tokens), plan.layers, pli_width)
        pli = (norm("per_layer_projection_norm", context.reshape(shape)) + token_part.reshape(shape)) * 2**-0.5
    shared = {}
    for layer in range(plan.layers):
        prefix = f"layers.{layer}."
        mixed = attention(plan, weights, layer, norm(prefix + "input_layernorm", h), shared)
        h = h + norm(prefix + "post_attention_layernorm", mixed)
        x = norm(prefix + "pre_feedforward_layernorm", h)
        gate, up = (x @ weights[f"{prefix}mlp.{name}_proj.weight"].T for name in ("gate", "up"))
        y = (gelu(gate) * up) @ weights[prefix + "mlp.down_proj.weight"].T
        if config.get("enable_moe_block"):
            routed = experts(plan, weights, prefix, norm(prefix + "pre_feedforward_layernorm_2", h), h)
            y = norm(prefix + "post_feedforward_layernorm_1", y) + norm(prefix + "post_feedforward_layernorm_2", routed)
        h = h + norm(prefix + "post_feedforward_layernorm", y)
        if pli_width:
            gated = gelu(h @ weights[prefix + "per_layer_input_gate.weight"].T) * pli[:, layer]
            h = h + norm(prefix + "post_per_layer_input_norm", gated @ weights[prefix + "per_layer_projection.weight"].T)
        if plan.gemma4:
            h = h * weights[prefix + "layer_scalar"]
        states.append(h)
    h = norm("norm", h)
    states.append(h)
    if hidden_states is not None:
        hidden_states.extend(states)
    logits = h @ weights["embed_tokens.weight" if "lm_head.weight" not in weights else "lm_head.weight"].T
    cap = config.get("final_logit_softcapping")
    return logits if cap is None else cap * np.tanh(logits / cap)


def golden(config, weights, tokens, steps=32):
    """The tensors of a golden file, ready for safetensors_file.write."""
    logits, greedy, margins, sequence = forward(config, weights, tokens), [], [], list(tokens)
    last = logits[-1]
    for _ in range(steps):
        second, first = np.sort(last)[-2:]
        greedy.append(int(np.argmax(last)))
        margins.append(first - second)
        sequence.append(greedy[-1])
        last = forward(config, weights, sequence)[-1]
    return {"tokens": ("I32", [len(tokens)], np.array(tokens, "<i4").tobytes()),
            "hf64": ("F32", list(logits.shape), logits.astype("<f4").tobytes()),
            "greedy": ("I32", [steps], np.array(greedy, "<i4").tobytes()),
            "greedy_margin": ("F32", [steps], np.array(margins, "<f4").tobytes())}


def array(entry):
    """A safetensors entry of a float type as float64, of an integer type as it is."""
    dtype, shape, data = entry
    if dtype == "BF16":
        return (np.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4").astype(np.float64).reshape(shape)
    kind = {"F32": "<f4", "F16": "<f2", "F64": "<f8", "I32": "<i4", "U32": "<u4", "U8": "u1"}[dtype]
    values = np.frombuffer(data, kind).reshape(shape)
    return values.astype(np.float64) if dtype.startswith("F") else values


def affine(codes, scales, biases, bits):
    """Each row of `codes` (U32 words) is one little-endian stream of `bits`-bit values."""
    rows = np.ascontiguousarray(codes, "<u4").view(np.uint8)
    stream = np.unpackbits(rows, axis=-1, bitorder="little")
    stream = stream.reshape(*stream.shape[:-1], -1, bits)
    values = stream @ (1 << np.arange(bits)).astype(np.float64)
    grouped = values.reshape(*scales.shape, -1)
    return (grouped * scales[..., None] + biases[..., None]).reshape(values.shape)


E2M1 = np.array([0, .5, 1, 1.5, 2, 3, 4, 6, -0., -.5, -1, -1.5, -2, -3, -4, -6])


def e8m0(codes):
    return 2.0 ** (codes.astype(np.float64) - 127)


def e4m3(codes):
    codes = codes.astype(np.int64)
    sign, exponent, mantissa = codes >> 7, codes >> 3 & 15, codes & 7
    magnitude = np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent.astype(float) - 10))
    return np.where(sign == 1, -magnitude, magnitude)


def microscaled(codes, scales, mode):
    data = np.ascontiguousarray(codes, "<u4").view(np.uint8)
    if mode == "mxfp8":
        values = e4m3(data)
    else:
        values = E2M1[np.stack([data & 15, data >> 4], axis=-1)].reshape(*data.shape[:-1], -1)
    factors = e4m3(scales) if mode == "nvfp4" else e8m0(scales)
    return (values.reshape(*scales.shape, -1) * factors[..., None]).reshape(values.shape)


def load_directory(directory):
    """(text config, float64 weights) of a safetensors checkpoint in transformers' or MLX's form."""
    directory = pathlib.Path(directory)
    whole = json.loads((directory / "config.json").read_text())
    config = whole.get("text_config", whole)
    raw = {}
    for file in sorted(directory.glob("model*.safetensors")):
        raw.update(safetensors_file.read(file))
    quantization = whole.get("quantization") or {}
    weights = {}
    for name, entry in raw.items():
        if any(part in name for part in ("vision", "audio")) or name.endswith((".scales", ".biases")):
            continue
        module = name.removesuffix(".weight")
        value = array(entry)
        if module + ".scales" in raw:
            scales = array(raw[module + ".scales"])
            settings = quantization.get(module, quantization)  # an entry without a mode is affine
            mode = settings.get("mode", "affine")
            if mode == "affine":
                value = affine(value, scales, array(raw[module + ".biases"]), settings["bits"])
            else:
                value = microscaled(value, scales, mode)
        for prefix in ("model.language_model.", "language_model.model.", "language_model.", "model."):
            if name.startswith(prefix):
                name = name[len(prefix):]
                break
        weights[name] = value
    for layer in range(config["num_hidden_layers"]):  # MLX splits the fused expert tensors
        split = f"layers.{layer}.experts.switch_glu."
        if split + "gate_proj.weight" in weights:
            weights[f"layers.{layer}.experts.gate_up_proj"] = np.concatenate(
                [weights.pop(split + "gate_proj.weight"), weights.pop(split + "up_proj.weight")], axis=1)
            weights[f"layers.{layer}.experts.down_proj"] = weights.pop(split + "down_proj.weight")
    return config, weights


def main():
    root = pathlib.Path(sys.argv[1])
    worst = 0.0
    for file in sorted((root / "goldens").glob("*.safetensors")):
        variant, form = file.name.removesuffix(".safetensors").split(".")
        stored = {name: array(entry) for name, entry in safetensors_file.read(file).items()}
        config, weights = load_directory(root / "models" / variant / form)
        made = {name: array(entry) for name, entry in golden(config, weights, stored["tokens"].tolist()).items()}
        difference = np.max(np.abs(made["hf64"] - stored["hf64"]))
        greedy = bool(np.array_equal(made["greedy"], stored["greedy"]))
        worst = max(worst, difference if greedy else np.inf)
        print(f"{variant:8} {form:9} max abs difference of logits {difference:.2e}  greedy {'same' if greedy else 'DIFFERS'}",
              flush=True)
    # Both sides are float64 results rounded to float32: equal but for the last bit.
    sys.exit(0 if worst < 1e-5 else 1)


if __name__ == "__main__":
    main()
