"""Damaged and hostile files through every command that reads them: a sentence and exit 1, never a crash, a hang or
gigabytes of memory."""

import json
import math
import os
import random
import struct
import unittest

import checkpoints as c
from tool import SANITIZED, ToolTest, load_json, run

GIBIBYTE = 1 << 30
LENGTH = struct.Struct("<Q")
MODULE = "model.layers.0.mlp.up_proj"


def entry(dtype="F32", shape=(2, 2), begin=0, end=16):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


def text_entry(dtype='"F32"', shape="[2,2]", offsets="[0,16]"):
    return f'{{"dtype":{dtype},"shape":{shape},"data_offsets":{offsets}}}'


def with_header(header, data=b"\0" * 16):
    """A file of a header (JSON as text, bytes or an object) and data."""
    if isinstance(header, dict):
        header = json.dumps(header)
    return c.header_bytes(header) + data


def of_one(**fields):
    return with_header('{"a.weight":' + text_entry(**fields) + "}")


def deep(levels, inside=""):
    return "[" * levels + inside + "]" * levels


GOOD = with_header({"a.weight": entry()})

# Files that no reader may take. Sizes are small: what is large has a test of its own.
FILES = {
    "empty": b"",
    "seven_bytes": b"\0" * 7,
    "length_only": LENGTH.pack(0),
    "length_of_nothing": LENGTH.pack(100),
    "length_beyond_the_file": LENGTH.pack(1000) + b"{}",
    "length_beyond_the_format": LENGTH.pack(100_000_001) + b"{}",
    "length_of_2_to_63": LENGTH.pack(1 << 63) + b"{}",
    "length_that_wraps": LENGTH.pack((1 << 64) - 1) + b"{}",
    "length_that_wraps_by_8": LENGTH.pack((1 << 64) - 8) + b"{}",
    "big_endian_length": struct.pack(">Q", 2) + b"{}",
    "truncated_header": GOOD[:30],
    "truncated_data": GOOD[:-1],
    "no_data": GOOD[:-16],
    "trailing_byte": GOOD + b"\0",
    "trailing_bytes": GOOD + b"x" * 1000,
    "data_without_tensors": with_header("{}", b"x"),
    "list": with_header("[]", b""),
    "null": with_header("null", b""),
    "number": with_header("7", b""),
    "string": with_header('"x"', b""),
    "spaces_before": with_header(" {}", b""),
    "byte_order_mark": with_header(b"\xef\xbb\xbf{}", b""),
    "only_spaces": with_header("   ", b""),
    "not_closed": with_header('{"a.weight":' + text_entry()),
    "two_documents": with_header("{}{}", b""),
    "garbage_behind": with_header("{}x", b""),
    "zero_byte_behind": with_header(b"{}\0", b""),
    "comment": with_header("{/* x */}", b""),
    "trailing_comma": with_header('{"a.weight":' + text_entry() + ",}"),
    "single_quotes": with_header("{'a':1}", b""),
    "not_utf8_name": with_header(b'{"a\xff\xfe":' + text_entry().encode() + b"}"),
    "overlong_utf8": with_header(b'{"a\xc0\xaf":' + text_entry().encode() + b"}"),
    "surrogate_utf8": with_header(b'{"a\xed\xa0\x80":' + text_entry().encode() + b"}"),
    "lone_surrogate": with_header('{"a\\ud800":' + text_entry() + "}"),
    "raw_control_character": with_header(b'{"a\n":' + text_entry().encode() + b"}"),
    "bad_escape": with_header('{"a\\q":' + text_entry() + "}"),
    "random": random.Random(1).randbytes(1000),
    "random_header": with_header(random.Random(2).randbytes(100), b""),
    # Names
    "name_twice": with_header('{"a.weight":' + text_entry() + ',"a.weight":' + text_entry() + "}"),
    "name_twice_after_unescaping": with_header('{"a.weight":' + text_entry() + ',"\\u0061.weight":' + text_entry() + "}"),
    "name_twice_after_unescaping_empty": with_header(
        '{"/":' + text_entry(shape="[0]", offsets="[0,0]") + ',"\\/":' + text_entry(shape="[0]", offsets="[0,0]") + "}", b""),
    "metadata_twice": with_header('{"__metadata__":{},"__metadata__":{}}', b""),
    "metadata_twice_after_unescaping": with_header('{"__metadata__":{},"__met\\u0061data__":{}}', b""),
    "metadata_key_twice": with_header('{"__metadata__":{"a":"1","\\u0061":"2"}}', b""),
    # Fields
    "field_twice": with_header('{"a.weight":{"dtype":"F32","dtype":"F32","shape":[2,2],"data_offsets":[0,16]}}'),
    "field_twice_after_unescaping": with_header(
        '{"a.weight":{"dtype":"F32","shape":[2,2],"sh\\u0061pe":[2,2],"data_offsets":[0,16]}}'),
    "offsets_twice": with_header('{"a.weight":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16],"data_offsets":[0,16]}}'),
    "field_missing": with_header('{"a.weight":{"dtype":"F32","shape":[2,2]}}'),
    "dtype_missing": with_header('{"a.weight":{"shape":[2,2],"data_offsets":[0,16]}}'),
    "shape_missing": with_header('{"a.weight":{"dtype":"F32","data_offsets":[0,16]}}'),
    "field_unknown": with_header('{"a.weight":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16],"x":1}}'),
    "entry_is_no_object": with_header('{"a.weight":[1]}', b""),
    "entry_is_null": with_header('{"a.weight":null}', b""),
    "metadata_is_no_object": with_header('{"__metadata__":[]}', b""),
    "metadata_is_null": with_header('{"__metadata__":null}', b""),
    "metadata_of_numbers": with_header('{"__metadata__":{"a":1}}', b""),
    "metadata_of_objects": with_header('{"__metadata__":{"a":{"b":"c"}}}', b""),
    "metadata_is_a_tensor": with_header('{"__metadata__":' + text_entry() + "}"),
    # Dtypes
    "dtype_unknown": of_one(dtype='"F33"'),
    "dtype_in_lower_case": of_one(dtype='"f32"'),
    "dtype_is_a_number": of_one(dtype="32"),
    "dtype_is_null": of_one(dtype="null"),
    "dtype_is_empty": of_one(dtype='""'),
    "dtype_with_control_characters": of_one(dtype='"\\u001b[31mF32"'),
    # Shapes
    "shape_is_a_number": of_one(shape="4"),
    "shape_is_an_object": of_one(shape="{}"),
    "shape_is_a_string": of_one(shape='"2,2"'),
    "dimension_negative": of_one(shape="[-2,-2]"),
    "dimension_negative_zero": of_one(shape="[-0,2]", offsets="[0,0]"),
    "dimension_as_float": of_one(shape="[2.0,2]"),
    "dimension_with_exponent": of_one(shape="[4e0]"),
    "dimension_as_string": of_one(shape='["2",2]'),
    "dimension_as_null": of_one(shape="[null]"),
    "dimension_as_list": of_one(shape="[[2],2]"),
    "dimension_beyond_64_bits": of_one(shape="[18446744073709551620]"),
    "dimension_beyond_63_bits": of_one(shape="[9223372036854775812]"),
    "dimension_of_40_digits": of_one(shape="[" + "9" * 40 + "]"),
    "dimension_with_leading_zero": of_one(shape="[02,2]"),
    "dimension_nan": of_one(shape="[NaN]"),
    "product_that_wraps_to_4": of_one(shape="[4294967296,4294967297]"),
    "product_that_wraps_to_0": of_one(shape="[4294967296,4294967296]", offsets="[0,0]"),
    "bytes_that_wrap": of_one(shape="[4611686018427387908]"),
    "bytes_that_wrap_to_16": of_one(dtype='"F64"', shape="[2305843009213693954]"),
    "zero_beside_an_overflow": with_header(
        '{"a.weight":' + text_entry(shape="[0,9223372036854775807,9223372036854775807]", offsets="[0,0]") + "}", b""),
    "overflow_before_a_zero": with_header(
        '{"a.weight":' + text_entry(shape="[4294967296,4294967296,0]", offsets="[0,0]") + "}", b""),
    "many_dimensions": with_header('{"a.weight":' + text_entry(shape=json.dumps([1] * 100000), offsets="[0,4]") + "}", b"\0" * 4),
    "size_too_small": of_one(shape="[2,1]"),
    "size_too_large": of_one(shape="[2,3]"),
    "size_of_another_dtype": of_one(dtype='"F64"'),
    "half_a_byte": with_header('{"a.weight":' + text_entry(dtype='"F4"', shape="[3]", offsets="[0,1]") + "}", b"\0"),
    # Offsets
    "offsets_as_floats": of_one(offsets="[0.0,16.0]"),
    "offsets_with_exponent": of_one(offsets="[0,1.6e1]"),
    "offsets_as_strings": of_one(offsets='["0","16"]'),
    "offsets_as_null": of_one(offsets="null"),
    "offsets_of_one": of_one(offsets="[16]"),
    "offsets_of_three": of_one(offsets="[0,16,16]"),
    "offsets_of_none": of_one(offsets="[]"),
    "offsets_negative": of_one(offsets="[-16,0]"),
    "offsets_reversed": of_one(offsets="[16,0]"),
    "offsets_beyond_64_bits": of_one(offsets="[18446744073709551616,18446744073709551632]"),
    "offsets_at_the_end_of_64_bits": of_one(offsets="[18446744073709551600,18446744073709551615]"),
    "offsets_at_the_end_of_63_bits": of_one(offsets="[9223372036854775791,9223372036854775807]"),
    "offsets_that_wrap": of_one(offsets="[18446744073709551608,8]"),
    "offsets_of_40_digits": of_one(offsets="[0," + "1" * 40 + "]"),
    "offsets_1e400": of_one(offsets="[0,1e400]"),
    "offsets_behind_the_file": of_one(offsets="[1000,1016]"),
    "hole_at_the_start": with_header({"a.weight": entry(begin=4, end=20)}, b"\0" * 20),
    "hole_between": with_header({"a": entry(begin=0, end=16), "b": entry(begin=20, end=36)}, b"\0" * 36),
    "overlap": with_header({"a": entry(begin=0, end=16), "b": entry(begin=8, end=24)}, b"\0" * 24),
    "the_same_place": with_header({"a": entry(), "b": entry()}),
    "one_inside_the_other": with_header({"a": entry(shape=[4, 2], end=32), "b": entry(begin=8, end=24)}, b"\0" * 32),
    "empty_inside_another": with_header({"a": entry(), "b": entry(shape=[0], begin=8, end=8)}),
    "empty_behind_the_end": with_header({"a": entry(), "b": entry(shape=[0], begin=17, end=17)}),
    # Depth
    "deep_in_shape": of_one(shape=deep(100)),
    "deeper_in_shape": of_one(shape=deep(100000)),
    "deep_without_end": of_one(shape="[" * 200000),
    "deep_objects": with_header('{"a":' * 100000 + "1" + "}" * 100000, b""),
    "deep_metadata": with_header('{"__metadata__":{"a":' + deep(100000) + "}}", b""),
    "deep_extra_field": with_header('{"a":{"x":' + deep(50000) + "}}", b""),
}

# Names that would change a terminal, and how a sentence must not hold them.
EVIL_NAMES = {"escape": "\x1b[31mred\x1b]0;title\x07", "newline": "two\nlines\rone", "bell": "\x07\x08\x7f", "null": "a\0b",
              "c1": "\x9b31m\x85", "direction": "a\u202e\u2066b", "quote": "a'b\"c\\d", "long": "n" * 5000}


class HostileTest(ToolTest):
    turn = 0

    def bounded(self, *arguments, timeout=20, most=GIBIBYTE, **more):
        ran = run(*arguments, timeout=timeout, **more)
        self.assertGreaterEqual(ran.returncode, 0, ran)  # negative: a signal
        if not SANITIZED:
            self.assertLess(ran.peak, most, ran)
        return ran

    def refused_by_all(self, path, *words, commands=("quantize", "inspect", "inspect --stats", "verify"), **more):
        if SANITIZED:  # all read with the same code, and a process takes long to start: one of them, in turn
            commands = commands[self.turn % len(commands):][:1]
            self.turn += 1
        for command in commands:
            with self.subTest(os.path.basename(path), command=command):
                verb, *flags = command.split()
                arguments = [verb, path, *flags]
                if verb == "quantize":
                    arguments += ["-o", self.path("out"), "--scheme", "w8a8"]
                ran = self.bounded(*arguments, **more)
                # verify reports problems as its result.
                self.assert_refused(ran, *words, stdout_too=verb == "verify")
                self.assertFalse(os.path.exists(self.path("out")), ran)


class FilesTest(HostileTest):
    def test_the_good_one(self):
        # What every file above is one step away from.
        self.assert_done(self.bounded("inspect", self.put("good.safetensors", GOOD)))
        self.assert_done(self.bounded("verify", self.path("good.safetensors")))

    def test_files(self):
        for name, data in FILES.items():
            path = self.put(name + ".safetensors", data)
            self.refused_by_all(path, name + ".safetensors", commands=("quantize", "inspect", "verify"))

    def test_as_a_shard_of_a_folder(self):
        for i, name in enumerate(("truncated_data", "overlap", "name_twice_after_unescaping", "product_that_wraps_to_4")):
            folder = self.path(str(i))
            os.mkdir(folder)
            self.put(f"{i}/shard.safetensors", FILES[name])
            c.write_index(folder, {"a.weight": "shard.safetensors"}, 16)
            self.refused_by_all(folder, "shard.safetensors")

    def test_as_statistics(self):
        source = c.write_folder(self.path("in"), c.llama(layers=1))
        for name in ("empty", "truncated_data", "overlap", "length_that_wraps", "field_twice", "deep_in_shape"):
            stats = self.put(name + ".safetensors", FILES[name])
            with self.subTest(name):
                ran = self.bounded("quantize", source, "-o", self.path("out"), "--scheme", "w8a8-static", "--stats", stats)
                self.assert_refused(ran, name + ".safetensors")
                self.assertFalse(os.path.exists(self.path("out")))

    def test_as_both_sides_of_compare(self):
        good = c.write_folder(self.path("in"), c.llama(layers=1))
        self.assert_done(run("quantize", good, "-o", self.path("q"), "--scheme", "w8a8"))
        for name in ("empty", "truncated_data", "overlap"):
            bad = self.put(name + ".safetensors", FILES[name])
            with self.subTest(name):
                self.assert_refused(self.bounded("compare", bad, self.path("q")), name + ".safetensors")
                self.assert_refused(self.bounded("compare", good, bad), name + ".safetensors")

    def test_names_are_printed_escaped(self):
        for kind, evil in EVIL_NAMES.items():
            # In a sentence: the tensor is refused.
            path = self.put(f"refused_{kind}.safetensors", with_header({evil: entry(shape=[2, 3])}))
            self.refused_by_all(path, f"refused_{kind}.safetensors", commands=("quantize", "inspect", "verify"))
            # In a table, in JSON and in a plan.
            path = self.put(f"listed_{kind}.safetensors", with_header(
                {"__metadata__": {evil: evil}, evil + ".weight": entry(), MODULE + ".weight": entry(begin=16, end=32)},
                b"\0\0\x80\x3f" * 8))
            for arguments in (["inspect", path], ["inspect", path, "--stats"], ["verify", path],
                              ["quantize", path, "-o", self.path("out"), "--scheme", "w8a8", "--dry-run"],
                              ["quantize", path, "-o", self.path(f"o_{kind}.safetensors"), "--scheme", "w8a8", "-v"]):
                with self.subTest(kind, command=arguments[0]):
                    ran = self.bounded(*arguments)
                    self.assertIn(ran.returncode, (0, 1), ran)
                    for text in (ran.stdout, ran.stderr):
                        for line in text.split("\n"):
                            self.assertFalse([ch for ch in line if ord(ch) < 32 or 0x7F <= ord(ch) < 0xA0 or ch in "\u202e\u2066"],
                                             f"{line!r} of {ran}")
            ran = self.assert_done(self.bounded("inspect", path, "--json"))
            self.assertIn(evil + ".weight", [t["name"] for t in json.loads(ran.stdout)["tensors"]])

    def test_paths_are_printed_escaped(self):
        for kind, evil in EVIL_NAMES.items():
            if kind in ("null", "long"):
                continue
            path = self.path(evil.replace("/", "_"))
            for verb in ("inspect", "verify"):
                with self.subTest(kind, command=verb):
                    self.assert_refused(self.bounded(verb, path), stdout_too=verb == "verify")

    def test_mutations(self):
        """A valid file with bytes changed, cut and doubled: whatever it becomes, an answer."""
        model = c.llama("BF16", hidden=8, intermediate=8, layers=1, vocabulary=4)
        c.write_safetensors(self.path("seed"), model.tensors)
        with open(self.path("seed"), "rb") as file:
            seed = file.read()
        header = 8 + LENGTH.unpack(seed[:8])[0]
        rng = random.Random(11)
        for i in range(40 if SANITIZED else 150):
            data = bytearray(seed)
            for _ in range(rng.randint(1, 3)):
                at = rng.randrange(header)
                kind = rng.randrange(4)
                if kind == 0:
                    data[at] = rng.randrange(256)
                elif kind == 1:
                    del data[at:at + rng.randint(1, 20)]
                elif kind == 2:
                    data[at:at] = data[at:at + rng.randint(1, 20)]
                else:
                    data[at] = rng.choice(b'0123456789-.,:[]{}"\\')
            if rng.random() < 0.7:  # so that most get beyond the length
                data[:8] = LENGTH.pack(max(0, header - 8 + len(data) - len(seed)))
            path = self.put("mutant.safetensors", bytes(data))
            ran = self.bounded("quantize", path, "-o", self.path("out.safetensors"), "--scheme", "w8a8", "--force")
            self.assertIn(ran.returncode, (0, 1), f"mutant {i}: {ran}")
            if ran.returncode == 0:
                c.read_safetensors(self.path("out.safetensors"))
            else:
                self.assert_refused(ran, "mutant.safetensors")


@unittest.skipIf(SANITIZED, "about time and memory, which a sanitizer multiplies")
class LargeHeaderTest(HostileTest):
    def write(self, name, header, data=b""):
        with open(self.path(name), "wb") as file:
            file.write(LENGTH.pack(len(header)))
            file.write(header)
            file.write(data)
        return self.path(name)

    def test_a_million_tiny_entries(self):
        # Valid: empty tensors.
        entries = ",".join(f'"t{i}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}' for i in range(1_000_000))
        path = self.write("million.safetensors", ("{" + entries + "}").encode())
        for arguments in (["inspect", path], ["inspect", path, "--json"], ["verify", path],
                          ["quantize", path, "-o", self.path("out.safetensors"), "--scheme", "w8a8"]):
            with self.subTest(arguments[0]):
                ran = self.bounded(*arguments, timeout=60, discard_stdout=True)
                self.assertIn(ran.returncode, (0, 1), ran)
                if ran.returncode:
                    self.assertTrue(ran.stderr.strip(), ran)

    def test_a_million_entries_that_are_wrong(self):
        last = {"overlap": '{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"y":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}',
                "twice": '{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"t5":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}'}
        entries = ",".join(f'"t{i}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}' for i in range(1_000_000))
        for kind, end in last.items():
            path = self.write(kind + ".safetensors", ("{" + entries + ',"x":' + end + "}").encode(), b"\0" * (kind == "overlap"))
            self.refused_by_all(path, kind + ".safetensors", commands=("inspect",), timeout=60)

    def test_names_that_collide(self):
        # Sorted, reversed and with one long common prefix: no container may degrade into squares.
        prefix = "p" * 200
        for kind, names in (("reversed", range(200_000, 0, -1)), ("prefix", range(200_000))):
            entries = ",".join(f'"{prefix}{i:07}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}' for i in names)
            path = self.write(kind + ".safetensors", ("{" + entries + "}").encode())
            with self.subTest(kind):
                ran = self.bounded("inspect", path, timeout=60, discard_stdout=True)
                self.assertIn(ran.returncode, (0, 1), ran)

    def test_headers_of_100_megabytes(self):
        size = 100_000_000
        kinds = {
            "spaces": b"{}" + b" " * (size - 2),
            "too_long": b"{}" + b" " * (size - 1),
            "brackets": b"[" * size,
            "brackets_in_shape": b'{"a":{"dtype":"F32","shape":' + b"[" * (size - 28),
            "one_name": b'{"' + b"a" * (size - 12) + b'":{}}      ',
            "one_escaped_name": b'{"' + b"\\u0061" * ((size - 20) // 6) + b'":{}}',
            "one_value": b'{"__metadata__":{"a":"' + b"b" * (size - 25) + b'"}}',
            "one_dtype": b'{"a":{"dtype":"' + b"F" * (size - 20) + b'"}}',
            "one_number": b'{"a":{"dtype":"F32","shape":[' + b"9" * (size - 40) + b"]}}",
            "digits_of_a_float": b'{"a":{"dtype":"F32","shape":[0.' + b"9" * (size - 40) + b"]}}",
            "commas": b"{" + b"," * (size - 2) + b"}",
            "zeros": b"\0" * size,
            "quotes": b'{"' * (size // 2),
            "dimensions": b'{"a":{"dtype":"F32","shape":[' + b"1," * ((size - 60) // 2) + b'1],"data_offsets":[0,4]}}',
        }
        for kind, header in kinds.items():
            path = self.write(kind + ".safetensors", header)
            # One string is held, unescaped and quoted in a sentence: a few times its size, not more.
            for verb in ("inspect", "verify", "quantize"):
                if verb != "inspect" and kind not in ("spaces", "one_value", "dimensions"):
                    continue
                with self.subTest(kind, command=verb):
                    more = ["-o", self.path("out.safetensors"), "--scheme", "w8a8"] if verb == "quantize" else []
                    ran = self.bounded(verb, path, *more, timeout=30, discard_stdout=kind == "one_value")
                    if kind in ("spaces", "one_value"):  # legal
                        self.assertIn(ran.returncode, (0, 1), ran)
                    else:
                        self.assert_refused(ran, kind + ".safetensors", stdout_too=verb == "verify")
            os.remove(path)

    def test_a_sparse_header(self):
        # A file of a terabyte that takes no room, all of it declared as header or as data.
        path = self.path("sparse.safetensors")
        for length in (0, 99_999_999, 1 << 39):
            with open(path, "wb") as file:
                file.write(LENGTH.pack(length))
                file.truncate(1 << 40)
            self.refused_by_all(path, "sparse.safetensors", commands=("quantize", "inspect", "verify"))

    def test_declared_sizes_without_data(self):
        header = json.dumps({MODULE + ".weight": entry("F32", [1 << 20, 1 << 20], 0, 1 << 42)}).encode()
        path = self.write("declared.safetensors", header, b"\0" * 100)
        self.refused_by_all(path, "declared.safetensors", commands=("quantize", "inspect", "verify"))


class FolderTest(HostileTest):
    def checkpoint(self, name="in", **more):
        return c.write_folder(self.path(name), c.llama("BF16", hidden=8, intermediate=8, layers=1, vocabulary=4), **more)

    def test_shard_names_that_are_paths(self):
        folder = self.checkpoint(shards=2)
        index = load_json(os.path.join(folder, c.INDEX_NAME))
        self.put("outside.safetensors", GOOD)
        name = next(iter(index["weight_map"]))
        for shard in ("../outside.safetensors", self.path("outside.safetensors"), "./model-00001-of-00002.safetensors",
                      "sub/model.safetensors", "..", ".", "", "/", "a/../model-00001-of-00002.safetensors", "model\0.safetensors",
                      "..\\outside.safetensors", "/dev/zero", "../in/model-00001-of-00002.safetensors", "//", "\u2215etc"):
            index["weight_map"][name] = shard
            with open(os.path.join(folder, c.INDEX_NAME), "w", encoding="utf-8") as file:
                json.dump(index, file)
            self.refused_by_all(folder, folder)

    def test_shard_values_that_are_no_names(self):
        folder = self.checkpoint(shards=2)
        index = load_json(os.path.join(folder, c.INDEX_NAME))
        name = next(iter(index["weight_map"]))
        for shard in (None, 7, [], {}, True, ["model-00001-of-00002.safetensors"], "x" * 100000, "\x1b[31m", "\nx"):
            index["weight_map"][name] = shard
            with open(os.path.join(folder, c.INDEX_NAME), "w", encoding="utf-8") as file:
                json.dump(index, file)
            self.refused_by_all(folder, folder, commands=("quantize", "verify"))

    def test_indices_that_lie(self):
        def change(edit):
            def apply(folder):
                path = os.path.join(folder, c.INDEX_NAME)
                index = load_json(path)
                edit(index)
                with open(path, "w", encoding="utf-8") as file:
                    json.dump(index, file)
            return apply

        first, second = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
        embedding = "model.embed_tokens.weight"
        lies = {
            "a_tensor_that_is_not_there": change(lambda i: i["weight_map"].update({"ghost.weight": first})),
            "a_tensor_that_is_elsewhere": change(lambda i: i["weight_map"].update({embedding: second})),
            "a_tensor_left_out": change(lambda i: i["weight_map"].pop(embedding)),
            "a_shard_that_is_missing": change(lambda i: i["weight_map"].update({embedding: "gone.safetensors"})),
            "a_shard_left_out": change(lambda i: i.update(
                weight_map={t: s for t, s in i["weight_map"].items() if s == first and t != embedding})),
            "no_weight_map": change(lambda i: i.pop("weight_map")),
            "weight_map_is_a_list": change(lambda i: i.update(weight_map=[])),
            "weight_map_is_null": change(lambda i: i.update(weight_map=None)),
            "a_shard_deleted": lambda folder: os.remove(os.path.join(folder, first)),
            "a_shard_emptied": lambda folder: os.truncate(os.path.join(folder, first), 0),
        }
        for name, lie in lies.items():
            folder = self.checkpoint(name, shards=2)
            lie(folder)
            self.refused_by_all(folder, folder)

    def test_total_size_that_lies(self):
        for i, value in enumerate((0, -1, 1, 10 ** 30, "12", None, 1.5, [])):
            folder = self.checkpoint(str(i), shards=2)
            path = os.path.join(folder, c.INDEX_NAME)
            index = load_json(path)
            index["metadata"] = {"total_size": value}
            with open(path, "w", encoding="utf-8") as file:
                json.dump(index, file)
            with self.subTest(value):
                self.refused_by_all(folder, c.INDEX_NAME, commands=("verify",))
                # Loaders do not look at it: what quantize writes is right all the same.
                ran = self.bounded("quantize", folder, "-o", self.path(f"out{i}"), "--scheme", "w8a8")
                if ran.returncode == 0:
                    made = load_json(self.path(f"out{i}", c.INDEX_NAME))
                    self.assertEqual(made["metadata"]["total_size"],
                                     sum(len(t.data) for t in c.read_folder(self.path(f"out{i}")).values()))
                else:
                    self.assert_refused(ran, c.INDEX_NAME)

    BAD_JSON = {"empty": b"", "spaces": b"   ", "list": b"[]", "string": b'"x"', "null": b"null", "open": b"{", "two": b"{}{}",
                "behind": b"{} x", "nan": b'{"a": NaN}', "infinity": b'{"a": -Infinity}', "not_utf8": b'{"a": "\xff"}',
                "not_utf8_key": b'{"\xc0\xaf": 1}', "utf16": '{"a": 1}'.encode("utf-16"), "bom_utf16": b"\xff\xfe{\0}\0",
                "zero_byte": b'{"a": 1}\0', "zeros": b"\0" * 100, "twice": b'{"a": 1, "a": 2}',
                "twice_after_unescaping": b'{"a": 1, "\\u0061": 2}', "deep": b'{"a":' + b"[" * 100000 + b"]" * 100000 + b"}",
                "deep_without_end": b'{"a":' + b"[" * 1000000, "deep_objects": b'{"a":' * 100000 + b"1" + b"}" * 100000,
                "comment": b"{} // x", "single_quotes": b"{'a': 1}", "trailing_comma": b'{"a": 1,}', "control": b'{"a": "\n"}',
                "lone_surrogate": b'{"a": "\\ud800"}', "plus": b'{"a": +1}', "leading_zero": b'{"a": 01}',
                "nested_twice": b'{"a": {"b": {"c": 1, "c": 1}}}', "1e400": b'{"a": 1e400}'}

    def test_configs_that_are_no_json(self):
        for name, data in self.BAD_JSON.items():
            folder = self.checkpoint(name)
            self.put(f"{name}/config.json", data)
            self.refused_by_all(folder, "config.json", commands=("quantize", "inspect", "verify"))

    def test_indices_that_are_no_json(self):
        for name, data in self.BAD_JSON.items():
            folder = self.checkpoint(name)
            self.put(f"{name}/{c.INDEX_NAME}", data)
            self.refused_by_all(folder, c.INDEX_NAME, commands=("quantize", "verify"))

    def test_configs_with_surprises(self):
        """Legal JSON with values of kinds that nobody expects: an answer, and what comes out is whole."""
        for i, change in enumerate((
                {"model_type": 7}, {"model_type": None}, {"model_type": ["llama"]}, {"model_type": {"a": 1}}, {"model_type": ""},
                {"model_type": "\x1b[31m"}, {"model_type": "x" * 1000000}, {"architectures": "x"}, {"architectures": [7]},
                {"quantization_config": 7}, {"quantization_config": []}, {"quantization_config": "x"}, {"quantization_config": {}},
                {"do_layer_norm_before": "no"}, {"torch_dtype": 7}, {"num_hidden_layers": -1}, {"": {"": [""]}}, {"x": 1e308},
                {"x": 5e-324}, {"x": -0.0}, {"x": 2 ** 64 - 1}, {"x": -2 ** 63}, {"x": "\u0000\u001f\u2028"})):
            folder = self.checkpoint(str(i))
            config = load_json(os.path.join(folder, "config.json"))
            config.update(change)
            with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
                json.dump(config, file)
            for arguments in (["inspect", folder], ["verify", folder],
                              ["quantize", folder, "-o", self.path(f"out{i}"), "--scheme", "w8a8"]):
                with self.subTest(str(change)[:60], command=arguments[0]):
                    ran = self.bounded(*arguments)
                    self.assertIn(ran.returncode, (0, 1), ran)
                    if ran.returncode == 1:
                        self.assert_refused(ran, stdout_too=arguments[0] == "verify")
                    elif arguments[0] == "quantize":
                        made = load_json(self.path(f"out{i}", "config.json"))
                        made.pop("quantization_config")
                        config.pop("quantization_config", None)
                        self.assertEqual(made, config)

    def test_quantized_configs_with_surprises(self):
        """verify and compare read quantization_config, expressions of `ignore` included."""
        original = self.checkpoint()
        self.assert_done(run("quantize", original, "-o", self.path("q"), "--scheme", "w8a8"))
        path = self.path("q", "config.json")
        good = load_json(path)

        def with_config(**change):
            return {**good, "quantization_config": {**good["quantization_config"], **change}}

        group = good["quantization_config"]["config_groups"]["group_0"]

        def with_group(**change):
            return with_config(config_groups={"group_0": {**group, **change}})

        cases = {
            "method": with_config(quant_method="gptq"), "no_method": with_config(quant_method=None),
            "format": with_config(format="pack-quantized"), "unknown_format": with_config(format="x\x1b[31m"),
            "unknown_key": with_config(surprise=1), "ignore_null": with_config(ignore=None), "ignore_text": with_config(ignore="lm_head"),
            "ignore_number": with_config(ignore=[7]), "ignore_missing_head": with_config(ignore=[]),
            "ignore_a_quantized_layer": with_config(ignore=["lm_head", "model.layers.0.mlp.down_proj"]),
            "ignore_all": with_config(ignore=["re:.*"]), "bad_expression": with_config(ignore=["lm_head", "re:("]),
            "expression_of_parentheses": with_config(ignore=["lm_head", "re:" + "(" * 300000]),
            "expression_of_closed_parentheses": with_config(ignore=["lm_head", "re:" + "(" * 100000 + ")" * 100000]),
            "expression_of_alternatives": with_config(ignore=["lm_head", "re:" + "a|" * 300000 + "b"]),
            "expression_that_explodes": with_config(ignore=["lm_head", "re:(a*)*b", "re:([a-z._0-9]+)+!"]),
            "expression_that_explodes_too": with_config(ignore=["lm_head", "re:(m+o*)*.(.*)*(.*)*(.*)*(.*)*(.*)*$x"]),
            "expression_of_repeats": with_config(ignore=["lm_head", "re:((((a{1000}){1000}){1000}){1000})"]),
            "many_patterns": with_config(ignore=["lm_head"] + [f"re:x{i}" for i in range(20000)]),
            "no_groups": with_config(config_groups={}), "groups_list": with_config(config_groups=[]),
            "groups_null": with_config(config_groups=None), "group_number": with_config(config_groups={"group_0": 7}),
            "groups_of_two_formats": with_config(
                config_groups={"group_0": group, "group_1": {**group, "format": "float-quantized"}}),
            "groups_without_their_formats": with_config(format="mixed-precision"),
            "groups_of_other_names": with_group(targets=["model.layers.0.mlp.down_proj"]),
            "targets_bad_expression": with_group(targets=["re:("]),
            "no_targets": with_group(targets=[]), "targets_text": with_group(targets="Linear"), "weights_null": with_group(weights=None),
            "weights_list": with_group(weights=[]), "bits": with_group(weights={**group["weights"], "num_bits": 3}),
            "type": with_group(weights={**group["weights"], "type": "float"}),
            "block": with_group(weights={**group["weights"], "strategy": "block", "block_structure": [0, 128]}),
            "block_text": with_group(weights={**group["weights"], "strategy": "block", "block_structure": "128x128"}),
            "scale_dtype": with_group(weights={**group["weights"], "scale_dtype": "torch.uint8"}),
            "kv_cache": with_config(kv_cache_scheme=7),
            "bits_text": with_group(weights={**group["weights"], "num_bits": "8"}),
            "bits_huge": with_group(weights={**group["weights"], "num_bits": 10 ** 30}),
            "group_size": with_group(weights={**group["weights"], "strategy": "group", "group_size": 0}),
            "group_size_negative": with_group(weights={**group["weights"], "strategy": "group", "group_size": -1}),
            "asymmetric": with_group(weights={**group["weights"], "symmetric": False}),
            "activations": with_group(input_activations=7), "no_config": {k: v for k, v in good.items() if k != "quantization_config"},
            "config_list": {**good, "quantization_config": []}, "config_text": {**good, "quantization_config": "w8a8"},
        }
        for name, config in cases.items():
            with open(path, "w", encoding="utf-8") as file:
                json.dump(config, file)
            with self.subTest(name):
                ran = self.bounded("verify", self.path("q"))
                if name in ("many_patterns", "expression_of_alternatives") or "explodes" in name:
                    self.assertIn(ran.returncode, (0, 1), ran)  # they match nothing, and harm nobody
                else:
                    self.assert_refused(ran, self.path("q"), stdout_too=True)
                for arguments in (["compare", original, self.path("q")], ["inspect", self.path("q")]):
                    ran = self.bounded(*arguments)
                    self.assertIn(ran.returncode, (0, 1), ran)

    def test_quantized_tensors_with_surprises(self):
        """What verify promises to find, tensor by tensor; compare must survive it."""
        model = c.llama("BF16", hidden=16, intermediate=16, layers=1, vocabulary=4)
        original = c.write_folder(self.path("original"), model)
        stats = self.path("stats.safetensors")
        c.write_safetensors(stats, c.make_stats(model))
        name = "model.layers.0.self_attn.o_proj"
        nan, infinity = float("nan"), float("inf")

        def scale(value, rows=16, columns=1, dtype="BF16"):
            return c.Tensor.of([1.0] * (rows * columns - 1) + [value], dtype, [rows, columns])

        eight = {
            "scale_nan": {name + ".weight_scale": scale(nan)}, "scale_infinite": {name + ".weight_scale": scale(infinity)},
            "scale_zero": {name + ".weight_scale": scale(0.0)}, "scale_negative": {name + ".weight_scale": scale(-1.0)},
            "scale_missing": {name + ".weight_scale": None}, "scale_shape": {name + ".weight_scale": scale(1.0, 15)},
            "scale_wide": {name + ".weight_scale": scale(1.0, 16, 2)}, "scale_dtype": {name + ".weight_scale": c.Tensor.of([1] * 16, "I32", [16, 1])},
            "codes_missing": {name + ".weight": None}, "codes_dtype": {name + ".weight": c.Tensor("U8", [16, 16], bytes(256))},
            "codes_flat": {name + ".weight": c.Tensor("I8", [256], bytes(256))},
            "not_quantized": {name + ".weight": model.tensors[name + ".weight"], name + ".weight_scale": None},
            "input_scale_missing": {name + ".input_scale": None}, "input_scale_nan": {name + ".input_scale": c.Tensor.of([nan], "BF16")},
            "input_scale_two": {name + ".input_scale": c.Tensor.of([1.0, 1.0], "BF16")},
            "joined_layers": {"model.layers.0.self_attn.q_proj.weight": model.tensors["model.layers.0.self_attn.q_proj.weight"],
                              "model.layers.0.self_attn.q_proj.weight_scale": None},
        }
        four = {
            "four_shape_lies": {name + ".weight_shape": c.Tensor.of([16, 15], "I64")},
            "four_shape_huge": {name + ".weight_shape": c.Tensor.of([2 ** 62, 2 ** 62], "I64")},
            "four_shape_negative": {name + ".weight_shape": c.Tensor.of([-16, 16], "I64")},
            "four_shape_missing": {name + ".weight_shape": None}, "four_scale": {name + ".weight_scale": scale(nan, 16, 2)},
            "four_packed_dtype": {name + ".weight_packed": c.Tensor.of([0] * 32, "I64", [16, 2])},
            "four_packed_shape": {name + ".weight_packed": c.Tensor.of([0] * 16, "I32", [16, 1])},
            "four_zero_missing": {name + ".weight_zero_point": None},
            "four_zero_shape": {name + ".weight_zero_point": c.Tensor.of([0] * 4, "I32", [1, 4])},
        }
        def bits(value, dtype, *shape):
            return c.Tensor(dtype, list(shape), bytes([0x38] * (math.prod(shape) - 1) + [value]))

        scales, total = name + ".weight_scale", name + ".weight_global_scale"
        nvfp4 = {
            "nvfp4_scale_nan": {scales: bits(0x7F, "F8_E4M3", 16, 1)}, "nvfp4_scale_zero": {scales: bits(0, "F8_E4M3", 16, 1)},
            "nvfp4_scale_negative": {scales: bits(0xB8, "F8_E4M3", 16, 1)},
            "nvfp4_scale_dtype": {scales: bits(0x38, "U8", 16, 1)}, "nvfp4_scale_shape": {scales: bits(0x38, "F8_E4M3", 16)},
            "nvfp4_global_nan": {total: c.Tensor.of([nan], "F32")}, "nvfp4_global_zero": {total: c.Tensor.of([0.0], "F32")},
            "nvfp4_global_missing": {total: None}, "nvfp4_global_dtype": {total: c.Tensor.of([1.0], "BF16")},
            "nvfp4_input_missing": {name + ".input_global_scale": None},
            "nvfp4_packed_shape": {name + ".weight_packed": c.Tensor("U8", [16, 4], bytes(64))},
            "nvfp4_packed_dtype": {name + ".weight_packed": c.Tensor("I8", [16, 8], bytes(128))},
        }
        mxfp8 = {"mxfp8_nan": {scales: bits(255, "U8", 16, 1)}, "mxfp8_dtype": {scales: bits(1, "I8", 16, 1)},
                 "mxfp8_shape": {scales: bits(1, "U8", 1, 16)}, "mxfp8_missing": {scales: None},
                 "mxfp8_codes": {name + ".weight": c.Tensor("U8", [16, 32], bytes(512))}}
        fp8 = {"fp8_scale": {scales: c.Tensor.of([nan], "BF16")}, "fp8_scale_shape": {scales: scale(1.0)},
               "fp8_codes": {name + ".weight": c.Tensor("I8", [16, 16], bytes(256))}, "fp8_codes_missing": {name + ".weight": None}}
        wide = c.llama("BF16", hidden=32, intermediate=32, layers=1, vocabulary=4)
        wide.tensors[name + ".weight"] = c.Tensor("BF16", [16, 32], bytes(1024))
        for flags, cases in ((["--scheme", "w8a8-static", "--stats", stats], eight),
                             (["--scheme", "w4a16", "--group-size", "8", "--asymmetric"], four),
                             (["--scheme", "nvfp4", "--stats", stats], nvfp4), (["--scheme", "fp8-tensor"], fp8),
                             (["--scheme", "mxfp8"], mxfp8)):
            if flags[1] == "mxfp8":
                original = c.write_folder(self.path("wide"), wide)
            out = self.path("q" + flags[1])
            self.assert_done(run("quantize", original, "-o", out, *flags))
            self.assert_done(self.bounded("verify", out))
            shard = os.path.join(out, "model.safetensors")
            good = c.read_safetensors(shard)[0]
            for case, change in cases.items():
                tensors = {n: t for n, t in {**good, **change}.items() if t is not None}
                c.write_safetensors(shard, tensors)
                with self.subTest(case):
                    about = next(iter(change)).rsplit(".", 1)[0]
                    self.assert_refused(self.bounded("verify", out), about, stdout_too=True)
                    ran = self.bounded("compare", original, out)
                    self.assertIn(ran.returncode, (0, 1), ran)
                    ran = self.bounded("quantize", out, "-o", self.path("again"), "--scheme", "w8a8", "--force")
                    self.assertIn(ran.returncode, (0, 1), ran)
                    if case.endswith(("scale_nan", "scale_infinite", "scale_negative", "missing", "shape")) and "input" not in case:
                        self.assertEqual(ran.returncode, 1, ran)

    def test_things_that_are_no_files(self):
        for name in ("config.json", "model.safetensors", c.INDEX_NAME):
            for kind, make in (("fifo", os.mkfifo), ("folder", os.mkdir), ("device", lambda p: os.symlink("/dev/zero", p)),
                               ("random", lambda p: os.symlink("/dev/urandom", p)), ("tty", lambda p: os.symlink("/dev/tty", p)),
                               ("dangling", lambda p: os.symlink("/nonexistent/x", p)), ("loop", lambda p: os.symlink(p, p)),
                               ("proc", lambda p: os.symlink("/proc/self/mem", p))):
                folder = self.checkpoint(f"{kind}_{name}", other_files=False)
                path = os.path.join(folder, name)
                if os.path.exists(path):
                    os.remove(path)
                make(path)
                for verb in ("inspect", "verify", "quantize"):
                    with self.subTest(kind, name=name, command=verb):
                        more = ["-o", self.path("out"), "--scheme", "w8a8"] if verb == "quantize" else []
                        ran = self.bounded(verb, folder, *more)
                        if kind in ("dangling", "loop") and name != "model.safetensors":
                            self.assertIn(ran.returncode, (0, 1), ran)  # may count as absent
                            if ran.returncode == 0:
                                if verb == "quantize":
                                    os.rename(self.path("out"), self.path(f"out_{kind}_{name}"))
                                continue
                        self.assert_refused(ran, folder, stdout_too=verb == "verify")

    def test_things_given_as_the_checkpoint(self):
        os.mkfifo(self.path("fifo"))
        for path in (self.path("fifo"), "/dev/zero", "/dev/null", "/dev/urandom", "/proc/self/mem", "/", "/dev/stdin", "/proc"):
            for verb in ("inspect", "verify", "quantize"):
                with self.subTest(path, command=verb):
                    more = ["-o", self.path("out"), "--scheme", "w8a8"] if verb == "quantize" else []
                    self.assert_refused(self.bounded(verb, path, *more), stdout_too=verb == "verify")

    def test_other_files_that_are_none(self):
        # Beside the checkpoint lie things that cannot be copied: they must not stop or hang it.
        folder = self.checkpoint()
        os.mkfifo(os.path.join(folder, "pipe"))
        os.symlink("/dev/zero", os.path.join(folder, "endless"))
        os.symlink("/nonexistent", os.path.join(folder, "dangling"))
        os.symlink("itself", os.path.join(folder, "itself"))
        os.mkdir(os.path.join(folder, "sub"))
        ran = self.bounded("quantize", folder, "-o", self.path("out"), "--scheme", "w8a8")
        self.assert_done(ran)
        for name in ("pipe", "endless", "dangling", "itself", "sub"):
            self.assertFalse(os.path.lexists(self.path("out", name)), name)

    def test_a_tensor_in_two_shards(self):
        folder = self.path("in")
        os.mkdir(folder)
        for shard in ("a.safetensors", "b.safetensors"):
            self.put("in/" + shard, GOOD)
        c.write_index(folder, {"a.weight": "a.safetensors"}, 16)
        ran = self.bounded("quantize", folder, "-o", self.path("first"), "--scheme", "w8a8")
        self.assertIn(ran.returncode, (0, 1), ran)  # b is nobody's shard
        self.put(f"in/{c.INDEX_NAME}", '{"metadata":{},"weight_map":{"a.weight":"a.safetensors","a.weight":"b.safetensors"}}')
        self.refused_by_all(folder, c.INDEX_NAME, commands=("quantize", "inspect", "verify"))
        with open(self.path("in", "b.safetensors"), "wb") as file:
            file.write(with_header({"a.weight": entry(), "b.weight": entry(begin=16, end=32)}, b"\0" * 32))
        c.write_index(folder, {"a.weight": "a.safetensors", "b.weight": "b.safetensors"}, 32)
        self.refused_by_all(folder, "a.weight")

    @unittest.skipIf(SANITIZED, "UBSan looks at objects through a pipe, and here no descriptor is left for one")
    def test_three_thousand_shards(self):
        # More than there are descriptors.
        folder = self.path("in")
        os.mkdir(folder)
        weight_map = {}
        for i in range(3000):
            name = f"model.layers.{i}.mlp.up_proj.weight"
            self.put(f"in/{i:05}.safetensors", with_header({name: entry()}, struct.pack("<4f", 1, 2, 3, 4)))
            weight_map[name] = f"{i:05}.safetensors"
        c.write_index(folder, weight_map, 3000 * 16)
        for verb in ("inspect", "verify", "quantize"):
            with self.subTest(verb):
                more = ["-o", self.path("out"), "--scheme", "w8a8"] if verb == "quantize" else []
                ran = self.bounded(verb, folder, *more, timeout=120, limits={"RLIMIT_NOFILE": 1024})
                self.assertIn(ran.returncode, (0, 1), ran)
                if ran.returncode == 1:
                    self.assert_refused(ran, ("open", "descriptor", "shard"), stdout_too=verb == "verify")


if __name__ == "__main__":
    unittest.main()
