"""kvant eval and kvant calibrate: numbers beside a network of plain Python, any number of threads, what is refused."""

import json
import math
import os
import signal
import unittest

import checkpoints as c
import gguf
import reference
import syscalls
from tool import BINARY, CACHE, ToolTest, environment, run

IDS = [3, 14, 15, 9, 26, 5, 35, 8, 9, 7, 9, 32, 3, 8, 39, 26, 4, 3, 38, 32, 0, 11, 21]
LENGTH = 9
HEADS, KV_HEADS = 4, 2


def model(dtype="F32"):
    made = c.llama(dtype)
    made.config.update(num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, intermediate_size=48, vocab_size=40,
                       hidden_act="silu", max_position_embeddings=64)
    # Weights as small as those of the other tests would make every token as likely as any other.
    for name, tensor in list(made.tensors.items()):
        if name.endswith("_proj.weight") or name == "lm_head.weight":
            made.tensors[name] = c.Tensor.of([10 * v for v in tensor.values()], dtype, tensor.shape)
    return made


class PlainLlama:
    """Logits in double precision, what every linear reads, and keys and values."""

    def __init__(self, made):
        self.values = {name: tensor.values() for name, tensor in made.tensors.items()}
        self.layers = made.config["num_hidden_layers"]
        self.inputs = {}
        self.caches = {}

    def cached(self, attention, half, x):
        """What attention reads of a key or a value."""
        self.caches.setdefault(f"{attention}.{half}", []).append(x)
        return x

    def read(self, _, x):
        """What a linear makes of its input."""
        return x

    def linear(self, module, x):
        self.inputs.setdefault(module, []).append(x)
        x = self.read(module, x)
        weight = self.values[module + ".weight"]
        return [sum(a * b for a, b in zip(x, weight[n:n + len(x)])) for n in range(0, len(weight), len(x))]

    def norm(self, module, x):
        scale = 1 / math.sqrt(sum(v * v for v in x) / len(x) + 1e-5)
        return [v * scale * w for v, w in zip(x, self.values[module + ".weight"])]

    @staticmethod
    def rotate(x, size, position):
        y = list(x)
        for head in range(0, len(x), size):
            for i in range(size // 2):
                angle = position * 10000.0 ** (-2 * i / size)
                a, b = x[head + i], x[head + i + size // 2]
                y[head + i] = a * math.cos(angle) - b * math.sin(angle)
                y[head + i + size // 2] = b * math.cos(angle) + a * math.sin(angle)
        return y

    def attend(self, q, keys, values, size):
        out = []
        for head in range(HEADS):
            at = head // (HEADS // KV_HEADS) * size
            mine = q[head * size:(head + 1) * size]
            scores = [sum(a * b for a, b in zip(mine, k[at:at + size])) / math.sqrt(size) for k in keys]
            shares = [math.exp(s - max(scores)) for s in scores]
            out += [sum(p * v[at + d] for p, v in zip(shares, values)) / sum(shares) for d in range(size)]
        return out

    def logits(self, ids):
        table = self.values["model.embed_tokens.weight"]
        hidden = len(self.values["model.norm.weight"])
        x = [table[i * hidden:(i + 1) * hidden] for i in ids]
        for layer in range(self.layers):
            block = f"model.layers.{layer}."
            keys, values, size = [], [], hidden // HEADS
            for position, row in enumerate(x):
                normed = self.norm(block + "input_layernorm", row)
                q = self.rotate(self.linear(block + "self_attn.q_proj", normed), size, position)
                key = self.rotate(self.linear(block + "self_attn.k_proj", normed), size, position)
                keys.append(self.cached(block + "self_attn", "k", key))
                values.append(self.cached(block + "self_attn", "v", self.linear(block + "self_attn.v_proj", normed)))
                seen = self.linear(block + "self_attn.o_proj", self.attend(q, keys, values, size))
                row = [a + b for a, b in zip(row, seen)]
                normed = self.norm(block + "post_attention_layernorm", row)
                gate = self.linear(block + "mlp.gate_proj", normed)
                up = self.linear(block + "mlp.up_proj", normed)
                inner = [g / (1 + math.exp(-g)) * u for g, u in zip(gate, up)]
                x[position] = [a + b for a, b in zip(row, self.linear(block + "mlp.down_proj", inner))]
        return [self.linear("lm_head", self.norm("model.norm", row)) for row in x]


class QuantizedLlama(PlainLlama):
    """With weights that are decoded, and inputs of linears that go through their codes and back."""

    def __init__(self, made, tensors, scheme):
        super().__init__(made)
        self.tensors, self.scheme = tensors, scheme
        self.quantized = [m for m in made.linears if m + ".weight_scale" in tensors]
        for module in self.quantized:
            self.values[module + ".weight"] = [v for row in reference.decoded(module, tensors, scheme) for v in row]

    def cached(self, attention, half, x):
        stored = self.tensors.get(f"{attention}.{half}_scale")
        x = super().cached(attention, half, x)
        return reference.read_back(x, reference.CACHED, stored.values()[0]) if stored else x

    def read(self, module, x):
        if module not in self.quantized or self.scheme.inputs is None:
            return x
        stored = self.tensors.get(module + ".input_scale") or self.tensors.get(module + ".input_global_scale")
        return reference.read_back(x, self.scheme.inputs, stored.values()[0] if stored else None)


def sequences():
    return [IDS[i:i + LENGTH] for i in range(0, len(IDS), LENGTH)]


def log_softmax(logits):
    largest = max(logits)
    total = largest + math.log(sum(math.exp(v - largest) for v in logits))
    return [v - total for v in logits]


class EvalTest(ToolTest):
    def setUp(self):
        super().setUp()
        self.model = model()
        self.source = c.write_folder(self.path("model"), self.model)
        self.tokens = self.put("ids.txt", " ".join(map(str, IDS)).encode())

    def evaluate(self, *arguments):
        ran = self.assert_done(run("eval", *arguments, "--tokens", self.tokens, "--length", str(LENGTH), "--json"))
        return json.loads(ran.stdout)

    @staticmethod
    def beside(original, changed):
        """Of every token: loss and divergence; how many have the same top."""
        losses, kls, same = [], [], 0
        for ids in sequences():
            p, q = [[log_softmax(row) for row in m.logits(ids)] for m in (original, changed)]
            for i, token in enumerate(ids[1:]):
                losses.append(-p[i][token])
                kls.append(sum(math.exp(a) * (a - b) for a, b in zip(p[i], q[i])))
                same += p[i].index(max(p[i])) == q[i].index(max(q[i]))
        return losses, kls, same

    def test_floating_point_codes_beside_plain_python(self):
        stats = self.path("stats.safetensors")
        self.assert_done(run("calibrate", self.source, "--tokens", self.tokens, "--length", LENGTH, "-o", stats))
        for scheme, flags in (("fp8", []), ("fp8-static", ["--stats", stats]), ("mxfp4", []), ("nvfp4", ["--stats", stats])):
            with self.subTest(scheme):
                out = self.path(scheme)
                self.assert_done(run("quantize", self.source, "-o", out, "--scheme", scheme, *flags))
                found = self.evaluate(self.source, out)["quantized"][0]
                changed = QuantizedLlama(self.model, c.read_folder(out), reference.Scheme(scheme))
                # mxfp4 leaves down_proj alone: 48 channels are no whole groups of 32.
                self.assertEqual(len(changed.quantized), 12 if scheme == "mxfp4" else 14)
                losses, kls, same = self.beside(PlainLlama(self.model), changed)
                self.assertGreater(found["mean_kl"], 0)
                self.assertAlmostEqual(found["mean_kl"] / (sum(kls) / len(kls)), 1, delta=2e-3)
                self.assertAlmostEqual(found["same_top"], same / len(losses), delta=1e-9)
                self.assertEqual(found["scheme"], scheme)

    def test_fp8_keys_and_values_beside_plain_python(self):
        stats = self.path("stats.safetensors")
        self.assert_done(run("calibrate", self.source, "--tokens", self.tokens, "--length", LENGTH, "-o", stats))
        kls = []
        for flags in ([], ["--kv-fp8", "--stats", stats]):
            out = self.path("out" + str(len(flags)))
            self.assert_done(run("quantize", self.source, "-o", out, "--scheme", "fp8", *flags))
            found, = self.evaluate(self.source, out)["quantized"]
            changed = QuantizedLlama(self.model, c.read_folder(out), reference.Scheme("fp8"))
            _, wanted, same = self.beside(PlainLlama(self.model), changed)
            self.assertAlmostEqual(found["mean_kl"] / (sum(wanted) / len(wanted)), 1, delta=2e-3)
            self.assertAlmostEqual(found["same_top"], same / len(wanted), delta=1e-9)
            kls.append(found["mean_kl"])
        self.assertGreater(kls[1], 1.5 * kls[0])

    def test_every_other_scheme_runs(self):
        wide = c.llama("F32", hidden=128, intermediate=128, layers=1)
        for part in "kv":  # whole blocks
            wide.tensors[f"model.layers.0.self_attn.{part}_proj.weight"] = wide.tensors["model.layers.0.self_attn.o_proj.weight"]
        wide.config.update(self.model.config, hidden_size=128, intermediate_size=128, num_hidden_layers=1, num_key_value_heads=4)
        source = c.write_folder(self.path("wide"), wide)
        names = [n for n in reference.SCHEMES if not reference.Scheme(n).needs_statistics]
        for scheme in names:
            self.assert_done(run("quantize", source, "-o", self.path("out", scheme), "--scheme", scheme))
        self.assert_done(run("quantize", source, "-o", self.path("out", "mixed"), "--override", "re:.*mlp.*=mxfp4"))
        found = self.evaluate(source, *(self.path("out", n) for n in [*names, "mixed"]))["quantized"]
        self.assertEqual([q["scheme"].split(",")[0] for q in found], [*names, "w8a8 and mxfp4"])
        for quality in found:
            self.assertTrue(0 < quality["mean_kl"] < 0.1, quality)

    def test_numbers_beside_plain_python(self):
        # bf16 weights stand in for a checkpoint that lost something, and lose something themselves.
        other = c.write_folder(self.path("other"), model("BF16"))
        found = self.evaluate(self.source, other)
        original, changed = [PlainLlama(m) for m in (self.model, model("BF16"))]
        losses, kls, same = self.beside(original, changed)
        mean = sum(losses) / len(losses)
        deviation = math.sqrt(sum((v - mean) ** 2 for v in losses) / (len(losses) - 1))
        self.assertEqual(found["tokens"], len(losses))
        self.assertEqual(found["sequences"], len(sequences()))
        self.assertAlmostEqual(found["original"]["perplexity"] / math.exp(mean), 1, delta=1e-5)
        self.assertAlmostEqual(found["original"]["perplexity_standard_error"] /
                               (math.exp(mean) * deviation / math.sqrt(len(losses))), 1, delta=1e-4)
        quality = found["quantized"][0]
        self.assertGreater(quality["mean_kl"], 0)
        self.assertAlmostEqual(quality["mean_kl"], sum(kls) / len(kls), delta=1e-3 * sum(kls) / len(kls) + 1e-7)
        self.assertAlmostEqual(quality["same_top"], same / len(losses), delta=1e-9)
        self.assertEqual(len(quality["kl_by_position"]), LENGTH - 1)
        self.assertEqual(quality["verdict"], "good")

    def test_the_same_for_any_number_of_threads(self):
        out = self.path("w8a8")
        self.assert_done(run("quantize", self.source, "-o", out))
        one = self.evaluate(self.source, self.source, out, "--threads", "1")
        three = self.evaluate(self.source, self.source, out, "--threads", "3")
        self.assertNotEqual(three.pop("command"), one.pop("command"))
        self.assertEqual(three, one)
        itself, w8a8 = one["quantized"]
        self.assertEqual((itself["mean_kl"], itself["same_top"]), (0, 1))
        self.assertEqual(itself["perplexity"], one["original"]["perplexity"])
        self.assertEqual(w8a8["scheme"], "w8a8")
        self.assertGreater(w8a8["mean_kl"], 0)
        self.assertLess(w8a8["bytes"], one["original"]["bytes"])

    def test_four_bits_and_a_table_for_people(self):
        out = self.path("w4a16")
        self.assert_done(run("quantize", self.source, "-o", out, "--scheme", "w4a16", "--group-size", "16"))
        ran = self.assert_done(run("eval", self.source, out, "--tokens", self.tokens))
        self.assert_says(ran.stdout, ["22 tokens in 1 sequence", "perplexity", "same top", "verdict", "nats"], ran)

    def test_what_is_refused(self):
        for arguments, sentence in (
                ((), "give the text with --text FILE, or its tokens with --tokens FILE"),
                (("--tokens", self.put("bad.txt", b"1 2 x")), "bad.txt: byte 4: must be the id of a token"),
                (("--tokens", self.put("large.txt", b"1 2 40")), "token 2 has the id 40, must be below 40"),
                (("--tokens", self.put("one.txt", b"1")), "the text has 1 tokens, must have at least 2"),
                (("--text", self.put("a.txt", b"hello")), "tokenizer.json")):
            with self.subTest(sentence):
                self.assert_refused(run("eval", self.source, *arguments), sentence)
        self.model.config["model_type"] = "mamba"
        strange = c.write_folder(self.path("strange"), self.model)
        self.assert_refused(run("eval", strange, "--tokens", self.tokens), "cannot run a model of model_type 'mamba'")


class GgufTest(ToolTest):
    def test_a_gguf_is_run_as_it_is(self):
        file = self.put("model.gguf", gguf.to_file(*gguf.llama()[:2]))
        self.assert_done(run("convert", file, "-o", self.path("model")))
        tokens = self.put("ids.txt", " ".join(map(str, IDS)).encode())
        both = self.assert_done(run("eval", file, self.path("model"), "--tokens", tokens, "--json"))
        found = json.loads(both.stdout)
        converted = found["quantized"][0]
        self.assertEqual(found["model_type"], "llama")
        self.assertTrue(found["original"]["scheme"].startswith("GGUF "), found)
        self.assertEqual((converted["mean_kl"], converted["same_top"]), (0, 1))
        self.assertEqual(converted["perplexity"], found["original"]["perplexity"])
        self.assertLess(found["original"]["bytes"], converted["bytes"])
        stats = [self.path(name) for name in ("a.safetensors", "b.safetensors")]
        for source, out in zip((file, self.path("model")), stats):
            self.assert_done(run("calibrate", source, "--tokens", tokens, "-o", out))
        with open(stats[0], "rb") as a, open(stats[1], "rb") as b:
            self.assertEqual(a.read(), b.read())


class StacksOfExpertsTest(ToolTest):
    def test_a_stack_is_run_as_its_parts(self):
        made = model()
        for name in [name for name in made.tensors if ".mlp." in name]:
            del made.tensors[name]
        make = c.Maker("F32", 11)
        experts, inner, hidden = 3, 16, 32
        stacks = {}
        for layer in range(2):
            mlp = f"model.layers.{layer}.mlp"
            make.table(f"{mlp}.gate", experts, hidden)
            for norm in "qk":
                make.norm(f"model.layers.{layer}.self_attn.{norm}_norm", 8)
            stacks[f"{mlp}.experts.gate_up_proj"] = c.Tensor.of(make.values(experts * 2 * inner * hidden, 0.5), "F32",
                                                                [experts, 2 * inner, hidden])
            stacks[f"{mlp}.experts.down_proj"] = c.Tensor.of(make.values(experts * hidden * inner, 0.5), "F32",
                                                             [experts, hidden, inner])
        parts = {}
        for name, stack in stacks.items():
            module, values = name.rpartition(".")[0], stack.values()
            for e in range(experts):
                size = inner * hidden
                if name.endswith("down_proj"):
                    parts[f"{module}.{e}.down_proj.weight"] = c.Tensor.of(values[e * size:(e + 1) * size], "F32", [hidden, inner])
                    continue
                for i, part in enumerate(("gate", "up")):
                    at = (2 * e + i) * size
                    parts[f"{module}.{e}.{part}_proj.weight"] = c.Tensor.of(values[at:at + size], "F32", [inner, hidden])
        made.config.update(model_type="qwen3_moe", num_experts=experts, num_experts_per_tok=2, moe_intermediate_size=inner,
                           norm_topk_prob=True, head_dim=8, decoder_sparse_step=1, mlp_only_layers=[])
        both = [c.write_folder(self.path(name), c.Model({**made.tensors, **make.tensors, **more}, made.config, []))
                for name, more in (("parts", parts), ("stacks", stacks))]
        tokens = self.put("ids.txt", " ".join(map(str, IDS)).encode())
        found = json.loads(self.assert_done(run("eval", *both, "--tokens", tokens, "--json")).stdout)
        stacked = found["quantized"][0]
        self.assertEqual((stacked["mean_kl"], stacked["perplexity"]), (0, found["original"]["perplexity"]))
        stats = [self.path(name) for name in ("a.safetensors", "b.safetensors")]
        for source, out in zip(both, stats):
            self.assert_done(run("calibrate", source, "--tokens", tokens, "-o", out))
        with open(stats[0], "rb") as a, open(stats[1], "rb") as b:
            self.assertEqual(a.read(), b.read())


class ResumeTest(ToolTest):
    """Killed anywhere, a run goes on with --resume and ends with the same numbers."""

    def setUp(self):
        super().setUp()
        self.source = c.write_folder(self.path("model"), model())
        self.assert_done(run("quantize", self.source, "-o", self.path("w8a8")))
        tokens = self.put("ids.txt", " ".join(map(str, IDS)).encode())
        self.scratch = self.path("scratch")
        self.arguments = [self.source, self.path("w8a8"), "--tokens", tokens, "--length", str(LENGTH), "--json",
                          "--threads", "1"]

    def evaluate(self, *more):
        return self.assert_done(run("eval", *self.arguments, "--scratch", self.scratch, *more))

    @staticmethod
    def figures(ran):
        found = json.loads(ran.stdout)
        del found["command"]
        return found

    def interrupt(self, command, at):
        """Kills the run before the call `at` that changes a file; None: never. Returns the calls that it came to."""
        calls, code, said = syscalls.trace_until([BINARY, *map(str, command)], at, environment())
        self.assertIn(code, (0,) if at is None else (0, -signal.SIGKILL), said)
        return calls

    @unittest.skipUnless(syscalls.available(), "ptrace is not permitted here")
    def test_killed_at_every_call(self):
        expected = self.figures(self.evaluate())
        self.assertFalse(os.path.exists(self.scratch))
        command = ["eval", *self.arguments, "--scratch", self.scratch]
        calls = self.interrupt(command, None)
        # Embeddings and two blocks of two models: states, mark, and the shortening of the file.
        self.assertGreaterEqual(len(calls), 2 * 3 * 3)
        for at in range(len(calls)):
            self.interrupt(command, at)
            self.interrupt([*command, "--resume"], at // 2)
            self.assertEqual(self.figures(self.evaluate("--resume")), expected, calls[at])
            self.assertFalse(os.path.exists(self.scratch), calls[at])

    @unittest.skipUnless(syscalls.available(), "ptrace is not permitted here")
    def test_calibrate_killed_at_every_call(self):
        out = self.path("stats.safetensors")
        command = ["calibrate", self.source, "--tokens", self.path("ids.txt"), "--length", LENGTH, "-o", out, "--hessian",
                   "--threads", "1", "--force"]
        self.assert_done(run(*command))
        with open(out, "rb") as file:
            expected = file.read()
        calls = self.interrupt(command, None)
        for at in range(0, len(calls), 2):
            os.remove(out)
            self.interrupt(command, at)
            self.interrupt([*command, "--resume"], at // 2)
            # Without Hessians it is another calibration, and begins again.
            if at % 8 == 0:
                self.interrupt([x for x in command if x != "--hessian"] + ["--resume"], at // 3)
            self.assert_done(run(*command, "--resume"))
            with open(out, "rb") as file:
                self.assertEqual(file.read(), expected, calls[at])
            self.assertFalse(os.path.exists(out + ".scratch"), calls[at])

    def test_the_default_folder_is_found_again_and_removed(self):
        folder = os.path.join(CACHE, "kvant")
        expected = self.figures(self.assert_done(run("eval", *self.arguments)))
        self.assertEqual(os.listdir(folder), [])
        self.assertEqual(self.figures(self.assert_done(run("eval", *self.arguments, "--resume"))), expected)
        # Nowhere to save anything: it runs all the same.
        nowhere = {"XDG_CACHE_HOME": "", "HOME": ""}
        self.assertEqual(self.figures(self.assert_done(run("eval", *self.arguments, env=nowhere))), expected)

    def test_what_is_refused(self):
        self.put("thesis.doc", b"x")
        self.assert_refused(run("eval", *self.arguments, "--scratch", self.folder), "which is no scratch file")


def int8_values(row, asymmetric):
    """What comes back of a token that was quantized to int8 by its own range."""
    least, most = min(row), max(row)
    scale = c.round_f32((most - least) / 255 if asymmetric else max(-least, most) / 127)
    zero_point = -128 - round(least / scale) if asymmetric else 0
    return [scale * (min(max(round(x / scale) + zero_point, -128), 127) - zero_point) for x in row]


class CalibrateTest(ToolTest):
    def setUp(self):
        super().setUp()
        self.model = model()
        self.source = c.write_folder(self.path("model"), self.model)
        self.tokens = self.put("ids.txt", ",".join(map(str, IDS)).encode())

    def calibrate(self, name, *arguments, env=None):
        file = self.path(name)
        self.assert_done(run("calibrate", self.source, "--tokens", self.tokens, "--length", LENGTH, "-o", file, *arguments,
                             env=env))
        return file

    def plain(self):
        plain = PlainLlama(self.model)
        for ids in sequences():
            plain.logits(ids)
        return plain

    def plain_inputs(self):
        return self.plain().inputs

    def assert_close(self, got, wanted, what):
        self.assertEqual(len(got), len(wanted), what)
        for i, (a, b) in enumerate(zip(got, wanted)):
            self.assertAlmostEqual(a, b, delta=1e-5 * max(abs(b), 1), msg=f"{what} {i}")

    def test_statistics_beside_plain_python(self):
        stats, metadata = c.read_safetensors(self.calibrate("stats.safetensors"))
        plain = self.plain()
        inputs = plain.inputs
        self.assertEqual(metadata["tokens"], str(len(IDS)))
        self.assertEqual({name.rsplit(".", 1)[0] for name in stats}, {*inputs, *plain.caches})
        for module, rows in plain.caches.items():  # keys after the rotation
            self.assert_close(stats[f"{module}.absmax"].values(), [max(map(abs, v)) for v in zip(*rows)], module)
        for module, rows in inputs.items():
            self.assertEqual(stats[f"{module}.count"].values(), [len(rows)])
            for what, value_of in (("absmax", lambda v: max(map(abs, v))), ("min", min), ("max", max),
                                   ("mean_square", lambda v: sum(x * x for x in v) / len(v))):
                self.assert_close(stats[f"{module}.{what}"].values(), [value_of(v) for v in zip(*rows)], f"{module}.{what}")
            for what, asymmetric in (("int8_error", False), ("int8_asymmetric_error", True)):
                errors = [[(x - v) ** 2 for x, v in zip(row, int8_values(row, asymmetric))] for row in rows]
                wanted = [sum(v) / len(v) for v in zip(*errors)]
                got = stats[f"{module}.{what}"].values()
                self.assertEqual(len(got), len(wanted))
                for a, b in zip(got, wanted):
                    self.assertAlmostEqual(a, b, delta=1e-3 * max(wanted), msg=f"{module}.{what}")

    def test_histograms(self):
        stats, metadata = c.read_safetensors(self.calibrate("stats.safetensors"))
        for module, rows in self.plain_inputs().items():
            first = metadata.get(module + ".same_input_as", module)
            counts = stats[first + ".histogram"].values()
            limit, = stats[first + ".histogram_limit"].values()
            zeros, bins = counts.pop(), len(counts)
            self.assertEqual(sum(counts) + zeros, sum(map(len, rows)))
            largest = max(stats[module + ".absmax"].values())
            self.assertEqual(math.frexp(limit)[0], 0.5)
            self.assertTrue(limit / 2 <= largest < limit)
            # A value that is next to an edge may be on either side of it.
            places = [(x + limit) / (2 * limit) * bins for row in rows for x in row]
            for edge in range(0, bins, 64):
                least, most = [sum(p < edge + slack for p in places) for slack in (-0.01, 0.01)]
                below = sum(counts[:edge]) + (zeros if edge > bins // 2 else 0)
                self.assertTrue(least <= below <= most, f"{module} {edge}: {least} {below} {most}")

    def test_linears_of_one_input_share_what_is_large(self):
        stats, metadata = c.read_safetensors(self.calibrate("stats.safetensors", "--hessian"))
        block = "model.layers.0."
        for module, first in (("self_attn.k_proj", "self_attn.q_proj"), ("self_attn.v_proj", "self_attn.q_proj"),
                              ("mlp.up_proj", "mlp.gate_proj")):
            self.assertEqual(metadata[f"{block}{module}.same_input_as"], block + first)
            self.assertIn(f"{block}{module}.absmax", stats)
            for what in ("hessian", "histogram", "histogram_limit"):
                self.assertNotIn(f"{block}{module}.{what}", stats)
        for module, rows in self.plain_inputs().items():
            first = metadata.get(module + ".same_input_as", module)
            self.assertNotIn(first + ".same_input_as", metadata)
            matrix = stats[first + ".hessian"].rows()
            self.assertEqual(matrix, [list(column) for column in zip(*matrix)])
            columns = list(zip(*rows))
            wanted = [[sum(a * b for a, b in zip(x, y)) for y in columns] for x in columns]
            largest = max(max(map(abs, row)) for row in wanted)
            for got, want in zip(matrix, wanted):
                for a, b in zip(got, want):
                    self.assertAlmostEqual(a, b, delta=1e-5 * largest, msg=module)

    def test_the_same_bytes_for_any_threads_and_instruction_set(self):
        for flags in ([], ["--hessian"]):
            one = self.calibrate("one", "--force", "--threads", "1", *flags)
            with open(one, "rb") as file:
                wanted = file.read()
            for threads, isa in ((3, None), (2, "scalar")):
                other = self.calibrate("other", "--force", "--threads", threads, *flags, env={"KVANT_FORCE_ISA": isa})
                with open(other, "rb") as file:
                    self.assertEqual(file.read(), wanted, f"{threads} {isa} {flags}")

    def test_nothing_else_is_left_behind(self):
        before = sorted(os.listdir(self.path(".")))
        self.calibrate("stats.safetensors", "--hessian")
        self.assertEqual(sorted(os.listdir(self.path("."))), sorted([*before, "stats.safetensors"]))
        # What a run that was killed has left goes too; a folder with anything else is not ours.
        os.mkdir(self.path("stats.safetensors.scratch"))
        for name in ("block-00000.scratch.partial", "block-00009.scratch"):
            self.put(f"stats.safetensors.scratch/{name}", b"x")
        self.calibrate("stats.safetensors", "--force")
        self.assertFalse(os.path.exists(self.path("stats.safetensors.scratch")))
        os.mkdir(self.path("stats.safetensors.scratch"))
        self.put("stats.safetensors.scratch/mine.txt", b"x")
        self.assert_refused(run("calibrate", self.source, "--tokens", self.tokens, "-o", self.path("stats.safetensors"), "--force"),
                            "holds mine.txt, which is no scratch file")

    def test_statistics_go_to_quantize(self):
        file = self.calibrate("stats.safetensors", "--hessian")
        self.assert_refused(run("calibrate", self.source, "--tokens", self.tokens, "-o", file), "exists already")
        out = self.path("static")
        self.assert_done(run("quantize", self.source, "-o", out, "--scheme", "w8a8-static", "--smooth", "--stats", file))
        self.assert_refused(run("calibrate", out, "--tokens", self.tokens, "-o", self.path("x")), "is quantized")
        self.put("file", b"x")
        self.assert_refused(run("calibrate", self.source, "--tokens", self.tokens, "-o", self.path("file/x")), "file")

    def test_compare_estimates_what_outputs_lose(self):
        stats = self.calibrate("stats.safetensors")
        known, _ = c.read_safetensors(stats)
        inputs = self.plain_inputs()
        for scheme in ("w8a8", "w8a8-static"):
            out = self.path(scheme)
            self.assert_done(run("quantize", self.source, "-o", out, "--scheme", scheme,
                                 *(["--stats", stats] if scheme == "w8a8-static" else [])))
            ran = self.assert_done(run("compare", self.source, out, "--stats", stats, "--json"))
            tensors, _ = c.read_safetensors(os.path.join(out, "model.safetensors"))
            layers = json.loads(ran.stdout)["quantized"][0]["layers"]
            self.assertEqual(len(layers), 14)
            for layer in layers:
                module, rows = layer["module"], inputs[layer["module"]]
                weights = self.model.tensors[module + ".weight"].rows()
                codes, scales = tensors[module + ".weight"].rows(), tensors[module + ".weight_scale"].values()
                values = [[scale * q for q in row] for scale, row in zip(scales, codes)]
                square = known[module + ".mean_square"].values()
                if scheme == "w8a8":
                    error = known[module + ".int8_error"].values()
                    quantized = [int8_values(row, False) for row in rows]
                else:
                    step, = tensors[module + ".input_scale"].values()
                    error = [min(m, step * step / 12) for m in square]
                    quantized = [[step * min(max(round(x / step), -128), 127) for x in row] for row in rows]
                signal = noise = 0
                for row, value in zip(weights, values):
                    signal += sum(m * w * w for m, w in zip(square, row))
                    noise += sum(m * (w - v) ** 2 + n * v * v for m, n, w, v in zip(square, error, row, value))
                estimated = layer["estimated_output_sqnr_db"]
                self.assertAlmostEqual(estimated, 10 * math.log10(signal / noise), delta=1e-4, msg=module)
                # What the outputs really lose on these tokens. Channels are correlated a little.
                signal = noise = 0
                for x, xq in zip(rows, quantized):
                    for row, value in zip(weights, values):
                        y = sum(a * b for a, b in zip(row, x))
                        signal += y * y
                        noise += (y - sum(a * b for a, b in zip(value, xq))) ** 2
                self.assertAlmostEqual(estimated, 10 * math.log10(signal / noise), delta=2, msg=module)
        # What a token's codes cost after smoothing is not in the statistics.
        out = self.path("smooth")
        self.assert_done(run("quantize", self.source, "-o", out, "--smooth", "--stats", stats))
        ran = self.assert_done(run("compare", self.source, out, "--stats", stats, "--json"))
        for layer in json.loads(ran.stdout)["quantized"][0]["layers"]:
            self.assertEqual(layer["estimated_output_sqnr_db"] is None, layer["smoothed"])
        table = self.assert_done(run("compare", self.source, self.path("w8a8"), "--stats", stats)).stdout
        self.assertIn("output dB", table)
        self.assertNotIn("output dB", self.assert_done(run("compare", self.source, self.path("w8a8"))).stdout)

    def test_a_broken_model_is_refused(self):
        name = "model.layers.1.input_layernorm.weight"
        values = self.model.tensors[name].values()
        values[5] = math.inf
        self.model.tensors[name] = c.Tensor.of(values, "F32")
        broken = c.write_folder(self.path("broken"), self.model)
        self.assert_refused(run("calibrate", broken, "--tokens", self.tokens, "-o", self.path("x")),
                            "the input of 'model.layers.1.self_attn.q_proj' is not finite in channel 5")
        self.assertFalse(os.path.exists(self.path("x")))


if __name__ == "__main__":
    unittest.main()
