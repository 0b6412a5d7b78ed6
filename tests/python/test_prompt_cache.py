"""Prompt caches on disk and the memory plan, as users of the command meet them.

The program is $CARAT_BINARY, else build/release/carat.
"""

import json
import os
import pathlib
import signal
import subprocess
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
CARAT = pathlib.Path(os.environ.get("CARAT_BINARY", ROOT / "build" / "release" / "carat"))
GGUF = ROOT / "tests" / "goldens" / "gguf"
TALKER = GGUF / "dense.q8_0.gguf"
STRANGER = GGUF / "gemma3.q8_0.gguf"
PROMPT = "One word after the other, as long as it takes. " * 12

pytestmark = pytest.mark.skipif(not CARAT.exists(), reason=f"{CARAT} is not built")


@pytest.fixture(autouse=True)
def own_home(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path_factory.mktemp("home")))


def carat(*arguments, stdin=""):
    return subprocess.run([CARAT, *map(str, arguments)], input=stdin, capture_output=True, text=True, timeout=300, check=False)


def generate(model, cache, prompt=PROMPT, *more):
    arguments = ["generate", model, "--raw", prompt, "--greedy", "--max-tokens", 20, "--json", *more]
    run = carat(*arguments, *(["--prompt-cache", cache] if cache else []))
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout), run.stderr


@pytest.mark.parametrize("model", [TALKER, GGUF / "pli.q8_0.gguf", GGUF / "moe.q8_0.gguf"])
def test_a_cache_changes_nothing_but_the_time(model, tmp_path):
    cache = tmp_path / "a.cache"
    cold, _ = generate(model, None)
    first, complaint = generate(model, cache)
    assert first["tokens"] == cold["tokens"] and first["reused_tokens"] == 0 and not complaint
    again, complaint = generate(model, cache)
    assert again["tokens"] == cold["tokens"] and not complaint
    assert again["reused_tokens"] == again["prompt_tokens"] - 1
    # Another question about the same text.
    other = PROMPT + "And then?"
    asked, _ = generate(model, cache, other)
    assert asked["tokens"] == generate(model, None, other)[0]["tokens"] and asked["reused_tokens"] > 0
    assert os.stat(cache).st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["a.cache"]


def test_what_cannot_be_used_is_left_alone(tmp_path):
    cache = tmp_path / "a.cache"
    generate(STRANGER, cache)
    stranger = cache.read_bytes()
    damaged = bytearray(stranger)
    damaged[len(damaged) // 2] ^= 1
    cold, _ = generate(TALKER, None)
    for content in [stranger, bytes(damaged), stranger[:1000], b"", b"a letter to somebody\n"]:
        cache.write_bytes(content)
        result, complaint = generate(TALKER, cache)
        assert result["tokens"] == cold["tokens"] and result["reused_tokens"] == 0
        assert complaint.startswith("carat: ") and complaint.count("\n") == 1 and str(cache) in complaint
        assert "the prompt is computed" in complaint
        assert cache.read_bytes() == content
    generate(TALKER, tmp_path / "b.cache")
    _, complaint = generate(TALKER, tmp_path / "b.cache", PROMPT, "--precision", "exact")
    assert "exact" in complaint
    _, complaint = generate(TALKER, tmp_path / "b.cache", PROMPT, "--kv", "f32")
    assert "formats" in complaint
    generate(TALKER, tmp_path / "c.cache", PROMPT, "--kv", "q8", "--kv-recent", 128)
    _, complaint = generate(TALKER, tmp_path / "c.cache", PROMPT, "--kv", "q8")
    assert "formats" in complaint
    run = carat("generate", TALKER, "hi", "--prompt-cache", tmp_path / "nowhere" / "a.cache")
    assert run.returncode == 1 and "nowhere" in run.stderr


def test_a_conversation_goes_on_after_the_process(tmp_path):
    cache, talk = tmp_path / "a.cache", tmp_path / "talk.json"
    common = ["--greedy", "--max-tokens", 16]
    whole = carat("chat", TALKER, *common, stdin="Tell me.\nAnd then?\n").stdout
    first = carat("chat", TALKER, *common, "--prompt-cache", cache, stdin=f"Tell me.\n/save {talk}\n")
    second = carat("chat", TALKER, *common, "--prompt-cache", cache, "--load", talk, stdin="And then?\n")
    assert first.returncode == second.returncode == 0 and "carat:" not in first.stderr + second.stderr
    assert first.stdout + second.stdout == whole
    assert carat("chat", TALKER, *common, "--prefix-cache", 0, stdin="Tell me.\nAnd then?\n").stdout == whole


def test_killing_it_leaves_the_old_file(tmp_path):
    cache = tmp_path / "a.cache"
    generate(TALKER, cache)
    for delay in [0.01, 0.03, 0.05, 0.08, 0.12]:
        run = subprocess.Popen([CARAT, "generate", TALKER, "--raw", PROMPT * 5, "--greedy", "--prompt-cache", cache],
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(delay)
        run.send_signal(signal.SIGKILL)
        run.wait()
        result, complaint = generate(TALKER, cache)
        assert not complaint and result["reused_tokens"] > 0


def fit(*arguments):
    run = carat("fit", *arguments, "--json")
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def test_fit():
    plan = fit(TALKER, "--ctx", 4096, "--parallel", 2, "--prefix-cache", "64MB")
    parts = ["weights", "table_rows", "headers", "tokenizer", "activations", "kv", "prefix_cache", "process"]
    assert plan["peak"] == sum(plan[part] for part in parts)
    assert plan["prefix_cache"] == 64 << 20 and plan["context"] == 4096 and plan["fits"]
    one = fit(TALKER, "--ctx", 4096)
    assert 1.9 * one["kv"] < plan["kv"] <= 2 * one["kv"] == 2 * one["kv_per_sequence"]
    assert fit(TALKER, "--ctx", 4096, "--kv", "f32")["kv"] == 2 * one["kv"]
    coded = fit(TALKER, "--ctx", 4096, "--kv", "q8")
    assert coded["kv"] < 0.6 * one["kv"]
    recent = fit(TALKER, "--ctx", 4096, "--kv", "q8", "--kv-recent", 256)
    assert coded["kv"] < recent["kv"] < one["kv"] and coded["kv_per_token"] == recent["kv_per_token"]
    small = fit(TALKER, "--ctx", 4096, "--memory", "1MB")
    assert not small["fits"] and small["longest_context"] == small["most_sequences"] == 0
    text = carat("fit", TALKER, "--ctx", 4096).stdout
    assert "KV cache" in text and "fits into" in text
    assert carat("fit", TALKER, "--ctx", 0).returncode == 2
    assert carat("fit", TALKER, "--ctx", 10**9).returncode == 1


def test_fit_predicts_the_peak():
    """Roughly: what a tiny model takes is the program itself, which differs from machine to machine."""
    result, _ = generate(TALKER, None)
    plan = fit(TALKER, "--ctx", result["prompt_tokens"] + 20)
    assert result["peak_rss_bytes"] == pytest.approx(plan["peak"], rel=0.5)
