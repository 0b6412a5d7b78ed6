"""Fresh random texts: `carat tokenize` against Hugging Face's `tokenizers`.

Needs pytest, tokenizers and a built carat with the verb `tokenize`; skips where one is missing. The program is $CARAT_BINARY, else
build/release/carat. `carat tokenize TOKENIZER.json --json --file TEXT` prints {"ids", "pieces"}. CARAT_TOKENIZER names another tokenizer.json
than tests/tokenizer/small.json; CARAT_TOKENIZER_SEED and CARAT_TOKENIZER_CASES choose what is tried.
"""

import json
import os
import pathlib
import random
import subprocess
import sys

import pytest

tokenizers = pytest.importorskip("tokenizers")

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import make_tokenizer_goldens as oracle  # noqa: E402

CARAT = pathlib.Path(os.environ.get("CARAT_BINARY", ROOT / "build" / "release" / "carat"))
TOKENIZER = pathlib.Path(os.environ.get("CARAT_TOKENIZER", ROOT / "tests" / "tokenizer" / "small.json"))
SEED = int(os.environ.get("CARAT_TOKENIZER_SEED", random.randrange(2**32)))
CASES = int(os.environ.get("CARAT_TOKENIZER_CASES", 60))


def has_tokenize():
    if not CARAT.is_file():
        return False
    return subprocess.run([CARAT, "tokenize", "--help"], capture_output=True).returncode == 0


pytestmark = pytest.mark.skipif(not has_tokenize(), reason=f"{CARAT} has no verb `tokenize`")


def carat(*arguments):
    run = subprocess.run([CARAT, "tokenize", TOKENIZER, "--json", *arguments], capture_output=True)
    assert run.returncode == 0, run.stderr.decode(errors="replace")
    return json.loads(run.stdout)


def test_ids_and_pieces_of_random_texts(tmp_path):
    reference = tokenizers.Tokenizer.from_file(str(TOKENIZER))
    for number, text in enumerate([*oracle.FIXED, *oracle.texts(reference, SEED, CASES)]):
        path = tmp_path / "text"
        path.write_bytes(text.encode())
        expected = reference.encode(text, add_special_tokens=False)
        got = carat("--file", path)
        assert got["ids"] == expected.ids, f"seed {SEED}, text {number}: {text!r}"
        assert got["pieces"] == expected.tokens, f"seed {SEED}, text {number}: {text!r}"


def test_text_on_the_command_line():
    reference = tokenizers.Tokenizer.from_file(str(TOKENIZER))
    text = " Linus naïve 你好\n\nx"
    assert carat(text)["ids"] == reference.encode(text, add_special_tokens=False).ids
