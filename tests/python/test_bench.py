"""The instruments in bench/: what they compute, and that the files they make run. No timing is tested.

The program is $CARAT_BINARY, else build/release/carat.
"""

import json
import os
import pathlib
import struct
import subprocess
import sys
import xml.etree.ElementTree as tree

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BENCH = ROOT / "bench"
CARAT = pathlib.Path(os.environ.get("CARAT_BINARY", ROOT / "build" / "release" / "carat"))
sys.path.insert(0, str(BENCH))

import plot  # noqa: E402
import scaling  # noqa: E402
import side_by_side as sides  # noqa: E402
import synthetic_gguf as synthetic  # noqa: E402
import vs_llama_cpp  # noqa: E402

needs_carat = pytest.mark.skipif(not CARAT.exists(), reason=f"{CARAT} is not built")


def script(name, *arguments):
    return subprocess.run([sys.executable, BENCH / name, *map(str, arguments)], capture_output=True, text=True, timeout=120, check=False)


def written(name, *arguments):
    done = script(name, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def carat(*arguments):
    done = subprocess.run([CARAT, *map(str, arguments)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


# --- Synthetic checkpoints --------------------------------------------------------------------------------------------


@needs_carat
@pytest.mark.parametrize("mlx", [False, True], ids=["gguf", "mlx"])
@pytest.mark.parametrize("shape", ["tiny", "tiny-moe"])
@pytest.mark.parametrize("kind", ["q4_0", "q4_k_m", "q8_0", "bf16"])
def test_carat_runs_what_the_writer_writes(tmp_path, shape, kind, mlx):
    if mlx and kind == "q4_k_m":
        assert script("synthetic_gguf.py", shape, kind, tmp_path / "m", "--mlx").returncode == 2
        return
    path = tmp_path / ("model" if mlx else "model.gguf")
    said = json.loads(written("synthetic_gguf.py", shape, kind, path, *(["--mlx"] if mlx else [])))
    report = json.loads(carat("inspect", path, "--json"))
    assert report["architecture"]["layers"] == said["layers"] == synthetic.SHAPES[shape].layers
    carat("logits", path, "--ids", "2,300,301", "--out", tmp_path / "logits.npy")
    logits = np.load(tmp_path / "logits.npy")
    assert np.isfinite(logits).all() and logits.std() > 1e-3  # noise, but neither flat nor broken
    carat("generate", path, "--raw", "hello", "--max-tokens", "3", "--greedy")


@needs_carat
def test_layers_that_share_keep_unread_keys_only_when_asked(tmp_path):
    plain, full = tmp_path / "plain.gguf", tmp_path / "full.gguf"
    written("synthetic_gguf.py", "tiny", "q4_0", plain)
    written("synthetic_gguf.py", "tiny", "q4_0", full, "--unread-kv")
    reports = [json.loads(carat("inspect", path, "--json")) for path in (plain, full)]
    assert full.stat().st_size > plain.stat().st_size
    assert reports[0]["bytes_per_token"] == reports[1]["bytes_per_token"]


@pytest.mark.parametrize("name", ["e2b", "e4b", "12b", "26b-a4b", "31b"])
def test_shapes_have_the_published_number_of_parameters(name):
    billions = {"e2b": 4.63, "e4b": 7.46, "12b": 11.91, "26b-a4b": 25.23, "31b": 30.70}[name]
    shape = synthetic.SHAPES[name]
    for stored in ("gguf", "mlx"):
        count = sum(int(np.prod(t.shape)) for t in synthetic.tensors(shape) if getattr(t, stored))
        assert round(count / 1e9, 2) == billions


@pytest.mark.parametrize("name", synthetic.SHAPES)
def test_every_cut_ends_its_owners_with_a_full_layer_after_a_sliding_one(name):
    whole = synthetic.SHAPES[name]
    for layers in range(whole.period, whole.layers + 1):
        cut = whole.cut(layers)
        assert cut.layers == layers and cut.owners >= cut.period
        if whole.shared:
            assert cut.is_full(cut.owners - 1) and not cut.is_full(cut.owners - 2)
    assert whole.cut(whole.layers) == whole
    with pytest.raises(ValueError, match="full-attention"):
        whole.cut(whole.period - 1)


def test_the_vocabulary_is_whole_and_every_merge_makes_a_piece():
    for size in (512, 2048, 262144):
        pieces, merges = synthetic.vocabulary(size)
        assert len(pieces) == len(set(pieces)) == size
        assert {left + right for left, right in merges} <= set(pieces)
    assert sum(kind == synthetic.BYTE_TYPE for kind in synthetic.piece_types(pieces)) == 256


def test_random_bytes_go_round_the_pool(tmp_path):
    blocks = synthetic.pool("Q4_0")
    size = blocks.size + 3 * blocks.shape[1]
    with open(tmp_path / "out", "wb") as file:
        synthetic.write_random(file, "Q4_0", size, 0.5)
    data = np.frombuffer((tmp_path / "out").read_bytes(), np.uint8)
    assert len(data) == size
    start = len(blocks) // 2 * blocks.shape[1]
    assert (data[:100] == blocks.reshape(-1)[start:start + 100]).all()
    assert (data[blocks.size - start:][:100] == blocks.reshape(-1)[:100]).all()


def test_gguf_offsets_are_aligned_and_the_file_ends_after_the_last_tensor(tmp_path):
    path = tmp_path / "m.gguf"
    written("synthetic_gguf.py", "tiny", "q4_k_m", path)
    data = path.read_bytes()
    assert struct.unpack_from("<4sI", data) == (b"GGUF", 3)
    assert len(data) % synthetic.ALIGNMENT == 0


@needs_carat
def test_bench_counts_the_keys_and_experts_that_a_step_reads(tmp_path):
    def step_bytes(shape, *flags):
        path = tmp_path / f"{shape}.gguf"
        if not path.exists():
            written("synthetic_gguf.py", shape, "q4_0", path)
        report = json.loads(carat("bench", path, "--prompt", "0", "--generate", "2", "--rounds", "1", "--threads", "1", "--json", *flags))
        return report["decode_bytes_per_token"]

    shape = synthetic.SHAPES["tiny"]
    row = sum(2 * 2 * shape.kv_heads_of(i) * shape.head_dim_of(i) for i in range(shape.layers))  # f16 keys and values of a position
    short = step_bytes("tiny")
    assert step_bytes("tiny", "--depth", "32") - short == 32 * row
    beyond = sum(2 * 2 * shape.kv_heads_of(i) * shape.head_dim_of(i) for i in range(shape.layers) if shape.is_full(i))
    assert step_bytes("tiny", "--depth", "1000") - step_bytes("tiny", "--depth", "500") == 500 * beyond  # the windows are full
    # A second sequence reads its own keys and the same weights; of experts, some that the first did not choose.
    assert step_bytes("tiny", "--batch", "2") - short == 2 * row
    moe = synthetic.SHAPES["tiny-moe"]
    expert = 3 * moe.expert_mlp * moe.hidden // 32 * 18 * moe.layers
    grown = step_bytes("tiny-moe", "--batch", "2") - step_bytes("tiny-moe")
    assert moe.experts_used * expert / 2 < grown < moe.experts_used * expert + 10000


# --- Comparisons ------------------------------------------------------------------------------------------------------


def llama_bench(*entries):
    return json.dumps([{"n_prompt": prompt, "n_gen": generate, "avg_ts": rate} for prompt, generate, rate in entries])


def test_llama_bench_is_read_by_what_its_entries_measure():
    assert vs_llama_cpp.parse_llama_bench(llama_bench((0, 16, 5.0), (512, 0, 90.0)), ["x"]) == {"prefill": 90.0, "decode": 5.0}
    for text in (llama_bench((512, 0, 90.0)), "no JSON", llama_bench((512, 0, None), (0, 16, 1.0))):
        with pytest.raises(sides.Failure):
            vs_llama_cpp.parse_llama_bench(text, ["llama-bench"])


def engine(name, rates, calls):
    values = iter(rates)

    def bench(_):
        calls.append(name)
        return {"prefill": next(values), "decode": 2.0, "peak memory": 1.0}, {}
    return sides.Engine(name, bench)


class Arguments:
    rounds = 3
    evict = False
    model = "m"


def test_rounds_alternate_and_medians_make_the_ratio():
    calls = []
    samples, _ = sides.measure([engine("carat", [10.0, 30.0, 20.0], calls), engine("peer", [5.0, 4.0, 6.0], calls)], Arguments)
    assert calls == ["carat", "peer", "peer", "carat", "carat", "peer"]
    row = sides.summarise(samples)["prefill"]
    assert row["carat"]["median"] == 20.0 and row["peer"]["median"] == 5.0 and row["ratio"] == 4.0
    assert row["carat"]["spread"] == 1.0
    assert "ratio" not in sides.summarise(samples)["first token"]


def test_a_peer_that_refuses_the_model_is_no_failure(tmp_path):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'unknown architecture' >&2\nexit 3\n")
    python.chmod(0o755)
    arguments = Arguments()
    arguments.prompt, arguments.generate, arguments.threads = 8, 4, 1
    with pytest.raises(sides.Unavailable, match="unknown architecture"):
        sides.scripted_peer("peer", python, "x.py", "m").bench(arguments)
    python.write_text("#!/bin/sh\nexit 4\n")
    with pytest.raises(sides.Failure) as failure:
        sides.scripted_peer("peer", python, "x.py", "m").bench(arguments)
    assert not isinstance(failure.value, sides.Unavailable)
    python.write_text("#!/bin/sh\necho '{\"prefill\": 3.5, \"decode\": 1}'\n")
    values, _ = sides.scripted_peer("peer", python, "x.py", "m").bench(arguments)
    assert (values["prefill"], values["decode"]) == (3.5, 1) and values["peak memory"] > 0


def test_a_peer_that_cannot_be_installed_is_no_failure(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sides.sys, "executable", "/bin/false")
    with pytest.raises(SystemExit) as left:
        sides.prepare_venv(tmp_path / "venv", "a-package")
    assert left.value.code == sides.UNAVAILABLE
    assert "a-package cannot be installed" in capsys.readouterr().err


# --- Scaling and drawings ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("most, counts", [(1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (8, [1, 2, 4, 8]), (12, [1, 2, 4, 8, 12])])
def test_thread_counts_double_up_to_the_most(most, counts):
    assert scaling.thread_counts(most) == counts


@needs_carat
def test_scaling_measures_and_is_drawn(tmp_path):
    model = tmp_path / "m.gguf"
    written("synthetic_gguf.py", "tiny", "q4_0", model)
    written("scaling.py", "--carat", CARAT, "--model", model, "--json", tmp_path / "s.json", "--quick", "--rounds", 1, "--generate", 2,
            "--threads", 1)
    result = json.loads((tmp_path / "s.json").read_text())
    assert [sweep["name"] for sweep in result["sweeps"]] == ["context", "batch", "prompt", "threads", "threads_prefill"]
    assert all(point["tokens_per_second"] > 0 for sweep in result["sweeps"] for point in sweep["points"])
    assert len(drawings(tmp_path, tmp_path / "s.json")) == 5


def drawings(tmp_path, *files):
    """name -> text of each drawing, which must be well-formed and hold nothing but numbers that are finite."""
    out = tmp_path / "plots"
    names = written("plot.py", *files, "--out", out).split()
    texts = {pathlib.Path(name).stem: pathlib.Path(name).read_text() for name in names}
    for name, text in texts.items():
        root = tree.fromstring(text)
        assert root.tag == "{http://www.w3.org/2000/svg}svg", name
        assert "prefers-color-scheme: dark" in text and "nan" not in text.lower()
        width = float(root.get("width"))
        for bar in root.iter("{http://www.w3.org/2000/svg}rect"):
            if bar.get("x"):
                assert 0 <= float(bar.get("x")) <= float(bar.get("x")) + float(bar.get("width")) <= width
    return texts


def sample(tmp_path, name, content):
    path = tmp_path / f"{name}.json"
    path.write_text(json.dumps(content))
    return path


def test_all_kinds_of_results_are_drawn(tmp_path):
    machine = {"threads": 2, "bandwidth": [{"memory": "mapped_file", "one_thread_bytes_per_second": 3e10, "all_threads_bytes_per_second": 4e10}],
               "peaks": [{"isa": "avx512", "kind": "int8", "one_thread_macs_per_second": 5e11},
                         {"isa": "avx512", "kind": "fma", "one_thread_macs_per_second": 1e11}]}
    step = {"step": "decode", "tokens_per_second": 11.0, "limit_tokens_per_second": 22.0, "share": 0.5, "bound": "memory"}
    roofline = sample(tmp_path, "roofline", {"kind": "roofline", "machine": machine, "model": "<m> & n", "isa": "avx512", "steps": [step]})
    kernels = sample(tmp_path, "kernels", {"benchmarks": [
        {"name": "dot/avx512/Q4_0/memory", "bytes_per_second": 2e10, "macs": 4e10}, {"name": "dot/avx512/Q4_0/L2", "macs": 5e10},
        {"name": "gemm/avx512/Q4_0", "macs": 2e11}, {"name": "attention_decode/avx512/f16/256", "bytes_per_second": 1e10, "flops": 9e10},
        {"name": "attention_prefill/avx512/f16/256", "flops": 2e11}, {"name": "rms_norm/avx512/1536", "bytes_per_second": 7e10}]})
    row = {"carat": {"median": 20.0}, "peer": {"median": 5.0}, "ratio": 4.0}
    vs = sample(tmp_path, "vs", {"kind": "side_by_side", "peer": "peer", "model": "m", "threads": 2,
                                 "summary": {"decode": row, "peak memory": row, "first token": {"carat": {"median": 1.0}}}})
    texts = drawings(tmp_path, roofline, kernels, vs)
    assert set(texts) == {"roofline", "peers", "kernels_dot", "kernels_dot_cache", "kernels_gemm", "kernels_attention_decode",
                          "kernels_attention_prefill", "kernels_rows"}
    assert "&lt;m&gt; &amp; n" in texts["roofline"] and "50%" in texts["roofline"]
    assert "4.00 ×" in texts["peers"] and "0.25 ×" in texts["peers"]  # memory four times the peer's is a quarter of its thrift
    assert "avx512 integer peak" in texts["kernels_gemm"]


@pytest.mark.parametrize("content", ["{}", "[]", "nonsense", '{"kind": "other"}'])
def test_plot_refuses_what_it_does_not_know(tmp_path, content):
    path = tmp_path / "x.json"
    path.write_text(content)
    done = script("plot.py", path, "--out", tmp_path)
    assert done.returncode == 1 and str(path) in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("most", [0, 0.3, 1, 9, 99, 100, 101, 5e11])
def test_ticks_are_few_and_reach_the_top(most):
    marks = plot.ticks(most)
    assert marks[0] == 0 and marks[-1] >= most and 2 <= len(marks) <= 12
