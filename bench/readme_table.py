#!/usr/bin/env python3
"""Rewrites the table of figures in README.md from bench.json, so that no number there is typed by hand.

usage: python3 bench/readme_table.py   (after ./dev bench)
"""
import json
import pathlib
import platform
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- bench: begin -->", "<!-- bench: end -->"


def processor():
    """Name, family and caches as Linux tells them; virtual machines hide the model's name."""
    text = pathlib.Path("/proc/cpuinfo").read_text()
    found = {key: re.search(rf"^{key}\s*: (.*)$", text, re.M) for key in ("model name", "cpu family", "model")}
    values = {key: match.group(1) if match else "?" for key, match in found.items()}
    cores = len(re.findall(r"^processor\s*:", text, re.M))
    return f"{values['model name']} (family {values['cpu family']}, model {values['model']}), {cores} cores, {platform.system()}"


def dynamic_range(rows, cell):
    """The table of dynamic-range quantization to s8, and the latency of one row."""
    columns = (("token", None, 0), ("group", -1, 128), ("group", -1, 32), ("tensor", None, 0), ("channel", 0, 0),
               ("channel", 1, 0))
    cases, latency = {}, []
    for row in rows:
        if row["op"] != "dynamic_range":
            continue
        if "limit_share" not in row:
            latency.append(f"- dynamic range {row['in']} → {row['out']}, {row['mode']}, one row of {row['shape'][-1]} on "
                           f"one thread: {row['seconds'] * 1e9:.0f} ns")
        elif row["out"] == "s8" and not (row["granularity"] == "group" and row.get("axis") == 0):
            axis = row.get("axis") if row["granularity"] == "channel" else -1 if row["granularity"] == "group" else None
            key = (row["granularity"], axis, row.get("group_size", 0))
            cases.setdefault((row["mode"], row["in"], row["threads"]), {})[key] = row
    lines = ["", "Dynamic-range quantization to s8, shape [16384, 4096]; the limit reads once and writes once, for tensor",
             "and for channels of axis 1 reads twice:", "",
             "| mode | input | threads | token | group of 128 | group of 32 | tensor | channel, axis 0 | channel, axis 1 |",
             "|---|---|---|---|---|---|---|---|---|"]
    for (mode, source, threads), by in cases.items():
        lines.append(f"| {mode} | {source} | {threads} | " + " | ".join(cell(by.get(c)) for c in columns) + " |")
    return lines + [""] + latency


def main():
    rows = json.loads((ROOT / "bench.json").read_text())
    cases = {}
    for row in rows:
        if row["op"] == "dynamic_range" or row["numerics"] != "exact" or "limit_share" not in row:
            continue
        elements = 1
        for size in row["shape"]:
            elements *= size
        if elements < 1 << 26 or row["out"] in ("u8", "s4", "u4") or row["in"] in ("u8", "s4", "u4"):
            continue
        key = (row["op"], row["direction"], row["in"], row["out"])
        granularity = (row["granularity"], row.get("group_size", 0))
        cases.setdefault(key, {})[(granularity, row["threads"])] = row
    lines = [f"Measured by `./dev bench` on {processor()}; 64 Mi elements, out of cache, exact mode. Each cell: thousand",
             "million elements a second, and in brackets the share of the limit: a loop in the same run that moves the same",
             "bytes with no arithmetic (above 1 where prefetching beats that loop).", "",
             "| operator | types | tensor, 1 thread | tensor, 2 threads | channel, last axis | group of 32 | group of 128 |",
             "|---|---|---|---|---|---|---|"]

    def cell(row):
        if row is None:
            return ""
        elements = 1
        for size in row["shape"]:
            elements *= size
        return f"{elements / row['seconds'] / 1e9:.1f} ({row['limit_share']:.2f})"

    for (op, direction, source, target), by in cases.items():
        name = op if direction == "forward" else f"{op} backward"
        types = source if source == target else f"{source} → {target}"
        cells = [cell(by.get(k)) for k in ((("tensor", 0), 1), (("tensor", 0), 2), (("channel", 0), 1), (("group", 32), 1),
                                           (("group", 128), 1))]
        lines.append(f"| {name} | {types} | " + " | ".join(cells) + " |")
    lines += dynamic_range(rows, cell)
    small = [row for row in rows if row["shape"] in ([65536], [64])]
    for row in small:
        share = f", {row['limit_share']:.2f} of the limit" if "limit_share" in row else ""
        what = "in L2, 64 Ki elements" if row["shape"] == [65536] else "one call on 64 elements"
        lines.append(f"- {row['op']} {row['in']} → {row['out']} {row['numerics']}, {what}: {row['seconds'] * 1e9:.0f} ns{share}")
    readme = ROOT / "README.md"
    text = readme.read_text()
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    readme.write_text(before + BEGIN + "\n" + "\n".join(lines) + "\n" + END + after)


if __name__ == "__main__":
    main()
