#!/usr/bin/env python3
"""The model's arithmetic, on numbers that can be checked by hand or with NVIDIA's occupancy calculator."""
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import cuda_model as m  # noqa: E402
from check_ptxas import vector_loop  # noqa: E402

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


def way(instructions, load_bytes, store_bytes, dp4a=0):
    return {"instructions": instructions, "dp4a": dp4a, "load_bytes": load_bytes, "store_bytes": store_bytes}


def loop(*ways):
    return {"stores": any(w["store_bytes"] for w in ways), "loop": True, "ways": list(ways)}


def kernel(name, registers, *loops, threads=256):
    return {"name": name, "arch": 80, "registers": registers, "threads": threads, "shared": 0,
            "vector_loops": list(loops), "vector_loop": vector_loop(loops)}


class Streaming(unittest.TestCase):
    def test_memory_limits(self):
        s = m.stream(A100, kernel("elementwise<quantize, f32, s8>", 32, loop(way(160, 64, 16))), 4, 1)
        self.assertEqual((s["warps"], s["instructions"], s["limit"]), (64, 10, "memory"))
        # 2048 threads of 108 multiprocessors with 64 bytes each, over 600 ns of four fifths of 2039 GB/s.
        self.assertAlmostEqual(s["flight"], 2048 * 108 * 64 / (600e-9 * 2039e9 * 0.8), places=6)
        self.assertAlmostEqual(s["seconds"], 4096 * 4096 * 5 / (0.92 * 2039e9) + m.LAUNCH)

    def test_few_warps_limit(self):
        few = kernel("elementwise<fake, f16>", 255, loop(way(80, 16, 16)))
        self.assertEqual(m.stream(A100, few, 2, 2)["limit"], "loads in flight")

    def test_instructions_limit(self):
        slow = kernel("elementwise<quantize, f32, s8>", 32, loop(way(1600, 64, 16)))
        self.assertEqual(m.stream(A100, slow, 4, 1)["limit"], "issue")

    # f16 to s8, 16 elements at once; a divisor of 64 bytes is optional in both loops.
    DYNAMIC = kernel("dynamic_runs<f16, s8>", 128, loop(way(240, 32, 0), way(420, 64, 0), way(416, 96, 0)),
                     loop(way(280, 0, 16), way(290, 32, 0), way(272, 32, 16), way(448, 64, 16), way(446, 96, 16)))

    def test_a_divisor_does_not_count(self):
        self.assertEqual(m.turn(self.DYNAMIC, 2, 1), {"elements": 16, "bytes": 32, "instructions": 272})

    def test_the_range_of_a_token_counts(self):
        self.assertEqual(m.turn(self.DYNAMIC, 2, 1, True), {"elements": 16, "bytes": 32, "instructions": 240 + 272})
        # Its instructions come twice, its bytes from memory once.
        once, twice = (m.stream(A100, self.DYNAMIC, 2, 1, both) for both in (False, True))
        self.assertEqual((once["instructions"], twice["instructions"]), (17, 32))
        self.assertEqual(once["flight"], twice["flight"])

    def test_a_range_alone(self):
        self.assertEqual(m.turn(kernel("range_runs<f16>", 64, loop(way(132, 16, 0))), 2, 0),
                         {"elements": 8, "bytes": 16, "instructions": 132})

    def test_what_fits_nothing_is_told(self):
        self.assertIsNone(m.turn(self.DYNAMIC, 8, 1))
        self.assertIsNone(m.turn(kernel("dynamic_runs<f16, s8>", 128, loop(way(272, 32, 16))), 2, 1, True))

    def test_columns_keep_their_ranges_in_shared_memory(self):
        # 16 columns of 256 threads, two numbers each: 32 KiB, and the reserved one, four times into 164 KiB.
        columns = kernel("dynamic_columns<f16, s8>", 32, loop(way(480, 32, 16)))
        self.assertEqual(m.stream(A100, columns, 2, 1)["warps"], 32)


SOURCE = """
template <int rows, int columns, bool deep>
struct LinearTile {
  static constexpr int kRows = rows;
  static constexpr int kColumns = columns;
  static constexpr bool kDeep = deep;
  static constexpr int kWarpRows = rows / 2;
  static constexpr int kWarpColumns = columns / 4;
  static constexpr int kStep = 64;  // not 32;
  static constexpr unsigned kStageBytes = static_cast<unsigned>((rows + columns) * kStep);
  static constexpr int kStages = static_cast<int>(49152 / kStageBytes);
  static constexpr unsigned kSharedBytes = kStages * kStageBytes;
};
using ShallowTile = LinearTile<128, 128, false>;
using QuarterTile = LinearTile<64, 64, false>;
using DeepTile = LinearTile<64, 64, true>;
inline constexpr unsigned kTileThreads = 256;
inline constexpr std::int64_t kMaxShallowDepth = (1 << 17) - ShallowTile::kStep;
inline constexpr int kMaxSmallRows = 16;
inline constexpr std::int64_t kMaxSmallDepth = 1 << 21;
inline constexpr int kSmallColumns = 4;
inline constexpr unsigned kSmallThreads = 64;
"""


class Linear(unittest.TestCase):
    SHAPE = m.constants(SOURCE)
    KERNELS = [
        kernel("linear_tile<f16, LinearTile<128, 128, false>>", 128),
        kernel("linear_tile<f16, LinearTile<64, 64, false>>", 96),
        kernel("linear_tile<f16, LinearTile<64, 64, true>>", 128),
        kernel("linear_small<f16, 1>", 80, loop(way(160, 160, 0, 32)), threads=64),
        kernel("linear_small<f16, 16>", 128, loop(way(90, 64, 0), way(410, 320, 0, 256)), threads=64),
    ]

    def linear(self, rows, n, k):
        return m.linear(A100, self.KERNELS, self.SHAPE, rows, n, k)

    def test_one_row_is_the_memorys(self):
        r = self.linear(1, 4096, 4096)
        self.assertEqual((r["kernel"], r["limit"]), ("small", "memory"))
        self.assertLess(r["intensity"], r["ridge"])
        self.assertGreater(r["seconds"], 4096 * 4096 / 2039e9)

    def test_dp4a_takes_two_slots(self):
        # A turn of a warp: 32 lanes with 64 bytes of the weight in 410 instructions, of which 256 are dp4a.
        r = self.linear(16, 14336, 4096)
        slots = 14336 * 4096 / 64 / 32 * (410 + 256)
        self.assertEqual(r["limit"], "issue")
        self.assertAlmostEqual(r["seconds"] - m.LAUNCH, slots / (108 * 4 * m.OF_ISSUE * m.clock(A100)))

    def test_many_rows_are_the_tensor_cores(self):
        r = self.linear(4096, 4096, 4096)
        self.assertEqual((r["kernel"], r["limit"], r["waves"]), ("128 × 128", "tensor", 10))
        # 1024 tiles take ten rounds of 108 multiprocessors, of which the last is half empty.
        self.assertAlmostEqual(r["seconds"] - m.LAUNCH, 10 * 108 * 2 * 128 * 128 * 4096 / (624e12 * m.OF_TENSOR))

    def test_tiles(self):
        for rows, n, k, expected in ((64, 65536, 4096, "64 × 64"), (65, 65536, 4096, "128 × 128"),
                                     (128, 107 * 128, 4096, "64 × 64"), (128, 107 * 128 + 1, 4096, "128 × 128"),
                                     (4096, 4096, 131008, "128 × 128"), (4096, 4096, 131009, "64 × 64, deep"),
                                     (16, 4096, 1 << 21, "small"), (16, 4096, (1 << 21) + 1, "64 × 64, deep")):
            self.assertEqual(self.linear(rows, n, k)["kernel"], expected, (rows, n, k))

    def test_six_stages_of_small_tiles(self):
        # 64 steps with five of them on their way, 600 ns each time: more than anything else of 128 tiles takes.
        r = self.linear(128, 4096, 4096)
        self.assertEqual((r["kernel"], self.SHAPE["tiles"]["quarter"]["stages"]), ("64 × 64", 6))
        self.assertEqual(self.SHAPE["tiles"]["quarter"]["shared"], 48 * 1024)
        self.assertGreaterEqual(r["seconds"] - m.LAUNCH, 64 / 5 * 600e-9)

    def test_the_shapes_are_those_of_the_source(self):
        shape = m.constants()
        self.assertEqual(set(shape["tiles"]), {"large", "quarter", "deep"})
        for tile in shape["tiles"].values():
            self.assertEqual(tile["shared"], tile["stages"] * (tile["rows"] + tile["columns"]) * tile["step"])

    def test_expressions(self):
        for text, expected in (("3", 3), ("(1 << 17) - 64", 131008), ("7 / 2", 3), ("true && !false ? 6u : 3", 6),
                               ("8 * (1 > 2 ? 3 : 4 > 5 ? 6 : 7)", 56), ("static_cast<int>(49152 / 8192)", 6)):
            c = m.Constants(SOURCE + f"inline constexpr int kThis = {text};\n")
            self.assertEqual(c.value("kThis"), expected, text)
        # A parameter with a default.
        text = SOURCE.replace("bool deep>", "bool deep, int stages = 3>").replace("LinearTile<64, 64, false>",
                                                                                  "LinearTile<64, 64, false, 5>")
        c = m.Constants(text.replace("static_cast<int>(49152 / kStageBytes)", "stages"))
        self.assertEqual((c.value("kStages", "QuarterTile"), c.value("kStages", "DeepTile")), (5, 3))


if __name__ == "__main__":
    unittest.main()
