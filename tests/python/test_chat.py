"""Fresh random conversations: `carat render` against Jinja2 with the templates that the models ship.

Needs pytest, jinja2 and a built carat with the verb `render`; skips where one is missing. The program is $CARAT_BINARY, else
build/release/carat. `carat render --format NAME FILE.json` prints the prompt of {"messages", "tools", "options"} byte for byte.
CARAT_CHAT_SEED and CARAT_CHAT_CASES choose what is tried.
"""

import json
import os
import pathlib
import random
import subprocess
import sys

import pytest

pytest.importorskip("jinja2")

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import make_chat_goldens as oracle  # noqa: E402

CARAT = pathlib.Path(os.environ.get("CARAT_BINARY", ROOT / "build" / "release" / "carat"))
SEED = int(os.environ.get("CARAT_CHAT_SEED", random.randrange(2**32)))
CASES = int(os.environ.get("CARAT_CHAT_CASES", 60))


def has_render():
    if not CARAT.is_file():
        return False
    return subprocess.run([CARAT, "render", "--help"], capture_output=True, check=False).returncode == 0


@pytest.fixture(scope="module")
def templates():
    return oracle.load_templates([ROOT / "tests" / "chat" / "templates" / f"{name}.jinja" for name in oracle.FORMATS])


def test_goldens_are_what_jinja_renders(templates):
    for case in json.loads((ROOT / "tests" / "chat" / "goldens.json").read_text()):
        for name in oracle.FORMATS:
            assert oracle.render(templates, name, case) == case["expected"][name]


@pytest.mark.skipif(not has_render(), reason=f"{CARAT} has no verb render")
@pytest.mark.parametrize("name", oracle.FORMATS)
def test_fresh_conversations(name, templates, tmp_path):
    path = tmp_path / "conversation.json"
    for number, case in enumerate(oracle.cases(SEED, CASES)):
        expected = oracle.render(templates, name, case)
        path.write_text(json.dumps(case))
        run = subprocess.run([CARAT, "render", "--format", name, path], capture_output=True, check=False)
        told = f"seed {SEED}, case {number}: {case}"
        if expected is None:
            assert run.returncode != 0 and run.stderr, told
        else:
            assert run.returncode == 0, f"{told}\n{run.stderr.decode()}"
            assert run.stdout.decode() == expected, told
