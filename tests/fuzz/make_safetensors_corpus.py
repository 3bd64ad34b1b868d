#!/usr/bin/env python3
"""Writes corpus/safetensors: small files to begin fuzzing with, legal ones and ones that break one rule each.

A file is length, header, data. Where its name begins with "size_", the first 8 bytes are the size of the data instead
(see safetensors_fuzz.cc). Run without arguments from any folder; the output is checked in.
"""
import pathlib
import struct

FOLDER = pathlib.Path(__file__).parent / "corpus" / "safetensors"


def entry(name, dtype, shape, begin, end):
    shape = ",".join(map(str, shape))
    return f'"{name}":{{"dtype":"{dtype}","shape":[{shape}],"data_offsets":[{begin},{end}]}}'


def write_file(name, header, data_bytes):
    header = header if isinstance(header, bytes) else header.encode()
    (FOLDER / name).write_bytes(struct.pack("<Q", len(header)) + header + bytes(range(data_bytes)))


def write_size(name, header, data_bytes):
    (FOLDER / f"size_{name}").write_bytes(struct.pack("<Q", data_bytes) + header.encode())


FOLDER.mkdir(parents=True, exist_ok=True)
two = entry("a", "F32", [2, 2], 0, 16) + "," + entry("b", "BF16", [3], 16, 22)
write_file("legal_none", "{}", 0)
write_file("legal_two", "{" + two + "}   ", 22)
write_file("legal_out_of_order", "{" + entry("z", "I8", [4], 2, 6) + ",\n\t" + entry("y", "U16", [], 0, 2) + "}", 6)
write_file("legal_empty", "{" + ",".join(entry(n, "F64", [0, 3], 0, 0) for n in "qpr") + "}", 0)
write_file("legal_names", "{" + entry("\u0436\U0001f600", "U8", [1], 0, 1) + "," + entry("\\u0061\\\"", "BOOL", [1], 1, 2) + "}", 2)
write_file("legal_metadata", '{"__metadata__":{"format":"pt","":"\\u0000"},' + two + "}", 22)
write_file("legal_small_types", "{" + ",".join([
    entry("f4", "F4", [2, 3], 0, 3), entry("f6", "F6_E2M3", [4], 3, 6), entry("g6", "F6_E3M2", [4], 6, 9),
    entry("f8", "F8_E4M3", [1], 9, 10), entry("c", "C64", [1], 10, 18)]) + "}", 18)
write_size("legal_most", "{" + entry("a", "U8", [2**63 - 1], 0, 2**63 - 1) + "}", 2**63 - 1)
write_size("overflow", "{" + entry("a", "F64", [2**61, 2], 0, 2**62) + "}", 2**62)
write_size("overflow_beside_0", "{" + entry("a", "F64", [2**61, 2**61, 0], 0, 0) + "}", 2**62)
write_file("refused_duplicate", "{" + entry("a", "U8", [1], 0, 1) + "," + entry("\\u0061", "U8", [1], 1, 2) + "}", 2)
write_file("refused_hole", "{" + entry("a", "U8", [1], 0, 1) + "," + entry("b", "U8", [1], 2, 3) + "}", 3)
write_file("refused_zero_byte", "{}\0}", 0)
write_file("refused_utf8", b'{"\xed\xa0\x80":{}}', 0)
write_file("refused_float", '{"a":{"dtype":"U8","shape":[1.0],"data_offsets":[0,1e999]}}', 1)
write_file("refused_deep", '{"a":{"shape":[[[[]]]]}}', 0)
write_file("refused_metadata", '{"__metadata__":{"a":null}}', 0)
