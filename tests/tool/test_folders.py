"""What a run may touch: never its input, by whatever name; of its output all that an earlier run left, and nothing else."""

import json
import os
import shutil
import unittest

import checkpoints as c
from tool import SANITIZED, ToolTest, digest_tree, load_json, run, snapshot


class FoldersTest(ToolTest):
    def setUp(self):
        super().setUp()
        self.model = c.llama("BF16", hidden=32, intermediate=64, layers=2)
        self.source = c.write_folder(self.path("in"), self.model, shards=2)
        self.stats = self.path("stats.safetensors")
        c.write_safetensors(self.stats, c.make_stats(self.model))
        self.out = self.path("out")

    def put(self, name, data):
        os.makedirs(os.path.dirname(self.path(name)), exist_ok=True)
        return super().put(name, data)

    def single(self, *names):
        path = self.path(*names)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        c.write_safetensors(path, self.model.tensors)
        return path

    def test_an_input_that_is_named_like_a_temporary_file(self):
        source = self.single("p", "m.safetensors.partial")
        before = snapshot(self.path("p"))
        for flag in ("--resume", "--force"):
            ran = run("quantize", source, "-o", self.path("p", "m.safetensors"), flag)
            self.assert_refused(ran, "m.safetensors.partial", "input")
        ran = run("quantize", source, "-o", self.path("p", "m.safetensors"))
        self.assert_refused(ran, "m.safetensors.partial")
        self.assert_untouched(self.path("p"), before)
        other = self.single("q", "model.safetensors.partial")
        before = snapshot(self.path("q"))
        self.assert_refused(run("quantize", other, "-o", self.path("q"), "--force"), "input")
        self.assert_untouched(self.path("q"), before)

    def test_a_manifest_that_names_the_input(self):
        source = self.single("out", "orig.safetensors")
        self.put("out/kvant/manifest.json", json.dumps({"outputs": ["orig.safetensors", "../in/config.json"]}).encode())
        before = snapshot(source)
        self.assert_refused(run("quantize", source, "-o", self.out, "--force"), "orig.safetensors", "input")
        self.assert_untouched(source, before)
        shutil.rmtree(self.out)
        self.assertTrue(os.path.exists(os.path.join(self.source, "config.json")))

    def test_a_manifest_that_names_other_folders(self):
        self.put("out/kvant/manifest.json", json.dumps({"outputs": ["../precious", "/tmp/x", "a/../../precious"]}).encode())
        self.put("precious", b"mine")
        self.assert_done(run("quantize", self.source, "-o", self.out, "--force"))
        self.assertTrue(os.path.exists(self.path("precious")))

    def test_an_output_in_the_input(self):
        before = snapshot(self.source)
        self.assert_refused(run("quantize", self.source, "-o", os.path.join(self.source, "sub", "w8a8")), "input")
        self.assert_untouched(self.source, before)

    def test_a_link_in_place_of_our_own_folder(self):
        os.makedirs(self.out)
        os.makedirs(self.path("elsewhere"))
        os.symlink(self.path("elsewhere"), os.path.join(self.out, "kvant"))
        for flags in ([], ["--force"], ["--resume"]):
            self.assert_refused(run("quantize", self.source, "-o", self.out, *flags), "kvant")
        self.assertEqual(os.listdir(self.path("elsewhere")), [])

    def test_a_finished_folder_that_lost_a_file_is_mended(self):
        self.assert_done(run("quantize", self.source, "-o", self.out))
        whole = digest_tree(self.out)
        shards = [n for n in os.listdir(self.out) if n.endswith(".safetensors")]
        for lost in [shards[0], "model.safetensors.index.json", "config.json"]:
            os.remove(os.path.join(self.out, lost))
            self.assert_done(run("quantize", self.source, "-o", self.out, "--resume"))
            self.assertEqual(digest_tree(self.out), whole, lost)
        with open(os.path.join(self.out, shards[0]), "r+b") as file:
            file.truncate(1000)
        self.assert_done(run("quantize", self.source, "-o", self.out, "--resume"))
        self.assertEqual(digest_tree(self.out), whole)

    def test_smoothing_vectors_that_were_cut(self):
        flags = ["--smooth", "--stats", self.stats]
        self.assert_done(run("quantize", self.source, "-o", self.out, *flags))
        vectors = os.path.join(self.out, "kvant", "smoothing.safetensors")
        tensors = c.read_safetensors(vectors)
        tensors = tensors[0] if isinstance(tensors, tuple) else tensors
        c.write_safetensors(vectors, {name: c.Tensor(t.dtype, [8], t.data[: 8 * 4]) for name, t in tensors.items()})
        for name in ("config.json", "model.safetensors.index.json", "model-00001-of-00002.safetensors"):
            os.remove(os.path.join(self.out, name))
        self.assert_refused(run("quantize", self.source, "-o", self.out, "--resume", *flags), "smoothing.safetensors", "--force")

    def test_force_takes_away_all_of_the_run_before(self):
        self.assert_done(run("quantize", self.source, "-o", self.out))
        self.put("out/model-00002-of-00002.safetensors.partial", b"left over")
        self.put("out/notes.txt", b"not ours")
        other = c.write_folder(self.path("other"), c.opt(), shards=1, other_files=False)
        self.assert_done(run("quantize", other, "-o", self.out, "--force"))
        self.assertEqual(sorted(os.listdir(self.out)), ["config.json", "kvant", "model.safetensors", "notes.txt"])
        os.remove(os.path.join(self.out, "notes.txt"))
        self.assert_done(run("verify", self.out))

    def test_files_that_are_not_the_models(self):
        self.put("in/config.json.partial", b"left over")
        self.put("in/consolidated.safetensors", b"other")
        os.makedirs(os.path.join(self.source, "original"))
        ran = run("quantize", self.source, "-o", self.out)
        self.assert_done(ran)
        for name in ("config.json.partial", "consolidated.safetensors", "original"):
            self.assertIn(name, ran.stderr)
            self.assertFalse(os.path.exists(os.path.join(self.out, name)))
        self.put("in/kvant", b"a file")
        self.assert_refused(run("quantize", self.source, "-o", self.path("out2")), "kvant")
        self.assertFalse(os.path.exists(self.path("out2")))

    def sentence_transformer(self):
        """As sentence-transformers saves one: modules in folders of their own."""
        dense = {"linear.weight": c.Tensor("F32", [4, 4], bytes(64)), "linear.bias": c.Tensor("F32", [4], bytes(16))}
        self.put("in/modules.json", '[{"idx": 0, "path": ""}, {"idx": 1, "path": "1_Pooling"}, {"idx": 2, "path": "2_Dense"}]')
        self.put("in/sentence_bert_config.json", "{}")
        self.put("in/1_Pooling/config.json", '{"pooling_mode_mean_tokens": true}')
        self.put("in/2_Dense/config.json", "{}")
        c.write_safetensors(self.path("in", "2_Dense", "model.safetensors"), dense)
        self.put("in/3_Dense/pytorch_model.bin", b"PK")
        self.put("in/3_Dense/deep/er/x.txt", b"x")
        return ["modules.json", "sentence_bert_config.json", "1_Pooling/config.json", "2_Dense/config.json",
                "2_Dense/model.safetensors", "3_Dense/pytorch_model.bin", "3_Dense/deep/er/x.txt"]

    def test_folders_of_sentence_transformers(self):
        names = self.sentence_transformer()
        before = snapshot(self.source)
        ran = self.assert_done(run("quantize", self.source, "-o", self.out, "--json"))
        self.assertNotIn("not copied", ran.stderr)
        self.assertEqual(json.loads(ran.stdout)["files_copied"], sorted([*names, *c.OTHER_FILES]))
        for name in names:
            self.assertEqual(digest_tree(os.path.join(self.out, name)), digest_tree(os.path.join(self.source, name)), name)
        self.assert_done(run("verify", self.out))
        self.assert_untouched(self.source, before)
        whole = digest_tree(self.out)
        for lost in ("2_Dense/model.safetensors", "1_Pooling/config.json"):
            os.remove(os.path.join(self.out, lost))
            self.assert_refused(run("verify", self.out), lost, "missing", stdout_too=True)
            shutil.rmtree(os.path.join(self.out, "1_Pooling"))
            self.assert_done(run("quantize", self.source, "-o", self.out, "--resume"))
            self.assertEqual(digest_tree(self.out), whole, lost)
        self.put("out/2_Dense/config.json.partial", b"left over")
        self.assert_refused(run("verify", self.out), "2_Dense/config.json.partial", stdout_too=True)

    def test_force_takes_away_the_folders_of_the_run_before(self):
        self.sentence_transformer()
        self.assert_done(run("quantize", self.source, "-o", self.out))
        self.put("out/2_Dense/mine.txt", b"not ours")
        other = c.write_folder(self.path("other"), c.opt(), shards=1, other_files=False)
        self.assert_done(run("quantize", other, "-o", self.out, "--force"))
        self.assertEqual(sorted(name for name in digest_tree(self.out) if not name.startswith("kvant")),
                         ["2_Dense/", "2_Dense/mine.txt", "config.json", "model.safetensors"])

    def test_folders_below_that_are_not_the_models(self):
        self.put("in/.cache/huggingface/x.metadata", b"x")
        self.put("in/onnx/model.onnx", b"x")
        self.put("in/onnx/README.md", b"x")
        self.put("in/big/large.bin", b"")
        os.truncate(self.path("in", "big", "large.bin"), (128 << 20) + 1)
        self.put("elsewhere/secret", b"x")
        os.symlink(self.path("elsewhere"), self.path("in", "linked"))
        os.symlink(self.path("elsewhere", "secret"), self.path("in", "onnx", "linked.txt"))
        os.symlink(self.path("elsewhere"), self.path("in", "onnx", "linked"))
        os.makedirs(self.path("in", "many"))
        for i in range(1001):
            self.put(f"in/many/{i}", b"")
        ran = self.assert_done(run("quantize", self.source, "-o", self.out))
        (warning,) = [line for line in ran.stderr.splitlines() if "not copied" in line]
        self.assertEqual(warning.split(": ")[-1].split(", "), [".cache", "big", "linked", "many", "onnx/linked", "onnx/model.onnx"])
        self.assertEqual(sorted(name for name in digest_tree(self.out) if "/" in name and not name.startswith("kvant")),
                         ["onnx/", "onnx/README.md", "onnx/linked.txt"])
        with open(os.path.join(self.out, "onnx", "linked.txt"), "rb") as file:
            self.assertEqual(file.read(), b"x")

    def test_a_link_in_place_of_a_folder_below(self):
        self.sentence_transformer()
        os.makedirs(self.out)
        self.put("elsewhere/config.json", b"mine")
        os.symlink(self.path("elsewhere"), os.path.join(self.out, "1_Pooling"))
        for flags in ([], ["--force"], ["--resume"]):
            self.assert_refused(run("quantize", self.source, "-o", self.out, *flags), "1_Pooling", "must be a folder")
        # Nor does a manifest that names what is behind the link lead there.
        self.put("out/kvant/manifest.json", json.dumps({"outputs": ["1_Pooling/config.json", "a/../../elsewhere/config.json"]}))
        shutil.rmtree(os.path.join(self.source, "1_Pooling"))
        self.assert_done(run("quantize", self.source, "-o", self.out, "--force"))
        with open(self.path("elsewhere", "config.json"), "rb") as file:
            self.assertEqual(file.read(), b"mine")

    def test_long_patterns_that_differ_in_the_middle(self):
        names = ["model.layers.0.mlp.down_proj", "model.layers.1.mlp.down_proj"]
        patterns = ["re:" + "(?:xxxx|" * 40 + name.replace(".", r"\.") + ")" * 40 for name in names]
        self.assert_done(run("quantize", self.source, "-o", self.out, "--ignore", patterns[0]))
        self.assert_refused(run("quantize", self.source, "-o", self.out, "--resume", "--ignore", patterns[1]), "ignore")

    def test_patterns_that_overlap(self):
        ran = run("quantize", self.source, "-o", self.out, "--ignore", r"re:model\.layers\.0\..*", "--ignore",
                  r"re:model\.layers\.0\.mlp.*")
        self.assert_done(ran)
        ignored = load_json(os.path.join(self.out, "config.json"))["quantization_config"]["ignore"]
        self.assertEqual(len(ignored), 8)  # seven of layer 0, and lm_head

    def test_an_expression_includes_the_linears_among_its_modules(self):
        ran = run("quantize", self.source, "-o", self.out, "--ignore", "re:.*", "--include", r"re:model\.layers\.0\..*")
        self.assert_done(ran)
        self.assertIn("7 layers", ran.stdout)
        self.assert_refused(run("quantize", self.source, "-o", self.path("o2"), "--include", "model.norm"), "model.norm")

    def test_layers_that_loaders_join(self):
        for first, second in (("query", "key"), ("wq", "wv"), ("w1", "w3"), ("gate_proj", "up_proj")):
            tensors = {"m.%s.weight" % n: c.Tensor("F32", [8, 8], bytes(4 * 64)) for n in (first, second)}
            source = self.path(first + ".safetensors")
            c.write_safetensors(source, tensors)
            ran = run("quantize", source, "-o", self.path(first + "_out"), "--ignore", "m." + second)
            self.assert_refused(ran, "m." + first, "m." + second)

    def test_facts_of_a_nested_language_model(self):
        model = c.opt()
        model.config["text_config"] = {"model_type": "opt", "do_layer_norm_before": False}
        model.config["model_type"] = "blip-2"
        source = c.write_folder(self.path("blip"), model)
        c.write_safetensors(self.path("opt_stats.safetensors"), c.make_stats(model))
        ran = run("quantize", source, "-o", self.out, "--smooth", "--stats", self.path("opt_stats.safetensors"))
        self.assert_refused(ran, "do_layer_norm_before")

    def test_dry_run_says_what_the_run_would(self):
        os.makedirs(self.out)
        self.put("out/x", b"1")
        ran = run("quantize", self.source, "-o", self.out, "--dry-run")
        self.assert_done(ran)
        self.assertIn("would be refused", ran.stdout)


@unittest.skipIf(SANITIZED, "a sanitizer needs memory of its own")
class BudgetTest(ToolTest):
    def test_statistics_count(self):
        columns = 60_000_000
        source = self.path("in.safetensors")
        c.write_sparse_safetensors(source, {"m.weight": ("BF16", [1, columns])})
        stats = self.path("stats.safetensors")
        c.write_sparse_safetensors(stats, {"m.absmax": ("F32", [columns])})
        ran = run("quantize", source, "-o", self.path("out"), "--scheme", "w8a8-static", "--stats", stats, "--max-memory", "128M")
        self.assert_refused(ran, "--max-memory")
        self.assertLess(ran.peak, 128 << 20)

    def test_rows_of_one_weight(self):
        source = self.path("in.safetensors")
        c.write_sparse_safetensors(source, {"m.weight": ("BF16", [4_000_000, 1])})
        dry = json.loads(run("quantize", source, "-o", self.path("out"), "--threads", "8", "--dry-run", "--json").stdout)
        ran = run("quantize", source, "-o", self.path("out"), "--threads", "8")
        self.assert_done(ran)
        self.assertLess(ran.peak, dry["expected_memory"])


if __name__ == "__main__":
    unittest.main()
