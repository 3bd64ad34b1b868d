"""A program of a user's passes mypy in strict mode against the package, and mypy sees its mistakes. Needs mypy."""

import pathlib
import subprocess
import sys

import pytest

import kvant

pytest.importorskip("mypy")

RIGHT = """
import numpy as np
import kvant

x = np.ones((2, 3), np.float32)
q, scale, zero_point = kvant.dynamic_range_quantize(x, scope="channel", axis=0)
packed = kvant.PackedArray.from_array(np.ones((2, 3), np.int8))
sizes: tuple[int, ...] = packed.shape
plan = kvant.plan.QuantizePlan.select((2, 3), scope="token")
size: int = plan.workspace_size()
name: str = plan.sku().name
observer = kvant.Observer("mse", bins=64)
observer.observe(x)
threads: int = kvant.get_num_threads()
"""

WRONG = """
import kvant

kvant.set_num_threads("two")
kvant.quantize_per_tensor([1.0], 0.5, scale_of_nothing=1)
kvant.PackedArray.from_array([1]).shape.append(3)
name: int = kvant.plan.QuantizePlan.select((2,)).sku().name
"""


def check(tmp_path, text):
    program = tmp_path / "program.py"
    program.write_text(text)
    package = tmp_path / "packages" / "kvant"
    package.parent.mkdir(exist_ok=True)
    if not package.exists():
        package.symlink_to(pathlib.Path(kvant.__file__).resolve().parent)
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), str(program)]
    return subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, env={"MYPYPATH": str(package.parent), "PATH": ""}
    )


def test_types(tmp_path):
    right = check(tmp_path, RIGHT)
    assert right.returncode == 0, right.stdout + right.stderr
    wrong = check(tmp_path, WRONG)
    assert [line.split(":")[1] for line in wrong.stdout.splitlines() if ": error:" in line] == ["4", "5", "6", "7"]
