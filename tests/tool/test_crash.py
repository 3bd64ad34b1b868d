"""A run that ends at any moment leaves whole files only, and --resume ends with the bytes of a run that nothing stopped."""

import json
import os
import random
import shutil
import signal
import subprocess
import time
import unittest

import checkpoints as c
import dialects
import syscalls
from tool import BINARY, ToolTest, digest_tree, environment, load_json, run, snapshot, start

CAN_TRACE = syscalls.available()


class CrashTest(ToolTest):
    COMMAND = "quantize"
    FLAGS = ["--scheme", "w8a8-static", "--smooth"]

    def setUp(self):
        super().setUp()
        self.model = c.llama("F32", hidden=32, intermediate=64, layers=3)
        self.source = c.write_folder(self.path("in"), self.model, shards=8)
        os.makedirs(os.path.join(self.source, "1_Pooling", "deep"))
        self.put("in/1_Pooling/config.json", '{"pooling_mode_mean_tokens": true}')
        self.put("in/1_Pooling/deep/notes.txt", "x")
        self.stats = self.path("stats.safetensors")
        c.write_safetensors(self.stats, c.make_stats(self.model))
        self.flags = [*self.FLAGS, "--stats", self.stats]
        self.out = self.path("out")
        self.before = snapshot(self.source)

    def tearDown(self):
        self.assert_untouched(self.source, self.before)

    def quantize(self, *more, out=None, source=None, flags=None, **options):
        return run(self.COMMAND, source or self.source, "-o", out or self.out, *(self.flags if flags is None else flags), *more,
                   **options)

    def clean_run(self):
        """What an undisturbed run makes, under the same name: the manifest may hold it."""
        self.assert_done(self.quantize())
        tree = digest_tree(self.out)
        shutil.rmtree(self.out)
        return tree

    def command(self, *more):
        return [BINARY, self.COMMAND, self.source, "-o", self.out, *self.flags, *map(str, more)]

    def check_interrupted(self, clean, about):
        """No final name but with its final content; config.json only where all is there."""
        tree = digest_tree(self.out) if os.path.exists(self.out) else {}
        for name, digest in tree.items():
            if name.endswith(".partial") or name.endswith("/"):
                continue
            path = os.path.join(self.out, name)
            if name.startswith("kvant/"):
                if name.endswith(".json"):
                    load_json(path)
                elif name.endswith(".safetensors"):
                    c.read_safetensors(path)
                continue
            self.assertIn(name, clean, about)
            self.assertEqual(digest, clean[name], f"{about}: {name} is not what it will be")
        if "config.json" in tree:
            missing = [n for n in clean if not n.startswith("kvant/") and n not in tree]
            self.assertEqual(missing, [], f"{about}: config.json is there and these are not")

    def check_resumed(self, clean, about, *more):
        ran = self.quantize("--resume", *more)
        self.assertEqual(ran.returncode, 0, f"{about}: {ran}")
        self.assertEqual(digest_tree(self.out), clean, about)

    def interrupt(self, at, *more):
        """Runs until the call `at`; None: to the end. Returns the calls so far and the exit code."""
        calls, code, said = syscalls.trace_until(self.command("--threads", "1", *more), at, environment())
        if at is None:
            self.assertEqual(code, 0, said)
        return calls, code

    def check_around_shards(self, calls, clean, what):
        """Killed where one of the four shards appears, and between them."""
        renames = [i for i, call in enumerate(calls) if call.name == "rename" and call.to.endswith(".safetensors")]
        self.assertEqual(len(renames), 4)
        for at in [renames[0], *(i + 1 for i in renames), (renames[1] + renames[2]) // 2]:
            shutil.rmtree(self.out)
            self.interrupt(at)
            about = f"{what} killed before call {at}, {calls[at]}"
            self.check_interrupted(clean, about)
            self.check_resumed(clean, about)


@unittest.skipUnless(CAN_TRACE, "ptrace is not permitted here")
class KilledAtCallsTest(CrashTest):
    """Deterministic: ended before each call that changes a file."""

    def test_at_every_call(self):
        clean = self.clean_run()
        calls, _ = self.interrupt(None)
        self.assertEqual(digest_tree(self.out), clean)
        self.assertGreater(len(calls), 8 * 3)
        # Writes are many and alike; around renames and flushes every one counts.
        points = [i for i, call in enumerate(calls) if call.name != "write"]
        writes = [i for i, call in enumerate(calls) if call.name == "write"]
        points += writes[::max(1, len(writes) // 20)]
        for at in sorted(points):
            shutil.rmtree(self.out)
            _, code = self.interrupt(at)
            about = f"killed before call {at}, {calls[at]}"
            self.assertIn(code, (-signal.SIGKILL, 0), about)
            self.check_interrupted(clean, about)
            os.makedirs(self.out, exist_ok=True)
            self.check_resumed(clean, about)

    def test_every_format(self):
        # Around whole shards: what a scale of many weights needs of a shard that is done is found again.
        self.model = c.llama("BF16", hidden=32, intermediate=64, layers=1)
        self.source = c.write_folder(self.path("small"), self.model, shards=4)
        self.before = snapshot(self.source)
        c.write_safetensors(self.stats, c.make_stats(self.model))
        for scheme, more in (("int-quantized", ["w4a8", "--group-size", "32"]),
                             ("pack-quantized", ["w4a16", "--group-size", "auto"]), ("float-quantized", ["fp8-tensor"]),
                             ("mxfp8-quantized", ["mxfp8"]), ("mxfp4-pack-quantized", ["mxfp4"]),
                             ("nvfp4-pack-quantized", ["nvfp4", "--stats", self.stats]),
                             ("mixed-precision", ["fp8-tensor", "--override", "re:.*mlp.*=nvfp4a16"])):
            with self.subTest(scheme):
                self.flags = ["--scheme", *more]
                shutil.rmtree(self.out, ignore_errors=True)
                clean = self.clean_run()
                calls, _ = self.interrupt(None)
                self.assertEqual(digest_tree(self.out), clean)
                self.assertEqual(load_json(os.path.join(self.out, "config.json"))["quantization_config"]["format"], scheme)
                self.check_around_shards(calls, clean, scheme)

    def test_killed_again_while_resuming(self):
        clean = self.clean_run()
        calls, _ = self.interrupt(None)
        rng = random.Random(8)
        for _ in range(6):
            shutil.rmtree(self.out, ignore_errors=True)
            at = rng.randrange(len(calls))
            self.interrupt(at)
            for again in range(3):
                self.interrupt(rng.randrange(len(calls) // 2), "--resume")
                self.check_interrupted(clean, f"killed at {at}, then {again + 1} times")
            self.check_resumed(clean, f"killed at {at} and three times more")

    def test_force_after_a_kill(self):
        clean = self.clean_run()
        calls, _ = self.interrupt(None)
        for at in range(3, len(calls), max(1, len(calls) // 5)):
            shutil.rmtree(self.out)
            self.interrupt(at)
            if os.path.exists(os.path.join(self.out, "model-00001-of-00008.safetensors")):
                self.assert_refused(self.quantize(), self.out, "--resume")
            self.assert_done(self.quantize("--force"))
            self.assertEqual(digest_tree(self.out), clean)

    def test_order_of_calls(self):
        """Temporary file, flush, rename, flush of the folder; config.json last."""
        calls, opened = [], []

        def before(call):
            if call.changes_files():
                calls.append(call)
            if call.name == "open":
                opened.append(call)
            return True

        code, said = syscalls.trace(self.command("--threads", "2"), before, environment())
        self.assertEqual(code, 0, said)
        finals = {}
        for i, call in enumerate(calls):
            if call.name in ("rename", "link") and not call.to.endswith(".partial"):
                finals[call.to] = i
                if call.path.endswith(".partial"):
                    flushed = [j for j in range(i) if calls[j].name == "fsync" and calls[j].path == call.path]
                    written = [j for j in range(i) if calls[j].name == "write" and calls[j].path == call.path]
                    self.assertTrue(flushed, f"{call.path} is renamed without a flush")
                    self.assertLess(max(written, default=-1), max(flushed), f"{call.path} is written after its flush")
        for shard in (n for n in os.listdir(self.source) if n.endswith(".safetensors")):
            place = finals[os.path.join(self.out, shard)]
            after = [j for j in range(place, len(calls)) if calls[j].name == "fsync" and calls[j].path == self.out]
            self.assertTrue(after, f"the folder is not flushed after {shard}")
        outside = {path: i for path, i in finals.items() if "/kvant/" not in path[len(self.folder):]}
        last = max(outside, key=outside.get)
        self.assertEqual(os.path.basename(last), "config.json")
        config = outside[last]
        for path, i in outside.items():
            if path.endswith(".safetensors"):
                self.assertLess(i, outside[os.path.join(self.out, c.INDEX_NAME)])
        self.assertTrue(any(calls[j].name == "fsync" and calls[j].path == self.out for j in range(config, len(calls))))
        for call in opened:
            if call.path.startswith(self.source + "/") or call.path == self.stats:
                self.assertEqual(call.flags & os.O_ACCMODE, os.O_RDONLY, call)
            if call.path.endswith(".partial") and call.flags & os.O_CREAT:
                self.assertTrue(call.flags & os.O_EXCL, f"{call} follows what is there")

    def test_two_at_once(self):
        clean = self.clean_run()
        seconds = []

        def before(call):
            if call.changes_files() and call.name == "fsync" and len(seconds) == 0:
                for more in (["--resume"], ["--force"], []):
                    seconds.append(self.quantize(*more))
            return True

        code, said = syscalls.trace(self.command(), before, environment())
        self.assertEqual(code, 0, said)
        self.assertEqual(len(seconds), 3)
        for ran in seconds:
            self.assert_refused(ran, self.out)
        self.assertEqual(digest_tree(self.out), clean)

    def test_input_that_shrinks(self):
        source = self.path("shrinks")
        shutil.copytree(self.source, source)
        shard = os.path.join(source, "model-00008-of-00008.safetensors")
        done = []

        def before(call):
            if call.changes_files() and call.name == "rename" and call.to.endswith(".safetensors") and not done and (
                    "/kvant/" not in call.to):
                os.truncate(shard, os.path.getsize(shard) - 100)
                done.append(call)
            return True

        flags = ["--scheme", "w8a8", "--threads", "1"]
        code, said = syscalls.trace([BINARY, "quantize", source, "-o", self.out, *flags], before, environment())
        self.assertTrue(done, said)
        self.assertEqual(code, 1, said)
        self.assertIn("model-00008-of-00008.safetensors", said.splitlines()[-1])
        self.assertFalse(os.path.exists(os.path.join(self.out, "config.json")))
        self.assertFalse(os.path.exists(os.path.join(self.out, "model-00008-of-00008.safetensors")))

    def test_input_that_shrinks_to_nothing_while_a_tensor_is_read(self):
        # One large tensor: most of it is still to be read when the file is cut.
        source = self.path("one.safetensors")
        c.write_sparse_safetensors(source, {"model.layers.0.mlp.up_proj.weight": ("F32", [64, 1 << 20])})
        cut = []

        def before(call):
            if call.name == "write" and call.changes_files() and not cut:
                os.truncate(source, 5000)
                cut.append(call)
            return True

        code, said = syscalls.trace([BINARY, "quantize", source, "-o", self.path("o.safetensors"), "--scheme", "w8a8",
                                     "--max-memory", "64M"], before, environment())
        self.assertTrue(cut, said)
        self.assertEqual(code, 1, said)
        self.assertIn("one.safetensors", said.splitlines()[-1])
        self.assertFalse(os.path.exists(self.path("o.safetensors")))

    def test_one_file(self):
        source, self.out = self.path("one.safetensors"), self.path("o.safetensors")
        c.write_safetensors(source, self.model.tensors)
        self.flags = ["--scheme", "w8a8"]
        command = [BINARY, "quantize", source, "-o", self.out, *self.flags]
        self.assert_done(run(*command[1:]))
        with open(self.out, "rb") as file:
            clean = file.read()
        beside = {n: d for n, d in digest_tree(self.folder).items() if not n.startswith("in/")}
        calls = []

        def restart():
            for name in os.listdir(self.folder):
                if name not in ("in", "one.safetensors", "stats.safetensors"):
                    path = self.path(name)
                    shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)

        restart()
        syscalls.trace(command, lambda call: not call.changes_files() or calls.append(call) is None, environment())
        for at in range(0, len(calls), max(1, len(calls) // 15)):
            restart()
            seen = []
            syscalls.trace(command, lambda call: not call.changes_files() or seen.append(call) or len(seen) <= at, environment())
            if os.path.exists(self.out):  # one file has no manifest: it is whole, and an existing one is refused
                with open(self.out, "rb") as file:
                    self.assertEqual(file.read(), clean, f"killed at {at}, {calls[at]}")
                continue
            self.assert_done(run(*command[1:], "--resume"))
            self.assertEqual({n: d for n, d in digest_tree(self.folder).items() if not n.startswith("in/")}, beside,
                             f"killed at {at}, {calls[at]}")


@unittest.skipUnless(CAN_TRACE, "ptrace is not permitted here")
class KilledConversionTest(CrashTest):
    """kvant convert of checkpoints that are quantized already: to their values, and to their codes in another layout."""

    COMMAND = "convert"

    def test_layouts(self):
        for name, to in (("deepseek", "bf16"), ("deepseek", "compressed-tensors"), ("modelopt nvfp4", "compressed-tensors"),
                         ("gptq, zero points", "compressed-tensors"), ("gptq, act-order", "f32"), ("awq", "compressed-tensors"),
                         ("gpt-oss", "bf16")):
            with self.subTest(name, to=to):
                tensors, config = dialects.ALL[name].of(c.llama("BF16", hidden=32, intermediate=48, layers=1))
                self.source = c.write_folder(self.path(name + to), c.Model(tensors, config, []), shards=4)
                self.before = snapshot(self.source)
                self.flags = ["--to", to]
                shutil.rmtree(self.out, ignore_errors=True)
                clean = self.clean_run()
                calls, _ = self.interrupt(None)
                self.assertEqual(digest_tree(self.out), clean)
                self.check_around_shards(calls, clean, f"{name} to {to}")
                self.assert_untouched(self.source, self.before)


class KilledAtRandomTest(CrashTest):
    def test_after_random_delays(self):
        clean = self.clean_run()
        begin = time.monotonic()
        self.assert_done(self.quantize())
        whole = time.monotonic() - begin
        rng = random.Random(4)
        killed = 0
        for i in range(25):
            shutil.rmtree(self.out, ignore_errors=True)
            child = start("quantize", self.source, "-o", self.out, *self.flags)
            time.sleep(rng.uniform(0, whole))
            child.kill()
            child.communicate()
            killed += child.returncode == -signal.SIGKILL
            self.check_interrupted(clean, f"run {i}")
            self.check_resumed(clean, f"run {i}", "--threads", rng.choice([1, 2, 3]))
        self.assertGreater(killed, 0)

    def test_interrupted_by_a_person(self):
        # Ctrl-C and a session that ends are no different from a kill, and exit as signals do or with 1.
        clean = self.clean_run()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            shutil.rmtree(self.out, ignore_errors=True)
            child = start("quantize", self.source, "-o", self.out, *self.flags)
            time.sleep(0.02)
            child.send_signal(number)
            child.communicate()
            self.assertIn(child.returncode, (-number, 128 + number, 1, 0))
            self.check_interrupted(clean, str(number))
            self.check_resumed(clean, str(number))


class NoRoomTest(CrashTest):
    def test_file_size_limit(self):
        clean = self.clean_run()
        largest = max(os.path.getsize(os.path.join(self.source, n)) for n in os.listdir(self.source))
        refused = 0
        for limit in [0, 1, 100, 1000] + [largest * i // 16 for i in range(1, 16)]:
            with self.subTest(limit):
                shutil.rmtree(self.out, ignore_errors=True)
                ran = self.quantize(limits={"RLIMIT_FSIZE": limit})
                if ran.returncode == 0:
                    self.assertEqual(digest_tree(self.out), clean)
                    continue
                refused += 1
                # What it says goes to a file too: where nothing may be written, nothing can be said.
                if limit >= 1000:
                    self.assert_refused(ran, self.out, ("large", "limit", "space"))
                else:
                    self.assertEqual(ran.returncode, 1, ran)
                self.check_interrupted(clean, f"limit {limit}")
                self.check_resumed(clean, f"limit {limit}")
        self.assertGreater(refused, 4)

    def test_full_disk(self):
        disk = self.path("disk")
        os.mkdir(disk)
        if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", disk], check=False,
                                               capture_output=True).returncode:
            self.skipTest("a small tmpfs needs root")
        self.addCleanup(subprocess.run, ["umount", disk], check=False)
        self.out = os.path.join(disk, "out")
        refused = 0
        clean = None
        for kilobytes in (2048, 8, 16, 32, 48, 64, 96, 128, 192):
            with self.subTest(kilobytes):
                shutil.rmtree(self.out, ignore_errors=True)
                subprocess.run(["mount", "-o", f"remount,size={kilobytes}k", disk], check=True)
                ran = self.quantize()
                if clean is None:
                    self.assert_done(ran)
                    clean = digest_tree(self.out)
                    continue
                if ran.returncode == 0:
                    self.assertEqual(digest_tree(self.out), clean)
                    continue
                refused += 1
                self.assert_refused(ran, self.out, "space")
                self.check_interrupted(clean, f"{kilobytes} KB")
                subprocess.run(["mount", "-o", "remount,size=2m", disk], check=True)
                self.check_resumed(clean, f"{kilobytes} KB")
        self.assertGreater(refused, 2)

    def test_output_on_a_device_that_is_always_full(self):
        ran = run("quantize", self.source, "-o", "/dev/full", *self.flags)
        self.assert_refused(ran, "/dev/full")


class ResumeTest(CrashTest):
    def interrupted(self):
        """An output that a failed write ended halfway, without ptrace."""
        sizes = sorted(os.path.getsize(os.path.join(self.source, n)) for n in os.listdir(self.source) if "safetensors" in n)
        for limit in range(sizes[-1], 2000, -500):
            shutil.rmtree(self.out, ignore_errors=True)
            ran = self.quantize(limits={"RLIMIT_FSIZE": limit})
            whole = [n for n in os.listdir(self.out) if n.endswith(".safetensors")] if os.path.exists(self.out) else []
            if ran.returncode != 0 and whole:
                return whole
        self.fail("no limit ends it between two shards")

    def test_keeps_the_shards_that_are_whole(self):
        clean = self.clean_run()
        whole = self.interrupted()
        times = {n: os.stat(os.path.join(self.out, n)).st_mtime_ns for n in whole}
        self.check_resumed(clean, "resumed")
        self.assertEqual({n: os.stat(os.path.join(self.out, n)).st_mtime_ns for n in whole}, times)

    def test_with_other_options(self):
        clean = self.clean_run()
        self.interrupted()
        halfway = digest_tree(self.out)
        for flags in (["--scheme", "w8a8"], ["--scheme", "w4a16", "--group-size", "16"], [*self.flags, "--asymmetric"],
                      ["--scheme", "w8a8-static", "--stats", self.stats],
                      ["--scheme", "w8a8-static", "--smooth", "0.3", "--stats", self.stats],
                      [*self.flags, "--ignore", "model.layers.0.mlp.down_proj"], [*self.flags, "--scale-dtype", "bf16"],
                      ["--scheme", "fp8-static", "--smooth", "--stats", self.stats],
                      [*self.flags, "--override", "re:.*down_proj=fp8"], [*self.flags, "--override", "re:.*down_proj=none"]):
            with self.subTest(flags):
                self.assert_refused(self.quantize("--resume", flags=flags), self.out, ("option", "--force", "scheme"))
                self.assertEqual(digest_tree(self.out), halfway)
        # What does not change the output may differ.
        self.check_resumed(clean, "other threads", "--threads", "1", "--max-memory", "100M")

    def test_with_another_input(self):
        clean = self.clean_run()
        self.interrupted()
        halfway = digest_tree(self.out)
        other = c.write_folder(self.path("other"), c.llama("F32", hidden=32, intermediate=64, layers=3, seed=77), shards=8)
        self.assert_refused(self.quantize("--resume", source=other), self.out, ("input", "another", "other", "changed"))
        self.assertEqual(digest_tree(self.out), halfway)
        self.check_resumed(clean, "the right input")

    def test_with_an_input_that_changed(self):
        self.interrupted()
        changed = self.path("changed")
        shutil.copytree(self.source, changed)  # with its times
        shutil.move(self.source, self.path("kept"))
        shutil.move(changed, self.source)
        shard = os.path.join(self.source, "model-00008-of-00008.safetensors")
        with open(shard, "r+b") as file:
            file.seek(-4, os.SEEK_END)
            file.write(b"\0\0\0\0")
        self.assert_refused(self.quantize("--resume"), ("input", "changed", "another", "model-00008"))
        shutil.rmtree(self.source)
        shutil.move(self.path("kept"), self.source)

    def test_with_other_statistics(self):
        self.interrupted()
        other = c.make_stats(self.model, seed=5)
        c.write_safetensors(self.stats, other)
        self.assert_refused(self.quantize("--resume"), ("stat", "changed", "option"))

    def test_whole_output(self):
        clean = self.clean_run()
        self.assert_done(self.quantize())
        self.check_resumed(clean, "nothing was left to do")

    def test_where_nothing_began(self):
        clean = self.clean_run()
        self.check_resumed(clean, "no folder")
        shutil.rmtree(self.out)
        os.mkdir(self.out)
        self.check_resumed(clean, "an empty folder")

    def test_a_folder_of_somebody_else(self):
        os.mkdir(self.out)
        self.put("out/model.safetensors", "not of kvant")
        before = digest_tree(self.out)
        self.assert_refused(self.quantize("--resume"), self.out)
        self.assertEqual(digest_tree(self.out), before)

    def test_second_run_is_refused(self):
        self.interrupted()
        halfway = digest_tree(self.out)
        self.assert_refused(self.quantize(), self.out, "--resume")
        self.assertEqual(digest_tree(self.out), halfway)

    def test_force_starts_over(self):
        clean = self.clean_run()
        self.interrupted()
        self.assert_done(self.quantize("--force"))
        self.assertEqual(digest_tree(self.out), clean)

    def test_a_manifest_that_is_damaged(self):
        clean = self.clean_run()
        self.interrupted()
        (manifest,) = [n for n in os.listdir(os.path.join(self.out, "kvant")) if n.endswith(".json")]
        path = os.path.join(self.out, "kvant", manifest)
        with open(path, "rb") as file:
            good = file.read()
        document = json.loads(good)
        bad = [b"", b"{", b"[]", b"null", b"\xff\xfe", good[:len(good) // 2], b"[" * 100000, b'{"a": NaN}', good + b"x"]
        for key in document:
            for value in (None, 7, "x", [], {}, -1, 1e300, [[]]):
                bad.append(json.dumps({**document, key: value}).encode())
            bad.append(json.dumps({k: v for k, v in document.items() if k != key}).encode())
        for data in bad:
            with self.subTest(data[:60]):
                with open(path, "wb") as file:
                    file.write(data)
                ran = self.quantize("--resume")
                if ran.returncode == 0:  # a field that decides nothing
                    self.assertEqual({n: d for n, d in digest_tree(self.out).items() if not n.startswith("kvant/")},
                                     {n: d for n, d in clean.items() if not n.startswith("kvant/")})
                    shutil.rmtree(self.out)
                    self.interrupted()
                else:
                    self.assert_refused(ran, self.out)

    def test_partial_files_of_another_time(self):
        clean = self.clean_run()
        self.interrupted()
        for name in ("model-00008-of-00008.safetensors.partial", "config.json.partial"):
            self.put("out/" + name, b"left over")
        self.check_resumed(clean, "with old partial files")


if __name__ == "__main__":
    unittest.main()
