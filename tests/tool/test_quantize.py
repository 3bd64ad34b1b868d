"""kvant quantize against the plain statement of its arithmetic, tensor by tensor, and what it refuses."""

import json
import math
import os
import random
import re
import unittest

import checkpoints as c
import reference
from tool import ToolTest, digest_tree, load_json, run, snapshot

INFINITY, NAN = math.inf, math.nan


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
            flags += ["--group-size", scheme_more["group_size"]]
        if scheme_more.get("asymmetric"):
            flags += ["--asymmetric"]
        self.assert_done(self.quantize(source, out, *flags, *arguments))
        excluded = [] if quantized is None else [m for m in model.linears if m not in quantized]
        want, s_of_norm = reference.quantize(model, scheme, stats, smooth, alpha, scale_dtype=scale_dtype,
                                             unquantized=excluded, **scheme_more)
        if scheme == "w4a16" and quantized is None:
            size = scheme_more.get("group_size", 128)
            quantized = [m for m in model.linears if model.shape(m)[1] % size == 0]
        self.check_output(model, source, out, scheme, want, quantized, **scheme_more)
        if smooth:
            vectors = c.read_safetensors(os.path.join(out, "kvant", "smoothing.safetensors"))[0]
            self.assertEqual(sorted((t.dtype, t.data) for t in vectors.values()),
                             sorted(("F32", c.encode(s, "F32")) for s in s_of_norm.values()))
        return out


class SchemeTest(QuantizeTest):
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

    def model(self, dtype):
        make = c.Maker(dtype, 1)
        rows = self.rows(dtype)
        make.tensors["model.layers.0.mlp.up_proj.weight"] = c.Tensor.of([x for row in rows for x in row], dtype,
                                                                        [len(rows), 16])
        make.linears.append("model.layers.0.mlp.up_proj")
        # Random bits: every kind of number there is.
        bits = random.Random(3).randbytes(40 * 48 * c.WIDTHS[dtype])
        make.tensors["model.layers.0.mlp.down_proj.weight"] = c.Tensor(dtype, [40, 48], bits)
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
            for asymmetric in (False, True):
                with self.subTest(dtype, asymmetric=asymmetric):
                    model = c.llama(dtype, layers=1)
                    self.check(model, "w8a8-static", stats=c.make_stats(model), smooth=True, asymmetric=asymmetric,
                               name=f"{dtype}{asymmetric}")

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
        model = c.mixtral()
        kept = [m for m in model.linears if ".experts.1." not in m]
        self.check(model, "w8a8", "--ignore", r"re:.*\.experts\.1\..*", stats=c.make_stats(model), smooth=True, quantized=kept)

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
                            ("model.layers.0.mlp.gate_proj", [2, 1_500_032])):
            tensors[name + ".weight"] = c.Tensor("BF16", shape, rng.randbytes(2 * shape[0] * shape[1]))
            linears.append(name)
        return c.Model(tensors, c.config_of("llama", "L", "BF16"), linears)

    def test_threads_and_memory(self):
        model = self.large_model()
        source = self.source(model, shards=2)
        for scheme, flags in (("w8a8", []), ("w4a16", ["--asymmetric", "--group-size", "64"])):
            trees = {}
            for more in (["--threads", 1], ["--threads", 2], ["--threads", 3], ["--max-memory", "64M"],
                         ["--max-memory", "64M", "--threads", 3], ["--max-memory", "1G", "--threads", 2], []):
                out = self.path("out")
                self.assert_done(self.quantize(source, out, "--scheme", scheme, *flags, *more))
                trees[str(more)] = digest_tree(out)
                if len(trees) == 4:
                    self.check_rows(model, out, scheme)
                os.rename(out, self.path(f"{scheme}{len(trees)}"))
            for more, tree in trees.items():
                self.assertEqual(tree, trees["[]"], f"{scheme} {more}")

    def check_rows(self, model, out, scheme):
        """Some rows against the reference; all of them would take Python minutes."""
        got = c.read_folder(out)
        for module in model.linears:
            weight = model.tensors[module + ".weight"]
            rows, columns = weight.shape
            for row in {0, 1, rows // 2, rows - 2, rows - 1} if columns < 10 ** 6 else {rows - 1}:
                one = c.Tensor("BF16", [1, columns], weight.data[2 * row * columns:2 * (row + 1) * columns])
                if scheme == "w8a8":
                    want = reference.w8_tensors(module, one)
                else:
                    want = reference.w4_tensors(module, one, 64, True)
                    want.pop(module + ".weight_zero_point")
                    want.pop(module + ".weight_shape")
                for name, tensor in want.items():
                    size = len(tensor.data)
                    self.assertEqual(got[name].data[row * size:(row + 1) * size], tensor.data, f"row {row} of {name}")

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
        model = c.llama("F16", hidden=64, layers=1)
        source, stats = self.source(model), self.stats_file(c.make_stats(model))
        trees = []
        for isa in (None, "scalar"):
            out = self.path("out")
            self.assert_done(self.quantize(source, out, "--scheme", "w8a8", "--smooth", "--stats", stats,
                                           env={"KVANT_FORCE_ISA": isa}))
            trees.append(digest_tree(out))
            os.rename(out, self.path(f"out{len(trees)}"))
        self.assertEqual(trees[0], trees[1])


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
                ("config", {}, {"quantization_config": {"quant_method": "gptq", "bits": 4}}, ["quantiz"]),
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
        model = c.llama(layers=1)
        for scheme, flags in (("w8a8", []), ("w4a16", ["--group-size", "16"])):
            with self.subTest(scheme):
                out = self.check(model, scheme, name=scheme, **({"group_size": 16} if flags else {}))
                self.refuse(out, "--scheme", "w8a8", words=["quantized"])
                os.remove(os.path.join(out, "config.json"))  # the tensors say it too
                self.refuse(out, "--scheme", "w8a8", words=["quantized"])

    def test_conv1d(self):
        self.refuse(self.source(c.gpt2()), "--scheme", "w8a8", words=["Conv1D", "c_"])

    def test_statistics_that_are_needed(self):
        source = self.source(c.llama(layers=1))
        for flags in (["--scheme", "w8a8", "--smooth"], ["--scheme", "w8a8-static"]):
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

    def test_asymmetric_w8a8(self):
        source = self.source(c.llama(layers=1))
        ran = self.quantize(source, self.path("out"), "--scheme", "w8a8", "--asymmetric")
        self.assertIn(ran.returncode, (1, 2), ran)
        self.assert_refused(ran, "asymmetric", code=ran.returncode)

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
