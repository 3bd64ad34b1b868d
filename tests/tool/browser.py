"""A browser to look at a page with: Debian's chromium through its chromedriver, spoken to in WebDriver's JSON.

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
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the key that marks a reference to an element, from the standard
PHONE = (375, 800)
DESKTOP = (1280, 900)
KEYS = {"Tab": "\ue004", "Enter": "\ue007", "Left": "\ue012", "Up": "\ue013", "Right": "\ue014", "Down": "\ue015",
        "Shift": "\ue008", "Escape": "\ue00c", "Home": "\ue011", "End": "\ue010", "Space": " ",
        "Control": "\ue009", "Backspace": "\ue003"}


def available():
    return bool(shutil.which("chromium") and shutil.which("chromedriver"))


class BrowserError(AssertionError):
    pass


class Element:
    def __init__(self, browser, reference):
        self.browser = browser
        self.reference = reference

    def __str__(self):
        return self.browser.run("return arguments[0].outerHTML.slice(0, 300)", self)

    def _post(self, what, **body):
        return self.browser.command("POST", f"/element/{self.reference}/{what}", body)

    def click(self):
        # Into the middle of the window: at its edges something that stays in place may be in front.
        self.browser.run("arguments[0].scrollIntoView({block: 'center', inline: 'nearest', behavior: 'instant'})", self)
        self._post("click")

    def type(self, text):
        self._post("value", text=text)

    def clear(self):
        self._post("clear")

    def find(self, css):
        return self.browser.values(self._post("elements", using="css selector", value=css))

    def attribute(self, name):
        return self.browser.run("return arguments[0].getAttribute(arguments[1])", self, name)

    @property
    def text(self):
        """All of it, shown or not."""
        return self.browser.run("return arguments[0].textContent", self)

    @property
    def shown(self):
        return self.browser.run("return arguments[0].checkVisibility({checkOpacity: true, checkVisibilityCSS: true})", self)


class Browser:
    def __init__(self, timeout=30):
        self.timeout = timeout
        self.session = None
        self.driver = None
        self.folder = tempfile.mkdtemp(prefix="kvant_browser_")
        try:
            self._start()
        except BaseException:
            self.quit()
            raise

    def _start(self):
        # The driver takes the port a moment after it was seen to be free: another program may have been quicker.
        for attempt in range(3):
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port = probe.getsockname()[1]
            self.address = f"http://127.0.0.1:{port}"
            with open(os.path.join(self.folder, "driver.log"), "ab") as log:
                # A session of its own: what chromium leaves behind is ended with it.
                self.driver = subprocess.Popen(
                    ["chromedriver", f"--port={port}"], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                    env={**os.environ, "HOME": self.folder, "TMPDIR": self.folder}, start_new_session=True)
            if self._answers():
                break
            self._end_driver()
        else:
            raise BrowserError("chromedriver does not answer:\n" + self._log())
        options = {"binary": shutil.which("chromium"),
                   "args": ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
                            "--no-first-run", "--disable-background-networking", "--disable-component-update",
                            "--disable-sync", f"--user-data-dir={os.path.join(self.folder, 'profile')}"]}
        answer = self._request("POST", "/session", {"capabilities": {"alwaysMatch": {
            "browserName": "chrome", "goog:chromeOptions": options,
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"}}}})
        self.session = answer["sessionId"]
        # The page of its own that it starts with asks for much: that must not be in the logs.
        self.command("POST", "/url", {"url": "about:blank"})
        self.requests()
        self.console()

    def _answers(self):
        end = time.monotonic() + self.timeout
        while time.monotonic() < end and self.driver.poll() is None:
            try:
                if self._request("GET", "/status")["ready"]:
                    return True
            except (OSError, BrowserError):
                pass
            time.sleep(0.05)
        return False

    def _log(self):
        with open(os.path.join(self.folder, "driver.log"), encoding="utf-8", errors="replace") as file:
            return file.read()[-2000:]

    def _request(self, method, path, body=None):
        request = urllib.request.Request(self.address + path, method=method, headers={"Content-Type": "application/json"},
                                         data=None if method != "POST" else json.dumps(body or {}).encode())
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=self.timeout) as response:
                return json.load(response)["value"]
        except urllib.error.HTTPError as problem:
            text = problem.read().decode("utf-8", "replace")
            try:
                value = json.loads(text)["value"]
                text = f"{value['error']}: {value['message']}"
            except (ValueError, KeyError, TypeError):
                pass
            raise BrowserError(f"{method} {path}: {text[:1000]}") from None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.quit()

    def quit(self):
        try:
            if self.session:
                self._request("DELETE", "/session/" + self.session)
        except (OSError, BrowserError):
            pass  # it is ended below
        self.session = None
        self._end_driver()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _end_driver(self):
        if self.driver is None:
            return
        for signal_number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self.driver.pid, signal_number)  # the session that was started above, nothing else
            except ProcessLookupError:
                break
            try:
                self.driver.wait(3)
            except subprocess.TimeoutExpired:
                pass
        self.driver.wait()
        self.driver = None

    # ---- WebDriver ----

    def command(self, method, path, body=None):
        return self._request(method, f"/session/{self.session}{path}", body)

    def devtools(self, name, **parameters):
        """A command of Chrome's own protocol."""
        return self.command("POST", "/goog/cdp/execute", {"cmd": name, "params": parameters})

    def values(self, value):
        """References to elements become elements, however deep."""
        if isinstance(value, dict):
            if ELEMENT in value:
                return Element(self, value[ELEMENT])
            return {key: self.values(v) for key, v in value.items()}
        return [self.values(v) for v in value] if isinstance(value, list) else value

    def run(self, script, *arguments):
        arguments = [{ELEMENT: a.reference} if isinstance(a, Element) else a for a in arguments]
        return self.values(self.command("POST", "/execute/sync", {"script": script, "args": arguments}))

    def open(self, path, fragment=""):
        self.command("POST", "/url", {"url": pathlib.Path(path).resolve().as_uri() + fragment})

    def find(self, css):
        return self.values(self.command("POST", "/elements", {"using": "css selector", "value": css}))

    def one(self, css):
        found = self.find(css)
        if len(found) != 1:
            raise BrowserError(f"{len(found)} elements are {css!r}, must be one")
        return found[0]

    def click(self, css):
        self.one(css).click()

    def keys(self, *names):
        """Keys that are pressed and released one after the other, wherever the focus is. "Shift+Tab" is one of them."""
        actions = []
        for name in names:
            parts = [KEYS.get(part, part) for part in name.split("+")]
            actions += [{"type": "keyDown", "value": part} for part in parts]
            actions += [{"type": "keyUp", "value": part} for part in reversed(parts)]
        self.command("POST", "/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]})

    def hover(self, element, x=0, y=0):
        """The pointer goes to the middle of an element, or so many pixels beside it."""
        self.command("POST", "/actions", {"actions": [{"type": "pointer", "id": "mouse", "parameters": {"pointerType": "mouse"},
                     "actions": [{"type": "pointerMove", "duration": 0, "origin": {ELEMENT: element.reference},
                                  "x": x, "y": y}]}]})

    def hover_at(self, x, y):
        """In pixels of the window."""
        self.command("POST", "/actions", {"actions": [{"type": "pointer", "id": "mouse", "parameters": {"pointerType": "mouse"},
                     "actions": [{"type": "pointerMove", "duration": 0, "origin": "viewport", "x": round(x), "y": round(y)}]}]})

    def wait(self, script, *arguments, seconds=3):
        """For what the script returns to be true; returns it."""
        end = time.monotonic() + seconds
        while not (value := self.run(script, *arguments)):
            if time.monotonic() > end:
                raise BrowserError(f"after {seconds} s still not: {script}")
            time.sleep(0.02)
        return value

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
        return base64.b64decode(self.command("POST", "/print", {"background": True}))

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
        return [f"{entry['level']}: {entry['message']}" for entry in self.command("POST", "/se/log", {"type": "browser"})]

    def requests(self):
        """Addresses that pages asked for since it was last asked."""
        found = []
        for entry in self.command("POST", "/se/log", {"type": "performance"}):
            message = json.loads(entry["message"])["message"]
            if message["method"] in ("Network.requestWillBeSent", "Network.webSocketCreated"):
                found.append(message["params"].get("request", message["params"])["url"])
        return found
