"""The reference itself, on numbers that can be checked by hand."""

import math
import os
import random
import struct
import tempfile
import unittest

import checkpoints as c
import reference


class NumbersTest(unittest.TestCase):
    def test_every_half_and_bfloat16_comes_back(self):
        for bits in range(65536):
            for to_value, to_bits in ((c.f16_value, c.f16_bits), (c.bf16_value, c.bf16_bits)):
                value = to_value(bits)
                if not math.isnan(value):
                    self.assertEqual(to_bits(value), bits)

    def test_rounding_to_bfloat16_is_to_the_nearest(self):
        rng = random.Random(1)
        for _ in range(20000):
            x = c.round_f32(rng.uniform(-1, 1) * 2.0 ** rng.randint(-130, 127))
            got = c.round_to(x, "BF16")
            bits = c.bf16_bits(x)
            for neighbour in (bits - 1, bits + 1):
                if 0 < neighbour & 0x7FFF < 0x7F80:
                    self.assertLessEqual(abs(x - got), abs(x - c.bf16_value(neighbour)))

    def test_ties_go_to_even(self):
        self.assertEqual(c.round_to(1 + 2.0 ** -8, "BF16"), 1.0)
        self.assertEqual(c.round_to(1 + 3 * 2.0 ** -8, "BF16"), 1 + 2.0 ** -6)
        self.assertEqual(c.round_to(1 + 2.0 ** -11, "F16"), 1.0)
        self.assertEqual(c.round_to(65519.0, "F16"), 65504.0)
        self.assertEqual(c.round_to(65520.0, "F16"), math.inf)
        self.assertEqual(c.round_to(3.4e38, "BF16"), math.inf)
        self.assertEqual(c.round_to(1e39, "F32"), math.inf)

    def test_decode_is_the_inverse_of_encode(self):
        for dtype in ("F64", "F32", "F16", "BF16"):
            values = [c.round_to(v, dtype) for v in (0.0, -0.0, 1.5, -2.25, 1e-30, 3e4, math.inf, -math.inf)]
            self.assertEqual(list(map(repr, c.decode(c.encode(values, dtype), dtype))), list(map(repr, values)))


class ArithmeticTest(unittest.TestCase):
    def test_a_quotient_is_no_product_with_the_reciprocal(self):
        x, s = c.round_f32(0.273939937), c.round_f32(0.00214854861)
        self.assertEqual(reference.quotient(x, s, "F32"), c.round_f32(127.499992))
        self.assertEqual(reference.code(x, s, 0, -128, 127, "F32"), 127)
        self.assertEqual(c.round_f32(x * c.round_f32(1 / s)), 127.5)

    def test_the_zero_point_is_added_after_rounding(self):
        self.assertEqual(reference.code(0.5, 1.0, 1, -128, 127, "F32"), 1)
        self.assertEqual(reference.code(1.5, 1.0, 0, -128, 127, "F32"), 2)
        self.assertEqual(reference.code(2.5, 1.0, 0, -128, 127, "F32"), 2)

    def test_what_is_no_number(self):
        self.assertEqual(reference.code(math.nan, 1.0, 3, -8, 7, "F32"), 3)
        self.assertEqual(reference.code(math.inf, 1.0, 3, -8, 7, "F32"), 7)
        self.assertEqual(reference.code(-math.inf, 1.0, 3, -8, 7, "F32"), -8)
        self.assertEqual(reference.code(-1e30, 1.0, -5, -128, 127, "F32"), -128)

    def test_scales(self):
        self.assertEqual(reference.symmetric_scale([0.0, -0.0], 127, "F16"), 1.0)
        self.assertEqual(reference.symmetric_scale([math.nan, math.inf], 127, "F16"), 1.0)
        self.assertEqual(reference.symmetric_scale([254.0, math.inf, -3.0], 127, "F16"), 2.0)
        self.assertEqual(reference.symmetric_scale([1e-30], 127, "F16"), 2.0 ** -14)
        self.assertEqual(reference.symmetric_scale([1e30], 127, "F16"), 65504.0)
        self.assertEqual(reference.asymmetric_scale([3.0, 15.0], -8, 7, "F32", "F32"), (1.0, -8))
        self.assertEqual(reference.asymmetric_scale([-15.0, -3.0], -8, 7, "F32", "F32"), (1.0, 7))
        self.assertEqual(reference.asymmetric_scale([-7.5, 7.5], -8, 7, "F32", "F32"), (1.0, 0))
        self.assertEqual(reference.asymmetric_scale([0.0], -8, 7, "F32", "F32"), (1.0, 0))

    def test_smoothing(self):
        weight = c.Tensor.of([4.0, 0.0, -1.0, 0.0], "F32", [2, 2])
        self.assertEqual(reference.smooth_scales([16.0, 0.0], [weight], 0.5), [2.0, c.round_f32(1e-5)])
        self.assertEqual(reference.smoothed_weight(weight, [2.0, 1.0]).values(), [8.0, 0.0, -2.0, 0.0])
        self.assertEqual(reference.folded_norm(c.Tensor.of([1.0, 3.0], "BF16"), [2.0, 0.5]).values(), [0.5, 6.0])

    def test_smoothing_changes_no_product(self):
        model = c.llama("F64", layers=1)
        smoothed, s_of_norm = reference.quantize(model, "w8a8", c.make_stats(model), smooth=True, unquantized=[model.linears[3]])
        norm = "model.layers.0.input_layernorm"
        before, after = model.tensors[norm + ".weight"].values(), smoothed[norm + ".weight"].values()
        row = model.tensors["model.layers.0.self_attn.q_proj.weight"].rows()[0]
        for x, y, w, s in zip(before, after, row, s_of_norm[norm]):
            self.assertAlmostEqual(x * w, y * (w * s), delta=1e-12)


class GridTest(unittest.TestCase):
    def test_numbers(self):
        self.assertEqual(reference.E2M1.numbers, [0, 0.5, 1, 1.5, 2, 3, 4, 6])
        for code, number in ((0, 0.0), (1, 2.0 ** -9), (7, 7 * 2.0 ** -9), (8, 2.0 ** -6), (0x20, 0.125), (0x38, 1.0),
                             (0x39, 1.125), (0x7E, 448.0), (0xB8, -1.0)):
            self.assertEqual(reference.E4M3.number(code), number)
        self.assertTrue(math.isnan(reference.E4M3.number(0x7F)))
        self.assertEqual((reference.E4M3.largest_exponent, reference.E2M1.largest_exponent), (8, 2))

    def test_every_code_comes_back(self):
        for grid, codes in ((reference.E4M3, 256), (reference.E2M1, 16)):
            for code in range(codes):
                if not math.isnan(grid.number(code)):
                    self.assertEqual(grid.code(grid.number(code)), code)

    def test_rounding(self):
        fp8, fp4 = reference.E4M3.code, reference.E2M1.code
        self.assertEqual([fp4(x) for x in (0.25, 0.26, 0.75, 1.25, 2.5, 3.5, 5.0, 5.1, 6.9, math.inf)],
                         [0, 1, 2, 2, 4, 6, 6, 7, 7, 7])
        self.assertEqual([fp4(x) for x in (-0.0, -0.25, -1.0, -math.inf, math.nan)], [8, 8, 10, 15, 0])
        self.assertEqual([fp8(x) for x in (1.0625, 1.1875, 2.0 ** -10, 3 * 2.0 ** -10, 447.0, 432.0, 464.0, 1e30)],
                         [0x38, 0x3A, 0, 2, 0x7E, 0x7E, 0x7E, 0x7E])
        self.assertEqual([fp8(x) for x in (-0.0, -1e30, math.nan, -math.inf)], [0x80, 0xFE, 0x7F, 0xFE])

    def test_powers_of_two(self):
        fp8, fp4 = reference.E4M3, reference.E2M1
        for largest, grid, code in ((0.0, fp8, 127), (448.0, fp8, 128), (447.9, fp8, 127), (256.0, fp8, 127),
                                    (6.0, fp4, 127), (6.99, fp4, 127), (7.0, fp4, 128), (1.0, fp4, 125), (1e-40, fp8, 0),
                                    (2e38, fp4, 252), (3e38, fp4, 253), (1e300, fp4, 254)):
            self.assertEqual(reference.e8m0_code(largest, grid), code, largest)

    def test_scales_under_a_global_one(self):
        self.assertEqual(reference.global_scale(6.0), 448.0)
        self.assertEqual(reference.global_scale(0.0), 1.0)
        self.assertEqual(reference.global_scale(1e-37), 1.0)  # beyond f32
        self.assertEqual(reference.global_scale(1e300), 2.0 ** -126)
        self.assertEqual(reference.scale_code_under(448.0, 6.0), 0x7E)
        self.assertEqual(reference.scale_code_under(448.0, 3.0), 0x76)
        self.assertEqual(reference.scale_code_under(448.0, 0.0), 0x20)
        self.assertEqual(reference.scale_code_under(1.0, 1e-6), 0x20)


class LayoutTest(unittest.TestCase):
    """Tensors of a weight [2, 128] of ones and a six."""

    def tensors(self, scheme, **more):
        weight = c.Tensor.of([6.0] + [1.0] * 255, "BF16", [2, 128])
        made = reference.weight_tensors("m", weight, reference.Scheme(scheme, **more))
        return {name[2:]: (t.dtype, t.shape) for name, t in made.items()}, made

    def test_names_dtypes_and_shapes(self):
        for scheme, more, want in (
                ("w8a8", {}, {"weight": ("I8", [2, 128]), "weight_scale": ("BF16", [2, 1])}),
                ("w4a8", {}, {"weight": ("I8", [2, 128]), "weight_scale": ("BF16", [2, 1])}),
                ("w4a8", {"group_size": 32}, {"weight": ("I8", [2, 128]), "weight_scale": ("BF16", [2, 4])}),
                ("w8a16", {"asymmetric": True}, {"weight_packed": ("I32", [2, 32]), "weight_scale": ("BF16", [2, 1]),
                                                 "weight_shape": ("I64", [2]), "weight_zero_point": ("I32", [1, 1])}),
                ("w4a16", {"group_size": -1}, {"weight_packed": ("I32", [2, 16]), "weight_scale": ("BF16", [2, 1]),
                                               "weight_shape": ("I64", [2])}),
                ("fp8", {}, {"weight": ("F8_E4M3", [2, 128]), "weight_scale": ("BF16", [2, 1])}),
                ("fp8-tensor", {}, {"weight": ("F8_E4M3", [2, 128]), "weight_scale": ("BF16", [1])}),
                ("fp8-block", {}, {"weight": ("F8_E4M3", [2, 128]), "weight_scale": ("BF16", [1, 1])}),
                ("mxfp8", {}, {"weight": ("F8_E4M3", [2, 128]), "weight_scale": ("U8", [2, 4])}),
                ("mxfp4", {}, {"weight_packed": ("U8", [2, 64]), "weight_scale": ("U8", [2, 4])}),
                ("nvfp4", {}, {"weight_packed": ("U8", [2, 64]), "weight_scale": ("F8_E4M3", [2, 8]),
                               "weight_global_scale": ("F32", [1])})):
            self.assertEqual(self.tensors(scheme, **more)[0], want, f"{scheme} {more}")

    def test_bytes(self):
        made = self.tensors("nvfp4")[1]
        self.assertEqual(made["m.weight_global_scale"].values(), [448.0])
        # 1 / 6 * 448 is 74.67: e4m3 has 72 and 80; 1 / (72 / 448) is 6.2, the largest code.
        self.assertEqual(made["m.weight_scale"].data[:2], bytes([0x7E, 0x69]))
        self.assertEqual(made["m.weight_packed"].data[:9], bytes([0x27] + [0x22] * 7 + [0x77]))
        made = self.tensors("mxfp4")[1]
        self.assertEqual(made["m.weight_scale"].data[:2], bytes([127, 125]))
        self.assertEqual(made["m.weight_packed"].data[15:17], bytes([0x22, 0x66]))


class PackingTest(unittest.TestCase):
    def test_words(self):
        self.assertEqual(reference.pack([1, 2, 3, 4, 5, 6, 7, 8]), [struct.unpack("<i", struct.pack("<I", 0x87654321))[0]])
        self.assertEqual(reference.pack([15, 1, 2]), [0x21F])
        self.assertEqual(reference.pack([1, 2, 3, 4, 5], 8), [0x04030201, 5])
        nibbles = [random.Random(2).randrange(16) for _ in range(29)]
        self.assertEqual(reference.unpack(reference.pack(nibbles), 29), nibbles)

    def test_zero_points_go_down_the_rows(self):
        weight = c.Tensor.of([x for r in range(9) for x in ([0.0, 15.0] if r % 2 else [-15.0, 0.0])], "F32", [9, 2])
        words = reference.weight_tensors("m", weight, reference.Scheme("w4a16", 2, True))["m.weight_zero_point"]
        self.assertEqual(words.shape, [2, 1])
        self.assertEqual(reference.unpack(words.values()[:1], 8), [15, 0] * 4)
        self.assertEqual(words.values()[1], 15)


class FilesTest(unittest.TestCase):
    def test_models_come_back(self):
        with tempfile.TemporaryDirectory() as folder:
            for i, model in enumerate((c.llama(), c.opt(), c.bloom(), c.mixtral(), c.qwen2_moe(), c.gpt2(), c.gemma(), c.bert())):
                path = c.write_folder(os.path.join(folder, str(i)), model, shards=3)
                self.assertEqual(c.read_folder(path), model.tensors)
                for group in model.groups:
                    self.assertIn(group.norm + ".weight", model.tensors)
                    for reader in group.readers:
                        self.assertIn(reader + ".weight", model.tensors)

    def test_the_reader_is_strict(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "x.safetensors")
            for data in (b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}', b'{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,1]}}',
                         b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', b' {}'):
                with open(path, "wb") as file:
                    file.write(c.header_bytes(data) + b"\0\0")
                with self.assertRaises(ValueError):
                    c.read_safetensors(path)


if __name__ == "__main__":
    unittest.main()
