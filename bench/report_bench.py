#!/usr/bin/env python3
"""Times `kvant compare` with and without `--report`, for a Llama-like model of 504 linears in a memory file system.

    bench/report_bench.py KVANT [--hidden 512] [--blocks 72] [--threads 2] [--repeats 15]

The two take turns; the best of each counts. Prints both times, their ratio, and the report's size.
"""

import argparse
import json
import os
import shutil
import struct
import tempfile

from tool_bench import bell_shaped_block, timed


def write_checkpoint(folder, blocks, hidden):
    intermediate = hidden * 43 // 16
    shapes = {"self_attn.q_proj": (hidden, hidden), "self_attn.k_proj": (hidden, hidden), "self_attn.v_proj": (hidden, hidden),
              "self_attn.o_proj": (hidden, hidden), "mlp.gate_proj": (intermediate, hidden), "mlp.up_proj": (intermediate, hidden),
              "mlp.down_proj": (hidden, intermediate)}
    header, end = {}, 0
    for i in range(blocks):
        for name, shape in shapes.items():
            size = 2 * shape[0] * shape[1]
            header["model.layers.%d.%s.weight" % (i, name)] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + size]}
            end += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    block, written = bell_shaped_block(1 << 18), 0
    with open(os.path.join(folder, "model.safetensors"), "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        while written < end:
            # Turned a little each time: no two rows are the same.
            turn = 2 * (written // len(block) * 7919 % 4096)
            file.write((block[turn:] + block[:turn])[: end - written])
            written += len(block)
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump({"model_type": "llama"}, file)
    return len(shapes) * blocks, end


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("kvant")
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--blocks", type=int, default=72)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--folder", default="/dev/shm", help="in a memory file system")
    arguments = parser.parse_args()
    folder = tempfile.mkdtemp(prefix="kvant_bench_", dir=arguments.folder)
    try:
        source, output, report = (os.path.join(folder, name) for name in ("model", "w8a8", "report.html"))
        os.mkdir(source)
        linears, size = write_checkpoint(source, arguments.blocks, arguments.hidden)
        timed([arguments.kvant, "quantize", source, "-o", output, "-q"])
        compare = [arguments.kvant, "compare", source, output, "-q", "--top", "1", "--threads", str(arguments.threads)]
        plain, reported = [], []
        for _ in range(arguments.repeats):
            plain.append(timed(compare)[0])
            reported.append(timed(compare + ["--report", report])[0])
        print("kvant compare, %d linears, %.2f GB of bf16 in %s, %d threads, best of %d:"
              % (linears, size / 1e9, arguments.folder, arguments.threads, arguments.repeats))
        print("  without a report %7.3f s" % min(plain))
        print("  with             %7.3f s  %.2f times as long; %.0f kB" % (min(reported), min(reported) / min(plain), os.path.getsize(report) / 1e3))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
