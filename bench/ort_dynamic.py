#!/usr/bin/env python3
"""Times ONNX Runtime's DynamicQuantizeMatMul on the shapes of the linear-layer benchmark, and checks its sums.

usage: ort_dynamic.py [--again] [FILE]   (./dev bench --ort does it)

Writes FILE (bench_ort.json). With --again, keeps the better of each time and the one already in FILE, so that two
runs at different moments make one result.
"""
import json
import pathlib
import sys
import time

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper

ROWS = (1, 16, 128, 512)
LAYERS = ((4096, 4096), (1024, 4096), (4096, 11008))  # K, N
THREADS = (1, 2)
SECONDS = 1.0  # for one shape, but at least LEAST_CALLS
LEAST_CALLS = 4


def session(weight, scale, threads):
    """One node: float32 [M, K] by int8 [K, N] with a scale for each column."""
    k, n = weight.shape
    graph = helper.make_graph(
        [helper.make_node("DynamicQuantizeMatMul", ["x", "weight", "scale"], ["y"], domain="com.microsoft")], "linear",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["m", k])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["m", n])],
        [onnx.numpy_helper.from_array(weight, "weight"), onnx.numpy_helper.from_array(scale, "scale")])
    model = helper.make_model(graph, ir_version=8,
                              opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)])
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def seconds_of(running, x, n):
    """The fastest of several calls, with input and output bound beforehand: no copies, no allocation."""
    binding = running.io_binding()
    output = ort.OrtValue.ortvalue_from_numpy(np.zeros((x.shape[0], n), np.float32))
    binding.bind_ortvalue_input("x", ort.OrtValue.ortvalue_from_numpy(x))
    binding.bind_ortvalue_output("y", output)
    best, calls, end = float("inf"), 0, time.perf_counter() + SECONDS
    while calls < LEAST_CALLS or time.perf_counter() < end:
        begin = time.perf_counter()
        running.run_with_iobinding(binding)
        best = min(best, time.perf_counter() - begin)
        calls += 1
    return best


def sums_are_exact(running, x, weight):
    """Inputs from 0 to 255 become codes of scale 1 and zero point 0, so with scales of 1 the output is the sum."""
    y = running.run(None, {"x": x})[0]
    rows = np.arange(min(4, x.shape[0]))
    exact = x[rows].astype(np.int64) @ weight[:, :64].astype(np.int64)
    return bool(np.array_equal(y[rows, :64].astype(np.int64), exact))


def main():
    arguments = sys.argv[1:]
    again = "--again" in arguments
    paths = [argument for argument in arguments if argument != "--again"]
    if len(paths) > 1 or any(path.startswith("-") for path in paths):
        sys.exit(__doc__)
    path = pathlib.Path(paths[0] if paths else "bench_ort.json")
    earlier = {}
    if again and path.exists():
        earlier = {(tuple(row["shape"]), row["threads"]): row["seconds"] for row in json.loads(path.read_text())}

    random = np.random.default_rng(11)
    rows = []
    for k, n in LAYERS:
        floats = random.standard_normal((k, n), dtype=np.float32)
        scale = np.abs(floats).max(axis=0) / np.float32(127)
        bell = np.rint(floats / scale).astype(np.int8)
        del floats
        full_range = random.integers(-128, 128, (k, n), dtype=np.int8)
        codes = random.integers(0, 256, (max(ROWS), k)).astype(np.float32)
        codes[:, 0], codes[:, 1] = 0, 255
        checking = session(full_range, np.ones(n, np.float32), max(THREADS))
        sums = {m: "exact" if sums_are_exact(checking, codes[:m], full_range) else "wrong" for m in ROWS}
        del checking
        x = random.standard_normal((max(ROWS), k), dtype=np.float32)
        for threads in THREADS:
            running = session(bell, scale, threads)
            for m in ROWS:
                seconds = min(seconds_of(running, x[:m], n), earlier.get(((m, k, n), threads), float("inf")))
                rows.append({"op": "ort_dynamic", "version": ort.__version__, "shape": [m, k, n], "threads": threads,
                             "seconds": seconds, "macs": float(m * k * n), "sums": sums[m]})
    print(f"{'ONNX Runtime ' + ort.__version__:<27}{'MxKxN':<16}{'threads':>8}{'time':>12}{'GMAC/s':>9}  sums")
    for row in rows:
        shape = "x".join(str(size) for size in row["shape"])
        print(f"{'DynamicQuantizeMatMul':<27}{shape:<16}{row['threads']:>8}{row['seconds'] * 1e3:>9.2f} ms"
              f"{row['macs'] / row['seconds'] / 1e9:>9.1f}  {row['sums']}")
    path.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
