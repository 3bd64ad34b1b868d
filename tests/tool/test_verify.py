"""kvant verify: every byte of a folder that kvant wrote, by its checksums, and what it says it did not check."""

import ctypes
import ctypes.util
import json
import os
import shutil
import unittest

import checkpoints as c
from tool import ToolTest, digest_tree, load_json, run

PART = 4 << 20
# Its own, and one that has the times of the input's files.
WITHOUT = ("kvant/checksums.json", "kvant/manifest.json")


class _Hash128(ctypes.Structure):
    _fields_ = [("low64", ctypes.c_uint64), ("high64", ctypes.c_uint64)]


_library = ctypes.CDLL(ctypes.util.find_library("xxhash") or "libxxhash.so.0")
_library.XXH3_128bits.restype = _Hash128
_library.XXH3_128bits.argtypes = [ctypes.c_char_p, ctypes.c_size_t]


def xxh3_128(data):
    """As xxh128sum prints it."""
    made = _library.XXH3_128bits(data, len(data))
    return made.high64.to_bytes(8, "big") + made.low64.to_bytes(8, "big")


def checksum(path):
    """The rule of docs/checkpoints.md, stated again."""
    with open(path, "rb") as file:
        data = file.read()
    if len(data) <= PART:
        return xxh3_128(data).hex()
    return xxh3_128(b"".join(xxh3_128(data[i:i + PART]) for i in range(0, len(data), PART))).hex()


def flip(path, at):
    with open(path, "r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 1]))


class ChecksumsTest(ToolTest):
    def setUp(self):
        super().setUp()
        self.model = c.llama("BF16", hidden=32, intermediate=64, layers=2)
        self.source = c.write_folder(self.path("in"), self.model, shards=3)
        self.stats = self.path("stats.safetensors")
        c.write_safetensors(self.stats, c.make_stats(self.model))
        self.out = self.path("out")
        self.flags = ["--smooth", "--stats", self.stats]

    def quantize(self, *more):
        return self.assert_done(run("quantize", self.source, "-o", self.out, *self.flags, *more))

    def files(self):
        return sorted(name for name in digest_tree(self.out) if not name.endswith("/"))

    def verify(self):
        ran = run("verify", self.out, "--json")
        return ran, json.loads(ran.stdout)

    def assert_problem(self, name, *words):
        """Exit code 1, and a problem that names the file."""
        ran, document = self.verify()
        self.assertEqual(ran.returncode, 1, ran)
        self.assertFalse(document["ok"])
        named = [p for p in document["problems"] if os.path.join(self.out, name) in p]
        self.assertTrue(named, ran)
        self.assert_says("\n".join(named), words, ran)

    def test_every_file_is_listed_with_its_bytes(self):
        self.quantize()
        document = load_json(os.path.join(self.out, "kvant", "checksums.json"))
        self.assertEqual(document["format"], "kvant-checksums-1")
        listed = {file["name"]: file for file in document["files"]}
        self.assertEqual(sorted([*listed, *WITHOUT]), self.files())
        for name, file in listed.items():
            path = os.path.join(self.out, name)
            self.assertEqual(file, {"name": name, "bytes": os.path.getsize(path), "xxh3_128": checksum(path)})

    def test_files_of_many_parts(self):
        # A counter of 20 MiB that is copied: no two of its parts are alike.
        source = self.path("one.safetensors")
        table = b"".join(i.to_bytes(4, "little") for i in range(5 << 20))
        c.write_safetensors(source, {"model.embed_tokens.weight": c.Tensor("F32", [5 << 18, 4], table),
                                     "model.layers.0.mlp.up_proj.weight": c.Tensor("F32", [8, 8], table[:256])})
        for threads in (1, 3):
            self.assert_done(run("quantize", source, "-o", self.out, "--threads", threads, "--max-memory", "64M", "--force"))
            (file,) = [f for f in load_json(os.path.join(self.out, "kvant", "checksums.json"))["files"]
                       if f["name"] == "model.safetensors"]
            self.assertEqual(file["xxh3_128"], checksum(os.path.join(self.out, "model.safetensors")))
        self.assert_done(run("verify", self.out))
        flip(os.path.join(self.out, "model.safetensors"), 5 * PART + 11)
        self.assert_problem("model.safetensors")

    def test_a_flipped_byte_in_each_file(self):
        self.quantize()
        ran, document = self.verify()
        self.assert_done(ran)
        self.assertIn(f"every byte of {len(self.files()) - 2} files", document["checks"])
        self.assertIn("kvant/manifest.json: it has no checksum; only --resume reads it", document["not_checked"])
        for name in self.files():
            if name in WITHOUT:
                continue
            path = os.path.join(self.out, name)
            for at in {0, os.path.getsize(path) // 2, os.path.getsize(path) - 1}:
                with self.subTest(name, at=at):
                    flip(path, at)
                    self.assert_problem(name, "changed")
                    flip(path, at)
        self.assert_done(run("verify", self.out))

    def test_seven_bytes_of_weights(self):
        self.quantize()
        path = os.path.join(self.out, "model-00002-of-00003.safetensors")
        with open(path, "r+b") as file:
            file.seek(-100, os.SEEK_END)
            file.write(b"sevenxx")
        self.assert_problem("model-00002-of-00003.safetensors", "changed")

    def test_truncated_grown_and_missing(self):
        self.quantize()
        for name in self.files():
            if name in WITHOUT:
                continue
            path = os.path.join(self.out, name)
            with open(path, "rb") as file:
                data = file.read()
            for damage, words in ((data[:-1], ["bytes, kvant wrote"]), (data + b"\0", ["bytes, kvant wrote"]), (None, ["missing"])):
                with self.subTest(name, damage=words):
                    os.remove(path)
                    if damage is not None:
                        with open(path, "wb") as file:
                            file.write(damage)
                    self.assert_problem(name, *words)
                    with open(path, "wb") as file:
                        file.write(data)
        self.assert_done(run("verify", self.out))

    def test_a_file_that_was_added(self):
        self.quantize()
        with open(os.path.join(self.out, "notes.txt"), "w", encoding="utf-8") as file:
            file.write("mine")
        ran, document = self.verify()
        self.assert_done(ran)
        self.assertIn("notes.txt: kvant did not write it", document["not_checked"])
        shutil.copy(self.stats, os.path.join(self.out, "adapter.safetensors"))
        self.assert_problem("adapter.safetensors", "remove it")

    def test_a_list_that_is_damaged(self):
        self.quantize()
        path = os.path.join(self.out, "kvant", "checksums.json")
        for text in ("", "{", "[]", "{}", '{"format": "kvant-checksums-1"}', '{"format": "kvant-checksums-1", "files": [1]}',
                     '{"format": "kvant-checksums-1", "files": [{"name": "../in/config.json", "bytes": -1, "xxh3_128": "0"}]}'):
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
            self.assert_problem("kvant/checksums.json")

    def test_a_resumed_run_has_the_same_checksums(self):
        self.quantize()
        whole = digest_tree(self.out)
        for lost in (["config.json"], ["config.json", "kvant/checksums.json"],
                     ["config.json", c.INDEX_NAME, "kvant/checksums.json", "model-00002-of-00003.safetensors", "tokenizer.json"]):
            for name in lost:
                os.remove(os.path.join(self.out, name))
            self.quantize("--resume")
            self.assertEqual(digest_tree(self.out), whole, lost)
            self.assert_done(run("verify", self.out))
        # A finished run without its checksums is finished again.
        os.remove(os.path.join(self.out, "kvant", "checksums.json"))
        self.quantize("--resume")
        self.assertEqual(digest_tree(self.out), whole)

    def test_bytes_do_not_depend_on_threads_or_memory(self):
        self.quantize()
        whole = digest_tree(self.out)
        self.quantize("--force", "--threads", "3", "--max-memory", "64M")
        self.assertEqual(digest_tree(self.out), whole)


class NotCheckedTest(ToolTest):
    def not_checked(self, path):
        ran = self.assert_done(run("verify", path))
        return "\n".join(line for line in ran.stdout.splitlines() if line.startswith("not checked"))

    def test_a_folder_without_checksums(self):
        source = c.write_folder(self.path("in"), c.llama())
        said = self.not_checked(source)
        self.assertIn("contents of the files: the folder has no kvant/checksums.json", said)
        self.assertIn("values of the weights: 'kvant inspect --stats'", said)

    def test_one_file(self):
        c.write_safetensors(self.path("in.safetensors"), c.llama().tensors)
        self.assert_done(run("quantize", self.path("in.safetensors"), "-o", self.path("out.safetensors")))
        said = self.not_checked(self.path("out.safetensors"))
        self.assertIn("contents of the file: only a folder that kvant wrote has checksums", said)
        self.assertIn("values of the weights against the original: 'kvant compare", said)

    def test_values_need_the_original(self):
        source = c.write_folder(self.path("in"), c.llama())
        self.assert_done(run("quantize", source, "-o", self.path("out")))
        said = self.not_checked(self.path("out"))
        self.assertIn("values of the weights against the original: 'kvant compare", said)
        self.assertNotIn("contents", said)
        quiet = self.assert_done(run("verify", "-q", self.path("out")))
        self.assertNotIn("checked", quiet.stdout)


class ConfigTest(ToolTest):
    """What config.json says against the tensors, in folders without checksums."""

    def setUp(self):
        super().setUp()
        model = c.llama(hidden=32, intermediate=48, layers=2)
        model.config.update(num_attention_heads=4, num_key_value_heads=2, intermediate_size=48, vocab_size=40, hidden_act="silu",
                            max_position_embeddings=64)
        source = c.write_folder(self.path("in"), model)
        self.out = self.path("out")
        self.assert_done(run("quantize", source, "-o", self.out))
        os.remove(os.path.join(self.out, "kvant", "checksums.json"))
        self.config = load_json(os.path.join(self.out, "config.json"))

    def verify_with(self, **changes):
        config = {**self.config, **changes}
        with open(os.path.join(self.out, "config.json"), "w", encoding="utf-8") as file:
            json.dump({key: value for key, value in config.items() if value is not None}, file)
        return run("verify", self.out)

    def test_all_is_there(self):
        self.assertIn("shapes of 18 modules against config.json", self.assert_done(self.verify_with()).stdout)

    def test_shapes_that_do_not_fit(self):
        self.assert_refused(self.verify_with(intermediate_size=64), "model.layers.0.mlp.gate_proj", "[48, 32]", "[64, 32]",
                            stdout_too=True)
        self.assert_refused(self.verify_with(num_key_value_heads=4), "k_proj", "[16, 32]", "[32, 32]", stdout_too=True)

    def test_fields_that_are_missing(self):
        self.assert_refused(self.verify_with(model_type=None), "config.json", "model_type", stdout_too=True)
        self.assert_refused(self.verify_with(quantization_config=None), "quantization_config", stdout_too=True)
        ran = self.assert_done(self.verify_with(num_attention_heads=None))
        self.assert_says(ran.stdout, ["not checked  shapes against config.json", "num_attention_heads"], ran)


if __name__ == "__main__":
    unittest.main()
