"""Reads the table of folders in CONTRIBUTING.md and every #include of the tree: a file may include its own folder and what
the column "may include" of its folder names. Folders that the table does not know are refused too."""

import pathlib
import re
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
SOURCES = (".h", ".cc", ".cu", ".cuh", ".in")


class Map:
    """Folders, the longest first, with what each may include: folders, files, or None for everything."""

    def __init__(self, text):
        self.allowed = {}
        for line in text.splitlines():
            cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
            if not line.startswith("| `") or len(cells) != 3:
                continue
            may = None if cells[2] == "everything" else set(re.findall(r"`([^`]+)`", cells[2]))
            for folder in re.findall(r"`([^`]+/)`", cells[0]):
                self.allowed[folder] = may

    def folder_of(self, path):
        known = [folder for folder in self.allowed if path.startswith(folder)]
        return max(known, key=len, default=None)

    def breach(self, path, target):
        """Why `path` may not include `target` (both from the root of the tree), or None."""
        own, other = self.folder_of(path), self.folder_of(target)
        if own is None:
            return f"{path}: its folder is not in the table"
        if other is None:
            return f"{path}: includes {target}, whose folder is not in the table"
        may = self.allowed[own]
        if own == other or may is None or target in may or other in may:
            return None
        return f"{path}: includes {target}, but {own} may include {', '.join(sorted(may)) or 'nothing'}"


def file_of(path, name):
    """The file of the tree that `#include "name"` in `path` means, or None where it is made by the build."""
    for folder in (pathlib.Path(path).parent, pathlib.Path("src"), pathlib.Path("include"), pathlib.Path(".")):
        if (ROOT / folder / name).is_file():
            return (folder / name).as_posix()
    return None


class IncludeMap(unittest.TestCase):
    def setUp(self):
        self.map = Map((ROOT / "CONTRIBUTING.md").read_text())

    def test_the_table_is_found(self):
        self.assertGreaterEqual(len(self.map.allowed), 15)
        self.assertIn("src/base/", self.map.allowed["src/semantics/"])

    def test_every_include_is_allowed(self):
        files = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
        breaches, includes = [], 0
        for path in files:
            if not path.endswith(SOURCES) or not (ROOT / path).is_file():
                continue
            for name in re.findall(r'^#\s*include "([^"]+)"', (ROOT / path).read_text(errors="replace"), re.MULTILINE):
                target = file_of(path, name)
                if target is None:
                    breaches.append(f'{path}: #include "{name}" names no file of the tree')
                    continue
                includes += 1
                breach = self.map.breach(path, target)
                if breach:
                    breaches.append(breach)
        self.assertGreater(includes, 500)
        self.assertEqual(breaches, [], "\n" + "\n".join(breaches))

    def test_a_breach_is_seen(self):
        self.assertIn("may include", self.map.breach("src/semantics/quantize.h", "src/ops/views.h"))
        self.assertIn("may include", self.map.breach("src/io/json.h", "src/format/scheme.h"))
        self.assertIn("not in the table", self.map.breach("src/attic/x.h", "src/base/who.h"))
        self.assertIsNone(self.map.breach("src/ops/linear.cc", "src/core/linear_kernel.h"))


if __name__ == "__main__":
    if not (ROOT / ".git").exists():
        print("not a checkout: nothing lists the files")
        sys.exit(77)
    unittest.main()
