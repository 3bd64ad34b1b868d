"""Checkpoints that are quantized already, in the layouts of others: read as their values by convert, quantize, compare,
eval and verify, and written as compressed-tensors with the same codes."""

import json
import os
import unittest

import checkpoints as c
import dialects
from tool import ToolTest, digest_tree, load_json, run, snapshot


def llama():
    made = c.llama("BF16", hidden=32, intermediate=48)
    made.config.update(num_attention_heads=4, num_key_value_heads=2, intermediate_size=48, vocab_size=40, hidden_act="silu",
                       max_position_embeddings=512)
    return made


class DialectTest(ToolTest):
    def write(self, dialect, name="in", model=None):
        self.model = model or llama()
        tensors, config = dialect.of(self.model)
        return c.write_folder(self.path(name), c.Model(tensors, config, []))

    def read(self, folder):
        return c.read_safetensors(os.path.join(folder, "model.safetensors"))[0]

    def expected(self, dialect, dtype):
        plain = {name: tensor for name, tensor in self.model.tensors.items() if name not in dialect.values}
        made = {name: c.Tensor.of(values, dtype, shape) for name, (shape, values) in dialect.values.items()}
        return {**plain, **made}

    def each(self, *names):
        for name in names or dialects.ALL:
            dialect = dialects.ALL[name]
            yield name, dialect, self.write(dialect, name.replace(" ", "_"))

    def test_values(self):
        for name, dialect, source in self.each():
            for dtype in ("f32", "bf16", "f16"):
                before = snapshot(source)
                out = self.path(f"{name}.{dtype}")
                ran = self.assert_done(run("convert", source, "-o", out, "--to", dtype))
                got = {key: tensor for key, tensor in self.read(out).items() if not key.endswith("_bias")}
                self.assert_same_tensors(got, self.expected(dialect, dtype.upper()), name)
                config = load_json(os.path.join(out, "config.json"))
                self.assertNotIn("quantization_config", config)
                self.assertEqual(config["torch_dtype"], c.TORCH_NAMES[dtype.upper()])
                self.assert_untouched(source, before)
                self.assert_done(run("verify", out))
                rounded = sum(c.round_to(v, dtype.upper()) != v for _, values in dialect.values.values() for v in values)
                self.assert_says(ran.stdout, [f"{rounded:,} rounded" if rounded else "all as they were", dtype], ran)

    # What has no place there, and why.
    LEFT = {"gptq, act-order": ["desc_act", "bf16"], "gpt-oss": ["stack of experts", "bf16"]}

    def test_compressed_tensors(self):
        for name, dialect, source in self.each():
            out = self.path(name + ".ct")
            ran = run("convert", source, "-o", out, "--to", "compressed-tensors", "--json")
            if name in self.LEFT:
                self.assert_refused(ran, *self.LEFT[name])
                self.assertFalse(os.path.exists(out))
                continue
            self.assert_done(ran)
            document = json.loads(ran.stdout)
            # ModelOpt's global scale multiplies, and its inverse is rounded.
            exact = not isinstance(dialect, dialects.ModelOptNvfp4) or dialect.exact
            self.assertEqual(bool(document["warnings"]), not exact, ran)
            self.assert_done(run("verify", out))
            back = self.path(name + ".back")
            self.assert_done(run("convert", out, "-o", back, "--to", "f32"))
            got, want = self.read(back), self.expected(dialect, "F32")
            if exact:
                self.assert_same_tensors(got, want, name)
            else:
                for key in dialect.values:
                    for a, b in zip(got[key].values(), want[key].values()):
                        self.assertLessEqual(abs(a - b), abs(b) * 2 ** -22, key)
            self.assert_refused(run("convert", out, "-o", self.path("twice"), "--to", "compressed-tensors"),
                                "compressed-tensors already")

    def test_codes_stay_what_they_are(self):
        _, dialect, source = next(self.each("deepseek"))
        out = self.path("ct")
        self.assert_done(run("convert", source, "-o", out, "--to", "compressed-tensors"))
        before, after = self.read(source), self.read(out)
        for module in self.model.linears:
            self.assertEqual(after[module + ".weight"].data, before[module + ".weight"].data)
            self.assertEqual(after[module + ".weight_scale"].data, before[module + ".weight_scale_inv"].data)
        group = load_json(os.path.join(out, "config.json"))["quantization_config"]["config_groups"]["group_0"]
        self.assertEqual(group["weights"]["block_structure"], [128, 128])
        self.assertEqual(group["input_activations"]["group_size"], 128)

    def test_the_same_bytes_for_any_number_of_threads(self):
        for name, _, source in self.each("gptq, zero points", "modelopt nvfp4", "gpt-oss"):
            trees = []
            for threads in (1, 2, 3):
                out = self.path(f"{name}.{threads}")
                to = "bf16" if name == "gpt-oss" else "compressed-tensors"
                self.assert_done(run("convert", source, "-o", out, "--to", to, "--threads", threads))
                trees.append(digest_tree(out))
            self.assertEqual(trees[0], trees[1])
            self.assertEqual(trees[0], trees[2])

    def test_verify(self):
        for name, _, source in self.each():
            ran = self.assert_done(run("verify", source))
            self.assert_says(ran.stdout, ["shapes and dtypes", "scales"], ran)

    def test_verify_finds_bad_scales(self):
        for name, suffix in (("deepseek", ".weight_scale_inv"), ("gptq", ".scales"), ("modelopt fp8", ".weight_scale")):
            source = self.write(dialects.ALL[name], name)
            tensors = self.read(source)
            module = self.model.linears[0]
            old = tensors[module + suffix]
            tensors[module + suffix] = c.Tensor.of([float("nan")] + old.values()[1:], old.dtype, old.shape)
            c.write_safetensors(os.path.join(source, "model.safetensors"), tensors)
            self.assert_refused(run("verify", source), module + suffix, "finite and positive", stdout_too=True)

    def test_compare_and_quantize(self):
        for name, dialect, source in self.each("deepseek", "modelopt nvfp4", "gptq, zero points", "gptq, act-order", "awq"):
            original = self.path(name + ".f32")
            self.assert_done(run("convert", source, "-o", original, "--to", "f32"))
            # Beside its own values, nothing is lost.
            document = json.loads(self.assert_done(run("compare", original, source, "--json")).stdout)
            layers = document["quantized"][0]["layers"]
            self.assertEqual(len(layers), len(self.model.linears))
            for layer in layers:  # but for the rounding of the values to f32
                self.assertLess(layer["largest_error"], 1e-6, layer)
            # Requantized from its codes or from its values: the same codes.
            for folder, of in (("a", source), ("b", original)):
                self.assert_done(run("quantize", of, "-o", self.path(name + folder), "--scheme", "w8a8", "--scale-dtype", "f32"))
            a, b = self.read(self.path(name + "a")), self.read(self.path(name + "b"))
            for module in self.model.linears:
                self.assertEqual(a[module + ".weight"].data, b[module + ".weight"].data, module)

    def test_eval(self):
        tokens = self.put("ids.txt", " ".join(str(i * 7919 % 40) for i in range(600)))
        for name, _, source in self.each("gptq, zero points", "awq", "modelopt nvfp4, weights"):
            original = self.path(name + ".f32")
            self.assert_done(run("convert", source, "-o", original, "--to", "f32"))
            ran = self.assert_done(run("eval", original, source, "--tokens", tokens, "--json"), quotes=True)
            found = json.loads(ran.stdout)
            self.assertEqual(found["original"]["perplexity"], found["quantized"][0]["perplexity"], name)
            self.assertNotEqual(found["quantized"][0]["scheme"], "")

    def test_modelopt_in_a_file_of_its_own(self):
        dialect = dialects.ModelOptFp8()
        source = self.write(dialect)
        config = load_json(os.path.join(source, "config.json"))
        facts = config.pop("quantization_config")
        self.put(os.path.join("in", "config.json"), json.dumps(config))
        self.put(os.path.join("in", "hf_quant_config.json"), json.dumps({"producer": {"name": "modelopt"}, "quantization": facts}))
        out = self.path("out")
        self.assert_done(run("convert", source, "-o", out, "--to", "f32"))
        self.assert_same_tensors(self.read(out), self.expected(dialect, "F32"))
        # A loader would believe it.
        self.assertFalse(os.path.exists(os.path.join(out, "hf_quant_config.json")))

    def test_refusals(self):
        module = "model.layers.0.mlp.up_proj"

        def with_tensor(suffix, tensor):
            def change(tensors, config):
                tensors.pop(module + suffix)
                if tensor is not None:
                    tensors[module + suffix] = tensor
            return change

        def with_config(**more):
            return lambda tensors, config: config["quantization_config"].update(more)

        for name, change, words in (
                ("gptq", with_tensor(".scales", None), [module + ".scales", "missing"]),
                ("gptq", with_tensor(".scales", c.Tensor.of([1.0] * 48, "F16", [1, 48])), ["[1, 48]", "[2, 48]"]),
                ("gptq", with_tensor(".qzeros", c.Tensor("I32", [6, 2], bytes(48))),
                 ["[6, 2]", "[2, 6]"]),
                ("gptq", with_tensor(".g_idx", c.Tensor.of([2] + [0] * 31, "I32")), ["2 at 0", "0 to 1"]),
                ("gptq", with_tensor(".qweight", c.Tensor.of([0.0] * 192, "F32", [4, 48])), ["F32 [4, 48]", "I32"]),
                ("gptq", with_config(bits=3), ["bits is 3", "4 and 8"]),
                ("gptq", with_config(bits="4"), ["bits is", "integer"]),
                ("gptq", with_config(group_size=0), ["group size 0"]),
                ("gptq", with_config(sym="yes"), ["sym", "true or false"]),
                ("gptq", with_config(checkpoint_format="marlin"), ["marlin", "gptq_v2"]),
                ("awq", with_config(version="gemv"), ["gemv", "gemm"]),
                ("awq", with_config(bits=8), ["8", "4 bits"]),
                ("modelopt fp8", with_config(quant_algo="W4A8_AWQ"), ["W4A8_AWQ", "NVFP4"]),
                ("modelopt fp8", with_tensor(".input_scale", c.Tensor.of([0.0], "F32", [])), ["input_scale' is 0", "positive"]),
                ("modelopt nvfp4", with_tensor(".weight_scale_2", c.Tensor.of([1.0, 1.0], "F32")), ["weight_scale_2", "[2]"]),
                ("modelopt nvfp4", with_tensor(".weight_scale_2", None), ["weight_scale_2", "missing"]),
                ("deepseek", with_config(weight_block_size=[128]), ["weight_block_size", "[128]"]),
                ("deepseek", with_tensor(".weight_scale_inv", c.Tensor.of([1.0, 1.0], "F32", [2, 1])), ["[2, 1]", "[1, 1]"]),
                ("gptq", with_config(quant_method="quip"), ["quip", "gptq", "awq", "modelopt"])):
            with self.subTest(name, words=words):
                self.model = llama()
                tensors, config = dialects.ALL[name].of(self.model)
                change(tensors, config)
                source = c.write_folder(self.path("bad" + str(len(os.listdir(self.folder)))), c.Model(tensors, config, []))
                for command in (["convert", source, "-o", self.path("out"), "--to", "bf16"], ["quantize", source, "-o", self.path("out")]):
                    self.assert_refused(run(*command), *words)
                    self.assertFalse(os.path.exists(self.path("out")))

    def test_what_is_asked_must_make_sense(self):
        plain = c.write_folder(self.path("plain"), llama())
        self.assert_refused(run("convert", plain, "-o", self.path("out"), "--to", "bf16"), "not quantized", "kvant quantize")
        self.assert_refused(run("convert", plain, "-o", self.path("out")), "--to", code=2)
        source = self.write(dialects.ALL["gptq"])
        self.assert_refused(run("convert", source, "-o", self.path("out"), "--to", "int3"), "int3", code=2)
        self.assert_done(run("convert", source, "-o", self.path("out"), "--to", "bf16"))
        self.assert_refused(run("convert", source, "-o", self.path("out"), "--to", "f16"), "already")
        self.assert_refused(run("convert", source, "-o", self.path("out"), "--to", "f16", "--resume"), "to was")


if __name__ == "__main__":
    unittest.main()
