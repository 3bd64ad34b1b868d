"""kvant convert and kvant inspect on GGUF files: every value and every file, what may be overwritten, what is refused."""

import json
import os
import struct
import unittest

import checkpoints as c
import gguf
from tool import SANITIZED, ToolTest, digest_tree, load_json, run, snapshot


class ConvertTest(ToolTest):
    def setUp(self):
        super().setUp()
        self.metadata, self.tensors, self.values = gguf.llama()
        self.source = self.put("model.gguf", gguf.to_file(self.metadata, self.tensors))
        self.out = self.path("out")

    def rewrite(self, name="model.gguf"):
        return self.put(name, gguf.to_file(self.metadata, self.tensors))

    def convert(self, *flags):
        return self.assert_done(run("convert", self.source, "-o", self.out, *flags))

    def assert_values(self, dtype):
        tensors, metadata = c.read_safetensors(os.path.join(self.out, "model.safetensors"))
        self.assertEqual(metadata, {"format": "pt"})
        want = {name: c.Tensor.of(values, dtype, shape) for name, (shape, values) in self.values.items()}
        self.assert_same_tensors(tensors, want, dtype)

    def test_every_value(self):
        for dtype in ("f32", "f16", "bf16"):
            with self.subTest(dtype):
                before = snapshot(self.source)
                self.convert("--to", dtype, *(["--force"] if dtype != "f32" else []))
                self.assert_values(dtype.upper())
                self.assertEqual(load_json(os.path.join(self.out, "config.json"))["torch_dtype"], c.TORCH_NAMES[dtype.upper()])
                self.assert_untouched(self.source, before)

    def test_the_folder(self):
        ran = self.convert()
        self.assertEqual(sorted(os.listdir(self.out)),
                         ["config.json", "kvant", "model.safetensors", "tokenizer.json", "tokenizer_config.json"])
        config = load_json(os.path.join(self.out, "config.json"))
        self.assertEqual(config["architectures"], ["LlamaForCausalLM"])
        self.assertEqual((config["hidden_size"], config["num_key_value_heads"], config["head_dim"], config["vocab_size"]), (64, 2, 16, 40))
        self.assertEqual(config["rms_norm_eps"], 1e-05)
        tokenizer = load_json(os.path.join(self.out, "tokenizer.json"))
        self.assertEqual(tokenizer["model"]["vocab"], {token: i for i, token in enumerate(gguf.TOKENS)})
        self.assertEqual(load_json(os.path.join(self.out, "tokenizer_config.json"))["eos_token"], "<|end|>")
        self.assert_says(ran.stdout, ["llama", "21 tensors", "f32", "all as they were", "kvant quantize"], ran)

    def test_the_same_bytes_for_any_number_of_threads(self):
        self.convert("--threads", "1")
        one = digest_tree(self.out)
        self.convert("--threads", "3", "--force")
        self.assertEqual(digest_tree(self.out), one)

    def test_it_can_be_quantized(self):
        self.convert()
        ran = self.assert_done(run("quantize", self.out, "-o", self.path("w8a8")))
        self.assertNotIn("not copied", ran.stderr)
        self.assertTrue(os.path.exists(self.path("w8a8", "tokenizer.json")))
        self.assert_done(run("verify", self.path("w8a8")))
        self.assert_done(run("verify", self.out))

    def test_json_and_rounding(self):
        ran = self.convert("--json")
        document = json.loads(ran.stdout)
        self.assertEqual((document["to"], document["model_type"], document["tensors"], document["rounded"]), ("f32", "llama", 21, 0))
        self.assertEqual(document["bytes_read"], sum(len(data) for _, _, data in self.tensors.values()))
        self.assertEqual(document["warnings"], [])
        document = json.loads(self.convert("--json", "--force", "--to", "bf16").stdout)
        want = sum(c.round_to(x, "BF16") != x for _, values in self.values.values() for x in values)
        self.assertEqual(document["rounded"], want)
        self.assertGreater(want, 0)
        self.assertEqual(self.assert_done(run("convert", self.source, "-o", self.path("q"), "-q")).stdout, "")

    def test_a_value_beyond_f16(self):
        kind, shape, data = self.tensors["output_norm.weight"]
        self.tensors["output_norm.weight"] = (kind, shape, struct.pack("<f", 70000.0) + data[4:])
        self.rewrite()
        self.assert_refused(run("convert", self.source, "-o", self.out, "--to", "f16"), "model.norm.weight", "70000", "F16")
        self.assertFalse(os.path.exists(os.path.join(self.out, "config.json")))
        self.assert_refused(run("convert", self.source, "-o", self.out, "--to", "bf16"), "unfinished", "--force")
        self.convert("--to", "bf16", "--force")

    def test_a_tokenizer_that_cannot_be_said(self):
        self.metadata["tokenizer.ggml.pre"] = (gguf.STRING, "tekken")
        self.rewrite()
        ran = self.convert()
        self.assert_says(ran.stderr, ["warning", "tokenizer.json", "tekken"], ran)
        self.assertFalse(os.path.exists(os.path.join(self.out, "tokenizer.json")))
        self.assert_values("F32")

    def test_tied_embeddings(self):
        self.metadata, self.tensors, self.values = gguf.llama(tied=True)
        self.rewrite()
        self.convert()
        self.assert_values("F32")
        self.assertIs(load_json(os.path.join(self.out, "config.json"))["tie_word_embeddings"], True)

    def test_an_output_that_is_there(self):
        os.makedirs(self.out)
        self.put("out/mine", b"precious")
        self.assert_refused(run("convert", self.source, "-o", self.out), "out", "not empty", "--force")
        self.assertEqual(os.listdir(self.out), ["mine"])
        self.convert("--force")
        self.assertTrue(os.path.exists(self.path("out", "mine")))
        self.assert_refused(run("convert", self.source, "-o", self.out), "finished", "--force")
        self.assert_refused(run("convert", self.source, "-o", self.source), "model.gguf", "not a folder")
        self.assertEqual(run("convert", self.source, "-o", self.out, "--force", "--resume").returncode, 2)
        whole = digest_tree(self.out)
        self.convert("--resume")
        self.assertEqual(digest_tree(self.out), whole)
        os.remove(os.path.join(self.out, "config.json"))
        ran = self.convert("--resume")
        self.assert_says(ran.stdout, ["1 kept"], ran)
        self.assertEqual(digest_tree(self.out), whole)
        self.assert_refused(run("convert", self.source, "-o", self.out, "--resume", "--to", "f16"), "dtype", "resume")

    def test_the_input_under_the_name_of_an_output(self):
        os.makedirs(self.out)
        inside = self.path("out", "model.safetensors")
        os.rename(self.source, inside)
        before = snapshot(self.out)
        self.assert_refused(run("convert", inside, "-o", self.out, "--force"), "model.safetensors", "input")
        self.assert_untouched(self.out, before)

    def test_refusals(self):
        self.assert_refused(run("convert", self.path("none.gguf"), "-o", self.out), "none.gguf")
        self.assert_refused(run("convert", self.folder, "-o", self.out), "--to", code=2)
        c.write_safetensors(self.path("m.safetensors"), {"a": c.Tensor.of([1.0], "F32")})
        self.assert_refused(run("convert", self.path("m.safetensors"), "-o", self.out, "--to", "f32"), "m.safetensors", "not quantized")
        whole = gguf.to_file(self.metadata, self.tensors)
        for size in (0, 3, 4, 20, 24, 100, len(whole) - 1):
            self.put("cut.gguf", whole[:size])
            self.assert_refused(run("convert", self.path("cut.gguf"), "-o", self.out), "cut.gguf")
        self.metadata["general.architecture"] = (gguf.STRING, "gpt\x1b[31m")
        self.assert_refused(run("convert", self.rewrite(), "-o", self.out), "architecture", "llama")
        self.assertFalse(os.path.exists(self.out))

    def test_other_commands_say_what_to_do(self):
        for command in (["quantize", self.source, "-o", self.out], ["compare", self.source, self.source]):
            self.assert_refused(run(*command), "GGUF", "kvant convert")

    def test_memory(self):
        if SANITIZED:
            self.skipTest("a sanitizer's memory says nothing")
        # 40 MB in the file, 150 MB in f32.
        self.metadata, self.tensors, _ = gguf.llama(hidden=64, layers=1, vocabulary=40)
        rows = 600_000
        self.tensors["token_embd.weight"] = (gguf.Q8_0, [rows, 64], bytes(68 * rows))
        self.tensors["output.weight"] = (gguf.F32, [40, 64], bytes(40 * 64 * 4))
        del self.tensors["output.weight"]
        self.rewrite()
        ran = self.convert("--threads", "2")
        self.assertGreater(os.path.getsize(os.path.join(self.out, "model.safetensors")), 150_000_000)
        self.assertLess(ran.peak, 60 << 20)


class InspectTest(ToolTest):
    def setUp(self):
        super().setUp()
        self.metadata, self.tensors, _ = gguf.llama()
        self.tensors["odd"] = (gguf.I8, [3], b"abc")
        self.source = self.put("model.gguf", gguf.to_file(self.metadata, self.tensors))

    def test_json(self):
        document = json.loads(self.assert_done(run("inspect", self.source, "--json")).stdout)
        self.assertEqual((document["format"], document["version"]), ("kvant-inspect-gguf-1", 3))
        names = {0: "F32", 8: "Q8_0", 24: "I8"}
        want = [{"name": name, "type": names[kind], "shape": shape, "bytes": len(data)} for name, (kind, shape, data) in self.tensors.items()]
        self.assertEqual(document["tensors"], want)
        self.assertEqual(document["bytes"], sum(tensor["bytes"] for tensor in want))
        self.assertEqual(list(document["metadata"]), list(self.metadata))
        self.assertEqual(document["metadata"]["general.name"], "caf\u00e9 \u2603")
        self.assertEqual(document["metadata"]["llama.block_count"], 2)
        self.assertEqual(document["metadata"]["tokenizer.ggml.tokens"], {"type": "string", "count": 5, "first": gguf.TOKENS})

    def test_text(self):
        ran = self.assert_done(run("inspect", self.source))
        self.assert_says(ran.stdout, ["blk.1.ffn_down.weight", "Q8_0", "[64, 96]", "22 tensors", "GGUF version 3",
                                      "llama.block_count = 2", "5 of string: <|end|> a b", "caf\u00e9"], ran)
        self.assertEqual(ran.stderr, "")

    def test_files_that_say_more_than_they_have(self):
        """Zeros behind the header that take no room on the disk: empty names, empty strings, empty keys."""
        array = gguf.string("k") + struct.pack("<IIQ", gguf.ARRAY, gguf.STRING, 10**11)
        for name, head in (("tensors", struct.pack("<IQQ", 3, 10**6, 0)), ("many", struct.pack("<IQQ", 3, 10**10, 0)),
                           ("entries", struct.pack("<IQQ", 3, 0, 60000)), ("strings", struct.pack("<IQQ", 3, 0, 1) + array)):
            with self.subTest(name):
                path = self.put(name + ".gguf", b"GGUF" + head)
                os.truncate(path, 1 << 40)
                ran = self.assert_refused(run("inspect", path), name + ".gguf")
                if not SANITIZED:
                    self.assertLess(ran.peak, 800 << 20, ran)
                    self.assertLess(ran.seconds, 20, ran)

    def test_refusals(self):
        self.assert_refused(run("inspect", self.source, "--stats"), "--stats", "kvant convert")
        with open(self.source, "rb") as file:
            self.put("cut.gguf", file.read()[:-1])
        self.assert_refused(run("inspect", self.path("cut.gguf")), "cut.gguf", "odd", "beyond")
        self.metadata["split.count"] = (gguf.UINT32, 3)
        self.assert_refused(run("inspect", self.put("part.gguf", gguf.to_file(self.metadata, self.tensors))), "3 parts")


if __name__ == "__main__":
    unittest.main()
