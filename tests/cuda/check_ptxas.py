#!/usr/bin/env python3
"""What ptxas and the PTX say about every CUDA kernel: registers, shared memory, no spills, and the instructions that
the kernels were written for.

    tests/cuda/check_ptxas.py [BUILD_FOLDER] [FILE.cu …] [SAVED.log …] [SAVED.ptx …] [--jobs 2] [--json FILE]
    tests/cuda/check_ptxas.py [BUILD_FOLDER] --table         then writes the figures into docs/
    tests/cuda/check_ptxas.py [BUILD_FOLDER] --check-docs    then fails if docs/ says something else

Without files it compiles src/cuda/*.cu for each architecture, and to PTX, in BUILD_FOLDER (build/cuda/ptxas unless
told, where ./dev cuda has it). What did not change since the last run is not compiled again. All figures go to
BUILD_FOLDER/ptxas.json. Exits 1 on any spill, stack frame or missing instruction, naming kernel, architecture and
bytes; 77 where there is no nvcc.
"""
import argparse
import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
ARCHITECTURES = (80, 90, 120)
PTX_ARCHITECTURE = 80  # the oldest: what it has, the others have too
# Those of CMakeLists.txt that decide what arithmetic becomes; test_check_ptxas.py compares.
ARITHMETIC_FLAGS = ["--fmad=false", "--ftz=false", "--prec-div=true"]
FLAGS = ["-std=c++20", *ARITHMETIC_FLAGS, "-O3"]
DEFAULT_BUILD = ROOT / "build/cuda/ptxas"

# Instructions of the PTX, by name. A vector of 128 bits may be v4 of 32, v2 of 64 or one b128; more counts too.
VECTOR = {f"{word} of {bits} bits": (kind, bits)
          for word, kind in (("load", "ld"), ("store", "st")) for bits in (32, 64, 128)}
PATTERNS = {
    "mma.sync m16n8k32 of s8": r"\bmma\.sync\.\S*m16n8k32\S*\.s8\.s8\b",
    "cp.async": r"\bcp\.async\.c[ag]\.shared\S*\.global\b",
    "ldmatrix": r"\bldmatrix\.sync\b",
    "dp4a": r"\bdp4a\.",
}

# What an entry must contain: a pattern of its readable name, and the instructions. The first that matches counts. A
# thread moves 128 bits of codes at once unless it would need more than four times 128 bits of floating-point numbers
# for them (src/cuda/chunk.h): then codes move in 64 or 32. In dynamic_columns a thread owns at most 16 columns, since
# it keeps their ranges in registers: 64 bits of 4-bit codes, whatever they are made from.
REQUIRED = [
    (r"^elementwise<Quantize<f64, [su]4>|^dynamic_\w+<f64, [su]4>", ["load of 128 bits", "store of 32 bits"]),
    (r"^elementwise<Quantize<(f64, [su]8|f32, [su]4)>", ["load of 128 bits", "store of 64 bits"]),
    (r"^dynamic_runs<(f64, [su]8|f32, [su]4)>", ["load of 128 bits", "store of 64 bits"]),
    (r"^dynamic_columns<(f64, [su]8|\w+, [su]4)>", ["load of 128 bits", "store of 64 bits"]),
    (r"^elementwise<Dequantize<f64, [su]4>", ["load of 32 bits", "store of 128 bits"]),
    (r"^elementwise<Dequantize<(f64, [su]8|f32, [su]4)>", ["load of 64 bits", "store of 128 bits"]),
    (r"^(elementwise|dynamic_runs|dynamic_columns)\b", ["load of 128 bits", "store of 128 bits"]),
    (r"^range_(runs|columns)\b", ["load of 128 bits"]),
    (r"^linear_tile<CodeByte\b", ["mma.sync m16n8k32 of s8", "cp.async", "ldmatrix", "store of 32 bits"]),
    (r"^linear_tile\b", ["mma.sync m16n8k32 of s8", "cp.async", "ldmatrix", "store of 128 bits"]),
    (r"^linear_small\b", ["dp4a", "load of 128 bits"]),
    (r"", []),
]
# A family of which no entry exists at all is an error too, if its source file does: (source, readable name).
FAMILIES = [
    ("elementwise.cu", "elementwise"),
    ("dynamic_range.cu", "dynamic_runs"),
    ("dynamic_range.cu", "dynamic_columns"),
    ("range.cu", "range_runs"),
    ("range.cu", "range_columns"),
    ("range.cu", "finish_ranges"),
    ("linear.cu", "linear_tile"),
    ("linear.cu", "linear_small"),
]

TYPES = {
    "float": "f32", "double": "f64", "Half": "f16", "BFloat16": "bf16", "signed char": "s8", "unsigned char": "u8",
    "Int4": "s4", "UInt4": "u4", "int": "s32", "unsigned int": "u32", "long": "s64", "unsigned long": "u64",
    "long long": "s64",
}


def enumerators():
    """The names behind the numbers of every enum class in our headers: demangling gives "(kvant::QuantizeKind)3"."""
    found = {}
    for folder in ("include", "src"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix not in (".h", ".cuh", ".cu"):
                continue
            text = re.sub(r"//.*", "", path.read_text())
            for name, body in re.findall(r"enum (?:class )?(\w+)[^{;]*\{([^}]*)\}", text):
                if "=" not in body:
                    found[name] = [word.strip() for word in body.split(",") if word.strip()]
    return found


def shorten(name, enums):
    """'void kvant::cuda::elementwise_kernel<(kvant::QuantizeKind)0, float, signed char>(…)' to
    'elementwise<quantize, f32, s8>'."""
    # The parameters: from the last parenthesis that opens outside of < >.
    depth, end = 0, len(name)
    for i, c in enumerate(name):
        if c == "<":
            depth += 1
        elif c == ">":
            depth -= 1
        elif c == "(" and depth == 0 and not name.startswith("(anonymous namespace)", i):
            end = i
            break
    name = re.sub(r"^void ", "", name[:end])

    def enumerator(match):
        names = enums.get(match.group(1).split("::")[-1], [])
        number = int(match.group(2))
        return names[number] if number < len(names) else match.group(0)

    name = re.sub(r"\(([\w:]+(?:\(anonymous namespace\)::[\w:]+)?)\)(\d+)", enumerator, name)
    name = name.replace("(anonymous namespace)::", "")
    name = re.sub(r"\b(?:\w+::)+", "", name)
    for long in sorted(TYPES, key=len, reverse=True):
        name = re.sub(rf"(?<![\w]){long}(?!\w)", TYPES[long], name)
    return re.sub(r"^(\w+?)_kernel\b", r"\1", name).replace("> >", ">>")


def demangle(names):
    """Readable names for mangled ones."""
    names = sorted(set(names))
    if not names:
        return {}
    tool = shutil.which("cu++filt") or shutil.which("c++filt")
    if tool is None:
        raise SystemExit("check_ptxas: neither cu++filt nor c++filt is here; install binutils")
    ran = subprocess.run([tool], input="\n".join(names) + "\n", capture_output=True, text=True, check=True)
    enums = enumerators()
    return {name: shorten(long, enums) for name, long in zip(names, ran.stdout.splitlines())}


def parse_ptxas(text):
    """The rows of `ptxas -v`: one for each entry and architecture."""
    rows, row, last = [], None, None
    for line in text.splitlines():
        if match := re.search(r"Compiling entry function '(\S+)' for 'sm_(\d+)\w*'", line):
            row = {"entry": match.group(1), "arch": int(match.group(2)), "registers": None, "shared": 0, "stack": 0,
                   "spill_stores": 0, "spill_loads": 0}
            rows.append(row)
            last = None
        elif match := re.search(r"Function properties for (\S+)", line):
            last = match.group(1)
        elif match := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line):
            # Also printed for functions that were not inlined; what they spill, the entry that calls them spills.
            if row is not None and last is not None:
                for key, value in zip(("stack", "spill_stores", "spill_loads"), match.groups()):
                    row[key] += int(value)
        elif match := re.search(r"Used (\d+) registers", line):
            if row is not None:
                row["registers"] = int(match.group(1))
                if smem := re.search(r"(\d+)(?:\+\d+)? bytes smem", line):
                    row["shared"] = int(smem.group(1))
    return rows


def parse_ptx(text):
    """Entry → its threads (.maxntid), wanted blocks (.minnctapersm) and the text of its body."""
    entries = {}
    for match in re.finditer(r"^(?:\.\w+\s+)*\.entry\s+([\w$]+)\s*\((.*?)\)([^{;]*)\{(.*?)^\}", text, re.M | re.S):
        name, _, directives, body = match.groups()
        threads = re.search(r"\.maxntid\s+(\d+)", directives)
        blocks = re.search(r"\.minnctapersm\s+(\d+)", directives)
        entries[name] = {"threads": int(threads.group(1)) if threads else None,
                         "blocks": int(blocks.group(1)) if blocks else None, "body": body}
    return entries


def vector_bits(instruction):
    """('ld', 128) for 'ld.global.nc.v4.u32'; None where it is no access of global memory."""
    parts = instruction.split(".")
    if parts[0] not in ("ld", "st") or not any(part.startswith("global") for part in parts):
        return None
    width, count = 0, 1
    for part in parts[1:]:
        if match := re.fullmatch(r"v(\d)", part):
            count = int(match.group(1))
        elif match := re.fullmatch(r"[usbf](\d+)", part):
            width = int(match.group(1))
    return parts[0], width * count


def contains(body, what):
    if what in VECTOR:
        kind, bits = VECTOR[what]
        for instruction in re.findall(r"\b((?:ld|st)\.[\w.:]+)\s", body):
            found = vector_bits(instruction)
            if found and found[0] == kind and found[1] >= bits:
                return True
        return False
    return re.search(PATTERNS[what], body) is not None


def missing_instructions(name, body):
    for pattern, wanted in REQUIRED:
        if re.search(pattern, name):
            return [what for what in wanted if not contains(body, what)]
    return []


# One instruction of PTX that ptxas turns into several: roughly how many.
EXPANDED = {
    r"div\.rn\.f32": 10, r"div\.rn\.f64": 20, r"rcp\.rn\.f32": 8, r"rcp\.rn\.f64": 14, r"(div|rem)\.[su]32": 18,
    r"(div|rem)\.[su]64": 60,
}


def weight(instruction):
    return next((count for pattern, count in EXPANDED.items() if re.match(pattern, instruction)), 1)


def cheapest_ways(lines, targets, begin, end):
    """Through lines [begin, end) from top to bottom: for every (bytes loaded, bytes stored) in 128-bit accesses that
    some way has, the fewest instructions, and how many of them are dp4a. No branch goes backwards."""
    # best[i]: from line i to the end; empty where there is no way.
    best = [{}] * (end - begin) + [{(0, 0): (0, 0)}]
    for i in range(end - 1, begin - 1, -1):
        name, predicated = lines[i]
        ways = {}
        if predicated or not name.startswith(("bra", "ret", "exit")) or i == end - 1:
            ways.update(best[i + 1 - begin])
        if i in targets and i < targets[i] <= end:
            for moved, count in best[targets[i] - begin].items():
                ways[moved] = min(ways.get(moved, count), count)
        kind, bits = vector_bits(name) or (None, 0)
        size = bits // 8 if bits >= 128 else 0
        loaded, stored = (size if kind == "ld" else 0), (size if kind == "st" else 0)
        own, dp4a = weight(name), int(name.startswith("dp4a"))
        best[i - begin] = {(moved[0] + loaded, moved[1] + stored): (count[0] + own, count[1] + dp4a)
                           for moved, count in ways.items()}
    return best[0]


def vector_loops(body):
    """The innermost loops that move global memory in accesses of 128 bits, or the whole body where none does. For
    each: whether it stores at all, and its ways: one turn costs at least so many instructions, of which so many are
    dp4a, if it loads and stores so many bytes. Several, since loads may be optional (a divisor, scales of every
    element). They leave out slow paths, and so are the least that a turn can take."""
    lines, labels, jumps = [], {}, {}
    for line in body.splitlines():
        line = line.split("//")[0].strip()
        if match := re.fullmatch(r"(\$\w+):", line):
            labels[match.group(1)] = len(lines)
        elif match := re.match(r"(@!?%\w+\s+)?([a-z][\w.:]*)(.*);$", line):
            if match.group(2).startswith("bra") and (target := re.search(r"(\$\w+)\s*$", match.group(3))):
                jumps[len(lines)] = target.group(1)
            lines.append((match.group(2), match.group(1) is not None))
    targets = {i: labels[label] for i, label in jumps.items() if label in labels}
    spans = {(0, len(lines))} | {(target, i + 1) for i, target in targets.items() if target <= i}
    found = []
    # The shortest first: a loop around another one says nothing about its turns.
    for begin, end in sorted(spans, key=lambda span: (span[1] - span[0], span)):
        if any(begin <= inner[0] and inner[1] <= end for inner, _ in found):
            continue
        ways = [{"instructions": count[0], "dp4a": count[1], "load_bytes": moved[0], "store_bytes": moved[1]}
                for moved, count in sorted(cheapest_ways(lines, targets, begin, end).items()) if sum(moved) > 0]
        if ways:
            stores = any(name.startswith("st.") and vector_bits(name) for name, _ in lines[begin:end])
            found.append(((begin, end), {"stores": stores, "loop": (begin, end) != (0, len(lines)), "ways": ways}))
    return [loop for _, loop in sorted(found, key=lambda item: item[0])]


def vector_loop(loops):
    """Of these loops' ways the one that moves the most. None where there is none."""
    # One that also stores makes the results; others only look for ranges or merge them.
    ways = [dict(way, loop=loop["loop"]) for loop in loops for way in loop["ways"]]
    return max(ways, key=lambda way: (way["store_bytes"] > 0 and way["load_bytes"] > 0,
                                      way["load_bytes"] + way["store_bytes"], -way["instructions"]), default=None)


def faults(rows):
    """Sentences about what must not be."""
    found = []
    for row in rows:
        where = f"{row['name']} for sm_{row['arch']}"
        if row["spill_stores"] or row["spill_loads"]:
            found.append(f"{where} spills: {row['spill_stores']} bytes stored, {row['spill_loads']} bytes loaded")
        if row["stack"]:
            found.append(f"{where} has a stack frame of {row['stack']} bytes")
        if row["registers"] is None:
            found.append(f"{where}: ptxas reported no registers")
    return found


def sources_of(path, seen=None):
    """A source and all of our headers that it includes, directly or not."""
    seen = {} if seen is None else seen
    path = path.resolve()
    if path in seen:
        return seen
    text = path.read_bytes()
    seen[path] = text
    for name in re.findall(rb'^\s*#\s*include\s+["<]([^">]+)[">]', text, re.M):
        for folder in (path.parent, ROOT / "src", ROOT / "include"):
            header = folder / name.decode()
            if header.is_file():
                sources_of(header, seen)
                break
    return seen


def compiler_version(nvcc):
    ran = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True)
    match = re.search(r"release \S+ V(\S+)", ran.stdout)
    return match.group(1) if match else ran.stdout.strip().splitlines()[-1]


def compile_once(nvcc, version, source, build, ptx):
    """The log of ptxas for all architectures, or the PTX; from the build folder if nothing changed."""
    command = [nvcc] + FLAGS + ["-I", str(ROOT / "src"), "-I", str(ROOT / "include")]
    if ptx:
        command += [f"-arch=compute_{PTX_ARCHITECTURE}", "-ptx"]
    else:
        command += ["-Xptxas", "-v", "-fatbin"]
        for arch in ARCHITECTURES:
            command += ["-gencode", f"arch=compute_{arch},code=sm_{arch}"]
    digest = hashlib.sha256(repr((version, command)).encode())
    for path, text in sorted(sources_of(source).items()):
        digest.update(str(path).encode() + b"\0" + text)
    result = build / f"{source.stem}-{digest.hexdigest()[:16]}.{'ptx' if ptx else 'log'}"
    if result.exists():
        return result.read_text()
    for old in build.glob(f"{source.stem}-*{result.suffix}"):
        old.unlink()
    partial = build / f"{source.stem}.{os.getpid()}.{'ptx' if ptx else 'fatbin'}"
    try:
        ran = subprocess.run(command + [str(source), "-o", str(partial)], capture_output=True, text=True)
        if ran.returncode != 0:
            raise SystemExit(f"check_ptxas: nvcc refused {source}:\n{ran.stdout}{ran.stderr}")
        text = partial.read_text() if ptx else ran.stderr + ran.stdout
    finally:
        partial.unlink(missing_ok=True)
    result.write_text(text)
    return text


def collect(logs, ptxs, families=()):
    """All figures and all faults. logs and ptxs: texts."""
    rows = [row for text in logs for row in parse_ptxas(text)]
    entries = {}
    for text in ptxs:
        entries.update(parse_ptx(text))
    names = demangle([row["entry"] for row in rows] + list(entries))
    # Anonymous namespaces give the same kernel a name of its own in each compilation; the readable one is the key.
    by_name = {names[entry]: value for entry, value in entries.items()}
    missing = []
    for name, entry in sorted(by_name.items()):
        entry["vector_loops"] = vector_loops(entry["body"])
        entry["vector_loop"] = vector_loop(entry["vector_loops"])
        missing += [f"{name}: no {what} in its PTX" for what in missing_instructions(name, entry["body"])]
    for row in rows:
        row["name"] = names[row.pop("entry")]
        entry = by_name.get(row["name"])
        row["threads"] = entry["threads"] if entry else None
        row["blocks"] = entry["blocks"] if entry else None
        row["vector_loop"] = entry["vector_loop"] if entry else None
        row["vector_loops"] = entry["vector_loops"] if entry else []
    # A template that two sources use is compiled in both; the worse of the two counts.
    rows.sort(key=lambda row: (natural(row["name"]), row["arch"], -row["stack"], -(row["registers"] or 0)))
    rows = [row for before, row in zip([None] + rows, rows)
            if before is None or (before["name"], before["arch"]) != (row["name"], row["arch"])]
    there = {family(row["name"]) for row in rows}
    lost = [f"{source} has no kernel {name}" for source, name in families if name not in there]
    return rows, faults(rows) + missing + lost


def natural(name):
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def family(name):
    return name.split("<")[0]


def span(values):
    """'24' or '24–40'."""
    values = [value for value in values if value is not None]
    if not values:
        return ""
    return str(min(values)) if min(values) == max(values) else f"{min(values)}–{max(values)}"


def summary_table(figures):
    """One line for each family: min to max over types."""
    archs = sorted({row["arch"] for row in figures["kernels"]})
    titles = " | ".join(f"sm_{arch}" for arch in archs)
    lines = [f"nvcc {figures['nvcc']}; registers of a thread, min to max over the family's kernels. None spills",
             "or has a stack frame. Shared memory is what a kernel declares; what a launch asks for comes on top.", "",
             f"| kernel | kernels | threads in a block | shared bytes | {titles} |",
             "|---" * (4 + len(archs)) + "|"]
    by = {}
    for row in figures["kernels"]:
        by.setdefault(family(row["name"]), []).append(row)
    for name, rows in sorted(by.items()):
        cells = [span([row["registers"] for row in rows if row["arch"] == arch]) for arch in archs]
        lines.append(f"| {name} | {len({row['name'] for row in rows})} | {span([row['threads'] for row in rows])} | "
                     f"{span([row['shared'] for row in rows])} | " + " | ".join(cells) + " |")
    return lines


def full_list(figures):
    """docs/cuda_kernels.md: every kernel."""
    archs = sorted({row["arch"] for row in figures["kernels"]})
    by = {}
    for row in figures["kernels"]:
        by.setdefault(family(row["name"]), {}).setdefault(row["name"], {})[row["arch"]] = row
    lines = ["# Registers of every CUDA kernel", "",
             "Written by `tests/cuda/check_ptxas.py --table`; [cuda.md](cuda.md) has the summary. Each cell: registers",
             f"of a thread, as ptxas of nvcc {figures['nvcc']} reports them.", ""]
    titles = " | ".join(f"sm_{arch}" for arch in archs)
    for name, kernels in sorted(by.items()):
        count = f"{len(kernels)} {'kernel' if len(kernels) == 1 else 'kernels'}"
        lines += ["<details>", f"<summary>{name}: {count}</summary>", "", f"| kernel | threads | {titles} |",
                  "|---" * (2 + len(archs)) + "|"]
        for kernel, rows in sorted(kernels.items(), key=lambda item: natural(item[0])):
            cells = [str(rows[arch]["registers"]) if arch in rows else "" for arch in archs]
            threads = next(iter(rows.values()))["threads"]
            lines.append(f"| `{kernel}` | {threads or ''} | " + " | ".join(cells) + " |")
        lines += ["", "</details>", ""]
    return lines


def between(text, marker, lines):
    """The text with these lines between <!-- marker --> and <!-- /marker -->."""
    begin, end = f"<!-- {marker} -->", f"<!-- /{marker} -->"
    if begin not in text or end not in text:
        raise SystemExit(f"{begin} … {end} is not there to be filled")
    before, rest = text.split(begin, 1)
    return before + begin + "\n" + "\n".join(lines) + "\n" + end + rest.split(end, 1)[1]


def write_or_check(path, text, check):
    """Writes the text, or tells whether it is what stands there."""
    old = path.read_text() if path.exists() else None
    if check:
        return old == text
    if old != text:
        path.write_text(text)
    return True


def documents(figures, docs, check):
    """Fills docs/cuda.md and docs/cuda_kernels.md; in check mode returns the names of those that differ."""
    page = docs / "cuda.md"
    text = page.read_text()
    if check:
        # Another compiler allocates other registers: that is no fault of the page.
        made = re.search(r"<!-- ptxas -->\nnvcc (\S+);", text)
        if made and made.group(1) != figures["nvcc"]:
            print(f"check_ptxas: docs were written with nvcc {made.group(1)}, this is {figures['nvcc']}: not compared")
            return []
    different = []
    for path, new in ((page, between(text, "ptxas", summary_table(figures))),
                      (docs / "cuda_kernels.md", "\n".join(full_list(figures)))):
        if not write_or_check(path, new, check):
            different.append(path.name)
    return different


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", type=pathlib.Path, help="a build folder, .cu files, saved .log and .ptx")
    parser.add_argument("--nvcc", default=shutil.which("nvcc"))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", type=pathlib.Path, help="all figures; BUILD_FOLDER/ptxas.json unless told")
    parser.add_argument("--docs", type=pathlib.Path, default=ROOT / "docs")
    parser.add_argument("--table", action="store_true", help="write the figures into docs/")
    parser.add_argument("--check-docs", action="store_true", help="fail if docs/ differs")
    arguments = parser.parse_args()

    build, sources, logs, ptxs = DEFAULT_BUILD, [], [], []
    for path in arguments.paths:
        if path.suffix == ".cu":
            sources.append(path)
        elif path.suffix == ".log":
            logs.append(path.read_text())
        elif path.suffix == ".ptx":
            ptxs.append(path.read_text())
        else:
            build = path
    saved = bool(logs or ptxs)
    everything = not sources and not saved
    if everything:
        sources = sorted((ROOT / "src/cuda").glob("*.cu"))
        if not sources:
            raise SystemExit("check_ptxas: src/cuda has no kernels")
    version = "unknown"
    if sources:
        if arguments.nvcc is None:
            print("check_ptxas: nvcc is not here: skipped")
            sys.exit(77)
        version = compiler_version(arguments.nvcc)
        build.mkdir(parents=True, exist_ok=True)
        with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
            work = [(source, ptx) for source in sources for ptx in (False, True)]
            done = pool.map(lambda w: compile_once(arguments.nvcc, version, w[0], build, w[1]), work)
            for (_, ptx), text in zip(work, done):
                (ptxs if ptx else logs).append(text)
    present = {source.name for source in sources}
    rows, wrong = collect(logs, ptxs, [pair for pair in FAMILIES if everything and pair[0] in present])
    figures = {"nvcc": version, "kernels": rows}
    target = arguments.json or build / "ptxas.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(figures, indent=1, ensure_ascii=False) + "\n")
    for sentence in wrong:
        print("check_ptxas:", sentence)
    if wrong:
        sys.exit(1)
    names = {row["name"] for row in rows}
    print(f"check_ptxas: {len(names)} kernels for {len({row['arch'] for row in rows})} architectures, at most "
          f"{max((row['registers'] for row in rows), default=0)} registers, no spills, no stack frames")
    if arguments.table or arguments.check_docs:
        different = documents(figures, arguments.docs, check=not arguments.table)
        if different:
            print(f"check_ptxas: {' and '.join(different)} differ from ptxas's figures; run check_ptxas.py --table")
            sys.exit(1)


if __name__ == "__main__":
    main()
