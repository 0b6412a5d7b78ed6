#!/usr/bin/env python3
"""Draws what the other instruments measured: one SVG a subject.

    plot.py JSON... --out DIR

The kind of each file is seen from its content:
    scaling.py --json               scaling_context.svg, scaling_batch.svg, …: a line a model, its rounds as a bar through each point
    roofline MODEL --json           roofline.svg: what share of the machine's limit each step reaches
    kernels_bench --benchmark_out   kernels_dot.svg, …: a bar a kernel; lines for the limits where a roofline file is given, too
    vs_*.py --json                  peers.svg: how many times faster or smaller carat is

Needs nothing but Python. The drawings follow the reader's light or dark mode. Prints the names of the files that it wrote.
"""
import argparse
import html
import json
import pathlib
import sys

WIDTH = 760
COLOURS = ("#2f81d9", "#d9730d", "#1f9d62", "#b14fc5", "#8f7d00", "#d0436e")  # apart on white and on near-black
STYLE = """
text { fill: #1f2328; font: 13px system-ui, 'DejaVu Sans', sans-serif; }
.paper { fill: #ffffff; } .grid { stroke: #d8dee4; } .axis, .limit { stroke: #57606a; }
.soft { fill: #57606a; font-size: 12px; } .title { font-size: 15px; font-weight: 600; }
.limit { stroke-dasharray: 5 4; stroke-width: 1.5; } .series { fill: none; stroke-width: 2.5; }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3; } .paper { fill: #0d1117; } .grid { stroke: #2d333b; } .axis, .limit { stroke: #9aa4af; } .soft { fill: #9aa4af; }
}
"""


def short(value):
    """1234567 as "1.23 M": three digits that matter."""
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.3g}"


def plain(value):
    """Three digits, or all that stand before the point."""
    return f"{value:.0f}" if value >= 1000 else f"{value:.3g}"


def tokens(value):
    return f"{value // 1024}k" if value >= 1024 and value % 1024 == 0 else str(value)


def ticks(most):
    """About five round steps from 0 to at least `most`."""
    if most <= 0:
        return [0, 1]
    step = 10.0 ** len(str(int(most)))
    while step > most / 4:
        step = next(step * factor for factor in (0.5, 0.2, 0.1) if step * factor <= most / 4 or factor == 0.1)
    count = int(-(-most // step))
    return [step * i for i in range(count + 1)]


class Drawing:
    def __init__(self, height, title, subtitle):
        self.height = height
        self.parts = []
        self.text(16, 26, title, "title")
        self.text(16, 45, subtitle, "soft")

    def text(self, x, y, content, kind="", anchor="start", turn=""):
        attributes = (f' class="{kind}"' if kind else "") + (f' text-anchor="{anchor}"' if anchor != "start" else "") + turn
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}"{attributes}>{html.escape(str(content))}</text>')

    def line(self, x1, y1, x2, y2, kind="", colour=""):
        look = f'class="{kind}"' if kind else f'stroke="{colour}" stroke-width="1.5"'
        self.parts.append(f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" {look}/>')

    def legend(self, names, y):
        x = 16
        for i, name in enumerate(names):
            self.parts.append(f'<rect x="{x}" y="{y - 9}" width="12" height="10" rx="2" fill="{COLOURS[i % len(COLOURS)]}"/>')
            self.text(x + 18, y, name)
            x += 40 + 7.5 * len(name)

    def svg(self, title):
        body = "\n".join(self.parts)
        return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self.height}" width="{WIDTH}" height="{self.height}" role="img">\n'
                f'<title>{html.escape(title)}</title>\n<style>{STYLE}</style>\n<rect class="paper" width="100%" height="100%"/>\n{body}\n</svg>\n')


def line_chart(title, subtitle, x_label, y_label, series):
    """series: name -> [(x, y, least, most)]. The x values stand side by side, as they double from one to the next."""
    height, left, right, top, bottom = 400, 66, 24, 88, 340
    drawing = Drawing(height, title, subtitle)
    drawing.legend(list(series), 68)
    xs = sorted({point[0] for points in series.values() for point in points})
    marks = ticks(max(point[3] for points in series.values() for point in points))

    def place_x(x):
        return left + 24 + (WIDTH - left - right - 48) * xs.index(x) / max(1, len(xs) - 1)

    def place_y(y):
        return bottom - (bottom - top) * y / marks[-1]
    for mark in marks:
        drawing.line(left, place_y(mark), WIDTH - right, place_y(mark), "axis" if mark == 0 else "grid")
        drawing.text(left - 8, place_y(mark) + 4, short(mark), "soft", "end")
    for x in xs:
        drawing.text(place_x(x), bottom + 20, tokens(x), "soft", "middle")
    drawing.text((left + WIDTH - right) / 2, height - 14, x_label, "", "middle")
    drawing.text(18, (top + bottom) / 2, y_label, "", "middle", f' transform="rotate(-90 18 {(top + bottom) / 2})"')
    for i, points in enumerate(series.values()):
        colour = COLOURS[i % len(COLOURS)]
        path = " ".join(f"{place_x(x):.1f},{place_y(y):.1f}" for x, y, _, _ in points)
        drawing.parts.append(f'<polyline class="series" stroke="{colour}" points="{path}"/>')
        for x, y, least, most in points:
            drawing.line(place_x(x), place_y(least), place_x(x), place_y(most), colour=colour)
            drawing.parts.append(f'<circle cx="{place_x(x):.1f}" cy="{place_y(y):.1f}" r="3.5" fill="{colour}"/>')
    return drawing.svg(title)


def bar_chart(title, subtitle, x_label, bars, limits=(), groups=()):
    """bars: (label, value, group, note at the end of the bar), neighbours of one label under one; limits: (name, value) drawn as
    lines; groups name colours."""
    row, gap, left, right = 18, 6, 24 + 7.6 * max(len(bar[0]) for bar in bars), 24
    starts = [i == 0 or bars[i - 1][0] != bar[0] for i, bar in enumerate(bars)]
    note_room = 12 + 6.6 * max(len(bar[3]) for bar in bars)
    top = 62 + (22 if groups else 0) + 16 * len(limits)
    bottom = top + row * len(bars) + gap * sum(starts) + gap
    drawing = Drawing(bottom + 52, title, subtitle)
    if groups:
        drawing.legend(groups, 68)
    marks = ticks(max([bar[1] for bar in bars] + [value for _, value in limits]))

    def place(value):
        return left + (WIDTH - left - right - note_room) * value / marks[-1]
    for mark in marks:
        drawing.line(place(mark), top, place(mark), bottom, "axis" if mark == 0 else "grid")
        drawing.text(place(mark), bottom + 16, short(mark), "soft", "middle")
    drawing.text((left + place(marks[-1])) / 2, bottom + 40, x_label, "", "middle")
    for i, (label, value, group, note) in enumerate(bars):
        y = top + row * i + gap * sum(starts[:i + 1])
        if starts[i]:
            drawing.text(left - 8, y + 12, label, "", "end")
        colour = COLOURS[(groups.index(group) if groups else 0) % len(COLOURS)]
        drawing.parts.append(f'<rect x="{left}" y="{y}" width="{max(0.0, place(value) - left):.1f}" height="{row - 3}" rx="2" fill="{colour}"/>')
        drawing.text(place(value) + 6, y + 12, note, "soft")
    for i, (name, value) in enumerate(limits):
        y = top - 6 - 16 * i
        drawing.line(place(value), y - 8, place(value), bottom, "limit")
        drawing.text(place(value) - 5, y, name, "soft", "end")
    return drawing.svg(title)


def draw_scaling(files):
    titles = {"context": "Decoding against context", "batch": "Decoding many sequences together", "prompt": "Reading a prompt",
              "threads": "Decoding against threads", "threads_prefill": "Reading a prompt against threads"}
    drawn = {}
    models = [file["model"] for file in files]
    for name, title in titles.items():
        series, labels = {}, None
        for file in files:
            for sweep in file["sweeps"]:
                if sweep["name"] != name or not sweep["points"]:
                    continue
                labels = sweep
                label = file["model"] if models.count(file["model"]) == 1 else f"{file['model']}, {file['device']}"
                series[label] = [(p["x"], p["tokens_per_second"], min(p["rounds"]), max(p["rounds"])) for p in sweep["points"]]
        if series:
            devices = " / ".join(sorted({file["device"] for file in files}))
            drawn[f"scaling_{name}"] = line_chart(title, devices, labels["x"], f"{labels['metric']}, tokens a second", series)
    return drawn


def draw_roofline(files):
    bars = []
    for file in files:
        for step in file.get("steps", []):
            note = f"{step['share']:.0%}: {step['tokens_per_second']:.4g} of {step['limit_tokens_per_second']:.4g} tok/s, {step['bound']}"
            bars.append((f"{step['step']} {file['model']} {file['isa']}", 100 * step["share"], step["step"], note))
    if not bars:
        return {}
    groups = [name for name in ("prefill", "decode") if any(bar[2] == name for bar in bars)]
    threads = " / ".join(sorted({str(file["machine"]["threads"]) for file in files}))
    return {"roofline": bar_chart("Share of what the machine can do at most", f"{threads} threads; behind each bar the rates, and what limits them",
                                  "% of the limit", bars, [("the limit", 100)], groups)}


def machine_limits(rooflines):
    """What one thread of the machine can do at most: bandwidth, and multiply-adds by ISA; empty without a roofline file."""
    if not rooflines:
        return None, {}, {}
    machine = rooflines[-1]["machine"]
    bandwidth = next(b["one_thread_bytes_per_second"] for b in machine["bandwidth"] if b["memory"] == "mapped_file")
    integer, floating = {}, {}
    for peak in machine["peaks"]:
        rate = peak["one_thread_macs_per_second"]
        if peak["kind"] == "fma":
            floating[peak["isa"]] = rate
        else:  # activations have two bytes, so a product takes two of bytes
            integer[peak["isa"]] = max(integer.get(peak["isa"], 0), rate / (2 if peak["kind"] == "int8" else 1))
    return bandwidth, integer, floating


def draw_kernels(files, rooflines):
    bandwidth, integer, floating = machine_limits(rooflines)
    memory = [("read bandwidth, mapped file", bandwidth)] if bandwidth else []
    integer = [(f"{isa} integer peak", rate) for isa, rate in integer.items()]
    flops = [(f"{isa} float32 peak", 2 * rate) for isa, rate in floating.items()]
    subjects = {  # file: (title, counter, unit, limits, which names)
        "kernels_dot": ("Rows of weights times one token, from memory", "bytes_per_second", "bytes of weights a second", memory,
                        lambda p: p[0] == "dot" and p[-1] == "memory"),
        "kernels_dot_cache": ("Rows of weights times one token, from the L2 cache", "macs", "multiply-adds a second", integer,
                              lambda p: p[0] == "dot" and p[-1] == "L2"),
        "kernels_gemm": ("Weights times 512 tokens", "macs", "multiply-adds a second", integer, lambda p: p[0] == "gemm"),
        "kernels_attention_decode": ("Attention of one token to 32k", "bytes_per_second", "bytes of keys and values a second", memory,
                                     lambda p: p[0] == "attention_decode"),
        "kernels_attention_prefill": ("Attention of 512 tokens to 1,024", "flops", "operations a second", flops,
                                      lambda p: p[0] == "attention_prefill"),
        "kernels_rows": ("Kernels over rows of activations", "bytes_per_second", "bytes read and written a second", [],
                         lambda p: p[0] in ("quantize", "rms_norm", "gelu_mul", "softcap")),
    }
    runs = [run for file in files for run in file["benchmarks"] if run.get("run_type", "iteration") == "iteration"]
    drawn = {}
    for name, (title, counter, unit, limits, chosen) in subjects.items():
        bars = []
        for run in runs:
            parts = run["name"].split("/")
            if chosen(parts) and counter in run:
                shown = parts[:1] if name == "kernels_rows" else [part for part in parts[2:] if part not in ("memory", "L2")]
                bars.append((" ".join(shown), run[counter], parts[1], short(run[counter])))
        if bars:
            groups = sorted({bar[2] for bar in bars})
            order = [bar[0] for bar in bars]
            bars.sort(key=lambda bar: order.index(bar[0]))  # one format's instruction sets side by side
            limits = [limit for limit in limits if limit[0].split()[0] in groups or limit in memory]
            drawn[name] = bar_chart(title, "one thread", unit, bars, limits, groups)
    return drawn


def draw_peers(files):
    words = {"prefill": "prefill", "decode": "decode", "peak memory": "memory", "first token": "first token"}
    units = {"prefill": ("tok/s", 1), "decode": ("tok/s", 1), "peak memory": ("MiB", 2**20), "first token": ("s", 1)}
    bars = []
    for file in files:
        for metric, row in file["summary"].items():
            if "ratio" not in row:
                continue
            own, other = row["carat"]["median"], row[file["peer"]]["median"]
            gain = own / other if units[metric][0] == "tok/s" else other / own
            unit, divisor = units[metric]
            note = f"{gain:.2f} ×: {plain(own / divisor)} against {plain(other / divisor)} {unit}"
            bars.append((f"{words[metric]} {file['model']}", gain, file["peer"], note))
    if not bars:
        return {}
    groups = sorted({bar[2] for bar in bars})
    threads = " / ".join(sorted({str(file["threads"]) for file in files}))
    return {"peers": bar_chart("carat beside other engines", f"same file, {threads} threads, medians of alternating rounds",
                               "times faster, or times less", bars, [("the same", 1.0)], groups)}


def kind_of(file):
    if not isinstance(file, dict):
        return None
    return "kernels" if "benchmarks" in file else file.get("kind")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", metavar="JSON", nargs="+", type=pathlib.Path)
    parser.add_argument("--out", required=True, type=pathlib.Path, help="directory for the drawings")
    a = parser.parse_args()
    kinds = {"scaling": [], "roofline": [], "kernels": [], "side_by_side": []}
    for path in a.files:
        try:
            file = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            sys.exit(f"plot.py: {path}: {error}")
        if kind_of(file) not in kinds:
            sys.exit(f"plot.py: {path}: not the output of scaling.py, roofline, kernels_bench or a vs_*.py script")
        kinds[kind_of(file)].append(file)
    drawn = (draw_scaling(kinds["scaling"]) | draw_roofline(kinds["roofline"]) | draw_kernels(kinds["kernels"], kinds["roofline"]) |
             draw_peers(kinds["side_by_side"]))
    a.out.mkdir(parents=True, exist_ok=True)
    for name, text in drawn.items():
        path = a.out / f"{name}.svg"
        path.write_text(text, encoding="utf-8")
        print(path)


if __name__ == "__main__":
    main()
