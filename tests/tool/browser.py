"""A browser to look at a page with: Debian's chromium and its chromedriver, driven by Selenium.

    with Browser() as browser:
        browser.open(path)
        browser.click("button")
        assert browser.run("return document.title") == "…"
"""

import base64
import json
import os
import pathlib
import shutil
import tempfile

from selenium import webdriver
from selenium.common.exceptions import TimeoutException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.common.print_page_options import PrintOptions
from selenium.webdriver.support.wait import WebDriverWait

CHROMIUM, DRIVER = "/usr/bin/chromium", "/usr/bin/chromedriver"
PHONE = (375, 800)
DESKTOP = (1280, 900)


def missing():
    """Programs that are not here."""
    return [program for program in (CHROMIUM, DRIVER) if not os.access(program, os.X_OK)]


class Browser(webdriver.Chrome):
    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="kvant_browser_")
        options = webdriver.ChromeOptions()
        options.binary_location = CHROMIUM
        options.ignore_local_proxy_environment_variables()
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        for argument in ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage", "hide-scrollbars", "no-first-run",
                         "disable-background-networking", "disable-component-update", "disable-sync",
                         "user-data-dir=" + os.path.join(self.folder, "profile")):
            options.add_argument("--" + argument)
        # With the path of a driver Selenium does not look for one to download.
        service = Service(DRIVER, log_path=os.path.join(self.folder, "driver.log"),
                          env={**os.environ, "HOME": self.folder, "TMPDIR": self.folder})
        super().__init__(options=options, service=service)
        # The page of its own that it starts with asks for much: that must not be in the logs.
        self.get("about:blank")
        self.requests()
        self.console()

    def quit(self):
        try:
            super().quit()
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)

    def run(self, script, *arguments):
        return self.execute_script(script, *arguments)

    def open(self, path, fragment=""):
        self.get(pathlib.Path(path).resolve().as_uri() + fragment)

    def find(self, css):
        return self.find_elements(By.CSS_SELECTOR, css)

    def one(self, css):
        found = self.find(css)
        if len(found) != 1:
            raise AssertionError(f"{len(found)} elements are {css!r}, must be one")
        return found[0]

    def click(self, what):
        """An element, or the one that a selector finds."""
        element = self.one(what) if isinstance(what, str) else what
        # Into the middle of the window: at its edges something that stays in place may be in front.
        self.run("arguments[0].scrollIntoView({block: 'center', inline: 'nearest', behavior: 'instant'})", element)
        element.click()

    def keys(self, *names):
        """Keys that are pressed and released one after the other, wherever the focus is. "Shift+Tab" is one of them."""
        actions = ActionChains(self, duration=0)
        for name in names:
            parts = [getattr(Keys, part.upper(), part) for part in name.split("+")]
            for part in parts:
                actions.key_down(part)
            for part in reversed(parts):
                actions.key_up(part)
        actions.perform()

    def hover(self, element, x=0, y=0):
        """The pointer goes to the middle of an element, or so many pixels beside it."""
        ActionChains(self, duration=0).move_to_element_with_offset(element, x, y).perform()

    def hover_at(self, x, y):
        """In pixels of the window."""
        actions = ActionChains(self, duration=0)
        actions.w3c_actions.pointer_action.move_to_location(round(x), round(y))
        actions.perform()

    def wait(self, script, *arguments, seconds=3):
        """For what the script returns to be true; returns it."""
        try:
            return WebDriverWait(self, seconds, poll_frequency=0.02).until(lambda _: self.run(script, *arguments))
        except TimeoutException:
            raise AssertionError(f"not after {seconds} s: {script} with {arguments}") from None

    def screenshot(self, path, whole=False):
        """`whole`: all of the page, not the window."""
        more = {}
        if whole:
            size = self.devtools("Page.getLayoutMetrics")["cssContentSize"]
            more = {"captureBeyondViewport": True,
                    "clip": {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], 16000), "scale": 1}}
        shot = self.devtools("Page.captureScreenshot", format="png", **more)["data"]
        with open(path, "wb") as file:
            file.write(base64.b64decode(shot))

    def pdf(self):
        options = PrintOptions()
        options.background = True
        return base64.b64decode(self.print_page(options))

    def devtools(self, name, **parameters):
        """A command of Chrome's own protocol."""
        return self.execute_cdp_cmd(name, parameters)

    # ---- What the page is shown on ----

    def window(self, width, height):
        # As a phone: the page's own viewport counts.
        self.devtools("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)

    def media(self, scheme="light", kind=""):
        """`scheme` light or dark; `kind` print or nothing."""
        self.devtools("Emulation.setEmulatedMedia", media=kind, features=[{"name": "prefers-color-scheme", "value": scheme}])

    def scripts(self, on):
        """Of pages that are opened from now on."""
        self.devtools("Emulation.setScriptExecutionDisabled", value=not on)

    # ---- What it says ----

    def console(self):
        """Everything since it was last asked."""
        return [f"{entry['level']}: {entry['message']}" for entry in self.get_log("browser")]

    def requests(self):
        """Addresses that pages asked for since it was last asked."""
        found = []
        for entry in self.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] in ("Network.requestWillBeSent", "Network.webSocketCreated"):
                found.append(message["params"].get("request", message["params"])["url"])
        return found
