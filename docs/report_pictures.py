#!/usr/bin/env python3
"""Takes the pictures of the demo's report for README and docs/report.md: docs/report.png and docs/report_layer.png.

    docs/report_pictures.py build/release/kvant

Needs chromium, chromium-driver and python3-selenium (./dev test --all installs them).
"""

import base64
import os
import subprocess
import sys
import tempfile

DOCS = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(DOCS), "tests", "tool"))
import browser  # noqa: E402

WIDTH = 1180


def place(page, css):
    """Top and bottom of an element in the page."""
    return page.run("const r = document.querySelector(arguments[0]).getBoundingClientRect();"
                    "return [Math.floor(r.top + scrollY), Math.ceil(r.bottom + scrollY)];", css)


def picture(page, name, top, bottom):
    data = page.devtools("Page.captureScreenshot", format="png", captureBeyondViewport=True,
                         clip={"x": 0, "y": top, "width": WIDTH, "height": bottom - top, "scale": 1})["data"]
    with open(os.path.join(DOCS, name), "wb") as file:
        file.write(base64.b64decode(data))


def main():
    kvant = os.path.abspath(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        run = lambda *arguments: subprocess.run([kvant, *arguments], cwd=folder, check=True, stdout=subprocess.DEVNULL,
                                                stderr=subprocess.DEVNULL)
        run("demo")
        # Two checkpoints, so that the drawings of a layer lie beside each other.
        run("compare", "kvant-demo/model", "kvant-demo/w8a8-smooth", "kvant-demo/w4a16",
            "--stats", "kvant-demo/stats.safetensors", "--report", "two.html")
        with browser.Browser() as page:
            page.window(WIDTH, 1000)
            page.media("light")
            page.open(os.path.join(folder, "kvant-demo", "report.html"))
            outputs_end = place(page, "#depth .twin")[1]
            picture(page, "report.png", 0, outputs_end)
            page.open(os.path.join(folder, "two.html"))
            picture(page, "report_layer.png", place(page, "#d0")[0] - 16,
                    place(page, "#d0 [data-q='1'] figure:has(svg.inputs)")[1])


if __name__ == "__main__":
    main()
