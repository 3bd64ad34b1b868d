#!/usr/bin/env python3
"""Writes corpus/gguf: small files to begin fuzzing with, legal ones and ones that break one rule each.

Run without arguments from any folder; the output is checked in.
"""
import pathlib
import struct

FOLDER = pathlib.Path(__file__).parent / "corpus" / "gguf"


def string(text):
    text = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(text)) + text


def entry(key, kind, value):
    return string(key) + struct.pack("<I", kind) + value


def array(key, kind, count, values):
    return entry(key, 9, struct.pack("<IQ", kind, count) + values)


def tensor(name, shape, kind, offset):
    return string(name) + struct.pack("<I", len(shape)) + b"".join(struct.pack("<Q", n) for n in shape) + struct.pack("<IQ", kind, offset)


def write(name, entries=(), tensors=(), data=0, version=3, alignment=32, counts=None):
    counts = counts or (len(tensors), len(entries))
    header = b"GGUF" + struct.pack("<IQQ", version, *counts) + b"".join(entries) + b"".join(tensors)
    header += bytes(-len(header) % alignment) if data else b""
    (FOLDER / name).write_bytes(header + bytes(range(data)))


FOLDER.mkdir(parents=True, exist_ok=True)
two = [tensor("a", [2, 2], 0, 0), tensor("b", [32], 2, 32)]
kinds = [entry(f"k{kind}", kind, struct.pack("<" + code, 1)) for kind, code in
         ((0, "B"), (1, "b"), (2, "H"), (3, "h"), (4, "I"), (5, "i"), (6, "f"), (7, "B"), (10, "Q"), (11, "q"), (12, "d"))]
write("legal_none")
write("legal_two", tensors=two, data=50)
write("legal_version_2", tensors=two, data=50, version=2)
write("legal_kinds", [*kinds, entry("s", 8, string("text"))])
write("legal_arrays", [array("u", 4, 2, struct.pack("<II", 1, 2)), array("s", 8, 2, string("a") + string("")), array("e", 6, 0, b"")])
write("legal_alignment", [entry("general.alignment", 4, struct.pack("<I", 64))], [tensor("a", [4], 0, 64)], data=80, alignment=64)
write("legal_empty_tensor", tensors=[tensor("a", [0, 3], 0, 0), tensor("scalar", [], 0, 0)], data=4)
write("legal_empty_without_data", tensors=[tensor("a", [0, 64], 0, 0)])
write("refused_version", version=1)
write("refused_big_endian", version=3 << 24)
write("refused_counts", counts=(2**61, 0))
write("refused_entries", counts=(0, 2**60))
write("refused_nested", [array("n", 9, 1, struct.pack("<IQ", 0, 0))])
write("refused_length", [array("n", 12, 2**62, b"")])
write("refused_string", [entry("s", 8, struct.pack("<Q", 2**63))])
write("refused_boolean", [entry("b", 7, b"\2")])
write("refused_twice", tensors=[two[0], two[0]], data=50)
write("refused_key_twice", [kinds[0], kinds[0]])
write("refused_overlap", tensors=[tensor("a", [16], 0, 0), tensor("b", [1], 0, 32)], data=64)
write("refused_unaligned", tensors=[tensor("a", [1], 0, 4)], data=64)
write("refused_overflow", tensors=[tensor("a", [2**62, 2**62, 0], 0, 0)], data=4)
write("refused_blocks", tensors=[tensor("a", [31], 8, 0)], data=64)
write("refused_type", tensors=[tensor("a", [32], 4, 0)], data=64)
write("refused_utf8", tensors=[tensor(b"\xed\xa0\x80", [1], 0, 0)], data=4)
write("refused_split", [entry("split.count", 2, struct.pack("<H", 3))])
