#!/usr/bin/env python3
"""Writes corpus/statistics: small files of statistics and imatrix files to begin fuzzing with, legal ones and ones that break one
rule each.

Run without arguments from any folder; the output is checked in.
"""
import json
import pathlib
import struct

FOLDER = pathlib.Path(__file__).parent / "corpus" / "statistics"
FOLDER.mkdir(parents=True, exist_ok=True)
CODES = {"F32": "f", "I64": "q", "F64": "d"}


def statistics(name, tensors, metadata=None):
    """`tensors`: {name: (dtype, shape, values)}."""
    header, data = ({"__metadata__": metadata} if metadata else {}), b""
    for tensor, (dtype, shape, values) in tensors.items():
        block = struct.pack(f"<{len(values)}{CODES[dtype]}", *values)
        header[tensor] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(block)]}
        data += block
    text = json.dumps(header, separators=(",", ":")).encode()
    (FOLDER / name).write_bytes(struct.pack("<Q", len(text)) + text + data)


def string(text):
    return struct.pack("<Q", len(text)) + text.encode()


def imatrix(name, tensors, kind="imatrix", chunks=3, without=None):
    """`tensors`: {name: (sums of all rows, counts)}."""
    entries = [string("general.type") + struct.pack("<I", 8) + string(kind),
               string("imatrix.chunk_count") + struct.pack("<II", 4, chunks), string("imatrix.chunk_size") + struct.pack("<II", 4, 512)]
    head, data, count = b"", b"", 0
    for tensor, (sums, counts) in tensors.items():
        for suffix, values in ((".counts", counts), (".in_sum2", sums)):
            if suffix == without:
                continue
            data += bytes(-len(data) % 32)
            head += string(tensor + suffix) + struct.pack("<IQQIQ", 2, len(values) // len(counts), len(counts), 0, len(data))
            data += struct.pack(f"<{len(values)}f", *values)
            count += 1
    head = b"GGUF" + struct.pack("<IQQ", 3, count, len(entries)) + b"".join(entries) + head
    (FOLDER / name).write_bytes(head + bytes(-len(head) % 32) + data)


full = {"q.count": ("I64", [1], [7]), "q.histogram": ("I64", [5], [1, 2, 3, 4, 4]), "q.histogram_limit": ("F64", [1], [4.0]),
        "q.absmax": ("F32", [2], [3, 2]), "q.min": ("F32", [2], [-3, -1]), "q.max": ("F32", [2], [1, 2]),
        "q.mean_square": ("F32", [2], [0.5, 0.25]), "q.int8_error": ("F32", [2], [0.01, 0.02]),
        "q.int8_asymmetric_error": ("F32", [2], [0.03, 0.04]), "q.hessian": ("F32", [2, 2], [1, 2, 2, 5]),
        "k.absmax": ("F32", [2], [3, 2])}
shared = {"format": "pt", "tokens": "7", "k.same_input_as": "q"}
statistics("legal", full, shared)
statistics("legal_one", {"q.absmax": ("F32", [1], [1.0])})
statistics("legal_unknown", {"q.absmax": ("F32", [1], [1.0]), "q.kurtosis": ("F32", [3], [1, 2, 3]), "absmax": ("F32", [1], [1])})
statistics("legal_pointer_only", {"q.mean_square": ("F32", [2], [1, 2]), "q.count": ("I64", [1], [1])}, {"v.same_input_as": "q"})
statistics("legal_empty", {"q.absmax": ("F32", [0], []), "q.hessian": ("F32", [0, 0], [])})
statistics("legal_widths", {"q.absmax": ("F32", [1], [1]), "q.min": ("F32", [2], [1, 2])})
statistics("legal_tiny_limit", {"q.histogram": ("I64", [3], [0, 0, 9]), "q.histogram_limit": ("F64", [1], [2.0**-1000])})
statistics("legal_bad_numbers", {"q.absmax": ("F32", [1], [float("nan")]), "q.count": ("I64", [1], [0]),
                                 "q.histogram": ("I64", [3], [-1, 2, 3]), "q.histogram_limit": ("F64", [1], [3.0])})
statistics("legal_large_counts", {"q.count": ("I64", [1], [2**63 - 1]), "q.mean_square": ("F32", [1], [3e38])})
statistics("refused_form", {"q.count": ("F32", [1], [7])})
statistics("refused_bins", {"q.histogram": ("I64", [4], [1, 2, 3, 4])})
statistics("refused_hessian", {"q.hessian": ("F32", [1, 2], [1, 2])})
statistics("refused_pointer", full, {"k.same_input_as": "nobody"})
statistics("refused_chain", full, {"k.same_input_as": "q", "v.same_input_as": "k"})
statistics("refused_itself", full, {"q.same_input_as": "q"})

dense = {"blk.0.attn_q.weight": ([2.0, 4.0], [3]), "output.weight": ([1.0], [1])}
imatrix("legal_imatrix", dense)
imatrix("legal_imatrix_experts", {"blk.3.ffn_up_exps.weight": ([1, 2, 0, 0, 5, 6], [1, 0, 2]), "blk.3.ffn_gate_inp.weight": ([3, 3], [3])})
imatrix("legal_imatrix_unknown", {**dense, "blk.0.ssm_in.weight": ([1.0], [1])})
imatrix("legal_imatrix_nan", {"blk.0.attn_q.weight": ([float("nan"), -1.0], [1])})
imatrix("refused_imatrix_type", dense, kind="model")
imatrix("refused_imatrix_counts", dense, without=".counts")
imatrix("refused_imatrix_sums", dense, without=".in_sum2")
imatrix("refused_imatrix_rows", {"blk.0.attn_q.weight": ([1, 2], [1, 1])})
imatrix("refused_imatrix_count", {"blk.0.attn_q.weight": ([1, 2], [0.5])})
imatrix("refused_imatrix_none", {"blk.0.attn_q.weight": ([1, 2], [0])})
name = b"blk.0.attn_q.weight"
(FOLDER / "refused_imatrix_old").write_bytes(struct.pack("<ii", 1, len(name)) + name + struct.pack("<iif", 5, 1, 1.0))
