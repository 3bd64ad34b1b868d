"""Stored scales of activations: the part of the range with the least error, and layers that no one scale can hold."""

import json
import math
import os
import unittest

import checkpoints as c
import reference
from tool import ToolTest, load_json, run

BINS = 4096
SMALL, OUTLIER = "model.layers.0.mlp.down_proj", "model.layers.1.mlp.down_proj"


def histogram(values, limit):
    counts, zeros, width = [0] * BINS, 0, 2 * limit / BINS
    for x in values:
        if x == 0:
            zeros += 1
        else:
            counts[math.floor((x + limit) / width)] += 1
    return [*counts, zeros]


def squared_error(counts, limit, scale, zero_point):
    """Over the middles of bins."""
    width, total = 2 * limit / BINS, 0.0
    for i, count in enumerate(counts[:-1]):
        if count:
            x = (i + 0.5) * width - limit
            q = max(-128, min(127, round(x / scale) + zero_point))
            total += count * (x - scale * (q - zero_point)) ** 2
    return total


class StaticTest(ToolTest):
    def setUp(self):
        super().setUp()
        self.model = c.llama("F32", hidden=32, intermediate=48, layers=2)
        self.source = c.write_folder(self.path("in"), self.model)
        self.stats, self.kept = c.make_stats(self.model), {}
        for number, module in enumerate(self.model.linears):
            channels = self.model.shape(module)[1]
            # A curve like that of a bell, with long tails; one layer has values that are a thousand times larger.
            values = [math.tan(math.pi * (i + 0.5 - 2000) / 4100) * (1 + number % 3) for i in range(4000)]
            if module == OUTLIER:
                values += [30000.0, -20000.0]
            values = [c.round_f32(v) for v in values]
            low, high = min(values), max(values)
            limit = 2.0 ** (math.frexp(max(-low, high))[1])
            self.stats[module + ".min"] = c.Tensor.of([low] * channels, "F32")
            self.stats[module + ".max"] = c.Tensor.of([high] * channels, "F32")
            self.stats[module + ".absmax"] = c.Tensor.of([max(-low, high)] * channels, "F32")
            self.kept[module] = histogram(values, limit), limit, low, high
            self.stats[module + ".histogram"] = c.Tensor.of(self.kept[module][0], "I64", [BINS + 1])
            self.stats[module + ".histogram_limit"] = c.Tensor("F64", [1], c.encode([limit], "F64"))
        c.write_safetensors(self.path("stats"), self.stats)

    def quantize(self, out, *flags, scheme="w8a8-static"):
        return run("quantize", self.source, "-o", self.path(out), "--scheme", scheme, "--stats", self.path("stats"), *flags)


class RangeTest(StaticTest):
    def test_the_part_of_the_range_with_the_least_error(self):
        for flags in ([], ["--asymmetric"]):
            name = "out" + "".join(flags)
            self.assert_done(self.quantize(name, *flags, "--scale-dtype", "f32"))
            got = c.read_folder(self.path(name))
            for module in self.model.linears:
                counts, limit, low, high = self.kept[module]
                scale, = got[module + ".input_scale"].values()
                zero = got[module + ".input_zero_point"].values()[0] if flags else 0
                found = squared_error(counts, limit, scale, zero)
                for i in range(80):
                    part = 2.0 ** (-i / 10)
                    if flags:
                        step = (high - low) * part / 255
                        other = squared_error(counts, limit, step, max(-128, min(127, -128 - round(low * part / step))))
                    else:
                        other = squared_error(counts, limit, max(high, -low) * part / 127, 0)
                    # Bins are taken as even here and there in different ways.
                    self.assertLessEqual(found, 1.03 * other, f"{module} {flags} {part}")

    def test_all_of_it(self):
        self.assert_done(self.quantize("out", "--activation-range", "minmax", "--scale-dtype", "f32"))
        got = c.read_folder(self.path("out"))
        for module in self.model.linears:
            _, _, low, high = self.kept[module]
            self.assertEqual(got[module + ".input_scale"].values(), [c.round_f32(max(high, -low) / 127)])

    def test_without_histograms_it_is_all_of_it(self):
        c.write_safetensors(self.path("stats"), {n: t for n, t in self.stats.items() if "histogram" not in n})
        self.assert_done(self.quantize("out", "--scale-dtype", "f32"))
        module = self.model.linears[0]
        _, _, low, high = self.kept[module]
        self.assertEqual(c.read_folder(self.path("out"))[module + ".input_scale"].values(), [c.round_f32(max(high, -low) / 127)])

    def test_smoothed_layers_have_the_range_of_what_they_read(self):
        self.assert_done(self.quantize("out", "--smooth", "--scale-dtype", "f32"))
        got, (want, _) = c.read_folder(self.path("out")), reference.quantize(self.model, "w8a8-static", self.stats, True, scale_dtype="F32")
        smoothed = {reader for group in self.model.groups for reader in group.readers}
        for module in self.model.linears:
            same = got[module + ".input_scale"].data == want[module + ".input_scale"].data
            if module != OUTLIER:  # whose outliers are all that counts, with either
                self.assertEqual(same, module in smoothed, module)

    def test_the_option_is_part_of_the_run(self):
        self.assert_done(self.quantize("out"))
        self.assert_refused(self.quantize("out", "--resume", "--activation-range", "minmax"), "activation_range was")


class OutlierTest(StaticTest):
    def test_a_layer_that_one_scale_cannot_hold_is_named(self):
        ran = self.assert_done(self.quantize("out", "--activation-range", "minmax"))
        self.assertRegex(ran.stderr, f"'{OUTLIER}': one scale for all its inputs keeps .* dB of the usual ones.*3e[+]04.*--min-input-sqnr 12")
        self.assertEqual(c.read_folder(self.path("out"))[OUTLIER + ".weight"].dtype, "I8")

    def test_and_left_as_it_is_on_request(self):
        ran = self.assert_done(self.quantize("out", "--activation-range", "minmax", "--min-input-sqnr", "12"))
        self.assertIn(f"'{OUTLIER}' is not quantized: one scale for all its inputs keeps", ran.stderr)
        got = c.read_folder(self.path("out"))
        self.assertEqual(got[OUTLIER + ".weight"].data, self.model.tensors[OUTLIER + ".weight"].data)
        self.assertEqual(got[SMALL + ".weight"].dtype, "I8")
        self.assertIn(OUTLIER, load_json(self.path("out", "config.json"))["quantization_config"]["ignore"])
        self.assert_done(run("verify", self.path("out")))

    def test_the_plan_says_so(self):
        ran = self.assert_done(run("quantize", self.source, "--scheme", "w8a8-static", "--stats", self.path("stats"),
                                   "--activation-range", "minmax", "--min-input-sqnr", "12", "--dry-run", "--json"))
        plan = json.loads(ran.stdout)
        reasons = {t["name"]: (t["action"], t["reason"]) for t in plan["tensors"]}
        self.assertEqual(reasons[OUTLIER + ".weight"][0], "copy")
        self.assertIn("one scale for all its inputs", reasons[OUTLIER + ".weight"][1])

    def test_what_is_refused(self):
        for flags in (["--activation-range", "mse"], ["--min-input-sqnr", "10"]):
            self.assert_refused(run("quantize", self.source, "-o", self.path("no"), *flags),
                                f"{flags[0]} has no effect without a scheme of static int8 activations", code=2)
        for text in ("much", "nan", "inf", ""):
            self.assert_refused(self.quantize("no", f"--min-input-sqnr={text}"), "--min-input-sqnr", code=2)
        counts = list(self.kept[SMALL][0])
        counts[5] = -1
        c.write_safetensors(self.path("stats"), {**self.stats, SMALL + ".histogram": c.Tensor.of(counts, "I64", [BINS + 1])})
        self.assert_refused(self.quantize("no"), SMALL + ".histogram", "-1")
        # A range that the bins do not hold.
        c.write_safetensors(self.path("stats"), {**self.stats, SMALL + ".histogram_limit": c.Tensor("F64", [1], c.encode([0.5], "F64"))})
        self.assert_refused(self.quantize("no"), SMALL, "does not hold the range")
        self.assertFalse(os.path.exists(self.path("no")))


if __name__ == "__main__":
    unittest.main()
