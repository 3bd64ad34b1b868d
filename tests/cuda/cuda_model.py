#!/usr/bin/env python3
"""What the CUDA kernels should reach on three devices, from ptxas's figures, the PTX and the devices' published ones. A
model, not a measurement.

    tests/cuda/cuda_model.py [--json build/cuda/ptxas/ptxas.json]    writes the tables into docs/cuda.md
    tests/cuda/cuda_model.py --check                                 fails if docs/cuda.md says something else

Run tests/cuda/check_ptxas.py first: it writes the figures, into build/cuda/ptxas unless told otherwise.
"""
import argparse
import json
import math
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from check_ptxas import DEFAULT_BUILD, ROOT, between, write_or_check  # noqa: E402

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
# Issue slots of one dp4a: it is taken to run at 64 lanes in a clock of a multiprocessor, half of what it can issue. An
# assumption.
DP4A_SLOTS = 2
LAUNCH = 2e-6  # seconds before a kernel's first byte and after its last one, back to back in a stream

SIZES = {"f64": 8, "f32": 4, "f16": 2, "bf16": 2, "s8": 1, "u8": 1, "s4": 0.5, "u4": 0.5}
ELEMENTS = 4096 * 4096

# What streams: (title, passes), a pass being (pattern of the kernel's name, bytes read from memory and bytes written
# per element, whether another loop of the same kernel finds the range first). A token's second reading comes from the
# caches; a tensor's comes from memory, in a second kernel, and so does that of columns, which are split at this size.
STREAMING = []
for _t in ("f32", "f16", "bf16"):
    _b = SIZES[_t]
    STREAMING += [
        (f"quantize {_t} → s8", [(rf"^elementwise<Quantize<{_t}, s8>", _b, 1, False)]),
        (f"dequantize s8 → {_t}", [(rf"^elementwise<Dequantize<{_t}, s8>", 1, _b, False)]),
        (f"fake_quantize {_t}", [(rf"^elementwise<FakeQuantize<{_t}>", _b, _b, False)]),
        (f"fake_quantize_backward {_t}", [(rf"^elementwise<MaskedBackward<{_t}, false>", 2 * _b, _b, False)]),
        (f"dynamic range per token {_t} → s8", [(rf"^dynamic_runs<{_t}, s8>", _b, 1, True)]),
        (f"dynamic range per tensor {_t} → s8",
         [(rf"^range_runs<{_t}>", _b, 0, False), (rf"^dynamic_runs<{_t}, s8>", _b, 1, False)]),
        (f"dynamic range of columns {_t} → s8",
         [(rf"^range_columns<{_t}>", _b, 0, False), (rf"^dynamic_columns<{_t}, s8>", _b, 1, False)]),
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


def turn(kernel, read, written, finds_range=False):
    """What one turn of the kernel's loop does for one thread: elements, bytes loaded and instructions. None where no
    loop of it moves data in this proportion.

    Loads may be optional: a smoothing divisor, scales of every element. Of all ways through a turn, those count that
    load and store as much as the same number of elements takes, which is none that loads anything else."""
    loops = kernel["vector_loops"]
    if not written:  # such kernels load nothing but elements
        ways = [way for loop in loops if not loop["stores"] for way in loop["ways"]]
        way = max(ways, key=lambda way: (way["load_bytes"], -way["instructions"]), default=None)
        return way and {"elements": way["load_bytes"] / read, "bytes": way["load_bytes"],
                        "instructions": way["instructions"]}
    ways = [way for loop in loops for way in loop["ways"]
            if way["store_bytes"] > 0 and way["load_bytes"] * written == way["store_bytes"] * read]
    way = min(ways, key=lambda way: (way["store_bytes"], way["instructions"]), default=None)
    if way is None:
        return None
    found = {"elements": way["store_bytes"] / written, "bytes": way["load_bytes"], "instructions": way["instructions"]}
    if finds_range:
        before = [way["instructions"] for loop in loops if not loop["stores"] for way in loop["ways"]
                  if way["load_bytes"] == found["bytes"]]
        if not before:
            return None
        found["instructions"] += min(before)
    return found


def stream(device, kernel, read, written, finds_range=False):
    """One pass over memory: occupancy, bytes on their way against what Little's law asks for, and instructions."""
    one = turn(kernel, read, written, finds_range)
    if one is None:
        return None
    threads, shared = kernel["threads"] or 256, kernel["shared"]
    if re.match(r"\w+_columns<", kernel["name"]):
        # The launch asks for room for both ends of the range of every thread's columns, in the compute type.
        shared += int(2 * threads * one["elements"] * 4)
    _, warps = occupancy(device, kernel["registers"], threads, shared)
    flight = warps * 32 * one["bytes"] * device["sms"]
    bandwidth = device["bandwidth"]
    needed = device["latency"] * bandwidth * read / (read + written)
    each = one["instructions"] / one["elements"]
    issue = device["sms"] * clock(device) * 128 * OF_ISSUE / each  # elements a second
    share = min(OF_BANDWIDTH, flight / needed, issue * (read + written) / bandwidth)
    return {"warps": warps, "flight": flight / needed, "instructions": each, "share": share,
            "limit": "memory" if share == OF_BANDWIDTH else "loads in flight" if share == flight / needed else "issue",
            "seconds": ELEMENTS * (read + written) / (share * bandwidth) + LAUNCH}


def to_python(text):
    """A constant expression of C++ in Python: casts, integer division, and, or, not, ?:."""
    text = re.sub(r"static_cast<[^<>]*>|std::u?int\d+_t(?=\{)", "", text).replace("{", "(").replace("}", ")")
    text = re.sub(r"\b(0[xX][0-9a-fA-F]+|\d+)[uUlL]+\b", r"\1", text)
    text = re.sub(r"&&", " and ", re.sub(r"\|\|", " or ", re.sub(r"!(?!=)", " not ", text)))
    text = re.sub(r"\btrue\b", "True", re.sub(r"\bfalse\b", "False", text)).replace("/", "//")
    inner = re.compile(r"\(([^()]*\?[^()]*)\)")
    while match := inner.search(text):
        text = text[:match.start()] + choice(match.group(1)) + text[match.end():]
    return choice(text).strip()


def choice(text):
    """'a ? b : c' as '[c, b][not not a]'. Without parentheses, since to_python() is still looking for those."""
    if "?" not in text:
        return text
    condition, rest = text.split("?", 1)
    depth = 0
    for i, c in enumerate(rest):
        if c == "?":
            depth += 1
        elif c == ":" and depth == 0:
            return f"[{choice(rest[i + 1:])}, {choice(rest[:i])}][not not {condition}]"
        elif c == ":":
            depth -= 1
    raise SystemExit(f"cuda_model: cannot read {text}")


class Constants:
    """The constants of the linear kernels: those of their files, and those of every LinearTile that they name."""

    def __init__(self, text):
        text = re.sub(r"//.*", "", text)
        self.file = dict(re.findall(r"^inline constexpr [\w:]+ (k\w+) = ([^;]+);", text, re.M))
        struct = re.search(r"template <([^>]*)>\s*struct LinearTile \{(.*?)^\};", text, re.S | re.M)
        if struct is None:
            raise SystemExit("cuda_model: the linear kernels have no struct LinearTile")
        self.members = dict(re.findall(r"static constexpr [\w:]+ (k\w+) = ([^;]+);", struct.group(2)))
        parameters = [parameter.split("=") for parameter in struct.group(1).split(",")]
        self.tiles = {}
        for tile, arguments in re.findall(r"using (\w+) = LinearTile<([^<>]*)>;", text):
            # Declared as "int rows" or "int rows = 64"; what is not given has its default.
            given = arguments.split(",")
            given += [parameter[-1] for parameter in parameters[len(given):]]
            self.tiles[tile] = {parameter[0].split()[-1]: value for parameter, value in zip(parameters, given)}

    def value(self, name, tile=None):
        """A number: a parameter or member of the tile, or a constant of the file."""
        known = {**self.file, **(self.members if tile else {}), **(self.tiles.get(tile, {}) if tile else {})}
        if name not in known:
            raise SystemExit(f"cuda_model: the linear kernels have no {name}")
        text = re.sub(r"\b(\w+)::(k\w+)", lambda match: str(self.value(match.group(2), match.group(1))), known[name])
        text = to_python(text)
        words = set(re.findall(r"\b[A-Za-z_]\w*", text)) - {"and", "or", "not", "True", "False"}
        try:
            return eval(text, {"__builtins__": {}}, {word: self.value(word, tile) for word in words})
        except (SyntaxError, TypeError, NameError) as error:
            raise SystemExit(f"cuda_model: cannot read {name} = {known[name]}: {error}") from None


def constants(text=None):
    """The shapes of the linear kernels, from their source."""
    files = ("linear_tile_shape.h", "linear_small.cuh")
    c = Constants("\n".join((ROOT / "src/cuda" / f).read_text() for f in files) if text is None else text)
    tiles = {}
    for name, tile in (("large", "ShallowTile"), ("quarter", "QuarterTile"), ("deep", "DeepTile")):
        if tile not in c.tiles:
            raise SystemExit(f"cuda_model: the linear kernels have no {tile}")
        rows, columns, deep = (c.value(of, tile) for of in ("kRows", "kColumns", "kDeep"))
        tiles[name] = {"title": f"{rows} × {columns}{', deep' if deep else ''}", "rows": rows, "columns": columns,
                       "pattern": rf"^linear_tile<f16, LinearTile<{rows}, {columns}, {str(bool(deep)).lower()}\b",
                       "warp_rows": c.value("kWarpRows", tile), "warp_columns": c.value("kWarpColumns", tile),
                       "step": c.value("kStep", tile), "stages": c.value("kStages", tile),
                       "shared": c.value("kSharedBytes", tile)}
    return {"tiles": tiles, "threads": c.value("kTileThreads"), "shallow_depth": c.value("kMaxShallowDepth"),
            "small_rows": c.value("kMaxSmallRows"), "small_columns": c.value("kSmallColumns"),
            "small_threads": c.value("kSmallThreads"), "small_depth": c.value("kMaxSmallDepth")}


def tile_count(tile, m, n):
    return math.ceil(m / tile["rows"]) * math.ceil(n / tile["columns"])


def chosen_tile(device, shape, m, n, k):
    """As enqueue() of src/cuda/linear.cu chooses."""
    tiles = shape["tiles"]
    if k > shape["shallow_depth"]:
        return tiles["deep"]
    large = m > tiles["quarter"]["rows"] and tile_count(tiles["large"], m, n) >= device["sms"]
    return tiles["large" if large else "quarter"]


def linear(device, kernels, shape, m, n, k, out=2):
    """y [m, n] from s8 codes: the time of each resource; the slowest counts."""
    moved = m * k + n * k + m * n * out
    times = {"memory": moved / (device["bandwidth"] * OF_BANDWIDTH)}
    if m <= shape["small_rows"] and k <= shape["small_depth"]:
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
        slots = loop["instructions"] + (DP4A_SLOTS - 1) * loop["dp4a"]
        times["issue"] = turns * slots / (device["sms"] * 4 * OF_ISSUE * clock(device))
        name, waves = "small", math.ceil(needed_warps / (warps * device["sms"]))
    else:
        tile = chosen_tile(device, shape, m, n, k)
        kernel = find(kernels, tile["pattern"], device["arch"])
        if kernel is None:
            return None
        blocks, warps = occupancy(device, kernel["registers"], shape["threads"], kernel["shared"] + tile["shared"])
        tiles = tile_count(tile, m, n)
        # A multiprocessor works at its full rate whether it has one tile or several; the busiest one counts.
        waves = math.ceil(tiles / device["sms"])
        operations = 2 * tile["rows"] * tile["columns"] * k
        rate = device["ops"] * clock(device) * device["mma"] * OF_TENSOR
        times["tensor"] = waves * operations / rate
        # Each warp reads its rows and columns of a tile from shared memory, 128 bytes in a clock.
        read = shape["threads"] // 32 * (tile["warp_rows"] + tile["warp_columns"]) * k
        times["shared memory"] = waves * read / (128 * clock(device) * OF_SHARED)
        times["L2"] = tiles * (tile["rows"] + tile["columns"]) * k / device["l2"]
        # Stages on their way at the busiest moment, against the latency: few tiles cannot ask for much at once.
        resident = min(tiles, blocks * device["sms"])
        flight = resident * (tile["stages"] - 1) * (tile["rows"] + tile["columns"]) * tile["step"]
        times["loads in flight"] = tiles * (tile["rows"] + tile["columns"]) * k / (flight / device["latency"])
        name = tile["title"]
    limit = max(times, key=times.get)
    operations = 2 * m * n * k
    seconds = times[limit] + LAUNCH
    return {"kernel": name, "warps": warps, "limit": limit, "seconds": seconds, "tops": operations / seconds / 1e12,
            "intensity": operations / moved, "ridge": device["int8"] * device["mma"] / device["bandwidth"],
            "of_bandwidth": moved / seconds / device["bandwidth"], "of_tensor": operations / seconds / device["int8"],
            "waves": waves}


# (M, N, K) of the linear table: a token, a few, what fills few tiles and what fills many, by two widths; and one that
# is too deep for 32-bit sums.
LINEAR = [(m, n, 4096) for n in (4096, 14336) for m in (1, 16, 64, 128, 512, 4096)] + [(512, 4096, 262144)]


def tables(figures, unknown):
    """The lines of the page. Appends to `unknown` what the model cannot tell, and why."""
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
        cells, moved = [], sum(read + written for _, read, written, _ in passes)
        for d in DEVICES:
            found = [find(kernels, pattern, d["arch"]) for pattern, _, _, _ in passes]
            if not all(found):
                break
            each = [stream(d, kernel, *what) for kernel, (_, *what) in zip(found, passes)]
            if not all(each):
                unknown += [f"{kernel['name']} for {title}: no loop of it moves what it should"
                            for kernel, s in zip(found, each) if s is None]
                break
            seconds = sum(s["seconds"] for s in each)
            s = max(each, key=lambda s: s["seconds"])
            cells.append(f"{s['warps']} | {s['flight']:.1f} | {ELEMENTS * moved / seconds / d['bandwidth']:.2f} "
                         f"({s['limit']}), {seconds * 1e6:.0f} µs")
        else:
            counts = " + ".join(f"{s['instructions']:.0f}" for s in each)
            rows.append(f"| {title} | {moved:g} | {counts} | " + " | ".join(cells) + " |")
    if rows:
        lines += ["", "4096 × 4096 elements, out of the caches. Instructions are those of the vector loops in the PTX,",
                  "per element; a sum is that of two launches. For each device: warps on a multiprocessor (of 64);",
                  "bytes on their way over those that Little's law asks for; the share of the bandwidth, what limits",
                  "it, and the time.", "",
                  "| | bytes per element | instructions | " +
                  " | ".join(f"{d['name']}: warps | in flight | expected" for d in DEVICES) + " |",
                  "|---" * (3 + 3 * len(DEVICES)) + "|"] + rows
    shape, rows = constants(), []
    for m, n, k in LINEAR:
        cells = []
        for d in DEVICES:
            r = linear(d, kernels, shape, m, n, k)
            if r is None:
                if any(kernel["name"].startswith("linear_") for kernel in kernels):
                    unknown.append(f"a linear kernel for M = {m}, N = {n}, K = {k} on sm_{d['arch']}: it is missing")
                break
            side = "memory" if r["intensity"] < r["ridge"] else "tensor"
            cells.append(f"{r['intensity']:.0f} of {r['ridge']:.0f}, {side} | {r['kernel']} | "
                         f"{r['seconds'] * 1e6:.1f} µs, {r['tops']:.0f} TOPS, "
                         f"{r['of_bandwidth']:.2f} / {r['of_tensor']:.2f} ({r['limit']})")
        else:
            rows.append(f"| {m} | {n} | {k} | " + " | ".join(cells) + " |")
    if rows:
        lines += ["", "Linear layers, s8 by s8 to f16, [M, K] by [N, K]. Roofline: operations per byte of this",
                  "problem, and of one where memory and mma.sync balance. Kernel: the small one, or the outputs of a",
                  "tile. Expected: time, speed, shares of the memory's bandwidth and of the full dense int8 peak, and",
                  "what limits it.", "",
                  "| M | N | K | " + " | ".join(f"{d['name']}: roofline | kernel | expected" for d in DEVICES) + " |",
                  "|---" * (3 + 3 * len(DEVICES)) + "|"] + rows
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=pathlib.Path, default=DEFAULT_BUILD / "ptxas.json")
    parser.add_argument("--page", type=pathlib.Path, default=ROOT / "docs/cuda.md")
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    if not arguments.json.exists():
        print(f"cuda_model: {arguments.json} is not here; check_ptxas.py writes it" + (": skipped" * arguments.check))
        sys.exit(77 if arguments.check else 1)
    figures = json.loads(arguments.json.read_text())
    if any("vector_loops" not in kernel for kernel in figures["kernels"]):
        print(f"cuda_model: {arguments.json} is of an older check_ptxas.py; run it again")
        sys.exit(1)
    text = arguments.page.read_text()
    made = re.search(r"<!-- model -->.*?\(nvcc (\S+)\)", text, re.S)
    if arguments.check and made and made.group(1) != figures["nvcc"]:
        print(f"cuda_model: the page was written with nvcc {made.group(1)}, this is {figures['nvcc']}: not compared")
        return
    unknown = []
    same = write_or_check(arguments.page, between(text, "model", tables(figures, unknown)), arguments.check)
    for what in sorted(set(unknown)):
        print(f"cuda_model: {what}; the row is left out")
    if not same:
        print(f"cuda_model: {arguments.page.name} differs from the model; run tests/cuda/cuda_model.py")
    if unknown or not same:
        sys.exit(1)


if __name__ == "__main__":
    main()
