#!/usr/bin/env python3
"""Times `kvant quantize` beside `cp` of the same checkpoint, in a memory file system.

    bench/tool_bench.py KVANT [--gigabytes 2] [--threads 2] [--schemes w8a8,fp8] [--json FILE]

cp and the schemes take turns, several times; the best of each counts. Prints times, rates, ratios and peak memory.
"""

import argparse
import json
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import time

COLUMNS = 4096
LINEARS = 8
# One of each kind of scale; none needs statistics. "w4a16+minmax" has --scale minmax; the default of four bits is search.
SCHEMES = ("w8a8", "fp8", "fp8-block", "w4a16+minmax", "mxfp4a16+minmax", "nvfp4a16+minmax", "w4a16", "mxfp4a16", "nvfp4a16")


def bell_shaped_block(elements):
    """bf16 numbers, bell-shaped like weights."""
    source = random.Random(1)
    return b"".join(struct.pack("<f", source.gauss(0, 0.02))[2:] for _ in range(elements))


def write_checkpoint(folder, total_bytes):
    rows = total_bytes // 2 // COLUMNS // LINEARS // 128 * 128  # whole blocks of fp8-block
    header, end = {}, 0
    for i in range(LINEARS):
        size = rows * COLUMNS * 2
        name = "model.layers.%d.self_attn.%s_proj.weight" % (i // 4, "qkvo"[i % 4])
        header[name] = {"dtype": "BF16", "shape": [rows, COLUMNS], "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    block = bell_shaped_block(1 << 18)
    path = os.path.join(folder, "model.safetensors")
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        while end > 0:
            file.write(block[: min(end, len(block))])
            end -= len(block)
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump({"model_type": "llama"}, file)
    return path


# A child begins with the peak of the process that forks it, and this one holds a block of weights: a small one forks.
FORKER = """
import json, os, sys, time
begin = time.perf_counter()
pid = os.fork()
if pid == 0:
    os.execvp(sys.argv[1], sys.argv[1:])
_, status, usage = os.wait4(pid, 0)
print(json.dumps([time.perf_counter() - begin, usage.ru_maxrss * 1024, os.waitstatus_to_exitcode(status)]))
"""


def timed(command):
    """Seconds, and the peak resident bytes of the process (of the interpreter that started it, if that is more)."""
    ran = subprocess.run([sys.executable, "-IS", "-c", FORKER] + command, stdout=subprocess.PIPE, text=True, check=True)
    seconds, peak, code = json.loads(ran.stdout.splitlines()[-1])
    if code != 0:
        sys.exit("tool_bench: failed: " + " ".join(command))
    return seconds, peak


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("kvant")
    parser.add_argument("--gigabytes", type=float, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--folder", default="/dev/shm", help="in a memory file system")
    parser.add_argument("--schemes", default=",".join(SCHEMES), help="with commas between them")
    parser.add_argument("--json", help="write the figures there")
    arguments = parser.parse_args()
    total = int(arguments.gigabytes * 1e9)
    free = shutil.disk_usage(arguments.folder).free
    if free < 3 * total:
        print("tool_bench: %s has %.1f GB free, %.1f are needed: skipped" % (arguments.folder, free / 1e9, 3 * total / 1e9))
        return
    folder = tempfile.mkdtemp(prefix="kvant_bench_", dir=arguments.folder)
    try:
        source = os.path.join(folder, "model")
        os.mkdir(source)
        checkpoint = write_checkpoint(source, total)
        size = os.path.getsize(checkpoint)
        copy, output = os.path.join(folder, "copy"), os.path.join(folder, "out")
        schemes = arguments.schemes.split(",")
        copies, runs, peaks = [], {scheme: [] for scheme in schemes}, dict.fromkeys(schemes, 0)
        for _ in range(arguments.repeats):
            copies.append(timed(["cp", checkpoint, copy])[0])
            os.remove(copy)
            for scheme in schemes:
                name, _, scale = scheme.partition("+")
                seconds, memory = timed([arguments.kvant, "quantize", source, "-o", output, "--scheme", name, "--threads",
                                         str(arguments.threads), "-q", *(["--scale", scale] if scale else [])])
                runs[scheme].append(seconds)
                peaks[scheme] = max(peaks[scheme], memory)
                shutil.rmtree(output)
        figures = {
            "bytes": size, "threads": arguments.threads, "cp_seconds": min(copies),
            "schemes": {scheme: {"seconds": min(runs[scheme]), "ratio_to_cp": min(copies) / min(runs[scheme]),
                                 "peak_bytes": peaks[scheme]} for scheme in schemes},
        }
        print("kvant quantize, %.1f GB of bf16 in %s, %d threads, best of %d:"
              % (size / 1e9, arguments.folder, arguments.threads, arguments.repeats))
        print("  %-12s %6.2f s  %6.2f GB/s" % ("cp", min(copies), size / 1e9 / min(copies)))
        for scheme, made in figures["schemes"].items():
            print("  %-12s %6.2f s  %6.2f GB/s  %.2f of cp  peak memory %.0f MiB"
                  % (scheme, made["seconds"], size / 1e9 / made["seconds"], made["ratio_to_cp"], made["peak_bytes"] / 2**20))
        if arguments.json:
            with open(arguments.json, "w") as file:
                json.dump(figures, file, indent=2)
                file.write("\n")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
