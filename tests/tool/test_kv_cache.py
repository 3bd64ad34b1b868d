"""--kv-fp8: scales of FP8 keys and values, where they come from, who checks them, and what is refused."""

import json
import os
import unittest

import checkpoints as c
import reference
from tool import ToolTest, digest_tree, load_json, run

LAYERS = 2
ATTENTIONS = [f"model.layers.{i}.self_attn" for i in range(LAYERS)]
SCALES = [f"{attention}.{half}_scale" for attention in ATTENTIONS for half in "kv"]
# One scheme of each layout.
SCHEMES = ("w8a8", "w4a16", "fp8", "mxfp8", "mxfp4", "nvfp4a16", "w8a8-static")


def small(dtype="BF16", **more):
    made = c.llama(dtype, hidden=64, intermediate=64, layers=LAYERS, **more)
    made.config.update(num_attention_heads=4, num_key_value_heads=2, intermediate_size=64, vocab_size=40, hidden_act="silu",
                       max_position_embeddings=64)
    return made


def cache_stats(channels=32):
    """Of keys and values: the largest of each channel."""
    largest = {"k": 7.3, "v": 0.011}
    return {f"{attention}.{half}.absmax": c.Tensor.of([largest[half] * (1 + i % 5) / 5 for i in range(channels)], "F32")
            for attention in ATTENTIONS for half in "kv"}


class KvCacheTest(ToolTest):
    def setUp(self):
        super().setUp()
        self.model = small()
        self.source = c.write_folder(self.path("in"), self.model, shards=3)
        self.stats = {**c.make_stats(self.model), **cache_stats()}

    def stats_file(self, stats=None, name="stats.safetensors"):
        if stats is not None or not os.path.exists(self.path(name)):
            c.write_safetensors(self.path(name), self.stats if stats is None else stats)
        return self.path(name)

    def quantize(self, out="out", *arguments, stats=None, source=None):
        return run("quantize", source or self.source, "-o", self.path(out), "--kv-fp8", "--stats", self.stats_file(stats),
                   *arguments)


class ScalesTest(KvCacheTest):
    def test_with_every_layout(self):
        for scheme in SCHEMES:
            with self.subTest(scheme):
                flags = ["--scheme", scheme] + (["--group-size", "32"] if scheme == "w4a16" else [])
                ran = self.assert_done(self.quantize(scheme, *flags))
                self.assert_says(ran.stdout, ["FP8 keys and values, 4 new scales"], ran)
                got = c.read_folder(self.path(scheme))
                want = reference.cache_tensors(ATTENTIONS, self.stats, "BF16")
                self.assert_same_tensors({name: got[name] for name in SCALES}, want, scheme)
                config = load_json(self.path(scheme, "config.json"))["quantization_config"]
                self.assertEqual(config["kv_cache_scheme"], reference.CACHED)
                self.assert_done(run("verify", self.path(scheme)))
                # Without the option all else has the same bytes.
                more = ["--stats", self.stats_file()] if scheme == "w8a8-static" else []
                self.assert_done(run("quantize", self.source, "-o", self.path(scheme + "-plain"), *flags, *more))
                plain = c.read_folder(self.path(scheme + "-plain"))
                self.assert_same_tensors({n: t for n, t in got.items() if n not in SCALES}, plain, scheme)

    def test_they_lie_beside_the_keys(self):
        self.assert_done(self.quantize())
        index = load_json(self.path("out", c.INDEX_NAME))
        for name in SCALES:
            self.assertEqual(index["weight_map"][name], index["weight_map"][name.rsplit(".", 1)[0] + ".k_proj.weight"])
        self.assertEqual(index["metadata"]["total_size"], sum(len(t.data) for t in c.read_folder(self.path("out")).values()))

    def test_dtypes_of_scales(self):
        for dtype, flags in (("F32", ["--scale-dtype", "f32"]), ("F16", ["--scale-dtype", "f16"]), ("BF16", [])):
            self.assert_done(self.quantize("of" + dtype, *flags))
            got = c.read_folder(self.path("of" + dtype))
            self.assert_same_tensors({name: got[name] for name in SCALES},
                                     reference.cache_tensors(ATTENTIONS, self.stats, dtype), dtype)

    def test_smoothing_does_not_change_them(self):
        self.assert_done(self.quantize("out", "--smooth"))
        got = c.read_folder(self.path("out"))
        self.assert_same_tensors({name: got[name] for name in SCALES},
                                 reference.cache_tensors(ATTENTIONS, self.stats, "BF16"))

    def test_layers_that_are_ignored_have_them_too(self):
        self.assert_done(self.quantize("out", "--ignore", "re:.*layers[.]0[.].*"))
        self.assertLessEqual(set(SCALES), set(c.read_folder(self.path("out"))))

    def test_keys_that_are_all_zero(self):
        zeros = {**self.stats, ATTENTIONS[0] + ".k.absmax": c.Tensor.of([0.0] * 32, "F32")}
        self.assert_done(self.quantize(stats=zeros))
        self.assertEqual(c.read_folder(self.path("out"))[ATTENTIONS[0] + ".k_scale"].values(), [1.0])

    def test_threads_and_memory_do_not_matter(self):
        digests = set()
        for i, flags in enumerate((["--threads", "1"], ["--threads", "3"], ["--max-memory", "64m"])):
            self.assert_done(self.quantize(f"out{i}", *flags))
            digest = digest_tree(self.path(f"out{i}"))
            digests.add(tuple(sorted((k, v) for k, v in digest.items() if "kvant" not in k)))
        self.assertEqual(len(digests), 1)

    def test_the_plan_shows_them(self):
        ran = self.assert_done(run("quantize", self.source, "--kv-fp8", "--stats", self.stats_file(), "--dry-run", "--json"))
        plan = json.loads(ran.stdout)
        self.assertTrue(plan["fp8_kv_cache"])
        added = {t["name"]: t for t in plan["tensors"] if t["action"] == "add"}
        self.assertEqual(sorted(added), sorted(SCALES))
        self.assertIn("--kv-fp8, by 'model.layers.0.self_attn.k.absmax'", added[SCALES[0]]["reason"])

    def test_a_resumed_run_needs_the_same_option(self):
        self.assert_done(self.quantize())
        before = digest_tree(self.path("out"))
        self.assert_done(self.quantize("out", "--resume"))
        self.assertEqual(digest_tree(self.path("out")), before)
        self.assert_refused(run("quantize", self.source, "-o", self.path("out"), "--resume"), "kv_fp8 was true and is now false")


class InputScalesTest(KvCacheTest):
    """Checkpoints that have scales of keys and values already."""

    def setUp(self):
        super().setUp()
        self.assert_done(self.quantize("first", "--scale-dtype", "f32"))
        self.first = c.read_folder(self.path("first"))

    def test_they_are_copied(self):
        self.assert_done(run("quantize", self.path("first"), "-o", self.path("out"), "--scheme", "fp8"))
        got = c.read_folder(self.path("out"))
        self.assert_same_tensors({n: got[n] for n in SCALES}, {n: self.first[n] for n in SCALES})
        self.assertEqual(load_json(self.path("out", "config.json"))["quantization_config"]["kv_cache_scheme"],
                         reference.CACHED)
        self.assert_done(run("verify", self.path("out")))

    def test_they_are_replaced(self):
        stats = {name: c.Tensor.of([2 * v for v in t.values()], "F32") for name, t in self.stats.items()}
        ran = self.assert_done(self.quantize("out", "--scheme", "fp8", stats=stats, source=self.path("first")))
        self.assertIn("4 scales of keys and values that the input has are replaced", ran.stderr)
        got = c.read_folder(self.path("out"))
        self.assert_same_tensors({n: got[n] for n in SCALES}, reference.cache_tensors(ATTENTIONS, stats, "BF16"))

    def test_values_have_no_place_for_them(self):
        for to in ("bf16", "f32"):
            ran = self.assert_done(run("convert", self.path("first"), "-o", self.path(to), "--to", to))
            self.assertIn("4 scales of FP8 keys and values are left out", ran.stderr)
            self.assertEqual(sorted(c.read_folder(self.path(to))), sorted(self.model.tensors))
            self.assert_done(run("verify", self.path(to)))


class RefusalTest(KvCacheTest):
    def test_without_statistics(self):
        self.assert_refused(run("quantize", self.source, "-o", self.path("out"), "--kv-fp8"),
                            "--kv-fp8 needs activation statistics; give them with --stats FILE", code=2)

    def test_statistics_without_keys(self):
        self.assert_refused(self.quantize(stats=c.make_stats(self.model)), "has nothing of keys and values",
                            ATTENTIONS[0] + ".k.absmax", "kvant calibrate")

    def test_statistics_that_lack_a_layer(self):
        for name in (ATTENTIONS[1] + ".k.absmax", ATTENTIONS[0] + ".v.absmax"):
            self.assert_refused(self.quantize(stats={n: t for n, t in self.stats.items() if n != name}), f"has no '{name}'")

    def test_statistics_of_another_width(self):
        stats = {**self.stats, ATTENTIONS[1] + ".v.absmax": c.Tensor.of([1.0] * 16, "F32")}
        self.assert_refused(self.quantize(stats=stats), "has 16 values", "has 32 rows")

    def test_statistics_that_are_no_magnitudes(self):
        for bad in (float("nan"), float("inf"), -1.0):
            stats = {**self.stats, ATTENTIONS[1] + ".v.absmax": c.Tensor.of([1.0] * 31 + [bad], "F32")}
            self.assert_refused(self.quantize(stats=stats), ATTENTIONS[1] + ".v.absmax", "channel 31")

    def test_models_whose_loaders_read_none(self):
        opt = c.opt()
        source = c.write_folder(self.path("opt"), opt)
        self.assert_refused(self.quantize(source=source, stats=c.make_stats(opt)), "--kv-fp8", "model_type 'opt'")

    def test_nothing_is_written(self):
        self.quantize(stats=c.make_stats(self.model))
        self.assertFalse(os.path.exists(self.path("out")))


class VerifyTest(KvCacheTest):
    """Folders without checksums, so that what is wrong is found by what it means."""

    def setUp(self):
        super().setUp()
        self.source = c.write_folder(self.path("one"), self.model)
        self.assert_done(self.quantize())
        os.remove(self.path("out", "kvant", "checksums.json"))
        self.file = self.path("out", "model.safetensors")
        self.tensors = c.read_safetensors(self.file)[0]

    def verify_with(self, changes):
        tensors = {n: t for n, t in {**self.tensors, **changes}.items() if t is not None}
        c.write_safetensors(self.file, tensors, {"format": "pt"})
        return run("verify", self.path("out"))

    def test_all_are_there(self):
        self.assertIn("scales of keys and values of 2 attention layers", self.assert_done(self.verify_with({})).stdout)

    def test_one_that_is_missing(self):
        for name in SCALES:
            self.assert_refused(self.verify_with({name: None}), f"there is no tensor '{name}'", stdout_too=True)

    def test_one_that_is_no_scale(self):
        for bad in (0.0, -1.0, float("inf"), float("nan")):
            self.assert_refused(self.verify_with({SCALES[1]: c.Tensor.of([bad], "BF16")}), SCALES[1], stdout_too=True)
        self.assert_refused(self.verify_with({SCALES[1]: c.Tensor.of([1.0, 1.0], "BF16")}), SCALES[1], "[2]", stdout_too=True)
        self.assert_refused(self.verify_with({SCALES[1]: c.Tensor.of([1], "I8")}), SCALES[1], "I8", stdout_too=True)

    def test_a_config_that_does_not_speak_of_them(self):
        config = load_json(self.path("out", "config.json"))
        config["quantization_config"]["kv_cache_scheme"] = None
        with open(self.path("out", "config.json"), "w", encoding="utf-8") as file:
            json.dump(config, file)
        self.assert_refused(run("verify", self.path("out")), SCALES[0], "does not speak of", stdout_too=True)


if __name__ == "__main__":
    unittest.main()
