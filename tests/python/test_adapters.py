"""LoRA adapters as users of the command meet them.

The program is $CARAT_BINARY, else build/release/carat.
"""

import json
import os
import pathlib
import struct
import subprocess

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
CARAT = pathlib.Path(os.environ.get("CARAT_BINARY", ROOT / "build" / "release" / "carat"))
GOLDENS = ROOT / "tests" / "goldens"
TALKER = GOLDENS / "gguf" / "dense.q8_0.gguf"  # hidden 64, three layers
PROMPT = "One word after the other, as long as it takes. " * 12

pytestmark = pytest.mark.skipif(not CARAT.exists(), reason=f"{CARAT} is not built")


@pytest.fixture(autouse=True)
def own_home(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path_factory.mktemp("home")))


def carat(*arguments):
    return subprocess.run([CARAT, *map(str, arguments)], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=300, check=False)


def write_adapter(directory, size, seed=1):
    """A PEFT adapter of the first layer's up_proj and gate_proj, with values of B of about `size`."""
    directory.mkdir()
    random = np.random.default_rng(seed)
    width = mlp_width()
    header, data = {}, b""
    for name in ("gate_proj", "up_proj"):
        for half, shape, scale in (("A", (4, 64), 0.2), ("B", (width, 4), size)):
            values = (random.standard_normal(shape) * scale).astype("<f4").tobytes()
            header[f"base_model.model.model.layers.0.mlp.{name}.lora_{half}.weight"] = {
                "dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
            data += values
    text = json.dumps(header).encode()
    (directory / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    (directory / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 4, "lora_alpha": 4}))
    return directory


def mlp_width():
    run = carat("inspect", TALKER, "--json")
    assert run.returncode == 0, run.stderr
    shapes = {tensor["name"]: tensor["shape"] for tensor in json.loads(run.stdout)["tensors"]}
    return max(shapes["blk.0.ffn_up.weight"])


def generate(*more):
    run = carat("generate", TALKER, "--raw", PROMPT, "--greedy", "--max-tokens", 20, "--json", *more)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout), run.stderr


def logits(path, *more):
    ids = " ".join(str(2 + i * 37 % 500) for i in range(40))
    run = carat("logits", TALKER, "--ids", ids, "--out", path, *more)
    assert run.returncode == 0, run.stderr
    return np.load(path)


def test_one_of_zeros_changes_nothing_and_others_do(tmp_path):
    zero = write_adapter(tmp_path / "zero", 0.0)
    strong = write_adapter(tmp_path / "strong", 1.0)
    plain = logits(tmp_path / "a.npy")
    assert np.array_equal(logits(tmp_path / "b.npy", "--adapter", zero), plain)
    changed = logits(tmp_path / "c.npy", "--adapter", strong)
    assert np.max(np.abs(changed - plain)) > 0.1
    assert np.array_equal(logits(tmp_path / "d.npy", "--adapter", strong, "--adapter", zero), changed)
    assert np.array_equal(logits(tmp_path / "e.npy", "--adapter", strong, "--chunk", 7), changed)


def test_prompt_caches_belong_to_an_adapter(tmp_path):
    strong = write_adapter(tmp_path / "strong", 1.0)
    cache = tmp_path / "a.cache"
    plain, _ = generate()
    adapted, _ = generate("--adapter", strong)
    assert adapted["tokens"] != plain["tokens"]
    first, complaint = generate("--adapter", strong, "--prompt-cache", cache)
    assert first["tokens"] == adapted["tokens"] and not complaint
    again, complaint = generate("--adapter", strong, "--prompt-cache", cache)
    assert again["tokens"] == adapted["tokens"] and again["reused_tokens"] > 0 and not complaint
    without, complaint = generate("--prompt-cache", cache)  # somebody else's keys and values
    assert without["tokens"] == plain["tokens"] and without["reused_tokens"] == 0
    assert "a.cache" in complaint and complaint.count("\n") == 1


def test_what_does_not_fit_is_refused(tmp_path):
    for adapter, status, word in ((tmp_path / "none", 2, "none"), (tmp_path, 1, "adapter_model.safetensors"),
                                  (GOLDENS / "lora" / "e2b" / "peft", 1, "layers.")):
        run = carat("generate", TALKER, "hi", "--adapter", adapter)
        assert run.returncode == status and run.stdout == "" and word in run.stderr, run.stderr
        assert run.stderr.startswith("carat: ") and run.stderr.count("\n") == 1


def test_fit_counts_them(tmp_path):
    adapters = [write_adapter(tmp_path / name, 1.0, seed) for seed, name in enumerate("ab")]

    def plan(*more):
        run = carat("fit", TALKER, "--ctx", 256, "--json", *more)
        assert run.returncode == 0, run.stderr
        return json.loads(run.stdout)

    each = 4 * (64 + mlp_width()) * 2 * 4  # rank · (inputs + outputs), two projections, float32
    alone, one, two = plan(), plan("--adapter", adapters[0]), plan(*(x for a in adapters for x in ("--adapter", a)))
    assert [p["adapters"] for p in (alone, one, two)] == [0, each, 2 * each]
    scratch = 256 * 3 * 4 * 4  # rows, projections computed together, rank, float32
    assert [p["peak"] - alone["peak"] for p in (one, two)] == [each + scratch, 2 * (each + scratch)]
    assert plan("--adapter", adapters[0], "--memory", alone["peak"])["fits"] is False
    assert "adapter " in carat("fit", TALKER, "--adapter", adapters[0]).stdout
    assert "adapter" not in carat("fit", TALKER).stdout
    run = carat("fit", TALKER, "--adapter", tmp_path)
    assert run.returncode == 1 and "adapter_model.safetensors" in run.stderr
