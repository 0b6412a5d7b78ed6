"""`carat get` against a small hub on the loopback: downloads, resumption, checksums, refusals, redirects."""

import hashlib
import http.server
import json
import os
import pathlib
import subprocess
import threading
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
CARAT = pathlib.Path(os.environ.get("CARAT_BINARY", ROOT / "build" / "release" / "carat"))
COMMIT = "0123456789abcdef0123456789abcdef01234567"
TOKEN = "hf_secret"

pytestmark = pytest.mark.skipif(not CARAT.exists(), reason=f"{CARAT} is not built")


def payload(name, size):
    """Bytes that look like nothing else: a wrong splice changes the checksum."""
    block = hashlib.sha256(name.encode()).digest()
    return (block * (size // len(block) + 1))[:size]


class FakeHub:
    """Serves repositories from dictionaries; counts, cuts, corrupts and redirects on demand."""

    def __init__(self):
        self.repositories = {}
        self.requests = []
        self.cut = {}  # file name -> how many of the next answers end half-way
        self.stall = set()  # file names whose answer stops half-way without ending
        self.stalled = threading.Event()
        self.corrupt = set()
        self.redirect_to = None  # another hub's address, for files
        self.need_token = False
        self.tags = {}  # file name -> ETag of its answer
        self.hide_blob_ids = False
        self.ignore_range = False
        self.fail_next = []  # statuses to answer with before anything else
        hub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_GET(self):
                hub.answer(self)

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.address = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.stall.clear()
        self.server.shutdown()
        self.server.server_close()

    def add(self, repository, files, large=(".safetensors", ".gguf")):
        self.repositories[repository] = (files, large)

    def listing(self, repository):
        files, large = self.repositories[repository]
        siblings = []
        for name, data in files.items():
            item = {"rfilename": name, "size": len(data)}
            if not self.hide_blob_ids:
                item["blobId"] = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
            if name.endswith(large):
                item["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
            siblings.append(item)
        return {"id": repository, "sha": COMMIT, "siblings": siblings}

    @staticmethod
    def reply(handler, status, body=b"", headers=()):
        handler.send_response(status)
        for name, value in headers:
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    def answer(self, handler):
        path = handler.path.split("?")[0]
        self.requests.append((path, dict(handler.headers)))
        if self.fail_next:
            return self.reply(handler, self.fail_next.pop(0))
        if self.need_token and handler.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self.reply(handler, 403 if handler.headers.get("Authorization") else 401)
        if path.startswith("/api/models/"):
            repository = "/".join(path.split("/")[3:5])
            if repository not in self.repositories:
                return self.reply(handler, 404, headers=[("X-Error-Message", "Repository not found")])
            return self.reply(handler, 200, json.dumps(self.listing(repository)).encode())
        parts = path.split("/")
        repository, name = "/".join(parts[1:3]), "/".join(parts[5:])
        files, _ = self.repositories.get(repository, ({}, ()))
        if name not in files or parts[4] != COMMIT:
            return self.reply(handler, 404)
        if self.redirect_to:
            return self.reply(handler, 302, headers=[("Location", self.redirect_to + path + "?signature=1")])
        return self.send_file(handler, name, files[name])

    def send_file(self, handler, name, data):
        if name in self.corrupt:
            data = bytes([data[0] ^ 1]) + data[1:]
        start = 0
        wanted = handler.headers.get("Range")
        if wanted and not self.ignore_range:
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
            if start >= len(data):
                return self.reply(handler, 416)
            handler.send_response(206)
            handler.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        else:
            handler.send_response(200)
        handler.send_header("Content-Length", str(len(data) - start))
        if name in self.tags:
            handler.send_header("ETag", f'"{self.tags[name]}"')
        handler.end_headers()
        rest = data[start:]
        if name in self.stall:
            handler.wfile.write(rest[: len(rest) // 2])
            handler.wfile.flush()
            self.stalled.set()
            while name in self.stall:
                time.sleep(0.01)
            return None
        if self.cut.get(name, 0) > 0:
            self.cut[name] -= 1
            handler.wfile.write(rest[: len(rest) // 2])
            handler.wfile.flush()
            handler.close_connection = True
            return None
        return handler.wfile.write(rest)

    def ranges(self, name):
        return [headers.get("Range") for path, headers in self.requests if path.endswith("/" + name)]


SAFETENSORS = {
    "config.json": b'{"model_type": "gemma3_text"}',
    "tokenizer.json": payload("tokenizer", 70_001),
    "generation_config.json": b"{}",
    "README.md": b"not needed",
    "model-00001-of-00002.safetensors": payload("one", 2_000_003),
    "model-00002-of-00002.safetensors": payload("two", 1_000_000),
    "model.safetensors.index.json": b'{"weight_map": {}}',
    "original/consolidated.safetensors": payload("other", 1000),
}
NEEDED = set(SAFETENSORS) - {"README.md", "original/consolidated.safetensors"}


@pytest.fixture
def hub():
    fake = FakeHub()
    fake.add("maker/tiny", SAFETENSORS)
    yield fake
    fake.close()


@pytest.fixture
def get(hub, tmp_path):
    def start(name, *arguments, **extra):
        environment = {k: v for k, v in os.environ.items() if not k.startswith("HF_") and "proxy" not in k.lower()}
        environment.update(HF_ENDPOINT=hub.address, CARAT_HOME=str(tmp_path / "carat"), HOME=str(tmp_path))
        environment.pop("XDG_CACHE_HOME", None)
        environment.update(extra)
        return subprocess.Popen(
            [CARAT, "get", name, *arguments], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def run(name, *arguments, **extra):
        process = start(name, *arguments, **extra)
        stdout, stderr = process.communicate(timeout=120)
        return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)

    run.start = start
    run.models = tmp_path / "carat" / "models"
    return run


def files_below(directory):
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and not path.name.startswith(".")
    }


def test_full_download_takes_what_a_model_needs(hub, get):
    done = get("maker/tiny")
    assert done.returncode == 0, done.stderr
    entry = get.models / "maker" / "tiny"
    assert files_below(entry) == {name: SAFETENSORS[name] for name in NEEDED}
    assert str(entry) in done.stdout
    assert not (get.models / ".partial" / "maker+tiny").exists()


def test_second_get_fetches_only_the_listing(hub, get):
    assert get("maker/tiny").returncode == 0
    hub.requests.clear()
    assert get("maker/tiny").returncode == 0
    assert [path for path, _ in hub.requests] == ["/api/models/maker/tiny/revision/main"]


def test_changed_file_is_fetched_again_and_dropped_file_removed(hub, get):
    assert get("maker/tiny").returncode == 0
    changed = dict(SAFETENSORS, **{"tokenizer.json": payload("new tokenizer", 70_001)})
    del changed["generation_config.json"]
    hub.add("maker/tiny", changed)
    hub.requests.clear()
    assert get("maker/tiny").returncode == 0
    assert len(hub.requests) == 2
    entry = files_below(get.models / "maker" / "tiny")
    assert entry["tokenizer.json"] == changed["tokenizer.json"]
    assert "generation_config.json" not in entry


def test_revision_is_an_entry_of_its_own(hub, get):
    done = get("maker/tiny@refs/pr/7")
    assert done.returncode == 0, done.stderr
    assert hub.requests[0][0] == "/api/models/maker/tiny/revision/refs%2Fpr%2F7"
    assert (get.models / "maker" / "tiny@refs--pr--7" / "config.json").exists()


def test_broken_transfer_goes_on_where_it_stopped(hub, get):
    name = "model-00001-of-00002.safetensors"
    hub.cut[name] = 2
    done = get("maker/tiny")
    assert done.returncode == 0, done.stderr
    assert files_below(get.models / "maker" / "tiny")[name] == SAFETENSORS[name]
    ranges = hub.ranges(name)
    assert ranges[0] is None and len(ranges) == 3
    assert ranges[1] == f"bytes={len(SAFETENSORS[name]) // 2}-"


def test_killed_process_is_resumed_by_the_next(hub, get):
    name = "model-00001-of-00002.safetensors"
    hub.stall.add(name)
    process = get.start("maker/tiny")
    assert hub.stalled.wait(60)
    digest = hashlib.sha256(SAFETENSORS[name]).hexdigest()
    incomplete = get.models / ".partial" / "maker+tiny" / f"{name}.{digest[:16]}.incomplete"
    while not incomplete.exists() or incomplete.stat().st_size < len(SAFETENSORS[name]) // 2:
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.communicate()
    assert not (get.models / "maker" / "tiny").exists()
    hub.stall.clear()
    hub.requests.clear()
    done = get("maker/tiny")
    assert done.returncode == 0, done.stderr
    assert hub.ranges(name) == [f"bytes={len(SAFETENSORS[name]) // 2}-"]
    assert hub.ranges("tokenizer.json") == []  # was finished before
    assert files_below(get.models / "maker" / "tiny") == {name: SAFETENSORS[name] for name in NEEDED}


def test_damaged_remains_are_fetched_from_the_start(hub, get):
    name = "model-00001-of-00002.safetensors"
    partial = get.models / ".partial" / "maker+tiny"
    digest = hashlib.sha256(SAFETENSORS[name]).hexdigest()
    partial.mkdir(parents=True)
    (partial / f"{name}.{digest[:16]}.incomplete").write_bytes(b"x" * 1000)
    done = get("maker/tiny")
    assert done.returncode == 0, done.stderr
    assert hub.ranges(name) == ["bytes=1000-", None]
    assert files_below(get.models / "maker" / "tiny")[name] == SAFETENSORS[name]


def test_server_without_ranges_starts_over(hub, get):
    name = "model-00001-of-00002.safetensors"
    hub.ignore_range = True
    hub.cut[name] = 1
    done = get("maker/tiny")
    assert done.returncode == 0, done.stderr
    assert files_below(get.models / "maker" / "tiny")[name] == SAFETENSORS[name]


@pytest.mark.parametrize("name", ["model-00002-of-00002.safetensors", "tokenizer.json"])
def test_wrong_checksum_is_refused(hub, get, name):
    hub.corrupt.add(name)
    done = get("maker/tiny")
    assert done.returncode != 0
    assert "checksum" in done.stderr and name in done.stderr
    assert not (get.models / "maker" / "tiny").exists()
    hub.corrupt.clear()
    assert get("maker/tiny").returncode == 0


def test_checksum_of_the_answer_serves_where_the_listing_has_none(hub, get):
    hub.hide_blob_ids = True
    missing = get("maker/tiny")
    assert missing.returncode != 0 and "no checksum" in missing.stderr
    hub.tags = {n: hashlib.sha1(b"blob %d\0" % len(d) + d).hexdigest() for n, d in SAFETENSORS.items()}
    for name in SAFETENSORS:
        if name.endswith(".safetensors"):
            del hub.tags[name]
    hub.tags["tokenizer.json"] = 40 * "0"
    wrong = get("maker/tiny")
    assert wrong.returncode != 0 and "tokenizer.json is damaged" in wrong.stderr
    hub.tags["tokenizer.json"] = hashlib.sha1(b"blob 70001\0" + SAFETENSORS["tokenizer.json"]).hexdigest()
    assert get("maker/tiny").returncode == 0


def test_changed_while_downloading(hub, get):
    hub.tags["model-00001-of-00002.safetensors"] = 64 * "0"
    done = get("maker/tiny")
    assert done.returncode != 0 and "changed meanwhile" in done.stderr


def test_server_errors_are_tried_again(hub, get):
    hub.fail_next = [503, 429]
    done = get("maker/tiny")
    assert done.returncode == 0, done.stderr
    assert "trying again" in done.stderr


def test_unknown_repository(hub, get):
    done = get("maker/absent")
    assert done.returncode != 0
    assert "404" in done.stderr and "maker/absent" in done.stderr and "Repository not found" in done.stderr
    assert len(hub.requests) == 1


def test_gated_repository(hub, get):
    hub.need_token = True
    anonymous = get("maker/tiny")
    assert anonymous.returncode != 0 and "401" in anonymous.stderr and "HF_TOKEN" in anonymous.stderr
    stranger = get("maker/tiny", HF_TOKEN="hf_other")
    assert stranger.returncode != 0 and "403" in stranger.stderr and "terms" in stranger.stderr
    assert "hf_other" not in stranger.stderr
    assert get("maker/tiny", HF_TOKEN=TOKEN).returncode == 0


def test_token_file(hub, get, tmp_path):
    hub.need_token = True
    file = tmp_path / ".cache" / "huggingface" / "token"
    file.parent.mkdir(parents=True)
    file.write_text(TOKEN + "\n")
    done = get("maker/tiny")
    assert done.returncode == 0, done.stderr


def test_token_stays_with_its_host(hub, get):
    other = FakeHub()
    try:
        other.add("maker/tiny", SAFETENSORS)
        other.tags = {name: 64 * "e" for name in NEEDED}  # a content server's own idea of a tag
        hub.redirect_to = other.address
        hub.need_token = True
        done = get("maker/tiny", HF_TOKEN=TOKEN)
        assert done.returncode == 0, done.stderr
        assert len(other.requests) == len(NEEDED)
        assert all("Authorization" not in headers for _, headers in other.requests)
        assert all(headers.get("Authorization") == f"Bearer {TOKEN}" for _, headers in hub.requests)
    finally:
        other.close()


def test_endless_redirect_ends(hub, get):
    hub.redirect_to = hub.address
    done = get("maker/tiny")
    assert done.returncode != 0 and "redirects more than" in done.stderr


def test_redirect_to_a_file_is_not_followed(hub, get):
    hub.redirect_to = "file://"
    done = get("maker/tiny")
    assert done.returncode != 0 and "less safe" in done.stderr


GGUF = {
    "small-Q4_K_M.gguf": payload("q4", 10_000),
    "small-Q8_0.gguf": payload("q8", 20_000),
    "mmproj-F16.gguf": payload("vision", 500),
    "big/big-BF16-00001-of-00002.gguf": payload("big1", 3000),
    "big/big-BF16-00002-of-00002.gguf": payload("big2", 2000),
    "config.json": b"{}",
}


def test_several_gguf_files_ask_for_a_choice(hub, get):
    hub.add("maker/many", GGUF)
    done = get("maker/many")
    assert done.returncode != 0
    for name in ("--file", "small-Q4_K_M.gguf", "small-Q8_0.gguf", "big/big-BF16-00001-of-00002.gguf"):
        assert name in done.stderr
    assert "mmproj" not in done.stderr and "00002-of-00002" not in done.stderr


@pytest.mark.parametrize(
    "choice, expected",
    [
        ("small-Q8_0.gguf", {"small-Q8_0.gguf"}),
        ("q4_k", {"small-Q4_K_M.gguf"}),
        ("BF16", {"big/big-BF16-00001-of-00002.gguf", "big/big-BF16-00002-of-00002.gguf"}),
        ("big-BF16-00002-of-00002.gguf", {"big/big-BF16-00001-of-00002.gguf", "big/big-BF16-00002-of-00002.gguf"}),
    ],
)
def test_chosen_gguf(hub, get, choice, expected):
    hub.add("maker/many", GGUF)
    done = get("maker/many", "--file", choice)
    assert done.returncode == 0, done.stderr
    assert files_below(get.models / "maker" / "many") == {name: GGUF[name] for name in expected}
    assert done.stdout.strip().endswith(sorted(expected)[0])


def test_a_second_gguf_joins_the_first(hub, get):
    hub.add("maker/many", GGUF)
    assert get("maker/many", "--file", "Q8_0").returncode == 0
    assert get("maker/many", "--file", "Q4_K_M").returncode == 0
    assert set(files_below(get.models / "maker" / "many")) == {"small-Q8_0.gguf", "small-Q4_K_M.gguf"}


def test_a_path_that_leads_out_is_refused(hub, get):
    hub.add("maker/evil", dict(SAFETENSORS, **{"../../evil.safetensors": b"x"}))
    done = get("maker/evil")
    assert done.returncode != 0 and "unsafe path" in done.stderr


def test_no_model_inside(hub, get):
    hub.add("maker/text", {"README.md": b"hello"})
    done = get("maker/text")
    assert done.returncode != 0 and "not a model" in done.stderr


def test_offline_switch(hub, get):
    done = get("maker/tiny", HF_HUB_OFFLINE="1")
    assert done.returncode != 0 and "HF_HUB_OFFLINE" in done.stderr
    assert not hub.requests


def test_two_processes_take_turns(hub, get):
    results = []
    threads = [threading.Thread(target=lambda: results.append(get("maker/tiny"))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [done.returncode for done in results] == [0, 0], [done.stderr for done in results]
    assert len(hub.ranges("model-00001-of-00002.safetensors")) == 1
