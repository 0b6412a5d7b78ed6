#!/usr/bin/env python3
"""Makes tests/goldens/gguf: tiny GGUF checkpoints in every block format, with their float64 logits.

    make_gguf_goldens.py --llama-src DIR --llama-bin DIR --work DIR --out tests/goldens/gguf [NAME...]

Random checkpoints in transformers' form go through llama.cpp's own converter and its llama-quantize, so names, metadata
and blocks are llama.cpp's. The reference reads the finished file back (gguf-py), dequantises it and runs gemma64. Every
file is then loaded by llama.cpp itself and its logits compared. --work keeps the intermediate files.
Needs: numpy, torch, transformers, sentencepiece, protobuf and a C++ compiler.
"""
import argparse
import collections
import json
import pathlib
import re
import subprocess
import sys

import numpy as np

import gemma64
import safetensors_file

VOCAB = 512
TEXT = """the quick brown fox jumps over the lazy dog and then the other dog sits down there with that thing in hand while
rain is falling on the stones of the old town where no one is walking at this hour and all the lamps are out for it is
late and there is nothing to be seen or heard but water running in the streets to the river under the bridge"""


# --- vocabulary ------------------------------------------------------------------------------------------------------

def train_merges(count):
    """Byte-pair merges over TEXT, the most frequent pair first, ties in alphabetical order."""
    words = collections.Counter("▁" + word for word in TEXT.split())
    pieces = {word: list(word) for word in words}
    merges = []
    while len(merges) < count:
        pairs = collections.Counter()
        for word, times in words.items():
            for pair in zip(pieces[word], pieces[word][1:]):
                pairs[pair] += times
        if not pairs:
            break
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        for word, parts in pieces.items():
            joined, i = [], 0
            while i < len(parts):
                if tuple(parts[i:i + 2]) == best:
                    joined.append(parts[i] + parts[i + 1])
                    i += 2
                else:
                    joined.append(parts[i])
                    i += 1
            pieces[word] = joined
    return merges


def vocabulary(gemma4):
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
    special += ["<|turn>", "<turn|>", "<|channel>", "<channel|>", "<|think|>"] if gemma4 else ["<start_of_turn>", "<end_of_turn>"]
    plain = ["\n" * n for n in (1, 2, 3)]
    bytes_ = [f"<0x{value:02X}>" for value in range(256)]
    letters = ["▁"] + [chr(c) for c in range(33, 127)] + ["é", "ü", "ß", "日", "本"]
    room = VOCAB - len(special) - len(plain) - len(bytes_) - len(letters)
    merges = train_merges(room)
    words = [left + right for left, right in merges]
    words += [f"<unused{i}>" for i in range(room - len(words))]
    tokens = special + plain + bytes_ + letters + words
    assert len(tokens) == len(set(tokens)) == VOCAB
    return special, tokens, [("\n", "\n"), ("\n", "\n\n")] + merges


def write_tokenizer_json(directory):
    special, tokens, merges = vocabulary(True)
    replace = lambda old, new: {"type": "Replace", "pattern": {"String": old}, "content": new}
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": i, "content": text, "single_word": False, "lstrip": False, "rstrip": False,
                          "normalized": False, "special": True} for i, text in enumerate(special)],
        "normalizer": replace(" ", "▁"),
        "pre_tokenizer": {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False},
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": [replace("▁", " "), {"type": "ByteFallback"}, {"type": "Fuse"}]},
        "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True, "ignore_merges": False,
                  "vocab": {text: i for i, text in enumerate(tokens)}, "merges": [list(pair) for pair in merges]}}
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>",
              "unk_token": "<unk>", "mask_token": "<mask>"}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))


def write_sentencepiece_model(directory):
    from sentencepiece import sentencepiece_model_pb2 as sp
    special, tokens, merges = vocabulary(False)
    rank = {left + right: i for i, (left, right) in enumerate(merges)}
    model = sp.ModelProto()
    for i, text in enumerate(tokens):
        kind = sp.ModelProto.SentencePiece
        piece = model.pieces.add(piece=text, score=0.0)
        if text == "<unk>":
            piece.type = kind.UNKNOWN
        elif i < len(special):
            piece.type = kind.CONTROL
        elif re.fullmatch("<0x..>", text):
            piece.type = kind.BYTE
        else:
            piece.score = -float(rank.get(text, len(rank) + i))
    trainer, normalizer = model.trainer_spec, model.normalizer_spec
    trainer.model_type, trainer.vocab_size, trainer.byte_fallback = 2, VOCAB, True  # 2: BPE
    trainer.pad_id, trainer.eos_id, trainer.bos_id, trainer.unk_id = 0, 1, 2, 3
    trainer.pad_piece, trainer.eos_piece, trainer.bos_piece, trainer.unk_piece = special[:4]
    normalizer.name, normalizer.add_dummy_prefix, normalizer.remove_extra_whitespaces = "identity", False, False
    (directory / "tokenizer.model").write_bytes(model.SerializeToString())


# --- checkpoints in transformers' form -------------------------------------------------------------------------------

def gemma4_config(kinds, **changes):
    config = {
        "architectures": ["Gemma4ForCausalLM"], "model_type": "gemma4_text", "attention_bias": False,
        "attention_dropout": 0.0, "attention_k_eq_v": True, "bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0,
        "dtype": "bfloat16", "enable_moe_block": False, "final_logit_softcapping": 30.0, "global_head_dim": 64, "head_dim": 32,
        "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 64, "hidden_size_per_layer_input": 0,
        "initializer_range": 0.02, "intermediate_size": 96,
        "layer_types": [{"S": "sliding_attention", "F": "full_attention"}[kind] for kind in kinds],
        "max_position_embeddings": 131072, "moe_intermediate_size": None, "num_attention_heads": 4, "num_experts": None,
        "num_global_key_value_heads": 1, "num_hidden_layers": len(kinds), "num_key_value_heads": 2, "num_kv_shared_layers": 0,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {
            "full_attention": {"partial_rotary_factor": 0.25, "rope_theta": 1000000.0, "rope_type": "proportional"},
            "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"}},
        "sliding_window": 16, "tie_word_embeddings": True, "top_k_experts": None, "use_bidirectional_attention": None,
        "use_cache": True, "use_double_wide_mlp": False, "vocab_size": VOCAB, "vocab_size_per_layer_input": VOCAB}
    return config | changes


def gemma3_config(**changes):
    config = {
        "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "attention_bias": False,
        "attention_dropout": 0.0, "attn_logit_softcapping": None, "bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0,
        "cache_implementation": "hybrid", "final_logit_softcapping": None, "hidden_activation": "gelu_pytorch_tanh",
        "initializer_range": 0.02, "max_position_embeddings": 32768, "num_attention_heads": 4, "num_hidden_layers": 6,
        "rms_norm_eps": 1e-6, "rope_local_base_freq": 10000.0,
        "rope_theta": 1000000.0, "sliding_window": 16, "sliding_window_pattern": 6, "torch_dtype": "bfloat16",
        "use_cache": True, "vocab_size": VOCAB}
    return config | changes


# Narrow ones (hidden 64) for the formats with blocks of 32; wide ones (hidden 256) for blocks of 256. llama.cpp expects the
# last layers with their own K/V to be one sliding and one full layer when others share them, and Gemma 3's pattern to be 6.
BASES = {
    "dense": gemma4_config("SSF"),
    "dense-wide": gemma4_config("SF", hidden_size=256, intermediate_size=256, head_dim=64, global_head_dim=128),
    "untied": gemma4_config("SSF", tie_word_embeddings=False),
    "pli": gemma4_config("SSFSF", attention_k_eq_v=False, num_attention_heads=2, num_key_value_heads=1,
                         num_global_key_value_heads=None, num_kv_shared_layers=2, use_double_wide_mlp=True,
                         intermediate_size=64, hidden_size_per_layer_input=32),
    "pli-wide": gemma4_config("SFSF", attention_k_eq_v=False, num_attention_heads=2, num_key_value_heads=1,
                              num_global_key_value_heads=None, num_kv_shared_layers=2, use_double_wide_mlp=True,
                              hidden_size=256, intermediate_size=256, head_dim=64, global_head_dim=128,
                              hidden_size_per_layer_input=64),
    "moe": gemma4_config("SSF", enable_moe_block=True, num_experts=8, top_k_experts=2, moe_intermediate_size=96),
    "moe-wide": gemma4_config("SF", enable_moe_block=True, num_experts=4, top_k_experts=2, moe_intermediate_size=96,
                              hidden_size=256, intermediate_size=256, head_dim=64, global_head_dim=128, num_attention_heads=2),
    "gemma3": gemma3_config(hidden_size=64, intermediate_size=96, head_dim=32, query_pre_attn_scalar=32, num_key_value_heads=2,
                            rope_scaling={"rope_type": "linear", "factor": 8.0}),
    "gemma3-wide": gemma3_config(hidden_size=256, intermediate_size=256, head_dim=32, query_pre_attn_scalar=32,
                                 num_key_value_heads=1, rope_scaling=None),
}


def shapes(config):
    """Names and shapes of the checkpoint's tensors, without the prefix."""
    plan, h, width = gemma64.Plan(config), config["hidden_size"], config["intermediate_size"]
    pli, heads = config.get("hidden_size_per_layer_input") or 0, config["num_attention_heads"]
    yield "embed_tokens.weight", (VOCAB, h)
    if config.get("tie_word_embeddings") is False:
        yield "lm_head.weight", (VOCAB, h)
    if pli:
        yield "embed_tokens_per_layer.weight", (VOCAB, plan.layers * pli)
        yield "per_layer_model_projection.weight", (plan.layers * pli, h)
        yield "per_layer_projection_norm.weight", (pli,)
    yield "norm.weight", (h,)
    for i in range(plan.layers):
        name, dim = f"layers.{i}.", plan.head_dim(i)
        k_eq_v = plan.full[i] and config.get("attention_k_eq_v", False)
        kv = dim * (config["num_global_key_value_heads"] if k_eq_v else config["num_key_value_heads"])
        yield name + "self_attn.q_proj.weight", (heads * dim, h)
        yield name + "self_attn.q_norm.weight", (dim,)
        yield name + "self_attn.o_proj.weight", (h, heads * dim)
        if i < plan.first_shared:
            yield name + "self_attn.k_proj.weight", (kv, h)
            yield name + "self_attn.k_norm.weight", (dim,)
            if not k_eq_v:
                yield name + "self_attn.v_proj.weight", (kv, h)
        wide = width * (2 if config.get("use_double_wide_mlp") and i >= plan.first_shared else 1)
        for part, shape in (("gate", (wide, h)), ("up", (wide, h)), ("down", (h, wide))):
            yield f"{name}mlp.{part}_proj.weight", shape
        norms = ["input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"]
        if config.get("enable_moe_block"):
            norms += ["post_feedforward_layernorm_1", "post_feedforward_layernorm_2", "pre_feedforward_layernorm_2"]
            count, inner = config["num_experts"], config["moe_intermediate_size"]
            yield name + "router.proj.weight", (count, h)
            yield name + "router.scale", (h,)
            yield name + "router.per_expert_scale", (count,)
            yield name + "experts.gate_up_proj", (count, 2 * inner, h)
            yield name + "experts.down_proj", (count, h, inner)
        if pli:
            norms.append("post_per_layer_input_norm")
            yield name + "per_layer_input_gate.weight", (pli, h)
            yield name + "per_layer_projection.weight", (h, pli)
        for norm in norms:
            yield f"{name}{norm}.weight", (h,)
        if plan.gemma4:
            yield name + "layer_scalar", (1,)


def random_tensor(rng, config, name, shape):
    """Scales that keep logits at a few units, attention neither flat nor one-hot, and every layer audible at the end."""
    gemma4, noise = config["model_type"].startswith("gemma4"), rng.standard_normal(shape)
    if name.endswith("layer_scalar"):
        return rng.uniform(0.6, 1.1, shape)
    if name.endswith(("router.scale", "per_expert_scale")):
        return rng.uniform(0.5, 1.5, shape) * (config["hidden_size"] ** 0.5 if name.endswith("router.scale") else 1.0)
    if "norm" in name:
        typical = 1.0
        if name.endswith(("q_norm.weight", "k_norm.weight")):
            typical = 0.7 if gemma4 else 1.5
        elif name.endswith(("post_attention_layernorm.weight", "post_feedforward_layernorm.weight", "post_per_layer_input_norm.weight")):
            typical = 4.0  # well above the embeddings, lest a tied head repeat the last token for ever
        elif name == "norm.weight":
            typical = config["hidden_size"] ** 0.5 / 4.0
        return typical * (1.0 + 0.2 * noise) - (0.0 if gemma4 else 1.0)
    if "embed_tokens" in name or name == "lm_head.weight":
        return noise * 16.0 / config["hidden_size"]
    return noise * shape[-1] ** -0.5


def write_base(name, directory):
    config, rng = BASES[name], np.random.default_rng(list(name.encode()))
    directory.mkdir(parents=True, exist_ok=True)
    tensors = {}
    for tensor, shape in shapes(config):
        words = random_tensor(rng, config, tensor, shape).astype("<f4").view("<u4") + 0x8000  # to bf16, nearly to nearest
        full = tensor if tensor.startswith("lm_head") else "model." + tensor
        tensors[full] = ("BF16", shape, (words >> 16).astype("<u2").tobytes())
    safetensors_file.write(directory / "model.safetensors", tensors, {"format": "pt"})
    (directory / "config.json").write_text(json.dumps(config, indent=2))
    if config["model_type"].startswith("gemma4"):
        write_tokenizer_json(directory)
    else:
        write_sentencepiece_model(directory)


# --- reading the finished GGUF back ----------------------------------------------------------------------------------

GGUF_NAMES = {
    "token_embd.weight": "embed_tokens.weight", "output.weight": "lm_head.weight", "output_norm.weight": "norm.weight",
    "per_layer_token_embd.weight": "embed_tokens_per_layer.weight", "per_layer_model_proj.weight": "per_layer_model_projection.weight",
    "per_layer_proj_norm.weight": "per_layer_projection_norm.weight",
    "attn_norm.weight": "input_layernorm.weight", "attn_q.weight": "self_attn.q_proj.weight", "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight", "attn_output.weight": "self_attn.o_proj.weight",
    "attn_q_norm.weight": "self_attn.q_norm.weight", "attn_k_norm.weight": "self_attn.k_norm.weight",
    "post_attention_norm.weight": "post_attention_layernorm.weight", "ffn_norm.weight": "pre_feedforward_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight", "ffn_up.weight": "mlp.up_proj.weight", "ffn_down.weight": "mlp.down_proj.weight",
    "post_ffw_norm.weight": "post_feedforward_layernorm.weight", "ffn_gate_inp.weight": "router.proj.weight",
    "ffn_gate_inp.scale": "router.scale", "ffn_down_exps.scale": "router.per_expert_scale",
    "ffn_gate_up_exps.weight": "experts.gate_up_proj", "ffn_down_exps.weight": "experts.down_proj",
    "pre_ffw_norm_2.weight": "pre_feedforward_layernorm_2.weight", "post_ffw_norm_1.weight": "post_feedforward_layernorm_1.weight",
    "post_ffw_norm_2.weight": "post_feedforward_layernorm_2.weight", "inp_gate.weight": "per_layer_input_gate.weight",
    "proj.weight": "per_layer_projection.weight", "post_norm.weight": "post_per_layer_input_norm.weight",
    "layer_output_scale.weight": "layer_scalar",
}


def read_gguf(gguf, files, gemma4):
    """Float64 weights under transformers' names, and how many tensors there are of each type."""
    weights, types = {}, collections.Counter()
    for file in files:
        for tensor in gguf.GGUFReader(file).tensors:
            types[tensor.tensor_type.name] += 1
            if tensor.name == "rope_freqs.weight":  # gemma64 rotates by the config; the check against llama.cpp covers it
                continue
            block = re.fullmatch(r"blk\.(\d+)\.(.*)", tensor.name)
            name = f"layers.{block[1]}.{GGUF_NAMES[block[2]]}" if block else GGUF_NAMES[tensor.name]
            value = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float64)
            shape = [int(n) for n in tensor.shape[::-1]]
            value = value.reshape(shape)
            if not gemma4 and "norm" in name:
                value = value - 1.0  # GGUF stores 1 + w
            weights[name] = value
    return weights, types


# --- the files -------------------------------------------------------------------------------------------------------

# name: (base, arguments of the converter or of llama-quantize)
CONVERTED = {"dense.f32": ("dense", "f32"), "dense.f16": ("dense", "f16"), "dense.bf16": ("dense", "bf16"),
             "untied.bf16": ("untied", "bf16")}
PURE_32 = ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "iq4_nl"]
PURE_256 = ["q2_k", "q3_k_s", "q4_k_s", "q5_k_s", "q6_k", "iq4_xs"]
QUANTIZED = {f"dense.{kind}": ("dense", ["--pure"], kind) for kind in PURE_32}
QUANTIZED |= {f"dense-wide.{kind.removesuffix('_s')}": ("dense-wide", ["--pure"], kind) for kind in PURE_256}
QUANTIZED |= {"dense.mxfp4": ("dense", ["--pure", "--tensor-type", ".*=mxfp4"], "q8_0"),
              "pli.q8_0": ("pli", [], "q8_0"), "pli-wide.q4_k_m": ("pli-wide", [], "q4_k_m"),
              "moe.q8_0": ("moe", [], "q8_0"), "moe-wide.q4_k_m": ("moe-wide", [], "q4_k_m"), "moe.mxfp4_moe": ("moe", [], "mxfp4_moe"),
              "gemma3.q8_0": ("gemma3", [], "q8_0"), "gemma3-wide.q4_k_m": ("gemma3-wide", [], "q4_k_m")}
SPLIT = {"split": ("dense.q5_1", 24)}  # name: (source, tensors per part)


def run(*command, **options):
    result = subprocess.run([str(part) for part in command], capture_output=True, text=True, **options)
    if result.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{result.stdout[-3000:]}\n{result.stderr[-3000:]}")
    return result.stdout + result.stderr


class Maker:
    def __init__(self, arguments):
        self.a = arguments
        self.a.work.mkdir(parents=True, exist_ok=True)
        self.a.out.mkdir(parents=True, exist_ok=True)
        sys.path.insert(0, str(self.a.llama_src / "gguf-py"))
        import gguf
        self.gguf = gguf
        self.logits_tool = self.a.work / "kl_llama_cpp"
        source = pathlib.Path(__file__).with_name("kl_llama_cpp.cpp")
        run("g++", "-std=c++20", "-O1", "-I", self.a.llama_src / "include", "-I", self.a.llama_src / "ggml/include", source,
            "-L", self.a.llama_bin, "-lllama", "-lggml", "-lggml-base", f"-Wl,-rpath,{self.a.llama_bin.resolve()}", "-o", self.logits_tool)

    def convert(self, base, kind):
        directory = self.a.work / base
        if not (directory / "config.json").exists():
            write_base(base, directory)
        file = self.a.work / f"{base}.{kind}.gguf"
        if not file.exists():
            run(sys.executable, self.a.llama_src / "convert_hf_to_gguf.py", directory, "--outtype", kind, "--outfile", file)
        return file

    def files_of(self, name):
        """Makes the file or files called `name` in --out and returns them."""
        out = self.a.out / f"{name}.gguf"
        if name in CONVERTED:
            out.write_bytes(self.convert(*CONVERTED[name]).read_bytes())
        elif name in QUANTIZED:
            base, options, kind = QUANTIZED[name]
            run(self.a.llama_bin / "llama-quantize", *options, self.convert(base, "bf16"), out, kind, 1)
        else:
            source, count = SPLIT[name]
            run(self.a.llama_bin / "llama-gguf-split", "--split", "--split-max-tensors", count, self.a.out / f"{source}.gguf", self.a.out / name)
            return sorted(self.a.out.glob(f"{name}-0*.gguf"))
        return [out]

    def base_of(self, name):
        return (CONVERTED.get(name) or QUANTIZED.get(name) or (self.base_of(SPLIT[name][0]),))[0]

    def make(self, name):
        files = self.files_of(name)
        tensors, types = self.check(name, BASES[self.base_of(name)], files)
        safetensors_file.write(self.a.out / f"{name}.safetensors", tensors)
        print(f"{'':20} {sum(f.stat().st_size for f in files)} bytes, {dict(types)}, greedy {gemma64.array(tensors['greedy'])[:6]}...", flush=True)

    def check(self, name, config, files):
        """The golden of `files`, after printing how far llama.cpp is from it, on the file and on its own dequantisation of it."""
        weights, types = read_gguf(self.gguf, files, config["model_type"].startswith("gemma4"))
        tokens = [2] + np.random.default_rng(7).integers(5, VOCAB, 47).tolist()
        tensors = gemma64.golden(config, weights, tokens)
        with_table = forward_with_half_gelu(config, weights, tokens)
        plain = self.a.work / "dequantised.gguf"
        run(self.a.llama_bin / "llama-quantize", "--allow-requantize", files[0], plain, "f32", 1)
        print(f"{name:20} llama.cpp on the file: {distance(gemma64.array(tensors['hf64']), self.llama_logits(files[0], tokens))}\n"
              f"{'':20}  on it dequantised: {distance(with_table, self.llama_logits(plain, tokens))}", flush=True)
        return tensors, types

    def llama_logits(self, file, tokens):
        raw, ids = self.a.work / "logits.f32", self.a.work / "tokens.ids"
        ids.write_text(" ".join(map(str, tokens)))
        run(self.logits_tool, file, ids, raw, len(tokens), "f32", 1)
        return np.fromfile(raw, "<f4").astype(np.float64).reshape(len(tokens), VOCAB)


def forward_with_half_gelu(config, weights, tokens):
    """llama.cpp looks GELU up in a table of half-precision numbers; with that, float32 llama.cpp and float64 must agree closely."""
    exact = gemma64.gelu
    gemma64.gelu = lambda x: np.where(x <= -10, 0.0, np.where(x >= 10, x, exact(
        x.astype(np.float32).astype(np.float16).astype(np.float64)).astype(np.float16).astype(np.float64)))
    try:
        return gemma64.forward(config, weights, tokens)
    finally:
        gemma64.gelu = exact


def distance(reference, logits):
    log_p, log_q = (x - np.log(np.sum(np.exp(x), axis=1, keepdims=True)) for x in (reference, logits))
    divergence = np.sum(np.exp(log_p) * (log_p - log_q), axis=1)
    return (f"max abs {np.max(np.abs(reference - logits)):.1e} of {np.max(np.abs(reference)):.0f}, KL mean {divergence.mean():.1e} "
            f"max {divergence.max():.1e}, top-1 {np.mean(reference.argmax(1) == logits.argmax(1)):.3f}")


def main():
    parser = argparse.ArgumentParser()
    for option in ("--llama-src", "--llama-bin", "--work", "--out"):
        parser.add_argument(option, type=pathlib.Path, required=True)
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    maker = Maker(arguments)
    for base, config in BASES.items() if not arguments.names else ():
        maker.check(base, config, [maker.convert(base, "f32")])
    for name in arguments.names or [*CONVERTED, *QUANTIZED, *SPLIT]:
        maker.make(name)


if __name__ == "__main__":
    main()
