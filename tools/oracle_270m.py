#!/usr/bin/env python3
"""The float64 reference for Gemma 3 in GGUF form: transformers' own modules over the exactly dequantised file.

    oracle_270m.py encode --tokenizer tokenizer.json[.xz] --text FILE --out FILE.ids
    oracle_270m.py logits MODEL.gguf --ids FILE.ids [--out LOGITS.npy] [--golden GOLDEN.safetensors]
    oracle_270m.py greedy MODEL.gguf --tokenizer tokenizer.json[.xz] --prompts FILE --out GREEDY.json
    oracle_270m.py check  MODEL.gguf --ids FILE.ids

`logits` writes float32 [tokens, vocabulary] (the float64 result, rounded once) and the compact golden that
tests/goldens/README.md describes; `greedy` continues every line of FILE by 48 tokens; `check` proves that the whole
path is float64: the prompt in one piece and the prompt in chunks over a KV cache must agree to 1e-10.

transformers keeps RMSNorm, softmax, the rotary tables and the embedding scale in float32 even in a float64 model;
`use_float64()` replaces exactly those. Everything else (layers, masks, cache, GELU) is transformers' code untouched.
"""
import argparse
import json
import lzma
import pathlib
import sys

import gguf
import numpy as np
import torch
import transformers
from safetensors.numpy import save_file
from transformers.models.gemma3 import modeling_gemma3 as gemma3

ROWS = 64  # rows of logits in flight: 64 * 262144 * 8 bytes = 128 MiB
STEP, TOP, SAMPLED = 8, 64, 64  # the compact golden: every 8th position, its best 64 logits, 64 fixed ids
GREEDY_TOKENS = 48

TENSOR_NAMES = {  # GGUF suffix -> transformers' name within a layer
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "post_ffw_norm": "post_feedforward_layernorm",
}


# ---- the file ----------------------------------------------------------------------------------------------------

def dequantise(tensor):
    """The tensor's values as float64, in the row-major shape [rows, columns], without any rounding.

    gguf computes in float32. A product of a float16 scale, an integer scale and a weight's few bits fits its 24-bit
    mantissa, so that is exact for every format without a minimum; with one (Q4_K here) scale*q - min*m must be
    subtracted in float64.
    """
    if tensor.tensor_type == gguf.GGMLQuantizationType.Q4_K:
        rows = tensor.data
        blocks = rows.reshape(-1, 144)  # d, dmin: float16; scales and minima: 12 bytes; 128 bytes of 4-bit weights
        d, dmin = (blocks[:, i:i + 2].copy().view(np.float16).astype(np.float64) for i in (0, 2))
        scale, minimum = gguf.quants.Q4_K.get_scale_min(blocks[:, 4:16])
        packed = blocks[:, 16:].reshape(-1, 4, 1, 32)
        q = (packed >> np.array([0, 4], np.uint8).reshape(1, 1, 2, 1)) & 15  # low nibbles are sub-block 2i, high 2i+1
        q = q.reshape(-1, 8, 32).astype(np.float64)
        values = (d * scale)[:, :, None] * q - (dmin * minimum)[:, :, None]
        return values.reshape(rows.shape[0], -1)
    if tensor.tensor_type in (gguf.GGMLQuantizationType.Q4_1, gguf.GGMLQuantizationType.Q5_1,
                              gguf.GGMLQuantizationType.Q2_K, gguf.GGMLQuantizationType.Q5_K):
        sys.exit(f"{tensor.name}: {tensor.tensor_type.name} has minima, which float32 would round; not handled")
    return gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float64)


def read_config(reader):
    def value(key, default=None):
        field = reader.get_field(key)
        if field is None and default is None:
            sys.exit(f"{key} is missing from the file")
        return default if field is None else field.contents()

    if value("general.architecture") != "gemma3":
        sys.exit(f"architecture {value('general.architecture')}; this oracle knows gemma3 only")
    if any(name.startswith("gemma3.rope.scaling.") for name in reader.fields):
        sys.exit("the file scales its RoPE; this oracle is for the 270M and 1B models, which do not")
    embedding = next(t for t in reader.tensors if t.name == "token_embd.weight")
    head_dim = value("gemma3.attention.key_length")
    return transformers.Gemma3TextConfig(
        vocab_size=int(embedding.shape[1]),
        hidden_size=value("gemma3.embedding_length"),
        intermediate_size=value("gemma3.feed_forward_length"),
        num_hidden_layers=value("gemma3.block_count"),
        num_attention_heads=value("gemma3.attention.head_count"),
        num_key_value_heads=value("gemma3.attention.head_count_kv"),
        head_dim=head_dim,
        query_pre_attn_scalar=head_dim,  # true of every Gemma 3 but the 27B
        max_position_embeddings=value("gemma3.context_length"),
        rms_norm_eps=value("gemma3.attention.layer_norm_rms_epsilon"),
        sliding_window=value("gemma3.attention.sliding_window"),
        rope_parameters={
            "full_attention": {"rope_type": "default", "rope_theta": value("gemma3.rope.freq_base")},
            "sliding_attention": {"rope_type": "default", "rope_theta": value("gemma3.rope.freq_base_swa", 10000.0)},
        },
        tie_word_embeddings=True,
        attn_implementation="eager",
        dtype="float64",
    )


def read_weights(reader):
    weights = {}
    for tensor in reader.tensors:
        part = tensor.name.removesuffix(".weight").split(".")
        if part == ["token_embd"]:
            name = "model.embed_tokens"
        elif part == ["output_norm"]:
            name = "model.norm"
        elif part[0] == "blk" and part[2] in TENSOR_NAMES:
            name = f"model.layers.{part[1]}.{TENSOR_NAMES[part[2]]}"
        else:
            sys.exit(f"{tensor.name}: not a tensor of a tied Gemma 3 text model")
        values = dequantise(tensor)
        # GGUF stores 1 + w (added in float32); transformers adds the 1 itself, in float64 here, so it cancels exactly.
        # Queries and keys keep transformers' halves order: the converter permutes them for other families only.
        weights[name + ".weight"] = torch.from_numpy(values - 1.0 if tensor.name.endswith("norm.weight") else values)
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    return weights


# ---- the model ---------------------------------------------------------------------------------------------------

def use_float64():
    """Replaces the four places where transformers drops to float32."""
    def norm(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * (1.0 + self.weight)

    def embed(self, input_ids):
        return torch.nn.functional.embedding(input_ids, self.weight) * self.scalar_embed_scale  # a Python float

    def rope(self, x, position_ids, layer_type):
        theta = self.config.rope_parameters[layer_type]["rope_theta"]
        dim = self.config.head_dim
        frequencies = theta ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
        angles = position_ids[..., None].double() * frequencies
        angles = torch.cat((angles, angles), dim=-1)
        return angles.cos(), angles.sin()

    def attention(module, query, key, value, attention_mask, dropout=0.0, scaling=None, **_):
        key = gemma3.repeat_kv(key, module.num_key_value_groups)
        value = gemma3.repeat_kv(value, module.num_key_value_groups)
        scores = query @ key.transpose(2, 3) * scaling + attention_mask
        weights = torch.softmax(scores, dim=-1)
        return (weights @ value).transpose(1, 2).contiguous(), weights

    gemma3.Gemma3RMSNorm.forward = norm
    gemma3.Gemma3TextScaledWordEmbedding.forward = embed
    gemma3.Gemma3RotaryEmbedding.forward = rope
    gemma3.eager_attention_forward = attention


def load(path):
    reader = gguf.GGUFReader(path)
    use_float64()
    with torch.device("meta"):
        model = gemma3.Gemma3ForCausalLM(read_config(reader))
    model.load_state_dict(read_weights(reader), strict=True, assign=True)
    for parameter in model.parameters():
        if parameter.dtype != torch.float64 or parameter.is_meta:
            sys.exit("a weight is not float64")

    def expect_float64(module, _, output):
        values = output[0] if isinstance(output, tuple) else output
        if isinstance(values, torch.Tensor) and values.dtype != torch.float64:
            raise SystemExit(f"{type(module).__name__} returned {values.dtype}")

    for module in model.modules():
        module.register_forward_hook(expect_float64)
    return model.eval()


def hidden_states(model, ids):
    """After the final norm: [tokens, hidden]."""
    return model.model(input_ids=torch.tensor([ids])).last_hidden_state[0]


# ---- the verbs ---------------------------------------------------------------------------------------------------

def read_ids(path):
    return [int(word) for word in pathlib.Path(path).read_text().split()]


def read_tokenizer(path):
    from tokenizers import Tokenizer
    data = pathlib.Path(path).read_bytes()
    return Tokenizer.from_str((lzma.decompress(data) if path.endswith(".xz") else data).decode())


def encode(args):
    text = pathlib.Path(args.text).read_text(encoding="utf-8")
    ids = read_tokenizer(args.tokenizer).encode(text).ids
    pathlib.Path(args.out).write_text(" ".join(map(str, ids)) + "\n")
    print(f"{len(ids)} tokens, the first is {ids[0]}")


def logits(args):
    ids = read_ids(args.ids)
    model = load(args.model)
    hidden, head = hidden_states(model, ids), model.lm_head.weight
    vocabulary = head.shape[0]
    sampled = np.sort(np.random.default_rng(270).choice(vocabulary, SAMPLED, replace=False)).astype(np.int32)
    out = np.lib.format.open_memmap(args.out, "w+", np.float32, (len(ids), vocabulary)) if args.out else None
    kept = {name: [] for name in ("logsumexp", "top_ids", "top_logits", "sample_logits", "argmax", "top_gap",
                                  "next_logprob")}
    for start in range(0, len(ids), ROWS):
        rows = hidden[start:start + ROWS] @ head.T
        if out is not None:
            out[start:start + len(rows)] = rows.float().numpy()
        total = torch.logsumexp(rows, dim=-1)
        top = torch.topk(rows, TOP, dim=-1)
        kept["argmax"].append(top.indices[:, 0])
        kept["top_gap"].append(top.values[:, 0] - top.values[:, 1])
        following = torch.tensor(ids[start + 1:start + 1 + len(rows)])
        n = torch.arange(len(following))
        kept["next_logprob"].append(rows[n, following] - total[n])
        picked = [row for row in range(len(rows)) if (start + row) % STEP == STEP - 1]
        kept["logsumexp"].append(total[picked])
        kept["top_ids"].append(top.indices[picked])
        kept["top_logits"].append(top.values[picked])
        kept["sample_logits"].append(rows[picked][:, torch.from_numpy(sampled).long()])
        print(f"\r{start + len(rows)}/{len(ids)}", end="", file=sys.stderr)
    print(file=sys.stderr)
    kept = {name: torch.cat(parts) for name, parts in kept.items()}
    perplexity = float(torch.exp(-kept["next_logprob"].mean()))
    print(f"perplexity {perplexity:.6f}; smallest top-1 to top-2 gap {float(kept['top_gap'].min()):.3g}; "
          f"largest logit {float(kept['top_logits'].max()):.3f}")
    if args.golden:
        tensors = {name: (value.int() if name in ("top_ids", "argmax") else value.float()).numpy()
                   for name, value in kept.items()}
        tensors["tokens"] = np.array(ids, np.int32)
        tensors["positions"] = np.arange(STEP - 1, len(ids), STEP, dtype=np.int32)
        tensors["sample_ids"] = sampled
        tensors["perplexity"] = np.array([perplexity], np.float32)
        save_file(tensors, args.golden, {"perplexity": repr(perplexity)})  # one key: their order is random


def greedy(args):
    tokenizer, model = read_tokenizer(args.tokenizer), load(args.model)
    texts = pathlib.Path(args.prompts).read_text(encoding="utf-8").splitlines()
    prompts = [tokenizer.encode(text).ids for text in texts]

    # All prompts decode together: padded on the left, masked, each with its own positions.
    longest = max(map(len, prompts))
    tokens = torch.tensor([[0] * (longest - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    cache = transformers.DynamicCache(config=model.config)
    chosen, gaps = [], []
    for _ in range(GREEDY_TOKENS):
        rows = model(input_ids=tokens, attention_mask=mask, position_ids=positions, cache=cache, use_cache=True,
                     logits_to_keep=1).logits[:, -1]
        best = torch.topk(rows, 2, dim=-1)
        chosen.append(best.indices[:, 0])
        gaps.append(best.values[:, 0] - best.values[:, 1])
        tokens = best.indices[:, :1]
        mask = torch.cat((mask, torch.ones_like(tokens)), dim=-1)
        positions = positions[:, -1:] + 1
    chosen, gaps = torch.stack(chosen, 1), torch.stack(gaps, 1)  # [prompts, GREEDY_TOKENS]

    # Once more, each alone, whole and without a cache: the same tokens with the same gaps, or the oracle is wrong.
    worst = 0.0
    for prompt, continuation, gap in zip(prompts, chosen, gaps):
        hidden = hidden_states(model, prompt + continuation[:-1].tolist())[len(prompt) - 1:]
        best = torch.topk(hidden @ model.lm_head.weight.T, 2, dim=-1)
        if not torch.equal(best.indices[:, 0], continuation):
            sys.exit("the cached and the whole run chose different tokens")
        worst = max(worst, float((best.values[:, 0] - best.values[:, 1] - gap).abs().max()))
    print(f"cached and whole runs agree to {worst:.2g}; smallest gap {float(gaps.min()):.3g}")
    if worst > 1e-9:
        sys.exit("the two runs disagree")

    entries = [{"prompt": text, "prompt_ids": prompt, "greedy_ids": ids.tolist(),
                "top_gap": [float(f"{g:.6g}") for g in gap.tolist()],
                "text": tokenizer.decode(ids.tolist(), skip_special_tokens=False)}
               for text, prompt, ids, gap in zip(texts, prompts, chosen, gaps)]
    lines = ",\n".join("  " + json.dumps(entry, ensure_ascii=False) for entry in entries)
    pathlib.Path(args.out).write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def check(args):
    model, ids = load(args.model), read_ids(args.ids)
    whole = hidden_states(model, ids)
    cache = transformers.DynamicCache(config=model.config)
    parts, start = [], 0
    window = model.config.sliding_window
    # The chunk of 33 crosses the window; the last is whatever remains.
    for size in [7] * 5 + [1] * 13 + [window - 60, 33, 1, 1, len(ids)]:
        chunk = torch.tensor([ids[start:start + size]])
        if chunk.numel() == 0:
            break
        parts.append(model.model(input_ids=chunk, cache=cache, use_cache=True).last_hidden_state[0])
        start += size
    chunked = torch.cat(parts)
    difference = float((whole[:len(chunked)] - chunked).abs().max())
    print(f"{len(chunked)} tokens, hidden states up to {float(whole.abs().max()):.3g}: "
          f"whole and chunked differ by {difference:.3g}")
    if len(chunked) > window:
        model.config.sliding_window = len(ids)
        full = hidden_states(model, ids)
        model.config.sliding_window = window
        print(f"without the window of {window} they would differ by {float((whole - full).abs().max()):.3g}, first at "
              f"position {int((whole - full).abs().amax(-1).gt(1e-9).nonzero()[0])}")
    if difference > 1e-10:
        sys.exit("not float64 throughout")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    verbs = parser.add_subparsers(required=True)

    def verb(function, model, **options):
        sub = verbs.add_parser(function.__name__)
        if model:
            sub.add_argument("model")
        for name, required in options.items():
            sub.add_argument(f"--{name}", required=required)
        sub.set_defaults(function=function)

    verb(encode, False, tokenizer=True, text=True, out=True)
    verb(logits, True, ids=True, out=False, golden=False)
    verb(greedy, True, tokenizer=True, prompts=True, out=True)
    verb(check, True, ids=True)
    args = parser.parse_args()
    with torch.inference_mode():
        args.function(args)


if __name__ == "__main__":
    main()
