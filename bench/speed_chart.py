#!/usr/bin/env python3
"""Draws docs/speed.svg, the chart of README: a linear layer in 8 bits beside other libraries, at several numbers of rows.

usage: speed_chart.py [--json bench.json] [--ort bench_ort.json] [--cpu NAME] [--output docs/speed.svg] [--check]

The figures are those of ./dev bench --ort. kvant is quantized_linear: floats in, floats out, activations quantized
inside, which is all that a program waits for. Peers of which a file has no figures are left out. Bars of libraries whose
sums came out wrong on codes of the full range are hatched. --check writes nothing and fails if the file differs.

The chart is one SVG file without scripts and fonts of its own. It brings its background with it and follows the dark
mode of the system, so that it can be read on any page.
"""
import argparse
import json
import pathlib
import sys
from xml.sax.saxutils import escape

from processor import processor

ROOT = pathlib.Path(__file__).resolve().parent.parent

KVANT = "quantized_linear"
# The name in the files, the name in the legend, whether it multiplies 8-bit codes, the class of its colour.
PEERS = [
    ("ort_dynamic", "ONNX Runtime", True, "ort"),
    ("onednn_u8s8", "oneDNN", True, "onednn"),
    ("openblas_sgemm", "OpenBLAS", False, "f32"),
]
BASELINE = "openblas_sgemm"  # what "times as fast" compares with

LAYER = (4096, 4096)  # K, N
THREADS = 2

# In pixels.
WIDTH, HEIGHT = 860, 440
LEFT, RIGHT, TOP, BOTTOM = 64, 24, 118, 88
BAR, GAP = 38, 4
LETTER = 7.8  # of the legend, in the widest of the usual fonts

STYLE = """
 .card{fill:#ffffff;stroke:#d0d7de} .text{fill:#1f2328} .soft{fill:#59636e} .grid{stroke:#d8dee4}
 .kvant{fill:#0b62d6} .ort{fill:#c2630a} .onednn{fill:#0f8a7e} .f32{fill:#8c959f} .line{stroke:#ffffff}
 @media (prefers-color-scheme: dark){
 .card{fill:#0d1117;stroke:#30363d} .text{fill:#e6edf3} .soft{fill:#9aa4ae} .grid{stroke:#272e36}
 .kvant{fill:#4c9bff} .ort{fill:#e08a3c} .onednn{fill:#35b8a8} .f32{fill:#7d8590} .line{stroke:#0d1117}}
 text{font-family:system-ui,-apple-system,"Segoe UI","Helvetica Neue",Arial,sans-serif;font-size:13px}
 .title{font-size:19px;font-weight:600} .strong{font-weight:600} .small{font-size:12px}
"""


def read_speeds(rows, ort_rows):
    """M -> name -> (billion multiplications per second, whether its sums are right), of LAYER on THREADS threads."""
    speeds = {}

    def wanted(row):
        return "macs" in row and tuple(row["shape"][1:]) == LAYER and row["threads"] == THREADS

    for row in rows:
        if not wanted(row) or row["op"] != KVANT or row["mode"] != "bell":
            continue
        by = speeds.setdefault(row["shape"][0], {})
        by[KVANT] = (row["macs"] / row["seconds"] / 1e9, True)
        for peer in row["peers"]:
            by[peer["name"]] = (row["macs"] / peer["seconds"] / 1e9, peer["sums"] != "wrong")
    for row in ort_rows:
        if wanted(row) and row["shape"][0] in speeds:
            speeds[row["shape"][0]][row["op"]] = (row["macs"] / row["seconds"] / 1e9, row["sums"] != "wrong")
    return dict(sorted(speeds.items()))


def axis_step(largest):
    """The distance of grid lines: 1, 2 or 5 times a power of ten, so that there are three to seven of them."""
    step = 1.0
    while largest / step > 7:
        step *= 10
    while largest / step < 3:
        step /= 10
    return step * next(factor for factor in (1, 2, 5, 10) if largest / (step * factor) <= 7)


def number(value):
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}"


def chart(speeds, cpu):
    """The SVG as text."""
    if not speeds:
        sys.exit(f"speed_chart: no {KVANT} of {LAYER[0]} x {LAYER[1]} on {THREADS} threads among the figures; "
                 "run ./dev bench, without --filter or with one that takes in 'linear/'")
    present = [peer for peer in PEERS if any(peer[0] in by for by in speeds.values())]
    series = [(KVANT, "kvant", True, "kvant")] + present
    largest = max(speed for by in speeds.values() for speed, _ in by.values())
    step = axis_step(largest)
    top_value = step * -(-largest // step)
    plot_width, plot_height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    bottom = TOP + plot_height

    def y_of(value):
        return bottom - plot_height * value / top_value

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
           'role="img" aria-labelledby="title desc">']

    def text(x, y, content, css, anchor="start", more=""):
        out.append(f'<text x="{x:.1f}" y="{y:.1f}" class="{css}" text-anchor="{anchor}"{more}>{escape(content)}</text>')

    title = f"Speed of a linear layer, {LAYER[0]} × {LAYER[1]}, {THREADS} threads"
    described = "; ".join(f"{m} rows: " + ", ".join(f"{name} {number(by[key][0])}" for key, name, _, _ in series if key in by)
                          for m, by in speeds.items())
    out.append(f'<title id="title">{escape(title)}</title>')
    out.append(f'<desc id="desc">Billion multiplications per second. {escape(described)}.</desc>')
    out.append(f"<style>{STYLE}</style>")
    out.append('<defs><pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
               '<path class="line" d="M3 0V6" stroke-width="2"/></pattern></defs>')
    out.append(f'<rect class="card" x="0.5" y="0.5" width="{WIDTH - 1}" height="{HEIGHT - 1}" rx="8"/>')
    text(24, 36, title, "title text")

    def bar(x, width, y, height, css, exact):
        shape = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="2"'
        out.append(f'<rect class="{css}" {shape}/>')
        if not exact:
            out.append(f'<rect fill="url(#hatch)" {shape}/>')

    x, hatched = 24.0, False
    for key, name, eight_bits, css in series:
        exact = all(by[key][1] for by in speeds.values() if key in by)
        hatched |= not exact
        label = f"{name}, {'8 bits' if eight_bits else 'f32'}"
        bar(x, 14, 56, 14, css, exact)
        text(x + 20, 68, label, "strong text" if key == KVANT else "text")
        x += 20 + LETTER * len(label) + 24
    text(24, 98, "billion multiplications per second, higher is better", "small soft")
    if hatched:
        text(WIDTH - RIGHT, 98, "hatched: sums saturate, so results can be wrong; kvant's are exact", "small soft", "end")

    value = 0.0
    while value <= top_value + step / 2:
        y = y_of(value)
        out.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>')
        text(LEFT - 8, y + 4, f"{value:g}", "small soft", "end")
        value += step

    group = plot_width / len(speeds)
    for index, (m, by) in enumerate(speeds.items()):
        middle = LEFT + group * (index + 0.5)
        here = [one for one in series if one[0] in by]
        x = middle - (len(here) * (BAR + GAP) - GAP) / 2
        for key, _, _, css in here:
            speed, exact = by[key]
            bar(x, BAR, y_of(speed), bottom - y_of(speed), css, exact)
            text(x + BAR / 2, y_of(speed) - 6, number(speed), "strong text" if key == KVANT else "small soft", "middle")
            x += BAR + GAP
        text(middle, bottom + 20, "1 row" if m == 1 else f"{m} rows", "strong text", "middle")
        if BASELINE in by:
            text(middle, bottom + 37, f"kvant: {number(by[KVANT][0] / by[BASELINE][0])} times f32", "small soft", "middle")
    text(LEFT + plot_width / 2, bottom + 56, "rows of activations in one call (1: generating a token; many: reading a prompt)",
         "small soft", "middle")
    text(WIDTH - RIGHT, HEIGHT - 12, f"made by bench/speed_chart.py from ./dev bench on {cpu}", "small soft", "end")
    out.append("</svg>")
    return "\n".join(out) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", type=pathlib.Path, default=ROOT / "bench.json", help="what ./dev bench wrote")
    parser.add_argument("--ort", type=pathlib.Path, default=ROOT / "bench_ort.json", help="what ./dev bench --ort wrote; may be absent")
    parser.add_argument("--cpu", default=None, help="where the figures were measured; this machine unless told")
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "docs/speed.svg")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the output differs from the figures")
    arguments = parser.parse_args()
    if not arguments.json.exists():
        sys.exit(f"speed_chart: {arguments.json} is not here; ./dev bench --ort writes it")
    ort_rows = json.loads(arguments.ort.read_text()) if arguments.ort.exists() else []
    svg = chart(read_speeds(json.loads(arguments.json.read_text()), ort_rows), arguments.cpu or processor())
    if not arguments.check:
        arguments.output.write_text(svg)
    elif not arguments.output.exists() or arguments.output.read_text() != svg:
        sys.exit(f"speed_chart: {arguments.output} is not what {arguments.json} gives; run bench/speed_chart.py")


if __name__ == "__main__":
    main()
