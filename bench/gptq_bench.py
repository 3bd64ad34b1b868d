#!/usr/bin/env python3
"""Times `kvant quantize --method gptq` on one made-up block of a Llama with 7 billion parameters.

    bench/gptq_bench.py KVANT [--folder FOLDER]

Attention of 4096 channels and an MLP of 11008, bf16, with Hessians of 2048 random tokens: 0.4 GB of weights, 0.7 GB of
statistics, in FOLDER (default: /dev/shm). Prints seconds and peak memory for 1, 2 and 8 threads, and says whether their bytes
are equal. Needs numpy.
"""

import argparse
import hashlib
import json
import os
import shutil
import tempfile

import numpy

from tool_bench import timed

HIDDEN, INNER, TOKENS = 4096, 11008, 2048
BLOCK = "model.layers.0."
SHAPES = {"self_attn.q_proj": (HIDDEN, HIDDEN), "self_attn.k_proj": (HIDDEN, HIDDEN), "self_attn.v_proj": (HIDDEN, HIDDEN),
          "self_attn.o_proj": (HIDDEN, HIDDEN), "mlp.gate_proj": (INNER, HIDDEN), "mlp.up_proj": (INNER, HIDDEN),
          "mlp.down_proj": (HIDDEN, INNER)}
SAME_INPUT = {"self_attn.k_proj": "self_attn.q_proj", "self_attn.v_proj": "self_attn.q_proj", "mlp.up_proj": "mlp.gate_proj"}


def write_safetensors(path, tensors, metadata):
    """`tensors`: {name: (dtype, shape, array or function that makes it)}."""
    header, at = {"__metadata__": metadata}, 0
    for name, (dtype, shape, _) in tensors.items():
        size = int(numpy.prod(shape)) * {"BF16": 2, "F32": 4}[dtype]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, _, make in tensors.values():
            file.write(make().tobytes())


def make_model(folder, random):
    def weight(shape):
        values = random.standard_normal(shape, numpy.float32) * 0.02
        return (values.view(numpy.uint32) >> 16).astype(numpy.uint16)
    os.makedirs(folder)
    write_safetensors(os.path.join(folder, "model.safetensors"),
                      {f"{BLOCK}{name}.weight": ("BF16", shape, lambda shape=shape: weight(shape)) for name, shape in SHAPES.items()},
                      {"format": "pt"})
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
        json.dump({"model_type": "llama"}, file)


def make_statistics(path, random):
    """Inputs that know of each other: a few directions in common, some channels ten times as large."""
    def hessian(channels):
        x = random.standard_normal((TOKENS, channels), numpy.float32)
        x += random.standard_normal((TOKENS, 16), numpy.float32) @ random.standard_normal((16, channels), numpy.float32)
        x *= numpy.where(numpy.arange(channels) % 97 == 5, 10, 1).astype(numpy.float32)
        return x.T @ x
    metadata = {"format": "pt"}
    for module, first in SAME_INPUT.items():
        metadata[f"{BLOCK}{module}.same_input_as"] = BLOCK + first
    write_safetensors(path, {f"{BLOCK}{name}.hessian": ("F32", (columns, columns), lambda n=columns: hessian(n))
                             for name, (_, columns) in SHAPES.items() if name not in SAME_INPUT}, metadata)


def digest(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kvant")
    parser.add_argument("--folder", default="/dev/shm")
    arguments = parser.parse_args()
    work = tempfile.mkdtemp(prefix="kvant-gptq-", dir=arguments.folder)
    try:
        random = numpy.random.default_rng(1)
        model, stats, out = (os.path.join(work, name) for name in ("model", "stats.safetensors", "out"))
        make_model(model, random)
        make_statistics(stats, random)
        digests = set()
        for method in (["--method", "gptq", "--stats", stats], ["--scale", "search"]):
            for threads in (1, 2, 8):
                seconds, memory = timed([arguments.kvant, "-q", "quantize", model, "-o", out, "--scheme", "w4a16", "--force",
                                         "--max-memory", "4g", "--threads", str(threads), *method])
                if "gptq" in method:
                    digests.add(digest(os.path.join(out, "model.safetensors")))
                print(f"{method[1]:6}  {threads} threads  {seconds:6.1f} s  peak {memory / 2**20:.0f} MiB", flush=True)
        print("bytes are equal" if len(digests) == 1 else "BYTES DIFFER")
        return 0 if len(digests) == 1 else 1
    finally:
        shutil.rmtree(work)


if __name__ == "__main__":
    raise SystemExit(main())
