"""The pages of the docs hold together: links lead to files and headings that exist, paths that are named exist, README is
short and shows what the examples do, and the chart can be drawn from figures."""

import json
import pathlib
import re
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench"))
import speed_chart  # noqa: E402

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
MAX_README_WORDS = 1300
# What a run writes and the sources do not have.
WRITTEN = ("build/", "bench.json", "bench_ort.json", "bench_tool.json", "bench_peers.json")


def prose(text):
    """The text without blocks of code, in which nothing is a link."""
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(text):
    """The names that GitHub gives to headings: lower case, letters, digits, hyphens, blanks as hyphens."""
    headings = re.findall(r"^#+ (.*)$", prose(text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def snippets(page, language):
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


def squeezed(code):
    """Without comments and white space, so that the two may be broken into lines differently."""
    return re.sub(r"\s+", "", re.sub(r"//.*", "", code))


class Docs(unittest.TestCase):
    def test_links_lead_somewhere(self):
        wrong, links = [], 0
        for page in PAGES:
            for target in re.findall(r"\]\(([^)\s]+)\)", prose(page.read_text())):
                if target.startswith(("http://", "https://")):
                    continue
                links += 1
                name, _, anchor = target.partition("#")
                path = (page.parent / name).resolve() if name else page
                if not path.exists():
                    wrong.append(f"{page.relative_to(ROOT)}: {target} is not there")
                elif anchor and anchor not in anchors(path.read_text()):
                    wrong.append(f"{page.relative_to(ROOT)}: {target}: no such heading")
        self.assertGreater(links, 30)
        self.assertEqual(wrong, [], "\n" + "\n".join(wrong))

    def test_paths_exist(self):
        """`src/…`, `tests/…` and the like in the text; {a,b} names two. CHANGELOG.md may name what is gone."""
        wrong, paths = [], 0
        for page in PAGES:
            if page.name == "CHANGELOG.md":
                continue
            for path in re.findall(r"`((?:src|tests|bench|cli|include|examples|python|docs|cmake)/[^`\s]*)`", page.read_text()):
                if path.startswith(WRITTEN) or re.search(r"[X<…]", path):
                    continue
                paths += 1
                braces = re.search(r"\{(.*)\}", path)
                names = [path.replace(braces.group(0), one) for one in braces.group(1).split(",")] if braces else [path]
                wrong += [f"{page.relative_to(ROOT)}: {name} is not there" for name in names if not list(ROOT.glob(name.rstrip("/")))]
        self.assertGreater(paths, 60)
        self.assertEqual(wrong, [], "\n" + "\n".join(wrong))

    def test_every_page_is_reached_from_readme(self):
        seen, left = set(), [ROOT / "README.md"]
        while left:
            page = left.pop()
            if page in seen:
                continue
            seen.add(page)
            for target in re.findall(r"\]\(([^)#\s]+\.md)[^)]*\)", prose(page.read_text())):
                left.append((page.parent / target).resolve())
        self.assertEqual([str(page.relative_to(ROOT)) for page in PAGES if page not in seen], [])

    def test_readme_is_short(self):
        self.assertLessEqual(len((ROOT / "README.md").read_text().split()), MAX_README_WORDS)

    def test_snippets_are_parts_of_the_example(self):
        example = squeezed((ROOT / "examples/quantize_tensor.cc").read_text())
        for page, index in (("README.md", 0), ("docs/cpp.md", 0)):
            code = re.sub(r"#include.*", "", snippets(page, "cpp")[index])
            for statement in re.split(r"(?<=;)\n", code):
                self.assertIn(squeezed(statement), example, page)


class SpeedChart(unittest.TestCase):
    """Of figures that were made up: two numbers of rows, one library that adds wrongly, one that multiplies floats."""

    ROWS = [{"op": op, "mode": "bell", "shape": [m, 4096, 4096], "threads": threads, "macs": m * 4096.0 * 4096.0,
             "seconds": m * 4096.0 * 4096.0 / speed / 1e9,
             "peers": [{"name": "onednn_u8s8", "seconds": m * 4096.0 * 4096.0 / 20e9, "sums": "wrong"},
                       {"name": "openblas_sgemm", "seconds": m * 4096.0 * 4096.0 / 10e9, "sums": "f32"}]}
            for op, m, threads, speed in (("quantized_linear", 128, 2, 90), ("quantized_linear", 1, 2, 40),
                                          ("quantized_linear", 1, 1, 23), ("w8a8_linear", 1, 2, 77))]  # fmt: skip

    def test_speeds(self):
        speeds = speed_chart.read_speeds(self.ROWS + [{"op": "quantize", "shape": [64], "threads": 1}], [])
        self.assertEqual(list(speeds), [1, 128])
        self.assertAlmostEqual(speeds[128]["quantized_linear"][0], 90)
        self.assertAlmostEqual(speeds[1]["quantized_linear"][0], 40)
        self.assertEqual([exact for _, exact in speeds[1].values()], [True, False, True])

    def test_the_drawing(self):
        import xml.etree.ElementTree as xml
        svg = speed_chart.chart(speed_chart.read_speeds(self.ROWS, []), "a <machine>")
        root = xml.fromstring(svg)
        texts = ["".join(text.itertext()) for text in root.iter("{http://www.w3.org/2000/svg}text")]
        for want in ("1 row", "128 rows", "90", "40", "kvant: 4.0 times f32", "kvant: 9.0 times f32",
                     "made by bench/speed_chart.py from ./dev bench on a <machine>"):
            self.assertIn(want, texts)
        self.assertNotIn("ONNX Runtime, 8 bits", texts)
        # Two hatched bars and one in the legend.
        self.assertEqual(svg.count("url(#hatch)"), 3)

    def test_library_order_does_not_matter(self):
        ort = [{"op": "ort_dynamic", "shape": [m, 4096, 4096], "threads": 2, "macs": m * 4096.0 * 4096.0,
                "seconds": m * 4096.0 * 4096.0 / 100e9, "sums": "exact"} for m in (1, 128)]  # fmt: skip
        svg = speed_chart.chart(speed_chart.read_speeds(self.ROWS[::-1], ort[::-1]), "here")
        self.assertEqual(svg, speed_chart.chart(speed_chart.read_speeds(self.ROWS, ort), "here"))
        self.assertIn("ONNX Runtime, 8 bits", svg)

    def test_no_figures_is_said(self):
        with self.assertRaisesRegex(SystemExit, "no quantized_linear of 4096 x 4096 on 2 threads"):
            speed_chart.chart({}, "here")

    def test_check(self):
        import tempfile
        with tempfile.TemporaryDirectory() as folder:
            figures, output = pathlib.Path(folder, "bench.json"), pathlib.Path(folder, "speed.svg")
            figures.write_text(json.dumps(self.ROWS))
            command = [sys.executable, str(ROOT / "bench/speed_chart.py"), "--json", str(figures), "--ort",
                       str(figures.with_name("none")), "--cpu", "here", "--output", str(output)]  # fmt: skip
            self.assertNotEqual(subprocess.run([*command, "--check"], capture_output=True).returncode, 0)
            subprocess.run(command, check=True)
            subprocess.run([*command, "--check"], check=True)


if __name__ == "__main__":
    unittest.main()
