"""kvant quantize --method gptq beside a plain statement of it, what it does to the error of outputs, and what is refused."""

import json
import os
import random
import shutil
import unittest

import numpy as np

import checkpoints as c
import reference
import syscalls
from tool import BINARY, ToolTest, digest_tree, environment, run

# Those whose rows have scales of their own.
SCHEMES = [name for name, made in reference.SCHEMES.items() if made[1]["strategy"] not in ("tensor", "block")]


def hessians(model, seed=7, samples=150):
    """Of inputs that know of each other; linears of one norm read the same."""
    random_ = np.random.default_rng(seed)
    stats = {}
    groups = [g.readers for g in model.groups] + [[m] for m in model.linears]
    for readers in groups:
        readers = [m for m in readers if m in model.linears and m + ".hessian" not in stats]
        if not readers:
            continue
        n = model.shape(readers[0])[1]
        x = random_.normal(size=(samples, n)) @ random_.normal(size=(n, n)) * (1 + 9 * (np.arange(n) % 7 == 2))
        h = (x.T @ x).astype(np.float32)
        for module in readers:
            stats[module + ".hessian"] = c.Tensor.of([float(v) for v in h.ravel()], "F32", [n, n])
            stats[module + ".mean_square"] = c.Tensor.of([float(v) for v in np.diag(h) / np.float32(samples)], "F32")
            stats[module + ".absmax"] = c.Tensor.of([float(v) for v in np.abs(x).max(axis=0).astype(np.float32)], "F32")
    return stats


def factors_of(h, order, damping):
    """H = Gᵀ D G, G lower with ones on its diagonal, in f64."""
    h = h[np.ix_(order, order)].copy()
    h[np.diag_indices(len(h))] += damping * np.mean(np.diag(h))
    g = np.linalg.cholesky(h[::-1, ::-1])
    return (g / np.diag(g))[::-1, ::-1].T


def gptq(weight, h, scales, zero_points, scheme, group, damping=0.01, by_size=True):
    """Values of a weight [rows, columns] under scales [rows, groups]."""
    columns = weight.shape[1]
    order = np.argsort(-np.diag(h), kind="stable") if by_size else np.arange(columns)
    g = factors_of(h, order, damping)
    half = 2 ** (scheme.bits - 1)
    errors, values = np.zeros((columns, len(weight))), np.empty_like(weight)
    for k, column in enumerate(order):
        target = weight[:, column] + g[k, :k] @ errors[:k]
        scale, zero = scales[:, column // group], zero_points[:, column // group]
        if scheme.grid:
            d = np.array([scheme.grid.number(scheme.grid.code(t / s)) for t, s in zip(target, scale)])
        else:
            d = np.clip(np.rint(target / scale) + zero, -half, half - 1) - zero
        values[:, column] = scale * d
        errors[k] = weight[:, column] - values[:, column]
    return values


def loss(weight, values, h):
    e = weight - values
    return float(np.sum(e @ h * e))


class GptqTest(ToolTest):
    def make(self, name="in", layers=1, dtype="BF16", **more):
        model = c.llama(dtype, hidden=64, intermediate=64, layers=layers, **more)
        source = c.write_folder(self.path(name), model)
        stats = hessians(model)
        c.write_safetensors(self.path(name + ".stats"), stats)
        return model, source, stats, self.path(name + ".stats")

    def quantize(self, source, out, *flags):
        self.assert_done(run("quantize", source, "-o", self.path(out), *flags))
        return c.read_folder(self.path(out))

    @staticmethod
    def matrix(tensor):
        return np.array(tensor.values(), np.float64).reshape(tensor.shape)

    def decoded(self, module, tensors, scheme):
        return np.array(reference.decoded(module, tensors, scheme), np.float64)


class ValuesTest(GptqTest):
    FLAGS = {"w4a16": ["--group-size", "16"], "w8a16": ["--group-size", "16"], "w4a8": ["--group-size", "32"]}

    def test_every_scheme(self):
        model, source, stats, file = self.make()
        for name in SCHEMES:
            flags = ["--scheme", name, *self.FLAGS.get(name, []), "--stats", file]
            with self.subTest(name):
                scheme = reference.Scheme(name, int(self.FLAGS[name][1]) if name in self.FLAGS else None)
                # A scheme that reads no statistics refuses them.
                needs = scheme.needs_statistics or scheme.choice == "search"
                plain = self.quantize(source, name + "-plain", *(flags if needs else flags[:-2]))
                better = self.quantize(source, name, *flags, "--method", "gptq")
                self.assertEqual(sorted(plain), sorted(better))
                lost, kept = 0, 0
                for module in model.linears:
                    if module + ".weight_scale" not in plain:
                        continue
                    for part, tensor in plain.items():  # scales, zero points and shapes are those of the weights as they were
                        if part.startswith(module + ".") and not part.endswith((".weight", ".weight_packed")):
                            self.assertEqual(better[part].data, tensor.data, part)
                    weight, h = self.matrix(model.tensors[module + ".weight"]), self.matrix(stats[module + ".hessian"])
                    lost += loss(weight, self.decoded(module, plain, scheme), h)
                    kept += loss(weight, self.decoded(module, better, scheme), h)
                self.assertLess(kept, 0.6 * lost)
                self.assert_done(run("verify", self.path(name)))

    def check(self, flags, asymmetric=False, by_size=True, damping=0.01):
        model, source, stats, file = self.make()
        tensors = self.quantize(source, "out", "--scheme", "w4a16", "--group-size", "16", "--method", "gptq", "--stats", file,
                                "--scale-dtype", "f32", *flags)
        scheme = reference.Scheme("w4a16", 16, asymmetric)
        wrong = total = 0
        for module in model.linears:
            weight, h = self.matrix(model.tensors[module + ".weight"]), self.matrix(stats[module + ".hessian"])
            got = self.decoded(module, tensors, scheme)
            scales = self.matrix(tensors[module + ".weight_scale"]).reshape(len(weight), -1)
            zeros = np.zeros_like(scales)
            if asymmetric:
                zeros = np.array(reference.zero_points(module, tensors, scheme), np.float64).reshape(scales.shape)
                self.assertTrue(zeros.any())
            want = gptq(weight, h, scales, zeros, scheme, 16, damping, by_size)
            wrong += int(np.sum(np.abs(got - want) > 1e-5 * np.max(scales)))
            total += got.size
        # What is computed in f32 there and in f64 here may round a weight that lies between two codes the other way.
        self.assertLessEqual(wrong, total // 1000)

    def test_symmetric(self):
        self.check([])

    def test_asymmetric(self):
        self.check(["--asymmetric"], asymmetric=True)

    def test_from_the_first_to_the_last(self):
        self.check(["--no-act-order"], by_size=False)

    def test_damping(self):
        self.check(["--damping", "0.3"], damping=0.3)

    def test_after_smoothing(self):
        """Hessians are of what is read before it: x / s is what a smoothed weight sees."""
        model, source, stats, file = self.make()
        flags = ["--scheme", "w4a16", "--group-size", "16", "--stats", file, "--smooth"]
        plain, better = self.quantize(source, "plain", *flags), self.quantize(source, "better", *flags, "--method", "gptq")
        _, s_of_norm = reference.quantize(model, "w4a16", stats, True, group_size=16)
        lost, kept, scheme = 0, 0, reference.Scheme("w4a16", 16)
        for group in model.groups:
            s = np.array(s_of_norm[group.norm])
            for module in group.readers:
                weight = self.matrix(model.tensors[module + ".weight"]) * s
                h = self.matrix(stats[module + ".hessian"]) / np.outer(s, s)
                lost += loss(weight, self.decoded(module, plain, scheme), h)
                kept += loss(weight, self.decoded(module, better, scheme), h)
        self.assertLess(kept, 0.5 * lost)

    def test_the_same_bytes_everywhere(self):
        _, source, _, file = self.make(layers=2)
        digests = []
        for i, (flags, env) in enumerate(((["--threads", "1"], None), (["--threads", "2"], None), (["--threads", "8"], None),
                                          (["--max-memory", "100M"], None), ([], {"KVANT_FORCE_ISA": "scalar"}))):
            out = self.path(f"out{i}")
            self.assert_done(run("quantize", source, "-o", out, "--scheme", "w4a16", "--group-size", "32", "--method", "gptq",
                                 "--stats", file, *flags, env=env))
            digests.append({k: v for k, v in digest_tree(out).items() if not k.startswith("kvant")})
        for other in digests[1:]:
            self.assertEqual(other, digests[0])

    def test_weights_that_are_not_finite(self):
        model, _, stats, file = self.make()
        module = model.linears[0]
        weight = model.tensors[module + ".weight"]
        values = weight.values()
        values[3], values[70], values[200] = float("inf"), float("nan"), float("-inf")
        model.tensors[module + ".weight"] = c.Tensor.of(values, "BF16", weight.shape)
        source = c.write_folder(self.path("broken"), model)
        out = self.quantize(source, "out", "--scheme", "w8a8", "--method", "gptq", "--stats", file)
        codes = out[module + ".weight"].values()
        self.assertEqual((codes[3], codes[70], codes[200]), (127, 0, -128))


class LayersTest(GptqTest):
    def test_those_without_a_hessian_are_rounded(self):
        model, source, stats, file = self.make(layers=2)
        without = [m for m in model.linears if ".layers.1." in m]
        c.write_safetensors(file, {n: t for n, t in stats.items() if n.removesuffix(".hessian") not in without})
        flags = ["--scheme", "w4a16", "--group-size", "16", "--stats", file]
        ran = self.assert_done(run("quantize", source, "-o", self.path("out"), *flags, "--method", "gptq"))
        self.assertIn("rounded to nearest: the statistics have no Hessian of its input", ran.stderr)
        got, plain = c.read_folder(self.path("out")), self.quantize(source, "plain", *flags)
        for module in model.linears:
            same = got[module + ".weight_packed"].data == plain[module + ".weight_packed"].data
            self.assertEqual(same, module in without, module)

    def test_with_other_schemes_beside_it(self):
        model, source, _, file = self.make()
        out = self.quantize(source, "out", "--scheme", "w4a16", "--group-size", "16", "--stats", file, "--method", "gptq",
                            "--override", "re:.*down_proj=fp8-tensor", "--override", "re:.*o_proj=mxfp4a16")
        self.assertIn("model.layers.0.mlp.down_proj.weight", out)
        self.assert_done(run("verify", self.path("out")))


class SequentialTest(ToolTest):
    """Each block is quantized by what it reads of the quantized blocks before it."""

    SCHEME = ["--scheme", "w4a16", "--group-size", "16", "--scale-dtype", "f32", "--method", "gptq"]

    def setUp(self):
        super().setUp()
        self.model = c.llama("F32", hidden=32, intermediate=48, layers=3)
        self.model.config.update(num_attention_heads=4, num_key_value_heads=2, intermediate_size=48, vocab_size=40,
                                 hidden_act="silu", max_position_embeddings=64)
        self.source = c.write_folder(self.path("in"), self.model)
        random_ = random.Random(3)
        self.tokens = self.put("ids.txt", " ".join(str(random_.randrange(40)) for _ in range(300)))
        self.text = ["--tokens", self.tokens, "--length", "50"]

    def command(self, out, *more):
        return ["quantize", self.source, "-o", self.path(out), *self.SCHEME, "--sequential", *self.text, *more]

    def calibrate(self, source, name):
        self.assert_done(run("calibrate", source, *self.text, "--hessian", "-o", self.path(name)))
        return c.read_safetensors(self.path(name))[0]

    def test_each_block_sees_the_quantized_ones_before_it(self):
        self.assert_done(run(*self.command("out")))
        got, stats = c.read_folder(self.path("out")), c.read_safetensors(self.path("out.stats.safetensors"))[0]
        scheme = reference.Scheme("w4a16", 16)
        # The same by hand: a model whose blocks so far are replaced by what their codes stand for.
        model = c.Model(dict(self.model.tensors), self.model.config, self.model.linears)
        for layer in range(3):
            of_block = [m for m in model.linears if f".layers.{layer}." in m]
            source = c.write_folder(self.path(f"by-hand-{layer}"), model)
            expected = self.calibrate(source, f"stats-{layer}")
            for name, tensor in expected.items():
                if f".layers.{layer}." in name:
                    self.assertEqual(stats[name].data, tensor.data, name)
            self.assert_done(run("quantize", source, "-o", self.path(f"quantized-{layer}"), *self.SCHEME, "--stats",
                                 self.path(f"stats-{layer}")))
            tensors = c.read_folder(self.path(f"quantized-{layer}"))
            for module in of_block:
                self.assertEqual(got[module + ".weight_packed"].data, tensors[module + ".weight_packed"].data, module)
                values = [v for row in reference.decoded(module, tensors, scheme) for v in row]
                model.tensors[module + ".weight"] = c.Tensor.of([c.round_f32(v) for v in values], "F32",
                                                                model.tensors[module + ".weight"].shape)
        # Without --sequential the last block sees another model.
        self.calibrate(self.source, "stats")
        self.assert_done(run("quantize", self.source, "-o", self.path("plain"), *self.SCHEME, "--stats", self.path("stats")))
        plain = c.read_folder(self.path("plain"))
        differ = [m for m in model.linears if plain[m + ".weight_packed"].data != got[m + ".weight_packed"].data]
        self.assertFalse([m for m in differ if ".layers.0." in m])
        self.assertTrue([m for m in differ if ".layers.2." in m])

    def test_with_smoothing_and_other_schemes(self):
        flags = ["--smooth", "0.5", "--override", "re:.*down_proj=fp8", "--override", "re:.*layers[.]1[.]self_attn.*=none"]
        digests = []
        for threads in ("1", "3"):
            self.assert_done(run(*self.command("out" + threads, *flags, "--threads", threads)))
            self.assert_done(run("verify", self.path("out" + threads)))
            digests.append({k: v for k, v in digest_tree(self.path("out" + threads)).items() if not k.startswith("kvant")})
        self.assertEqual(*digests)

    def test_the_group_size_that_fits_all(self):
        self.assert_done(run("quantize", self.source, "-o", self.path("out"), "--scheme", "w4a8", "--group-size", "auto",
                             "--method", "gptq", "--sequential", *self.text, "--ignore", "re:.*down_proj"))
        self.assertEqual(c.read_folder(self.path("out"))["model.layers.0.mlp.up_proj.weight_scale"].shape, [48, 1])

    @unittest.skipUnless(syscalls.available(), "ptrace is not permitted here")
    def test_killed_and_resumed(self):
        command = [*self.command("out"), "--threads", "1"]
        self.assert_done(run(*command))
        expected, stats = digest_tree(self.path("out")), digest_tree(self.folder)["out.stats.safetensors"]

        def clean():
            for name in os.listdir(self.folder):
                if name.startswith("out"):
                    path = self.path(name)
                    shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)

        clean()
        calls, code, said = syscalls.trace_until([BINARY, *command], None, environment())
        self.assertEqual(code, 0, said)
        for at in range(0, len(calls), max(1, len(calls) // 25)):
            clean()
            syscalls.trace_until([BINARY, *command], at, environment())
            self.assert_done(run(*command, "--resume"))
            got = digest_tree(self.path("out"))
            self.assertEqual({k: v for k, v in got.items() if not k.startswith("kvant")},
                             {k: v for k, v in expected.items() if not k.startswith("kvant")}, calls[at])
            self.assertEqual(digest_tree(self.folder)["out.stats.safetensors"], stats, calls[at])
            self.assertEqual(sorted(n for n in os.listdir(self.folder) if n.startswith("out")), ["out", "out.stats.safetensors"])

    def test_what_is_refused(self):
        for flags, sentence in (
                (["--sequential", *self.text], "--sequential has no effect without --method gptq"),
                (["--method", "gptq", "--sequential"], "--sequential needs a text; give it with --text FILE, or --tokens FILE"),
                (["--method", "gptq", "--sequential", *self.text, "--stats", "x"], "--sequential collects its own statistics"),
                (["--method", "gptq", *self.text, "--stats", "x"], "--text has no effect without --sequential"),
                (["--method", "gptq", "--sequential", *self.text, "--dry-run"], "--dry-run writes no statistics")):
            self.assert_refused(run("quantize", self.source, "-o", self.path("no"), *flags), sentence, code=2)
        self.assert_done(run(*self.command("out")))
        self.assert_refused(run(*self.command("out")), "already holds a finished run")
        self.assert_refused(run(*self.command("out"), "--resume", "--damping", "0.5"), "is not of a run with these options")
        os.remove(self.path("in", "config.json"))
        self.assert_refused(run(*self.command("other")), "config.json")
        self.assertFalse(os.path.exists(self.path("other")))


class RefusalTest(GptqTest):
    def refused(self, flags, *words, code=1):
        model, source, stats, file = self.make()
        self.assert_refused(run("quantize", source, "-o", self.path("out"), *flags(file)), *words, code=code)
        self.assertFalse(os.path.exists(self.path("out")))

    def test_without_statistics(self):
        self.refused(lambda _: ["--method", "gptq"], "--method gptq needs the Hessians", "calibrate --hessian", code=2)

    def test_options_without_effect(self):
        self.refused(lambda _: ["--damping", "0.1"], "--damping has no effect without --method gptq", code=2)

    def test_order_without_effect(self):
        self.refused(lambda _: ["--no-act-order"], "--no-act-order has no effect without --method gptq", code=2)

    def test_damping_that_is_none(self):
        model, source, _, file = self.make()
        for text in ("0", "-1", "1.5", "nan", "much"):
            self.assert_refused(run("quantize", source, "-o", self.path("out"), "--method", "gptq", "--stats", file,
                                    "--damping", text), f"'{text}' is not a number above 0, at most 1", code=2)

    def test_statistics_without_hessians(self):
        model, source, _, _ = self.make()
        c.write_safetensors(self.path("few"), c.make_stats(model))
        self.assert_refused(run("quantize", source, "-o", self.path("out"), "--scheme", "w4a16", "--group-size", "16",
                                "--method", "gptq", "--stats", self.path("few")), "has no Hessians", "calibrate --hessian")

    def test_schemes_whose_rows_share_scales(self):
        self.refused(lambda file: ["--scheme", "fp8-tensor", "--method", "gptq", "--stats", file], "scales that rows share")

    def test_a_hessian_of_another_width(self):
        model, source, stats, file = self.make()
        module = model.linears[0]
        small = c.Tensor.of([1.0] * 32 * 32, "F32", [32, 32])
        c.write_safetensors(file, {n: t for n, t in stats.items() if not n.startswith(module + ".")} | {module + ".hessian": small})
        self.assert_refused(run("quantize", source, "-o", self.path("out"), "--method", "gptq", "--stats", file),
                            "has 32 channels, its weight has 64")

    def test_a_hessian_that_is_none(self):
        model, source, stats, file = self.make()
        module = model.linears[0]
        h = stats[module + ".hessian"].values()
        for what, change in (("is no sum of squares", lambda v: [-x for x in v]), ("statistics must be finite", lambda v: v[:-1] + [float("nan")])):
            for reader in model.groups[0].readers:
                stats[reader + ".hessian"] = c.Tensor.of(change(h), "F32", [64, 64])
            c.write_safetensors(file, stats)
            self.assert_refused(run("quantize", source, "-o", self.path(f"out{len(what)}"), "--method", "gptq", "--stats", file), what)

    def test_too_little_memory(self):
        n = 8192
        weight = c.Tensor("BF16", [8, n], bytes(2 * 8 * n))
        wide = c.Model({"model.layers.0.mlp.up_proj.weight": weight}, c.config_of("llama", "L", "BF16"),
                       ["model.layers.0.mlp.up_proj"])
        source = c.write_folder(self.path("wide"), wide)
        with open(self.path("wide.stats"), "wb") as out:  # sparse: nothing is read
            entries, size = c.layout({"model.layers.0.mlp.up_proj.hessian": ("F32", [n, n])})
            text = json.dumps({"__metadata__": {"format": "pt"}, **entries}).encode()
            text += b" " * (-len(text) % 8)
            out.write(len(text).to_bytes(8, "little") + text)
            out.truncate(8 + len(text) + 4 * n * n)
        self.assert_refused(run("quantize", source, "-o", self.path("out"), "--max-memory", "200M", "--method", "gptq",
                                "--stats", self.path("wide.stats")), "--max-memory allows 200M", "leave out --method gptq")


if __name__ == "__main__":
    unittest.main()
