"""A headless Chromium driven over its debugging pipe: enough to open a page, use it, and see what it does."""

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time


def find():
    """The path of a Chromium or Chrome, or None."""
    names = ("chromium", "chromium-browser", "google-chrome", "chrome")
    return next((path for name in names if (path := shutil.which(name))), None)


class Chromium:
    """One browser with one page."""

    def __init__(self, width=1400, height=1000, dark=False):
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()
        self._home = tempfile.mkdtemp(prefix="packtrain-chromium-")
        # Chromium reads commands from descriptor 3 and answers on 4
        shell = f'exec "$0" "$@" 3<&{to_read} 4>&{to_write}'
        command = ["bash", "-c", shell, find(), "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        command += ["--disable-dev-shm-usage", "--remote-debugging-pipe", f"--user-data-dir={self._home}"]
        self._process = subprocess.Popen(
            [*command, "--no-first-run", "--disable-background-networking", "about:blank"],
            pass_fds=(to_read, to_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(to_write)
        self._buffer, self._count, self.events = b"", 0, []
        target = self._send("Target.createTarget", {"url": "about:blank"})["targetId"]
        self._session = self._send("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")
        self.resize(width, height)
        self.send(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}],
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.kill()
        self._process.wait()
        os.close(self._read)
        os.close(self._write)
        shutil.rmtree(self._home, ignore_errors=True)

    def send(self, method, **params):
        """Send a command to the page and return its result."""
        return self._send(method, params, self._session)

    def _send(self, method, params, session=None):
        self._count += 1
        message = {"id": self._count, "method": method, "params": params} | ({"sessionId": session} if session else {})
        os.write(self._write, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + 60
        while (answer := self._receive(deadline)).get("id") != self._count:
            self.events.append(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    def _receive(self, deadline):
        while b"\0" not in self._buffer:
            if not select.select([self._read], [], [], max(0, deadline - time.monotonic()))[0]:
                raise TimeoutError("Chromium does not answer")
            data = os.read(self._read, 1 << 20)
            if not data:
                raise RuntimeError("Chromium has ended")
            self._buffer += data
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def resize(self, width, height):
        """Set the size of the page."""
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def open(self, url):
        """Open a page and wait until it is loaded."""
        self.events.clear()
        self.send("Page.navigate", url=str(url) if "://" in str(url) else f"file://{url}")
        self.until("document.readyState === 'complete'")
        time.sleep(0.3)

    def run(self, script):
        """Return the value of a JavaScript expression in the page; a promise is waited for."""
        found = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise RuntimeError(found["exceptionDetails"]["exception"].get("description", "exception"))
        return found["result"].get("value")

    def until(self, script, secs=20):
        """Wait until an expression is true."""
        deadline = time.monotonic() + secs
        while not self.run(f"Boolean({script})"):
            if time.monotonic() > deadline:
                raise TimeoutError(f"never true: {script}")
            time.sleep(0.05)

    def key(self, key):
        """Press a key."""
        text = {"text": key} if len(key) == 1 else {}
        self.send("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self.send("Input.dispatchKeyEvent", type="keyUp", key=key)

    def mouse(self, kind, x, y, clicks=1):
        """Move the mouse, press or release its button."""
        pressed = {"button": "left", "clickCount": clicks} if kind != "mouseMoved" else {}
        self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, **pressed)

    def screenshot(self, path, whole=True):
        """Write the page as a PNG."""
        found = self.send("Page.captureScreenshot", captureBeyondViewport=whole)
        with open(path, "wb") as file:
            file.write(base64.b64decode(found["data"]))

    def errors(self):
        """Messages of the console that are errors or warnings, uncaught exceptions, and refused requests."""
        self.run("1")
        found = []
        for event in self.events:
            kind, params = event.get("method"), event.get("params", {})
            if kind == "Runtime.exceptionThrown":
                found.append(params["exceptionDetails"].get("exception", {}).get("description", "exception"))
            elif kind == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
                found.append(str([one.get("value") for one in params["args"]]))
            elif kind == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
                found.append(params["entry"]["text"])
        return found

    def requests(self):
        """Addresses that the page asked for, its own and data inside it left out."""
        self.run("1")
        sent = [e["params"]["request"]["url"] for e in self.events if e.get("method") == "Network.requestWillBeSent"]
        return [url for url in sent[1:] if not url.startswith(("data:", "blob:"))]
