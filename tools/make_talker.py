#!/usr/bin/env python3
"""Writes tests/goldens/talker/talker.q8_0.gguf: dense.q8_0.gguf with Gemma 4's markers of tool calls in its vocabulary and Gemma 4's chat template.

    python3 tools/make_talker.py        (needs the PyPI package gguf)

Its weights are noise, so it says nothing sensible; but it can be made to say any text, thought and call.
"""
import pathlib

from gguf import GGUFReader, GGUFValueType, GGUFWriter

ROOT = pathlib.Path(__file__).resolve().parents[1]
SOURCE = ROOT / "tests/goldens/gguf/dense.q8_0.gguf"
TARGET = ROOT / "tests/goldens/talker/talker.q8_0.gguf"
TEMPLATE = ROOT / "tests/chat/templates/gemma4.jinja"
MARKERS = ["<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>", '<|"|>', "<|tool>", "<tool|>"]
CONTROL, USER_DEFINED = 3, 4

reader = GGUFReader(SOURCE)
writer = GGUFWriter(TARGET, reader.fields["general.architecture"].contents())
tokens = list(reader.fields["tokenizer.ggml.tokens"].contents())
types = list(reader.fields["tokenizer.ggml.token_type"].contents())
merges = list(reader.fields["tokenizer.ggml.merges"].contents())
# The last ordinary pieces of several letters make room; merges that speak of them go.
free = [i for i in reversed(range(len(tokens))) if types[i] == 1 and len(tokens[i]) > 1 and not tokens[i].startswith("<")]
replaced = set()
for marker, place in zip(MARKERS, free, strict=False):
    if marker in tokens:
        continue
    replaced.add(tokens[place])
    print(f"{place}: {tokens[place]!r} -> {marker!r}")
    tokens[place] = marker
    types[place] = USER_DEFINED if "tool_" not in marker or "call" in marker or "response" in marker else CONTROL
merges = [m for m in merges if not replaced & {*m.split(" "), m.replace(" ", "", 1)}]
assert all(marker in tokens for marker in MARKERS), "too few pieces to replace"

for name, field in reader.fields.items():
    if name.startswith("GGUF.") or name == "general.architecture":
        continue
    value = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types, "tokenizer.ggml.merges": merges}.get(name, field.contents())
    if field.types[0] == GGUFValueType.ARRAY:
        writer.add_array(name, value)
    else:
        writer.add_key_value(name, value, field.types[0])
writer.add_chat_template(TEMPLATE.read_text())
for tensor in reader.tensors:
    writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
print(TARGET, TARGET.stat().st_size)
