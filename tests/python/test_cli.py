"""The carat command as its users meet it: help, exit statuses, sentences for mistakes, files, pipes and terminals.

The program is $CARAT_BINARY, else build/release/carat. Tests on the real model need $CARAT_MODEL_270M.
"""

import json
import os
import pathlib
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import time

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
CARAT = pathlib.Path(os.environ.get("CARAT_BINARY", ROOT / "build" / "release" / "carat"))
GOLDENS = ROOT / "tests" / "goldens"
GGUF = GOLDENS / "gguf"
TALKER = GGUF / "dense.q8_0.gguf"  # random weights and a vocabulary of 512: enough to talk with
VOCAB = 512
CONTEXT = 131072
REAL = os.environ.get("CARAT_MODEL_270M")
VERBS = ["generate", "chat", "serve", "get", "ls", "rm", "inspect", "fit", "tokenize", "render", "logits", "perplexity", "bench",
         "kv-calibrate"]

pytestmark = pytest.mark.skipif(not CARAT.exists(), reason=f"{CARAT} is not built")
needs_model = pytest.mark.skipif(not REAL, reason="CARAT_MODEL_270M is not set")


@pytest.fixture(autouse=True)
def own_home(tmp_path_factory, monkeypatch):
    """No test sees, or leaves anything in, the models and the history of whoever runs it."""
    home = tmp_path_factory.mktemp("home")
    for name in [name for name in os.environ if name.startswith(("XDG_", "HF_", "CARAT_HOME"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(home))
    return home


def carat(*arguments, stdin="", timeout=300, **options):
    """Runs carat on a pipe; text in and out is UTF-8."""
    return subprocess.run([CARAT, *map(str, arguments)], input=stdin.encode() if isinstance(stdin, str) else stdin,
                          capture_output=True, timeout=timeout, check=False, **options)


def output(*arguments, **options):
    run = carat(*arguments, **options)
    assert run.returncode == 0, run.stderr.decode()
    return run.stdout.decode()


def assert_refused(run, status, *words):
    """One sentence on stderr that has these words, nothing on stdout, and no crash."""
    message = run.stderr.decode()
    assert run.returncode == status, (run.returncode, message)
    assert run.stdout == b"", run.stdout
    assert message.startswith("carat: ") and message.count("\n") == 1 and message.endswith("\n"), message
    assert len(message) < 600, message
    for word in words:
        assert word in message, message


# --- help and usage ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", VERBS)
def test_help_has_examples(verb):
    text = output(verb, "--help")
    assert "\nExamples:\n" in text
    assert re.search(rf"carat {verb}\b", text[text.index("\nExamples:\n"):])


def test_help_lists_every_verb():
    text = output("--help")
    listed = re.findall(r"^  ([\w-]+)  +[A-Z]", text[text.index("Subcommands:"):], re.MULTILINE)
    assert sorted(listed) == sorted(VERBS)


def test_version():
    assert re.fullmatch(r"carat \d+\.\d+\.\d+\n", output("--version"))


def test_without_arguments_it_shows_its_help():
    run = carat()
    assert run.returncode == 2 and run.stdout == b"" and b"First steps" in run.stderr


@pytest.mark.parametrize("arguments", [
    ["frobnicate"], ["generate"], ["generate", TALKER, "hi", "--frobnicate"], ["inspect"], ["logits", TALKER, "--out", "x.npy"],
    ["logits", TALKER, "--ids", "2", "--ids-file", "x", "--out", "x.npy"], ["render", "x.json"],
    ["render", "x.json", "--format", "chatml"], ["perplexity", TALKER], ["bench", TALKER, "--rounds", "0"],
    ["generate", TALKER, "hi", "--threads", "-1"], ["generate", TALKER, "hi", "--threads", "two"],
    ["generate", TALKER, "hi", "--precision", "double"], ["generate", TALKER, "hi", "--kv", "q9"],
    ["generate", TALKER, "hi", "--kv", "turbo:k8"], ["generate", TALKER, "hi", "--kv-k", "turbo"],
    ["generate", TALKER, "hi", "--kv", "q8", "--kv-config", "x"], ["generate", TALKER, "hi", "--kv-recent", "-1"],
    ["generate", TALKER, "hi", "--kv-recent", "many"], ["fit", TALKER, "--kv-recent", "99999999"],
    ["generate", TALKER, "hi", "--chunk", "0"], ["generate", TALKER, "hi", "--max-tokens", "-1"],
    ["generate", TALKER, "hi", "--temperature", "-1"], ["generate", TALKER, "hi", "--temperature", "nan"],
    ["generate", TALKER, "hi", "--top-p", "1.5"], ["generate", TALKER, "hi", "--min-p", "-0.1"],
    ["generate", TALKER, "hi", "--top-k", "-2"], ["generate", TALKER, "hi", "--xtc-threshold", "0.9"],
    ["generate", TALKER, "hi", "--logit-bias", "five:1"], ["generate", TALKER, "hi", "--logit-bias", "5"],
    ["generate", TALKER, "hi", "--logit-bias", "5:"], ["generate", TALKER, "hi", "--seed", "-1"],
    ["generate", TALKER, "hi", "--hlg", "--hlg-width", "-1"], ["generate", TALKER, "hi", "--file", TALKER],
    ["chat", TALKER, "--max-tokens", "0"], ["chat", TALKER, "--temperature", "-1"],
], ids=lambda arguments: " ".join(str(getattr(a, "name", a)) for a in arguments))
def test_wrong_usage(arguments):
    assert_refused(carat(*arguments), 2)


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", [["generate", "M", "hi"], ["inspect", "M"], ["tokenize", "M", "hi"], ["bench", "M"], ["chat", "M"],
                                  ["logits", "M", "--ids", "2", "--out", "out.npy"], ["perplexity", "M", "text"],
                                  ["render", "-", "--model", "M"]], ids=lambda verb: verb[0])
def test_models_that_are_none(verb, tmp_path):
    (tmp_path / "text").write_text("some words")
    (tmp_path / "empty").mkdir()
    (tmp_path / "truncated.gguf").write_bytes(TALKER.read_bytes()[:5000])
    (tmp_path / "nothing.gguf").write_bytes(b"")
    (tmp_path / "other.gguf").write_bytes(b"PK\x03\x04" * 100)
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "config.json").write_text('{"model_type": "gemma4"')
    for name in ["missing", "missing.gguf", "empty", "truncated.gguf", "nothing.gguf", "other.gguf", "broken"]:
        arguments = [str(tmp_path / name) if word == "M" else word for word in verb]
        assert_refused(carat(*arguments, stdin="[]", cwd=tmp_path), 1, name)
    assert not list(tmp_path.glob("out.npy*"))


def test_names_that_are_not_in_the_store():
    assert_refused(carat("inspect", "gemma3-270m"), 1, "gemma3-270m", "carat get")
    assert_refused(carat("inspect", ""), 1)
    assert_refused(carat("rm", "gemma3-270m"), 1, "gemma3-270m")


@pytest.mark.parametrize("prompt", ["", " \n\t"])
def test_empty_prompts(prompt):
    assert_refused(carat("generate", TALKER, prompt), 1, "the prompt is empty")
    assert_refused(carat("generate", TALKER, stdin=prompt), 1, "the prompt is empty")


def test_prompt_files(tmp_path):
    assert_refused(carat("generate", TALKER, "--file", tmp_path / "none"), 1, "none")
    assert_refused(carat("generate", TALKER, "--file", tmp_path), 1, "is a directory")
    (tmp_path / "bytes").write_bytes(bytes(range(256)))
    assert carat("generate", TALKER, "--file", tmp_path / "bytes", "--max-tokens", "1").returncode == 0


def test_prompt_longer_than_the_context():
    assert_refused(carat("generate", TALKER, "--raw", stdin="a b" * CONTEXT), 1, "context", str(CONTEXT))


@pytest.mark.parametrize("bias", [f"{VOCAB}:1", "-1:1"])
def test_bias_outside_the_vocabulary(bias):
    run = carat("generate", TALKER, "hi", f"--logit-bias={bias}")
    assert_refused(run, 2 if bias.startswith("-") else 1, "logit_bias")


@pytest.mark.parametrize("ids, words", [("", ["no token ids"]), ("2,x", ['"x"']), ("2,,3.5", ['"3.5"']), (f"2,{VOCAB}", [str(VOCAB)]),
                                        ("-1", ["-1"]), ("99999999999", ["99999999999"])])
def test_bad_ids(ids, words, tmp_path):
    out = tmp_path / "out.npy"
    given = [f"--ids={ids}"] if ids else ["--ids", ""]
    assert_refused(carat("logits", TALKER, *given, "--out", out), 1, *words)
    (tmp_path / "ids").write_text(ids)
    assert_refused(carat("logits", TALKER, "--ids-file", tmp_path / "ids", "--out", out), 1, *words)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ids"]


def test_outputs_that_cannot_be_written(tmp_path):
    for out in [tmp_path, tmp_path / "no" / "such" / "x.npy"]:
        assert_refused(carat("logits", TALKER, "--ids", "2", "--out", out), 1, str(out))
    assert list(tmp_path.iterdir()) == []
    with open("/dev/full", "wb") as full:
        run = subprocess.run([CARAT, "inspect", TALKER], stdout=full, stderr=subprocess.PIPE, check=False)
    assert run.returncode == 1 and b"cannot write to standard output" in run.stderr


def test_bad_conversations(tmp_path):
    for text in ["", "{", "5", "[5]", '{"messages": 5}', "{}", '[{"content": "hi"}]', '[{"role": 5}]']:
        assert_refused(carat("render", "-", "--format", "gemma4", stdin=text), 1)


def test_perplexity_of_too_little():
    assert_refused(carat("perplexity", TALKER, "-", stdin=""), 1, "2")
    assert_refused(carat("perplexity", TALKER, "-", "--window", str(CONTEXT + 1), stdin="words"), 2, "--window")


# --- logits -----------------------------------------------------------------------------------------------------------

IDS = [2] + [(7 * i + 5) % VOCAB for i in range(70)]


def logits(model, out, *flags, ids=IDS):
    output("logits", model, "--ids", ",".join(map(str, ids)), "--out", out, *flags)
    return out.read_bytes()


@pytest.mark.parametrize("model", ["dense.q8_0.gguf", "moe.q8_0.gguf", "pli.q8_0.gguf", "gemma3.q8_0.gguf", "dense-wide.q4_k.gguf"])
def test_logits_do_not_depend_on_chunks_or_threads(model, tmp_path):
    whole = logits(GGUF / model, tmp_path / "a.npy", "--chunk", "512", "--threads", "1")
    for chunk, threads in [(1, 1), (7, 2), (64, 3)]:
        assert logits(GGUF / model, tmp_path / "b.npy", "--chunk", chunk, "--threads", threads) == whole, (chunk, threads)
    prefix = logits(GGUF / model, tmp_path / "c.npy", ids=IDS[:33])
    assert prefix[128:] == whole[128:128 + len(prefix) - 128]


def test_logits_file(tmp_path):
    raw = logits(TALKER, tmp_path / "x.npy")
    values = np.load(tmp_path / "x.npy")
    assert values.dtype == np.dtype("<f4") and values.shape == (len(IDS), VOCAB) and values.flags.c_contiguous
    assert np.isfinite(values).all() and len(np.unique(values[-1])) > VOCAB / 2
    assert struct.unpack("<H", raw[8:10])[0] % 64 == 54  # the data begin on a multiple of 64 bytes
    (tmp_path / "ids").write_text("\n".join(map(str, IDS)) + "\n")
    output("logits", TALKER, "--ids-file", tmp_path / "ids", "--out", tmp_path / "y.npy")
    assert (tmp_path / "y.npy").read_bytes() == raw
    output("logits", TALKER, "--ids-file", "-", "--out", tmp_path / "y.npy", stdin=" ".join(map(str, IDS)))
    assert (tmp_path / "y.npy").read_bytes() == raw


def test_logits_replace_neither_pipes_nor_links(tmp_path):
    whole = logits(TALKER, tmp_path / "x.npy")
    os.mkfifo(tmp_path / "pipe")
    with subprocess.Popen(["cat", tmp_path / "pipe"], stdout=subprocess.PIPE) as reader:
        output("logits", TALKER, "--ids", ",".join(map(str, IDS)), "--out", tmp_path / "pipe")
        assert reader.communicate(timeout=60)[0] == whole
    assert (tmp_path / "pipe").is_fifo()
    (tmp_path / "target").write_bytes(b"old")
    (tmp_path / "link").symlink_to("target")
    assert logits(TALKER, tmp_path / "link") == whole and (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_bytes() == whole and not list(tmp_path.glob("*.partial"))


def test_exact_logits_are_the_reference(tmp_path):
    golden = read_safetensors(GGUF / "dense.q8_0.safetensors")
    ids = golden["tokens"].tolist()
    logits(TALKER, tmp_path / "x.npy", "--precision", "exact", ids=ids)
    reference = next(value for name, value in golden.items() if name.startswith("hf64"))
    assert np.abs(np.load(tmp_path / "x.npy") - reference).max() < 2e-4 * np.abs(reference).max()


def read_safetensors(path):
    raw = path.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    types = {"F64": "<f8", "F32": "<f4", "I64": "<i8", "I32": "<i4"}
    tensors = {}
    for name, entry in json.loads(raw[8:8 + size]).items():
        if name == "__metadata__" or entry["dtype"] not in types:
            continue
        begin, end = entry["data_offsets"]
        tensors[name] = np.frombuffer(raw[8 + size + begin:8 + size + end], types[entry["dtype"]]).reshape(entry["shape"])
    return tensors


# --- inspect ----------------------------------------------------------------------------------------------------------

MODELS = ["models/dense31/q4g64", "models/dense31/bf16-hf", "models/dense31/nvfp4", "models/e2b/optiq", "models/e2b/bf16-hf",
          "models/e4b/bf16-mlx", "models/moe26/q4g64", "models/moe26w/nvfp4", "models/gemma3/bf16-hf", "models/untied/q4g64",
          "gguf/dense.q8_0.gguf", "gguf/moe.mxfp4_moe.gguf", "gguf/pli-wide.q4_k_m.gguf", "gguf/split-00001-of-00002.gguf"]


@pytest.mark.parametrize("model", MODELS)
def test_inspect(model):
    path = GOLDENS / model
    report = json.loads(output("inspect", path, "--json"))
    architecture, layers, tensors = report["architecture"], report["layers"], report["tensors"]
    used = [t for t in tensors if t["canonical"]]
    assert report["kind"] == ("gguf" if path.suffix == ".gguf" else "safetensors")
    assert len(layers) == architecture["layers"] and [layer["index"] for layer in layers] == list(range(len(layers)))
    assert report["bytes_used"] == sum(t["bytes"] for t in used) == sum(f["bytes"] for f in report["formats"])
    assert sum(f["share"] for f in report["formats"]) == pytest.approx(1)
    files = [path] if path.is_file() else [f for f in path.iterdir() if f.name.endswith(".safetensors")]
    if "split" in path.name:
        files = list(GGUF.glob("split-*.gguf"))
    assert report["bytes_used"] <= report["bytes_on_disk"]
    assert report["bytes_on_disk"] >= sum(f.stat().st_size for f in files) - 1

    # One token reads everything but the other rows of the tables and the experts that were not chosen.
    expected = 0
    for t in used:
        row = t["bytes"] // t["shape"][0]
        if t["canonical"] == "embed_tokens":
            expected += row + (t["bytes"] if architecture["tied_head"] else 0)
        elif t["canonical"] == "embed_tokens_per_layer":
            expected += row
        elif ".experts." in t["canonical"]:
            assert t["shape"][0] == architecture["experts"]
            expected += row * architecture["experts_per_token"]
        else:
            expected += t["bytes"]
    assert report["bytes_per_token"] == expected
    assert architecture["tied_head"] == all(t["canonical"] != "lm_head" for t in tensors)

    # Keys and values: owners only, at two bytes a number; windows are full after `window` tokens.
    for kind in ["full", "sliding"]:
        owned = [layer for layer in layers if layer["owns_kv"] and layer["kind"] == kind]
        assert report["kv_cache"]["bytes_per_token"][kind] == sum(4 * layer["kv_heads"] * layer["head_dim"] for layer in owned)
    for layer in layers:
        owner = layers[layer["kv_layer"]]
        assert owner["owns_kv"] and owner["kind"] == layer["kind"] and (owner is layer) == layer["owns_kv"]
    rates = report["kv_cache"]["bytes_per_token"]
    assert [c["tokens"] for c in report["kv_cache"]["contexts"]][-1] == architecture["max_positions"]
    for context in report["kv_cache"]["contexts"]:
        n = context["tokens"]
        assert context["bytes"] == rates["full"] * n + rates["sliding"] * min(n, architecture["window"])
    doubled = json.loads(output("inspect", path, "--json", "--kv", "f32"))["kv_cache"]["bytes_per_token"]
    assert doubled == {kind: 2 * rate for kind, rate in rates.items()}


def test_inspect_knows_the_geometries():
    e2b = json.loads(output("inspect", GOLDENS / "models/e2b/q4g64", "--json"))
    assert e2b["architecture"]["kv_shared_layers"] > 0 and e2b["architecture"]["per_layer_input_width"] > 0
    assert any(t["canonical"] is None for t in json.loads(output("inspect", GOLDENS / "models/e2b/bf16-hf", "--json"))["tensors"])
    moe = json.loads(output("inspect", GOLDENS / "models/moe26/q4g64", "--json"))
    assert moe["architecture"]["experts"] > moe["architecture"]["experts_per_token"] > 0
    assert moe["bytes_per_token"] < moe["bytes_used"]
    assert not json.loads(output("inspect", GOLDENS / "models/untied/q4g64", "--json"))["architecture"]["tied_head"]
    talker = json.loads(output("inspect", TALKER, "--json"))
    assert talker["tokenizer"] == {"size": VOCAB} and talker["chat_format"] == "gemma4"
    assert {"id": 1, "piece": "<eos>"} in talker["stop_tokens"]
    assert json.loads(output("inspect", GGUF / "gemma3.q8_0.gguf", "--json"))["chat_format"] == "gemma3"


def test_a_model_without_a_template_is_called_pretrained(tmp_path):
    shutil.copytree(GOLDENS / "models" / "gemma3" / "bf16-hf", tmp_path / "model")
    assert "gemma3 (no template in the files" in output("inspect", tmp_path / "model")
    shutil.copy(ROOT / "tests" / "chat" / "templates" / "gemma3.jinja", tmp_path / "model" / "chat_template.jinja")
    assert "no template" not in output("inspect", tmp_path / "model")
    assert b"--raw" in carat("generate", TALKER, "tell me", "--max-tokens", "3").stderr
    assert b"--raw" not in carat("generate", TALKER, "--raw", "tell me", "--max-tokens", "3").stderr


@pytest.mark.parametrize("model", MODELS)
def test_inspect_for_people(model):
    report = json.loads(output("inspect", GOLDENS / model, "--json"))
    short = output("inspect", GOLDENS / model)
    every = output("inspect", GOLDENS / model, "--all", "--tensors")
    rows = re.findall(r"^(\d+)(?:-(\d+))? +(sliding|full) ", short, re.MULTILINE)
    covered = [i for first, last, _ in rows for i in range(int(first), int(last or first) + 1)]
    assert covered == list(range(len(report["layers"])))
    assert len(re.findall(r"^\d+ +(?:sliding|full) ", every, re.MULTILINE)) == len(report["layers"])
    assert "weights are used in place" in short
    for tensor in report["tensors"]:
        assert f"\n{tensor['name']} " in every


def write_large_model(directory):
    """The shape of Gemma 3 27B in bfloat16: 62 layers, 54 GB, all of them a hole in the file."""
    hidden, heads, kv_heads, head_dim, width, layers, vocab = 5376, 32, 16, 128, 21504, 62, 262208
    config = json.loads((GOLDENS / "models/gemma3/bf16-hf/config.json").read_text())
    config.update(hidden_size=hidden, num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=head_dim, vocab_size=vocab,
                  intermediate_size=width, num_hidden_layers=layers, sliding_window=1024, query_pre_attn_scalar=168)
    shapes = {"model.embed_tokens": [vocab, hidden], "model.norm": [hidden]}
    for i in range(layers):
        at = f"model.layers.{i}."
        for name in ["input", "post_attention", "pre_feedforward", "post_feedforward"]:
            shapes[f"{at}{name}_layernorm"] = [hidden]
        for name, rows in [("q", heads), ("k", kv_heads), ("v", kv_heads)]:
            shapes[f"{at}self_attn.{name}_proj"] = [rows * head_dim, hidden]
        shapes.update({f"{at}self_attn.o_proj": [hidden, heads * head_dim], f"{at}self_attn.q_norm": [head_dim],
                       f"{at}self_attn.k_norm": [head_dim], f"{at}mlp.gate_proj": [width, hidden],
                       f"{at}mlp.up_proj": [width, hidden], f"{at}mlp.down_proj": [hidden, width]})
    header, end = {}, 0
    for name, shape in shapes.items():
        size = 2 * int(np.prod(shape))
        header[f"{name}.weight"] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    raw = json.dumps(header).encode()
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(config))
    with open(directory / "model.safetensors", "wb") as file:
        file.write(len(raw).to_bytes(8, "little") + raw)
        file.truncate(8 + len(raw) + end)
    return end


def test_inspect_reads_no_weights(tmp_path):
    try:
        size = write_large_model(tmp_path / "large")
    except OSError as error:
        pytest.skip(f"no room for a file with holes: {error}")
    start = time.monotonic()
    short = output("inspect", tmp_path / "large")
    assert time.monotonic() - start < 5  # 54 GB would take longer even from memory
    assert (tmp_path / "large" / "model.safetensors").stat().st_blocks * 512 < 16 << 20
    assert len(short.splitlines()) <= 60 and "27.01 billion parameters" in short
    report = json.loads(output("inspect", tmp_path / "large", "--json"))
    assert report["bytes_used"] == size and len(report["layers"]) == 62


# --- generate ---------------------------------------------------------------------------------------------------------


def generate(model, *arguments, **options):
    return json.loads(output("generate", model, *arguments, "--json", **options))


def test_same_seed_same_text():
    flags = ["tell me", "--temperature", "1", "--max-tokens", "24", "--seed"]
    first = generate(TALKER, *flags, "5")
    assert first["seed"] == 5 and first["generated_tokens"] == len(first["tokens"])
    for more in [[], ["--threads", "1"], ["--chunk", "3"]]:
        assert generate(TALKER, *flags, "5", *more)["tokens"] == first["tokens"]
    assert generate(TALKER, *flags, "6")["tokens"] != first["tokens"]
    shown = output("generate", TALKER, *flags, "5", "--raw")
    assert shown == generate(TALKER, *flags, "5", "--raw")["text"] + "\n"
    fresh = [generate(TALKER, "tell me", "--max-tokens", "1")["seed"] for _ in range(2)]
    assert fresh[0] != fresh[1]


def test_prompts_from_everywhere(tmp_path):
    flags = ["--max-tokens", "8", "--greedy"]
    (tmp_path / "prompt").write_text("tell me")
    expected = generate(TALKER, "tell me", *flags)["tokens"]
    assert generate(TALKER, *flags, stdin="tell me")["tokens"] == expected
    assert generate(TALKER, "--file", tmp_path / "prompt", *flags)["tokens"] == expected
    assert generate(TALKER, "--system", "be brief", "tell me", *flags)["prompt_tokens"] > generate(TALKER, "tell me", *flags)["prompt_tokens"]
    assert generate(TALKER, "", "--raw", *flags)["prompt_tokens"] == 1  # BOS


def test_ends_of_generation():
    none = generate(TALKER, "tell me", "--max-tokens", "0")
    assert none["tokens"] == [] and none["text"] == "" and none["finish_reason"] == "length"
    run = carat("generate", TALKER, "tell me", "--max-tokens", "0")
    assert run.returncode == 0 and run.stdout in (b"", b"\n")
    flags = ["tell me", "--raw", "--greedy", "--max-tokens", "40"]
    text = generate(TALKER, *flags)["text"]
    stop = text[len(text) // 2:len(text) // 2 + 2]
    cut = generate(TALKER, *flags, "--stop", "never there", "--stop", stop)
    assert cut["text"] == text[:text.index(stop)] and cut["finish_reason"] == "stop"
    assert output("generate", TALKER, *flags, "--stop", stop) == cut["text"] + "\n"


def test_bias_and_logprobs():
    forced = generate(TALKER, "tell me", "--logit-bias", "100:inf", "--max-tokens", "5", "--greedy", "--logprobs", "3")
    assert forced["tokens"] == [100] * 5
    entries = generate(TALKER, "tell me", "--max-tokens", "5", "--greedy", "--logprobs", "3")["logprobs"]
    assert len(entries) == 5
    for entry in entries:
        assert len(entry["top"]) == 3 and entry["top"][0]["logprob"] == entry["logprob"] < 0
        assert entry["token"] == entry["top"][0]["token"]
    stopped = generate(TALKER, "tell me", "--logit-bias", "1:inf", "--max-tokens", "5", "--temperature", "1")
    assert stopped["tokens"] == [] and stopped["finish_reason"] == "stop"


def test_statistics_are_one_line_on_stderr():
    run = carat("generate", TALKER, "tell me", "--max-tokens", "3", "--seed", "9")
    assert run.stderr.count(b"\n") == 1 and b"seed 9" in run.stderr
    assert carat("generate", TALKER, "tell me", "--max-tokens", "3", "-q").stderr == b""


def test_statistics_follow_the_text_on_a_shared_pipe():
    run = subprocess.run([CARAT, "generate", TALKER, "--raw", "a", "--max-tokens", "3", "--seed", "9"], stdin=subprocess.DEVNULL,
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=True)
    assert re.search(rb"\n\[\d+ prompt tokens [^\n]*seed 9[^\n]*\]\n\Z", run.stdout), run.stdout


@pytest.mark.parametrize("arguments", [["generate", TALKER, "tell me", "--max-tokens", "2", "-q", "--chunk", "1"],
                                       ["logits", TALKER, "--ids", "2,3,4", "--out", "/dev/null/../null", "--chunk", "1"],
                                       ["perplexity", TALKER, "-", "--chunk", "1"],
                                       ["bench", TALKER, "--prompt", "8", "--generate", "4", "--rounds", "1"]],
                         ids=lambda arguments: arguments[0])
def test_no_progress_bars_without_a_terminal(arguments, tmp_path):
    arguments = [tmp_path / "x.npy" if "/dev/null" in str(a) else a for a in arguments]
    run = carat(*arguments, stdin="many words to be read")
    assert run.returncode == 0 and run.stderr == b"", run.stderr


def test_a_reader_that_leaves_ends_it_quietly():
    command = f'"{CARAT}" generate "{TALKER}" "tell me" --raw --max-tokens 100000 -q --logit-bias 1:-inf | head -c 10'
    start = time.monotonic()
    run = subprocess.run(["bash", "-c", command], capture_output=True, timeout=120, check=False)
    assert run.returncode == 0 and len(run.stdout) == 10 and run.stderr == b""
    assert time.monotonic() - start < 60  # far from 100000 tokens
    ignoring = subprocess.run(["bash", "-c", f"trap '' PIPE; {command}"], capture_output=True, timeout=120, check=False)
    assert ignoring.returncode == 0 and ignoring.stderr == b"", ignoring.stderr


def test_json_outputs_parse(tmp_path):
    (tmp_path / "text").write_text("the words of a text that goes on for some time")
    perplexity = json.loads(output("perplexity", TALKER, tmp_path / "text", "--json"))
    assert perplexity["perplexity"] > 1 and perplexity["tokens"] > 5
    assert perplexity["perplexity"] == pytest.approx(np.exp(perplexity["cross_entropy"]))
    bench = json.loads(output("bench", TALKER, "--prompt", "8", "--generate", "4", "--rounds", "1", "--json"))
    assert bench["prefill_tokens_per_second"] > 0 and bench["decode_tokens_per_second"] > 0
    assert bench["decode_bytes_per_token"] >= json.loads(output("inspect", TALKER, "--json"))["bytes_per_token"]
    assert json.loads(output("ls", "--json")) == []
    tokens = json.loads(output("tokenize", TALKER, "the words\n", "--json", "--bos"))
    assert tokens["ids"][0] == 2 and len(tokens["ids"]) == len(tokens["pieces"])
    assert json.loads(output("tokenize", TALKER, "--json", stdin="the words\n"))["ids"] == tokens["ids"][1:]
    assert json.loads(output("tokenize", TALKER, "", "--json"))["ids"] == []
    lines = output("tokenize", TALKER, "the words\n", "--bos").splitlines()
    assert [int(line.split()[0]) for line in lines] == tokens["ids"]


def test_perplexity_does_not_depend_on_chunks():
    text = "the words of a text that goes on for some time " * 5
    results = [output("perplexity", TALKER, "-", "--window", "32", "--chunk", chunk, "--json", stdin=text) for chunk in (1, 5, 512)]
    assert len(set(results)) == 1


# --- formats of keys and values ---------------------------------------------------------------------------------------


@pytest.fixture
def shared_kv(tmp_path):
    """A model whose last layers share keys and values, in a directory of its own."""
    return pathlib.Path(shutil.copytree(GOLDENS / "models/e2b/q4g64", tmp_path / "e2b"))


@pytest.mark.parametrize("flags", [["--kv", "q8"], ["--kv", "q4g64"], ["--kv", "turbo:k8v3"], ["--kv-k", "q8", "--kv-v", "bf16"],
    ["--kv", "q4", "--kv-recent", "1"]])
def test_logits_with_coded_keys_and_values(tmp_path, flags):
    plain = logits(GOLDENS / "models/e2b/q4g64", tmp_path / "plain.npy")
    coded = logits(GOLDENS / "models/e2b/q4g64", tmp_path / "coded.npy", *flags)
    assert np.isfinite(np.load(tmp_path / "coded.npy")).all() and coded != plain
    assert coded == logits(GOLDENS / "models/e2b/q4g64", tmp_path / "chunks.npy", *flags, "--chunk", "3")


def test_kv_config_beside_the_model_is_the_default(tmp_path, shared_kv):
    plain = logits(shared_kv, tmp_path / "plain.npy")
    config = tmp_path / "elsewhere.json"
    config.write_text('[{"layer_idx": 1, "bits": 8}, {"layer_idx": 5, "bits": 4, "group_size": 32}]')
    asked = logits(shared_kv, tmp_path / "asked.npy", "--kv-config", config)
    assert asked != plain
    shutil.copy(config, shared_kv / "kv_config.json")
    assert logits(shared_kv, tmp_path / "default.npy") == asked
    assert logits(shared_kv, tmp_path / "f16.npy", "--kv", "f16") == plain
    layers = json.loads(output("inspect", shared_kv, "--json"))["layers"]
    assert [layer["k_format"] for layer in layers[:6]] == ["f16", "q8", "f16", "f16", "f16", "q4"]
    assert {layer["k_format"] for layer in layers if layer["kv_layer"] == 5} == {"q4"}
    assert "q8 in layer 1\n" in output("inspect", shared_kv)


def test_recent_positions_are_read_as_f16(tmp_path, shared_kv):
    f16 = logits(shared_kv, tmp_path / "f16.npy", "--kv", "f16")
    coded = logits(shared_kv, tmp_path / "coded.npy", "--kv", "turbo:k4v2")
    assert coded != f16
    assert logits(shared_kv, tmp_path / "recent.npy", "--kv", "turbo:k4v2", "--kv-recent", "200") == f16
    assert logits(shared_kv, tmp_path / "none.npy", "--kv", "turbo:k4v2", "--kv-recent", "0") == coded
    # With the model's own file, from it, and in place of what it says.
    (shared_kv / "kv_config.json").write_text('[{"layer_idx": 4, "bits": 2}]')
    coded = logits(shared_kv, tmp_path / "file.npy")
    assert coded != f16
    assert logits(shared_kv, tmp_path / "flag.npy", "--kv-recent", "200") == f16
    (shared_kv / "kv_config.json").write_text('[{"layer_idx": 4, "bits": 2, "recent": 200}]')
    assert logits(shared_kv, tmp_path / "config.npy") == f16
    assert logits(shared_kv, tmp_path / "without.npy", "--kv-recent", "0") == coded
    report = json.loads(output("inspect", shared_kv, "--json"))
    assert {layer["kv_layer"]: layer["kv_recent"] for layer in report["layers"]}[4] == 200
    plain = json.loads(output("inspect", shared_kv, "--json", "--kv-recent", "0"))["kv_cache"]
    assert plain["bytes_per_token"] == report["kv_cache"]["bytes_per_token"]
    assert plain["contexts"][0]["bytes"] < report["kv_cache"]["contexts"][0]["bytes"]
    assert "the latest 200 also f16" in output("inspect", shared_kv)


@pytest.mark.parametrize("text, words", [
    ('[{"layer_idx": 1, "bits": 8, "recent": -1}]', ["kv_config.json", "recent"]), ("", ["kv_config.json", "JSON"]), ("{}", ["kv_config.json", "array"]), ('[{"layer_idx": 99, "bits": 8}]', ["layer 99"]),
    ('[{"layer_idx": 1, "bits": 7}]', ["kv_config.json", "bits"])])
def test_a_bad_kv_config_is_named(tmp_path, shared_kv, text, words):
    (shared_kv / "kv_config.json").write_text(text)
    assert_refused(carat("logits", shared_kv, "--ids", "2,3", "--out", tmp_path / "x.npy"), 1, *words)


def test_kv_calibrate_keeps_the_budget(tmp_path):
    text = "the words of a text that goes on for some time " * 5
    rates = json.loads(output("inspect", TALKER, "--json"))["kv_cache"]["bytes_per_token"]
    budget = sum(rates.values()) * 2 // 3
    report = output("kv-calibrate", TALKER, "--text", "-", "--bytes-per-token", budget, "--out", tmp_path / "kv.json", stdin=text)
    chosen = json.loads(output("inspect", TALKER, "--kv-config", tmp_path / "kv.json", "--json"))["kv_cache"]["bytes_per_token"]
    assert sum(chosen.values()) <= budget and f"{sum(chosen.values())} bytes a token" in report
    output("kv-calibrate", TALKER, "--text", "-", "--bytes-per-token", budget, "--kv-recent", "64", "--out", tmp_path / "recent.json", stdin=text)
    kinds = {layer["kv_layer"]: layer["kind"] for layer in json.loads(output("inspect", TALKER, "--json"))["layers"]}
    entries = json.loads((tmp_path / "recent.json").read_text())
    assert {kinds[e["layer_idx"]] for e in entries if "recent" in e} == {"full"}
    assert_refused(carat("kv-calibrate", TALKER, "--text", "-", "--bytes-per-token", "1", "--kv", "q8", "--out", tmp_path / "x"), 2, "--kv-recent")
    refused = carat("kv-calibrate", TALKER, "--text", "-", "--bytes-per-token", "1", "--out", tmp_path / "no.json", stdin=text)
    assert_refused(refused, 1, "at least", "budget")
    assert not (tmp_path / "no.json").exists()


# --- chat on a pipe ---------------------------------------------------------------------------------------------------


def chat(*lines, flags=(), model=TALKER):
    return carat("chat", model, "--max-tokens", "6", *flags, stdin="".join(line + "\n" for line in lines))


def saved(path):
    return [(message["role"], message["content"]) for message in json.loads(path.read_text())]


def test_chat_on_a_pipe(tmp_path):
    log = tmp_path / "log.json"
    run = chat("hello", "", "   ", "and you", f"/save {log}", flags=["--greedy", "--system", "be brief"])
    assert run.returncode == 0, run.stderr
    messages = saved(log)
    assert [role for role, _ in messages] == ["system", "user", "assistant", "user", "assistant"]
    assert messages[0][1] == "be brief" and messages[1][1] == "hello" and messages[3][1] == "and you"
    shown = run.stdout.decode()
    assert shown.startswith(messages[2][1]) and messages[4][1] in shown and ">" not in shown.replace(messages[2][1], "").replace(messages[4][1], "")
    assert b"\x1b" not in run.stdout + run.stderr
    assert chat("hello", "", "and you", flags=["--greedy", "--system", "be brief"]).stdout == run.stdout


def test_chat_answers_what_generate_answers():
    answer = generate(TALKER, "hello", "--greedy", "--max-tokens", "6")
    assert chat("hello", flags=["--greedy"]).stdout.decode().rstrip("\n") == answer["text"].rstrip("\n")


def test_chat_commands(tmp_path):
    a, b, c = tmp_path / "a.json", tmp_path / "b.json", tmp_path / "c.json"
    run = chat("/system sing", "one", "two", f"/save {a}", "/undo", f"/save {b}", "/clear", f"/save {c}", "/tokens", "/help", "/quit",
               "never read", flags=["--greedy"])
    assert run.returncode == 0, run.stderr
    assert [text for role, text in saved(a) if role == "user"] == ["one", "two"]
    assert saved(b) == saved(a)[:3] and saved(c) == [("system", "sing")]
    assert b"/regenerate" in run.stdout and re.search(rb"\d+ of 131072 tokens", run.stdout)
    d = tmp_path / "d.json"
    run = chat(f"/load {a}", "/undo", "two", f"/save {d}", flags=["--greedy"])
    assert run.returncode == 0 and d.read_text() == a.read_text()
    run = chat("/undo", "two", f"/save {d}", flags=["--greedy", "--load", str(a)])
    assert run.returncode == 0 and d.read_text() == a.read_text()


def test_chat_regenerates_with_other_numbers(tmp_path):
    a, b = tmp_path / "a.json", tmp_path / "b.json"
    lines = ["one", f"/save {a}", "/regenerate", f"/save {b}"]
    flags = ["--temperature", "1", "--seed", "3"]
    first = chat(*lines, flags=flags)
    before = (a.read_text(), b.read_text())
    assert saved(a)[0] == saved(b)[0] and saved(a)[1] != saved(b)[1] and len(saved(b)) == 2
    assert chat(*lines, flags=flags).stdout == first.stdout and (a.read_text(), b.read_text()) == before


def test_chat_settings():
    run = chat("/set temperature 0.5", "/set top-k 7", "/set max_tokens 2", "/set seed 4", "/set hlg on", "/set hlg_width inf", "/set")
    assert run.returncode == 0, run.stderr
    assert run.stdout.decode() == "temperature 0.5, top_k 7, hlg_width inf, hlg on, max_tokens 2\n"
    bad = ["/set temperature", "/set temperature warm", "/set temperature -1", "/set top_p 2", "/set mood good", "/set max_tokens 0",
           "/set seed -1", "/set hlg yes", "/thinking maybe", "/undo", "/regenerate", "/save", "/save /no/such/dir/x", "/load",
           "/load /no/such/file", "/frobnicate", f"/load {TALKER}"]
    for line in bad:
        run = chat(line, "/set")
        assert run.returncode == 1 and run.stderr.startswith(b"carat: ") and run.stderr.count(b"\n") == 1, (line, run.stderr)
        assert run.stdout == b"temperature 0, max_tokens 6\n", line


def test_chat_survives_bad_conversations(tmp_path):
    log = tmp_path / "log.json"
    for number, text in enumerate(["5", "[5]", '[{"content": "x"}]', '[{"role": 5}]', "[", '{"a": 1}']):
        (tmp_path / f"{number}.json").write_text(text)
        run = chat("one", f"/load {tmp_path}/{number}.json", f"/save {log}")
        assert run.returncode == 1 and len(saved(log)) == 2, run.stderr


def test_chat_takes_several_lines(tmp_path):
    log = tmp_path / "log.json"
    run = chat('"""first', "/second", 'third"""', '"""/alone"""', " /usr is a path", f"/save {log}")
    assert run.returncode == 0, run.stderr
    assert [text for role, text in saved(log) if role == "user"] == ["first\n/second\nthird", "/alone", "/usr is a path"]
    assert_refused(chat('"""endless', "text"), 1, "never ends")


def test_chat_takes_any_bytes():
    run = carat("chat", TALKER, "--max-tokens", "3", stdin=b"caf\xc3\xa9 \xff\xfe\x00 \xf0\x9f\n/tokens\n")
    assert run.returncode == 0, run.stderr


def test_thoughts_are_told_from_answers(tmp_path):
    """Biased towards the markers, random weights think now and then: find a seed at which they do."""
    marker = [json.loads(output("tokenize", TALKER, text, "--json"))["ids"] for text in ("<|channel>", "<channel|>")]
    assert [len(ids) for ids in marker] == [1, 1]
    flags = ["--thinking", "--temperature", "1", *(f"--logit-bias={ids[0]}:3" for ids in marker)]

    def thinks(seed):
        said = generate(TALKER, "hello", "--max-tokens", "30", "--seed", seed, *flags)
        return said if said["text"] and said.get("reasoning") else None

    seed, said = next((seed, said) for seed in range(100) if (said := thinks(seed)))
    flags += ["--seed", str(seed)]
    plain = output("generate", TALKER, "hello", "--max-tokens", "30", *flags)
    assert plain.rstrip("\n") == said["text"].rstrip("\n")  # a pipe gets the answer alone
    assert "<|channel>" in output("generate", TALKER, "hello", "--max-tokens", "30", "--specials", *flags)
    log = tmp_path / "log.json"
    run = carat("chat", TALKER, "--max-tokens", "30", *flags, stdin=f"hello\n/save {log}\n")
    assert run.stdout.decode() == plain
    answer = json.loads(log.read_text())[1]
    assert answer["reasoning"] == said["reasoning"] and answer["content"] == said["text"]
    terminal = Terminal("generate", TALKER, "hello", "--max-tokens", "30", *flags)
    assert terminal.status() == 0 and "\x1b[2m" in terminal.text and "\x1b[0m" in terminal.text


# --- a terminal -------------------------------------------------------------------------------------------------------


class Terminal:
    """carat at a pseudo-terminal."""

    def __init__(self, *arguments, **environment):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execve(CARAT, ["carat", *map(str, arguments)], {**os.environ, "TERM": "xterm", "LC_ALL": "C.UTF-8", **environment})
        self.text = ""

    def wait_for(self, words, timeout=60):
        """Reads until the words appear after what was waited for before."""
        end = time.monotonic() + timeout
        while words not in self.text:
            left = end - time.monotonic()
            assert left > 0 and select.select([self.fd], [], [], left)[0], f"no {words!r} in {self.text!r}"
            try:
                data = os.read(self.fd, 65536)
            except OSError:
                data = b""
            assert data, f"ended without {words!r}: {self.text!r}"
            self.text += data.decode(errors="replace")
        before, self.text = self.text.split(words, 1)
        return before

    def type(self, text):
        time.sleep(0.2)  # nobody types in the microseconds between the prompt and the editor
        os.write(self.fd, text.encode())

    def status(self, timeout=60):
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            if select.select([self.fd], [], [], 0.1)[0]:
                try:
                    self.text += os.read(self.fd, 65536).decode(errors="replace")
                except OSError:
                    pass
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                os.close(self.fd)
                return os.waitstatus_to_exitcode(status)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        pytest.fail(f"it does not end: {self.text!r}")


@pytest.mark.parametrize("arguments", [["generate", TALKER], ["tokenize", TALKER], ["perplexity", TALKER, "-"],
                                       ["render", "-", "--format", "gemma4"], ["generate", TALKER, "--file", "-"],
                                       ["logits", TALKER, "--ids-file", "-", "--out", "x.npy"]], ids=lambda a: a[0])
def test_nobody_is_kept_waiting_at_a_terminal(arguments):
    terminal = Terminal(*arguments)
    terminal.wait_for("is missing")
    assert terminal.status() == 2


def test_chat_at_a_terminal(own_home, tmp_path):
    terminal = Terminal("chat", TALKER, "--greedy", "--max-tokens", "4")
    terminal.wait_for("/help lists the commands.")
    terminal.wait_for("> ")
    terminal.type("grüße\r")
    terminal.wait_for("stopped after 4 tokens")
    terminal.wait_for("> ")
    terminal.type("half a line\x03")  # Ctrl-C drops what was typed
    terminal.wait_for("^C")
    terminal.wait_for("> ")
    terminal.type('"""a\r')
    terminal.wait_for(". ")
    terminal.type('b"""\r')
    terminal.wait_for("stopped after 4 tokens")
    terminal.wait_for("> ")
    terminal.type("\x1b[A\x1b[A\x1b[A\x15/save " + str(tmp_path / "log.json") + "\r")  # history up, then wipe the line
    terminal.wait_for("4 messages are in")
    terminal.wait_for("> ")
    terminal.type("\x04")
    assert terminal.status() == 0
    assert [text for role, text in saved(tmp_path / "log.json") if role == "user"] == ["grüße", "a\nb"]
    history = own_home / ".local" / "state" / "carat" / "history"
    assert "/save" in history.read_text() and "half" not in history.read_text()
    assert history.stat().st_mode & 0o077 == 0

    again = Terminal("chat", TALKER, "--greedy", "--max-tokens", "4")
    again.wait_for("> ")
    again.type("\x1b[A")
    again.wait_for("/save")
    again.type("\x15/quit\r")
    assert again.status() == 0


def test_ctrl_c_stops_the_answer_and_not_the_program(tmp_path):
    terminal = Terminal("chat", TALKER, "--max-tokens", "100000", "--logit-bias", "1:-inf", "--temperature", "1",
                        XDG_STATE_HOME=str(tmp_path / "state"))
    terminal.wait_for("> ")
    terminal.type("hello\r")
    terminal.wait_for("hello")
    time.sleep(3)
    terminal.type("\x03")
    terminal.wait_for("[stopped]")
    terminal.wait_for("> ")
    terminal.type("/tokens\r")
    terminal.wait_for("of 131072 tokens of context")
    terminal.wait_for("> ")
    terminal.type("/quit\r")
    assert terminal.status() == 0
    assert (tmp_path / "state" / "carat" / "history").exists()


def test_ctrl_c_stops_the_reading_of_a_prompt(tmp_path):
    talk = [{"role": "user", "content": "many words " * 8000}, {"role": "assistant", "content": "indeed"}]
    (tmp_path / "talk.json").write_text(json.dumps(talk))
    terminal = Terminal("chat", TALKER, "--load", tmp_path / "talk.json", "--chunk", "1", "--threads", "1")
    terminal.wait_for("> ")
    terminal.type("go on\r")
    terminal.wait_for("reading [")
    start = time.monotonic()
    terminal.type("\x03")
    terminal.wait_for("[stopped]")
    assert time.monotonic() - start < 10
    terminal.wait_for("> ")
    terminal.type(f"/save {tmp_path}/after.json\r")  # the message without an answer is taken back
    terminal.wait_for("2 messages are in")
    assert json.loads((tmp_path / "after.json").read_text()) == talk
    terminal.wait_for("> ")
    terminal.type("/quit\r")
    assert terminal.status() == 0


def test_what_a_model_says_cannot_command_the_terminal():
    escape = json.loads(output("tokenize", TALKER, "\x1b", "--json"))["ids"]
    assert len(escape) == 1
    for arguments in (["generate", TALKER, "hi", "--max-tokens", "3", f"--logit-bias={escape[0]}:inf"],
                      ["generate", TALKER, "hi", "--raw", "--max-tokens", "3", f"--logit-bias={escape[0]}:inf"]):
        terminal = Terminal(*arguments)
        assert terminal.status() == 0
        assert "^[^[^[" in terminal.text
        assert output(*arguments).startswith("\x1b\x1b\x1b")  # a pipe gets what was said


# --- the real model ---------------------------------------------------------------------------------------------------


@needs_model
def test_the_real_model_continues_text():
    flags = ["The quick brown fox jumps over the", "--raw", "--greedy", "--max-tokens", "4"]
    text = generate(REAL, *flags)["text"]
    assert text.startswith(" lazy dog")
    assert generate(REAL, *flags, "--stop", "dog")["text"] == " lazy "
    flags = ["Once upon a time", "--raw", "--temperature", "0.8", "--max-tokens", "12", "--seed", "7"]
    assert generate(REAL, *flags)["tokens"] == generate(REAL, *flags, "--threads", "1", "--chunk", "2")["tokens"]


@needs_model
def test_the_real_model_chats():
    run = chat("Say hello.", "And again.", "/tokens", model=REAL, flags=["--greedy"])
    assert run.returncode == 0 and b"of 32768 tokens" in run.stdout


@needs_model
def test_the_real_model_is_inspected_at_once():
    start = time.monotonic()
    report = json.loads(output("inspect", REAL, "--json"))
    assert time.monotonic() - start < 5
    assert report["architecture"]["layers"] == 18 and report["tokenizer"]["size"] == 262144
    assert {"id": 106, "piece": "<end_of_turn>"} in report["stop_tokens"]
