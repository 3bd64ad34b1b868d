"""What --json prints, against the schemas in docs/: one for every command that has it."""

import glob
import json
import os
import re
import unittest

import jsonschema

import checkpoints as c
import gguf
from tool import ToolTest, load_json, run

DOCS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "docs")
SCHEMAS = {os.path.basename(path).split(".")[0]: load_json(path) for path in glob.glob(os.path.join(DOCS, "*.schema.json"))}


def schemas(rules):
    """A schema and every one inside it."""
    yield rules
    inside = [*rules.get("properties", {}).values(), *rules.get("$defs", {}).values(), *rules.get("anyOf", [])]
    inside += [rules[key] for key in ("items", "additionalProperties") if isinstance(rules.get(key), dict)]
    for below in inside:
        yield from schemas(below)


class SchemaTest(unittest.TestCase):
    def test_every_object_is_described_to_the_end(self):
        for name, schema in SCHEMAS.items():
            described = [rules for rules in schemas(schema) if "properties" in rules]
            self.assertTrue(described)
            for one in described:
                with self.subTest(name):
                    self.assertIs(one.get("additionalProperties"), False, one)
                    self.assertLessEqual(set(one.get("required", [])), set(one["properties"]), one)

    def test_every_keyword_is_checked(self):
        """A validator takes a keyword that it does not know for a remark: nothing must go unchecked in silence."""
        known = set(jsonschema.Draft202012Validator.VALIDATORS) | {"$schema", "$defs", "title", "description"}
        for schema in SCHEMAS.values():
            jsonschema.Draft202012Validator.check_schema(schema)
            for rules in schemas(schema):
                self.assertLessEqual(set(rules), known)

    def test_every_document_has_a_format(self):
        for name, schema in SCHEMAS.items():
            formats = [rules["const"] for rules in schemas(schema) if str(rules.get("const", "")).startswith("kvant-")]
            self.assertTrue(formats, name)
            for text in formats:
                self.assertRegex(text, rf"^kvant-{name}(-gguf)?-[0-9]+$")


class DocumentsTest(ToolTest):
    def document(self, command, *arguments, code=0):
        """What the command prints, which its schema takes, and which begins with the format."""
        ran = run(command, *arguments, "--json", cwd=self.folder)
        self.assertEqual(ran.returncode, code, ran)
        document = json.loads(ran.stdout)
        self.assert_fits(command, document)
        return document

    def assert_fits(self, name, document):
        problems = jsonschema.Draft202012Validator(SCHEMAS[name]).iter_errors(document)
        self.assertEqual([f"{problem.json_path}: {problem.message}" for problem in problems], [])
        self.assertEqual(next(iter(document)), "format")

    def setUp(self):
        super().setUp()
        self.model = c.llama()
        self.model.config.update(num_attention_heads=4, num_key_value_heads=2, intermediate_size=48, vocab_size=40, hidden_act="silu",
                                 max_position_embeddings=512)
        self.source = c.write_folder(self.path("in"), self.model, shards=2)
        self.tokens = self.put("ids.txt", " ".join(str(i * 7919 % 40) for i in range(300)))

    def test_every_command_that_prints_json_has_a_schema(self):
        commands = re.findall(r"(?m)^  ([a-z]+) ", run("--help").stdout.split("Commands:")[1].split("Options:")[0])
        with_json = {command for command in commands if "--json" in run(command, "--help").stdout.split("Examples:")[0]}
        self.assertEqual(with_json, set(SCHEMAS))

    def test_stats(self):
        self.document("calibrate", self.source, "--tokens", self.tokens, "-o", self.path("stats"))
        self.document("stats", "show", self.path("stats"))
        self.document("stats", "merge", self.path("stats"), self.path("stats"), "-o", self.path("both"))

    def test_quantize(self):
        self.document("calibrate", self.source, "--tokens", self.tokens, "-o", self.path("stats"))
        stats = ["--smooth", "--stats", self.path("stats")]
        self.document("quantize", self.source, "--dry-run")
        self.document("quantize", self.source, *stats, "-o", self.path("out"), "--dry-run")
        document = self.document("quantize", self.source, *stats, "-o", self.path("out"), "--report", self.path("r.html"))
        self.assert_fits("compare", document["comparison"])
        self.document("quantize", self.source, *stats, "-o", self.path("out"), "--resume")
        refused = self.document("quantize", self.source, *stats, "-o", self.path("out"), "--dry-run")
        self.assertIn("finished", refused["refusal"])
        self.document("verify", self.path("out"))
        self.document("compare", self.source, self.path("out"))
        self.document("eval", self.source, self.path("out"), "--tokens", self.tokens)

    def test_inspect(self):
        self.document("inspect", self.source)
        self.document("inspect", self.source, "--stats")
        self.assert_done(run("quantize", self.source, "-o", self.path("out")))
        self.assertEqual(self.document("inspect", self.path("out"))["scheme"], "w8a8")
        c.write_safetensors(self.path("x.safetensors"), {"a.weight": c.Tensor.of([float("nan")] * 4, "F32", [2, 2])})
        self.document("inspect", self.path("x.safetensors"), "--stats")

    def test_gguf(self):
        metadata, tensors, _ = gguf.llama()
        source = self.put("model.gguf", gguf.to_file(metadata, tensors))
        self.document("inspect", source)
        self.document("convert", source, "-o", self.path("out"), "--to", "bf16")

    def test_verify_of_what_is_broken(self):
        self.assert_done(run("quantize", self.source, "-o", self.path("out")))
        os.truncate(self.path("out", "model-00001-of-00002.safetensors"), 100)
        self.assertFalse(self.document("verify", self.path("out"), code=1)["ok"])
        self.assertFalse(self.document("verify", self.path("nowhere"), code=1)["ok"])

    def test_info_and_demo(self):
        self.document("info")
        document = self.document("demo")
        self.assert_fits("compare", document["comparison"])
        self.assert_fits("eval", document["evaluation"])


if __name__ == "__main__":
    unittest.main()
