#!/usr/bin/env python3
"""Writes a full-size Gemma 4 checkpoint with random weights: for timing only, its text is noise.

    synthetic_gguf.py SHAPE TYPE OUT.gguf [--layers N] [--unread-kv]         SHAPE e2b, e4b, 12b, 26b-a4b or 31b
    synthetic_gguf.py SHAPE TYPE OUT_DIR --mlx [--layers N] [--unread-kv]   TYPE q4_0, q4_k_m, q8_0 or bf16

Tensors, their types and the metadata are those of files that llama.cpp's tools make: matrices in the type asked for, the
tied embeddings and the per-layer table in Q6_K (Q8_0 in q8_0 files), the per-layer projection in BF16, norms in F32, and in
q4_k_m files the value and down projections of some layers in Q6_K. --mlx writes what mlx-lm writes instead: a directory with
affine codes in groups of 64 (4 bits for q4_0, 8 for q8_0) or plain bf16, config.json and tokenizer.json. The vocabulary has
262,144 pieces; they mean nothing. --layers keeps the first N layers and the shared fraction of E models; N must reach the
first full-attention layer. --unread-kv adds what E models' files often hold and nobody reads.

Needs numpy. Weights repeat a few MB of random blocks, so memory stays below 300 MB and the disk sets the pace.
Prints one line of JSON: path, file_bytes, layers, seconds.
"""
import argparse
import dataclasses
import functools
import json
import pathlib
import struct
import sys
import time

import numpy as np


@dataclasses.dataclass(frozen=True)
class Shape:
    layers: int
    hidden: int
    mlp: int
    heads: int
    kv_heads: int
    period: int  # every period-th layer sees the whole context
    window: int
    full_kv_heads: int = 0  # 0: as kv_heads
    k_eq_v: bool = False  # full layers have no value projection
    shared: int = 0  # last layers, which read the keys and values of earlier ones
    double_mlp: bool = False  # in the shared layers
    per_layer: int = 0  # width of the per-layer inputs
    experts: int = 0
    experts_used: int = 0
    expert_mlp: int = 0
    head_dim: int = 256
    full_head_dim: int = 512
    vocab: int = 262144
    context: int = 131072
    unread_kv: bool = False  # shared layers have key and value projections all the same

    def is_full(self, layer):
        return (layer + 1) % self.period == 0

    @property
    def owners(self):
        return self.layers - self.shared

    def mlp_of(self, layer):
        return self.mlp * (2 if self.double_mlp and layer >= self.owners else 1)

    def kv_heads_of(self, layer):
        return self.full_kv_heads or self.kv_heads if self.is_full(layer) else self.kv_heads

    def head_dim_of(self, layer):
        return self.full_head_dim if self.is_full(layer) else self.head_dim

    def cut(self, layers):
        if not self.period <= layers <= self.layers:
            raise ValueError(f"--layers is {layers}: expected {self.period} (the first full-attention layer) to {self.layers}")
        if self.shared == 0:
            return dataclasses.replace(self, layers=layers)
        # llama.cpp takes for granted that the last owner is a full layer and the one before it a sliding one.
        periods = max(1, round(self.owners * layers / self.layers / self.period))
        return dataclasses.replace(self, layers=layers, shared=layers - min(periods * self.period, layers))


SHAPES = {
    "e2b": Shape(35, 1536, 6144, 8, 1, 5, 512, shared=20, double_mlp=True, per_layer=256),
    "e4b": Shape(42, 2560, 10240, 8, 2, 6, 512, shared=18, per_layer=256),
    "12b": Shape(48, 3840, 15360, 16, 8, 6, 1024, full_kv_heads=1, k_eq_v=True, context=262144),
    "26b-a4b": Shape(30, 2816, 2112, 16, 8, 6, 1024, full_kv_heads=2, k_eq_v=True, experts=128, experts_used=8, expert_mlp=704,
                     context=262144),
    "31b": Shape(60, 5376, 21504, 32, 16, 6, 1024, full_kv_heads=4, k_eq_v=True, context=262144),
    # For tests: one of each kind of model, small enough to run in milliseconds.
    "tiny": Shape(6, 256, 512, 2, 1, 3, 64, shared=3, double_mlp=True, per_layer=64, head_dim=64, full_head_dim=128, vocab=2048,
                  context=4096),
    "tiny-moe": Shape(3, 256, 512, 4, 2, 3, 64, full_kv_heads=1, k_eq_v=True, experts=8, experts_used=2, expert_mlp=320, head_dim=64,
                      full_head_dim=128, vocab=2048, context=4096),
}


@dataclasses.dataclass(frozen=True)
class Tensor:
    gguf: str  # name in the file; empty where that kind of file has no such tensor
    mlx: str  # without "language_model.model."
    shape: tuple  # outermost first
    role: str = "matrix"  # embedding, kept (never quantised), router, norm, head_norm, frequencies
    more_bits: bool = False  # q4_k_m gives it Q6_K


def gets_more_bits(index, count):
    """llama.cpp's rule for the index-th of `count` value or down projections of a Q4_K_M file."""
    return index < count // 8 or index >= 7 * count // 8 or (index - count // 8) % 3 == 2


def tensors(s):
    """All tensors of a shape, in file order."""
    out = [Tensor("token_embd.weight", "embed_tokens.weight", (s.vocab, s.hidden), "embedding"),
           Tensor("output_norm.weight", "norm.weight", (s.hidden,), "norm"),
           Tensor("rope_freqs.weight", "", (s.full_head_dim // 2,), "frequencies")]
    if s.per_layer:
        width = s.layers * s.per_layer
        out += [Tensor("per_layer_token_embd.weight", "embed_tokens_per_layer.weight", (s.vocab, width), "embedding"),
                Tensor("per_layer_model_proj.weight", "per_layer_model_projection.weight", (width, s.hidden), "kept"),
                Tensor("per_layer_proj_norm.weight", "per_layer_projection_norm.weight", (s.per_layer,), "norm")]
    has_keys = [i < s.owners or s.unread_kv for i in range(s.layers)]
    has_values = [has_keys[i] and not (s.k_eq_v and s.is_full(i)) for i in range(s.layers)]
    for i in range(s.layers):
        dim, kv_width, mlp = s.head_dim_of(i), s.kv_heads_of(i) * s.head_dim_of(i), s.mlp_of(i)
        down_bits = gets_more_bits(i, s.layers)

        def add(gguf, mlx, *shape, role="matrix", more_bits=False):
            out.append(Tensor(gguf and f"blk.{i}.{gguf}", mlx and f"layers.{i}.{mlx}", shape, role, more_bits))

        def add_norm(gguf, mlx, width, role="norm"):
            add(f"{gguf}.weight", f"{mlx}.weight", width, role=role)

        add_norm("attn_norm", "input_layernorm", s.hidden)
        add("attn_q.weight", "self_attn.q_proj.weight", s.heads * dim, s.hidden)
        add_norm("attn_q_norm", "self_attn.q_norm", dim, "head_norm")
        if has_keys[i]:
            add("attn_k.weight", "self_attn.k_proj.weight", kv_width, s.hidden)
            add_norm("attn_k_norm", "self_attn.k_norm", dim, "head_norm")
        if has_values[i]:
            add("attn_v.weight", "self_attn.v_proj.weight", kv_width, s.hidden,
                more_bits=gets_more_bits(sum(has_values[:i]), sum(has_values)))
        add("attn_output.weight", "self_attn.o_proj.weight", s.hidden, s.heads * dim)
        add_norm("post_attention_norm", "post_attention_layernorm", s.hidden)
        add_norm("ffn_norm", "pre_feedforward_layernorm", s.hidden)
        add("ffn_gate.weight", "mlp.gate_proj.weight", mlp, s.hidden)
        add("ffn_up.weight", "mlp.up_proj.weight", mlp, s.hidden)
        add("ffn_down.weight", "mlp.down_proj.weight", s.hidden, mlp, more_bits=down_bits)
        add_norm("post_ffw_norm", "post_feedforward_layernorm", s.hidden)
        add("layer_output_scale.weight", "layer_scalar", 1, role="norm")
        if s.experts:
            add("ffn_gate_inp.weight", "router.proj.weight", s.experts, s.hidden, role="router")
            add("ffn_gate_inp.scale", "router.scale", s.hidden, role="norm")
            add("ffn_down_exps.scale", "router.per_expert_scale", s.experts, role="norm")
            add_norm("post_ffw_norm_1", "post_feedforward_layernorm_1", s.hidden)
            add_norm("post_ffw_norm_2", "post_feedforward_layernorm_2", s.hidden)
            add_norm("pre_ffw_norm_2", "pre_feedforward_layernorm_2", s.hidden)
            add("ffn_gate_up_exps.weight", "", s.experts, 2 * s.expert_mlp, s.hidden)  # fused in GGUF, apart in MLX
            add("", "experts.switch_glu.gate_proj.weight", s.experts, s.expert_mlp, s.hidden)
            add("", "experts.switch_glu.up_proj.weight", s.experts, s.expert_mlp, s.hidden)
            add("ffn_down_exps.weight", "experts.switch_glu.down_proj.weight", s.experts, s.hidden, s.expert_mlp, more_bits=down_bits)
        if s.per_layer:
            add("inp_gate.weight", "per_layer_input_gate.weight", s.per_layer, s.hidden)
            add("proj.weight", "per_layer_projection.weight", s.hidden, s.per_layer)
            add_norm("post_norm", "post_per_layer_input_norm", s.hidden)
    return out


# --- Random bytes -----------------------------------------------------------------------------------------------------

POOL_BYTES = 16 << 20


@dataclasses.dataclass(frozen=True)
class Block:
    number: int  # of ggml
    cols: int
    size: int
    scales: tuple = ()  # of each block: (offset of a float16, least, most)


BLOCKS = {
    "F32": Block(0, 1, 4),
    "BF16": Block(30, 1, 2),
    "Q4_0": Block(2, 32, 18, ((0, 0.003, 0.006),)),
    "Q5_0": Block(6, 32, 22, ((0, 0.0015, 0.003),)),
    "Q8_0": Block(8, 32, 34, ((0, 0.0002, 0.0004),)),
    "Q4_K": Block(12, 256, 144, ((0, 1e-4, 1.4e-4), (2, 7e-4, 1e-3))),
    "Q6_K": Block(14, 256, 210, ((208, 1e-5, 2e-5),)),
}
FALLBACK = {"Q4_K": "Q5_0", "Q6_K": "Q8_0"}  # where rows are no multiple of 256


def bf16(values):
    return (values.astype("<f4").view("<u4") >> 16).astype("<u2")


@functools.lru_cache(maxsize=None)
def pool(kind):
    """A few MB of random content as an array of bytes [units, bytes of a unit]."""
    rng = np.random.default_rng(1)
    if kind in ("F32", "BF16"):
        values = 0.02 * rng.standard_normal(POOL_BYTES // 8).astype("<f4")
        return (values if kind == "F32" else bf16(values)).view(np.uint8).reshape(len(values), -1)
    if kind == "codes":  # of MLX; any bits will do
        return np.frombuffer(rng.bytes(POOL_BYTES), np.uint8).reshape(-1, 64)
    if kind.startswith(("scales", "biases")):  # "scales4": of groups of 4-bit codes; biases put the middle code at zero
        middle = (2**int(kind[-1]) - 1) / 2
        scales = rng.uniform(0.02, 0.06, POOL_BYTES // 8) / middle
        return bf16(scales if kind.startswith("scales") else -middle * scales).view(np.uint8).reshape(-1, 2)
    block = BLOCKS[kind]
    blocks = np.frombuffer(rng.bytes(POOL_BYTES // block.size * block.size), np.uint8).reshape(-1, block.size).copy()
    for offset, least, most in block.scales:
        blocks[:, offset:offset + 2] = rng.uniform(least, most, len(blocks)).astype("<f2").view(np.uint8).reshape(-1, 2)
    return blocks


def write_random(file, kind, size, start):
    """`size` bytes of the pool of that kind, from the unit that `start` in [0, 1) names, round and round."""
    blocks = pool(kind)
    data = memoryview(blocks.reshape(-1))
    at = int(start * len(blocks)) * blocks.shape[1]
    while size > 0:
        part = data[at:at + size]
        file.write(part)
        size -= len(part)
        at = 0


def vector_values(tensor, s, rng):
    """float32 values of a tensor that is no matrix."""
    count = int(np.prod(tensor.shape))
    if tensor.role == "frequencies":  # proportional RoPE: a quarter of the lanes rotate
        return np.where(np.arange(count) < count // 4, 1.0, 1e30).astype("<f4")
    mean, spread = {"norm": (1.0, 0.05), "head_norm": (0.25, 0.02), "router": (0.0, 0.5)}[tensor.role]
    return (mean + spread * rng.standard_normal(count)).astype("<f4")


# --- Vocabulary -------------------------------------------------------------------------------------------------------

CONTROL = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
NORMAL_TYPE, CONTROL_TYPE, BYTE_TYPE = 1, 3, 6


def vocabulary(size):
    """(pieces, merges as pairs): control pieces, bytes, printable ASCII, then words over a to z, each one merge longer."""
    pieces = CONTROL + ["<|turn>", "<turn|>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    pieces += ["\n", "▁"] + [chr(code) for code in range(0x21, 0x7F)]
    merges, words = [], [""]
    letters = "abcdefghijklmnopqrstuvwxyz"
    while True:
        longer = []
        for word in words:
            for letter in letters:
                longer.append(word + letter)
                if word:
                    if len(pieces) == size:
                        return pieces, merges
                    pieces.append(word + letter)
                    merges.append((word, letter))
        words = longer


def piece_types(pieces):
    def of(piece):
        if piece in CONTROL or piece in ("<|turn>", "<turn|>"):
            return CONTROL_TYPE
        return BYTE_TYPE if len(piece) == 6 and piece.startswith("<0x") else NORMAL_TYPE
    return [of(piece) for piece in pieces]


# --- GGUF -------------------------------------------------------------------------------------------------------------

U32, I32, F32, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9
ALIGNMENT = 32


def gguf_string(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def gguf_value(kind, value):
    if kind == STRING:
        return gguf_string(value)
    return struct.pack({U32: "<I", I32: "<i", F32: "<f", BOOL: "<?"}[kind], value)


def gguf_entry(key, kind, value):
    head = gguf_string(key)
    if isinstance(value, list):
        return head + struct.pack("<IIQ", ARRAY, kind, len(value)) + b"".join(gguf_value(kind, v) for v in value)
    return head + struct.pack("<I", kind) + gguf_value(kind, value)


def gguf_metadata(s, name, kind):
    layers = range(s.layers)
    pieces, merges = vocabulary(s.vocab)
    entries = [
        ("general.architecture", STRING, "gemma4"),
        ("general.type", STRING, "model"),
        ("general.name", STRING, f"synthetic Gemma 4 {name}"),
        ("general.file_type", U32, {"q4_0": 2, "q4_k_m": 15, "q8_0": 7, "bf16": 32}[kind]),
        ("general.quantization_version", U32, 2),
        ("gemma4.block_count", U32, s.layers),
        ("gemma4.context_length", U32, s.context),
        ("gemma4.embedding_length", U32, s.hidden),
        ("gemma4.feed_forward_length", I32, [s.mlp_of(i) for i in layers]),
        ("gemma4.attention.head_count", U32, s.heads),
        ("gemma4.attention.head_count_kv", I32, [s.kv_heads_of(i) for i in layers]),
        ("gemma4.attention.layer_norm_rms_epsilon", F32, 1e-6),
        ("gemma4.attention.key_length", U32, s.full_head_dim),
        ("gemma4.attention.value_length", U32, s.full_head_dim),
        ("gemma4.attention.key_length_swa", U32, s.head_dim),
        ("gemma4.attention.value_length_swa", U32, s.head_dim),
        ("gemma4.attention.sliding_window", U32, s.window),
        ("gemma4.attention.sliding_window_pattern", BOOL, [not s.is_full(i) for i in layers]),
        ("gemma4.attention.shared_kv_layers", U32, s.shared),
        ("gemma4.embedding_length_per_layer_input", U32, s.per_layer),
        ("gemma4.rope.freq_base", F32, 1e6),
        ("gemma4.rope.freq_base_swa", F32, 1e4),
        ("gemma4.rope.dimension_count", U32, s.full_head_dim),
        ("gemma4.rope.dimension_count_swa", U32, s.head_dim),
        ("gemma4.final_logit_softcapping", F32, 30.0),
        ("tokenizer.ggml.model", STRING, "gemma4"),
        ("tokenizer.ggml.tokens", STRING, pieces),
        ("tokenizer.ggml.scores", F32, [-1000.0] * len(pieces)),
        ("tokenizer.ggml.token_type", I32, piece_types(pieces)),
        ("tokenizer.ggml.merges", STRING, [" ".join(pair) for pair in merges]),
        ("tokenizer.ggml.add_space_prefix", BOOL, False),
        ("tokenizer.ggml.add_bos_token", BOOL, True),
    ]
    for index, role in enumerate(("padding", "eos", "bos", "unknown", "mask")):
        entries.append((f"tokenizer.ggml.{role}_token_id", U32, index))
    if s.experts:
        entries += [("gemma4.expert_count", U32, s.experts), ("gemma4.expert_used_count", U32, s.experts_used),
                    ("gemma4.expert_feed_forward_length", U32, s.expert_mlp)]
    return entries


def gguf_type(tensor, kind):
    """The name of the block type that files of that kind give the tensor."""
    if tensor.role in ("norm", "head_norm", "router", "frequencies"):
        return "F32"
    if tensor.role == "kept":
        return "BF16"
    chosen = {"q4_0": "Q4_0", "q4_k_m": "Q4_K", "q8_0": "Q8_0", "bf16": "BF16"}[kind]
    if kind == "q4_k_m" and tensor.more_bits or kind.startswith("q4") and tensor.role == "embedding":
        chosen = "Q6_K"
    return chosen if tensor.shape[-1] % BLOCKS[chosen].cols == 0 else FALLBACK[chosen]


def aligned(size):
    return (size + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT


def write_gguf(path, s, name, kind):
    rng = np.random.default_rng(2)
    chosen = [tensor for tensor in tensors(s) if tensor.gguf]
    types = [gguf_type(tensor, kind) for tensor in chosen]
    sizes = [int(np.prod(tensor.shape)) // BLOCKS[t].cols * BLOCKS[t].size for tensor, t in zip(chosen, types)]
    entries = gguf_metadata(s, name, kind)
    head = [b"GGUF", struct.pack("<IQQ", 3, len(chosen), len(entries))] + [gguf_entry(*entry) for entry in entries]
    offset = 0
    for tensor, t, size in zip(chosen, types, sizes):
        dimensions = tensor.shape[::-1]  # GGUF lists the innermost first
        head.append(gguf_string(tensor.gguf) + struct.pack(f"<I{len(dimensions)}Q", len(dimensions), *dimensions) +
                    struct.pack("<IQ", BLOCKS[t].number, offset))
        offset += aligned(size)
    header = b"".join(head)
    with open(path, "wb", buffering=1 << 20) as file:
        file.write(header.ljust(aligned(len(header)), b"\0"))
        for tensor, t, size in zip(chosen, types, sizes):
            if t == "F32":
                file.write(vector_values(tensor, s, rng).tobytes())
            else:
                write_random(file, t, size, rng.random())
            file.write(bytes(aligned(size) - size))


# --- MLX --------------------------------------------------------------------------------------------------------------

GROUP = 64


def mlx_config(s, bits):
    quantization = {"group_size": GROUP, "bits": bits, "mode": "affine"} if bits < 16 else None
    text = {
        "model_type": "gemma4_text", "vocab_size": s.vocab, "hidden_size": s.hidden, "intermediate_size": s.mlp,
        "num_hidden_layers": s.layers, "num_attention_heads": s.heads, "num_key_value_heads": s.kv_heads,
        "num_global_key_value_heads": s.full_kv_heads or None, "head_dim": s.head_dim, "global_head_dim": s.full_head_dim,
        "layer_types": ["full_attention" if s.is_full(i) else "sliding_attention" for i in range(s.layers)],
        "sliding_window": s.window, "attention_k_eq_v": s.k_eq_v, "num_kv_shared_layers": s.shared,
        "use_double_wide_mlp": s.double_mlp, "hidden_size_per_layer_input": s.per_layer, "vocab_size_per_layer_input": s.vocab,
        "enable_moe_block": s.experts > 0, "num_experts": s.experts or None, "top_k_experts": s.experts_used or None,
        "moe_intermediate_size": s.expert_mlp or None, "max_position_embeddings": s.context, "rms_norm_eps": 1e-6,
        "final_logit_softcapping": 30.0, "hidden_activation": "gelu_pytorch_tanh", "attention_bias": False, "bos_token_id": 2,
        "eos_token_id": 1, "tie_word_embeddings": True, "dtype": "bfloat16",
        "rope_parameters": {
            "full_attention": {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}},
    }
    config = {"model_type": "gemma4", "text_config": text, "tie_word_embeddings": True, "eos_token_id": [1], "dtype": "bfloat16"}
    if quantization:
        if s.experts:  # mlx-lm gives routers 8 bits
            for i in range(s.layers):
                quantization[f"language_model.model.layers.{i}.router.proj"] = {"group_size": GROUP, "bits": 8}
        config["quantization"] = quantization
    return config


def mlx_tokenizer(size):
    pieces, merges = vocabulary(size)
    special = [i for i, kind in enumerate(piece_types(pieces)) if kind == CONTROL_TYPE]
    replace = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": i, "content": pieces[i], "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
                          "special": True} for i in special],
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        "pre_tokenizer": None, "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": [replace, {"type": "ByteFallback"}, {"type": "Fuse"}]},
        "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": True, "byte_fallback": True, "ignore_merges": False,
                  "vocab": {piece: i for i, piece in enumerate(pieces)}, "merges": [list(pair) for pair in merges]},
    }


def mlx_parts(tensor, bits):
    """[(name, dtype, shape, pool)] of the stored tensors of one weight; the pool is None where the values are made."""
    name = f"language_model.model.{tensor.mlx}"
    if tensor.role in ("norm", "head_norm"):
        return [(name, "BF16", tensor.shape, None)]
    cols = tensor.shape[-1]
    if bits == 16 or cols % GROUP != 0:
        return [(name, "BF16", tensor.shape, "BF16")]
    width = 8 if tensor.role == "router" else bits
    module = name.removesuffix(".weight")
    groups = (*tensor.shape[:-1], cols // GROUP)
    return [(name, "U32", (*tensor.shape[:-1], cols * width // 32), "codes"),
            (f"{module}.scales", "BF16", groups, f"scales{width}"), (f"{module}.biases", "BF16", groups, f"biases{width}")]


def write_mlx(directory, s, kind):
    bits = {"q4_0": 4, "q8_0": 8, "bf16": 16}[kind]
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(mlx_config(s, bits), indent=1))
    (directory / "tokenizer.json").write_text(json.dumps(mlx_tokenizer(s.vocab), ensure_ascii=False))
    (directory / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<bos>", "eos_token": "<eos>"}))
    rng = np.random.default_rng(2)
    plan, header, offset = [], {"__metadata__": {"format": "mlx"}}, 0
    for tensor in tensors(s):
        start = rng.random()
        for name, dtype, shape, source in mlx_parts(tensor, bits) if tensor.mlx else ():
            size = int(np.prod(shape)) * (4 if dtype == "U32" else 2)
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + size]}
            plan.append((tensor, source, size, start))
            offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(directory / "model.safetensors", "wb", buffering=1 << 20) as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor, source, size, start in plan:
            if source is None:
                file.write(bf16(vector_values(tensor, s, rng)).tobytes())
            else:
                write_random(file, source, size, start)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", metavar="SHAPE", choices=SHAPES, help="e2b, e4b, 12b, 26b-a4b or 31b")
    parser.add_argument("type", metavar="TYPE", choices=["q4_0", "q4_k_m", "q8_0", "bf16"], help="q4_0, q4_k_m, q8_0 or bf16")
    parser.add_argument("out", metavar="OUT", type=pathlib.Path)
    parser.add_argument("--layers", type=int, help="keep the first N layers")
    parser.add_argument("--unread-kv", action="store_true",
                        help="keep keys and values of layers that share those of others, as converters do (ik_llama.cpp insists)")
    parser.add_argument("--mlx", action="store_true", help="write a directory of MLX safetensors instead of a GGUF file")
    a = parser.parse_args()
    if a.mlx and a.type == "q4_k_m":
        parser.error("MLX has no q4_k_m: expected q4_0 (4 bits), q8_0 (8 bits) or bf16")
    started = time.monotonic()
    try:
        s = SHAPES[a.shape] if a.layers is None else SHAPES[a.shape].cut(a.layers)
        s = dataclasses.replace(s, unread_kv=a.unread_kv)
        if a.mlx:
            write_mlx(a.out, s, a.type)
        else:
            write_gguf(a.out, s, a.shape, a.type)
    except (OSError, ValueError) as error:
        sys.exit(f"synthetic_gguf.py: {error}")
    files = [a.out] if a.out.is_file() else list(a.out.iterdir())
    print(json.dumps({"path": str(a.out), "file_bytes": sum(file.stat().st_size for file in files), "layers": s.layers,
                      "seconds": round(time.monotonic() - started, 1)}))


if __name__ == "__main__":
    main()
