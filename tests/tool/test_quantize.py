"""kvant quantize against the plain statement of its arithmetic, tensor by tensor, and what it refuses."""

import array
import json
import math
import os
import random
import re
import shutil
import unittest

import checkpoints as c
import reference
from tool import ToolTest, digest_tree, load_json, run, snapshot

INFINITY, NAN = math.inf, math.nan
# One scheme of each format.
OF_EACH_FORMAT = {made[0]: name for name, made in reference.SCHEMES.items()
                  if not reference.Scheme(name).needs_statistics}


def ordered(path):
    """JSON with the order of keys, and 1 not the same as 1.0 or true."""
    def pairs(items):
        return [(key, kind(value)) for key, value in items]

    def kind(value):
        if isinstance(value, list):
            return [kind(v) for v in value]
        return value if isinstance(value, tuple) else (type(value).__name__, value)

    with open(path, encoding="utf-8") as file:
        return kind(json.load(file, object_pairs_hook=pairs))


def matches(pattern, module):
    return re.match(pattern[3:], module) is not None if pattern.startswith("re:") else pattern == module


def scale_flag(dtype):
    return ("--scale-dtype", dtype.lower())


class QuantizeTest(ToolTest):
    def quantize(self, source, out, *arguments, **more):
        before = snapshot(source)
        ran = run("quantize", source, "-o", out, *arguments, **more)
        self.assert_untouched(source, before)
        return ran

    def source(self, model, name="in", **more):
        return c.write_folder(self.path(name), model, **more)

    def stats_file(self, stats, name="stats.safetensors"):
        c.write_safetensors(self.path(name), stats)
        return self.path(name)

    def check_output(self, model, source, out, scheme, want, quantized=None, **scheme_more):
        """The whole folder `out`, made from `source`."""
        quantized = model.linears if quantized is None else quantized
        self.assert_same_tensors(c.read_folder(out), want, scheme)
        shards = sorted(n for n in os.listdir(source) if n.endswith(".safetensors"))
        self.assertEqual(sorted(n for n in os.listdir(out) if n.endswith(".safetensors")), shards)
        weight_map = {}
        for shard in shards:
            header, metadata, _ = c.read_header(os.path.join(out, shard))
            self.assertEqual(metadata.get("format"), "pt", shard)
            weight_map.update({name: shard for name in header})
            for module in model.linears:  # what belongs to a module stays in its shard
                if module + ".weight_scale" in header:
                    self.assertTrue(module + ".weight" in header or module + ".weight_packed" in header, module)
        if os.path.exists(os.path.join(source, c.INDEX_NAME)):
            index = load_json(os.path.join(out, c.INDEX_NAME))
            self.assertEqual(index["weight_map"], weight_map)
            self.assertEqual(index["metadata"]["total_size"], sum(len(t.data) for t in want.values()))
        else:
            self.assertFalse(os.path.exists(os.path.join(out, c.INDEX_NAME)))
        self.check_config(model, source, out, scheme, quantized, **scheme_more)
        for name in os.listdir(source):
            if not name.endswith(".safetensors") and name not in ("config.json", c.INDEX_NAME):
                with open(os.path.join(source, name), "rb") as a, open(os.path.join(out, name), "rb") as b:
                    self.assertEqual(a.read(), b.read(), name)
        self.assertEqual([n for n in digest_tree(out) if "partial" in n], [])

    def check_config(self, model, source, out, scheme, quantized, **scheme_more):
        got = ordered(os.path.join(out, "config.json"))
        self.assertEqual([pair for pair in got if pair[0] != "quantization_config"],
                         ordered(os.path.join(source, "config.json")))
        made = load_json(os.path.join(out, "config.json"))["quantization_config"]
        ignore = made["ignore"]
        self.assertEqual(made, reference.quantization_config(scheme, ignore, **scheme_more))
        self.assertEqual(len(ignore), len(set(ignore)))
        for module in model.linears + model.unquantized:
            listed = any(matches(pattern, module) for pattern in ignore)
            self.assertEqual(listed, module not in quantized, f"{module} and ignore {ignore}")

    def check(self, model, scheme, *arguments, stats=None, smooth=False, alpha=None, quantized=None, shards=1,
              scale_dtype=None, name="x", **scheme_more):
        """Quantizes a model and checks everything that comes out."""
        source = self.source(model, name, shards=shards)
        out = self.path(name + ".out")
        flags = ["--scheme", scheme]
        if stats is not None:
            flags += ["--stats", self.stats_file(stats, name + ".stats")]
        if smooth:
            flags += ["--smooth"] if alpha is None else ["--smooth", alpha]
        if scale_dtype:
            flags += scale_flag(scale_dtype)
        if "group_size" in scheme_more:
            flags += [f"--group-size={scheme_more['group_size']}"]
        if scheme_more.get("asymmetric"):
            flags += ["--asymmetric"]
        if scheme_more.get("choice"):
            flags += ["--scale", scheme_more["choice"]]
        self.assert_done(self.quantize(source, out, *flags, *arguments))
        excluded = [] if quantized is None else [m for m in model.linears if m not in quantized]
        want, s_of_norm = reference.quantize(model, scheme, stats, smooth, alpha, scale_dtype=scale_dtype,
                                             unquantized=excluded, **scheme_more)
        if quantized is None:
            made = reference.Scheme(scheme, scheme_more.get("group_size"), scheme_more.get("asymmetric"))
            alone = reference.left_alone(model, {m: made for m in model.linears})
            quantized = [m for m in model.linears if m not in alone]
        self.check_output(model, source, out, scheme, want, quantized, **scheme_more)
        if smooth:
            vectors = c.read_safetensors(os.path.join(out, "kvant", "smoothing.safetensors"))[0]
            self.assertEqual(sorted((t.dtype, t.data) for t in vectors.values()),
                             sorted(("F32", c.encode(s, "F32")) for s in s_of_norm.values()))
        return out


def options_of(scheme):
    """Groups that fit models as small as these."""
    return {"group_size": 16} if reference.SCHEMES[scheme][1].get("group_size") == 128 else {}


def small_model(scheme, dtype="BF16", **more):
    """Two shards cut it between layers that loaders join."""
    if scheme != "fp8-block":
        return c.llama(dtype, intermediate=64, layers=1, **more)
    make = c.Maker(dtype, 1)
    block = "model.layers.0"
    # Rows of fused parts are whole blocks but for the last; other rows need not be.
    for name, rows, columns in (("q_proj", 128, 128), ("k_proj", 128, 128), ("v_proj", 40, 128), ("o_proj", 130, 256)):
        make.linear(f"{block}.self_attn.{name}", rows, columns)
    return c.Model(make.tensors, c.config_of("llama", "L", dtype), make.linears)


class SchemeTest(QuantizeTest):
    def test_every_scheme_of_every_dtype(self):
        for scheme in reference.SCHEMES:
            for dtype in ("F32", "F16", "BF16", "F64"):
                with self.subTest(scheme, dtype=dtype):
                    model = small_model(scheme, dtype)
                    stats = c.make_stats(model) if reference.Scheme(scheme).needs_statistics else None
                    self.check(model, scheme, stats=stats, shards=2, name=scheme + dtype, **options_of(scheme))

    def test_scale_dtypes_of_numbers(self):
        for scheme in ("fp8", "fp8-tensor", "fp8-static", "w8a16"):
            for scale in ("F32", "F16", "BF16"):
                with self.subTest(scheme, scale=scale):
                    model = small_model(scheme)
                    stats = c.make_stats(model) if reference.Scheme(scheme).needs_statistics else None
                    self.check(model, scheme, stats=stats, scale_dtype=scale, name=scheme + scale, **options_of(scheme))

    def test_every_way_to_find_scales(self):
        for scheme, form in reference.SCHEMES.items():
            weights = form[1]
            fits = {"minmax": True, "minmax-ct": weights["type"] == "int",
                    "search": weights["strategy"] not in ("tensor", "block")}
            model, stats = small_model(scheme), None
            if reference.Scheme(scheme).needs_statistics:
                stats = c.make_stats(model)
            for choice, fit in fits.items():
                with self.subTest(scheme, choice=choice):
                    if fit:
                        self.check(model, scheme, stats=stats, choice=choice, name=scheme + choice, **options_of(scheme))
                        continue
                    flags = ["--stats", self.stats_file(stats, scheme + choice + ".stats")] if stats else []
                    run = self.quantize(self.source(model, scheme + choice), self.path("no"), "--scheme", scheme, "--scale",
                                        choice, *flags)
                    self.assert_refused(run, {"minmax-ct": "is minmax for all but symmetric integers",
                                              "search": "looks for scales of groups and channels only"}[choice], code=2)

    def test_a_search_weighs_columns_by_their_inputs(self):
        for scheme in ("w4a16", "w8a16", "w8a8", "fp8", "mxfp4a16", "nvfp4a16"):
            for asymmetric in (False, True) if scheme == "w4a16" else (False,):
                model = small_model(scheme)
                stats = c.make_stats(model, mean_square=True)
                with self.subTest(scheme, asymmetric=asymmetric):
                    name = f"{scheme}{asymmetric}"
                    options = {**options_of(scheme), "asymmetric": asymmetric, "choice": "search"}
                    out = self.check(model, scheme, stats=stats, name=name, **options)
                    plain = self.check(model, scheme, name=name + "plain", **options)
                    self.assertNotEqual(*[open(os.path.join(folder, "model.safetensors"), "rb").read() for folder in (out, plain)])

    def test_a_search_after_smoothing(self):
        model = small_model("w4a16")
        self.check(model, "w4a16", stats=c.make_stats(model, mean_square=True), smooth=True, group_size=16)

    def test_a_search_of_weights_that_are_not_finite(self):
        model = c.llama("F32", intermediate=64, layers=1)
        module = model.linears[0]
        weight = model.tensors[module + ".weight"]
        values = weight.values()
        values[:5] = [math.nan, math.inf, -math.inf, 0.0, -0.0]
        model.tensors[module + ".weight"] = c.Tensor.of(values, "F32", weight.shape)
        for scheme in ("w4a16", "mxfp4a16"):
            with self.subTest(scheme):
                self.check(model, scheme, name=scheme, **options_of(scheme))

    def test_asymmetric_activations(self):
        for scheme in ("w8a8", "w4a8"):  # found at run time: config.json says it, and no tensor
            with self.subTest(scheme):
                self.check(small_model(scheme), scheme, asymmetric=True, name=scheme, **options_of(scheme))

    def test_a_scale_for_each_channel(self):
        for scheme, asymmetric in (("w8a16", False), ("w8a16", True), ("w4a16", False), ("w4a16", True), ("w4a8", False)):
            with self.subTest(scheme, asymmetric=asymmetric):
                out = self.check(small_model(scheme), scheme, group_size=-1, asymmetric=asymmetric,
                                 name=f"{scheme}{asymmetric}")
                self.assert_done(run("verify", out))

    def test_what_other_tools_call_them(self):
        for name, scheme in reference.OTHER_NAMES.items():
            with self.subTest(name):
                model = small_model(scheme)
                source, out = self.source(model, name), self.path(name + ".out")
                stats = ["--stats", self.stats_file(c.make_stats(model))] if reference.Scheme(scheme).needs_statistics else []
                sizes = [f"--group-size={size}" for size in options_of(scheme).values()]
                self.assert_done(self.quantize(source, out, "--scheme", name, *stats, *sizes))
                self.check_config(model, source, out, scheme, model.linears, **options_of(scheme))
        ran = self.quantize(source, self.path("FP8"), "--scheme", "FP8")
        self.assert_refused(ran, "fp8-static", "FP8_DYNAMIC", code=2)

    def test_weights_that_loaders_join_share_their_scale(self):
        # Said without the reference: a large q_proj decides for k and v, and gate for up.
        model = small_model("nvfp4")
        for name in ("model.layers.0.self_attn.q_proj.weight", "model.layers.0.mlp.gate_proj.weight"):
            weight = model.tensors[name]
            model.tensors[name] = c.Tensor.of([100 * x for x in weight.values()], "BF16", weight.shape)
        source = self.source(model, shards=5)
        for scheme, kind in (("fp8-tensor", "weight_scale"), ("nvfp4a16", "weight_global_scale")):
            with self.subTest(scheme):
                self.assert_done(self.quantize(source, self.path(scheme), "--scheme", scheme))
                got = c.read_folder(self.path(scheme))
                scale = {m.split(".")[-1]: got[f"{m}.{kind}"].data for m in model.linears}
                self.assertEqual(scale["q_proj"], scale["k_proj"])
                self.assertEqual(scale["q_proj"], scale["v_proj"])
                self.assertEqual(scale["gate_proj"], scale["up_proj"])
                self.assertEqual(len(set(scale.values())), 4)

    def test_every_format_is_verified_and_compared(self):
        for layout, scheme in OF_EACH_FORMAT.items():
            with self.subTest(layout):
                model = small_model(scheme)
                source, out = self.source(model, layout), self.path(layout + ".out")
                sizes = [f"--group-size={size}" for size in options_of(scheme).values()]
                self.assert_done(self.quantize(source, out, "--scheme", scheme, *sizes))
                self.assert_done(run("verify", out))
                found = json.loads(self.assert_done(run("compare", source, out, "--json")).stdout)
                layers = found["quantized"][0]["layers"]
                self.assertEqual(sorted(layer["module"] for layer in layers), sorted(model.linears))
                for layer in layers:
                    self.assertGreater(layer["sqnr_db"], 10, layer)

    def test_w8a8_of_every_dtype(self):
        for dtype in ("F32", "F16", "BF16", "F64"):
            with self.subTest(dtype):
                self.check(c.llama(dtype), "w8a8", name=dtype)

    def test_w8a8_scale_dtypes(self):
        for dtype in ("F32", "F16", "BF16", "F64"):
            for scale in ("F32", "F16", "BF16"):
                with self.subTest(weight=dtype, scale=scale):
                    self.check(c.llama(dtype, layers=1), "w8a8", scale_dtype=scale, name=dtype + scale)

    def test_w4a16_of_every_dtype(self):
        for dtype in ("F32", "F16", "BF16", "F64"):
            for asymmetric in (False, True):
                with self.subTest(dtype, asymmetric=asymmetric):
                    self.check(c.llama(dtype, hidden=128, intermediate=256, layers=1), "w4a16", asymmetric=asymmetric,
                               name=f"{dtype}{asymmetric}")

    def test_w4a16_group_sizes(self):
        for size in (8, 16, 32, 64):
            for asymmetric in (False, True):
                with self.subTest(size=size, asymmetric=asymmetric):
                    self.check(c.llama(hidden=64, intermediate=64, layers=1), "w4a16", group_size=size,
                               asymmetric=asymmetric, name=f"{size}{asymmetric}")

    def test_w4a16_groups_that_fill_no_words(self):
        # Eight codes are a word: ceil(columns / 8) of them, or a refusal.
        for size, columns in ((4, 20), (12, 36), (2, 18), (1, 8), (3, 24), (5, 15), (24, 24)):
            make = c.Maker("F32", 1)
            make.linear("model.layers.0.mlp.up_proj", 9, columns)
            make.linear("model.layers.0.mlp.down_proj", 8, 120)
            model = c.Model(make.tensors, c.config_of("llama", "L", "F32"), make.linears)
            name = f"{size}_{columns}"
            with self.subTest(size=size, columns=columns):
                ran = self.quantize(self.source(model, name), self.path(name + ".out"), "--scheme", "w4a16", "--group-size", size)
                if ran.returncode != 0:
                    self.assertIn(ran.returncode, (1, 2), ran)
                    self.assert_refused(ran, "group", str(size), code=ran.returncode)
                    continue
                got = c.read_folder(self.path(name + ".out"))
                if "model.layers.0.mlp.up_proj.weight" in got:  # left alone: then so are its bits
                    self.assertEqual(got["model.layers.0.mlp.up_proj.weight"], model.tensors["model.layers.0.mlp.up_proj.weight"])
                else:
                    self.assert_same_tensors(got, reference.quantize(model, "w4a16", group_size=size)[0])

    def test_w4a16_scale_dtypes(self):
        for scale in ("F32", "F16", "BF16"):
            with self.subTest(scale):
                self.check(c.llama("F32", hidden=32, layers=1), "w4a16", scale_dtype=scale, group_size=16,
                           asymmetric=True, name=scale)

    def test_w4a16_leaves_what_has_no_whole_groups(self):
        # down_proj has 48 input channels: no multiple of 32.
        model = c.llama(hidden=32, intermediate=48)
        out = self.check(model, "w4a16", group_size=32)
        self.assertIn("model.layers.1.mlp.down_proj",
                      load_json(os.path.join(out, "config.json"))["quantization_config"]["ignore"])

    def test_zero_points_of_rows_that_fill_no_word(self):
        for rows in (1, 7, 8, 9):
            make = c.Maker("BF16", rows)
            make.linear("model.layers.0.mlp.up_proj", rows, 32)
            make.norm("model.norm", 32)
            model = c.Model(make.tensors, c.config_of("llama", "L", "BF16"), make.linears)
            with self.subTest(rows):
                self.check(model, "w4a16", group_size=16, asymmetric=True, name=str(rows))

    def test_static(self):
        for dtype in ("F32", "F16", "BF16", "F64"):
            for asymmetric in (False, True):
                with self.subTest(dtype, asymmetric=asymmetric):
                    model = c.llama(dtype, layers=1)
                    self.check(model, "w8a8-static", stats=c.make_stats(model), asymmetric=asymmetric,
                               name=f"{dtype}{asymmetric}")

    def test_static_ranges_at_the_edges(self):
        model = c.llama("F32", layers=1)
        size = model.shape(model.linears[0])[1]
        for name, low, high in (("zero", [0.0] * size, [0.0] * size), ("positive", [0.25] * size, [4.0] * size),
                                ("negative", [-4.0] * size, [-0.25] * size), ("tiny", [-1e-44] * size, [1e-44] * size),
                                ("huge", [-3e38] * size, [3e38] * size)):
            for asymmetric in (False, True):
                stats = c.make_stats(model)
                module = model.linears[0]
                stats[module + ".min"] = c.Tensor.of(low, "F32")
                stats[module + ".max"] = c.Tensor.of(high, "F32")
                stats[module + ".absmax"] = c.Tensor.of([max(abs(a), abs(b)) for a, b in zip(low, high)], "F32")
                with self.subTest(name, asymmetric=asymmetric):
                    self.check(model, "w8a8-static", stats=stats, asymmetric=asymmetric, name=f"{name}{asymmetric}")

    def test_static_scale_dtype(self):
        model = c.llama("BF16", layers=1)
        self.check(model, "w8a8-static", stats=c.make_stats(model), scale_dtype="F32", asymmetric=True)


class DifficultWeightsTest(QuantizeTest):
    """Rows that test the edges of the arithmetic: zeros, NaN, infinities, ties, the smallest and largest numbers."""

    def rows(self, dtype):
        tiny = {"F16": 2.0 ** -24, "BF16": 2.0 ** -133, "F32": 2.0 ** -149, "F64": 5e-324}[dtype]
        large = {"F16": 65504.0, "BF16": reference.LARGEST["BF16"], "F32": reference.LARGEST["F32"],
                 "F64": 1.7976931348623157e308}[dtype]
        normal = {"F16": 2.0 ** -14, "F64": 2.0 ** -1022}.get(dtype, 2.0 ** -126)
        rng = random.Random(0)
        rows = [[0.0] * 16, [-0.0] * 16, [NAN] * 16, [INFINITY, -INFINITY] * 8, [NAN, INFINITY, -INFINITY, 0.0] * 4,
                [1.0, NAN] * 8, [0.5, INFINITY, -INFINITY, -0.25] * 4, [tiny, -tiny] * 8, [tiny * k for k in range(16)],
                [large, -large] * 8, [large, 1.0] * 8, [normal * k for k in range(16)], [normal * 127, normal] * 8,
                [127.0] + [k + 0.5 for k in range(15)],  # ties: the scale is 1
                [-127.0] + [-k - 0.5 for k in range(15)], [7.0] + [k / 2 for k in range(15)],
                [5.0] * 16, [-5.0] * 16, [1.0] + [0.0] * 15, [-1.0] + [0.0] * 15, [15.0] + [k + 0.5 for k in range(15)],
                [-15.0] + [-k - 0.5 for k in range(15)], [7.0, -8.0] * 8, [-7.5, 7.5] * 8]
        for _ in range(40):  # scales of every size
            exponent = rng.uniform(math.log2(tiny), math.log2(large))
            rows.append([rng.uniform(-1, 1) * 2.0 ** exponent for _ in range(16)])
        return rows

    def model(self, dtype, width=16):
        make = c.Maker(dtype, 1)
        rows = [row * (width // 16) for row in self.rows(dtype)]
        make.tensors["model.layers.0.mlp.up_proj.weight"] = c.Tensor.of([x for row in rows for x in row], dtype,
                                                                        [len(rows), width])
        make.linears.append("model.layers.0.mlp.up_proj")
        # Random bits: every kind of number there is.
        bits = random.Random(3).randbytes(40 * 3 * width * c.WIDTHS[dtype])
        make.tensors["model.layers.0.mlp.down_proj.weight"] = c.Tensor(dtype, [40, 3 * width], bits)
        make.linears.append("model.layers.0.mlp.down_proj")
        return c.Model(make.tensors, c.config_of("llama", "L", dtype), make.linears)

    def test_w8a8(self):
        for dtype in ("F32", "F16", "BF16", "F64"):
            for scale in ("F32", "F16", "BF16"):
                with self.subTest(weight=dtype, scale=scale):
                    self.check(self.model(dtype), "w8a8", scale_dtype=scale, name=dtype + scale)

    def test_w4a16(self):
        for dtype in ("F32", "F16", "BF16", "F64"):
            for asymmetric in (False, True):
                for scale in ("F32", "F16", "BF16"):
                    with self.subTest(weight=dtype, scale=scale, asymmetric=asymmetric):
                        self.check(self.model(dtype), "w4a16", scale_dtype=scale, group_size=16, asymmetric=asymmetric,
                                   name=f"{dtype}{scale}{asymmetric}")

    def test_floating_point_codes(self):
        for scheme in ("fp8", "fp8-tensor", "fp8-block", "mxfp8a16", "mxfp4a16", "nvfp4a16", "w8a16", "w4a8"):
            for dtype in ("F32", "F16", "BF16", "F64"):
                with self.subTest(scheme, dtype=dtype):
                    model = self.model(dtype, 128 if scheme == "fp8-block" else 32)
                    self.check(model, scheme, name=scheme + dtype, **options_of(scheme))

    def test_tensors_of_zeros_and_of_the_smallest_and_largest_numbers(self):
        # One scale for a tensor: each kind is a model of its own.
        for dtype, tiny, large in (("F16", 2.0 ** -24, 65504.0), ("BF16", 2.0 ** -133, reference.LARGEST["BF16"]),
                                   ("F32", 2.0 ** -149, reference.LARGEST["F32"]), ("F64", 5e-324, 1.7976931348623157e308)):
            for kind, values in (("zero", [0.0, -0.0]), ("tiny", [tiny, -tiny, 0.0, 3 * tiny]),
                                 ("large", [large, -large, 1.0, 0.0]), ("nan", [NAN, INFINITY])):
                for scheme in ("fp8-tensor", "nvfp4a16"):
                    with self.subTest(dtype, kind=kind, scheme=scheme):
                        weight = c.Tensor.of(values * (64 // len(values)), dtype, [2, 32])
                        model = c.Model({"model.layers.0.mlp.up_proj.weight": weight}, c.config_of("llama", "L", dtype),
                                        ["model.layers.0.mlp.up_proj"])
                        self.check(model, scheme, name=f"{dtype}{kind}{scheme}")

    def test_what_is_not_quantized_keeps_its_bits(self):
        # NaN with payloads, -0.0, denormals; dtypes that kvant does not read; empty tensors and such without dimensions.
        model = self.model("BF16")
        model.tensors["model.embed_tokens.weight"] = c.Tensor("F32", [4, 4], random.Random(1).randbytes(64))
        model.tensors["model.norm.weight"] = c.Tensor("BF16", [16], random.Random(2).randbytes(32))
        model.tensors["model.scalar"] = c.Tensor("F64", [], b"\1\2\3\4\5\6\xf0\x7f")
        model.tensors["model.empty"] = c.Tensor("I64", [0, 7], b"")
        model.tensors["model.mask"] = c.Tensor("BOOL", [3], b"\0\1\1")
        model.tensors["model.eight"] = c.Tensor("F8_E4M3", [3], b"\x7f\x80\x01")
        model.tensors["model.odd_sized"] = c.Tensor("U8", [5], b"abcde")  # what follows is not aligned
        model.tensors["model.conv.weight"] = c.Tensor.of([0.5] * 8, "BF16", [2, 2, 2])
        self.check(model, "w8a8", shards=3)

    def test_linears_without_rows_or_columns(self):
        for shape in ([0, 16], [16, 0], [0, 0], [1, 1], [3, 1], [1, 5]):
            make = c.Maker("F32", 1)
            make.linear("model.layers.0.mlp.up_proj", *shape)
            make.linear("model.layers.0.mlp.down_proj", 4, 8)
            model = c.Model(make.tensors, c.config_of("llama", "L", "F32"), make.linears)
            name = "x".join(map(str, shape))
            with self.subTest(name):
                source = self.source(model, name)
                self.assert_done(self.quantize(source, self.path(name + ".out"), "--scheme", "w8a8"))
                got = c.read_folder(self.path(name + ".out"))
                self.assertEqual(got["model.layers.0.mlp.down_proj.weight"].dtype, "I8")
                if shape[0] and shape[1]:
                    self.assert_same_tensors(got, reference.quantize(model, "w8a8")[0])


class SmoothingTest(QuantizeTest):
    FAMILIES = {"llama": c.llama, "mistral": lambda dtype: c.llama(dtype, model_type="mistral"),
                "qwen2": lambda dtype: c.llama(dtype, model_type="qwen2", bias=True),
                "qwen3": lambda dtype: c.llama(dtype, model_type="qwen3", head_norms=True, head=False),
                "opt": c.opt, "bloom": c.bloom, "mixtral": c.mixtral, "qwen2_moe": c.qwen2_moe}

    def test_every_family(self):
        for family, make in self.FAMILIES.items():
            with self.subTest(family):
                model = make("BF16")
                self.check(model, "w8a8", stats=c.make_stats(model), smooth=True, name=family, shards=4)

    def test_every_dtype(self):
        for dtype in ("F32", "F16", "BF16", "F64"):
            with self.subTest(dtype):
                model = c.opt(dtype)  # norms with biases
                self.check(model, "w8a8", stats=c.make_stats(model), smooth=True, name=dtype)

    def test_what_folding_leaves_alone(self):
        # Said once more without the reference: these are the bytes of the input.
        model = c.mixtral()
        source, out = self.source(model), self.path("out")
        self.assert_done(self.quantize(source, out, "--scheme", "w8a8", "--smooth", "--stats",
                                       self.stats_file(c.make_stats(model))))
        plain = self.path("plain")
        self.assert_done(self.quantize(source, plain, "--scheme", "w8a8"))
        smoothed, without = c.read_folder(out), c.read_folder(plain)
        untouched = ["self_attn.o_proj.weight", "experts.0.w2.weight", "embed_tokens.weight", "model.norm.weight",
                     "lm_head.weight"]
        changed = ["input_layernorm.weight", "post_attention_layernorm.weight", "self_attn.q_proj.weight",
                   "block_sparse_moe.gate.weight", "experts.2.w3.weight"]
        for names, same in ((untouched, True), (changed, False)):
            for suffix in names:
                (name,) = [n for n in without if n.endswith(suffix)]
                self.assertEqual(smoothed[name].data == without[name].data, same, name)
        self.assertEqual(smoothed["model.layers.0.block_sparse_moe.gate.weight"].dtype, "BF16")

    def test_alpha(self):
        for alpha in ("0", "0.25", "1", "0.8"):
            with self.subTest(alpha):
                model = c.llama("F32", layers=1)
                self.check(model, "w8a8", stats=c.make_stats(model), smooth=True, alpha=float(alpha), name=alpha)

    def test_alpha_that_is_none(self):
        model = c.llama(layers=1)
        source, stats = self.source(model), self.stats_file(c.make_stats(model))
        for alpha in ("-0.1", "1.5", "nan", "inf", "1e400"):
            with self.subTest(alpha):
                ran = self.quantize(source, self.path("out"), "--scheme", "w8a8", "--stats", stats, f"--smooth={alpha}")
                self.assertIn(ran.returncode, (1, 2), ran)
                self.assertFalse(os.path.exists(self.path("out")), ran)

    def test_static_after_smoothing(self):
        for dtype in ("F32", "BF16"):
            for scheme, asymmetric in (("w8a8-static", False), ("w8a8-static", True), ("fp8-static", False), ("nvfp4", False)):
                with self.subTest(dtype, scheme=scheme, asymmetric=asymmetric):
                    model = c.llama(dtype, layers=1)
                    self.check(model, scheme, stats=c.make_stats(model), smooth=True, asymmetric=asymmetric,
                               name=f"{dtype}{scheme}{asymmetric}")

    def test_w4a16(self):
        model = c.llama("BF16", layers=1)
        self.check(model, "w4a16", stats=c.make_stats(model, min_max=False), smooth=True, group_size=16)

    def test_small_and_dead_channels(self):
        # Clamps: a channel whose weights are all zero, one that was never active.
        model = c.llama("F32", layers=1)
        for p in "qkv":
            name = f"model.layers.0.self_attn.{p}_proj.weight"
            values = model.tensors[name].values()
            columns = model.tensors[name].shape[1]
            for i in range(0, len(values), columns):
                values[i] = 0.0
                values[i + 1] = 1e-9
            model.tensors[name] = c.Tensor.of(values, "F32", model.tensors[name].shape)
        stats = c.make_stats(model)
        for p in "qkv":
            name = f"model.layers.0.self_attn.{p}_proj.absmax"
            values = stats[name].values()
            values[2] = values[3] = 0.0
            stats[name] = c.Tensor.of(values, "F32")
        self.check(model, "w8a8", stats=stats, smooth=True)

    def test_non_finite_weights(self):
        model = c.llama("BF16", layers=1)
        name = "model.layers.0.self_attn.q_proj.weight"
        values = model.tensors[name].values()
        values[5], values[40], values[77] = NAN, INFINITY, -INFINITY
        model.tensors[name] = c.Tensor.of(values, "BF16", model.tensors[name].shape)
        self.check(model, "w8a8", stats=c.make_stats(model), smooth=True)

    def test_ignored_readers_are_multiplied_all_the_same(self):
        model = c.qwen2_moe()
        kept = [m for m in model.linears if ".shared_expert." not in m]
        self.check(model, "w8a8", "--ignore", r"re:.*\.shared_expert\..*", stats=c.make_stats(model), smooth=True, quantized=kept)

    def test_a_norm_whose_readers_are_all_ignored_stays(self):
        model = c.llama("BF16", layers=2)
        kept = [m for m in model.linears if not m.startswith("model.layers.0.self_attn.")]
        self.check(model, "w8a8", "--ignore", r"re:model\.layers\.0\.self_attn\..*", stats=c.make_stats(model), smooth=True,
                   quantized=kept)

    def test_experts_see_different_tokens(self):
        # max|X_j| is the largest that any reader of the norm saw; a router has no statistics.
        model = c.mixtral()
        stats = c.make_stats(model)
        rng = random.Random(12)
        for name in stats:
            if ".experts." in name and name.endswith(".absmax"):
                stats[name] = c.Tensor.of([x * rng.uniform(0.2, 1) for x in stats[name].values()], "F32")
        del stats["model.layers.0.block_sparse_moe.experts.2.w1.absmax"]
        self.check(model, "w8a8", stats=stats, smooth=True)

    def groups_file(self, groups):
        return self.put("groups.json", json.dumps({"groups": groups}))

    def test_groups_in_a_file(self):
        model = c.llama(layers=3)
        model.config["model_type"] = "unheard_of"
        block = "model.layers.{i}"
        path = self.groups_file([{"norm": f"{block}.input_layernorm",
                                  "linears": [f"{block}.self_attn.{p}_proj" for p in "qkv"]},
                                 {"norm": "model.layers.1.post_attention_layernorm",
                                  "linears": ["model.layers.1.mlp.gate_proj", "model.layers.1.mlp.up_proj"]}])
        model.groups = [g for g in model.groups if "input" in g.norm or ".1." in g.norm]
        self.check(model, "w8a8", "--smooth-groups", path, stats=c.make_stats(model), smooth=True, alpha=0.6)

    def test_groups_that_are_none(self):
        model = c.llama(layers=1)
        source, stats = self.source(model), self.stats_file(c.make_stats(model))
        norm = "model.layers.0.input_layernorm"
        q = "model.layers.0.self_attn.q_proj"
        for name, text in (("no_json", "{"), ("empty", ""), ("list", "[]"), ("no_groups", "{}"), ("deep", "[" * 100000),
                           ("string", '{"groups": "x"}'), ("number", '{"groups": [1]}'), ("no_linears", json.dumps(
                               {"groups": [{"norm": norm, "linears": []}]})),
                           ("no_norm", json.dumps({"groups": [{"linears": [q]}]})),
                           ("unknown_norm", json.dumps({"groups": [{"norm": "nowhere", "linears": [q]}]})),
                           ("unknown_linear", json.dumps({"groups": [{"norm": norm, "linears": ["nowhere"]}]})),
                           ("not_text", json.dumps({"groups": [{"norm": norm, "linears": [7]}]})),
                           ("no_index", json.dumps({"groups": [{"norm": "a.{i}.b", "linears": ["a.{i}.c"]}]}))):
            with self.subTest(name):
                path = self.put(name + ".json", text)
                ran = self.quantize(source, self.path("out"), "--scheme", "w8a8", "--smooth", "--stats", stats,
                                    "--smooth-groups", path)
                self.assert_refused(ran)
                self.assertFalse(os.path.exists(self.path("out")))

    def test_fold_that_overflows_the_norm(self):
        model = c.opt("F16", layers=1)
        stats = c.make_stats(model)
        for p in "qkv":  # s is its least value 1e-5: the norm becomes 1e5, beyond f16
            values = stats[f"model.decoder.layers.0.self_attn.{p}_proj.absmax"].values()
            values[3] = 0.0
            stats[f"model.decoder.layers.0.self_attn.{p}_proj.absmax"] = c.Tensor.of(values, "F32")
        source = self.source(model)
        ran = self.quantize(source, self.path("out"), "--scheme", "w8a8", "--smooth", "--stats", self.stats_file(stats))
        self.assert_refused(ran, "self_attn_layer_norm", ("overflow", "beyond", "largest", "65504", "too large"))
        self.assertEqual(self.tensors_written("out"), [])

    def test_fold_that_overflows_a_weight(self):
        model = c.opt("F16", layers=1)
        name = "model.decoder.layers.0.fc1.weight"
        values = model.tensors[name].values()
        values[7] = 60000.0
        model.tensors[name] = c.Tensor.of(values, "F16", model.tensors[name].shape)
        stats = c.make_stats(model)
        absmax = stats["model.decoder.layers.0.fc1.absmax"].values()
        absmax[7] = 1e6  # s about 4
        stats["model.decoder.layers.0.fc1.absmax"] = c.Tensor.of(absmax, "F32")
        source = self.source(model)
        ran = self.quantize(source, self.path("out"), "--scheme", "w8a8", "--smooth", "--stats", self.stats_file(stats))
        self.assert_refused(ran, "fc1", ("overflow", "beyond", "largest", "65504", "too large"))
        self.assertEqual(self.tensors_written("out"), [])

    def tensors_written(self, name):
        return [n for n in digest_tree(self.path(name)) if n.endswith(".safetensors")] if os.path.exists(
            self.path(name)) else []

    def test_models_that_cannot_be_folded(self):
        for name, model, words in (
                ("gemma", c.gemma(), [("1 + w", "gemma")]), ("bert", c.bert(), ["bert"]),
                ("opt_post", c.opt(do_layer_norm_before=False), ["do_layer_norm_before"]),
                ("bloom_post", c.bloom(apply_residual_connection_post_layernorm=True),
                 ["apply_residual_connection_post_layernorm"])):
            with self.subTest(name):
                source, stats = self.source(model, name), self.stats_file(c.make_stats(model), name + ".stats")
                ran = self.quantize(source, self.path("out"), "--scheme", "w8a8", "--smooth", "--stats", stats)
                self.assert_refused(ran, *words)
                self.assertFalse(os.path.exists(self.path("out")))
                self.check(model, "w8a8", name=name + "_plain")  # without smoothing it is a checkpoint like any other


class StatisticsNamesTest(QuantizeTest):
    """Statistics of a model that somebody had inside another one."""

    def renamed(self, model, rename):
        return {rename(name): tensor for name, tensor in c.make_stats(model).items()}

    def test_prefixes_are_recognised(self):
        model = c.llama(layers=2)
        source = self.source(model, "x")
        flags = ["--scheme", "w8a8-static", "--smooth"]
        plain = self.stats_file(c.make_stats(model), "plain")
        self.assert_done(run("quantize", source, "-o", self.path("plain.out"), *flags, "--stats", plain))
        want = c.read_folder(self.path("plain.out"))
        for i, rename in enumerate((lambda n: n.removeprefix("model."), lambda n: "model." + n, lambda n: "_orig_mod." + n,
                                    lambda n: "base_model.model." + n, lambda n: "module." + n)):
            stats = self.stats_file(self.renamed(model, rename), f"stats{i}")
            out = self.path(f"out{i}")
            self.assert_done(run("quantize", source, "-o", out, *flags, "--stats", stats, "--report", self.path("r.html")))
            self.assert_same_tensors(c.read_folder(out), want, rename("model.x"))
            ran = self.assert_done(run("compare", source, out, "--stats", stats, "--json"))
            self.assertEqual(json.loads(ran.stdout)["warnings"], [])

    def test_other_names_are_shown(self):
        model = c.llama(layers=1)
        source = self.source(model, "x")
        stats = self.stats_file(self.renamed(model, lambda n: "strange." + n), "stats")
        for flags in (["--smooth"], ["--scheme", "w8a8-static"]):
            ran = run("quantize", source, "-o", self.path("out"), *flags, "--stats", stats)
            self.assert_refused(ran, stats, "none of the checkpoint's modules", "'strange.model.layers.0", "the checkpoint has '",
                                "names must agree")


class WarningsTest(QuantizeTest):
    def warnings(self, *arguments):
        ran = self.assert_done(run("quantize", *arguments, "--json"))
        said = [line for line in ran.stderr.splitlines() if line.startswith("warning:")]
        document = json.loads(ran.stdout)
        self.assertEqual(["warning: " + warning for warning in document["warnings"]], said)
        return document["warnings"]

    def test_many_that_are_alike_are_one(self):
        model = c.llama(layers=30, hidden=32, intermediate=40, vocabulary=8)
        source = self.source(model, "x")
        (warning,) = self.warnings(source, "-o", self.path("out"), "--scheme", "w4a16", "--group-size", "32", "--ignore", "lm_head")
        self.assertEqual(warning, "'model.layers.0.mlp.down_proj' is not quantized: 40 input channels are not a multiple of the "
                         "group size 32; the same of 29 more: 'model.layers.1.mlp.down_proj', 'model.layers.2.mlp.down_proj', "
                         "'model.layers.3.mlp.down_proj' …")

    def test_names_inside_do_not_count(self):
        model = c.llama(layers=12, hidden=16, intermediate=16, vocabulary=8)
        source = self.source(model, "x")
        stats = {n: t for n, t in c.make_stats(model).items() if n.startswith("model.layers.0.") or "down_proj" in n or "o_proj" in n}
        warnings = self.warnings(source, "-o", self.path("out"), "--smooth", "--stats", self.stats_file(stats, "stats"))
        self.assertEqual(len(warnings), 2, warnings)
        for warning, norm in zip(warnings, ("input_layernorm", "post_attention_layernorm")):
            self.assertTrue(warning.startswith(f"'model.layers.1.{norm}' is not smoothed"), warning)
            self.assertIn("; the same of 10 more: 'model.layers.", warning)

    def test_a_few_stay_as_they_are(self):
        model = c.llama(layers=3, hidden=32, intermediate=40, vocabulary=8)
        source = self.source(model, "x")
        self.assertEqual(len(self.warnings(source, "-o", self.path("out"), "--scheme", "w4a16", "--group-size", "32")), 3)


class SelectionTest(QuantizeTest):
    def test_ignore_exact_names_and_expressions(self):
        model = c.llama(layers=2)
        exact = "model.layers.0.mlp.down_proj"
        kept = [m for m in model.linears if m != exact and not m.endswith("o_proj")]
        self.check(model, "w8a8", "--ignore", exact, "--ignore", r"re:.*\.o_proj$", quantized=kept)

    def test_an_expression_matches_from_the_start(self):
        model = c.llama(layers=1)
        source = self.source(model)
        ran = self.quantize(source, self.path("out"), "--scheme", "w8a8", "--ignore", "re:mlp")
        self.assert_refused(ran, "re:mlp")
        self.check(model, "w8a8", "--ignore", "re:model.layers.0.mlp", name="y",
                   quantized=[m for m in model.linears if ".mlp." not in m])

    def test_include(self):
        model = c.llama(layers=1)
        model.linears.append("lm_head")
        model.unquantized.remove("lm_head")
        self.check(model, "w8a8", "--include", "lm_head")

    def test_include_beats_ignore(self):
        model = c.llama(layers=2)
        kept = [m for m in model.linears if ".mlp." not in m or m == "model.layers.1.mlp.down_proj"]
        self.check(model, "w8a8", "--ignore", r"re:.*\.mlp\..*", "--include", "model.layers.1.mlp.down_proj", quantized=kept)

    def test_layers_that_loaders_join(self):
        source = self.source(c.llama(layers=1))
        for one, other in (("self_attn.q_proj", "self_attn."), ("self_attn.v_proj", "self_attn."), ("mlp.up_proj", "mlp.gate")):
            with self.subTest(one):
                ran = self.quantize(source, self.path("out"), "--scheme", "w8a8", "--ignore", "model.layers.0." + one)
                self.assert_refused(ran, "model.layers.0." + one, "model.layers.0." + other)
                self.assertFalse(os.path.exists(self.path("out")))

    def test_routers_stay(self):
        for model in (c.mixtral(), c.qwen2_moe()):
            with self.subTest(model.config["model_type"]):
                self.check(model, "w8a8", name=model.config["model_type"])

    def test_patterns_that_match_nothing(self):
        source = self.source(c.llama(layers=1))
        for flag, pattern in (("--ignore", "model.layers.7.mlp.up_proj"), ("--ignore", "re:nothing.*"),
                              ("--include", "nowhere"), ("--include", "re:no.*")):
            with self.subTest(flag, pattern=pattern):
                ran = self.quantize(source, self.path("out"), "--scheme", "w8a8", flag, pattern)
                self.assert_refused(ran, pattern)
                self.assertFalse(os.path.exists(self.path("out")))

    def test_expressions_that_are_none(self):
        source = self.source(c.llama(layers=1))
        for flag in ("--ignore", "--include"):
            for pattern in ("re:(", "re:[a", "re:*", "re:a{9999999999}", "re:" + "(" * 5000):
                with self.subTest(flag, pattern=pattern[:20]):
                    ran = self.quantize(source, self.path("out"), "--scheme", "w8a8", flag, pattern)
                    self.assertIn(ran.returncode, (1, 2), ran)
                    self.assert_refused(ran, pattern[:20], code=ran.returncode)

    def test_no_linear_at_all(self):
        make = c.Maker("F32", 1)
        make.norm("model.norm", 8)
        model = c.Model(make.tensors, c.config_of("llama", "L", "F32"), [])
        ran = self.quantize(self.source(model), self.path("out"), "--scheme", "w8a8")
        if ran.returncode != 0:  # a copy of everything is an answer too
            self.assert_refused(ran, "linear")


class OverrideTest(QuantizeTest):
    """Several schemes in one checkpoint."""

    def override(self, model, scheme, others, *flags, stats=None, name="x", quantized=None, **scheme_more):
        """`others`: {module: scheme} that the flags must come to."""
        source, out = self.source(model, name, shards=3), self.path(name + ".out")
        if stats is not None:
            flags = [*flags, "--stats", self.stats_file(stats)]
        sizes = [f"--group-size={scheme_more['group_size']}"] if scheme_more else []
        self.assert_done(self.quantize(source, out, "--scheme", scheme, *sizes, *flags))
        quantized = model.linears if quantized is None else quantized
        alone = [m for m in model.linears if m not in quantized]
        want, _ = reference.quantize(model, scheme, stats, others=others, unquantized=alone, **scheme_more)
        self.check_output(model, source, out, scheme, want, quantized, others=others, **scheme_more)
        self.assert_done(run("verify", out))
        return out

    def test_two_formats(self):
        model = c.llama(intermediate=64)
        mlp = [m for m in model.linears if ".mlp." in m]
        out = self.override(model, "fp8", {m: "nvfp4a16" for m in mlp}, "--override", "re:.*mlp.*=nvfp4a16")
        made = load_json(os.path.join(out, "config.json"))["quantization_config"]
        self.assertEqual(made["format"], "mixed-precision")
        self.assertEqual([(g["format"], g["targets"]) for g in made["config_groups"].values()],
                         [("float-quantized", ["Linear"]), ("nvfp4-pack-quantized", mlp)])

    def test_one_format_with_two_schemes(self):
        model = c.llama()
        heads = [m for m in model.linears if m.endswith("o_proj")]
        out = self.override(model, "fp8", {m: "fp8-tensor" for m in heads}, "--override", "re:.*o_proj=fp8-tensor")
        made = load_json(os.path.join(out, "config.json"))["quantization_config"]
        self.assertEqual(made["format"], "float-quantized")

    def test_three_schemes_and_the_first_that_matches(self):
        model = c.llama(intermediate=64)
        others = {"model.layers.1.mlp.down_proj": "w8a8-static", "model.layers.0.mlp.down_proj": "mxfp4"}
        self.override(model, "w4a16", others, "--override", "model.layers.1.mlp.down_proj=w8a8-static", "--override",
                      "re:.*down_proj=mxfp4", stats=c.make_stats(model), group_size=16)

    def test_none_leaves_layers_as_they_are(self):
        model = c.llama()
        kept = [m for m in model.linears if not m.endswith("down_proj")]
        self.override(model, "w8a8", {}, "--override", "re:.*down_proj=none", quantized=kept)
        # --include says more than none, and --ignore comes before an override.
        first, second = "model.layers.0.mlp.down_proj", "model.layers.1.mlp.down_proj"
        self.override(model, "w8a8", {}, "--override", "re:.*down_proj=none", "--include", second, name="y",
                      quantized=[*kept, second])
        self.override(model, "w8a8", {first: "fp8"}, "--override", "re:.*down_proj=fp8", "--ignore", second, name="z",
                      quantized=[*kept, first])

    def test_a_pattern_with_an_equals_sign(self):
        model = c.llama(layers=1)
        model.tensors["model.a=b.weight"] = c.Tensor.of([0.5, -1.0] * 8, "BF16", [4, 4])
        model.linears.append("model.a=b")
        self.override(model, "w8a8", {"model.a=b": "fp8"}, "--override", "model.a=b=fp8")

    def test_a_scheme_for_all(self):
        # Nothing is left for the first: config.json has one group.
        model = c.llama(layers=1)
        source, out = self.source(model), self.path("out")
        self.assert_done(self.quantize(source, out, "--scheme", "w8a8", "--override", "re:.*=fp8"))
        self.check_output(model, source, out, "fp8", reference.quantize(model, "fp8")[0])

    def test_smoothed_under_several_schemes(self):
        model = c.llama(layers=1)
        stats = c.make_stats(model)
        source, out = self.source(model), self.path("out")
        self.assert_done(self.quantize(source, out, "--scheme", "nvfp4", "--override", "re:.*down_proj=w8a8-static",
                                       "--smooth", "--stats", self.stats_file(stats)))
        others = {"model.layers.0.mlp.down_proj": "w8a8-static"}
        want, _ = reference.quantize(model, "nvfp4", stats, smooth=True, others=others)
        self.check_output(model, source, out, "nvfp4", want, others=others)

    def test_what_is_refused(self):
        source = self.source(c.llama(layers=1))
        q = "model.layers.0.self_attn.q_proj"
        for pattern, words, code in (
                (q + "=fp8", [q, "'model.layers.0.self_attn.k_proj'", "fp8", "w8a8",
                              "loaders join them into one matrix: use one scheme"], 1),
                (q + "=none", [q, "include or ignore both"], 1),
                ("re:nothing.*=fp8", ["--override re:nothing.* matches no Linear"], 1),
                ("model.norm=fp8", ["--override model.norm matches no Linear"], 1),
                ("re:(=fp8", ["re:("], 1), ("fp8", ["'fp8' must be PATTERN=SCHEME"], 2),
                ("=fp8", ["must be PATTERN=SCHEME"], 2), ("x=fp9", ["scheme 'fp9': must be one of w8a8, w8a8-static"], 2),
                ("x=", ["scheme ''"], 2), ("x=FP8", ["fp8-static"], 2)):
            with self.subTest(pattern):
                ran = self.quantize(source, self.path("out"), "--override", pattern)
                self.assert_refused(ran, *words, code=code)
                self.assertFalse(os.path.exists(self.path("out")))


class ExpertsTest(QuantizeTest):
    """Loaders join the experts of a layer into one stack, for which they have fewer kernels."""

    EXPERT = "'model.layers.0.block_sparse_moe.experts.0.w1'"

    def test_schemes_that_loaders_do_not_take(self):
        model = c.mixtral(intermediate=64)
        source, stats = self.source(model), ("--stats", self.stats_file(c.make_stats(model)))
        out, none = self.path("out"), ("--override", "re:.*experts.*=none")
        for arguments, words in (
                (("w8a8-static", *stats), "w8a8-static, but vLLM takes int8 experts only with activations that are quantized"),
                (("w8a8", "--asymmetric"), "w8a8, asymmetric, but vLLM quantizes the activations of experts without zero points"),
                (("fp8-tensor",), "fp8-tensor, but vLLM takes FP8 experts with one scale for a weight only with stored scales"),
                (("fp8", "--override", "re:.*experts.*=fp8-tensor"), "would be fp8-tensor, but vLLM")):
            with self.subTest(arguments):
                ran = self.quantize(source, out, "--scheme", *arguments)
                self.assert_refused(ran, self.EXPERT + " is an expert and would be ", words,
                                    "leave experts as they are with --override 're:.*experts.*=none'")
                self.assertFalse(os.path.exists(out))
        # As the sentence says.
        self.assert_done(self.quantize(source, out, "--scheme", "w8a8-static", *stats, *none))
        self.assert_done(self.quantize(source, out, "--force", "--scheme", "w8a8-static", *stats, "--override",
                                       "re:.*experts.*=fp8-static"))

    def test_all_of_a_layer_need_one_scheme(self):
        source, expert = self.source(c.mixtral()), "model.layers.0.block_sparse_moe.experts."
        for option, words in (
                (("--override", f"{expert}1.w2=fp8"), f"{expert}1.w2' fp8, but loaders join the experts of a layer into one stack"),
                (("--ignore", rf"re:{expert}2\..*"), f"{expert}2.w1' not quantized (matches --ignore"),
                (("--override", r"re:.*\.w2=none"), f"{expert}0.w2' not quantized (matches --override")):
            with self.subTest(option):
                ran = self.quantize(source, self.path("out"), "--scheme", "w8a8", *option)
                self.assert_refused(ran, self.EXPERT + " would be w8a8 and ", words, "use one scheme for all of them")

    def test_one_that_does_not_fit_keeps_its_layer(self):
        # w2 has 24 input channels; attention fits.
        model = c.mixtral(intermediate=24, experts=1)
        kept = [m for m in model.linears if ".experts." not in m]
        self.check(model, "w4a16", quantized=kept, group_size=16)
        ran = self.quantize(self.path("x"), self.path("again"), "--scheme", "w4a16", "--group-size=16")
        self.assert_done(ran)
        self.assertIn("'model.layers.0.block_sparse_moe.experts.0.w1' is not quantized: loaders join the experts of a layer into one "
                      "stack, and 'model.layers.0.block_sparse_moe.experts.0.w2' is not quantized", ran.stderr)


class StackedExpertsTest(QuantizeTest):
    """All experts of a layer in two tensors of three dimensions, as transformers 5 saves some models."""

    def stacked(self, model, turned):
        """The same model with its experts stacked."""
        tensors, experts = {}, {}
        for name, tensor in model.tensors.items():
            found = re.fullmatch(r"(.*\.experts)\.(\d+)\.(\w+)\.weight", name)
            if found:
                experts.setdefault(found[1], {}).setdefault(int(found[2]), {})[found[3]] = tensor
            else:
                tensors[name] = tensor
        for parent, by_number in experts.items():
            for name, parts in (("gate_up_proj", ("gate_proj", "up_proj")), ("down_proj", ("down_proj",))):
                values, shape = [], None
                for e in range(len(by_number)):
                    rows = [row for part in parts for row in by_number[e][part].rows()]
                    rows = [list(column) for column in zip(*rows)] if turned else rows
                    values += [x for row in rows for x in row]
                    shape = [len(by_number), len(rows), len(rows[0])]
                tensors[f"{parent}.{name}"] = c.Tensor.of(values, tensor.dtype, shape)
        return tensors

    def test_stacks_become_the_modules_that_loaders_want(self):
        for model_type, turned in (("qwen2_moe", False), ("llama4_text", True), ("qwen3_vl_moe_text", True)):
            with self.subTest(model_type):
                model = c.qwen2_moe()
                model.config["model_type"] = model_type
                want, _ = reference.quantize(model, "w8a8")
                model.tensors = self.stacked(model, turned)
                out = self.path(model_type + ".out")
                self.assert_done(self.quantize(self.source(model, model_type), out, "--scheme", "w8a8"))
                self.assert_same_tensors(c.read_folder(out), want, model_type)

    def test_those_of_gpt_oss_stay(self):
        model = c.qwen2_moe()
        model.config["model_type"] = "gpt_oss"
        model.tensors = self.stacked(model, True)
        out = self.path("out")
        self.assert_done(self.quantize(self.source(model), out, "--scheme", "w8a8"))
        made = c.read_folder(out)
        for name, tensor in model.tensors.items():
            if len(tensor.shape) == 3:
                self.assertEqual(made[name].data, tensor.data, name)


class FittingTest(QuantizeTest):
    """Layers whose shape does not fit, and group sizes that are found."""

    def warnings(self, source, *flags):
        ran = self.assert_done(self.quantize(source, self.path("plan"), *flags, "--dry-run", "--json"))
        return json.loads(ran.stdout)["warnings"]

    def test_auto_takes_the_largest_that_fits_all(self):
        for hidden, inner, size in ((128, 256, 128), (64, 128, 64), (64, 96, 32)):
            for scheme in ("w4a16", "w8a16", "w4a8"):
                with self.subTest(scheme, size=size):
                    model = c.llama(hidden=hidden, intermediate=inner, layers=1)
                    source, out = self.source(model, f"{scheme}{size}"), self.path(f"{scheme}{size}.out")
                    self.assert_done(self.quantize(source, out, "--scheme", scheme, "--group-size", "auto"))
                    made = load_json(os.path.join(out, "config.json"))["quantization_config"]
                    self.assertEqual(made, reference.quantization_config(scheme, ["lm_head"], group_size=size))
        # The last model is the one that is worth the reference's time.
        want, _ = reference.quantize(model, scheme, group_size=size)
        self.check_output(model, source, out, scheme, want, group_size=size)

    def test_auto_looks_at_the_layers_of_the_first_scheme(self):
        model = c.llama(hidden=64, intermediate=48, layers=1)
        source, down = self.source(model), "model.layers.0.mlp.down_proj"
        for flags, others, quantized in ((["--override", down + "=fp8"], {down: "fp8"}, model.linears),
                                         (["--ignore", down], {}, [m for m in model.linears if m != down])):
            with self.subTest(flags):
                out = self.path(flags[0])
                self.assert_done(self.quantize(source, out, "--scheme", "w4a16", "--group-size", "auto", *flags))
                self.check_config(model, source, out, "w4a16", quantized, group_size=64, others=others)

    def test_auto_that_finds_none(self):
        source = self.source(c.llama(hidden=64, intermediate=48, layers=1))
        ran = self.quantize(source, self.path("out"), "--scheme", "w4a16", "--group-size", "auto")
        self.assert_refused(ran, "the 48 input channels of 'model.layers.0.mlp.down_proj' are a multiple of none of "
                            "128, 64 and 32", "--ignore", "--group-size -1")

    def test_the_warning_names_a_group_size_that_fits(self):
        source = self.source(c.llama(hidden=128, intermediate=192, layers=1))
        down = "'model.layers.0.mlp.down_proj' is not quantized: {} input channels are not a multiple of the group size {}"
        self.assertEqual(self.warnings(source, "--scheme", "w4a16"),
                         [down.format(192, 128) + "; --group-size 64 fits, auto finds one for all layers"])
        self.assertEqual(self.warnings(source, "--scheme", "w4a16", "--group-size", "64"), [])
        # Groups of other schemes are as they are.
        source = self.source(c.llama(hidden=64, intermediate=48, layers=1), "odd")
        self.assertEqual(self.warnings(source, "--scheme", "mxfp4"), [down.format(48, 32)])

    def test_most_layers_left(self):
        source = self.source(c.llama(hidden=32, intermediate=128, layers=2))
        ran = self.quantize(source, self.path("out"), "--scheme", "w4a16")
        self.assert_refused(ran, source, "w4a16, groups of 128 would leave 12 of 14 layers as they are",
                            "the first is 'model.layers.0.self_attn.q_proj': 32 input channels", "--group-size 32 fits")
        self.assertFalse(os.path.exists(self.path("out")))
        # The scheme that does not fit is named, not the first.
        ran = self.quantize(source, self.path("out"), "--scheme", "w8a8", "--override", "re:.*=w4a16")
        self.assert_refused(ran, "w4a16, groups of 128 would leave 12 of 14 layers")
        self.assertNotIn("--group-size", ran.stderr)  # which is not an override's

    def test_half_of_the_layers_left(self):
        make = c.Maker("BF16", 1)
        make.linear("model.layers.0.mlp.down_proj", 8, 48)
        make.linear("model.layers.0.self_attn.o_proj", 8, 64)
        model = c.Model(make.tensors, c.config_of("llama", "L", "BF16"), make.linears)
        self.check(model, "mxfp4")

    def test_blocks_that_end_where_no_part_does(self):
        make = c.Maker("BF16", 1)
        for name, rows in (("self_attn.q_proj", 128), ("self_attn.k_proj", 100), ("self_attn.v_proj", 100),
                           ("self_attn.o_proj", 130), ("mlp.gate_proj", 128), ("mlp.up_proj", 130), ("mlp.down_proj", 7)):
            make.linear("model.layers.0." + name, rows, 128)
        model = c.Model(make.tensors, c.config_of("llama", "L", "BF16"), make.linears)
        self.check(model, "fp8-block", quantized=make.linears[3:])
        warnings = self.warnings(self.path("x"), "--scheme", "fp8-block")
        self.assertEqual(len(warnings), 3, warnings)
        for part, warning in zip("qkv", warnings):
            self.assert_says(warning, [f"'model.layers.0.self_attn.{part}_proj' is not quantized",
                                       "the 100 rows of 'k_proj' are not a multiple of the 128 of a block"], warning)

    def test_blocks_that_fit_few(self):
        source = self.source(c.llama(hidden=128, intermediate=64, layers=1))
        ran = self.quantize(source, self.path("out"), "--scheme", "fp8-block")
        self.assert_refused(ran, "fp8-block would leave 6 of 7 layers as they are", "'model.layers.0.mlp.down_proj'",
                            "64 input channels are not a multiple of the 128 activations that share a scale")
        make = c.Maker("BF16", 1)
        for part in ("gate", "up"):
            make.linear(f"model.layers.0.mlp.{part}_proj", 40, 128)
        source = self.source(c.Model(make.tensors, c.config_of("llama", "L", "BF16"), make.linears), "all")
        ran = self.quantize(source, self.path("out"), "--scheme", "fp8-block")
        self.assert_refused(ran, "would leave 2 of 2 layers",
                            "the 40 rows of 'gate_proj' are not a multiple of the 128 of a block")


class LayoutTest(QuantizeTest):
    def test_shards(self):
        for shards in (1, 2, 5):
            with self.subTest(shards):
                self.check(c.llama(), "w8a8", shards=shards, name=str(shards))

    def test_an_index_with_one_shard(self):
        model = c.llama(layers=1)
        source = self.source(model, index=True)
        self.assert_done(self.quantize(source, self.path("out"), "--scheme", "w8a8"))
        self.check_output(model, source, self.path("out"), "w8a8", reference.quantize(model, "w8a8")[0])

    def test_shards_behind_symbolic_links(self):
        # As in the Hugging Face cache: snapshots/<hash>/name is a link to ../../blobs/<digest>.
        model = c.llama()
        real = self.source(model, "blobs", shards=3)
        linked = self.path("snapshot")
        os.mkdir(linked)
        for name in os.listdir(real):
            os.symlink(os.path.join("..", "blobs", name), os.path.join(linked, name))
        before = snapshot(real)
        self.assert_done(self.quantize(linked, self.path("out"), "--scheme", "w8a8"))
        self.assert_untouched(real, before)
        self.check_output(model, real, self.path("out"), "w8a8", reference.quantize(model, "w8a8")[0])
        for name in os.listdir(self.path("out")):
            self.assertFalse(os.path.islink(self.path("out", name)), name)

    def test_a_link_to_the_folder(self):
        model = c.llama(layers=1)
        source = self.source(model)
        os.symlink(source, self.path("link"))
        self.assert_done(run("quantize", self.path("link"), "-o", self.path("out"), "--scheme", "w8a8"))
        self.check_output(model, source, self.path("out"), "w8a8", reference.quantize(model, "w8a8")[0])

    def test_one_file_in_one_file_out(self):
        model = c.llama(layers=1)
        c.write_safetensors(self.path("in.safetensors"), model.tensors, {"format": "pt", "author": "\u2603"})
        self.assert_done(run("quantize", self.path("in.safetensors"), "-o", self.path("out.safetensors"), "--scheme", "w8a8"))
        got, metadata = c.read_safetensors(self.path("out.safetensors"))
        self.assert_same_tensors(got, reference.quantize(model, "w8a8")[0])
        self.assertEqual(metadata["format"], "pt")
        self.assertEqual(metadata["author"], "\u2603")
        made = json.loads(metadata["quantization_config"])
        self.assertEqual(made, reference.quantization_config("w8a8", made["ignore"]))
        self.assertEqual(made["ignore"], ["lm_head"])

    def test_one_file_in_a_folder_out(self):
        model = c.llama(layers=1)
        c.write_safetensors(self.path("in.safetensors"), model.tensors)
        self.assert_done(run("quantize", self.path("in.safetensors"), "-o", self.path("out"), "--scheme", "w8a8"))
        self.assert_same_tensors(c.read_folder(self.path("out")), reference.quantize(model, "w8a8")[0])

    def test_metadata_of_shards_is_kept(self):
        model = c.llama(layers=1)
        source = self.source(model)
        c.write_safetensors(os.path.join(source, "model.safetensors"), model.tensors, {"origin": "a\nb", "format": "np"})
        self.assert_done(self.quantize(source, self.path("out"), "--scheme", "w8a8"))
        metadata = c.read_safetensors(self.path("out", "model.safetensors"))[1]
        self.assertEqual(metadata["format"], "pt")
        self.assertEqual(metadata.get("origin", "a\nb"), "a\nb")

    def test_a_file_without_metadata(self):
        model = c.llama(layers=1)
        source = self.source(model)
        entries, _ = c.layout({n: (t.dtype, t.shape) for n, t in model.tensors.items()})
        with open(os.path.join(source, "model.safetensors"), "wb") as file:
            file.write(c.header_bytes(json.dumps(entries)))  # of any length: the data is not aligned
            for tensor in model.tensors.values():
                file.write(tensor.data)
        self.assert_done(self.quantize(source, self.path("out"), "--scheme", "w8a8"))
        self.check_output(model, source, self.path("out"), "w8a8", reference.quantize(model, "w8a8")[0])

    def test_tensors_at_odd_addresses(self):
        model = c.llama("F32", layers=1)
        model.tensors = {"model.odd": c.Tensor("U8", [1], b"x"), **model.tensors}
        self.check(model, "w8a8")
        self.check(model, "w4a16", group_size=16, name="four")

    def test_names_that_need_escapes(self):
        model = c.llama(layers=1)
        weird = "model.\u00e9\u2603\U0001f600.\"quoted\"\\slash\n.proj"
        model.tensors[weird + ".weight"] = c.Tensor.of([0.5, -1.0] * 8, "BF16", [4, 4])
        model.linears.append(weird)
        self.check(model, "w8a8", shards=2)

    def test_other_folders_are_no_part_of_a_checkpoint(self):
        model = c.llama(layers=1)
        source = self.source(model)
        os.mkdir(os.path.join(source, "original"))
        with open(os.path.join(source, "original", "consolidated.pth"), "wb") as file:
            file.write(b"x" * 100)
        self.assert_done(self.quantize(source, self.path("out"), "--scheme", "w8a8"))
        self.assert_same_tensors(c.read_folder(self.path("out")), reference.quantize(model, "w8a8")[0])

    def test_names_with_spaces_and_dashes(self):
        model = c.llama(layers=1)
        source = self.source(model, "in put \u2603")
        self.assert_done(self.quantize(source, self.path("out put\n2"), "--scheme", "w8a8"))
        self.assert_same_tensors(c.read_folder(self.path("out put\n2")), reference.quantize(model, "w8a8")[0])

    def test_relative_paths(self):
        self.source(c.llama(layers=1))
        self.assert_done(run("quantize", "in", "-o", "out", "--scheme", "w8a8", cwd=self.folder))
        self.assert_done(run("quantize", "./in/", "-o", "./out2/", "--scheme", "w8a8", cwd=self.folder))
        self.assertEqual(c.read_folder(self.path("out")), c.read_folder(self.path("out2")))


class SameBytesTest(QuantizeTest):
    """The output depends on the input and the options, on nothing else."""

    def large_model(self):
        rng = random.Random(5)
        tensors, linears = {}, []
        for name, shape in (("model.layers.0.mlp.up_proj", [3000, 1024]), ("model.layers.0.mlp.down_proj", [64, 65536]),
                            ("model.layers.0.self_attn.o_proj", [2, 1_500_032])):
            tensors[name + ".weight"] = c.Tensor("BF16", shape, rng.randbytes(2 * shape[0] * shape[1]))
            linears.append(name)
        return c.Model(tensors, c.config_of("llama", "L", "BF16"), linears)

    def test_threads_and_memory(self):
        model = self.large_model()
        source = self.source(model, shards=2)
        for scheme, flags in (("w8a8", []), ("w4a16", ["--asymmetric", "--group-size", "64"]),
                              ("w8a16", ["--group-size", "-1"]), ("fp8-tensor", []), ("fp8-block", []), ("mxfp8", []),
                              ("mxfp4", []), ("nvfp4a16", [])):
            trees = {}
            for more in (["--threads", 1], ["--threads", 2], ["--threads", 8, "--max-memory", "64M"],
                         ["--max-memory", "64M", "--threads", 3], ["--max-memory", "1G", "--threads", 2]):
                out = self.path("out")
                self.assert_done(self.quantize(source, out, "--scheme", scheme, *flags, *more))
                trees[str(more)] = digest_tree(out)
                if len(trees) == 4:
                    self.check_rows(model, out, scheme, flags)
                shutil.rmtree(out)
            for more, tree in trees.items():
                self.assertEqual(tree, trees["['--threads', 1]"], f"{scheme} {more}")

    def check_rows(self, model, out, scheme, flags):
        """Some rows against the reference; all of them would take Python minutes."""
        made = reference.Scheme(scheme, int(flags[-1]) if flags else None, "--asymmetric" in flags)
        high = made.weights.get("block_structure", [1])[0]
        got = c.read_folder(out)
        for module in model.linears:
            weight = model.tensors[module + ".weight"]
            rows, columns = weight.shape
            kinds = set(array.array("H", weight.data))
            largest = max(c.bf16_value(bits & 0x7FFF) for bits in kinds if bits & 0x7F80 != 0x7F80)
            for row in {0, rows // 2, rows - 1}:
                first, last = row // high * high, min(rows, row // high * high + high)
                if (last - first) * columns > (2_000_000 if row and scheme in ("w8a8", "w4a16") else 200_000):
                    continue
                part = c.Tensor("BF16", [last - first, columns], weight.data[2 * first * columns:2 * last * columns])
                for name, tensor in reference.weight_tensors(module, part, made, None, largest).items():
                    if name.endswith(("zero_point", "weight_shape")):
                        continue
                    at = 0 if tensor.shape == [1] else first // high * len(tensor.data)
                    if high > 1 and name.endswith(".weight"):
                        at = first * columns
                    self.assertEqual(got[name].data[at:at + len(tensor.data)], tensor.data, f"{scheme} {name} {row}")

    def test_smoothed(self):
        model = c.llama(hidden=256, intermediate=700, layers=2)
        source, stats = self.source(model, shards=3), self.stats_file(c.make_stats(model))
        trees = []
        for more in (["--threads", 1], ["--threads", 3], ["--max-memory", "64M", "--threads", 2]):
            out = self.path("out")
            self.assert_done(self.quantize(source, out, "--scheme", "w8a8-static", "--smooth", "--stats", stats, *more))
            trees.append(digest_tree(out))
            os.rename(out, self.path(f"out{len(trees)}"))
        self.assertEqual(trees[0], trees[1])
        self.assertEqual(trees[0], trees[2])

    def test_instruction_sets(self):
        model = c.llama("F16", hidden=64, intermediate=96, layers=1)
        source, stats = self.source(model), self.stats_file(c.make_stats(model))
        for scheme in ("w8a8", "fp8", "mxfp8", "mxfp4", "nvfp4"):
            trees = []
            for isa in (None, "scalar"):
                out = self.path("out")
                self.assert_done(self.quantize(source, out, "--scheme", scheme, "--smooth", "--stats", stats,
                                               env={"KVANT_FORCE_ISA": isa}))
                trees.append(digest_tree(out))
                shutil.rmtree(out)
            self.assertEqual(trees[0], trees[1], scheme)


class RefusalTest(QuantizeTest):
    def refuse(self, source, *arguments, words=(), code=1, out="out"):
        ran = self.quantize(source, self.path(out), *arguments)
        self.assert_refused(ran, *words, code=code)
        self.assertFalse(os.path.exists(self.path(out)), ran)
        return ran

    def test_quantized_already(self):
        plain = c.llama(layers=1)
        rows, columns = plain.shape(plain.linears[0])
        module = plain.linears[0]
        gptq = {module + ".qweight": c.Tensor.of([0] * (rows * columns // 8), "I32", [columns // 8, rows]),
                module + ".qzeros": c.Tensor.of([0] * 4, "I32", [1, 4]),
                module + ".scales": c.Tensor.of([1.0] * rows, "F16", [1, rows])}
        codes = {module + ".weight": c.Tensor("I8", [rows, columns], bytes(rows * columns)),
                 module + ".weight_scale": c.Tensor.of([1.0] * rows, "F32", [rows, 1])}
        fp8 = {module + ".weight": c.Tensor("F8_E4M3", [rows, columns], bytes(rows * columns)),
               module + ".weight_scale_inv": c.Tensor.of([1.0], "F32", [1, 1])}
        packed = {module + ".weight_packed": c.Tensor.of([0] * (rows * columns // 8), "I32", [rows, columns // 8]),
                  module + ".weight_scale": c.Tensor.of([1.0] * rows, "F32", [rows, 1]),
                  module + ".weight_shape": c.Tensor.of([rows, columns], "I64")}
        for name, tensors, config, words in (
                ("config", {}, {"quantization_config": {"quant_method": "quip", "bits": 4}}, ["quip"]),
                ("gptq", gptq, {}, [("qweight", "qzeros", "scales")]), ("codes", codes, {}, [module]),
                ("fp8", fp8, {}, [module]), ("packed", packed, {}, [module])):
            model = c.llama(layers=1)
            if tensors:
                del model.tensors[module + ".weight"]
            model.tensors.update(tensors)
            model.config.update(config)
            with self.subTest(name):
                self.refuse(self.source(model, name), "--scheme", "w8a8", words=[self.path(name), "quantized", *words])

    def test_its_own_output(self):
        """Codes are read as the values that they stand for, in f32, and quantized like those."""
        for scheme in OF_EACH_FORMAT.values():
            with self.subTest(scheme):
                model = small_model(scheme)
                out, again = self.check(model, scheme, name=scheme, **options_of(scheme)), self.path(scheme + ".again")
                self.assert_done(self.quantize(out, again, "--scheme", "w8a8"))
                self.assert_done(run("verify", again))
                codes, made = c.read_folder(out), c.read_folder(again)
                self.assertFalse([name for name in made if name.endswith((".weight_packed", ".weight_global_scale"))])
                known = reference.Scheme(scheme, **options_of(scheme))
                for module in model.linears if known.grid and scheme != "fp8-block" else ():
                    rows = reference.decoded(module, codes, known)
                    weight = c.Tensor.of([x for row in rows for x in row], "F32", [len(rows), len(rows[0])])
                    want = reference.weight_tensors(module, weight, reference.Scheme("w8a8"), "BF16")
                    for name, tensor in want.items():
                        self.assertEqual(made[name].data, tensor.data, name)
                # Without its config.json nobody knows what the codes mean.
                os.remove(os.path.join(out, "config.json"))
                self.refuse(out, "--scheme", "w8a8", words=["quantized"])

    def test_conv1d(self):
        self.refuse(self.source(c.gpt2()), "--scheme", "w8a8", words=["Conv1D", "c_"])

    def test_statistics_that_are_needed(self):
        source = self.source(c.llama(layers=1))
        for flags in (["--scheme", "w8a8", "--smooth"], ["--scheme", "w8a8-static"], ["--scheme", "fp8-static"],
                      ["--scheme", "nvfp4"], ["--override", "re:.*o_proj=nvfp4"]):
            with self.subTest(flags):
                ran = self.quantize(source, self.path("out"), *flags)
                self.assertIn(ran.returncode, (1, 2), ran)
                self.assert_refused(ran, "--stats", code=ran.returncode)
                self.assertFalse(os.path.exists(self.path("out")))

    def test_asymmetric_static_needs_min_and_max(self):
        model = c.llama(layers=1)
        source = self.source(model)
        stats = self.stats_file(c.make_stats(model, min_max=False))
        self.refuse(source, "--scheme", "w8a8-static", "--asymmetric", "--stats", stats, words=[stats, ("min", "max")])

    def test_options_that_a_scheme_does_not_take(self):
        source = self.source(c.llama(layers=1))
        for scheme, flags, words in (
                ("fp8", ["--asymmetric"], ["fp8 has no asymmetric form that loaders accept; w8a8, w8a8-static, w8a16"]),
                ("mxfp4", ["--group-size", "32"], ["mxfp4 does not take a group size; w8a16, w4a16, w4a8 do"]),
                ("nvfp4a16", ["--group-size", "auto"], ["nvfp4a16 does not take a group size"]),
                ("w8a8", ["--group-size", "-1"], ["w8a8 does not take a group size"]),
                ("mxfp8", ["--scale-dtype", "f32"], ["mxfp8 stores its scales as e8m0"]),
                ("nvfp4a16", ["--scale-dtype", "bf16"], ["nvfp4a16 stores its scales as e4m3"]),
                ("w8a16", ["--group-size", "6"], ["6 must be a positive multiple of 4"]),
                ("w4a16", ["--group-size", "12"], ["12 must be a positive multiple of 8"]),
                ("w4a8", ["--group-size", "0"], ["group size 0 must be positive, or -1"])):
            with self.subTest(scheme, flags=flags):
                self.refuse(source, "--scheme", scheme, *flags, words=words, code=2)

    def test_statistics_that_do_not_fit(self):
        model = c.llama(layers=1)
        source = self.source(model)
        module = "model.layers.0.self_attn.o_proj"
        size = model.shape(module)[1]
        good = c.make_stats(model)

        def with_value(value):
            return c.Tensor.of([1.0] * (size - 1) + [value], "F32")

        for name, kind, tensor, words in (
                ("shorter", "absmax", c.Tensor.of([1.0] * (size - 1), "F32"), [str(size), str(size - 1)]),
                ("longer", "absmax", c.Tensor.of([1.0] * (size + 1), "F32"), [str(size), str(size + 1)]),
                ("empty", "absmax", c.Tensor.of([], "F32"), []), ("nan", "absmax", with_value(NAN), ["nan"]),
                ("infinite", "absmax", with_value(INFINITY), ["inf"]), ("negative", "absmax", with_value(-1.0), ["-1"]),
                ("two_dimensions", "absmax", c.Tensor.of([1.0] * size, "F32", [1, size]), []),
                ("other_dtype", "absmax", c.Tensor.of([1.0] * size, "BF16"), ["BF16"]), ("missing", "absmax", None, [])):
            stats = dict(good)
            if tensor is None:
                del stats[f"{module}.{kind}"]
            else:
                stats[f"{module}.{kind}"] = tensor
            with self.subTest(name):
                path = self.stats_file(stats, name + ".safetensors")
                self.refuse(source, "--scheme", "w8a8-static", "--stats", path, words=[path, f"{module}.{kind}", *words],
                            out=name)
        for name, low, high in (("above", with_value(2.0), with_value(1.5)), ("nan_min", with_value(NAN), with_value(1.5))):
            stats = {**good, module + ".min": low, module + ".max": high}
            with self.subTest(name):
                path = self.stats_file(stats, name + ".safetensors")
                self.refuse(source, "--scheme", "w8a8-static", "--asymmetric", "--stats", path,
                            words=[path, module + ".m"], out=name)

    def test_statistics_of_a_norm_that_is_folded(self):
        model = c.llama(layers=1)
        stats = {n: t for n, t in c.make_stats(model).items() if "self_attn.q_proj" not in n and
                 "self_attn.k_proj" not in n and "self_attn.v_proj" not in n}
        path = self.stats_file(stats)
        ran = self.quantize(self.source(model), self.path("out"), "--scheme", "w8a8", "--smooth", "--stats", path)
        if ran.returncode != 0:
            self.assert_refused(ran, "self_attn", "absmax")
        else:  # or left alone, and said
            self.assert_says(ran.stdout + ran.stderr, ["input_layernorm"], ran)

    def test_statistics_that_are_no_file(self):
        source = self.source(c.llama(layers=1))
        for name, path in (("missing", self.path("none.safetensors")), ("folder", self.folder),
                           ("text", self.put("text.safetensors", "hello, this is no safetensors file at all"))):
            with self.subTest(name):
                self.refuse(source, "--scheme", "w8a8-static", "--stats", path, words=[path])

    def test_input_that_is_missing(self):
        os.mkdir(self.path("empty"))
        for name in ("nowhere", "nowhere/deeper", "nowhere.safetensors", "empty"):
            with self.subTest(name):
                ran = run("quantize", self.path(name), "-o", self.path("out"), "--scheme", "w8a8")
                self.assert_refused(ran, self.path(name))
                self.assertFalse(os.path.exists(self.path("out")))

    def test_a_file_that_is_no_checkpoint(self):
        for name, data in (("pickle.bin", b"\x80\x02}q\x00." * 100), ("empty.safetensors", b""), ("short.safetensors", b"\0" * 7)):
            with self.subTest(name):
                ran = run("quantize", self.put(name, data), "-o", self.path("out"), "--scheme", "w8a8")
                self.assert_refused(ran, self.path(name))

    def test_group_sizes_that_are_none(self):
        source = self.source(c.llama(layers=1))
        for size in ("0", "-8", "1.5", "many", "99999999999999999999999"):
            with self.subTest(size):
                ran = self.quantize(source, self.path("out"), "--scheme", "w4a16", f"--group-size={size}")
                self.assertIn(ran.returncode, (1, 2), ran)
                self.assert_refused(ran, code=ran.returncode)
                self.assertFalse(os.path.exists(self.path("out")))

    def test_memory_that_is_too_little_or_no_size(self):
        source = self.source(c.llama(layers=1))
        for size in ("1K", "1M", "0", "-1G", "many", "1X", "99999999999999G"):
            with self.subTest(size):
                ran = self.quantize(source, self.path("out"), "--scheme", "w8a8", f"--max-memory={size}")
                self.assertIn(ran.returncode, (1, 2), ran)
                self.assert_refused(ran, "memory", code=ran.returncode)

    def test_permissions(self):
        if os.geteuid() == 0:
            self.skipTest("root may read and write everything")
        source = self.source(c.llama(layers=1))
        os.chmod(os.path.join(source, "model.safetensors"), 0)
        self.assert_refused(run("quantize", source, "-o", self.path("out"), "--scheme", "w8a8"), "model.safetensors", "permission")


class OutputTest(QuantizeTest):
    """An output that exists, or that is the input."""

    def test_existing_output(self):
        source = self.source(c.llama(layers=1))
        os.mkdir(self.path("out"))
        self.put("out/precious.txt", "mine")
        self.put("file", "mine")
        for name in ("out", "file"):
            with self.subTest(name):
                before = digest_tree(self.path(name))
                ran = self.quantize(source, self.path(name), "--scheme", "w8a8")
                self.assert_refused(ran, self.path(name), "exists")
                self.assertEqual(digest_tree(self.path(name)), before)

    def test_force_replaces_an_earlier_output(self):
        first, second = c.llama(seed=1, layers=1), c.llama(seed=2, layers=1)
        sources = self.source(first, "a", shards=3), self.source(second, "b")
        out = self.path("out")
        self.assert_done(self.quantize(sources[0], out, "--scheme", "w8a8"))
        before = digest_tree(out)
        self.assert_refused(self.quantize(sources[1], out, "--scheme", "w8a8"), out, "--force")
        self.assertEqual(digest_tree(out), before)
        self.assert_done(self.quantize(sources[1], out, "--scheme", "w8a8", "--force"))
        # Shards of the first run beside those of the second would be loaded with them.
        self.check_output(second, sources[1], out, "w8a8", reference.quantize(second, "w8a8")[0])

    def test_output_over_input(self):
        model = c.llama(layers=1)
        source = self.source(model)
        os.symlink(source, self.path("link"))
        os.mkdir(self.path("beside"))
        os.symlink("../in", self.path("beside", "relative"))
        names = [source, source + "/", source + "//", source + "/.", self.path("beside/../in"), self.path("link"),
                 self.path("link") + "/", self.path("beside/relative")]
        for out in names:
            for more in ([], ["--force"], ["--resume"], ["--force", "--resume"]):
                with self.subTest(out, more=more):
                    ran = self.quantize(source, out, "--scheme", "w8a8", *more)
                    self.assertIn(ran.returncode, (1, 2) if len(more) == 2 else (1,), ran)
                    self.assert_refused(ran, code=ran.returncode)
        for more in ([], ["--force"]):
            ran = self.quantize(self.path("link"), source, "--scheme", "w8a8", *more)
            self.assert_refused(ran)
        self.assertEqual(c.read_folder(source), model.tensors)

    def test_output_around_the_input(self):
        # --force must not clear a folder that has the input somewhere in it.
        model = c.llama(layers=1)
        os.mkdir(self.path("outer"))
        source = self.source(model, "outer/in")
        ran = self.quantize(source, self.path("outer"), "--scheme", "w8a8", "--force")
        self.assertIn(ran.returncode, (0, 1), ran)
        self.assertEqual(c.read_folder(source), model.tensors)

    def test_output_inside_the_input(self):
        model = c.llama(layers=1)
        source = self.source(model)
        before = digest_tree(source)
        ran = run("quantize", source, "-o", os.path.join(source, "q"), "--scheme", "w8a8")
        self.assertIn(ran.returncode, (0, 1), ran)
        after = digest_tree(source)
        self.assertEqual({n: d for n, d in after.items() if not n.startswith("q/")}, before)

    def test_output_files_that_are_links_to_the_input(self):
        model = c.llama(layers=1)
        for kind in ("hard", "symbolic"):
            source = self.source(model, kind)
            out = self.path(kind + ".out")
            os.mkdir(out)
            for name in os.listdir(source):
                (os.link if kind == "hard" else os.symlink)(os.path.join(source, name), os.path.join(out, name))
            contents = digest_tree(source)
            for more in ([], ["--force"]):
                with self.subTest(kind, more=more):
                    ran = run("quantize", source, "-o", out, "--scheme", "w8a8", *more)
                    self.assertIn(ran.returncode, (0, 1) if more else (1,), ran)
                    self.assertEqual(digest_tree(source), contents)
                    if ran.returncode == 0:  # the links are replaced, not followed
                        self.check_output(model, source, out, "w8a8", reference.quantize(model, "w8a8")[0])

    def test_one_file_over_itself(self):
        model = c.llama(layers=1)
        path = self.path("a.safetensors")
        c.write_safetensors(path, model.tensors)
        os.symlink(path, self.path("s.safetensors"))
        os.link(path, self.path("h.safetensors"))
        for out in (path, self.path("s.safetensors"), self.path("h.safetensors")):
            for more in ([], ["--force"]):
                with self.subTest(out, more=more):
                    ran = run("quantize", path, "-o", out, "--scheme", "w8a8", *more)
                    self.assert_refused(ran)
                    self.assertEqual(c.read_safetensors(path)[0], model.tensors)

    def test_a_file_in_place_of_the_output_folder(self):
        source = self.source(c.llama(layers=1))
        self.put("file", "mine")
        ran = self.quantize(source, self.path("file/out"), "--scheme", "w8a8")
        self.assert_refused(ran, self.path("file"))

    def test_partial_files_are_not_followed(self):
        # An attacker's link under a temporary name must not be written through.
        source = self.source(c.llama(layers=1))
        victim = self.put("victim", "precious")
        out = self.path("out")
        os.mkdir(out)
        for name in ("model.safetensors.partial", "config.json.partial"):
            os.symlink(victim, os.path.join(out, name))
        for more in ([], ["--force"], ["--resume"]):
            self.quantize(source, out, "--scheme", "w8a8", *more)
            with open(victim, encoding="utf-8") as file:
                self.assertEqual(file.read(), "precious")


if __name__ == "__main__":
    unittest.main()
