"""kvant eval and kvant calibrate: numbers beside a network of plain Python, any number of threads, what is refused."""

import json
import math
import os
import struct
import unittest

import checkpoints as c
from tool import ToolTest, run

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
    """Logits in double precision, and what every linear reads."""

    def __init__(self, made):
        self.values = {name: tensor.values() for name, tensor in made.tensors.items()}
        self.layers = made.config["num_hidden_layers"]
        self.inputs = {}

    def linear(self, module, x):
        self.inputs.setdefault(module, []).append(x)
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
                keys.append(self.rotate(self.linear(block + "self_attn.k_proj", normed), size, position))
                values.append(self.linear(block + "self_attn.v_proj", normed))
                seen = self.linear(block + "self_attn.o_proj", self.attend(q, keys, values, size))
                row = [a + b for a, b in zip(row, seen)]
                normed = self.norm(block + "post_attention_layernorm", row)
                gate = self.linear(block + "mlp.gate_proj", normed)
                up = self.linear(block + "mlp.up_proj", normed)
                inner = [g / (1 + math.exp(-g)) * u for g, u in zip(gate, up)]
                x[position] = [a + b for a, b in zip(row, self.linear(block + "mlp.down_proj", inner))]
        return [self.linear("lm_head", self.norm("model.norm", row)) for row in x]


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

    def test_numbers_beside_plain_python(self):
        # bf16 weights stand in for a checkpoint that lost something, and lose something themselves.
        other = c.write_folder(self.path("other"), model("BF16"))
        found = self.evaluate(self.source, other)
        original, changed = [PlainLlama(m) for m in (self.model, model("BF16"))]
        losses, kls, same = [], [], 0
        for ids in sequences():
            p, q = [[log_softmax(row) for row in m.logits(ids)] for m in (original, changed)]
            for i, token in enumerate(ids[1:]):
                losses.append(-p[i][token])
                kls.append(sum(math.exp(a) * (a - b) for a, b in zip(p[i], q[i])))
                same += p[i].index(max(p[i])) == q[i].index(max(q[i]))
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


class CalibrateTest(ToolTest):
    def test_statistics_beside_plain_python(self):
        made = model()
        source = c.write_folder(self.path("model"), made)
        tokens = self.put("ids.txt", ",".join(map(str, IDS)).encode())
        files = [self.path(f"stats{threads}.safetensors") for threads in (1, 3)]
        for threads, file in zip((1, 3), files):
            self.assert_done(run("calibrate", source, "--tokens", tokens, "--length", str(LENGTH), "-o", file,
                                 "--threads", str(threads)))
        with open(files[0], "rb") as one, open(files[1], "rb") as three:
            self.assertEqual(one.read(), three.read())
        plain = PlainLlama(made)
        for ids in sequences():
            plain.logits(ids)
        stats, metadata = c.read_safetensors(files[0])
        self.assertEqual(metadata["tokens"], str(len(IDS)))
        self.assertEqual({name.rsplit(".", 1)[0] for name in stats}, set(plain.inputs))
        for module, rows in plain.inputs.items():
            for what, value_of in (("absmax", lambda v: max(map(abs, v))), ("min", min), ("max", max),
                                   ("mean_square", lambda v: sum(x * x for x in v) / len(v))):
                got = stats[f"{module}.{what}"].values()
                for channel, values in enumerate(zip(*rows)):
                    want = value_of(values)
                    self.assertAlmostEqual(got[channel], want, delta=1e-5 * max(abs(want), 1), msg=f"{module}.{what}")
        self.assert_refused(run("calibrate", source, "--tokens", tokens, "-o", files[0]), "exists already")
        self.assert_done(run("calibrate", source, "--tokens", tokens, "-o", files[0], "--force"))
        self.assert_done(run("quantize", source, "-o", self.path("static"), "--scheme", "w8a8-static", "--stats", files[0]))
        self.assert_refused(run("calibrate", self.path("static"), "--tokens", tokens, "-o", self.path("x")), "is quantized")


if __name__ == "__main__":
    unittest.main()
