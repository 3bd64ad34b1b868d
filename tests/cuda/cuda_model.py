#!/usr/bin/env python3
"""What the CUDA kernels should reach on three devices, from ptxas's figures, the PTX and the devices' published ones. A
model, not a measurement.

    tests/cuda/cuda_model.py [--json build/ptxas/ptxas.json]     writes the tables into docs/cuda.md
    tests/cuda/cuda_model.py --check                             fails if docs/cuda.md says something else

Run tests/cuda/check_ptxas.py first: it writes the figures.
"""
import argparse
import json
import math
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from check_ptxas import ROOT, between, write_or_check  # noqa: E402

# NVIDIA's data sheets and its table of compute capabilities. `arch` is whose registers count, `ops` are operations of
# one multiprocessor in a clock. `latency` of memory under load in seconds and `l2` in bytes a second are not published:
# they are assumptions of the size that microbenchmarks report.
# `mma` is the share of the dense int8 peak that mma.sync can reach at all: on Hopper and Blackwell the full rate needs
# wgmma or tcgen05. 0.62 is what is reported of Hopper; for B200 it is a guess.
DEVICES = [
    {"name": "A100 80GB SXM", "arch": 80, "sms": 108, "bandwidth": 2039e9, "int8": 624e12, "ops": 4096,
     "shared": 164 * 1024, "latency": 600e-9, "l2": 5.0e12, "mma": 1.0},
    {"name": "H100 SXM", "arch": 90, "sms": 132, "bandwidth": 3350e9, "int8": 1979e12, "ops": 8192,
     "shared": 228 * 1024, "latency": 700e-9, "l2": 6.5e12, "mma": 0.62},
    {"name": "B200", "arch": 120, "sms": 148, "bandwidth": 8000e9, "int8": 4500e12, "ops": 16384,
     "shared": 228 * 1024, "latency": 800e-9, "l2": 12.0e12, "mma": 0.62},
]
REGISTERS, MOST_WARPS, MOST_BLOCKS, RESERVED_SHARED = 65536, 64, 32, 1024

# What a kernel that does nothing else reaches of each limit: memory turns around between reads and writes and is
# refreshed, schedulers miss slots, pipelines of tiles fill and drain.
OF_BANDWIDTH, OF_ISSUE, OF_TENSOR, OF_SHARED = 0.92, 0.80, 0.85, 0.90
LAUNCH = 2e-6  # seconds before a kernel's first byte and after its last one, back to back in a stream

SIZES = {"f64": 8, "f32": 4, "f16": 2, "bf16": 2, "s8": 1, "u8": 1, "s4": 0.5, "u4": 0.5}
ELEMENTS = 4096 * 4096

# What streams: (title, passes), a pass being (pattern of the kernel's name, bytes read from memory and bytes written
# per element). A token's second reading comes from the caches; a tensor's comes from memory, in a second kernel.
STREAMING = []
for _t in ("f32", "f16", "bf16"):
    _b = SIZES[_t]
    STREAMING += [
        (f"quantize {_t} → s8", [(rf"^elementwise<Quantize<{_t}, s8>", _b, 1)]),
        (f"dequantize s8 → {_t}", [(rf"^elementwise<Dequantize<{_t}, s8>", 1, _b)]),
        (f"fake_quantize {_t}", [(rf"^elementwise<FakeQuantize<{_t}>", _b, _b)]),
        (f"fake_quantize_backward {_t}", [(rf"^elementwise<MaskedBackward<{_t}, false>", 2 * _b, _b)]),
        (f"dynamic range per token {_t} → s8", [(rf"^dynamic_runs<{_t}, s8>", _b, 1)]),
        (f"dynamic range per tensor {_t} → s8", [(rf"^range_runs<{_t}>", _b, 0), (rf"^dynamic_runs<{_t}, s8>", _b, 1)]),
        (f"dynamic range of columns {_t} → s8",
         [(rf"^range_columns<{_t}>", _b, 0), (rf"^dynamic_columns<{_t}, s8>", _b, 1)]),
    ]


def clock(device):
    """The clock at which the data sheet's peak is reached: operations a second over those of one clock."""
    return device["int8"] / device["sms"] / device["ops"]


def occupancy(device, registers, threads, shared):
    """Blocks and warps on a multiprocessor. Registers come in units of 256 for a warp, and each of the four schedulers
    has a quarter of them; shared memory in units of 128 bytes, 1 KiB of each block being CUDA's own."""
    warps = math.ceil(threads / 32)
    of_warp = math.ceil(registers * 32 / 256) * 256
    by_registers = REGISTERS // 4 // of_warp * 4 // warps
    by_shared = device["shared"] // (math.ceil((shared + RESERVED_SHARED) / 128) * 128)
    blocks = min(by_registers, by_shared, MOST_WARPS // warps, MOST_BLOCKS)
    return blocks, blocks * warps


def find(kernels, pattern, arch):
    """The kernel of this name with the most registers."""
    found = [row for row in kernels if row["arch"] == arch and re.search(pattern, row["name"])]
    return max(found, key=lambda row: row["registers"], default=None)


def stream(device, kernel, read, written):
    """One pass over memory: occupancy, bytes on their way against what Little's law asks for, and instructions."""
    _, warps = occupancy(device, kernel["registers"], kernel["threads"] or 256, kernel["shared"])
    loop = kernel["vector_loop"]
    flight = warps * 32 * loop["load_bytes"] * device["sms"]
    bandwidth = device["bandwidth"]
    needed = device["latency"] * bandwidth * read / (read + written)
    # A turn of the loop moves whole elements: how many, by the side that the vector path moves in 128 bits.
    elements = loop["load_bytes"] / read if loop["load_bytes"] else loop["store_bytes"] / written
    each = loop["instructions"] / elements
    issue = device["sms"] * clock(device) * 128 * OF_ISSUE / each  # elements a second
    share = min(OF_BANDWIDTH, flight / needed, issue * (read + written) / bandwidth)
    return {"warps": warps, "flight": flight / needed, "instructions": each, "share": share,
            "limit": "memory" if share == OF_BANDWIDTH else "loads in flight" if share == flight / needed else "issue",
            "seconds": ELEMENTS * (read + written) / (share * bandwidth) + LAUNCH}


def constants():
    """The shapes of the linear kernels, from their source."""
    text = (ROOT / "src/cuda/linear.cuh").read_text()

    def number(pattern):
        match = re.search(pattern, text)
        if match is None:
            raise SystemExit(f"cuda_model: linear.cuh has no {pattern}")
        return int(match.group(1))

    rows, columns = re.search(r"ShallowTile = LinearTile<(\d+), (\d+), false>", text).groups()
    return {"rows": int(rows), "columns": int(columns), "step": number(r"kStep = (\d+);"),
            "stages": number(r"kStages = (\d+);"), "threads": number(r"kTileThreads = (\d+);"),
            "small_rows": number(r"kMostSmallRows = (\d+);"), "small_columns": number(r"kSmallColumns = (\d+);"),
            "small_threads": number(r"kSmallThreads = (\d+);")}


def linear(device, kernels, shape, m, n, k, out=2):
    """y [m, n] from s8 codes: the time of each resource; the slowest counts."""
    moved = m * k + n * k + m * n * out
    times = {"memory": moved / (device["bandwidth"] * OF_BANDWIDTH)}
    if m <= shape["small_rows"]:
        rows = 1 << (m - 1).bit_length()
        kernel = find(kernels, rf"^linear_small<f16, {rows}>", device["arch"])
        if kernel is None:
            return None
        blocks, warps = occupancy(device, kernel["registers"], shape["small_threads"], kernel["shared"])
        needed_warps = math.ceil(n / shape["small_columns"])
        there = min(warps * device["sms"], needed_warps)
        loop = kernel["vector_loop"]
        # Of a turn's loads, those of the weight come from memory; the activation stays in the caches.
        weight = loop["load_bytes"] * shape["small_columns"] / (shape["small_columns"] + rows)
        flight = there * 32 * weight
        times["loads in flight"] = n * k / min(flight / device["latency"], device["bandwidth"])
        turns = n * k / weight / 32  # of warps
        times["issue"] = turns * loop["instructions"] / (device["sms"] * 4 * OF_ISSUE * clock(device))
        name, waves = "small", math.ceil(needed_warps / (warps * device["sms"]))
    else:
        kernel = find(kernels, rf"^linear_tile<f16, LinearTile<{shape['rows']}, {shape['columns']}, false>>",
                      device["arch"])
        if kernel is None:
            return None
        shared = shape["stages"] * (shape["rows"] + shape["columns"]) * shape["step"]
        blocks, warps = occupancy(device, kernel["registers"], shape["threads"], kernel["shared"] + shared)
        tiles = math.ceil(m / shape["rows"]) * math.ceil(n / shape["columns"])
        # A multiprocessor works at its full rate whether it has one tile or several; the busiest one counts.
        waves = math.ceil(tiles / device["sms"])
        operations = 2 * shape["rows"] * shape["columns"] * k
        rate = device["ops"] * clock(device) * device["mma"] * OF_TENSOR
        times["tensor"] = waves * operations / rate
        # Each warp reads its rows and columns of a tile from shared memory, 128 bytes in a clock.
        warp_rows, warp_columns = shape["rows"] // 2, shape["columns"] // 4
        read = shape["threads"] // 32 * (warp_rows + warp_columns) * k
        times["shared memory"] = waves * read / (128 * clock(device) * OF_SHARED)
        times["L2"] = tiles * (shape["rows"] + shape["columns"]) * k / device["l2"]
        # Stages on their way at the busiest moment, against the latency: few tiles cannot ask for much at once.
        resident = min(tiles, blocks * device["sms"])
        flight = resident * (shape["stages"] - 1) * (shape["rows"] + shape["columns"]) * shape["step"]
        times["loads in flight"] = tiles * (shape["rows"] + shape["columns"]) * k / (flight / device["latency"])
        name = "tile"
    limit = max(times, key=times.get)
    operations = 2 * m * n * k
    seconds = times[limit] + LAUNCH
    return {"kernel": name, "warps": warps, "limit": limit, "seconds": seconds, "tops": operations / seconds / 1e12,
            "intensity": operations / moved, "ridge": device["int8"] * device["mma"] / device["bandwidth"],
            "of_bandwidth": moved / seconds / device["bandwidth"], "of_tensor": operations / seconds / device["int8"],
            "waves": waves}


def tables(figures):
    kernels = figures["kernels"]
    lines = ["**A model, not a measurement; nothing here was timed on hardware.** Its inputs are registers from ptxas,",
             f"instructions from the PTX (nvcc {figures['nvcc']}) and NVIDIA's data sheets. It is computed by",
             "`tests/cuda/cuda_model.py`.", "",
             "| device | multiprocessors | clock of the peak | memory | dense int8 | by mma.sync | registers of |",
             "|---|---|---|---|---|---|---|"]
    for d in DEVICES:
        lines.append(f"| {d['name']} | {d['sms']} | {clock(d) / 1e9:.2f} GHz | {d['bandwidth'] / 1e9:.0f} GB/s | "
                     f"{d['int8'] / 1e12:.0f} TOPS | {d['mma'] * d['int8'] / 1e12:.0f} TOPS | sm_{d['arch']} |")
    rows = []
    for title, passes in STREAMING:
        cells, moved = [], sum(read + written for _, read, written in passes)
        for d in DEVICES:
            found = [find(kernels, pattern, d["arch"]) for pattern, _, _ in passes]
            if not all(kernel and kernel["vector_loop"] for kernel in found):
                break
            each = [stream(d, kernel, read, written) for kernel, (_, read, written) in zip(found, passes)]
            seconds = sum(s["seconds"] for s in each)
            s = max(each, key=lambda s: s["seconds"])
            cells.append(f"{s['warps']} | {s['flight']:.1f} | {ELEMENTS * moved / seconds / d['bandwidth']:.2f} "
                         f"({s['limit']}), {seconds * 1e6:.0f} µs")
        else:
            counts = " + ".join(f"{s['instructions']:.0f}" for s in each)
            rows.append(f"| {title} | {moved:g} | {counts} | " + " | ".join(cells) + " |")
    if rows:
        lines += ["", "4096 × 4096 elements, out of the caches. Instructions are those of the vector loop in the PTX,",
                  "per element. For each device: warps on a multiprocessor (of 64); bytes on their way over those that",
                  "Little's law asks for; the share of the bandwidth, what limits it, and the time.", "",
                  "| | bytes per element | instructions | " +
                  " | ".join(f"{d['name']}: warps | in flight | expected" for d in DEVICES) + " |",
                  "|---" * (3 + 3 * len(DEVICES)) + "|"] + rows
    shape, rows = constants(), []
    for n in (4096, 14336):
        for m in (1, 16, 128, 4096):
            cells = []
            for d in DEVICES:
                r = linear(d, kernels, shape, m, n, 4096)
                if r is None:
                    break
                side = "memory" if r["intensity"] < r["ridge"] else "tensor"
                cells.append(f"{r['intensity']:.0f} of {r['ridge']:.0f}, {side} | {r['seconds'] * 1e6:.1f} µs, "
                             f"{r['tops']:.0f} TOPS, {r['of_bandwidth']:.2f} / {r['of_tensor']:.2f} ({r['limit']})")
            else:
                rows.append(f"| {m} | {n} | {r['kernel']} | " + " | ".join(cells) + " |")
    if rows:
        lines += ["", "Linear layers, s8 by s8 to f16, K = 4096. Roofline: operations per byte of this problem, and of",
                  "one where memory and mma.sync balance. Expected: time, speed, shares of the memory's bandwidth and",
                  "of the full dense int8 peak, and what limits it.", "",
                  "| M | N | kernel | " + " | ".join(f"{d['name']}: roofline | expected" for d in DEVICES) + " |",
                  "|---" * (3 + 2 * len(DEVICES)) + "|"] + rows
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=pathlib.Path, default=ROOT / "build/ptxas/ptxas.json")
    parser.add_argument("--page", type=pathlib.Path, default=ROOT / "docs/cuda.md")
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    if not arguments.json.exists():
        print(f"cuda_model: {arguments.json} is not here; check_ptxas.py writes it: skipped")
        sys.exit(77)
    figures = json.loads(arguments.json.read_text())
    text = arguments.page.read_text()
    made = re.search(r"<!-- model -->.*?\(nvcc (\S+)\)", text, re.S)
    if arguments.check and made and made.group(1) != figures["nvcc"]:
        print(f"cuda_model: the page was written with nvcc {made.group(1)}, this is {figures['nvcc']}: not compared")
        return
    if not write_or_check(arguments.page, between(text, "model", tables(figures)), arguments.check):
        print(f"cuda_model: {arguments.page.name} differs from the model; run tests/cuda/cuda_model.py")
        sys.exit(1)


if __name__ == "__main__":
    main()
