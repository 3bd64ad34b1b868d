"""What the package is made of: the libraries that the extension needs, the symbols that it shows, and its version."""

import pathlib
import re
import struct
import sys

import pytest

import kvant

SOURCE = pathlib.Path(__file__).resolve().parents[2]

LIBRARIES = {"libtbb.so.12", "libstdc++.so.6", "libgcc_s.so.1", "libm.so.6", "libc.so.6"}

# The parts of the format that are read here (64-bit, little-endian).
DYNAMIC, DYNSYM = 6, 11  # types of sections
NEEDED, RPATH, RUNPATH = 1, 15, 29  # tags of the dynamic section
LOCAL = 0  # binding of a symbol


class Elf:
    """The dynamic section and the dynamic symbols of a shared library, read without binutils."""

    def __init__(self, path):
        self.data = pathlib.Path(path).read_bytes()
        assert self.data[:6] == b"\x7fELF\x02\x01", f"{path} is no 64-bit little-endian ELF file"
        table, size, count = self.unpack("<Q", 40)[0], *self.unpack("<HH", 58)
        self.sections = [self.unpack("<IIQQQQIIQQ", table + size * index) for index in range(count)]

    def unpack(self, layout, offset):
        return struct.unpack_from(layout, self.data, offset)

    def entries(self, kind, layout):
        """The entries of the one section of this kind, and a function that reads the names that they point to."""
        (section,) = (section for section in self.sections if section[1] == kind)
        begin, length, link, size = section[4], section[5], section[6], section[9]
        strings = self.sections[link][4]

        def name(offset):
            return self.data[strings + offset:self.data.index(b"\0", strings + offset)].decode()

        return [self.unpack(layout, begin + size * index) for index in range(length // size)], name

    def dynamic(self, *tags):
        entries, name = self.entries(DYNAMIC, "<qQ")
        return [name(value) for tag, value in entries if tag in tags]

    def defined_symbols(self):
        entries, name = self.entries(DYNSYM, "<IBBHQQ")
        return {name(string) for string, info, _, section, _, _ in entries if section != 0 and info >> 4 != LOCAL}


@pytest.fixture(scope="module")
def extension():
    if not sys.platform.startswith("linux"):
        pytest.skip("reads ELF files")
    return Elf(kvant._kvant.__file__)


def test_links_nothing_but_the_libraries_that_the_documentation_names(extension):
    needed = {library for library in extension.dynamic(NEEDED) if not library.startswith("ld-linux")}
    assert needed <= LIBRARIES
    assert {"libtbb.so.12", "libstdc++.so.6"} <= needed


def test_looks_for_libraries_nowhere_but_where_the_system_does(extension):
    assert extension.dynamic(RPATH, RUNPATH) == []


def test_shows_nothing_of_its_own_but_the_function_that_python_looks_for(extension):
    symbols = extension.defined_symbols()
    assert "PyInit__kvant" in symbols
    # kvant's, and what it carries inside and another library in the process may carry in another version. Mangled names
    # have namespaces after their lengths.
    ours = re.compile(r"kvant|3fmt|2tl|pybind11|fp16_")
    assert sorted(symbol for symbol in symbols if ours.search(symbol)) == ["PyInit__kvant"]


def test_is_typed():
    package = pathlib.Path(kvant.__file__).parent
    assert (package / "py.typed").exists()
    assert (package / "_kvant.pyi").exists()


def test_holds_every_module_of_the_source():
    source = SOURCE / "python" / "kvant"
    if not source.exists():
        pytest.skip("no source tree around these tests")
    package = pathlib.Path(kvant._kvant.__file__).parent  # the modules in a build folder are links
    names = [{path.relative_to(folder) for path in folder.rglob("*.py")} for folder in (source, package)]
    assert names[0] == names[1]
    assert pathlib.Path("torch", "__init__.py") in names[0]


def test_version_is_that_of_the_source():
    pyproject = SOURCE / "pyproject.toml"
    if not pyproject.exists():
        pytest.skip("no source tree around these tests")
    tomllib = pytest.importorskip("tomllib")
    settings = tomllib.loads(pyproject.read_text())["tool"]["scikit-build"]["metadata"]["version"]
    found = re.search(settings["regex"], (SOURCE / settings["input"]).read_text())
    assert found and found["value"] == kvant.__version__
