"""The command line: help, exit codes, quiet and JSON, and the commands that read."""

import json
import math
import os
import pty
import random
import re
import select
import signal
import shutil
import subprocess
import time
import unittest

import checkpoints as c
import gguf
import reference
from tool import BINARY, SANITIZED, ToolTest, digest_tree, environment, load_json, run, snapshot

COMMANDS = ("quantize", "calibrate", "stats", "eval", "convert", "inspect", "compare", "verify", "demo", "info", "bench", "help",
            "completion")


def on_a_terminal(arguments, env=None, cwd=None, timeout=60, stop_at=None):
    """Everything that is said where standard output and error are a terminal, and the exit code. `stop_at`: Ctrl-C when
    this is said."""
    master, slave = pty.openpty()
    child = subprocess.Popen([BINARY, *map(str, arguments)], stdin=subprocess.DEVNULL, stdout=slave, stderr=slave,
                             env=environment(**{"TERM": "xterm-256color", "COLUMNS": "100", **(env or {})}), cwd=cwd)
    os.close(slave)
    said = b""
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        if not select.select([master], [], [], 0.1)[0]:
            continue
        try:
            block = os.read(master, 65536)
        except OSError:
            break
        if not block:
            break
        said += block
        if stop_at is not None and stop_at in said:
            child.send_signal(signal.SIGINT)
            stop_at = None
    os.close(master)
    return said.decode("utf-8", "backslashreplace"), child.wait(timeout)


# What tools/train_demo_model.py printed of held-out.txt when it had trained data/demo_model/.
DEMO_PERPLEXITY = 19.5411
# What the demo writes, with its verdict.
DEMO_CHECKPOINTS = {"w8a8": "good", "w8a8-smooth": "good", "w8a8-static": "good", "w4a16": "good"}


class HelpTest(ToolTest):
    def test_help(self):
        for arguments in (["--help"], ["-h"]):
            ran = self.assert_done(run(*arguments))
            for command in COMMANDS[:-1]:
                self.assertRegex(ran.stdout, rf"(?m)^\s+{command}\b")
            self.assertIn("Examples", ran.stdout)
            self.assertEqual(ran.stderr, "")
        for command in COMMANDS:
            for flag in ("--help", "-h"):
                with self.subTest(command, flag=flag):
                    ran = self.assert_done(run(command, flag))
                    self.assertIn("Examples", ran.stdout)
                    self.assertIn(f"kvant {command}", ran.stdout)
                    self.assertEqual(ran.stderr, "")
                    self.assertNotIn("\x1b", ran.stdout)
                    self.assertLessEqual(max(map(len, ran.stdout.splitlines())), 120)

    def test_help_names_every_option_of_the_issue(self):
        text = self.assert_done(run("quantize", "--help")).stdout
        for option in ("-o", "--scheme", *reference.SCHEMES, "--override", "--stats", "--smooth", "--ignore", "--include",
                       "--group-size", "--asymmetric", "--scale-dtype", "--threads", "--max-memory", "--resume", "--force",
                       "--json", "--dry-run"):
            self.assertIn(option, text)
        self.assertIn("--stats", self.assert_done(run("inspect", "--help")).stdout)
        self.assertIn("--json", self.assert_done(run("compare", "--help")).stdout)

    def test_version(self):
        ran = self.assert_done(run("--version"))
        self.assertRegex(ran.stdout, r"^kvant \d+\.\d+\.\d+\n$")
        self.assertEqual(ran.stderr, "")

    def test_start_is_quick(self):
        if SANITIZED:
            self.skipTest("a sanitizer takes its time")
        times = []
        for _ in range(10):
            begin = time.monotonic()
            subprocess.run([BINARY, "--version"], check=True, stdout=subprocess.DEVNULL)
            times.append(time.monotonic() - begin)
        self.assertLess(min(times), 0.020)


class UsageTest(ToolTest):
    def test_usage_errors(self):
        folder = c.write_folder(self.path("in"), c.llama(layers=1))
        out = ["-o", self.path("out")]
        for arguments, words in (
                ([], []), (["frobnicate"], ["frobnicate"]), (["quantise"], ["quantise", "quantize"]), (["--frobnicate"], ["--frobnicate"]),
                (["quantize"], []), (["quantize", folder], ["-o"]), (["quantize", *out], []),
                (["quantize", folder, *out, "--scheme", "w3a3"], ["w3a3", "w8a8"]), (["quantize", folder, *out, "--scheme"], ["--scheme"]),
                (["quantize", folder, *out, "--frobnicate"], ["--frobnicate"]), (["quantize", folder, folder, *out], ["in"]),
                (["quantize", folder, *out, "--threads", "-1"], ["threads"]), (["quantize", folder, *out, "--threads", "two"], ["two"]),
                (["quantize", folder, *out, "--threads", "99999999999999999999"], ["threads"]),
                (["quantize", folder, *out, "--max-memory", "lots"], ["lots"]), (["quantize", folder, *out, "--group-size", "x"], ["x", "auto"]),
                (["quantize", folder, *out, "--override", "fp8"], ["PATTERN=SCHEME"]),
                (["quantize", folder, *out, "--override"], ["--override"]),
                (["quantize", folder, *out, "--override", "x=w3a3"], ["w3a3", "w8a8"]),
                (["quantize", folder, *out, "--scheme", "nvfp4"], ["nvfp4 needs activation statistics"]),
                (["quantize", folder, *out, "--scale-dtype", "int8"], ["int8"]), (["quantize", folder, *out, "--scheme", "w8a8", "--smooth=much"], ["much"]),
                (["inspect"], []), (["compare", folder], []), (["compare"], []), (["verify"], []), (["verify", folder, "extra"], ["extra"]),
                (["completion", "tcl"], ["tcl"]), (["inspect", folder, "--json=maybe"], ["json"]), (["demo", "--threads", "x"], ["x"])):
            with self.subTest(arguments):
                ran = run(*arguments)
                self.assertEqual(ran.returncode, 2, ran)
                self.assertTrue(ran.stderr.strip(), ran)
                self.assertEqual(ran.stdout, "", ran)
                self.assert_says(ran.stderr, words, ran)
                if arguments:
                    self.assertIn("--help", ran.stderr)
                self.assertFalse(os.path.exists(self.path("out")))

    def test_words_that_change_a_terminal(self):
        for word in ("\x1b[31m", "--\x1b[31m", "a\nb", "x" * 100000):
            for arguments in ([word], ["quantize", "--scheme", word], ["quantize", "--override", word],
                              ["quantize", "--override", "x=" + word], ["quantize", "--group-size", word],
                              ["inspect", "x", word]):
                ran = run(*arguments)
                self.assertEqual(ran.returncode, 2, ran)
                self.assertNotIn("\x1b", ran.stderr)
                self.assertLess(len(ran.stderr), 5000)

    def test_failures_are_1(self):
        for command in (["inspect"], ["verify"], ["compare", self.folder], ["quantize", "-o", self.path("out")]):
            ran = run(*command, self.path("nowhere"))
            self.assert_refused(ran, "nowhere" if command[0] != "compare" else self.folder, stdout_too=command[0] == "verify")

    def test_dashes_end_the_options(self):
        c.write_folder(self.path("--odd"), c.llama(layers=1))
        self.assert_done(run("quantize", "--scheme", "w8a8", "-o", "./out", "--", "--odd", cwd=self.folder))
        self.assertTrue(os.path.exists(self.path("out", "config.json")))

    def test_smooth_takes_a_number_or_nothing(self):
        model = c.llama(layers=1)
        folder = c.write_folder(self.path("in"), model)
        c.write_safetensors(self.path("stats"), c.make_stats(model))
        stats = ["--stats", self.path("stats"), "--scheme", "w8a8", "--json", "--dry-run", "-o", self.path("out")]
        for arguments, alpha in ((["--smooth", folder, *stats], 0.8), ([folder, *stats, "--smooth"], 0.8),
                                 (["--smooth", "0.6", folder, *stats], 0.6), (["--smooth=0.25", folder, *stats], 0.25),
                                 ([folder, "--smooth", *stats], 0.8), ([folder, "--smooth", ".5", *stats], 0.5)):
            with self.subTest(arguments[:3]):
                plan = json.loads(self.assert_done(run("quantize", *arguments)).stdout)
                self.assertEqual(plan["alpha"], alpha)


class QuietTest(ToolTest):
    def test_quiet(self):
        folder = c.write_folder(self.path("in"), c.llama())
        loud = self.assert_done(run("quantize", folder, "-o", self.path("a"), "--scheme", "w8a8"))
        quiet = self.assert_done(run("quantize", folder, "-o", self.path("b"), "--scheme", "w8a8", "-q"))
        self.assertEqual(quiet.stderr, "")
        self.assertGreater(len(loud.stdout + loud.stderr), len(quiet.stdout + quiet.stderr))
        # Errors are said all the same.
        self.assert_refused(run("-q", "quantize", self.path("nowhere"), "-o", self.path("c"), "--scheme", "w8a8"), "nowhere")
        self.assertEqual(self.assert_done(run("verify", "-q", self.path("a"))).stderr, "")
        self.assertEqual(self.assert_done(run("compare", "-q", folder, self.path("a"))).stderr, "")

    def test_verbose(self):
        folder = c.write_folder(self.path("in"), c.llama())
        plain = self.assert_done(run("quantize", folder, "-o", self.path("a"), "--scheme", "w8a8"))
        loud = self.assert_done(run("quantize", folder, "-o", self.path("b"), "--scheme", "w8a8", "-v"))
        self.assertGreater(len(loud.stderr), len(plain.stderr))

    def test_no_escapes_where_there_is_no_terminal(self):
        folder = c.write_folder(self.path("in"), c.llama())
        for arguments in (["quantize", folder, "-o", self.path("out"), "--scheme", "w8a8"], ["inspect", folder], ["verify", folder],
                          ["inspect", self.path("nowhere")], ["compare", folder, self.path("out")], ["verify", self.path("out")]):
            ran = run(*arguments, env={"TERM": "xterm-256color"})
            self.assertNotIn("\x1b", ran.stdout + ran.stderr)
            self.assertNotIn("\r", ran.stdout + ran.stderr)

    def test_no_color(self):
        for env, colored in (({"NO_COLOR": "1"}, False), ({"NO_COLOR": "true"}, False), ({}, True), ({"NO_COLOR": ""}, True)):
            with self.subTest(env):
                said, code = on_a_terminal(["inspect", self.path("nowhere")], env)
                self.assertEqual(code, 1)
                self.assertEqual(bool(re.search(r"\x1b\[[0-9;]*m", said)), colored, repr(said))

    def test_progress_on_a_terminal(self):
        folder = self.path("in")
        os.mkdir(folder)
        c.write_sparse_safetensors(os.path.join(folder, "model.safetensors"),
                                   {f"model.layers.{i}.mlp.up_proj.weight": ("F32", [4096, 4096]) for i in range(4)})
        said, code = on_a_terminal(["quantize", folder, "-o", self.path("a"), "--scheme", "w8a8"])
        self.assertEqual(code, 0, said)
        self.assertIn("%", said)
        said, code = on_a_terminal(["quantize", folder, "-o", self.path("b"), "--scheme", "w8a8", "-q"])
        self.assertEqual(code, 0, said)
        self.assertNotIn("\r\x1b", said.replace("\r\n", "\n"))
        ran = self.assert_done(run("quantize", folder, "-o", self.path("c"), "--scheme", "w8a8"))
        self.assertLess(len(ran.stderr.splitlines()), 200)  # plain lines, and not one for each tile
        self.assertEqual(digest_tree(self.path("a")), digest_tree(self.path("c")))

    def test_stopped_by_a_person(self):
        made = c.llama("F32")
        made.config.update(num_attention_heads=4, num_key_value_heads=2, intermediate_size=48, vocab_size=40, hidden_act="silu",
                           max_position_embeddings=512)
        source = c.write_folder(self.path("in"), made)
        tokens = self.put("ids.txt", b" ".join(b"%d" % (i * 7919 % 40) for i in range(120_000)))
        command = ["eval", source, source, "--tokens", tokens, "--scratch", self.path("scratch")]
        said, code = on_a_terminal(command, stop_at="━".encode())
        self.assertEqual(code, -signal.SIGINT, said)
        self.assertIn("the same command with --resume goes on after the last block that is finished", said)
        self.assertIn("tokens/s", said)
        self.assertTrue(os.path.exists(self.path("scratch")), said)
        resumed = self.assert_done(run(*command, "--resume"))
        self.assertEqual(resumed.stdout, self.assert_done(run(*command)).stdout)
        self.assertFalse(os.path.exists(self.path("scratch")))
        command = ["calibrate", source, "--tokens", tokens, "-o", self.path("stats")]
        said, code = on_a_terminal(command, stop_at="━".encode())
        self.assertEqual(code, -signal.SIGINT, said)
        self.assertRegex(said, r"\r\nstopped; the same command with --resume goes on after the last block that is finished")
        self.assert_done(run(*command, "--resume"))

    def large_gguf(self):
        """256 MB of zeros: enough for a bar."""
        metadata, tensors, _ = gguf.llama(tied=True)
        tensors["token_embd.weight"] = (gguf.F32, [1 << 20, 64], bytes(4 * 64 << 20))
        return self.put("large.gguf", gguf.to_file(metadata, tensors))

    def test_quantize_and_convert_stopped_by_a_person(self):
        folder = self.path("in")
        os.mkdir(folder)
        c.write_sparse_safetensors(os.path.join(folder, "model.safetensors"),
                                   {f"model.layers.{i}.mlp.up_proj.weight": ("F32", [4096, 4096]) for i in range(16)})
        single = os.path.join(folder, "model.safetensors")
        shard = "stopped; the same command with --resume continues after the last finished shard"
        for name, command, words in (
                ("a", ["quantize", folder, "-o", self.path("a")], shard),
                ("b", ["quantize", folder, "-o", self.path("b"), "--force"],
                 "stopped; the same command with --resume in place of --force continues"),
                ("c.safetensors", ["quantize", single, "-o", self.path("c.safetensors")],
                 "stopped; the same command with --resume writes the file anew"),
                ("d", ["convert", self.large_gguf(), "-o", self.path("d")], shard)):
            with self.subTest(command[0], out=name):
                said, code = on_a_terminal(command, stop_at="━".encode())
                self.assertEqual(code, -signal.SIGINT, said)
                self.assertRegex(said, r"\r\n" + re.escape(words))
        # What the words promise.
        ran = self.assert_done(run("quantize", single, "-o", self.path("c.safetensors"), "--resume"))
        self.assertIn("c.safetensors: one file is written anew; --resume continues folders only", ran.stderr)
        self.assert_done(run("quantize", folder, "-o", self.path("a"), "--resume"))
        self.assert_done(run("verify", self.path("a")))

    def test_a_reader_that_goes_away(self):
        # kvant inspect … | head -1
        folder = self.path("in")
        os.mkdir(folder)
        c.write_sparse_safetensors(os.path.join(folder, "model.safetensors"),
                                   {f"model.layers.{i}.mlp.up_proj.weight": ("F32", [4, 4]) for i in range(20000)})
        child = subprocess.Popen([BINARY, "inspect", folder], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())
        child.stdout.readline()
        child.stdout.close()
        error = child.stderr.read()
        child.stderr.close()
        self.assertIn(child.wait(30), (0, 1, -13))
        self.assertEqual(error, b"")

    def test_results_that_cannot_be_written(self):
        folder = c.write_folder(self.path("in"), c.llama(layers=1))
        with open("/dev/full", "wb") as full:
            done = subprocess.run([BINARY, "inspect", folder], stdout=full, stderr=subprocess.PIPE, env=environment(), check=False)
        self.assertEqual(done.returncode, 1, done)
        self.assertIn(b"space", done.stderr)

    def test_closed_streams(self):
        # A file that is opened must not become standard output.
        folder = c.write_folder(self.path("in"), c.llama(layers=1))
        before = snapshot(folder)
        for closed in ("<&-", ">&-", "2>&-", "<&- >&- 2>&-"):
            out = self.path("out" + str(len(closed)))
            subprocess.run(["bash", "-c", f'"$0" quantize "$1" -o "$2" --scheme w8a8 {closed}', BINARY, folder, out], env=environment(),
                           capture_output=True, check=False)
            self.assert_untouched(folder, before)
            tensors = c.read_folder(out)
            self.assertEqual(tensors["model.layers.0.mlp.up_proj.weight"].dtype, "I8")


class DryRunTest(ToolTest):
    def test_writes_nothing(self):
        model = c.llama()
        folder = c.write_folder(self.path("in"), model, shards=3)
        c.write_safetensors(self.path("stats"), c.make_stats(model))
        before = digest_tree(self.folder)
        times = snapshot(folder)
        for flags in (["--scheme", "w8a8"], ["--scheme", "w4a16", "--group-size", "16"],
                      ["--scheme", "w8a8-static", "--smooth", "--stats", self.path("stats")], ["--scheme", "w8a8", "--force"]):
            for more in ([], ["--json"]):
                self.assert_done(run("quantize", folder, "-o", self.path("out"), "--dry-run", *flags, *more))
                self.assertEqual(digest_tree(self.folder), before)
        self.assert_untouched(folder, times)

    def test_table(self):
        folder = c.write_folder(self.path("in"), c.mixtral())
        ran = self.assert_done(run("quantize", folder, "-o", self.path("out"), "--scheme", "w8a8", "--dry-run"))
        for word in ("lm_head", "block_sparse_moe.gate", "router", "experts.2.w3", "embed_tokens", "BF16", "quantize", "copy", "memory"):
            self.assertIn(word, ran.stdout)

    def test_sizes_are_those_of_the_output(self):
        for model, flags in ((c.llama(), ["--scheme", "w8a8"]), (c.mixtral(), ["--scheme", "w4a16", "--group-size", "8", "--asymmetric"]),
                             (c.opt(), ["--scheme", "w8a8-static", "--asymmetric", "--smooth"]),
                             (c.llama(), ["--scheme", "nvfp4", "--override", "re:.*down_proj=fp8-tensor"]),
                             (c.llama(), ["--scheme", "mxfp4"])):
            folder = c.write_folder(self.path("in"), model)
            c.write_safetensors(self.path("stats"), c.make_stats(model))
            stats = ["--stats", self.path("stats")] if {"w8a8-static", "nvfp4"} & set(flags) else []
            arguments = ["quantize", folder, "-o", self.path("out"), *flags, *stats, "--json"]
            plan = json.loads(self.assert_done(run(*arguments, "--dry-run")).stdout)
            done = json.loads(self.assert_done(run(*arguments)).stdout)
            tensors = c.read_folder(self.path("out"))
            self.assertEqual(plan["bytes_before"], sum(len(t.data) for t in model.tensors.values()))
            self.assertEqual(plan["bytes_after"], sum(len(t.data) for t in tensors.values()))
            self.assertEqual({t["name"] for t in plan["tensors"]}, set(model.tensors))
            self.assertTrue(plan["dry_run"])
            self.assertFalse(done["dry_run"])
            config = load_json(self.path("out", "config.json"))
            self.assertEqual(plan["ignore"], config["quantization_config"]["ignore"])
            for tensor in plan["tensors"]:
                self.assertTrue(tensor["reason"], tensor)
            shutil.rmtree(folder)
            shutil.rmtree(self.path("out"))

    def test_needs_no_output(self):
        folder = c.write_folder(self.path("in"), c.llama())
        with_output = self.assert_done(run("quantize", folder, "-o", self.path("out"), "--dry-run")).stdout
        before = digest_tree(self.folder)
        self.assertEqual(self.assert_done(run("quantize", folder, "--dry-run", cwd=self.folder)).stdout, with_output)
        document = json.loads(self.assert_done(run("quantize", folder, "--dry-run", "--json", cwd=self.folder)).stdout)
        self.assertEqual((document["output"], document["refusal"]), (None, None))
        self.assertEqual(digest_tree(self.folder), before)
        self.assert_refused(run("quantize", folder, "-o", ""), "the output has no name")

    def test_refuses_what_the_run_would(self):
        folder = c.write_folder(self.path("in"), c.gpt2())
        self.assert_refused(run("quantize", folder, "-o", self.path("out"), "--scheme", "w8a8", "--dry-run"), "Conv1D")


class NotACheckpointTest(ToolTest):
    """What new users give in place of a checkpoint: every command says what to do."""

    def refused_by_all(self, path, *words, gguf_runs=False):
        good = c.write_folder(self.path("good"), c.llama())
        text = self.put("text.txt", "hello")
        commands = [["quantize", path, "-o", "out"], ["compare", path, good], ["compare", good, path], ["verify", path]]
        if not gguf_runs:  # these read GGUF files
            commands += [["inspect", path], ["inspect", path, "--stats"], ["eval", path, "--text", text],
                         ["calibrate", path, "--text", text, "-o", "stats"], ["eval", path, "--tokens", self.put("ids", "1 2 3")]]
        for command in commands:
            with self.subTest(command[0], path=path):
                self.assert_refused(run(*command, cwd=self.folder), *words, stdout_too=command[0] == "verify")
        shutil.rmtree(good)

    def test_a_gguf_file(self):
        metadata, tensors, _ = gguf.llama()
        path = self.put("model.gguf", gguf.to_file(metadata, tensors))
        self.refused_by_all(path, path, "GGUF", f"kvant convert {path} -o FOLDER", gguf_runs=True)
        os.mkdir(self.path("folder"))
        shutil.move(path, self.path("folder", "model.gguf"))
        self.refused_by_all(self.path("folder"), f"kvant convert {self.path('folder', 'model.gguf')} -o FOLDER")

    def test_a_folder_with_pytorch_files(self):
        for name, data in (("zip", b"PK\x03\x04\x00\x00\x08\x08pytorch"), ("pickle", b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j")):
            os.mkdir(self.path(name))
            self.put(f"{name}/config.json", '{"model_type": "llama"}')
            self.put(f"{name}/pytorch_model.bin", data)
            self.refused_by_all(self.path(name), "pytorch_model.bin", "PyTorch", "save_pretrained(FOLDER, safe_serialization=True)")
            self.refused_by_all(self.path(name, "pytorch_model.bin"), "pytorch_model.bin", "PyTorch", "save_pretrained")

    def test_a_name_of_the_hub(self):
        self.refused_by_all("meta-llama/Llama-3.2-1B", "meta-llama/Llama-3.2-1B", "no such file or folder", "hub", "hf download")
        for path in ("./meta-llama/Llama", "/meta-llama/Llama", "Llama", "a/b/c", "../b"):
            self.assertNotIn("hub", run("inspect", path, cwd=self.folder).stderr)


class InspectTest(ToolTest):
    def test_tensors(self):
        model = c.llama()
        folder = c.write_folder(self.path("in"), model, shards=2)
        ran = self.assert_done(run("inspect", folder))
        for name, tensor in model.tensors.items():
            self.assertIn(name, ran.stdout)
        self.assertIn("llama", ran.stdout)
        document = json.loads(self.assert_done(run("inspect", folder, "--json")).stdout)
        self.assertEqual({t["name"]: (t["dtype"], t["shape"], t["bytes"]) for t in document["tensors"]},
                         {n: (t.dtype, t.shape, len(t.data)) for n, t in model.tensors.items()})
        self.assertEqual(document["bytes"], sum(len(t.data) for t in model.tensors.values()))
        for shard, metadata in document["metadata"].items():
            self.assertEqual(metadata, {"format": "pt"}, shard)

    def test_statistics(self):
        rng = random.Random(3)
        rows, columns = 40, 24
        for dtype in ("F32", "F16", "BF16", "F64"):
            values = [rng.gauss(0, 1) * (50 if i % columns in (3, 17) else 1) for i in range(rows * columns)]
            values[100], values[200], values[300], values[301], values[302] = math.nan, math.inf, -math.inf, 0.0, -0.0
            tensor = c.Tensor.of(values, dtype, [rows, columns])
            c.write_safetensors(self.path("x.safetensors"), {"a.weight": tensor, "n": c.Tensor.of([1, 2], "I32")})
            document = json.loads(self.assert_done(run("inspect", self.path("x.safetensors"), "--stats", "--json")).stdout)
            (entry,) = [t for t in document["tensors"] if t["name"] == "a.weight"]
            stats = entry["stats"]
            finite = [v for v in tensor.values() if math.isfinite(v)]
            with self.subTest(dtype):
                self.assertEqual((stats["min"], stats["max"]), (min(finite), max(finite)))
                self.assertEqual((stats["nan"], stats["infinite"], stats["zeros"]), (1, 2, finite.count(0.0)))
                self.assertTrue(math.isclose(stats["rms"], math.sqrt(math.fsum(v * v for v in finite) / len(finite)), rel_tol=1e-6))
                self.assertEqual(stats["outlier_channels"], [3, 17])
        text = self.assert_done(run("inspect", self.path("x.safetensors"), "--stats")).stdout
        self.assertIn("a.weight", text)

    def test_quantized(self):
        folder = c.write_folder(self.path("in"), c.llama(layers=1))
        self.assert_done(run("quantize", folder, "-o", self.path("out"), "--scheme", "w8a8"))
        document = json.loads(self.assert_done(run("inspect", self.path("out"), "--json")).stdout)
        self.assertIn("w8a8", json.dumps(document.get("scheme")))
        self.assertIn("I8", {t["dtype"] for t in document["tensors"]})

    def test_many_dtypes(self):
        tensors = {f"t.{d}": c.Tensor(d, [3], bytes(3 * w)) for d, w in c.WIDTHS.items()}
        c.write_safetensors(self.path("x.safetensors"), tensors)
        for flags in ([], ["--stats"]):
            text = self.assert_done(run("inspect", self.path("x.safetensors"), *flags)).stdout
            for dtype in c.WIDTHS:
                self.assertIn(dtype, text)


class CompareTest(ToolTest):
    def losses(self, weight, values, codes, greatest):
        """As src/measure/compare.h defines them, in f64, exactly summed."""
        w = weight.values()
        keep = [i for i in range(len(w)) if math.isfinite(w[i])]
        error = [w[i] - values[i] for i in keep]
        signal, noise = math.fsum(w[i] ** 2 for i in keep), math.fsum(e * e for e in error)
        other = math.fsum(values[i] ** 2 for i in keep)
        product = math.fsum(w[i] * values[i] for i in keep)
        return {"sqnr_db": 10 * math.log10(signal / noise) if noise else math.inf, "mse": noise / len(keep),
                "cosine": product / math.sqrt(signal * other) if signal and other else 1.0, "largest_error": max(map(abs, error)),
                "at_ends": sum(abs(codes[i]) >= greatest for i in keep) / len(keep)}

    def check(self, model, flags, dequantize, greatest):
        folder, out = c.write_folder(self.path("in"), model, shards=2), self.path("out")
        self.assert_done(run("quantize", folder, "-o", out, *flags))
        document = json.loads(self.assert_done(run("compare", folder, out, "--json")).stdout)
        tensors = c.read_folder(out)
        layers = {layer["module"]: layer for layer in document["quantized"][0]["layers"]}
        self.assertEqual(set(layers), set(model.linears))
        order = [float(layer["sqnr_db"]) for layer in document["quantized"][0]["layers"]]
        self.assertEqual(order, sorted(order))
        for module, layer in layers.items():
            weight = model.tensors[module + ".weight"]
            codes, values = dequantize(module, weight, tensors)
            want = self.losses(weight, values, codes, greatest)
            for key, value in want.items():
                self.assertTrue(math.isclose(float(layer[key]), value, rel_tol=1e-9, abs_tol=1e-15), f"{module} {key}: {layer[key]}, want {value}")
            place = layer["largest_row"] * weight.shape[1] + layer["largest_column"]
            self.assertTrue(math.isclose(abs(weight.values()[place] - values[place]), want["largest_error"], rel_tol=1e-12))
            self.assertEqual([layer["rows"], layer["columns"]], weight.shape)
            self.assertFalse(layer["smoothed"])
        self.assertEqual(sorted(document["quantized"][0]["unquantized"]), sorted(model.unquantized))
        text = self.assert_done(run("compare", folder, out)).stdout
        first = document["quantized"][0]["layers"][0]["module"]
        self.assertLess(text.index(first), min(text.index(m) for m in model.linears if m != first))
        trees = [json.loads(self.assert_done(run("compare", folder, out, "--json", "--threads", n)).stdout)["quantized"] for n in (1, 2, 3)]
        self.assertEqual(trees[0], trees[1])
        self.assertEqual(trees[0], trees[2])

    def test_w8a8(self):
        def dequantize(module, weight, tensors):
            codes, scales = tensors[module + ".weight"].values(), tensors[module + ".weight_scale"].values()
            return codes, [scales[i // weight.shape[1]] * q for i, q in enumerate(codes)]

        for dtype in ("BF16", "F32"):
            with self.subTest(dtype):
                self.check(c.llama(dtype), ["--scheme", "w8a8"], dequantize, 127)
                shutil.rmtree(self.path("in"))
                shutil.rmtree(self.path("out"))

    def test_w4a16(self):
        def dequantize(module, weight, tensors):
            rows, columns = weight.shape
            codes = [u - 8 for u in reference.unpack(tensors[module + ".weight_packed"].values(), rows * columns)]
            scales = tensors[module + ".weight_scale"].values()
            groups = columns // 16
            zeros = [[0] * groups for _ in range(rows)]
            words = tensors[module + ".weight_zero_point"].values()
            for r in range(rows):
                for g in range(groups):
                    zeros[r][g] = (((words[r // 8 * groups + g] & 0xFFFFFFFF) >> 4 * (r % 8)) & 15) - 8
            return codes, [scales[i // columns * groups + i % columns // 16] * (q - zeros[i // columns][i % columns // 16])
                           for i, q in enumerate(codes)]

        self.check(c.llama(), ["--scheme", "w4a16", "--group-size", "16", "--asymmetric"], dequantize, 7)

    def test_floating_point_codes(self):
        for scheme in ("fp8", "mxfp8", "mxfp4", "nvfp4a16"):
            made = reference.Scheme(scheme)

            def dequantize(module, weight, tensors, made=made):
                values = [v for row in reference.decoded(module, tensors, made) for v in row]
                if made.bits == 8:
                    codes = tensors[module + ".weight"].data
                else:
                    codes = [u for byte in tensors[module + ".weight_packed"].data for u in (byte & 15, byte >> 4)]
                return [made.grid.number(code) for code in codes], values

            with self.subTest(scheme):
                self.check(c.llama(intermediate=64), ["--scheme", scheme], dequantize, made.grid.largest)
                shutil.rmtree(self.path("in"))
                shutil.rmtree(self.path("out"))

    def test_an_exact_layer(self):
        make = c.Maker("F32", 1)
        make.tensors["model.layers.0.mlp.up_proj.weight"] = c.Tensor.of([127.0, -3.0, 0.0, 4.0] * 4, "F32", [4, 4])
        make.linear("model.layers.0.mlp.down_proj", 8, 8)
        folder = c.write_folder(self.path("in"), c.Model(make.tensors, c.config_of("llama", "L", "F32"), make.linears))
        self.assert_done(run("quantize", folder, "-o", self.path("out"), "--scheme", "w8a8"))
        document = json.loads(self.assert_done(run("compare", folder, self.path("out"), "--json")).stdout)
        exact = document["quantized"][0]["layers"][-1]
        self.assertEqual((exact["module"], exact["sqnr_db"], exact["mse"]), ("model.layers.0.mlp.up_proj", "inf", 0))

    def test_a_bound(self):
        model = c.llama()
        folder = c.write_folder(self.path("in"), model)
        for scheme in ("w8a8", "fp8"):
            self.assert_done(run("quantize", folder, "-o", self.path(scheme), "--scheme", scheme))
        document = json.loads(self.assert_done(run("compare", folder, self.path("w8a8"), self.path("fp8"), "--json")).stdout)
        losses = {q["label"]: [(layer["sqnr_db"], layer["module"]) for layer in q["layers"]] for q in document["quantized"]}
        between = (min(losses["w8a8"])[0] + max(losses["fp8"])[0]) / 2
        self.assert_done(run("compare", folder, self.path("w8a8"), "--min-sqnr", between))
        for flags in ([], ["--json"]):
            ran = run("compare", folder, self.path("w8a8"), self.path("fp8"), "--min-sqnr", between, *flags)
            self.assertEqual(ran.returncode, 1, ran)
            last = ran.stderr.strip().splitlines()[-1]
            worst = min(losses["fp8"])
            self.assertIn(f"fp8: 14 of 14 layers are below {between:g} dB by their weights, the worst is '{worst[1]}'", last)
            self.assertNotIn("w8a8", last)
            self.assertTrue(ran.stdout)
        # By their outputs where these are estimated.
        stats = self.path("stats.safetensors")
        c.write_safetensors(stats, {**c.make_stats(model, mean_square=True),
                                    **{m + ".int8_error": c.Tensor.of([0.0] * model.shape(m)[1], "F32") for m in model.linears}})
        ran = run("compare", folder, self.path("w8a8"), "--stats", stats, "--min-sqnr", "200")
        self.assertEqual(ran.returncode, 1, ran)
        self.assertIn("dB by their outputs", ran.stderr)
        self.assert_refused(run("compare", folder, self.path("w8a8"), "--min-sqnr", "low"), "'low' is not a number of decibels", code=2)

    def test_smoothed(self):
        model = c.llama()
        folder = c.write_folder(self.path("in"), model)
        stats = c.make_stats(model)
        c.write_safetensors(self.path("stats"), stats)
        self.assert_done(run("quantize", folder, "-o", self.path("out"), "--scheme", "w8a8", "--smooth", "--stats", self.path("stats")))
        document = json.loads(self.assert_done(run("compare", folder, self.path("out"), "--json")).stdout)
        readers = {r for g in model.groups for r in g.readers}
        for layer in document["quantized"][0]["layers"]:
            self.assertEqual(layer["smoothed"], layer["module"] in readers)
            self.assertGreater(layer["sqnr_db"], 30, layer)  # against the weights that were quantized, not the original ones

    def test_checkpoints_that_do_not_belong_together(self):
        folder = c.write_folder(self.path("in"), c.llama(layers=1))
        fewer = c.write_folder(self.path("fewer"), c.llama(layers=1, hidden=16))
        self.assert_done(run("quantize", folder, "-o", self.path("out"), "--scheme", "w8a8"))
        self.assert_refused(run("compare", fewer, self.path("out")), "_proj", "16", "32")
        self.assert_refused(run("compare", folder, folder), folder)
        self.assert_refused(run("compare", self.path("out"), folder))


class VerifyTest(ToolTest):
    def test_good_ones(self):
        for model in (c.llama(), c.mixtral(), c.opt(), c.bloom(), c.gpt2()):
            name = model.config["model_type"]
            folder = c.write_folder(self.path(name), model, shards=2)
            with self.subTest(name):
                self.assert_done(run("verify", folder))
                if name == "gpt2":
                    continue
                c.write_safetensors(self.path("stats"), c.make_stats(model))
                for i, flags in enumerate((["--scheme", "w8a8"], ["--scheme", "w4a16", "--group-size", "8"],
                                           ["--scheme", "w4a16", "--group-size", "8", "--asymmetric"],
                                           ["--scheme", "w8a8-static", "--smooth"], ["--scheme", "w8a8-static", "--asymmetric"])):
                    out = self.path(f"{name}.{i}")
                    if "w8a8-static" in flags:
                        flags += ["--stats", self.path("stats")]
                        if name == "mixtral":  # vLLM takes no int8 experts with stored activation scales
                            flags += ["--override", "re:.*experts.*=none"]
                    self.assert_done(run("quantize", folder, "-o", out, *flags))
                    ran = self.assert_done(run("verify", out, "--json"))
                    document = json.loads(ran.stdout)
                    self.assertEqual((document["ok"], document["quantized"], document["problems"]), (True, True, []), ran)
                    self.assertTrue(document["checks"])

    def test_one_file(self):
        c.write_safetensors(self.path("x.safetensors"), c.llama(layers=1).tensors)
        self.assert_done(run("verify", self.path("x.safetensors")))
        self.assert_done(run("quantize", self.path("x.safetensors"), "-o", self.path("q.safetensors"), "--scheme", "w8a8"))
        self.assert_done(run("verify", self.path("q.safetensors")))

    def test_a_temporary_file_that_is_left(self):
        folder = c.write_folder(self.path("in"), c.llama(layers=1))
        self.put("in/model-00002.safetensors.partial", b"x")
        self.assert_refused(run("verify", folder), ".partial", stdout_too=True)

    def test_a_config_that_is_missing(self):
        folder = c.write_folder(self.path("in"), c.llama(layers=1))
        self.assert_done(run("quantize", folder, "-o", self.path("out"), "--scheme", "w8a8"))
        os.remove(self.path("out", "config.json"))
        self.assert_refused(run("verify", self.path("out")), "config.json", stdout_too=True)

    def test_json_of_problems(self):
        ran = run("verify", self.path("nowhere"), "--json")
        self.assertEqual(ran.returncode, 1, ran)
        if ran.stdout.strip():
            document = json.loads(ran.stdout)
            self.assertFalse(document["ok"])
            self.assertTrue(document["problems"])


class OtherCommandsTest(ToolTest):
    def test_completion(self):
        for shell in ("bash", "zsh", "fish"):
            with self.subTest(shell):
                script = self.assert_done(run("completion", shell)).stdout
                for word in ("quantize", "inspect", "max-memory", "dry-run", "w8a8-static"):
                    self.assertIn(word, script)
                program = shutil.which(shell)
                if program:
                    path = self.put("script." + shell, script)
                    checked = subprocess.run([program, "-n", path], capture_output=True, check=False)
                    self.assertEqual((checked.returncode, checked.stderr), (0, b""))

    def test_completion_completes(self):
        script = self.put("c.bash", self.assert_done(run("completion", "bash")).stdout)
        program = """
            compopt() { :; }; source "$1"; shift
            COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}
            f=$(complete -p kvant | sed -E 's/.*-F ([^ ]+).*/\\1/')
            "$f" kvant "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
            printf '%s\\n' "${COMPREPLY[@]}"
        """
        for words, wanted in ((["kvant", "qu"], "quantize"), (["kvant", "quantize", "--max"], "--max-memory"),
                              (["kvant", "quantize", "--scheme", "w4"], "w4a16"), (["kvant", "inspect", "--js"], "--json"),
                              (["kvant", "stats", "m"], "merge"), (["kvant", "stats", "merge", script[:-3]], script),
                              (["kvant", "stats", "show", "--model-type", "m"], "mixtral")):
            with self.subTest(words):
                done = subprocess.run(["bash", "-c", program, "bash", script, *words], capture_output=True, text=True, check=False)
                self.assertIn(wanted, done.stdout.split(), done.stderr)

    def test_info(self):
        text = self.assert_done(run("info")).stdout
        self.assertRegex(text, r"\d+\.\d+\.\d+")
        self.assertIn("scalar", text)
        document = json.loads(self.assert_done(run("info", "--json")).stdout)
        self.assertEqual(document["schemes"], list(reference.SCHEMES))
        forced = json.loads(self.assert_done(run("info", "--json", env={"KVANT_FORCE_ISA": "scalar"})).stdout)
        self.assertEqual([s["name"] for s in forced["instruction_sets"] if s["chosen"]], ["scalar"])
        self.assert_refused(run("info", env={"KVANT_FORCE_ISA": "abacus"}), "abacus")

    def test_bench(self):
        text = self.assert_done(run("bench", "--threads", 1, timeout=120)).stdout
        self.assertIn("/s", text)

    def demo_tree(self, folder):
        """Manifests know when their input was written, reports how long it took; all else is the same bits every time."""
        return {n: d for n, d in digest_tree(folder).items() if not n.endswith(("kvant/manifest.json", "report.html", "evaluation.html"))}

    def test_demo_twice(self):
        first = self.assert_done(run("demo", cwd=self.folder, timeout=240))
        trees = [self.demo_tree(self.folder)]
        (folder,) = [n for n in os.listdir(self.folder)]
        second = self.assert_done(run("demo", cwd=self.folder, timeout=240))
        trees.append(self.demo_tree(self.folder))
        self.assertEqual(trees[0], trees[1])
        for ran in (first, second):
            for word in ("SQNR", "perplexity", "same top", "W8A8", folder):
                self.assertIn(word, ran.stdout)
        for name in DEMO_CHECKPOINTS:
            self.assert_done(run("verify", self.path(folder, name)))
            # A row of means and a row of the evaluation.
            tables = first.stdout.split("files:")[0]
            self.assertEqual(len(re.findall(rf"^(?:{folder}/)?{name} .*\d", tables, re.M)), 2, first.stdout)
        # The model is as the tree ships it, file by file.
        shipped = os.path.join(os.path.dirname(__file__), "..", "..", "data", "demo_model")
        written = set(os.listdir(self.path(folder, "model"))) | {"held-out.txt", "calibration.txt"}
        self.assertEqual(set(os.listdir(shipped)) - {"README.md"}, written)
        for name in written:
            path = self.path(folder, name) if name.endswith(".txt") else self.path(folder, "model", name)
            with open(path, "rb") as got, open(os.path.join(shipped, name), "rb") as want:
                self.assertTrue(got.read() == want.read(), name)
        # What it tells to try next works.
        commands = re.findall(r"^  kvant (.*)$", first.stdout.split("try next:")[1], re.M)
        self.assertEqual([c.split()[0] for c in commands], ["eval", "compare", "verify", "inspect"])
        for command in commands:
            self.assert_done(run(*command.split(), cwd=self.folder))

    def test_demo_layers(self):
        plain = self.assert_done(run("demo", cwd=self.folder, timeout=240)).stdout
        verbose = self.assert_done(run("demo", "--verbose", cwd=self.folder, timeout=240)).stdout
        self.assertIsNone(re.search(r"^model\.layers\.", plain, re.M), plain)
        self.assertEqual(len(re.findall(r"^model\.layers\.\d\.\S+(?: +\d+\.\d){4}$", verbose, re.M)), 28, verbose)

    def test_demo_is_the_same_everywhere(self):
        trees, evaluations = [], []
        for name, threads in (("a", 0), ("b", 1), ("c", 3)):
            ran = self.assert_done(run("demo", "--output", self.path(name), "--json", "--threads", threads, timeout=400), quotes=True)
            trees.append(self.demo_tree(self.path(name)))
            evaluation = json.loads(ran.stdout)["evaluation"]
            del evaluation["command"]
            for quality in [evaluation["original"], *evaluation["quantized"]]:
                quality["path"] = os.path.basename(quality["path"])
            evaluations.append(evaluation)
        for other in (1, 2):
            self.assertEqual(trees[0], trees[other])
            self.assertEqual(evaluations[0], evaluations[other])
        # What torch says of the shipped model, and what the schemes must not lose.
        self.assertAlmostEqual(evaluations[0]["original"]["perplexity"] / DEMO_PERPLEXITY, 1, delta=1e-5)
        self.assertEqual({q["path"]: q["verdict"] for q in evaluations[0]["quantized"]}, DEMO_CHECKPOINTS)

    def test_demo_on_other_instruction_sets(self):
        """A part of the text: scalar kernels would take minutes for all of it."""
        self.assert_done(run("demo", "--output", self.path("demo"), "--json", timeout=400), quotes=True)
        model, *quantized = [self.path("demo", name) for name in ("model", *DEMO_CHECKPOINTS)]
        said, trees = [], []
        for isa in (None, "scalar", "avx2"):
            env = {"KVANT_FORCE_ISA": isa} if isa else {}
            if isa == "avx2" and run("info", env=env).returncode:
                continue  # this machine has none
            folder = self.path(isa or "default")
            os.mkdir(folder)
            stats = os.path.join(folder, "stats.safetensors")
            self.assert_done(run("calibrate", model, "--text", self.path("demo", "calibration.txt"), "--max-tokens", 100,
                                 "-o", stats, env=env))
            self.assert_done(run("quantize", model, "-o", os.path.join(folder, "smooth"), "--smooth", "--stats", stats, env=env))
            ran = self.assert_done(run("eval", model, *quantized, "--text", self.path("demo", "held-out.txt"),
                                       "--max-tokens", 200, "--json", env=env, timeout=200), quotes=True)
            said.append(json.loads(ran.stdout))
            trees.append(self.demo_tree(folder))
        for other in range(1, len(said)):
            self.assertEqual(said[other], said[0])
            self.assertEqual(trees[other], trees[0])

    def test_demo_over_something_else(self):
        os.mkdir(self.path("mine"))
        self.put("mine/precious", "x")
        before = digest_tree(self.path("mine"))
        self.assert_refused(run("demo", "--output", self.path("mine"), timeout=120), self.path("mine"))
        self.assertEqual(digest_tree(self.path("mine")), before)

    def test_demo_over_another_demo(self):
        """Only what a demo wrote is replaced, also of one that was killed or older."""
        out = self.path("demo")
        self.assert_done(run("demo", "--output", out, timeout=120))
        fresh = self.demo_tree(out)
        model = lambda name: os.path.join("demo", "model", name)
        # Killed before the model was whole; an older model and text.
        shutil.rmtree(self.path("demo", "w4a16"))
        for name in os.listdir(out):
            if os.path.isfile(self.path("demo", name)):
                os.remove(self.path("demo", name))
        os.remove(self.path(model("config.json")))
        os.rename(self.path(model("model.safetensors")), self.path(model("model.safetensors.partial")))
        self.assert_done(run("demo", "--output", out, timeout=120))
        self.assertEqual(self.demo_tree(out), fresh)
        self.put(model("model.safetensors"), "older")
        self.put("demo/held-out.txt", "older")
        self.assert_done(run("demo", "--output", out, timeout=120))
        self.assertEqual(self.demo_tree(out), fresh)
        # Files of somebody else, under any name.
        for name in ("demo/notes.txt", model("notes.txt")):
            self.put(name, "mine")
            self.assert_refused(run("demo", "--output", out), out, "did not write")
            os.remove(self.path(name))
        os.mkdir(self.path("other"))
        self.put("other/held-out.txt", "mine")
        self.assert_refused(run("demo", "--output", self.path("other")), "holds held-out.txt")
        self.put("demo/model/config.json", '{"model_type": "llama"}')
        self.assert_refused(run("demo", "--output", out), "holds ")


if __name__ == "__main__":
    unittest.main()
