#!/usr/bin/env python3
"""Small tokenizer files and the ids that Hugging Face's `tokenizers` computes with them and with the real one.

usage: make_tokenizer_goldens.py GEMMA3_TOKENIZER.json [tests/tokenizer]

Writes into the directory
  small.json    Gemma 3's tokenizer.json cut down to a few thousand pieces with all merges among them, ids renumbered
  variant.json  a tiny vocabulary with the options that Gemma leaves alone: ignore_merges, unknown characters that do not
                fuse, some bytes missing, merges as strings, added tokens that are matched after normalisation
  small.goldens.json, variant.goldens.json, gemma3.goldens.json
                {"cases": [[text, ids, ids with special tokens as ordinary text]...], "utf8": [[hex bytes, text]...]}
The texts are random Unicode (`texts`), from fixed seeds. Needs tokenizers.
"""

import json
import pathlib
import random
import sys

import tokenizers

WORDS = """the of and Linus Torvalds naïve café résumé function return int void don't I'm 3.14159 12345 Hello, world!
https://example.com/a?b=c#d foo_bar CamelCase ΑΒΓΔ ελληνικά привет мир 你好世界 日本語テキスト 한국어 العربية עברית हिन्दी ไทย
Việt ﬁne Straße""".split()
EMOJI = ["👨‍👩‍👧‍👦", "🏳️‍🌈", "👍🏽", "🇩🇪", "😀", "🦙", "❤️", "1️⃣"]
TRAPS = ["▁", "▁▁", " ▁", ">▁</", "> </", "<0x0A>", "<0xFF>", "<", "<|", "\0", "\ufeff", "e\u0301\u0323\u0327"]
RANGES = [(0x20, 0x7E)] * 6 + [
    (0x00, 0x1F), (0x7F, 0x9F), (0xA0, 0x17F), (0x300, 0x36F), (0x370, 0x3FF), (0x400, 0x4FF), (0x590, 0x5FF),
    (0x600, 0x6FF), (0x900, 0x97F), (0xE00, 0xE7F), (0x1100, 0x11FF), (0x2000, 0x206F), (0x2580, 0x25FF),
    (0x3040, 0x30FF), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0xE000, 0xE0FF), (0xFE00, 0xFE0F), (0xFFF0, 0xFFFF),
    (0x1F300, 0x1FAFF), (0x20000, 0x2A6DF), (0xE0000, 0xE007F), (0x10FF00, 0x10FFFF),
]  # fmt: skip
RUNS = [1, 1, 1, 2, 3, 5, 8, 16, 30, 31, 32, 33, 63, 70]


def texts(tokenizer, seed, count):
    """`count` random texts of what tokenizers get wrong, some of it made from this tokenizer's own pieces."""
    rnd = random.Random(seed)
    added = sorted(token.content for token in tokenizer.get_added_tokens_decoder().values())
    special = sorted(token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special)
    pieces = sorted(tokenizer.get_vocab())

    def part():
        kind = rnd.randrange(13)
        if kind < 3:
            return rnd.choice(WORDS)
        if kind == 3:
            return " " * rnd.choice(RUNS)
        if kind == 4:
            return rnd.choice(["\n", "\n", "\r\n", "\t", "\v", "\u2028"]) * rnd.choice(RUNS)
        if kind == 5:
            return rnd.choice(EMOJI)
        if kind == 6:
            return rnd.choice(rnd.choice([added, special]))
        if kind == 7:
            return rnd.choice(added)[: rnd.randrange(1, 9)]
        if kind == 8:
            return rnd.choice(pieces)
        if kind == 9:
            low, high = rnd.choice(RANGES)
            return "".join(chr(rnd.randint(low, high)) for _ in range(rnd.randrange(1, 12)))
        if kind == 10:
            return rnd.choice(TRAPS) * rnd.randrange(1, 4)
        if kind == 11:
            return rnd.choice("aetx=-.#*0~é你") * rnd.choice(RUNS)
        return rnd.choice([" ", "\n", " ", "", ".", ", "])

    for _ in range(count):
        parts = (part() + (" " if rnd.random() < 0.3 else "") for _ in range(rnd.choice([1, 2, 3, 5, 8, 20])))
        yield "".join(parts)


# What issues elsewhere were about.
FIXED = [
    "", " ", "a\n\n\nb", " Linus", "Linus", "\t\n", "Привет, как дела?", "👨‍👩‍👧‍👦", "<start_of_turn>user\nhi<end_of_turn>\n",
    "a  b   c    d", " " * 100, "\n" * 100, "x" * 1000, "é" * 300,
]  # fmt: skip


def encode(tokenizer, text, as_text):
    tokenizer.encode_special_tokens = as_text
    return tokenizer.encode(text, add_special_tokens=False).ids


def goldens(tokenizer, seed, count):
    cases = [[t, encode(tokenizer, t, False), encode(tokenizer, t, True)]
             for t in [*FIXED, *texts(tokenizer, seed, count)]]  # fmt: skip
    return {"cases": cases}


def ill_formed(seed, count):
    """Bytes that are partly UTF-8, and what a decoder that follows the Unicode standard makes of them."""
    rnd = random.Random(seed)
    whole = ["a", "é", "你", "😀", "\ufffd"]
    bad = [b"\xff", b"\xc0\xaf", b"\xe0\x80", b"\xed\xa0\x80", b"\xf0\x8f", b"\xf4\x90", b"\xf5", b"\x80", b"\xbf"]
    for _ in range(count):
        data = b""
        for _ in range(rnd.randrange(1, 12)):
            character = rnd.choice(whole).encode()
            data += rnd.choice([character, character[: rnd.randrange(1, len(character) + 1)], rnd.choice(bad)])
        yield [data.hex(), data.decode("utf-8", errors="replace")]


def small(gemma):
    """Gemma 3's file with the added tokens, bytes, characters and pieces that the texts' scripts need, renumbered."""
    vocabulary, merges = gemma["model"]["vocab"], gemma["model"]["merges"]
    added = {token["content"]: token for token in gemma["added_tokens"]}
    keep = {piece for piece in added if not piece.startswith("<unused")} | {f"<unused{n}>" for n in (0, 1, 10, 99)}
    keep |= {piece for piece in vocabulary if len(piece) == 6 and piece.startswith("<0x")}
    characters = set("".join(WORDS) + "".join(EMOJI) + "▁>/") | {chr(c) for c in range(0x20, 0x7F)}
    keep |= {c for c in characters - {" "} if c in vocabulary}
    # A piece stays when some merge leads to it from pieces that stay: the most frequent ones, and those in the words.
    wanted = set(list(vocabulary)[:2600]) | {">▁</", ">▁", "▁</", "</"}
    text = " ".join(WORDS + EMOJI).replace(" ", "▁")
    wanted |= {text[i:j] for i in range(len(text)) for j in range(i + 2, min(i + 16, len(text)) + 1)} & vocabulary.keys()
    while True:
        made = {a + b for a, b in merges if a + b in wanted and a in keep and b in keep} - keep
        if not made:
            break
        keep |= made
    ids = {piece: i for i, piece in enumerate(sorted(keep & vocabulary.keys(), key=vocabulary.get))}
    for piece in added:
        if piece in keep and piece not in ids:
            ids[piece] = len(ids)
    result = json.loads(json.dumps({key: gemma[key] for key in gemma if key != "model"}))
    result["added_tokens"] = [{**t, "id": ids[t["content"]]} for t in gemma["added_tokens"] if t["content"] in keep]
    for special in result["post_processor"]["special_tokens"].values():
        special["ids"] = [ids[piece] for piece in special["tokens"]]
    result["model"] = {**gemma["model"],
                       "vocab": {piece: i for piece, i in ids.items() if piece in vocabulary},
                       "merges": [pair for pair in merges if {*pair, "".join(pair)} <= keep]}  # fmt: skip
    return result


def variant():
    pieces = ["<unk>", "<bos>", "a", "b", "c", "▁", "x", "é", "你", "好", "ab", "▁a", "bc", "abc", "▁abc", "你好", "xx", "xxx",
              "xxxx", "whole", "b▁", "▁▁", "▁x"]  # fmt: skip
    pieces += [f"<0x{byte:02X}>" for byte in range(256) if byte not in (0x80, 0xBF, 0x7A)]
    flags = {"single_word": False, "lstrip": False, "rstrip": False}
    added = [
        ("<bos>", False, True), ("<unk>", False, True), ("<|s p|>", True, True), ("c a", True, False),
        ("<|t|>", False, True), ("|>|", False, False), ("ab", False, False), ("abx", False, False),
        # no pieces of the model, though its characters could make them
        ("xb", False, True), ("q", False, True),
    ]  # fmt: skip
    ids = {piece: i for i, piece in enumerate(pieces)}
    extra = {}
    for content, _, _ in added:
        if content not in ids:
            extra[content] = len(ids) + len(extra)
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": {**ids, **extra}[content], "content": content, **flags, "normalized": normalized,
                          "special": special} for content, normalized, special in added],
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        "pre_tokenizer": None, "post_processor": None, "decoder": None,
        "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": True, "ignore_merges": True,
                  # before the vocabulary, which is allowed
                  "merges": ["b c", "▁ a", "a b", "ab c", "▁a bc", "a bc", "你 好", "x x", "xx x", "x xx", "xx xx",
                             "b ▁", "▁ ▁", "▁ x"],
                  "vocab": ids}}  # fmt: skip


def write(path, value):
    path.write_text(json.dumps(value, ensure_ascii=True, separators=(",", ":")) + "\n")


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    gemma_path = pathlib.Path(sys.argv[1])
    out = pathlib.Path(sys.argv[2] if len(sys.argv) == 3 else "tests/tokenizer")
    write(out / "small.json", small(json.loads(gemma_path.read_text())))
    write(out / "variant.json", variant())
    for name, path, count in (
        ("small", out / "small.json", 300), ("variant", out / "variant.json", 150), ("gemma3", gemma_path, 150),
    ):  # fmt: skip
        made = goldens(tokenizers.Tokenizer.from_file(str(path)), seed=f"{name} 1", count=count)
        if name == "small":
            made["utf8"] = list(ill_formed(seed=1, count=300))
        write(out / f"{name}.goldens.json", made)


if __name__ == "__main__":
    main()
