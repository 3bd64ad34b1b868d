#!/usr/bin/env python3
"""Checks that a wheel holds the package, one extension and its metadata, and nothing else.

usage: check_wheel.py FILE.whl   (./dev wheel does it)
"""
import pathlib
import re
import sys
import zipfile

PACKAGE = pathlib.Path(__file__).resolve().parent / "kvant"
EXTENSION = re.compile(r"kvant/_kvant[\w.-]*\.so")
METADATA = re.compile(r"kvant-[\w.]+\.dist-info/(METADATA|WHEEL|RECORD|licenses/LICENSE)")


def problems(names):
    sources = {path.relative_to(PACKAGE.parent).as_posix() for pattern in ("*.py", "*.pyi", "py.typed")
               for path in PACKAGE.rglob(pattern)}
    extensions = [name for name in names if EXTENSION.fullmatch(name)]
    metadata = [name for name in names if METADATA.fullmatch(name)]
    if len(extensions) != 1:
        yield f"{len(extensions)} extensions instead of one: {extensions}"
    if len(metadata) != 4:
        yield f"metadata: {metadata}"
    for name in sorted(sources.difference(names)):
        yield f"{name} is missing"
    for name in sorted(set(names) - sources - set(extensions) - set(metadata)):
        yield f"{name} does not belong there"


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    with zipfile.ZipFile(sys.argv[1]) as wheel:
        names = [name for name in wheel.namelist() if not name.endswith("/")]
    found = list(problems(names))
    if found:
        sys.exit("\n".join(f"{sys.argv[1]}: {problem}" for problem in found))
    print(f"{len(names)} files, {pathlib.Path(sys.argv[1]).stat().st_size / 1e6:.1f} MB, all of which belong there")


if __name__ == "__main__":
    main()
