#!/usr/bin/env python3
"""ONNX's node tests of quantization as text, for tests/ops/onnx_conformance_test.cc.

    python3 tests/interop/onnx_node_cases.py --write    # tests/ops/onnx_node_cases.txt again
    python3 tests/interop/onnx_node_cases.py --check    # is that file what the installed onnx makes?

Needs PyPI's onnx. The cases are those of onnx.backend.test.case.node for the five operators that kvant has: inputs,
attributes and expected outputs. Their "_expanded" forms are left out: the same numbers for a model of other operators.
"""

import argparse
import difflib
import math
import pathlib
import sys
import warnings

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

VERSION = "1.23"
FILE = pathlib.Path(__file__).resolve().parent.parent / "ops/onnx_node_cases.txt"
OPERATORS = {"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "MatMulInteger", "QLinearMatMul"}
HEADER = f"""\
# ONNX {VERSION}'s node tests of quantization, written by tests/interop/onnx_node_cases.py. Not to be edited.
#
#   case NAME OPERATOR ATTRIBUTE=VALUE...
#   in NAME ELEMENT [SIZES] NUMBERS...
#   out NAME ELEMENT [SIZES] NUMBERS...
#
# Elements have kvant's names. Numbers of f32 and f16 are the shortest decimals that give them back; codes of integer
# types are integers, codes of floating-point types (e4m3, e5m2, e2m1) are their bits.
"""
# ONNX's types with kvant's names. Codes of floating point are written as their bits.
ELEMENTS = {
    TensorProto.FLOAT: "f32", TensorProto.FLOAT16: "f16", TensorProto.INT32: "s32",
    TensorProto.INT8: "s8", TensorProto.UINT8: "u8", TensorProto.INT16: "s16", TensorProto.UINT16: "u16",
    TensorProto.INT4: "s4", TensorProto.UINT4: "u4", TensorProto.INT2: "s2", TensorProto.UINT2: "u2",
    TensorProto.FLOAT8E4M3FN: "e4m3", TensorProto.FLOAT8E5M2: "e5m2", TensorProto.FLOAT4E2M1: "e2m1",
}
FLOATING_CODES = {"e4m3", "e5m2", "e2m1"}


def number(value):
    """A floating-point number as text."""
    magnitude = abs(float(value))
    if math.isnan(magnitude) or math.isinf(magnitude):
        return str(float(value))
    plain = magnitude == 0 or 1e-4 <= magnitude < 1e7
    return (np.format_float_positional if plain else np.format_float_scientific)(value, trim="-")


def tensor(direction, name, value):
    """One line for a numpy array or a TensorProto."""
    proto = value if isinstance(value, TensorProto) else numpy_helper.from_array(np.asarray(value))
    element = ELEMENTS.get(proto.data_type)
    if element is None:
        raise SystemExit(f"onnx_node_cases: {name} has element type {TensorProto.DataType.Name(proto.data_type)}, "
                         "which has no name here")
    array = numpy_helper.to_array(proto)
    if element in FLOATING_CODES:
        numbers = [str(int(bits)) for bits in array.view(np.uint8).flatten()]
    elif element.startswith("f"):
        numbers = [number(x) for x in array.flatten()]
    else:
        numbers = [str(int(x)) for x in array.flatten()]
    sizes = ",".join(str(size) for size in array.shape)
    return " ".join([direction, name, element, f"[{sizes}]", *numbers]) + "\n"


def attribute(given):
    value = helper.get_attribute_value(given)
    if not isinstance(value, int):
        raise SystemExit(f"onnx_node_cases: attribute {given.name} is {value!r} and not an integer")
    return f" {given.name}={value}"


def cases():
    """The text of all cases, sorted by name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of other operators' cases
        with np.errstate(all="ignore"):
            from onnx.backend.test.case.node import collect_testcases
            collected = collect_testcases(None)
    lines = []
    for case in sorted(collected, key=lambda case: case.name):
        nodes = case.model.graph.node
        if len(nodes) != 1 or nodes[0].op_type not in OPERATORS:
            continue
        node = nodes[0]
        lines.append(f"case {case.name} {node.op_type}{''.join(attribute(a) for a in node.attribute)}\n")
        for inputs, outputs in case.data_sets:
            names = [name for name in node.input if name]
            assert len(names) == len(inputs) and len(node.output) == len(outputs), case.name
            lines += [tensor("in", name, value) for name, value in zip(names, inputs)]
            lines += [tensor("out", name, value) for name, value in zip(node.output, outputs)]
    return HEADER + "".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--write", action="store_true", help=f"write {FILE.name}")
    what.add_argument("--check", action="store_true", help=f"compare {FILE.name} with what onnx makes")
    arguments = parser.parse_args()
    if not onnx.__version__.startswith(VERSION + "."):
        raise SystemExit(f"onnx_node_cases: onnx {onnx.__version__} is installed, the cases are of {VERSION}")
    made = cases()
    count = made.count("\ncase ")
    if arguments.write:
        FILE.write_text(made)
        print(f"{FILE}: {count} cases of onnx {onnx.__version__}")
        return 0
    held = FILE.read_text()
    if held == made:
        print(f"{FILE.name}: the {count} cases of onnx {onnx.__version__}")
        return 0
    sys.stdout.writelines(difflib.unified_diff(held.splitlines(True), made.splitlines(True), FILE.name, "onnx"))
    return 1


if __name__ == "__main__":
    sys.exit(main())
