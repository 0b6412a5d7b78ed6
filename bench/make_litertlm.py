#!/usr/bin/env python3
"""Makes a model file for LiteRT-LM with the shape of Gemma 3 270M and random weights: for timing only.

    make_litertlm.py OUT.litertlm [--recipe dynamic_wi8_afp32] [--prefill 512] [--context 1280]

For a Python that has the converter (torch alone is some GB):
    pip install 'torch<2.15' transformers litert-torch
Takes about four minutes and 8 GB of memory. The weights are int8 with a scale a row (dynamic_wi4_afp32: int4), activations are quantised
at run time. A whole prompt is read in calls of --prefill tokens, for which the graph is compiled.
"""
import argparse
import json
import pathlib
import shutil
import sys
import tempfile

from synthetic_gguf import mlx_tokenizer

VOCAB = 262144
CHAT_TEMPLATE = "{{ bos_token }}{% for m in messages %}<|turn>{{ m['role'] }}\n{{ m['content'] }}<turn|>\n{% endfor %}"


def write_checkpoint(directory):
    import torch
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig
    torch.manual_seed(1)
    config = Gemma3TextConfig(vocab_size=VOCAB, hidden_size=640, intermediate_size=2048, num_hidden_layers=18, num_attention_heads=4,
                              num_key_value_heads=1, head_dim=256, sliding_window=512, max_position_embeddings=32768,
                              query_pre_attn_scalar=256)
    Gemma3ForCausalLM(config).to(torch.bfloat16).save_pretrained(directory)
    (directory / "tokenizer.json").write_text(json.dumps(mlx_tokenizer(VOCAB), ensure_ascii=False))
    (directory / "tokenizer_config.json").write_text(json.dumps({
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>",
        "unk_token": "<unk>", "chat_template": CHAT_TEMPLATE}))


def import_exporter():
    """litert-torch 0.10 imports all of TensorFlow, which it does not require, for one generated file that LiteRT has too."""
    try:
        import tensorflow  # noqa: F401
    except ImportError:
        import importlib.machinery
        import types

        from ai_edge_litert import schema_py_generated
        for name in ("tensorflow", "tensorflow.lite", "tensorflow.lite.python"):
            sys.modules[name] = types.ModuleType(name)
            sys.modules[name].__spec__ = importlib.machinery.ModuleSpec(name, None)
        sys.modules["tensorflow.lite.python"].schema_py_generated = schema_py_generated
        sys.modules["tensorflow.lite.python.schema_py_generated"] = schema_py_generated
    from litert_torch.generative.export_hf import export
    return export


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", metavar="OUT", type=pathlib.Path)
    parser.add_argument("--recipe", default="dynamic_wi8_afp32")
    parser.add_argument("--prefill", type=int, default=512)
    parser.add_argument("--context", type=int, default=1280)
    a = parser.parse_args()
    try:
        exporter = import_exporter()
    except ImportError as error:
        sys.exit(f"make_litertlm.py: {error}; see --help for what to install")
    a.out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=a.out.parent) as work:
        checkpoint = pathlib.Path(work) / "checkpoint"
        checkpoint.mkdir()
        write_checkpoint(checkpoint)
        exporter.export(model=str(checkpoint), output_dir=work, prefill_lengths=[a.prefill], cache_length=a.context,
                        quantization_recipe=a.recipe)
        shutil.move(pathlib.Path(work) / "model.litertlm", a.out)
    print(a.out)


if __name__ == "__main__":
    main()
