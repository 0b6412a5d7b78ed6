"""carat beside another engine on the same model and machine: what the vs_*.py scripts share.

Each round runs both engines once, in alternating order, so that a drifting clock or a noisy neighbour meets both. Reported are
medians over the rounds, the spread ((max - min) / median), and the ratio carat / peer.
"""
import dataclasses
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

FIRST_TOKEN_PROMPT = "Explain in one sentence why the sky is blue."
METRICS = {  # name: (unit, divisor, higher is better)
    "prefill": ("tok/s", 1, True),
    "decode": ("tok/s", 1, True),
    "peak memory": ("MiB", 2**20, False),
    "first token": ("s", 1, False),
}
UNAVAILABLE = 3  # exit status: the peer cannot be had here, or refuses the model


class Failure(Exception):
    """A sentence for the user."""


class Unavailable(Failure):
    """There is no comparison to make: not carat's failure, nor the script's."""


@dataclasses.dataclass
class Engine:
    name: str
    bench: object  # arguments -> (metric -> value, raw output)
    first_token: object = None  # arguments -> command that generates one token in a fresh process; None where there is none


def run(command):
    """(stdout, seconds, peak resident bytes) of a process; Failure if it fails."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        start = time.monotonic()
        try:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
        except OSError as error:
            raise Failure(f"{command[0]}: {error.strerror}") from error
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.monotonic() - start
        process.returncode = os.waitstatus_to_exitcode(status)  # reaped here: Popen must not wait for it again
        out.seek(0)
        err.seek(0)
        if process.returncode != 0:
            tail = err.read().decode(errors="replace").strip().splitlines()[-5:]
            raise Failure(f"{' '.join(command)}\nexit status {process.returncode}: " + "\n".join(tail))
        # The kernel counts a child from its fork on, so this is never below what Python holds, some 15 MiB.
        unit = 1 if sys.platform == "darwin" else 1024  # ru_maxrss is in bytes on macOS, in KiB elsewhere
        return out.read().decode(errors="replace"), seconds, usage.ru_maxrss * unit


def parse_json(text, command):
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise Failure(f"{' '.join(command)}\nprinted no JSON: {error}") from error


def number(entry, field, command):
    value = entry.get(field)
    if not isinstance(value, (int, float)):
        raise Failure(f"{' '.join(command)}\nfield {field}: {value!r}, expected a number")
    return value


def bench_carat(a):
    command = [a.carat, "bench", a.model, "--prompt", str(a.prompt), "--generate", str(a.generate), "--threads", str(a.threads),
               "--rounds", "1", "--json"]
    text, _, _ = run(command)
    result = parse_json(text, command)
    values = {"prefill": number(result, "prefill_tokens_per_second", command),
              "decode": number(result, "decode_tokens_per_second", command),
              "peak memory": number(result, "peak_rss_bytes", command)}
    return values, result


def first_token_carat(a):
    return [a.carat, "generate", a.model, "--raw", FIRST_TOKEN_PROMPT, "--max-tokens", "1", "--threads", str(a.threads)]


CARAT = Engine("carat", bench_carat, first_token_carat)


def prepare_venv(directory, package, from_source=False):
    """The Python of a virtual environment that has a PyPI package, made when it is not there. Ends the process with UNAVAILABLE
    where that fails."""
    python, stamp, log = directory / "bin" / "python", directory / "stamp", directory / "install.log"
    wanted = f"{package} from {'source' if from_source else 'a wheel'}"
    if python.exists() and stamp.exists() and stamp.read_text() == wanted:
        return python
    print(f"installing {wanted} in {directory}", file=sys.stderr, flush=True)
    source = ["--no-binary", package] if from_source else []
    for command in ([sys.executable, "-m", "venv", "--clear", directory],
                    [python, "-m", "pip", "install", "--disable-pip-version-check", *source, package]):
        done = subprocess.run(command, capture_output=True, text=True, check=False,
                              env=os.environ | {"CMAKE_ARGS": "-DGGML_NATIVE=ON -DCMAKE_BUILD_TYPE=Release"})
        if done.returncode != 0:
            directory.mkdir(parents=True, exist_ok=True)
            log.write_text(done.stdout + done.stderr)
            leave(f"{package} cannot be installed; {log} says why")
    stamp.write_text(wanted)
    return python


def scripted_peer(name, python, script, model):
    """An engine that a script beside this file times: SCRIPT MODEL PROMPT GENERATE THREADS prints {"prefill", "decode"} as JSON, or
    exits with UNAVAILABLE when it is refused the model."""
    def bench(a):
        command = [str(python), str(pathlib.Path(__file__).with_name(script)), str(model), str(a.prompt), str(a.generate), str(a.threads)]
        try:
            text, _, peak = run(command)
        except Failure as failure:
            if f"exit status {UNAVAILABLE}" in str(failure):
                raise Unavailable(f"{name} refuses {model}:\n{failure}") from failure
            raise
        result = parse_json(text, command)
        values = {metric: number(result, metric, command) for metric in ("prefill", "decode")}
        return values | {"peak memory": peak}, result
    return Engine(name, bench)


def evict(path):
    """Drops a file, or the files of a directory, from the page cache."""
    path = pathlib.Path(path)
    for name in path.iterdir() if path.is_dir() else [path]:
        with open(name, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def measure(engines, a):
    """engine -> metric -> list of values, and the raw output of the last round of each engine."""
    samples = {engine.name: {metric: [] for metric in METRICS} for engine in engines}
    raw = {}
    for round_number in range(a.rounds):
        for engine in engines if round_number % 2 == 0 else reversed(engines):
            values, raw[engine.name] = engine.bench(a)
            if engine.first_token is not None:
                if a.evict:
                    evict(a.model)
                values["first token"] = run(engine.first_token(a))[1]
            for metric, value in values.items():
                samples[engine.name][metric].append(value)
            shown = ", ".join(f"{metric} {value / METRICS[metric][1]:.2f} {METRICS[metric][0]}" for metric, value in values.items())
            print(f"round {round_number + 1}: {engine.name}: {shown}", file=sys.stderr, flush=True)
    return samples, raw


def summarise(samples):
    """metric -> engine -> {median, spread, values}, and the ratio of the first engine to the second."""
    first, second = samples
    summary = {}
    for metric in METRICS:
        row = {}
        for name, values in samples.items():
            if values[metric]:
                median = statistics.median(values[metric])
                row[name] = {"median": median, "spread": (max(values[metric]) - min(values[metric])) / median if median else 0.0,
                             "values": values[metric]}
        if len(row) == 2 and row[second]["median"]:
            row["ratio"] = row[first]["median"] / row[second]["median"]
        summary[metric] = row
    return summary


def show(summary, raw, peer, a):
    print(f"{pathlib.Path(a.model).name}: prompt {a.prompt}, generate {a.generate}, {a.threads} threads, medians of {a.rounds} rounds")
    print(f"{'':14}{'carat':>12}{'spread':>9}{peer:>14}{'spread':>9}{'ratio':>9}")
    for metric, (unit, divisor, higher) in METRICS.items():
        line = f"{metric:14}"
        for name, width in (("carat", 12), (peer, 14)):
            entry = summary[metric].get(name)
            line += f"{entry['median'] / divisor:{width}.2f}{entry['spread']:9.1%}" if entry else f"{'n/a':>{width}}{'':9}"
        ratio = summary[metric].get("ratio")
        better = "" if ratio in (None, 1) else " better" if (ratio > 1) == higher else " worse"
        print(line + (f"{ratio:8.2f}x" if ratio is not None else f"{'n/a':>9}") + f"  {unit}{better}")
    own = raw["carat"]
    if isinstance(own.get("decode_bytes_per_token"), (int, float)) and own.get("read_bandwidth_bytes_per_second"):
        used = own["decode_bytes_per_token"] * summary["decode"]["carat"]["median"]
        print(f"carat decode reads {own['decode_bytes_per_token'] / 2**20:.1f} MiB per token: {used / 1e9:.1f} GB/s, "
              f"{used / own['read_bandwidth_bytes_per_second']:.0%} of the rate at which this machine reads them")


def add_arguments(parser):
    parser.add_argument("--carat", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count())
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--generate", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", metavar="OUT", help="write everything that was measured to this file")
    parser.add_argument("--evict", action="store_true", help="start from disk: drop the file from the page cache before timing the first token")


def check_arguments(parser, a):
    if min(a.threads, a.prompt, a.generate, a.rounds) < 1:
        parser.error("--threads, --prompt, --generate and --rounds must be at least 1")
    if not pathlib.Path(a.model).exists():
        parser.error(f"{a.model} does not exist")


def compare(peer, a):
    """Measures carat and the peer, prints the table, writes --json. Ends the process with a sentence where that fails."""
    load, cpus = os.getloadavg()[0], os.cpu_count()
    if load > 0.25 * cpus:
        print(f"warning: load average {load:.1f} on {cpus} CPUs: the numbers will be noisy", file=sys.stderr)
    try:
        samples, raw = measure([CARAT, peer], a)
    except Unavailable as reason:
        leave(reason)
    except Failure as failure:
        sys.exit(str(failure))
    summary = summarise(samples)
    show(summary, raw, peer.name, a)
    if a.json:
        pathlib.Path(a.json).write_text(json.dumps({
            "kind": "side_by_side", "peer": peer.name, "model": os.path.basename(a.model), "prompt": a.prompt, "generate": a.generate,
            "threads": a.threads, "rounds": a.rounds, "load_average_at_start": load, "evicted": a.evict, "summary": summary,
            "last_round": raw}, indent=2) + "\n")


def leave(reason):
    print(f"no comparison: {reason}", file=sys.stderr)
    sys.exit(UNAVAILABLE)
