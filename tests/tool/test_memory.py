"""Memory stays below --max-memory whatever the size of the checkpoint or of its largest tensor.

The inputs are sparse files: gigabytes that take no room. The outputs are not, and go to the folder for temporary files.
"""

import json
import os
import random
import shutil
import struct
import unittest

import checkpoints as c
import reference
from tool import SANITIZED, ToolTest, run

MEBIBYTE = 1 << 20
UP = "model.layers.0.mlp.up_proj"


@unittest.skipIf(SANITIZED, "the shadow memory of a sanitizer counts as well")
class MemoryTest(ToolTest):
    def need(self, gigabytes):
        free = shutil.disk_usage(self.folder).free
        if free < (gigabytes + 1) * 10 ** 9:
            self.skipTest(f"needs {gigabytes + 1} GB in {self.folder}, which has {free / 1e9:.1f} GB; set TMPDIR")

    def sparse(self, tensors, values=(), name="in", model_type="llama"):
        """A folder with one shard of zeros, and `values` as (tensor, element, bytes) in between."""
        folder = self.path(name)
        os.mkdir(folder)
        path = os.path.join(folder, "model.safetensors")
        start = c.write_sparse_safetensors(path, tensors)
        entries, _ = c.layout(tensors)
        with open(path, "r+b") as file:
            for tensor, element, data in values:
                dtype, _ = tensors[tensor]
                file.seek(start + entries[tensor]["data_offsets"][0] + element * c.WIDTHS[dtype])
                file.write(data)
        with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
            json.dump({"model_type": model_type}, file)
        return folder

    def quantize(self, source, limit, *flags, out="out", timeout=240):
        shutil.rmtree(self.path(out), ignore_errors=True)
        more = [] if limit is None else ["--max-memory", limit]
        ran = self.assert_done(run("quantize", source, "-o", self.path(out), *more, *flags, timeout=timeout))
        self.check_peak(ran, limit)
        return ran

    def check_peak(self, ran, limit):
        allowed = 1024 * MEBIBYTE if limit is None else int(limit[:-1]) * MEBIBYTE
        self.assertLessEqual(ran.peak, allowed, ran)

    def read_at(self, path, header, start, name, offset, size):
        with open(path, "rb") as file:
            file.seek(start + header[name]["data_offsets"][0] + offset)
            return file.read(size)

    def bf16(self, value):
        return struct.pack("<H", c.bf16_bits(value))

    def test_one_large_tensor(self):
        # 3 GB of bf16, with a few rows that hold something.
        rows, columns = 187_500, 8192
        self.need(1.6)
        rng = random.Random(1)
        filled = {r: [c.bf16_value(c.bf16_bits(rng.gauss(0, 1))) for _ in range(columns)]
                  for r in (0, 1, rows // 3, rows - 2, rows - 1)}
        name = UP + ".weight"
        source = self.sparse({name: ("BF16", [rows, columns])},
                             [(name, r * columns, c.encode(v, "BF16")) for r, v in filled.items()])
        self.quantize(source, "96M", "--scheme", "w8a8", "--threads", 2)
        path = self.path("out", "model.safetensors")
        header, _, start = c.read_header(path)
        self.assertEqual(header[name]["shape"], [rows, columns])
        self.assertEqual(header[name]["dtype"], "I8")
        self.assertEqual(header[UP + ".weight_scale"]["shape"], [rows, 1])
        self.assertGreater(os.path.getsize(path), rows * columns)
        for row, values in filled.items():
            want = reference.weight_tensors(UP, c.Tensor.of(values, "BF16", [1, columns]), reference.Scheme("w8a8"))
            self.assertEqual(self.read_at(path, header, start, name, row * columns, columns), want[name].data, row)
            self.assertEqual(self.read_at(path, header, start, UP + ".weight_scale", 2 * row, 2),
                             want[UP + ".weight_scale"].data, row)
        for row in (2, rows // 2, rows - 3):
            self.assertEqual(self.read_at(path, header, start, name, row * columns, columns), bytes(columns))
            self.assertEqual(self.read_at(path, header, start, UP + ".weight_scale", 2 * row, 2), self.bf16(1.0))

    def test_rows_larger_than_the_memory(self):
        # Two rows of 1.2 GB each: a row is read twice, once for its range. What decides the range is at the very end.
        columns = 600_000_000
        self.need(1.3)
        name = UP + ".weight"
        values = [(name, 0, self.bf16(-3.5)), (name, 12_345_678, self.bf16(1.0)), (name, columns - 1, self.bf16(127.0)),
                  (name, columns, self.bf16(0.5)), (name, 2 * columns - 1, self.bf16(-254.0))]
        source = self.sparse({name: ("BF16", [2, columns])}, values)
        self.quantize(source, "96M", "--scheme", "w8a8", "--threads", 2)
        path = self.path("out", "model.safetensors")
        header, _, start = c.read_header(path)
        for place, code in ((0, -4), (1, 0), (12_345_678, 1), (columns - 1, 127), (columns, 0), (2 * columns - 1, -127)):
            self.assertEqual(self.read_at(path, header, start, name, place, 1), struct.pack("b", code), place)
        self.assertEqual(self.read_at(path, header, start, UP + ".weight_scale", 0, 4), self.bf16(1.0) + self.bf16(2.0))

    def test_rows_larger_than_the_memory_in_groups(self):
        columns = 600_000_000  # a multiple of 128
        self.need(0.8)
        name = UP + ".weight"
        values = [(name, 0, self.bf16(7.0)), (name, 1, self.bf16(-2.0)), (name, 2 * columns - 1, self.bf16(-14.0))]
        source = self.sparse({name: ("BF16", [2, columns])}, values)
        self.quantize(source, "96M", "--scheme", "w4a16", "--threads", 2)
        path = self.path("out", "model.safetensors")
        header, _, start = c.read_header(path)
        self.assertEqual(header[UP + ".weight_packed"]["shape"], [2, columns // 8])
        self.assertEqual(header[UP + ".weight_scale"]["shape"], [2, columns // 128])
        self.assertEqual(self.read_at(path, header, start, UP + ".weight_packed", 0, 4), struct.pack("<I", 0x8888886F))
        self.assertEqual(self.read_at(path, header, start, UP + ".weight_packed", columns - 4, 4), struct.pack("<I", 0x18888888))
        size = 2 * (columns // 128) * 2
        self.assertEqual(self.read_at(path, header, start, UP + ".weight_scale", size - 2, 2), self.bf16(2.0))

    def test_one_group_larger_than_the_memory(self):
        columns = 300_000_000
        self.need(0.4)
        name = UP + ".weight"
        source = self.sparse({name: ("BF16", [2, columns])}, [(name, 2 * columns - 1, self.bf16(14.0))])
        self.quantize(source, "96M", "--scheme", "w4a16", "--asymmetric", "--group-size", columns, "--scale", "minmax", "--threads", 2)
        path = self.path("out", "model.safetensors")
        header, _, start = c.read_header(path)
        scale, zero = reference.asymmetric_scale([0.0, 14.0], -8, 7, "BF16", "BF16")
        self.assertEqual(self.read_at(path, header, start, UP + ".weight_scale", 0, 4), self.bf16(1.0) + self.bf16(scale))
        self.assertEqual(self.read_at(path, header, start, UP + ".weight_zero_point", 0, 4),
                         struct.pack("<I", 8 | (zero + 8) << 4))

    def test_a_group_that_is_searched_must_fit(self):
        columns = 300_000_000
        self.need(0.1)
        source = self.sparse({UP + ".weight": ("BF16", [1, columns])}, [])
        self.assert_refused(run("quantize", source, "-o", self.path("out"), "--max-memory", "96M", "--scheme", "w4a16",
                                "--group-size", columns), "raise it", "--scale minmax, which reads groups in pieces")

    def test_one_scale_for_more_than_the_memory(self):
        # The weights are read twice, the first time for the largest of them, which is the very last; and a block is
        # cut by no tile.
        rows, columns = 12_800, 8192
        self.need(0.3)
        name = UP + ".weight"
        source = self.sparse({name: ("BF16", [rows, columns])},
                             [(name, 0, self.bf16(1.0)), (name, rows * columns - 1, self.bf16(-448.0))])
        last = {"fp8-tensor": b"\xfe", "fp8-block": b"\xfe", "nvfp4a16": b"\xf0", "mxfp4a16": b"\xe0", "mxfp8a16": b"\xf6"}
        for scheme, code in last.items():
            with self.subTest(scheme):
                self.quantize(source, "96M", "--scheme", scheme, "--threads", 2)
                path = self.path("out", "model.safetensors")
                header, _, start = c.read_header(path)
                tensor = UP + (".weight_packed" if "fp4" in scheme else ".weight")
                size = rows * columns // (2 if "fp4" in scheme else 1)
                self.assertEqual(self.read_at(path, header, start, tensor, size - 1, 1), code)
                if scheme == "fp8-tensor":
                    self.assertEqual(self.read_at(path, header, start, UP + ".weight_scale", 0, 2), self.bf16(1.0))
                    self.assertEqual(self.read_at(path, header, start, tensor, 0, 1), b"\x38")
                if scheme == "nvfp4a16":
                    total = self.read_at(path, header, start, UP + ".weight_global_scale", 0, 4)
                    self.assertEqual(total, struct.pack("<f", 6.0))

    def test_stacks_of_experts(self):
        # 1.5 GB in two tensors, 32 experts in each; the memory holds less than one of them. Some models turn them.
        self.need(0.9)
        experts, wide, inner = 32, 4096, 2048
        for model_type, turned in (("qwen3_moe", False), ("qwen3_vl_moe_text", True)):
            def shape(rows, columns):
                return [experts, columns, rows] if turned else [experts, rows, columns]
            stack = "model.layers.0.mlp.experts"
            tensors = {f"{stack}.gate_up_proj": ("BF16", shape(2 * inner, wide)),
                       f"{stack}.down_proj": ("BF16", shape(wide, inner))}
            last = [(name, experts * rows * columns - 1, self.bf16(-127.0))
                    for name, rows, columns in ((f"{stack}.gate_up_proj", 2 * inner, wide), (f"{stack}.down_proj", wide, inner))]
            source = self.sparse(tensors, last, name=model_type, model_type=model_type)
            self.quantize(source, "96M", "--scheme", "fp8", "--threads", 2)
            path = self.path("out", "model.safetensors")
            header, _, start = c.read_header(path)
            self.assertEqual(len(header), 2 * 3 * experts)
            for name, rows, columns in (("up_proj", inner, wide), ("down_proj", wide, inner)):
                module = f"{stack}.{experts - 1}.{name}"
                self.assertEqual(header[module + ".weight"]["shape"], [rows, columns])
                self.assertEqual(self.read_at(path, header, start, module + ".weight", rows * columns - 1, 1), b"\xfe")
            shutil.rmtree(source)

    def test_large_tensors_that_are_copied(self):
        # Embeddings, and dtypes that are not read at all; the default limit.
        self.need(1.2)
        source = self.sparse({"model.embed_tokens.weight": ("BF16", [250_000, 1000]), "big": ("U8", [500_000_001]),
                              UP + ".weight": ("F32", [16, 16])},
                             [("big", 500_000_000, b"\x7b"), (UP + ".weight", 255, struct.pack("<f", 1.0))])
        for limit in ("64M", None):
            self.quantize(source, limit, "--scheme", "w8a8")
        got, want = self.path("out", "model.safetensors"), os.path.join(source, "model.safetensors")
        header, _, start = c.read_header(got)
        original, _, original_start = c.read_header(want)
        self.assertEqual({n: header[n]["shape"] for n in original}, {n: original[n]["shape"] for n in original})
        self.assertEqual(self.read_at(got, header, start, "big", 499_999_999, 2), b"\0\x7b")
        self.assertEqual(self.read_at(want, original, original_start, "big", 499_999_999, 2), b"\0\x7b")
        self.assertEqual(self.read_at(got, header, start, UP + ".weight", 255, 1), b"\x7f")

    def test_many_tensors(self):
        self.need(0.3)
        tensors = {f"model.layers.{i}.mlp.{p}_proj.weight": ("BF16", [64, 512]) for i in range(2000) for p in ("up", "down")}
        source = self.sparse(tensors)
        for threads in (1, 4):
            self.quantize(source, "96M", "--scheme", "w8a8", "--threads", threads)

    def test_many_threads(self):
        # Tiles are shared out: more threads, smaller tiles.
        self.need(0.2)
        source = self.sparse({UP + ".weight": ("F32", [40_000, 1024])})
        for threads in (1, 2, 16, 64):
            self.quantize(source, "64M", "--scheme", "w8a8", "--threads", threads)

    def test_smoothing(self):
        self.need(1)
        block = "model.layers.0"
        readers = [f"{block}.self_attn.{p}_proj" for p in "qkv"]
        hidden = 16384
        tensors = {f"{block}.input_layernorm.weight": ("F16", [hidden])}
        tensors.update({r + ".weight": ("F16", [hidden, hidden]) for r in readers})
        # Without these the block is none of Llama's, and its norm may feed anything.
        tensors[f"{block}.post_attention_layernorm.weight"] = ("F16", [hidden])
        tensors.update({f"{block}.mlp.{p}_proj.weight": ("F16", [8, hidden]) for p in ("gate", "up")})
        source = self.sparse(tensors, [(f"{block}.input_layernorm.weight", 0, c.encode([1.0] * hidden, "F16"))])
        stats = self.path("stats.safetensors")
        c.write_safetensors(stats, {r + ".absmax": c.Tensor.of([0.01] * hidden, "F32") for r in readers})
        self.quantize(source, "96M", "--scheme", "w8a8", "--smooth", "--stats", stats, "--threads", 2)

    def test_commands_that_read(self):
        # inspect --stats and compare take --max-memory as well; verify reads scales only.
        rows, columns = 100_000, 4096
        self.need(0.5)
        source = self.sparse({UP + ".weight": ("BF16", [rows, columns])})
        self.quantize(source, "96M", "--scheme", "w8a8")
        for arguments in (["inspect", source, "--stats", "--max-memory", "96M"],
                          ["compare", source, self.path("out"), "--max-memory", "96M"], ["verify", self.path("out")],
                          ["inspect", self.path("out"), "--stats", "--max-memory", "96M"]):
            with self.subTest(arguments[0]):
                ran = self.assert_done(run(*arguments, timeout=240))
                self.check_peak(ran, "96M")

    def test_commands_that_run_the_model(self):
        # 12 blocks of 26 MB and two tables of 66 MB; the states of 3,072 tokens, 13 MB a model, go to files.
        hidden, inner, vocabulary, layers = 1024, 2816, 32_000, 12
        self.need(1)
        shapes = {"embed_tokens": [vocabulary, hidden], "norm": [hidden]}
        for i in range(layers):
            block = f"layers.{i}."
            shapes.update({block + f"self_attn.{p}_proj": [hidden, hidden] for p in "qkvo"})
            shapes.update({block + f"mlp.{p}_proj": [inner, hidden] for p in ("gate", "up")})
            shapes[block + "mlp.down_proj"] = [hidden, inner]
            shapes.update({block + n: [hidden] for n in ("input_layernorm", "post_attention_layernorm")})
        tensors = {f"model.{module}.weight": ("BF16", shape) for module, shape in shapes.items()}
        tensors["lm_head.weight"] = ("BF16", [vocabulary, hidden])
        source = self.sparse(tensors)
        with open(os.path.join(source, "config.json"), "w") as file:
            json.dump({"model_type": "llama", "hidden_size": hidden, "intermediate_size": inner, "vocab_size": vocabulary,
                       "num_hidden_layers": layers, "num_attention_heads": 16, "hidden_act": "silu",
                       "max_position_embeddings": 2048, "rms_norm_eps": 1e-5}, file)
        self.quantize(source, "96M", "--scheme", "w8a8")
        tokens = self.put("ids.txt", b" ".join(b"%d" % (i * 7919 % vocabulary) for i in range(3072)))
        text = ["--tokens", tokens, "--length", "64", "--threads", "2"]
        few = [*text, "--max-tokens", "256"]
        for limit, arguments in (("200M", ["eval", source, self.path("out"), *few]),
                                 ("200M", ["eval", source, self.path("out"), "--scratch", self.path("s"), *text]),
                                 ("200M", ["calibrate", source, "-o", self.path("stats.safetensors"), *few])):
            with self.subTest(arguments):
                ran = self.assert_done(run(*arguments, "--max-memory", limit, timeout=240))
                self.check_peak(ran, limit)
        ran = run("eval", source, *few, "--max-memory", "100M")
        self.assert_refused(ran, "the largest block, the output projection and a sequence of 64 tokens need 1")

    def test_expected_memory_of_the_plan(self):
        source = self.sparse({UP + ".weight": ("BF16", [1_000_000, 8192])})  # 16 GB, of which nothing is read
        for limit in ("64M", "300M", None):
            more = ["--max-memory", limit] if limit else []
            ran = self.assert_done(run("quantize", source, "-o", self.path("out"), "--scheme", "w8a8", "--dry-run", "--json", *more))
            plan = json.loads(ran.stdout)
            (expected,) = [v for k, v in plan.items() if "memory" in k and isinstance(v, int)][:1]
            self.assertLessEqual(expected, int(limit[:-1]) * MEBIBYTE if limit else 1024 * MEBIBYTE)
            self.assertGreater(expected, MEBIBYTE)
            self.assertFalse(os.path.exists(self.path("out")))

    def test_a_row_of_eight_terabytes(self):
        # Planned without an attempt to allocate it.
        path = self.path("huge.safetensors")
        try:
            c.write_sparse_safetensors(path, {UP + ".weight": ("F32", [1, (1 << 41)])})
        except OSError:
            self.skipTest("this file system has no files of 8 TB")
        ran = run("quantize", path, "-o", self.path("o.safetensors"), "--scheme", "w8a8", "--dry-run")
        self.assertIn(ran.returncode, (0, 1), ran)
        self.check_peak(ran, "100M")


if __name__ == "__main__":
    unittest.main()
