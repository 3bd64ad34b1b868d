"""Running the kvant binary of KVANT_BINARY, and what tests ask of what it says."""

import atexit
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from dataclasses import dataclass

BINARY = os.path.abspath(os.environ.get("KVANT_BINARY", "build/release/kvant"))
# Sanitizers reserve terabytes of addresses and keep freed memory: their peaks say nothing.
SANITIZED = bool(os.environ.get("KVANT_SANITIZED"))
SLOWNESS = 20 if SANITIZED else 1


@dataclass
class Ran:
    command: list
    returncode: int
    stdout: str
    stderr: str
    peak: int       # resident bytes
    seconds: float

    def __str__(self):
        return (f"$ {' '.join(map(repr, self.command))}\nexit {self.returncode} after {self.seconds:.2f} s, peak "
                f"{self.peak / 2**20:.0f} MiB\nstdout: {self.stdout[:3000]}\nstderr: {self.stderr[:3000]}")


# Not the user's own. Removed at the end.
CACHE = tempfile.mkdtemp(prefix="kvant-cache-")
atexit.register(shutil.rmtree, CACHE, ignore_errors=True)


def environment(**more):
    env = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "CLICOLOR_FORCE", "KVANT_FORCE_ISA")}
    return {**env, "LC_ALL": "C.UTF-8", "XDG_CACHE_HOME": CACHE, **{k: v for k, v in more.items() if v is not None}}


def run(*arguments, timeout=60, limits=None, env=None, discard_stdout=False, cwd=None):
    """`limits`: {"RLIMIT_FSIZE": bytes, …}."""
    command = [BINARY, *map(str, arguments)]
    measure = os.path.join(os.path.dirname(os.path.abspath(__file__)), "measure.py")
    begin = time.monotonic()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, tempfile.TemporaryFile() as report:
        child = subprocess.Popen(
            [sys.executable, "-I", "-S", measure, str(report.fileno()), json.dumps(limits or {}), *command],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL if discard_stdout else out, stderr=err,
            pass_fds=[report.fileno()], env=environment(**(env or {})), cwd=cwd, start_new_session=True)
        try:
            child.wait(timeout * SLOWNESS)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)  # the session that was started above, nothing else
            child.wait()
            raise AssertionError(f"{command} hangs: it took more than {timeout * SLOWNESS} s") from None
        for file in (out, err, report):
            file.seek(0)
        returncode, peak = json.load(report)
        return Ran(command, returncode, out.read().decode("utf-8", "backslashreplace"),
                   err.read().decode("utf-8", "backslashreplace"), peak, time.monotonic() - begin)


def start(*arguments, **more):
    """Without waiting."""
    return subprocess.Popen([BINARY, *map(str, arguments)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, env=environment(), **more)


def digest_tree(path):
    """{relative name: SHA-256, or what else it is} of all below a folder, or of one file."""
    if os.path.isfile(path):
        return {"": _digest(path)}
    found = {}
    for folder, folders, files in os.walk(path):
        for name in folders:
            full = os.path.join(folder, name)
            found[os.path.relpath(full, path) + "/"] = "folder"
        for name in files:
            full = os.path.join(folder, name)
            relative = os.path.relpath(full, path)
            found[relative] = "link to " + os.readlink(full) if os.path.islink(full) else _digest(full)
    return found


def _digest(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def snapshot(path):
    """Bytes and times of all below, to be compared after a run that must not touch it."""
    times = {}
    for folder, _, files in os.walk(path):
        for name in files + ["."]:
            status = os.lstat(os.path.join(folder, name))
            times[os.path.join(folder, name)] = (status.st_mtime_ns, status.st_ino, status.st_size, status.st_mode)
    return digest_tree(path), times


# What a crash, an exception or a sanitizer would leave behind. Not words that a sentence may need.
_TRACES = re.compile(r"terminate called|what\(\):|Aborted|core dumped|Segmentation|AddressSanitizer|runtime error:|"
                     r"json\.exception|std::|bad_alloc|__cxa|Assertion [`']", re.IGNORECASE)
_CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


class ToolTest(unittest.TestCase):
    maxDiff = 4000

    @classmethod
    def setUpClass(cls):
        if not os.access(BINARY, os.X_OK):
            raise AssertionError(f"{BINARY} is no program; set KVANT_BINARY")

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="kvant_tool_")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def put(self, name, data):
        with open(self.path(name), "wb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
        return self.path(name)

    def assert_done(self, ran, quotes=False):
        """`quotes`: stdout shows parts of a text, which may hold any words."""
        self.assertEqual(ran.returncode, 0, ran)
        self.assertIsNone(_TRACES.search(ran.stderr if quotes else ran.stdout + ran.stderr), ran)
        return ran

    def assert_says(self, text, words, ran):
        """Each word, or one of a tuple of words, in whatever case."""
        for word in words:
            options = word if isinstance(word, tuple) else (word,)
            self.assertTrue(any(str(w).lower() in text.lower() for w in options), f"nothing of {options} is said by {ran}")

    def assert_refused(self, ran, *words, code=1, stdout_too=False):
        """Exit code 1 and one sentence, last on stderr, that has all the words; nothing that is not text."""
        self.assertEqual(ran.returncode, code, ran)
        for text in (ran.stdout, ran.stderr):
            self.assertIsNone(_TRACES.search(text), ran)
            self.assertIsNone(_CONTROL.search(text), ran)
        lines = [line for line in ran.stderr.splitlines() if line.strip()]
        if stdout_too:
            lines += ran.stdout.splitlines()
        self.assertTrue(lines, f"no sentence on stderr: {ran}")
        sentence = "\n".join(lines) if stdout_too else lines[-1]
        self.assertLess(len(lines[-1]), 2000, ran)
        self.assert_says(sentence, words, ran)
        return ran

    def assert_same_tensors(self, got, want, about=""):
        """Names, dtypes, shapes and bits."""
        self.assertEqual(sorted(got), sorted(want), about)
        for name, tensor in want.items():
            self.assertEqual((got[name].dtype, got[name].shape), (tensor.dtype, tensor.shape), f"{about} {name}")
            if got[name].data == tensor.data:
                continue
            pairs = list(enumerate(zip(got[name].values(), tensor.values())))
            wrong = [(i, a, b) for i, (a, b) in pairs if repr(a) != repr(b)]  # any NaN, but not any zero
            self.assertFalse(wrong, f"{about} {name} {tensor.dtype} {tensor.shape}: {len(wrong)} of {len(pairs)} differ; "
                                    f"place, got, want: {wrong[:5]}")

    def assert_untouched(self, path, before):
        self.assertEqual(snapshot(path), before)


def load_json(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)

