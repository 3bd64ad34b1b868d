#!/usr/bin/env python3
"""The model's arithmetic, on numbers that can be checked by hand or with NVIDIA's occupancy calculator."""
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import cuda_model as m  # noqa: E402

A100, H100, B200 = m.DEVICES


class Occupancy(unittest.TestCase):
    def test_registers(self):
        # 65536 registers: 32 for each of 2048 threads.
        self.assertEqual(m.occupancy(A100, 32, 256, 0), (8, 64))
        # 33 become 40 (units of 256 for a warp): 12 warps on each of four schedulers.
        self.assertEqual(m.occupancy(A100, 33, 256, 0), (6, 48))
        self.assertEqual(m.occupancy(A100, 128, 256, 0), (2, 16))
        self.assertEqual(m.occupancy(A100, 129, 256, 0), (1, 8))
        self.assertEqual(m.occupancy(A100, 255, 256, 0), (1, 8))

    def test_shared_memory(self):
        # 48 KiB and the reserved one: 49 KiB, three times into 164 KiB and four times into 228 KiB.
        self.assertEqual(m.occupancy(A100, 32, 128, 48 * 1024), (3, 12))
        self.assertEqual(m.occupancy(H100, 32, 128, 48 * 1024), (4, 16))

    def test_blocks(self):
        self.assertEqual(m.occupancy(A100, 16, 32, 0), (32, 32))


class Clock(unittest.TestCase):
    def test_the_peak_gives_the_boost_clock(self):
        self.assertAlmostEqual(m.clock(A100) / 1e9, 1.41, places=2)


class Streaming(unittest.TestCase):
    KERNEL = {"name": "elementwise<quantize, f32, s8>", "arch": 80, "registers": 32, "threads": 256, "shared": 0,
              "vector_loop": {"instructions": 160, "load_bytes": 64, "store_bytes": 16, "loop": True}}

    def test_memory_limits(self):
        s = m.stream(A100, self.KERNEL, 4, 1)
        self.assertEqual((s["warps"], s["instructions"], s["limit"]), (64, 10, "memory"))
        # 2048 threads of 108 multiprocessors with 64 bytes each, over 600 ns of four fifths of 2039 GB/s.
        self.assertAlmostEqual(s["flight"], 2048 * 108 * 64 / (600e-9 * 2039e9 * 0.8), places=6)
        self.assertAlmostEqual(s["seconds"], 4096 * 4096 * 5 / (0.92 * 2039e9) + m.LAUNCH)

    def test_few_warps_limit(self):
        kernel = dict(self.KERNEL, registers=255, vector_loop=dict(self.KERNEL["vector_loop"], load_bytes=16))
        self.assertEqual(m.stream(A100, kernel, 4, 1)["limit"], "loads in flight")

    def test_instructions_limit(self):
        kernel = dict(self.KERNEL, vector_loop=dict(self.KERNEL["vector_loop"], instructions=1600))
        self.assertEqual(m.stream(A100, kernel, 4, 1)["limit"], "issue")


class Linear(unittest.TestCase):
    SHAPE = {"rows": 128, "columns": 128, "step": 64, "stages": 3, "threads": 256, "small_rows": 16, "small_columns": 4,
             "small_threads": 64}
    KERNELS = [
        {"name": "linear_tile<f16, LinearTile<128, 128, false>>", "arch": 80, "registers": 128, "threads": 256,
         "shared": 0, "vector_loop": None},
        {"name": "linear_small<f16, 1>", "arch": 80, "registers": 80, "threads": 64, "shared": 0,
         "vector_loop": {"instructions": 160, "load_bytes": 160, "store_bytes": 0, "loop": True}},
    ]

    def test_one_row_is_the_memorys(self):
        r = m.linear(A100, self.KERNELS, self.SHAPE, 1, 4096, 4096)
        self.assertEqual((r["kernel"], r["limit"]), ("small", "memory"))
        self.assertLess(r["intensity"], r["ridge"])
        self.assertGreater(r["seconds"], 4096 * 4096 / 2039e9)

    def test_many_rows_are_the_tensor_cores(self):
        r = m.linear(A100, self.KERNELS, self.SHAPE, 4096, 4096, 4096)
        self.assertEqual((r["kernel"], r["limit"], r["waves"]), ("tile", "tensor", 10))
        # 1024 tiles take ten rounds of 108 multiprocessors, of which the last is half empty.
        self.assertAlmostEqual(r["seconds"] - m.LAUNCH, 10 * 108 * 2 * 128 * 128 * 4096 / (624e12 * m.OF_TENSOR))

    def test_the_shapes_are_those_of_the_source(self):
        self.assertEqual(m.constants()["step"] % 32, 0)


if __name__ == "__main__":
    unittest.main()
