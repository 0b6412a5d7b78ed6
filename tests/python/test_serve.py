"""The operations of a running `carat serve`, below the clients' libraries: what HTTP, signals, logs and many users at once see.

The program is $CARAT_BINARY, else build/release/carat; the model is a tiny one with random weights. Adapters are made here.
"""

import concurrent.futures
import http.client
import json
import re
import shutil
import signal
import socket
import ssl
import struct
import subprocess
import threading
import time
import urllib.parse

import numpy as np
import pytest

from serving import CARAT, TINY, Server, can_serve

pytestmark = pytest.mark.skipif(not can_serve(), reason=f"{CARAT} is not built, or has no verb serve")

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
MESSAGES = "/v1/messages"
USER = [{"role": "user", "content": "Say something."}]
MODEL = "talker.q8_0"
LONG = {"prompt": "Once upon a time", "max_tokens": 120000, "ignore_eos": True, "temperature": 1, "seed": 1}  # for half a minute and more
PATIENCE = 60  # seconds for what takes milliseconds on a machine with nothing else to do


def connect(url, timeout=300, context=None):
    parts = urllib.parse.urlsplit(url)
    if parts.scheme == "https":
        return http.client.HTTPSConnection(parts.hostname, parts.port, timeout=timeout, context=context)
    return http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout)


def ask(url, method, path, body=None, headers=None, context=None):
    """Status, headers (a mapping without case) and body of one request."""
    connection = connect(url, context=context)
    try:
        text = body if body is None or isinstance(body, (bytes, str)) else json.dumps(body)
        connection.request(method, path, text, headers or {})
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


def get(url, path, **options):
    status, _, body = ask(url, "GET", path, **options)
    assert status == 200, body
    return json.loads(body)


def post(url, path, body, expected=200, **options):
    status, _, answer = ask(url, "POST", path, body, **options)
    assert status == expected, answer
    return json.loads(answer)


class Stream:
    """A request whose answer is read line by line."""

    def __init__(self, url, body, path=COMPLETIONS, **options):
        self.connection = connect(url)
        self.connection.request("POST", path, json.dumps({**body, "stream": True, **options}))
        self.answer = None

    def open(self):
        if self.answer is None:
            self.answer = self.connection.getresponse()
            assert self.answer.status == 200, self.answer.read()
            assert self.answer.headers["Content-Type"].startswith("text/event-stream")
        return self

    def line(self):
        return self.open().answer.readline().decode().rstrip("\n")

    def event(self):
        """The data of the next event; None at the end."""
        while True:
            line = self.open().answer.readline().decode()
            if not line:
                return None
            if line.startswith("data: "):
                return line[6:].rstrip("\n")

    def rest(self):
        events = []
        while (event := self.event()) is not None:
            events.append(event)
        return events

    def leave(self):
        # The answer holds the socket too.
        if self.answer is not None:
            self.answer.close()
        self.connection.close()


def model_stats(url):
    return get(url, "/stats")["models"][0]


def eventually(condition, seconds=PATIENCE):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.02)


def until_idle(url):
    eventually(lambda: model_stats(url)["running"] == 0 and model_stats(url)["waiting"] == 0)


def serving(*arguments, **options):
    return Server(*arguments, model=options.pop("model", TINY), **options)


@pytest.fixture
def start():
    """Starts servers that end with the test."""
    servers = []

    def starter(*arguments, **options):
        servers.append(serving(*arguments, **options))
        return servers[-1]
    yield starter
    for server in servers:
        if server.process.poll() is None:
            server.process.kill()
        server.stop()


@pytest.fixture(scope="module")
def url():
    server = serving()
    yield server.url
    assert server.stop() == 0


def error_of(body):
    """The error of OpenAI's shape, checked."""
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["message"]
    return error


# --- what is there ----------------------------------------------------------------------------------------------------


def test_health(url):
    status, headers, body = ask(url, "GET", "/health")
    assert (status, body) == (200, b'{"status": "ok"}') and headers["Content-Type"] == "application/json"
    status, headers, body = ask(url, "HEAD", "/health")
    assert (status, body) == (200, b"") and headers["Content-Length"] == "16"
    assert get(url, "/ready") == {"status": "ok"}


def test_the_index(url):
    index = get(url, "/v1")
    assert index["name"] == "carat" and index["model"] == MODEL and re.fullmatch(r"\d+\.\d+\.\d+", index["version"])
    for endpoint in (f"POST {CHAT}", f"POST {MESSAGES}", "POST /v1/responses", "GET /health", "GET /metrics"):
        assert endpoint in index["endpoints"]


def test_the_tokenizer_as_vllm_shows_it(url):
    assert get(url, "/tokenizer_info")["bos_token"] == "<bos>" and get(url, "/tokenizer_info")["eos_token"] == "<eos>"
    tokens = post(url, "/tokenize", {"prompt": "<bos>Hello there", "add_special_tokens": False})["tokens"]
    assert tokens[0] == 2 and tokens == post(url, "/tokenize", {"prompt": "Hello there", "add_special_tokens": True})["tokens"]
    assert post(url, "/detokenize", {"tokens": tokens}) == {"content": "<bos>Hello there", "prompt": "<bos>Hello there"}


def test_the_page_is_open_and_brings_its_policy(url):
    status, headers, body = ask(url, "GET", "/")
    assert status == 200 and headers["Content-Type"].startswith("text/html") and b"<html" in body
    assert "default-src 'none'" in headers["Content-Security-Policy"]


def test_stats(url):
    before = get(url, "/stats")
    usage = post(url, COMPLETIONS, {"prompt": "Tell me", "max_tokens": 9, "ignore_eos": True})["usage"]
    until_idle(url)  # the step is counted after its tokens are delivered
    after = get(url, "/stats")
    assert after["server"]["owner"] == "carat" and after["server"]["draining"] is False
    assert abs(after["server"]["started_at"] - time.time()) < 3600 and after["server"]["uptime_seconds"] >= 0
    grown = {name: after["totals"][name] - before["totals"][name] for name in after["totals"]}
    assert grown["requests"] >= 2
    assert grown["generations"] == 1 and grown["generated_tokens"] == 9 and grown["prompt_tokens"] == usage["prompt_tokens"]
    assert grown["steps"] >= 9
    memory = after["memory"]
    assert 0 < memory["fixed_bytes"] < memory["budget_bytes"] and memory["peak_resident_bytes"] > 1 << 20
    assert {"entries", "bytes", "max_bytes", "ttl_seconds"} <= set(after["response_store"])
    assert after["http"]["connections"] >= 1 and after["http"]["accepted"] >= 3
    model, = after["models"]
    assert model["id"] == MODEL and model["context"] > 1000 and model["preempted"] == 0
    assert 0 < model["kv"]["bytes_in_use"] <= model["kv"]["bytes_taken"] <= model["kv"]["bytes_limit"]
    assert model["prompt_cache"]["hits"] + model["prompt_cache"]["misses"] >= 1


def metrics_of(url):
    parser = pytest.importorskip("prometheus_client.parser")
    status, headers, body = ask(url, "GET", "/metrics")
    assert status == 200 and headers["Content-Type"].startswith("text/plain; version=0.0.4")
    samples = {}
    for family in parser.text_string_to_metric_families(body.decode()):
        assert family.documentation and family.name.startswith("carat_")
        for sample in family.samples:
            samples[sample.name, tuple(sorted(sample.labels.items()))] = sample.value
    return samples


def test_metrics_count(url):
    before = metrics_of(url)
    messages = [{"role": "user", "content": "Say something new, and of some length, so that a block of it is full. " * 4}]
    first = post(url, CHAT, {"messages": messages, "max_tokens": 6, "ignore_eos": True})
    again = post(url, CHAT, {"messages": messages, "max_tokens": 6, "ignore_eos": True})
    ask(url, "POST", CHAT, "{")
    cached = again["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached > 0
    until_idle(url)
    after = metrics_of(url)

    def grown(name, **labels):
        key = name, tuple(sorted(labels.items()))
        return after[key] - before.get(key, 0)
    assert grown("carat_http_requests_total", route=CHAT, status="200") == 2
    assert grown("carat_http_requests_total", route=CHAT, status="400") == 1
    assert grown("carat_http_request_seconds_count", route=CHAT) == 3
    assert grown("carat_tokens_total", kind="prompt") == 2 * first["usage"]["prompt_tokens"]
    cached += first["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert grown("carat_tokens_total", kind="prompt_cached") == cached
    assert grown("carat_tokens_total", kind="generated") == 12
    assert grown("carat_generations_total", end="max_tokens") == 2
    assert grown("carat_time_to_first_token_seconds_count") == 2
    assert grown("carat_inter_token_seconds_count") == 10
    assert grown("carat_queue_seconds_count") == 2
    assert grown("carat_batch_size_sum") == grown("carat_batch_size_count") == grown("carat_step_rows_count") >= 12
    assert grown("carat_prefix_cache_total", model=MODEL, what="hits") >= 1
    assert grown("carat_prefix_cache_total", model=MODEL, what="tokens") == cached
    assert after["carat_generations", (("model", MODEL), ("state", "running"))] == 0
    assert after["carat_http_connections", (("state", "open"),)] >= 1
    assert after["carat_peak_resident_bytes", ()] > 1 << 20
    for (name, labels), value in after.items():
        if not name.endswith("_bucket"):
            continue
        assert value <= after[name.removesuffix("_bucket") + "_count", tuple(label for label in labels if label[0] != "le")]


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_unknown_paths_and_methods(url):
    status, headers, body = ask(url, "GET", "/v1/nothing")
    assert status == 404 and "Allow" not in headers and error_of(body)["code"] == "not_found"
    for method, path, allow in (("GET", CHAT, "POST"), ("PUT", "/health", "GET"), ("POST", "/v1/models", "GET"),
                                ("PUT", "/v1/adapters", "GET, POST")):
        status, headers, body = ask(url, method, path)
        assert (status, headers["Allow"]) == (405, allow) and error_of(body)["type"] == "invalid_request_error"
    for method, path, code in (("GET", MESSAGES, 405), ("POST", "/v1/messages/nothing", 404)):
        status, headers, body = ask(url, method, path, "{}" if method == "POST" else None)
        answer = json.loads(body)
        assert status == code and answer["type"] == "error" and answer["error"]["message"]
        assert answer["request_id"] == headers["request-id"] == headers["X-Request-Id"]
    assert ask(url, "GET", MESSAGES)[1]["Allow"] == "POST"


BAD_BODIES = [
    b"", b"{", b"[]", b"null", b"3", b'"x"', b'{"messages": [}', b'{"a": 1} x', b'\xff\xfe{}', b'{"a": "\xc3\x28"}', b"{'a': 1}", b'{"a": nul}',
    b'{"n": 1e999}', b"[" * 100000, b'{"a":' * 5000 + b"1" + b"}" * 5000, b'{"messages": ' + b"[" * 300 + b"]" * 300 + b"}", b"\0" * 64,
    b'{"a": "\\ud800"}',
    b'{"a": "\\u12"}', b"{" + b",".join(b'"%d":0' % i for i in range(30000)) + b"}",
]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, MESSAGES, "/v1/responses", "/v1/embeddings", "/tokenize", "/v1/adapters"])
@pytest.mark.parametrize("body", BAD_BODIES, ids=lambda body: repr(body[:12]))
def test_malformed_bodies(url, path, body):
    status, _, answer = ask(url, "POST", path, body)
    error = json.loads(answer)["error"]
    assert status == 400 and error["type"] == "invalid_request_error" and len(error["message"]) < 300


@pytest.mark.parametrize("options", [
    {"max_tokens": 10 ** 30}, {"max_tokens": -1}, {"max_tokens": 1.5}, {"temperature": 1e300}, {"temperature": "hot"}, {"seed": 2 ** 70}, {"seed": 0.5},
    {"top_k": 2 ** 40}, {"n": 2 ** 63}, {"logit_bias": {"5": 1e9}}, {"logit_bias": {"999999999999": 1}}, {"logit_bias": {"5000": 1}},
    {"stop": ["x"] * 1000}, {"stop": 5}, {"priority": 10 ** 12}, {"stop_token_ids": [-1]}, {"stream": "yes"}, {"adapter": "none-such"},
    {"repetition_penalty": -1}, {"min_p": 2}, {"hlg": {"width": -1}},
], ids=str)
def test_fields_beyond_their_ranges(url, options):
    text = json.dumps({"messages": USER, "max_tokens": 3, **options})
    status, _, body = ask(url, "POST", CHAT, text)
    assert status == 400 and error_of(body)["type"] == "invalid_request_error", body


def test_bodies_and_heads_that_are_too_large(start):
    url = start("--max-body", "4KB").url
    status, _, body = ask(url, "POST", CHAT, {"messages": [{"role": "user", "content": "x" * 5000}]})
    assert status == 413 and error_of(body)["message"]
    status, _, body = ask(url, "POST", MESSAGES, {"messages": [{"role": "user", "content": "x" * 5000}]})
    assert status == 413 and json.loads(body)["error"]["type"] == "request_too_large"
    assert ask(url, "GET", "/health", headers={"X-Long": "x" * 100000})[0] == 431
    assert ask(url, "GET", "/health")[0] == 200


def raw(url, data):
    parts = urllib.parse.urlsplit(url)
    with socket.create_connection((parts.hostname, parts.port), timeout=30) as connection:
        connection.sendall(data)
        answer = b""
        try:
            while part := connection.recv(65536):
                answer += part
        except ConnectionResetError:
            pass
    return answer


@pytest.mark.parametrize("data", [
    b"hello\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n",
    b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\nContent-Length: 5\r\n\r\nabcde",
    b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"GET /%00 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 80,
], ids=lambda data: repr(data[:24]))
def test_what_is_not_http(url, data):
    answer = raw(url, data)
    assert answer == b"" or re.match(rb"HTTP/1\.1 4\d\d ", answer), answer
    assert ask(url, "GET", "/health")[0] == 200


# --- who may ----------------------------------------------------------------------------------------------------------


def test_api_keys(start):
    url = start("--api-key", "first", "--api-key", "second", environment={"CARAT_API_KEY": "third"}).url
    body = {"prompt": "a", "max_tokens": 1}
    for headers in ({"Authorization": "Bearer first"}, {"Authorization": "bearer second"}, {"x-api-key": "third"}):
        assert ask(url, "POST", COMPLETIONS, body, headers)[0] == 200, headers
    for headers in ({}, {"Authorization": "Bearer firs"}, {"Authorization": "Bearer "}, {"Authorization": "first"}, {"x-api-key": ""},
                    {"Authorization": "Basic first"}, {"x-api-key": "first second"}):
        status, answered, answer = ask(url, "POST", COMPLETIONS, body, headers)
        assert status == 401 and answered["WWW-Authenticate"] == "Bearer", headers
        assert error_of(answer)["code"] == "invalid_api_key"
    answer = json.loads(ask(url, "POST", MESSAGES, {})[2])
    assert answer["error"]["type"] == "authentication_error"
    for path in ("/", "/health", "/ready"):
        assert ask(url, "GET", path)[0] == 200
    for path in ("/metrics", "/stats", "/v1", "/v1/models", "/nothing"):
        assert ask(url, "GET", path)[0] == 401


def test_pages_of_other_sites(url):
    host = url.removeprefix("http://")
    port = host.split(":")[1]
    for headers in ({"Origin": "http://evil.example"}, {"Origin": "null"}, {"Host": f"evil.example:{port}"}, {"Host": "evil.example"},
                    {"Host": f"evil.example:{port}", "Origin": f"http://evil.example:{port}"}, {"Origin": f"http://localhost.evil.example:{port}"},
                    {"Host": "localhost.evil.example"}, {"Host": "127.0.0.1.evil.example"}, {"Origin": "http://127.0.0.1:1"}):
        status, _, body = ask(url, "GET", "/v1/models", headers=headers)
        assert status == 403 and error_of(body)["code"] == "forbidden_origin", headers
        assert ask(url, "OPTIONS", CHAT, headers={**headers, "Access-Control-Request-Method": "POST"})[0] == 403
    for headers in ({"Origin": url}, {"Host": f"localhost:{port}"}, {"Host": f"localhost:{port}", "Origin": f"http://localhost:{port}"},
                    {"Host": "[::1]"}, {"Host": f"app.localhost:{port}"}):
        status, answered, _ = ask(url, "GET", "/v1/models", headers=headers)
        assert status == 200 and "Access-Control-Allow-Origin" not in answered, headers


def test_cors(start):
    url = start("--cors", "https://app.example", "--cors", "http://other.example").url
    status, headers, body = ask(url, "OPTIONS", CHAT, headers={
        "Origin": "https://app.example", "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type, x-stainless-os"})
    assert status == 204 and body == b"" and headers["Access-Control-Allow-Origin"] == "https://app.example"
    assert "POST" in headers["Access-Control-Allow-Methods"] and headers["Access-Control-Allow-Headers"] == "content-type, x-stainless-os"
    assert int(headers["Access-Control-Max-Age"]) > 0
    for body, expected in (({"messages": USER, "max_tokens": 1}, 200), ({}, 400)):
        status, headers, _ = ask(url, "POST", CHAT, body, {"Origin": "http://other.example"})
        assert status == expected and headers["Access-Control-Allow-Origin"] == "http://other.example" and headers["Vary"] == "Origin"
        assert "X-Request-Id" in headers["Access-Control-Expose-Headers"]
    assert ask(url, "GET", "/v1/models", headers={"Origin": "https://app.example.evil"})[0] == 403
    assert ask(start("--cors", "*").url, "GET", "/v1/models", headers={"Origin": "http://any.example"})[1]["Access-Control-Allow-Origin"] in (
        "*", "http://any.example")


# --- ids and logs -----------------------------------------------------------------------------------------------------


def test_request_ids(url):
    for given in ("abc-123", "0f8c.X_y"):
        assert ask(url, "GET", "/health", headers={"X-Request-Id": given})[1]["X-Request-Id"] == given
    made = set()
    for given in ("", "with space", "x" * 1000, "quote\"", "a\tb"):
        answered = ask(url, "GET", "/health", headers={"X-Request-Id": given})[1]["X-Request-Id"]
        assert re.fullmatch(r"[0-9a-f]{32}", answered) and answered != given
        made.add(answered)
    assert len(made) == 5


def logged(server, word, seconds=PATIENCE):
    eventually(lambda: any(word in line for line in server.log), seconds)
    return next(line for line in server.log if word in line)


def test_log_lines(start):
    server = start()
    ask(server.url, "GET", "/health?key=secret", headers={"X-Request-Id": "one"})
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d info 127\.0\.0\.1 GET /health 200 \d+\.\d ms id=one\n",
                        logged(server, "id=one"))
    ask(server.url, "POST", "/a%7F", headers={"X-Request-Id": "two"})
    assert " 400 " in logged(server, "id=two")  # refused before it had a path
    assert not any("secret" in line for line in server.log)


def test_log_lines_in_json(start):
    server = start("--log-format", "json")
    ask(server.url, "POST", CHAT, "{", headers={"X-Request-Id": "three"})
    line = json.loads(logged(server, '"three"'))
    assert (line["level"], line["peer"], line["method"], line["path"], line["status"]) == ("info", "127.0.0.1", "POST", CHAT, 400)
    assert abs(line["time"] - time.time()) < 3600 and 0 <= line["seconds"] < 100
    stream = Stream(server.url, LONG)
    stream.event()
    stream.leave()
    assert json.loads(logged(server, '"status":499'))["path"] == COMPLETIONS
    server.stop()
    assert all(json.loads(line) for line in server.log)


# --- start ------------------------------------------------------------------------------------------------------------


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def refused(*arguments, status, words=(), environment=None):
    run = subprocess.run([CARAT, "serve", *map(str, arguments)], capture_output=True, text=True, timeout=120, check=False, env=environment)
    assert run.returncode == status, (run.returncode, run.stderr)
    assert run.stdout == "" and run.stderr.startswith("carat: ") and run.stderr.count("\n") == 1 and len(run.stderr) < 600, run.stderr
    for word in words:
        assert word in run.stderr, run.stderr


@pytest.mark.parametrize("flags", [
    ["--port", "70000"], ["--port", "x"], ["--parallel", "0"], ["--queue", "-1"], ["--memory", "2zz"], ["--log-format", "xml"],
    ["--log-level", "loud"], ["--tls-cert", "a"], ["--tls-key", "a"], ["--temperature", "-1"], ["--api-key"], ["--api-key", ""], ["--frobnicate"], ["--kv", "q9"],
    ["--threads", "-1"], ["--drain-timeout", "-1"], ["--step-rows", "1"], ["--max-connections", "0"], ["--http-threads", "0"],
    ["--config", "/none/such"], ["--chat-template-args", "x"], ["--chat-template-args", '{"enable_thinking": 3}'],
], ids=" ".join)
def test_wrong_flags(flags):
    refused(TINY, *flags, status=2)


def test_no_model():
    refused(status=2, words=["MODEL"])
    refused("/none/such", status=1, words=["/none/such"])
    refused(f"a={TINY}", f"a={TINY}", status=1, words=['"a"'])


def test_what_cannot_start(url, tmp_path):
    refused(TINY, "--memory", "1MB", status=1, words=["memory"])
    port = url.rsplit(":", 1)[1]
    refused(TINY, "--port", port, status=1, words=[f"127.0.0.1:{port}"])
    refused(TINY, "--host", "256.0.0.1", status=1, words=["256.0.0.1"])
    refused(TINY, "--port", 0, "--tls-cert", tmp_path / "c", "--tls-key", tmp_path / "k", status=1, words=[str(tmp_path)])
    refused(TINY, "--port", 0, "--adapter", tmp_path, status=1, words=[str(tmp_path)])


def test_config_files(start, tmp_path):
    port = free_port()
    config = tmp_path / "serve.toml"
    config.write_text(f'# a server\nport = {port}\nlog-format = "json"\napi-key = ["one", "two"]\nany-model = true\nmax-tokens = 2\n')
    server = start("--config", config, "--api-key", "three")  # the fixture's --port stands on the command line
    assert json.loads(server.log[0])["level"] == "info" and not server.url.endswith(f":{port}")
    body = {"model": "whatever", "messages": USER, "ignore_eos": True}
    assert ask(server.url, "POST", CHAT, body, {"x-api-key": "one"})[0] == 401  # what the command line says is the whole of it
    assert post(server.url, CHAT, body, headers={"x-api-key": "three"})["usage"]["completion_tokens"] == 2
    for text, word in (("frob = 1\n", "frob"), ("port = 70000\n", "70000"), ("[serve]\nparallel = \"many\"\n", "parallel"), ("config = \"x\"\n", "config")):
        config.write_text(text)
        refused(TINY, "--config", config, status=2, words=[str(config), word])
    config.write_text(f'[serve]\nMODEL = "named={TINY}"\nthinking = true\n')
    assert get(start("--config", config, model=f"other={TINY}").url, "/v1/models")["data"][0]["id"] == "other"


def test_several_models(start):
    gemma3 = TINY.parents[1] / "gguf" / "gemma3.q8_0.gguf"
    url = start(f"small={gemma3}", model=f"big={TINY}").url
    models = get(url, "/v1/models")["data"]
    assert [model["id"] for model in models] == ["big", "small"]
    answers = {name: post(url, COMPLETIONS, {"model": name, "prompt": "Once", "temperature": 0, "max_tokens": 20, "ignore_eos": True})
               for name in ("big", "small", "")}
    assert answers["small"]["model"] == "small" and answers[""]["model"] == "big"
    assert answers["big"]["choices"] == answers[""]["choices"] != answers["small"]["choices"]
    status, _, body = ask(url, "POST", COMPLETIONS, {"model": "medium", "prompt": "Once"})
    assert status == 404 and error_of(body)["code"] == "model_not_found"
    assert json.loads(ask(url, "POST", MESSAGES, {"model": "medium", "max_tokens": 1, "messages": USER})[2])["error"]["type"] == "not_found_error"
    assert [model["id"] for model in get(url, "/stats")["models"]] == ["big", "small"]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        again = pool.map(lambda name: post(url, COMPLETIONS, {"model": name, "prompt": "Once", "temperature": 0, "max_tokens": 20,
                                                              "ignore_eos": True}), ["big", "small"] * 8)
        assert all(answer["choices"] == answers[answer["model"]]["choices"] for answer in again)


def test_any_model(start):
    url = start("--any-model").url
    assert post(url, CHAT, {"model": "gpt-4o", "messages": USER, "max_tokens": 1})["usage"]["completion_tokens"] == 1
    assert post(url, MESSAGES, {"model": "claude", "messages": USER, "max_tokens": 1})["type"] == "message"


@pytest.mark.skipif(not shutil.which("openssl"), reason="openssl makes the certificate")
def test_tls(start, tmp_path):
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj",
                    "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", key, "-out", certificate],
                   check=True, capture_output=True)
    server = start("--tls-cert", certificate, "--tls-key", key)
    assert server.url.startswith("https://")
    context = ssl.create_default_context(cafile=certificate)
    assert ask(server.url, "GET", "/health", context=context)[2] == b'{"status": "ok"}'
    answer = json.loads(ask(server.url, "POST", CHAT, {"messages": USER, "max_tokens": 2}, context=context)[2])
    assert answer["object"] == "chat.completion"
    with pytest.raises(ssl.SSLError):
        ask(server.url, "GET", "/health", context=ssl.create_default_context())
    assert b"200" not in raw(server.url, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert ask(server.url, "GET", "/health", context=context)[0] == 200
    assert server.stop() == 0


# --- many users -------------------------------------------------------------------------------------------------------


def said(answer):
    """What of an answer depends on the request alone."""
    return [(choice.get("text", choice.get("message")), choice["logprobs"], choice["finish_reason"]) for choice in answer["choices"]]


def test_the_same_alone_and_under_load(url):
    """Same request, same bytes: texts, log-probabilities, reasons of ends, whatever runs beside it."""
    requests = []
    for i in range(24):
        options = {"max_tokens": 20 + i, "temperature": (0, 0.7, 1.3)[i % 3], "seed": i, "logprobs": 2 if i % 2 else None}
        if i % 4 == 0:
            options |= {"logprobs": bool(i % 8), "top_logprobs": 2 if i % 8 else 0}
            requests.append((CHAT, {"messages": [{"role": "user", "content": f"Number {i}. " * (1 + i)}], "n": 1 + i % 3, **options}))
        else:
            requests.append((COMPLETIONS, {"prompt": f"Number {i} and so on. " * (1 + 9 * (i % 7)), "ignore_eos": i % 5 == 0, **options}))
    alone = [said(post(url, *request)) for request in requests]
    assert len({str(answer) for answer in alone}) > 20
    noise = [Stream(url, LONG, seed=seed).open() for seed in range(3)]
    try:
        with concurrent.futures.ThreadPoolExecutor(24) as pool:
            for _ in range(2):
                crowded = [said(answer) for answer in pool.map(lambda request: post(url, *request), requests)]
                assert crowded == alone
    finally:
        for stream in noise:
            stream.leave()
    until_idle(url)


def test_a_second_turn_finds_the_first_in_the_cache(url):
    messages = [{"role": "system", "content": "You are a server that is being tested, and answer with patience. " * 5}, *USER]
    first = post(url, CHAT, {"messages": messages, "max_tokens": 20, "seed": 3})
    turn = messages + [first["choices"][0]["message"], {"role": "user", "content": "Go on."}]
    second = post(url, CHAT, {"messages": turn, "max_tokens": 5, "seed": 3})
    cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert first["usage"]["prompt_tokens"] // 2 < cached < second["usage"]["prompt_tokens"]
    again = post(url, CHAT, {"messages": turn, "max_tokens": 5, "seed": 3})
    assert again["choices"] == second["choices"]
    read = post(url, MESSAGES, {"max_tokens": 5, "messages": [{"role": "user", "content": [
        {"type": "text", "text": "The same prompt again and again. " * 20, "cache_control": {"type": "ephemeral"}}]}]})
    read = post(url, MESSAGES, {"max_tokens": 5, "messages": [{"role": "user", "content": [
        {"type": "text", "text": "The same prompt again and again. " * 20, "cache_control": {"type": "ephemeral"}}]}]})
    assert read["usage"]["cache_read_input_tokens"] > 0


def test_a_full_queue(start):
    url = start("--parallel", 1, "--queue", 1).url
    running = Stream(url, LONG).open()
    running.event()
    waiting = Stream(url, LONG, max_tokens=3)
    eventually(lambda: model_stats(url)["waiting"] == 1)
    status, headers, body = ask(url, "POST", CHAT, {"messages": USER})
    assert status == 429 and int(headers["Retry-After"]) >= 1
    assert error_of(body)["type"] == "rate_limit_error" and error_of(body)["code"] == "queue_full"
    status, headers, body = ask(url, "POST", MESSAGES, {"messages": USER, "max_tokens": 1, "stream": True})
    assert status == 429 and int(headers["Retry-After"]) >= 1 and json.loads(body)["error"]["type"] == "rate_limit_error"
    assert ask(url, "POST", CHAT, {"messages": USER, "n": 3, "stream": True})[0] == 429
    running.leave()
    assert waiting.rest()[-1] == "[DONE]"
    until_idle(url)
    assert post(url, CHAT, {"messages": USER, "max_tokens": 1})["choices"]


def test_comments_keep_a_waiting_stream_alive(start):
    url = start("--parallel", 1).url
    running = Stream(url, LONG).open()
    drained = threading.Thread(target=running.rest, daemon=True)
    drained.start()
    eventually(lambda: model_stats(url)["running"] == 1)
    for path, body in ((COMPLETIONS, {"prompt": "x", "max_tokens": 2}), (MESSAGES, {"messages": USER, "max_tokens": 2})):
        Stream(url, body, path)  # their answers are not looked at; they are in the queue
    waiting = Stream(url, {"prompt": "y", "max_tokens": 2})
    begun = time.monotonic()
    first = waiting.line()
    assert first.startswith(":") and 5 < time.monotonic() - begun < 30
    running.connection.sock.shutdown(socket.SHUT_RDWR)
    assert waiting.rest()[-1] == "[DONE]"


# --- clients that leave -----------------------------------------------------------------------------------------------


def test_leaving_frees_the_place(start):
    url = start("--parallel", 1).url
    for whole in (False, True, False):
        if whole:
            client = connect(url)
            client.request("POST", COMPLETIONS, json.dumps(LONG))
            eventually(lambda: model_stats(url)["running"] == 1)
            client.close()
        else:
            stream = Stream(url, LONG)
            stream.event()
            assert model_stats(url)["running"] == 1
            stream.leave()
        left = time.monotonic()
        until_idle(url)
        assert time.monotonic() - left < 5  # what was asked for takes half a minute
    waiting = [Stream(url, LONG) for _ in range(3)]
    eventually(lambda: model_stats(url)["waiting"] == 2)
    for stream in waiting:
        stream.leave()
    until_idle(url)
    assert get(url, "/stats")["totals"]["generated_tokens"] < 3 * LONG["max_tokens"]


def test_leaving_while_others_read_long_prompts(url):
    """The place is free at once, and what the others get is what they get alone."""
    ids = [5 + i * 37 % 400 for i in range(40000)]
    request = {"prompt": ids, "max_tokens": 8, "temperature": 0, "logprobs": 1, "ignore_eos": True}
    expected = said(post(url, COMPLETIONS, {**request, "prompt": [7, *ids]}))
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        reading = pool.submit(post, url, COMPLETIONS, {**request, "prompt": [7, *ids], "priority": 1})
        for _ in range(4):
            stream = Stream(url, LONG)
            stream.event()
            stream.leave()
            client = connect(url)
            client.request("POST", CHAT, json.dumps({"messages": USER, "max_tokens": 100000, "ignore_eos": True}))
            time.sleep(0.05)
            client.close()
        assert said(reading.result()) == expected
        other = pool.submit(post, url, COMPLETIONS, {**request, "prompt": [8, *ids]})
        eventually(lambda: model_stats(url)["running"] >= 1)
        stream = Stream(url, LONG)
        stream.event()
        stream.leave()
        eventually(lambda: model_stats(url)["running"] <= 1 or other.done(), seconds=10)
        other.result()
    until_idle(url)


# --- the end ----------------------------------------------------------------------------------------------------------


def test_draining(start):
    server = start("--drain-timeout", 120)
    url = server.url
    stream = Stream(url, LONG, max_tokens=20000)
    message = Stream(url, {"messages": USER, "max_tokens": 3000, "stop_token_ids": []}, MESSAGES, ignore_eos=True)
    kept = connect(url)
    kept.request("GET", "/ready")
    assert json.loads(kept.getresponse().read()) == {"status": "ok"}
    stream.event()
    message.line()
    server.process.send_signal(signal.SIGTERM)
    logged(server, "stopping")
    for connection in (kept, connect(url)):
        connection.request("POST", CHAT, json.dumps({"messages": USER}))
        answer = connection.getresponse()
        assert answer.status == 503 and int(answer.headers["Retry-After"]) >= 1
        assert error_of(answer.read())["code"] == "shutting_down"
        connection.request("GET", "/ready")
        answer = connection.getresponse()
        assert answer.status == 503 and json.loads(answer.read()) == {"status": "draining"}
    events = stream.rest()
    assert events[-1] == "[DONE]" and json.loads(events[-2])["choices"][0]["finish_reason"] == "length"
    assert json.loads(message.rest()[-1])["type"] == "message_stop"
    assert server.process.wait(PATIENCE) == 0
    logged(server, "stopped")


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal(start, second):
    server = start()
    stream = Stream(server.url, LONG)
    stream.event()
    server.process.send_signal(signal.SIGTERM)
    logged(server, "stopping")
    asked = time.monotonic()
    server.process.send_signal(second)
    assert "shutting down" in json.loads(stream.rest()[-1])["error"]["message"]
    assert server.process.wait(PATIENCE) == 0 and time.monotonic() - asked < 10


def test_draining_takes_no_longer_than_told(start):
    server = start("--drain-timeout", 1)
    stream = Stream(server.url, LONG)
    stream.event()
    asked = time.monotonic()
    server.process.send_signal(signal.SIGINT)
    assert "shutting down" in json.loads(stream.rest()[-1])["error"]["message"]
    assert server.process.wait(PATIENCE) == 0 and 0.9 < time.monotonic() - asked < 15


# --- adapters ---------------------------------------------------------------------------------------------------------


def write_adapter(directory, seed, size=1.0, width=96, hidden=64):
    """A PEFT adapter of the first layer's gate_proj and up_proj."""
    directory.mkdir(exist_ok=True)
    random = np.random.default_rng(seed)
    header, data = {}, b""
    for name in ("gate_proj", "up_proj"):
        for half, shape, scale in (("A", (4, hidden), 0.2), ("B", (width, 4), size)):
            values = (random.standard_normal(shape) * scale).astype("<f4").tobytes()
            header[f"base_model.model.model.layers.0.mlp.{name}.lora_{half}.weight"] = {
                "dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
            data += values
    text = json.dumps(header).encode()
    (directory / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    (directory / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 4, "lora_alpha": 4}))
    return directory


def told(url, **options):
    return post(url, COMPLETIONS, {"prompt": "Once upon a time there was " * 12, "temperature": 0, "max_tokens": 30, "ignore_eos": True, "logprobs": 0,
                                   **options})


def test_adapters(start, tmp_path):
    a, b = write_adapter(tmp_path / "a", 1), write_adapter(tmp_path / "b", 2)
    url = start().url
    plain = said(told(url))
    info = post(url, "/v1/adapters", {"id": "a", "path": str(a)})
    assert info["id"] == "a" and info["rank"] == 4 and info["mounted_layers"] == 2 and info["size_bytes"] > 1000
    post(url, "/v1/adapters", {"id": "b", "path": str(b)})
    assert [adapter["id"] for adapter in get(url, "/v1/adapters")["adapters"]] == ["a", "b"]
    models = {model["id"]: model for model in get(url, "/v1/models")["data"]}
    assert set(models) == {MODEL, f"{MODEL}:a", f"{MODEL}:b"} and models[f"{MODEL}:a"]["parent"] == MODEL

    alone = {name: said(told(url, adapter=name)) for name in ("none", "a", "b", "a+b")}
    assert alone["none"] == plain == said(told(url)) and len({str(answer) for answer in alone.values()}) == 4
    named = told(url, model=f"{MODEL}:a")
    assert said(named) == alone["a"] and named["model"] == f"{MODEL}:a"
    assert said(told(url, adapters=["a", "b"])) == alone["a+b"] == said(told(url, model=f"{MODEL}:a+b"))
    messages = {"messages": USER, "max_tokens": 20, "temperature": 0}
    assert post(url, MESSAGES, {**messages, "adapter": "a"})["content"] == post(url, MESSAGES, {**messages, "model": f"{MODEL}:a"})["content"]

    names = list(alone) * 5
    with concurrent.futures.ThreadPoolExecutor(len(names)) as pool:
        together = list(pool.map(lambda name: said(told(url, adapter=name)), names))
    assert together == [alone[name] for name in names]

    status, _, body = ask(url, "POST", COMPLETIONS, {"prompt": "x", "adapter": "c"})
    assert status == 400 and error_of(body)["code"] == "adapter_not_found"
    for options in ({"id": "none", "path": str(a)}, {"id": "x:y", "path": str(a)}, {"id": "", "path": str(a)}, {"id": "c"}, {"id": "c", "path": "/none/such"},
                    {"id": "c", "path": str(tmp_path)}):
        assert ask(url, "POST", "/v1/adapters", options)[0] == 400, options

    # Replacing: what runs goes on with the old weights.
    running = Stream(url, LONG, adapter="a", max_tokens=6000, prompt="x", temperature=0)
    running.event()
    post(url, "/v1/adapters", {"id": "a", "path": str(b)})
    assert said(told(url, adapter="a")) == alone["b"]
    swapped = "".join(json.loads(event)["choices"][0]["text"] for event in running.rest()[:-1] if json.loads(event)["choices"])
    post(url, "/v1/adapters", {"id": "a", "path": str(a)})
    whole = post(url, COMPLETIONS, {**LONG, "adapter": "a", "max_tokens": 6000, "prompt": "x", "temperature": 0})["choices"][0]["text"]
    assert whole.endswith(swapped) and len(swapped) > len(whole) - 50
    assert said(told(url, adapter="a")) == alone["a"]

    assert json.loads(ask(url, "DELETE", "/v1/adapters/a")[2])["id"] == "a"
    assert ask(url, "DELETE", "/v1/adapters/a")[0] == 404
    assert ask(url, "POST", COMPLETIONS, {"prompt": "x", "model": f"{MODEL}:a"})[0] in (400, 404)
    assert said(told(url)) == plain


def test_adapters_given_as_flags(start, tmp_path):
    a, b = write_adapter(tmp_path / "a", 1), write_adapter(tmp_path / "b", 2)
    url = start("--adapter", a, "--adapter", f"second={b}").url
    assert [adapter["id"] for adapter in get(url, "/v1/adapters")["adapters"]] == ["a", "second"]
    assert said(told(url)) == said(told(url, adapter="a"))  # the first stands where a request names none
    assert len({str(said(told(url, adapter=name))) for name in ("a", "second", "none", "a+second")}) == 4


def test_adapters_of_a_server_open_to_all(start, tmp_path):
    a = write_adapter(tmp_path / "a", 1)
    body = {"id": "a", "path": str(a)}
    for flags, headers, expected in ((["--host", "0.0.0.0"], {}, 403), (["--host", "0.0.0.0", "--allow-adapter-changes"], {}, 200),
                                     (["--host", "0.0.0.0", "--api-key", "k"], {"x-api-key": "k"}, 200)):
        url = start(*flags).url.replace("0.0.0.0", "127.0.0.1")
        assert ask(url, "POST", "/v1/adapters", body, headers)[0] == expected
        assert ask(url, "DELETE", "/v1/adapters/a", headers=headers)[0] == expected


# --- memory -----------------------------------------------------------------------------------------------------------


def resident(process):
    """Anonymous memory in kB: what the process itself has written."""
    with open(f"/proc/{process.pid}/status", encoding="ascii") as status:
        return int(re.search(r"RssAnon:\s+(\d+) kB", status.read())[1])


def test_memory_stays_flat(start):
    """What 1000 short requests leave, once caches are full, is what was there before, within 2 %."""
    server = start("--memory", "120MB", "--prefix-cache", "64MB")
    url = server.url

    def one(i):
        kind = i % 5
        messages = [{"role": "user", "content": f"Number {i}"}]
        if kind == 0:
            assert Stream(url, {"messages": messages, "max_tokens": 6}, CHAT).rest()[-1] == "[DONE]"
        elif kind == 1:
            assert post(url, MESSAGES, {"messages": messages, "max_tokens": 6})["type"] == "message"
        elif kind == 2:
            assert ask(url, "POST", CHAT, "{" * (i % 300))[0] == 400
        elif kind == 3:
            stream = Stream(url, {**LONG, "prompt": f"Number {i}", "max_tokens": 1000})
            stream.event()
            stream.leave()
        else:
            assert post(url, COMPLETIONS, {"prompt": f"Number {i} and more. " * (i % 20 + 1), "max_tokens": 6, "logprobs": 3})["choices"]

    def after(requests):
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            list(pool.map(one, requests))
        until_idle(url)
        # The store of keys and values grows with the most that ever ran together, up to --memory.
        return resident(server.process) - model_stats(url)["kv"]["bytes_taken"] // 1024, resident(server.process)
    after(range(2000))
    before, whole = after(range(2000, 2500))
    later, _ = after(range(2500, 3500))
    cache = model_stats(url)["prompt_cache"]
    assert cache["bytes"] > 0.9 * cache["max_bytes"]
    assert later - before < 0.02 * whole, (before, later, whole)
