"""A scripted chat server for tests of the page: it serves web/index.html and answers /v1 with what a test tells it to.

A script is a list of steps: dicts are sent as chunks; strings are sent as they are; numbers are pauses in seconds; a Gate holds
the stream until the test opens it; a Refusal answers instead of a stream; DROP ends the connection at once.
"""

import http.server
import json
import pathlib
import select
import socket
import threading
import time

PAGE = pathlib.Path(__file__).resolve().parents[2] / "web" / "index.html"
# What carat serve sends with the page (src/server/chat_page.h).
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
DROP = object()


class Gate(threading.Event):
    """Holds a stream until set()."""


class Refusal:
    def __init__(self, status, body, headers=None):
        self.status = status
        self.body = body if isinstance(body, str) else json.dumps(body)
        self.headers = headers or {}


def delta(finish=None, **fields):
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "mock", "choices": [{"index": 0, "delta": fields, "finish_reason": finish}]}


def text(content):
    return delta(content=content)


def thought(content):
    return delta(reasoning_content=content)


def call(index, arguments, name=None, call_id=None):
    """A piece of a tool call; name and id come with the first one."""
    piece = {"index": index, "function": {"arguments": arguments}}
    if name:
        piece["type"] = "function"
        piece["function"]["name"] = name
    if call_id:
        piece["id"] = call_id
    return delta(tool_calls=[piece])


def finish(reason="stop", prompt=12, completion=34, cached=0, reasoning=0):
    """The last chunks: the reason, the usage, the end."""
    usage = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {"reasoning_tokens": reasoning},
    }
    return [delta(finish=reason), {"object": "chat.completion.chunk", "model": "mock", "choices": [], "usage": usage}, "data: [DONE]\n\n"]


class MockChatServer:
    """Answers on its own threads. `requests` holds (path, headers, body) of every POST, `scripts` what is still to be said."""

    def __init__(self):
        self.requests = []
        self.scripts = []
        self.models = {"object": "list", "data": [{"id": "mock", "object": "model"}]}
        self.adapters = {"adapters": []}
        self.client_left = threading.Event()
        owner = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

            def do_GET(self):
                owner.get(self)

            def do_POST(self):
                owner.post(self)

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()

    def say(self, *steps):
        """Queues the reply to the next request."""
        self.scripts.append([step for item in steps for step in (item if isinstance(item, list) else [item])])

    def last(self):
        """The body of the latest request."""
        return self.requests[-1][2]

    @staticmethod
    def answer(handler, status, content_type, body, headers=None):
        handler.send_response(status)
        handler.send_header("Content-Type", content_type)
        handler.send_header("Content-Length", str(len(body)))
        for name, value in (headers or {}).items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(body)

    def get(self, handler):
        listed = {"/v1/models": self.models, "/v1/adapters": self.adapters}.get(handler.path)
        if handler.path == "/":
            self.answer(handler, 200, "text/html; charset=utf-8", PAGE.read_bytes(), {"Content-Security-Policy": POLICY})
        elif isinstance(listed, Refusal):
            self.answer(handler, listed.status, "application/json", listed.body.encode())
        elif listed is not None:
            self.answer(handler, 200, "application/json", json.dumps(listed).encode())
        else:
            self.answer(handler, 404, "application/json", b'{"error":{"message":"not found"}}')

    def post(self, handler):
        body = json.loads(handler.rfile.read(int(handler.headers["Content-Length"])))
        self.requests.append((handler.path, dict(handler.headers), body))
        script = self.scripts.pop(0) if self.scripts else [text("Echo: " + str(body["messages"][-1]["content"])), *finish()]
        if isinstance(script[0], Refusal):
            self.answer(handler, script[0].status, "application/json", script[0].body.encode(), script[0].headers)
            return
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream")
        handler.end_headers()
        try:
            for step in script:
                if step is DROP:
                    handler.connection.shutdown(socket.SHUT_RDWR)
                    return
                if isinstance(step, Gate):
                    self.hold(handler, step)
                elif isinstance(step, (int, float)):
                    time.sleep(step)
                else:
                    raw = step if isinstance(step, (str, bytes)) else f"data: {json.dumps(step)}\n\n"
                    handler.wfile.write(raw if isinstance(raw, bytes) else raw.encode())
                    handler.wfile.flush()
        except ConnectionError:
            self.client_left.set()

    @staticmethod
    def hold(handler, gate):
        """Waits for the gate. Raises when the client leaves first."""
        while not gate.wait(0.02):
            readable, _, _ = select.select([handler.connection], [], [], 0)
            if readable and not handler.connection.recv(1, socket.MSG_PEEK):
                raise ConnectionResetError
