"""kvant stats: statistics of two texts beside those of both, an imatrix as statistics, what is refused."""

import json
import math
import os
import struct
import unittest

import checkpoints as c
import gguf
from tool import ToolTest, run

LENGTH = 6
NEWS = [3, 14, 15, 9, 26, 5, 35, 8, 9, 7, 9, 32]           # two sequences
CODE = [3, 8, 39, 26, 4, 3, 38, 32, 0, 11, 21, 1, 2, 17, 30]  # two and a half
CHANNELS = ("absmax", "min", "max", "mean_square", "int8_error", "int8_asymmetric_error")
MEANS = ("mean_square", "int8_error", "int8_asymmetric_error")


def llama():
    made = c.llama("F32")
    made.config.update(num_attention_heads=4, num_key_value_heads=2, intermediate_size=48, vocab_size=40, hidden_act="silu",
                       max_position_embeddings=64)
    for name, tensor in list(made.tensors.items()):
        if name.endswith("_proj.weight"):
            made.tensors[name] = c.Tensor.of([10 * v for v in tensor.values()], "F32", tensor.shape)
    # The first text has channels that the second has not, so that the limits of histograms differ.
    table = made.tensors["model.embed_tokens.weight"]
    values = table.values()
    values[35 * table.shape[1]:36 * table.shape[1]] = [1000.0] + [0.0] * (table.shape[1] - 1)
    made.tensors["model.embed_tokens.weight"] = c.Tensor.of(values, "F32", table.shape)
    return made


def mixtral():
    made = c.mixtral("F32", experts=8)
    made.config.update(hidden_size=32, intermediate_size=40, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=4,
                       vocab_size=40, hidden_act="silu", max_position_embeddings=64, rms_norm_eps=1e-5, num_experts_per_tok=2)
    gate = made.tensors["model.layers.0.block_sparse_moe.gate.weight"]
    made.tensors["model.layers.0.block_sparse_moe.gate.weight"] = c.Tensor.of([50 * v for v in gate.values()], "F32", gate.shape)
    return made


class StatsTest(ToolTest):
    def calibrate(self, source, name, ids, *arguments):
        tokens = self.put(name + ".txt", ",".join(map(str, ids)))
        self.assert_done(run("calibrate", source, "--tokens", tokens, "--length", LENGTH, "-o", self.path(name), "--force",
                             *arguments))
        return self.path(name)

    def merge(self, *files, arguments=()):
        out = self.path("merged.safetensors")
        return out, self.assert_done(run("stats", "merge", *files, "-o", out, "--force", *arguments))

    def assert_near(self, got, wanted, relative, what):
        self.assertEqual(len(got), len(wanted), what)
        for i, (a, b) in enumerate(zip(got, wanted)):
            self.assertAlmostEqual(a, b, delta=relative * abs(b) + 1e-30, msg=f"{what} {i}")

    def imatrix(self, tensors, metadata=None, name="imatrix.gguf"):
        """`tensors`: {name: (sums of all rows, counts)}."""
        entries = {"general.type": (gguf.STRING, "imatrix"), "imatrix.datasets": (gguf.ARRAY, ["t.txt"]),
                   "imatrix.chunk_count": (gguf.UINT32, 3), "imatrix.chunk_size": (gguf.UINT32, 512), **(metadata or {})}
        blocks = {}
        for tensor, (sums, counts) in tensors.items():
            blocks[tensor + ".counts"] = (gguf.F32, [len(counts), 1], struct.pack(f"<{len(counts)}f", *counts))
            blocks[tensor + ".in_sum2"] = (gguf.F32, [len(counts), len(sums) // len(counts)], struct.pack(f"<{len(sums)}f", *sums))
        return self.put(name, gguf.to_file(entries, blocks))


class MergeTest(StatsTest):
    def setUp(self):
        super().setUp()
        self.source = c.write_folder(self.path("model"), llama())

    def test_two_texts_are_one(self):
        first = self.calibrate(self.source, "a", NEWS, "--hessian")
        second = self.calibrate(self.source, "b", CODE, "--hessian")
        both, of_both = c.read_safetensors(self.calibrate(self.source, "both", NEWS + CODE, "--hessian"))
        out, ran = self.merge(first, second)
        self.assertNotIn("warning", ran.stderr)
        self.assertIn("statistics of 15 modules from 2 files", ran.stdout)
        merged, metadata = c.read_safetensors(out)
        self.assertEqual(list(merged), list(both))  # in the same order, too
        self.assertEqual(metadata["tokens"], str(len(NEWS + CODE)))
        self.assertEqual({k: v for k, v in metadata.items() if k.endswith(".same_input_as")},
                         {k: v for k, v in of_both.items() if k.endswith(".same_input_as")})
        one, other = c.read_safetensors(first)[0], c.read_safetensors(second)[0]
        limits = [name for name in both if name.endswith(".histogram_limit")]
        self.assertTrue(any(one[name].data != other[name].data for name in limits), "all limits are the same")
        for name, wanted in both.items():
            what = name.rsplit(".", 1)[1]
            self.assertEqual((merged[name].dtype, merged[name].shape), (wanted.dtype, wanted.shape), name)
            if what in MEANS:
                self.assert_near(merged[name].values(), wanted.values(), 2**-22, name)
            elif what == "hessian":
                largest = max(map(abs, wanted.values()))
                for got, want in zip(merged[name].values(), wanted.values()):
                    self.assertAlmostEqual(got, want, delta=1e-6 * largest, msg=name)
            else:
                self.assertEqual(merged[name].data, wanted.data, name)
        # Rounded once, from f64.
        module = "model.layers.1.mlp.down_proj"
        counts = [len(NEWS), len(CODE)]
        pairs = zip(one[module + ".mean_square"].values(), other[module + ".mean_square"].values())
        self.assertEqual(merged[module + ".mean_square"].values(),
                         [c.round_f32((a * counts[0] + b * counts[1]) / sum(counts)) for a, b in pairs])

    def test_merged_statistics_are_read(self):
        out, _ = self.merge(self.calibrate(self.source, "a", NEWS), self.calibrate(self.source, "b", CODE))
        smoothed = self.path("smoothed")
        self.assert_done(run("quantize", self.source, "-o", smoothed, "--scheme", "w8a8-static", "--smooth", "--stats", out))
        document = json.loads(self.assert_done(run("compare", self.source, smoothed, "--stats", out, "--json")).stdout)
        self.assertEqual(document["warnings"], [])
        again, ran = self.path("again.safetensors"), None
        ran = self.assert_done(run("stats", "merge", out, "-o", again, "--json"))
        self.assertEqual(json.loads(ran.stdout), {"format": "kvant-stats-1", "output": again, "files": 1, "modules": 15, "modules_of_all_files": 15,
                                                  "warnings": []})
        with open(out, "rb") as one, open(again, "rb") as two:
            self.assertEqual(one.read(), two.read())

    def test_a_file_twice_counts_twice(self):
        file = self.calibrate(self.source, "a", NEWS)
        out, ran = self.merge(file, file)
        self.assertIn("is given twice, its rows count twice", ran.stderr)
        one, two = c.read_safetensors(file)[0], c.read_safetensors(out)[0]
        for name, tensor in one.items():
            factor = 2 if name.endswith((".count", ".histogram")) else 1
            self.assertEqual(two[name].values(), [factor * v for v in tensor.values()], name)

    def test_experts_that_some_texts_did_not_reach(self):
        source = c.write_folder(self.path("experts"), mixtral())
        first, second = self.calibrate(source, "a", [3, 14]), self.calibrate(source, "b", [9, 26, 5, 35])
        one, two = c.read_safetensors(first)[0], c.read_safetensors(second)[0]
        out, ran = self.merge(first, second)
        merged, metadata = c.read_safetensors(out)
        alone = sorted({name for name in set(one) ^ set(two) if name.endswith(".count")})
        self.assertTrue(alone)
        self.assertIn(f"{len(alone)} of {sum(n.endswith('.count') for n in merged)} modules are not in all files", ran.stderr)
        self.assertEqual(set(merged), set(one) | set(two))
        for name in alone:
            for what in CHANNELS + ("count",):
                tensor = name.replace(".count", "." + what)
                self.assertEqual(merged[tensor].data, (one if tensor in one else two)[tensor].data, tensor)
        for key, value in metadata.items():
            if key.endswith(".same_input_as"):
                self.assertIn(value + ".histogram", merged)
        self.assertEqual(json.loads(self.merge(first, second, arguments=["--json"])[1].stdout)["modules_of_all_files"],
                         sum(n.endswith(".count") and n in two for n in one))

    def test_what_only_some_have_is_left_out(self):
        file = self.calibrate(self.source, "a", NEWS, "--hessian")
        tensors, metadata = c.read_safetensors(self.calibrate(self.source, "b", CODE))
        module = "model.layers.0.self_attn.q_proj"
        del tensors[module + ".absmax"]
        tensors[module + ".kurtosis"] = c.Tensor.of([3.0], "F32")
        c.write_safetensors(self.path("b"), tensors, metadata)
        out, ran = self.merge(file, self.path("b"))
        self.assertIn(f"absmax is left out of 1 module: {self.path('b')} has no '{module}.absmax'", ran.stderr)
        self.assertIn("hessian is left out of 9 modules", ran.stderr)
        self.assertIn(f"1 tensor is no known statistic and left out, the first is '{module}.kurtosis'", ran.stderr)
        merged, _ = c.read_safetensors(out)
        self.assertNotIn(module + ".absmax", merged)
        self.assertIn(module + ".min", merged)
        self.assertNotIn(module + ".kurtosis", merged)

    def test_keys_and_values_are_of_all_texts_or_left_out(self):
        file = self.calibrate(self.source, "a", NEWS)
        tensors, metadata = c.read_safetensors(self.calibrate(self.source, "b", CODE))
        caches = [name for name in tensors if name.endswith((".self_attn.k.absmax", ".self_attn.v.absmax"))]
        self.assertEqual(len(caches), 4)
        merged, _ = c.read_safetensors(self.merge(file, self.path("b"))[0])
        one, _ = c.read_safetensors(file)
        for name in caches:
            self.assertEqual(merged[name].values(), list(map(max, one[name].values(), tensors[name].values())), name)
        # As an older version has written it.
        c.write_safetensors(self.path("b"), {n: t for n, t in tensors.items() if n not in caches}, metadata)
        for files in ((file, self.path("b")), (self.path("b"), file)):
            out, ran = self.merge(*files)
            self.assertIn(f"keys and values are left out: {self.path('b')} has no '{caches[0]}'", ran.stderr)
            self.assertIn("statistics of 15 modules from 2 files", ran.stdout)
            self.assertEqual(set(c.read_safetensors(out)[0]), set(one) - set(caches))
        self.assertNotIn("keys", self.assert_done(run("stats", "show", self.path("b"))).stdout)

    def test_modules_that_no_longer_share_all_have_their_own(self):
        # In the second file k reads what nobody else reads.
        first, metadata = c.read_safetensors(self.calibrate(self.source, "a", NEWS))
        module, other = "model.layers.0.self_attn.k_proj", "model.layers.0.self_attn.q_proj"
        apart = dict(first)
        for what in ("histogram", "histogram_limit"):
            apart[f"{module}.{what}"] = first[f"{other}.{what}"]
        del metadata[module + ".same_input_as"]
        c.write_safetensors(self.path("b"), apart, metadata)
        out, _ = self.merge(self.path("a"), self.path("b"))
        merged, metadata = c.read_safetensors(out)
        self.assertNotIn(module + ".same_input_as", metadata)
        self.assertEqual(merged[module + ".histogram"].values(), [2 * v for v in first[other + ".histogram"].values()])

    def test_what_is_refused(self):
        file = self.calibrate(self.source, "a", NEWS)
        tensors, metadata = c.read_safetensors(file)
        out = self.path("out")
        merge = lambda *files, to=out: run("stats", "merge", *files, "-o", to)

        def changed(name, change):
            copy = dict(tensors)
            change(copy)
            c.write_safetensors(self.path(name), copy, metadata)
            return self.path(name)

        module = "model.layers.1.mlp.down_proj"
        self.assert_refused(merge(file, to=file), "is an input of the merge too")
        os.symlink(file, self.path("link"))
        self.assert_refused(run("stats", "merge", file, "-o", self.path("link"), "--force"), "is an input of the merge too")
        os.symlink(file, self.path("late.partial"))
        self.assert_refused(merge(file, to=self.path("late")), "late.partial", "is an input of the merge too")
        os.remove(self.path("late.partial"))
        self.assert_refused(merge(file, to=self.put("there", b"x")), "exists already; --force overwrites it")
        self.assert_refused(merge(file, self.path("nowhere")), "nowhere")
        self.assert_refused(merge(file, os.path.join(self.source, "model.safetensors")), "statistics are F32 with one")
        self.assert_refused(merge(file, self.put("none", struct.pack("<Q", 2) + b"{}")), "none: has no statistics of any module")
        self.assert_refused(merge(file, changed("uncounted", lambda t: t.pop(module + ".count"))), "uncounted: has no",
                            f"'{module}.count', without which the mean '{module}.mean_square' cannot be weighted")
        self.assert_refused(
            merge(file, changed("fewer", lambda t: [t.pop(n) for n in list(t) if n.startswith(module)])), "fewer: has no",
            f"statistics of '{module}', which {file} has; only experts and heads may be missing")
        self.assert_refused(merge(file, changed("wide", lambda t: t.update({module + ".min": c.Tensor.of([0.0], "F32")}))),
                            f"wide: '{module}.min' is [1], but [48] in {file}; these are statistics of different models")
        self.assert_refused(merge(file, changed("nan", lambda t: t.update({module + ".min": c.Tensor.of([math.nan] * 48, "F32")}))),
                            f"'{module}.min' is nan at channel 0")
        most = c.Tensor.of([2**63 - 1], "I64")
        self.assert_refused(merge(file, changed("many", lambda t: t.update({module + ".count": most}))),
                            f"the sum of '{module}.count' over the files is above 2^63 - 1")
        self.assertFalse(os.path.exists(out))
        self.assertFalse([name for name in os.listdir(self.folder) if name.endswith(".partial")])
        for arguments, sentence in ((["merge", file], "merge needs --output FILE"),
                                    (["show", file, file], "show takes one file, not 2"),
                                    (["show", file, "-o", out], "show writes nothing"),
                                    (["shrink", file], "'shrink' is not one of merge, show"),
                                    (["merge"], "FILE is missing")):
            self.assert_refused(run("stats", *arguments), sentence, code=2)

    def test_large_hessians_are_streamed(self):
        width, paths = 4096, [self.path("x"), self.path("y")]
        for path in paths:
            c.write_sparse_safetensors(path, {"q.count": ("I64", [1]), "q.hessian": ("F32", [width, width])})
            with open(path, "r+b") as file:  # one row was seen, and the last element is 3
                header = struct.unpack("<Q", file.read(8))[0]
                file.seek(8 + header)
                file.write(struct.pack("<q", 1))
                file.seek(-4, os.SEEK_END)
                file.write(struct.pack("<f", 3))
        out, ran = self.merge(*paths)
        with open(out, "rb") as file:
            file.seek(-4, os.SEEK_END)
            self.assertEqual(file.read(), struct.pack("<f", 6))
        # A matrix is 64 MiB.
        if not os.environ.get("KVANT_SANITIZED"):
            self.assertLess(ran.peak, 40 << 20, ran)


class ShowTest(StatsTest):
    def test_table_and_json(self):
        source = c.write_folder(self.path("model"), llama())
        file = self.calibrate(source, "a", NEWS, "--hessian")
        tensors, metadata = c.read_safetensors(file)
        text = self.assert_done(run("stats", "show", file)).stdout
        for word in ("module", "channels", "rows", "absmax", "E[x²]", "histogram, Hessian", "statistics of 15 modules from 12 tokens"):
            self.assertIn(word, text)
        document = json.loads(self.assert_done(run("stats", "show", file, "--json")).stdout)
        self.assertEqual(document["metadata"], metadata)
        self.assertEqual([m["module"] for m in document["modules"]][:3],
                         [f"model.layers.0.self_attn.{p}_proj" for p in "qkv"])
        self.assertEqual(document["modules"][-1]["module"], "lm_head")
        for layer, shown in enumerate(document["keys_and_values"]):
            attention = f"model.layers.{layer}.self_attn"
            self.assertEqual(shown, {"attention": attention, "keys_absmax": max(tensors[attention + ".k.absmax"].values()),
                                     "values_absmax": max(tensors[attention + ".v.absmax"].values())})
            self.assertIn(attention + " ", text)
        self.assertEqual(layer, 1)
        self.assertIn("absmax of keys", text)
        for shown in document["modules"]:
            module = shown["module"]
            squares = tensors[module + ".mean_square"].values()
            self.assertEqual(shown["channels"], len(squares))
            self.assertEqual(shown["rows"], len(NEWS))
            self.assertEqual(shown["absmax"], max(tensors[module + ".absmax"].values()))
            self.assertAlmostEqual(shown["mean_square"], sum(squares) / len(squares), delta=1e-9 * sum(squares))
            self.assertTrue(shown["histogram"] and shown["hessian"])
            self.assertEqual(shown["same_input_as"], metadata.get(module + ".same_input_as"))


class ImatrixTest(StatsTest):
    Q, DOWN = "blk.0.attn_q.weight", "blk.1.ffn_down.weight"

    def test_is_statistics(self):
        file = self.imatrix({self.Q: ([2.0, 4.0, 1.0, 0.0], [3]), self.DOWN: ([8.0, 1.0], [4]),
                             "output.weight": ([1.0], [2]), "blk.0.ssm_in.weight": ([1.0], [1])})
        document = json.loads(self.assert_done(run("stats", "show", file, "--json")).stdout)
        self.assertEqual({m["module"]: (m["channels"], m["rows"], m["absmax"]) for m in document["modules"]},
                         {"model.layers.0.self_attn.q_proj": (4, 3, None), "model.layers.1.mlp.down_proj": (2, 4, None),
                          "lm_head": (1, 2, None)})
        self.assertEqual(document["metadata"]["tokens"], "1536")
        out, _ = self.merge(file)
        merged, _ = c.read_safetensors(out)
        self.assertEqual(merged["model.layers.0.self_attn.q_proj.mean_square"].values(),
                         [c.round_f32(v / 3) for v in (2.0, 4.0, 1.0, 0.0)])
        self.assertEqual(merged["model.layers.1.mlp.down_proj.count"].values(), [4])
        self.assertEqual(len(merged), 6)

    def test_experts(self):
        names = {"mixtral": "block_sparse_moe.experts.{}.w1", "qwen3_moe": "mlp.experts.{}.gate_proj"}
        file = self.imatrix({"blk.0.ffn_gate_exps.weight": ([1.0, 2.0, 0.0, 0.0, 5.0, 6.0], [1, 0, 2]),
                             "blk.0.ffn_gate_inp.weight": ([3.0, 3.0], [3])})
        for model_type, name in names.items():
            out, _ = self.merge(file, arguments=["--model-type", model_type])
            merged, _ = c.read_safetensors(out)
            modules = ["model.layers.0." + name.format(e) for e in (0, 2)]
            router = "model.layers.0." + name.split(".", 1)[0] + ".gate"
            self.assertEqual({n.rsplit(".", 1)[0] for n in merged}, {router, *modules})  # no token was sent to expert 1
            self.assertEqual(merged[modules[1] + ".mean_square"].values(), [2.5, 3.0])
        self.assert_refused(run("stats", "show", file), "is an imatrix with experts ('blk.0.ffn_gate_exps.weight')",
                            "--model-type", "mixtral or qwen3_moe")
        # The checkpoint says it.
        source = c.write_folder(self.path("experts"), c.mixtral())
        sums, tensors = [1.0] * 32, {}
        for name, experts in (("ffn_gate_exps", 3), ("ffn_up_exps", 3), ("attn_q", 1), ("attn_k", 1), ("attn_v", 1), ("attn_output", 1)):
            tensors[f"blk.0.{name}.weight"] = (sums * experts, [7] * experts)
        tensors["blk.0.ffn_down_exps.weight"] = ([1.0] * 120, [7] * 3)
        file, out = self.imatrix(tensors), self.path("out")
        self.assert_done(run("quantize", source, "-o", out, "--scheme", "w4a16", "--group-size", 8))
        document = json.loads(self.assert_done(run("compare", source, out, "--stats", file, "--json")).stdout)
        self.assertEqual(document["warnings"], [])

    def test_compare_estimates_as_from_statistics(self):
        made = llama()
        source, out = c.write_folder(self.path("model"), made), self.path("out")
        stats = self.calibrate(source, "a", NEWS)
        known, _ = c.read_safetensors(stats)
        names = {f"self_attn.{p}_proj": f"attn_{p}" for p in "qkv"}
        names |= {"self_attn.o_proj": "attn_output", **{f"mlp.{p}_proj": f"ffn_{p}" for p in ("gate", "up", "down")}}
        tensors = {}
        for layer in range(2):
            for name, ggml in names.items():
                squares = known[f"model.layers.{layer}.{name}.mean_square"].values()
                tensors[f"blk.{layer}.{ggml}.weight"] = ([v * len(NEWS) for v in squares], [len(NEWS)])
        self.assert_done(run("quantize", source, "-o", out, "--scheme", "w4a16", "--group-size", 16))
        outputs = []
        for file in (stats, self.imatrix(tensors)):
            document = json.loads(self.assert_done(run("compare", source, out, "--stats", file, "--json")).stdout)
            self.assertEqual(document["warnings"], [])
            outputs.append({layer["module"]: layer["estimated_output_sqnr_db"] for layer in document["quantized"][0]["layers"]})
        self.assertEqual(outputs[0].keys(), outputs[1].keys())
        self.assertTrue(all(v is not None for v in outputs[1].values()))
        for name, value in outputs[0].items():
            self.assertAlmostEqual(value, outputs[1][name], places=4, msg=name)
        # It knows no ranges; with statistics that do it merges to what both know.
        file = self.path("imatrix.gguf")
        for arguments, who in ((["--smooth"], "--smooth"), (["--scheme", "w8a8-static"], "w8a8-static")):
            self.assert_refused(run("quantize", source, "-o", self.path("x"), "--stats", file, *arguments), "imatrix.gguf: has no absmax",
                                "an imatrix has none", f"which {who} needs", "kvant calibrate")
        merged, ran = self.merge(stats, file)
        self.assertIn("1 of 15 modules is not in all files, the first is 'lm_head'", ran.stderr)
        self.assertIn("absmax is left out of 14 modules", ran.stderr)
        both, _ = c.read_safetensors(merged)
        self.assertEqual(both["model.layers.0.mlp.up_proj.count"].values(), [2 * len(NEWS)])
        self.assert_near(both["model.layers.0.mlp.up_proj.mean_square"].values(),
                         known["model.layers.0.mlp.up_proj.mean_square"].values(), 2**-22, "up")
        self.assert_done(run("stats", "show", merged))

    def test_what_is_refused(self):
        show = lambda *arguments, **more: run("stats", "show", self.imatrix(*arguments, **more))
        self.assert_refused(show({self.Q: ([1.0], [1])}, {"general.type": (gguf.STRING, "model")}),
                            "\"general.type\" is \"model\"", "only an imatrix holds statistics")
        self.assert_refused(show({"blk.0.ssm_in.weight": ([1.0], [1])}), "an imatrix without a linear of a Llama-like network")
        self.assert_refused(show({"blk.00.attn_q.weight": ([1.0], [1])}), "an imatrix without a linear")
        self.assert_refused(show({self.Q: ([1.0, 2.0], [1, 1])}), "'blk.0.attn_q.weight.in_sum2' is [2, 1]", "for one matrix")
        for count in (-1.0, 0.5, math.nan, math.inf):
            self.assert_refused(show({self.Q: ([1.0], [count])}), "must be a whole number below 2^53")
        self.assert_refused(show({self.Q: ([math.nan], [1])}), "'model.layers.0.self_attn.q_proj.mean_square' is nan at channel 0")
        self.assert_refused(show({self.Q: ([-1.0], [1])}), "a mean of squares cannot be negative")
        entries = {"general.type": (gguf.STRING, "imatrix")}
        lonely = gguf.to_file(entries, {self.Q + ".in_sum2": (gguf.F32, [1, 1], bytes(4))})
        self.assert_refused(run("stats", "show", self.put("lonely.gguf", lonely)), "has 'blk.0.attn_q.weight.in_sum2' but not",
                            "blk.0.attn_q.weight.counts")
        half = gguf.to_file(entries, {self.Q + ".in_sum2": (gguf.F16, [1, 2], bytes(4)), self.Q + ".counts": (gguf.F32, [1, 1], bytes(4))})
        self.assert_refused(run("stats", "show", self.put("half.gguf", half)), "is F16 [1, 2], must be F32")
        name = self.Q.encode()
        old = struct.pack("<ii", 1, len(name)) + name + struct.pack("<iif", 5, 1, 1.0)
        self.assert_refused(run("stats", "show", self.put("imatrix.dat", old)), "old format", "llama-imatrix --in-file",
                            "does not say how many rows")


if __name__ == "__main__":
    unittest.main()
