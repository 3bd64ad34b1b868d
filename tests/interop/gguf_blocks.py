#!/usr/bin/env python3
"""Blocks of GGUF tensors, bit for bit against PyPI's gguf package.

    python3 tests/interop/gguf_blocks.py build/release/kvant            # random blocks through kvant convert
    python3 tests/interop/gguf_blocks.py --write                        # tests/format/gguf_blocks_vectors.txt again

Needs gguf and numpy. For every type that kvant decodes, a file of gguf's own writer with random blocks is converted, and
every value compared with gguf.quants.dequantize; the sizes of all types are compared with gguf's table.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TYPES = [Type.F32, Type.F16, Type.BF16, Type.Q8_0, Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1, Type.Q4_K, Type.Q6_K]
# Where a block has its halves, which must be finite: a NaN may have any bits.
HALVES = {Type.F16: [0], Type.Q8_0: [0], Type.Q4_0: [0], Type.Q4_1: [0, 2], Type.Q5_0: [0], Type.Q5_1: [0, 2],
          Type.Q4_K: [0, 2], Type.Q6_K: [208]}
HIDDEN, HEADS, KV_HEADS, ROWS = 512, 4, 2, 256


def random_blocks(rng, kind, rows, columns):
    """Bytes of any value; halves that are large, denormal and negative among them."""
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (rows * columns // elements, size), dtype=np.uint8)
    for at in HALVES.get(kind, []):
        bits = blocks[:, at:at + 2].copy().view(np.uint16)
        bits[(bits & 0x7C00) == 0x7C00] &= 0xFBFF
        blocks[:, at:at + 2] = bits.view(np.uint8)
    if kind in (Type.F32, Type.BF16):  # no NaN
        high = 3 if kind == Type.F32 else 1
        blocks[:, high] &= 0xBF
    return blocks.reshape(rows, -1)


def values_of(data, kind):
    with np.errstate(all="ignore"):
        return gguf.quants.dequantize(data, kind).astype(np.float32)


def turned(matrix, heads):
    """The rows of q and k as Hugging Face has them."""
    return matrix.reshape(heads, matrix.shape[0] // heads // 2, 2, -1).swapaxes(1, 2).reshape(matrix.shape)


def read_safetensors(path):
    with open(path, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        data = file.read()
    header.pop("__metadata__")
    return {name: np.frombuffer(data[slice(*entry["data_offsets"])], np.uint32).reshape(entry["shape"]) for name, entry in header.items()}


def check_type(tool, kind, seed, folder):
    rng = np.random.default_rng(seed)
    path = folder / f"{kind.name}.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(512)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(ROWS)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    want = {}
    kv = HIDDEN // HEADS * KV_HEADS
    for old, new, rows, columns, heads in (
            ("token_embd", "model.embed_tokens", 96, HIDDEN, 0), ("blk.0.attn_q", "model.layers.0.self_attn.q_proj", HIDDEN, HIDDEN, HEADS),
            ("blk.0.attn_k", "model.layers.0.self_attn.k_proj", kv, HIDDEN, KV_HEADS), ("blk.0.attn_v", "model.layers.0.self_attn.v_proj", kv, HIDDEN, 0),
            ("blk.0.attn_output", "model.layers.0.self_attn.o_proj", HIDDEN, HIDDEN, 0), ("blk.0.ffn_gate", "model.layers.0.mlp.gate_proj", ROWS, HIDDEN, 0),
            ("blk.0.ffn_up", "model.layers.0.mlp.up_proj", ROWS, HIDDEN, 0), ("blk.0.ffn_down", "model.layers.0.mlp.down_proj", HIDDEN, ROWS, 0)):
        blocks = random_blocks(rng, kind, rows, columns)
        writer.add_tensor(old + ".weight", blocks, raw_shape=blocks.shape, raw_dtype=kind)
        values = values_of(blocks if kind not in (Type.F32, Type.F16) else blocks.view(np.float32 if kind == Type.F32 else np.float16), kind)
        want[new + ".weight"] = turned(values, heads) if heads else values
    for old, new in (("blk.0.attn_norm", "model.layers.0.input_layernorm"), ("blk.0.ffn_norm", "model.layers.0.post_attention_layernorm"),
                     ("output_norm", "model.norm")):
        values = rng.standard_normal(HIDDEN).astype(np.float32)
        writer.add_tensor(old + ".weight", values)
        want[new + ".weight"] = values
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    subprocess.run([tool, "convert", path, "-o", folder / kind.name, "-q"], check=True)
    got = read_safetensors(folder / kind.name / "model.safetensors")
    assert sorted(got) == sorted(want), sorted(got)
    compared = 0
    for name, values in want.items():
        bits = np.ascontiguousarray(values).view(np.uint32)
        assert got[name].shape == bits.shape, (name, got[name].shape, bits.shape)
        wrong = got[name] != bits
        assert not wrong.any(), f"{kind.name} {name}: {wrong.sum()} of {wrong.size} differ, first at {np.argwhere(wrong)[0]}"
        compared += bits.size
    print(f"{kind.name:5} {compared} values equal to the bit")


def check_sizes(tool, folder):
    """A tensor of two blocks of every type of gguf's table: kvant knows it with that size, or refuses the type."""
    known = 0
    for kind, (elements, size) in gguf.GGML_QUANT_SIZES.items():
        path = folder / "size.gguf"
        writer = gguf.GGUFWriter(path, "llama")
        blocks = np.zeros((2, size), np.uint8)
        writer.add_tensor("a", blocks, raw_shape=blocks.shape, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        ran = subprocess.run([tool, "inspect", path, "--json"], capture_output=True, text=True)
        if ran.returncode != 0:
            assert f"type {int(kind)} is unknown" in ran.stderr, ran.stderr
            print(f"{kind.name} is refused")
            continue
        assert json.loads(ran.stdout)["tensors"] == [{"name": "a", "type": kind.name, "shape": [2, elements], "bytes": 2 * size}], ran.stdout
        known += 1
    print(f"{known} types have gguf's names and sizes")


def write_vectors():
    """Three lines for each type: random blocks, the last with scales that are powers of two."""
    lines = ["# Written by tests/interop/gguf_blocks.py --write with gguf's dequantize: type, block, bits of its values."]
    for kind in TYPES:
        elements, size = gguf.GGML_QUANT_SIZES[kind]
        rng = np.random.default_rng(int(kind))
        for line in range(3):
            blocks = random_blocks(rng, kind, 1, max(elements, 4))
            if line == 2:
                for at in HALVES.get(kind, []):
                    blocks.reshape(-1, size)[:, at:at + 2] = np.array([0x00, 0x28], np.uint8)
            view = blocks.view(np.float32) if kind == Type.F32 else blocks.view(np.float16) if kind == Type.F16 else blocks
            bits = np.ascontiguousarray(values_of(view, kind)).view(np.uint32).reshape(-1)
            lines.append(f"{kind.name} {blocks.tobytes().hex()} {''.join(f'{b:08x}' for b in bits)}")
    (ROOT / "tests/format/gguf_blocks_vectors.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        write_vectors()
    else:
        tool = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build/release/kvant").resolve()
        with tempfile.TemporaryDirectory() as temporary:
            check_sizes(tool, pathlib.Path(temporary))
            for each in TYPES:
                check_type(tool, each, 1, pathlib.Path(temporary))
