"""kvant eval: its JSON document, its page and its table: the same numbers, tokens in their context, nothing but text from
a checkpoint or a tokenizer."""

import json
import math
import os
import re
import unittest

import checkpoints as c
import page
from test_cli import on_a_terminal
from test_eval import IDS, LENGTH, PlainLlama, log_softmax, model, sequences
from test_report import EVAL_SCHEMA, ReportTest, number, parse, same, shown, value_of
from tool import run

# Ids 0 to 39: words, a part of a character, and what a page must not take for markup.
VOCABULARY = [f"\u0120w{i}" for i in range(40)]
VOCABULARY[9] = "\u00c3"
VOCABULARY[7] = "</td><script>alert(1)</script>"
VOCABULARY[3] = "\"'&<b>"
VOCABULARY[26] = "\u010a"
SHOWN = {9: "<0xC3>", 7: "</td><script>alert(1)</script>", 3: "\"'&<b>", 26: "\n"}


def text_of(ids):
    return "".join(SHOWN.get(i, f" w{i}") for i in ids)


def bert(seed=8, sizes=(16, 4, 24)):
    hidden, heads, inner = sizes
    make = c.Maker("F32", seed)
    for name, rows in (("word", 40), ("position", 64), ("token_type", 2)):
        make.table(f"embeddings.{name}_embeddings", rows, hidden)
    make.norm("embeddings.LayerNorm", hidden, True)
    block = "encoder.layer.0."
    for name, out, inside in (("attention.self.query", hidden, hidden), ("attention.self.key", hidden, hidden),
                              ("attention.self.value", hidden, hidden), ("attention.output.dense", hidden, hidden),
                              ("intermediate.dense", inner, hidden), ("output.dense", hidden, inner)):
        make.linear(block + name, out, inside, True)
    make.norm(block + "attention.output.LayerNorm", hidden, True)
    make.norm(block + "output.LayerNorm", hidden, True)
    config = c.config_of("bert", "BertModel", "F32", hidden_size=hidden, num_hidden_layers=1, num_attention_heads=heads,
                         intermediate_size=inner, vocab_size=40, max_position_embeddings=64, hidden_act="gelu")
    return c.Model(make.tensors, config, make.linears)


class EvalReportTest(ReportTest):
    def setUp(self):
        super().setUp()
        self.model = model()
        self.source = c.write_folder(self.path("model"), self.model, other_files=False)
        self.tokens = self.put("ids.txt", " ".join(map(str, IDS)))

    def put_tokenizer(self, vocabulary=VOCABULARY):
        with open(os.path.join(self.source, "tokenizer.json"), "w", encoding="utf-8") as file:
            json.dump({"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False},
                       "model": {"type": "BPE", "vocab": {v: i for i, v in enumerate(vocabulary)}, "merges": []}}, file)

    def evaluate(self, *arguments, tokens=None):
        """(the document, the page), checked against each other."""
        file = self.path("report.html")
        ran = self.assert_done(run("eval", *arguments, "--tokens", tokens or self.tokens, "--length", str(LENGTH), "--json",
                                   "--report", file))
        document = parse(ran.stdout)
        self.check_schema(document, EVAL_SCHEMA)
        root = page.read(file)
        self.check_head(root, has_script=False)
        self.assertEqual(page.outside_references(root), [])
        self.assertEqual(root.find("script"), [])
        self.check_facts(document, root)
        return document, root

    def check_facts(self, document, root):
        models = [document["original"], *document["quantized"]]
        facts = ["bytes", "bits_per_weight", *(["mean_cosine", "min_cosine", "rank_agreement"] if document["is_encoder"] else
                                               ["perplexity", "mean_kl", "kl_99", "same_top", "mean_log_probability_change"])]
        for fact in facts:
            cells = root.one(f"tr[data-fact={fact}]").find("td")
            self.assertEqual(len(cells), len(models))
            for cell, one in zip(cells, models):
                value = one.get(fact)
                if value is None:
                    self.assertEqual(shown(cell), "\u2013")
                else:
                    self.assertTrue(same(number(value), float(value_of(cell))), (fact, value, cell))
        self.assertEqual([shown(cell) for cell in root.one("tr[data-fact=label]").find("td")], [m["label"] for m in models])
        self.assertEqual([shown(cell) for cell in root.one("tr[data-fact=verdict]").find("td")][1:],
                         [m["verdict"] for m in models[1:]])
        self.assertIn(document["verdict_rule"], shown(root.one("#rule")))
        # One point for each checkpoint, where its numbers are.
        charts = root.find("#sizes svg")
        for chart, key in zip(charts, ["mean_kl", "perplexity"]):
            points = [(float(g.get("data-bytes")), float(g.get("data-v"))) for g in chart.find("g[data-v]")]
            wanted = [(m["bytes"], number(m[key])) for m in document["quantized"] if not document["is_encoder"]]
            if document["is_encoder"]:
                wanted = [(m["bytes"], 1 - number(m["mean_cosine"])) for m in document["quantized"]]
            elif key == "perplexity":
                wanted.append((models[0]["bytes"], number(models[0][key])))
            self.assertTrue(all(same(a, b) for p, w in zip(points, wanted) for a, b in zip(p, w)), (points, wanted))
            self.assertEqual(len(points), len(wanted))

    def check_tokens(self, document, root, tokenizer):
        for q, quantized in enumerate(document["quantized"]):
            rows = root.find(f"details#t{q} tbody tr")
            self.assertEqual(len(rows), len(quantized["differences"]))
            for row, one in zip(rows, quantized["differences"]):
                self.assertEqual((row.get("data-sequence"), row.get("data-position")), (str(one["sequence"]), str(one["position"])))
                ids = one["context"]["ids"]
                start = one["sequence"] * LENGTH
                self.assertEqual(ids, IDS[start:start + one["position"] + 1][-30:])
                self.assertEqual(one["token"]["id"], IDS[start + one["position"] + 1])
                self.assertEqual(one["context"]["text"], text_of(ids) if tokenizer else None)
                self.assertEqual(one["token"]["text"], text_of([one["token"]["id"]]) if tokenizer else None)
                seen = row.one("mark").text
                self.assertEqual(seen.replace("\u21b5", "\n"), one["token"]["text"] if tokenizer else f"#{one['token']['id']}")
                if not tokenizer:
                    self.assertTrue(row.one("td.context").text.startswith(" ".join(f"#{i}" for i in ids)))

    def quantized(self, *flags):
        out = self.path("-".join(["q", *(f.strip("-") for f in flags)]))
        self.assert_done(run("quantize", self.source, "-o", out, *flags))
        return out

    def test_tokens_that_differ_beside_plain_python(self):
        self.put_tokenizer()
        other = c.write_folder(self.path("other"), model("BF16"), other_files=False)
        document, root = self.evaluate(self.source, other)
        self.check_tokens(document, root, True)
        plain = [PlainLlama(m) for m in (self.model, model("BF16"))]
        wanted = []
        for s, ids in enumerate(sequences()):
            p, q = [[log_softmax(row) for row in m.logits(ids)] for m in plain]
            for i, token in enumerate(ids[1:]):
                kl = sum(math.exp(a) * (a - b) for a, b in zip(p[i], q[i]))
                wanted.append((kl, s, i, token, p[i], q[i]))
        wanted.sort(key=lambda w: -w[0])
        found = document["quantized"][0]["differences"]
        self.assertEqual(len(found), min(20, len(wanted)))
        for one, (kl, sequence, position, token, p, q) in list(zip(found, wanted))[:5]:
            self.assertEqual((one["sequence"], one["position"], one["token"]["id"]), (sequence, position, token))
            self.assertAlmostEqual(one["kl"], kl, delta=1e-3 * kl)
            self.assertAlmostEqual(one["original_probability"], math.exp(p[token]), delta=1e-4)
            self.assertAlmostEqual(one["probability"], math.exp(q[token]), delta=1e-4)
            for guess, logs in ((one["original_top"], p), (one["top"], q)):
                self.assertEqual(guess["id"], logs.index(max(logs)))
                self.assertAlmostEqual(guess["probability"], math.exp(max(logs)), delta=1e-4)
                self.assertEqual(guess["text"], text_of([guess["id"]]))

    def test_several_checkpoints_without_a_tokenizer(self):
        w8a8, w4a16 = self.quantized(), self.quantized("--scheme", "w4a16", "--group-size", "16")
        document, root = self.evaluate(self.source, w8a8, w4a16)
        self.check_tokens(document, root, False)
        self.assertIn("There is no tokenizer", root.one("#tokens").text)
        lines = root.find("#positions svg path.line")
        self.assertEqual(len(lines), 2)
        self.assertEqual(len(root.find("#positions svg rect.hit")), LENGTH - 1)

    def test_bits_per_weight(self):
        """By hand: codes, scales and zero points of the linears of blocks, divided by their weights."""
        for flags in ((), ("--scheme", "w4a16", "--group-size", "16")):
            out = self.quantized(*flags)
            found = self.evaluate(self.source, out)[0]
            self.assertEqual(found["original"]["bits_per_weight"], 32)
            tensors, weights, stored = c.read_folder(out), 0, 0
            for name, tensor in self.model.tensors.items():
                if ".layers." in name and name.endswith("_proj.weight"):
                    module = name[:-len("weight")]
                    weights += tensor.shape[0] * tensor.shape[1]
                    stored += sum(len(t.data) for n, t in tensors.items()
                                  if n.startswith(module + "weight") and not n.endswith("_shape"))
            self.assertGreater(weights, 0)
            self.assertAlmostEqual(found["quantized"][0]["bits_per_weight"], 8 * stored / weights, delta=1e-12)

    def test_hostile_tokens_and_names(self):
        self.put_tokenizer()
        evil = self.path("<img src=x onerror=alert(1)>&\"'")
        self.assert_done(run("quantize", self.source, "-o", evil))
        document, root = self.evaluate(self.source, evil)
        self.check_tokens(document, root, True)
        self.assertIn(VOCABULARY[7], root.text)
        self.assertEqual([n for n in root.nodes() if n.tag in ("img", "script")], [])

    def test_the_original_alone_and_itself(self):
        document, root = self.evaluate(self.source)
        self.assertEqual((document["quantized"], root.find("svg")), ([], []))
        document, root = self.evaluate(self.source, self.source)
        self.assertEqual(document["quantized"][0]["differences"], [])
        self.assertEqual(document["quantized"][0]["label"], "model (2)")
        self.assertIn("no difference", root.one("#tokens").text)

    def test_a_model_that_is_not_finite(self):
        broken = model()
        name = "model.layers.1.mlp.down_proj.weight"
        broken.tensors[name] = c.Tensor.of([math.nan] * len(broken.tensors[name].values()), "F32", broken.tensors[name].shape)
        document, _ = self.evaluate(self.source, c.write_folder(self.path("broken"), broken, other_files=False))
        found = document["quantized"][0]
        self.assertEqual((found["verdict"], found["mean_kl"], found["perplexity"]), ("broken", "inf", "nan"))
        self.assertEqual(found["differences"][0]["top"]["id"], -1)

    def test_encoders(self):
        source = c.write_folder(self.path("bert"), bert(), other_files=False)
        other = c.write_folder(self.path("bert-2"), bert(seed=9), other_files=False)
        # IDS in sequences of nine: three sentences, the least that have an order.
        document, root = self.evaluate(source, source, other)
        itself, changed = document["quantized"]
        self.assertEqual((itself["verdict"], itself["min_cosine"], itself["rank_agreement"]), ("good", 1, 1))
        self.assertEqual(changed["verdict"], "broken")
        self.assertLess(changed["min_cosine"], changed["mean_cosine"])
        self.assertTrue(-1 <= changed["rank_agreement"] <= 1)
        self.assertEqual((root.find("#tokens"), root.find("#positions")), ([], []))
        two = self.put("two.txt", " ".join(map(str, IDS[:2 * LENGTH])))
        document, _ = self.evaluate(source, other, tokens=two)
        self.assertIsNone(document["quantized"][0]["rank_agreement"])
        ran = self.assert_done(run("eval", source, other, "--tokens", two, "--length", str(LENGTH)))
        self.assert_says(ran.stdout, ["ranks", "mean cosine", "bits", "broken", "good: mean cosine above 0.999"], ran)

    def test_eighty_columns(self):
        out = self.quantized("--scheme", "w4a16", "--group-size", "16")
        for columns in (80, 120, 160):
            text, code = on_a_terminal(["eval", self.source, out, "--tokens", self.tokens, "--quiet"],
                                       env={"COLUMNS": str(columns), "NO_COLOR": "1"})
            self.assertEqual(code, 0, text)
            lines = text.replace("\r", "").splitlines()
            self.assertLessEqual(max(map(len, lines)), columns, text)
            head = lines[0]
            for title in ("checkpoint", "size", "bits", "perplexity", "KL", "same top", "verdict"):
                self.assertIn(title, head)
            self.assertEqual("log p" in head, columns > 80, text)
        ran = self.assert_done(run("eval", self.source, out, "--tokens", self.tokens))
        self.assert_says(ran.stdout, ["KL 99%", "log p", "good: mean KL below 0.02"], ran)

    def test_where_a_report_cannot_be(self):
        taken = self.put("taken.txt", "mine")
        for path, sentence in ((taken, "is not a kvant report"), (self.folder, "is a folder"),
                               (self.path("none", "r.html"), "does not exist")):
            self.assert_refused(run("eval", self.source, "--tokens", self.tokens, "--report", path), sentence)
        with open(taken, encoding="utf-8") as file:
            self.assertEqual(file.read(), "mine")
        ran = self.assert_done(run("eval", self.source, "--tokens", self.tokens, "--report", self.path("r.html")))
        self.assertRegex(ran.stdout, r"(?m)^report  .*r\.html$")
        self.assertEqual(re.findall("[\x00-\x08\x0b-\x1f\x7f]", page.read(self.path("r.html")).text), [])


if __name__ == "__main__":
    unittest.main()
