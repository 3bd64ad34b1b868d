"""The examples run as a user would run them, and succeed; the quick start in README is a part of its example."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

import kvant

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "python"


def run(name):
    # The modules in the build folder are links into the sources: the extension's own place says where the package is.
    environment = dict(os.environ, PYTHONPATH=str(pathlib.Path(kvant._kvant.__file__).parents[1]))
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name)], env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_quick_start():
    printed = run("quick_start.py")
    assert "relative error of the layer: 0.01" in printed
    assert "ValueError: quantize_per_channel: scale" in printed


def test_qat():
    pytest.importorskip("torch")
    assert run("qat.py").strip()


def test_readme_shows_the_quick_start():
    readme = ROOT / "README.md"
    if not readme.exists():
        pytest.skip("the sources are not at hand")
    block = re.search(r"```python\nimport numpy as np, kvant\n(.*?)```", readme.read_text(), re.DOTALL).group(1)
    example = (EXAMPLES / "quick_start.py").read_text()
    calls = [line for line in block.splitlines() if line and not line.startswith("#")]
    assert len(calls) >= 5
    for line in calls:
        call = line.split(" = ", 1)[1]
        assert call in example, call
