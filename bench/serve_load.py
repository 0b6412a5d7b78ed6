#!/usr/bin/env python3
"""Load on a server that speaks OpenAI's chat completions, over loopback: throughput, time to first token, idle streams, soak.

    bench/serve_load.py throughput --carat PATH --model GGUF [--llama-server PATH] [--streams 64] [--tokens 128] [--rounds 3]
    bench/serve_load.py first-token --carat PATH --model GGUF [--long 8000] [--seconds 60]
    bench/serve_load.py idle --carat PATH --model GGUF [--streams 1000]
    bench/serve_load.py soak --carat PATH --model GGUF [--minutes 30]

Starts the servers itself and stops them. The client is asyncio on one thread: what it costs comes off the server's share of
the machine, and off the peer's in the same way.
"""
import argparse
import asyncio
import json
import os
import pathlib
import random
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time

WORDS = ("river stone garden winter music letter window silver forest engine market harbour bridge candle mountain paper "
         "summer island shadow mirror teacher planet meadow copper thunder village blanket orchard compass lantern").split()


class Failure(Exception):
    """A sentence for the user."""


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Server:
    def __init__(self, command, port):
        self.port = port
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log, stdin=subprocess.DEVNULL)

    async def ready(self, path="/health"):
        for _ in range(600):
            if self.process.poll() is not None:
                break
            try:
                status, _ = await ask(self.port, "GET", path)
                if status == 200:
                    return
            except OSError:
                pass
            await asyncio.sleep(0.1)
        self.log.seek(0)
        raise Failure("a server did not start:\n" + self.log.read().decode(errors="replace")[-2000:])

    def memory(self):
        """(resident, of it not mapped from files), bytes."""
        text = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        value = lambda name: int(re.search(rf"{name}:\s+(\d+) kB", text)[1]) * 1024
        return value("VmRSS"), value("RssAnon")

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def carat_server(a, *flags):
    port = free_port()
    command = [a.carat, "serve", a.model, "--port", str(port), "--log-level", "warn", *flags]
    if a.threads:
        command += ["--threads", str(a.threads)]
    return Server(command, port)


def llama_server(a, context):
    port = free_port()
    threads = a.threads or os.cpu_count()
    command = [a.llama_server, "-m", a.model, "--port", str(port), "-np", str(a.streams), "-c", str(context), "-t", str(threads),
               "-tb", str(threads), "--no-webui", "-cb"]
    return Server(command, port)


async def ask(port, method, path, body=b""):
    """(status, body) of a request on a connection of its own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(f"{method} {path} HTTP/1.1\r\nHost: localhost:{port}\r\nContent-Type: application/json\r\n"
                     f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)
        await writer.drain()
        answer = await reader.read(-1)
    finally:
        writer.close()
    head, _, rest = answer.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 "):
        raise Failure(f"{path} answered {answer[:80]!r}")
    if b"transfer-encoding: chunked" in head.lower():
        rest = unchunk(rest)
    return int(head.split()[1]), rest


def unchunk(data):
    out = b""
    while data:
        size, _, data = data.partition(b"\r\n")
        count = int(size or b"0", 16)
        if count == 0:
            break
        out, data = out + data[:count], data[count + 2:]
    return out


class Reply:
    def __init__(self):
        self.started = time.monotonic()
        self.first = None
        self.ended = None
        self.text = ""
        self.finish = None
        self.usage = None
        self.timings = None
        self.error = None

    def take(self, event):
        if event == "[DONE]":
            return
        data = json.loads(event)
        if "error" in data:
            self.error = data["error"].get("message", "?")
            return
        for choice in data.get("choices", []):
            piece = choice.get("delta", {}).get("content")
            if piece:
                self.first = self.first or time.monotonic()
                self.text += piece
            self.finish = choice.get("finish_reason") or self.finish
        self.usage = data.get("usage") or self.usage


async def chat(port, body, leave_after=None, read_pause=0.0):
    """A streamed reply. `leave_after`: bytes of the answer after which the client hangs up."""
    reply = Reply()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    data = json.dumps({**body, "stream": True, "stream_options": {"include_usage": True}}).encode()
    try:
        writer.write(f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost:{port}\r\nContent-Type: application/json\r\n"
                     f"Content-Length: {len(data)}\r\nConnection: close\r\n\r\n".encode() + data)
        await writer.drain()
        buffer, head, seen = b"", None, 0
        while True:
            part = await reader.read(65536)
            if not part:
                break
            seen += len(part)
            if leave_after is not None and seen >= leave_after:
                return reply
            if read_pause:
                await asyncio.sleep(read_pause)
            buffer += part
            if head is None:
                if b"\r\n\r\n" not in buffer:
                    continue
                head, _, buffer = buffer.partition(b"\r\n\r\n")
                if b" 200 " not in head.split(b"\r\n")[0]:
                    reply.error = head.split(b"\r\n")[0].decode()
            # Chunk sizes stand on lines of their own: an event's line always begins with "data: ".
            *lines, buffer = buffer.split(b"\n")
            for line in lines:
                if line.startswith(b"data: "):
                    reply.take(line[6:].strip().decode())
        reply.ended = time.monotonic()
    finally:
        writer.close()
    return reply


def question(seed, words=24):
    r = random.Random(seed)
    return {"messages": [{"role": "user", "content": f"Story {seed}: " + " ".join(r.choice(WORDS) for _ in range(words))}]}


def spread(values):
    return (max(values) - min(values)) / statistics.median(values) if values else 0.0


def quantile(values, q):
    values = sorted(values)
    return values[min(len(values) - 1, int(q * len(values)))]


async def speed(port, streams, tokens, seed, extra):
    """Tokens a second of so many chats at once."""
    start = time.monotonic()
    replies = await asyncio.gather(*(
        chat(port, {**question(seed * 1000 + i), "max_tokens": tokens, "temperature": 0, **extra}) for i in range(streams)))
    seconds = time.monotonic() - start
    failed = [r.error for r in replies if r.error or not r.usage]
    if failed:
        raise Failure(f"{len(failed)} of {streams} replies failed: {failed[0]}")
    return sum(r.usage["completion_tokens"] for r in replies) / seconds


async def throughput(a):
    engines = {"carat": (lambda: carat_server(a, "--parallel", str(max(64, a.streams))), {"ignore_eos": True})}
    if a.llama_server:
        engines["llama-server"] = (lambda: llama_server(a, a.streams * (a.tokens + 256)), {"ignore_eos": True})
    rates = {name: {"single": [], "many": []} for name in engines}
    for round_ in range(a.rounds):
        order = list(engines) if round_ % 2 == 0 else list(engines)[::-1]
        for name in order:
            make, extra = engines[name]
            server = make()
            try:
                await server.ready()
                await speed(server.port, 1, 8, 999, extra)  # pages and threads are warm
                rates[name]["single"].append(await speed(server.port, 1, a.tokens, round_ * 2 + 1, extra))
                rates[name]["many"].append(await speed(server.port, a.streams, a.tokens, round_ * 2 + 2, extra))
            finally:
                server.stop()
    result = {"streams": a.streams, "tokens": a.tokens, "engines": rates}
    for name, r in rates.items():
        single, many = statistics.median(r["single"]), statistics.median(r["many"])
        print(f"{name:14} one stream {single:8.1f} tok/s (spread {spread(r['single']):.0%})   {a.streams} streams {many:8.1f} tok/s "
              f"(spread {spread(r['many']):.0%})   {many / single:.2f}x")
    if a.llama_server:
        ratio = statistics.median(rates["carat"]["many"]) / statistics.median(rates["llama-server"]["many"])
        print(f"carat / llama-server at {a.streams} streams: {ratio:.2f}x")
        result["ratio"] = ratio
    return result


async def first_token(a):
    """Short prompts, one after another from each of a few users, while long ones keep coming."""
    server = carat_server(a)
    try:
        await server.ready()
        long_text = question(7, words=int(a.long * 0.93))["messages"][0]["content"]

        async def users(seconds, with_long):
            end = time.monotonic() + seconds
            waits, longs = [], 0

            async def short(user):
                i = 0
                while time.monotonic() < end:
                    i += 1
                    reply = await chat(server.port, {**question(f"{with_long}{user}-{i}"), "max_tokens": 16, "temperature": 0})
                    if reply.first:
                        waits.append(reply.first - reply.started)

            async def long():
                nonlocal longs
                while time.monotonic() < end:
                    longs += 1
                    body = {"messages": [{"role": "user", "content": f"{longs} {time.time()} {long_text}"}], "max_tokens": 4}
                    await chat(server.port, body)

            jobs = [short(u) for u in range(a.users)] + ([long()] if with_long else [])
            await asyncio.gather(*jobs)
            return waits, longs

        calm, _ = await users(a.seconds / 3, False)
        busy, longs = await users(a.seconds, True)
    finally:
        server.stop()
    result = {"long_prompts": longs, "long_tokens": a.long, "users": a.users}
    for name, waits in (("without", calm), ("beside", busy)):
        middle, worst = statistics.median(waits), quantile(waits, 0.99)
        result[name] = {"median": middle, "p99": worst, "count": len(waits)}
        print(f"short prompts {name} {longs if name == 'beside' else ''} prompts of {a.long} tokens: {len(waits)} replies, first token after "
              f"{middle * 1e3:.0f} ms in the median, {worst * 1e3:.0f} ms at p99 ({worst / middle:.1f}x)")
    return result


async def idle(a):
    """Streams that wait: their prompts are queued behind one that runs."""
    server = carat_server(a, "--parallel", "1", "--queue", str(a.streams + 8), "--max-connections", str(a.streams + 64))
    try:
        await server.ready()
        holder = asyncio.create_task(chat(server.port, {**question(1), "max_tokens": 20000, "ignore_eos": True}))
        await asyncio.sleep(2)
        before, before_anon = server.memory()
        waiting = [asyncio.create_task(chat(server.port, {**question(i), "max_tokens": 4})) for i in range(a.streams)]
        deadline = time.monotonic() + 60
        streams = 0
        while streams < a.streams and time.monotonic() < deadline:
            await asyncio.sleep(0.5)
            _, body = await ask(server.port, "GET", "/stats")
            streams = json.loads(body)["http"]["streams"] - 1
        await asyncio.sleep(3)
        after, after_anon = server.memory()
        start = time.monotonic()
        await ask(server.port, "GET", "/health")
        health = time.monotonic() - start
        for task in [*waiting, holder]:
            task.cancel()
        await asyncio.gather(*waiting, holder, return_exceptions=True)
        await asyncio.sleep(1)
        _, body = await ask(server.port, "GET", "/stats")
        left = json.loads(body)["models"][0]
    finally:
        server.stop()
    print(f"{streams} streams open: {(after_anon - before_anon) / 2**20:.1f} MiB more than before ({(after_anon - before_anon) / max(1, streams) / 1024:.0f} KiB each); "
          f"process {after / 2**20:.0f} MiB resident, {after_anon / 2**20:.0f} MiB of it not mapped from files; /health in {health * 1e3:.1f} ms")
    print(f"after they hung up: {left['running']} running, {left['waiting']} waiting")
    return {"streams": streams, "more_bytes": after_anon - before_anon, "resident": after, "anonymous": after_anon,
            "left": left["running"] + left["waiting"]}


async def soak(a):
    """Users of all kinds for a long time. Each whole reply must be the one that its question got when it was alone."""
    server = carat_server(a, "--parallel", "16")
    problems, counts = [], {"whole": 0, "left": 0, "malformed": 0, "slow": 0, "refused": 0}
    try:
        await server.ready()
        bodies = [{**question(i, words=8 + i * 3), "max_tokens": 12 + i % 24, "temperature": 0 if i % 2 else 1.0, "seed": i} for i in range(40)]
        expected = []
        for body in bodies:
            expected.append((await chat(server.port, body)).text)
        end = time.monotonic() + a.minutes * 60
        memory = []

        async def user(number):
            r = random.Random(number)
            while time.monotonic() < end:
                kind = r.random()
                i = r.randrange(len(bodies))
                try:
                    if kind < 0.7:
                        reply = await chat(server.port, bodies[i])
                        if reply.error:
                            counts["refused"] += 1
                        else:
                            counts["whole"] += 1
                            if reply.text != expected[i] or not reply.usage:
                                problems.append(f"question {i} got {reply.text!r}, expected {expected[i]!r}")
                    elif kind < 0.85:
                        await chat(server.port, bodies[i], leave_after=r.randrange(1, 4000))
                        counts["left"] += 1
                    elif kind < 0.95:
                        data = json.dumps(bodies[i]).encode()
                        junk = r.choice([data[: r.randrange(len(data))], bytes(r.randrange(256) for _ in range(200)),
                                         data.replace(b"messages", b"massages"), b"[" * 5000])
                        status, _ = await ask(server.port, "POST", "/v1/chat/completions", junk)
                        counts["malformed"] += 1
                        if status not in (400, 413, 429):
                            problems.append(f"junk was answered with {status}")
                    else:  # one byte a second until the server has had enough
                        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
                        for byte in b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"[: r.randrange(4, 30)]:
                            if writer.is_closing():
                                break
                            writer.write(bytes([byte]))
                            await asyncio.sleep(1)
                        writer.close()
                        counts["slow"] += 1
                except (ConnectionError, asyncio.IncompleteReadError) as error:
                    if kind < 0.7:
                        problems.append(f"a whole reply ended with {error!r}")

        async def watch():
            while time.monotonic() < end:
                await asyncio.sleep(min(10.0, a.minutes * 6))
                memory.append(server.memory()[1])
                if server.process.poll() is not None:
                    problems.append(f"the server ended with {server.process.returncode}")
                    return

        await asyncio.gather(watch(), *(user(n) for n in range(a.users)))
        await asyncio.sleep(2)
        _, body = await ask(server.port, "GET", "/stats")
        stats = json.loads(body)
        left = stats["models"][0]["running"] + stats["models"][0]["waiting"]
        if left:
            problems.append(f"{left} generations are left over")
    finally:
        server.stop()
    # The first fifth fills the prefix cache and the allocator.
    steady = memory[len(memory) // 5:]
    third = max(1, len(steady) // 3)
    growth = statistics.median(steady[-third:]) / statistics.median(steady[:third]) - 1
    print(f"{a.minutes:g} minutes, {a.users} users: {counts}; memory not mapped from files {steady[0] / 2**20:.0f} -> {steady[-1] / 2**20:.0f} MiB "
          f"(growth from the first to the last third {growth:+.1%}); {len(problems)} problems")
    for problem in problems[:5]:
        print("  " + problem)
    return {"counts": counts, "growth": growth, "problems": len(problems), "memory": memory}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    for name, action in (("throughput", throughput), ("first-token", first_token), ("idle", idle), ("soak", soak)):
        verb = verbs.add_parser(name)
        verb.set_defaults(action=action)
        verb.add_argument("--carat", required=True, help="the carat command")
        verb.add_argument("--model", required=True, help="a GGUF file")
        verb.add_argument("--threads", type=int, default=0)
        verb.add_argument("--json", help="write the result here")
        if name == "throughput":
            verb.add_argument("--llama-server", help="llama.cpp's server, measured in turns")
            verb.add_argument("--tokens", type=int, default=128)
            verb.add_argument("--rounds", type=int, default=3)
        if name in ("throughput", "idle"):
            verb.add_argument("--streams", type=int, default=64 if name == "throughput" else 1000)
        if name == "first-token":
            verb.add_argument("--long", type=int, default=8000, help="tokens of a long prompt")
            verb.add_argument("--seconds", type=float, default=60)
        if name == "soak":
            verb.add_argument("--minutes", type=float, default=30)
        if name in ("first-token", "soak"):
            verb.add_argument("--users", type=int, default=4 if name == "first-token" else 24)
    a = parser.parse_args()
    try:
        result = asyncio.run(a.action(a))
    except Failure as failure:
        sys.exit(f"serve_load: {failure}")
    if a.json:
        pathlib.Path(a.json).write_text(json.dumps(result, indent=1))
    if result.get("problems"):
        sys.exit(1)


if __name__ == "__main__":
    main()
