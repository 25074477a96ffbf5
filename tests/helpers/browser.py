"""Opens a page in headless Chromium through its DevTools protocol."""

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


def find_browser() -> str | None:
    """Returns the program of BERT_JAX_BROWSER, or the first browser that is installed."""
    named = os.environ.get("BERT_JAX_BROWSER")
    return named or next((path for name in NAMES if (path := shutil.which(name))), None)


class Page:
    """Controls one tab; `requests` are the requested addresses, `messages` the console and log."""

    def __init__(self, send: int, receive: int):
        self._send, self._receive = send, os.fdopen(receive, "rb", closefd=False)
        self._number, self._session = 0, None
        self.requests: list[str] = []
        self.messages: list[str] = []
        target = self("Target.createTarget", url="about:blank")["targetId"]
        attached = self("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Network", "Log", "Runtime"):
            self(f"{domain}.enable")

    def __call__(self, method: str, **params: Any) -> dict[str, Any]:
        """Sends a command and returns its result; events in the meantime are recorded."""
        self._number += 1
        command: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session:
            command["sessionId"] = self._session
        os.write(self._send, json.dumps(command).encode() + b"\0")
        while (message := self._read()).get("id") != self._number:
            pass
        assert "error" not in message, message
        return message["result"]

    def open(self, page: Path | str, width: int, height: int = 900) -> None:
        """Opens a file or address in a window of a size in CSS pixels; waits until it is loaded."""
        self(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        self.requests.clear()
        self("Page.navigate", url=page if isinstance(page, str) else page.resolve().as_uri())
        while self.value("document.readyState") != "complete":
            pass

    def value(self, expression: str) -> Any:
        """Returns the value of a JavaScript expression as JSON."""
        found = self("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait_for(self, expression: str, seconds: float = 20.0) -> Any:
        """Evaluates a JavaScript expression until its value is truthy, and returns the value."""
        deadline = time.monotonic() + seconds
        while not (value := self.value(expression)):
            assert time.monotonic() < deadline, f"still false: {expression}"
            time.sleep(0.02)
        return value

    def press(self, key: str) -> None:
        """Presses and releases a key, such as "Tab", in the element that has the focus."""
        for event in ("keyDown", "keyUp"):
            self("Input.dispatchKeyEvent", type=event, key=key, code=key)

    def set_color_scheme(self, scheme: str) -> None:
        """Renders pages in the "light" or "dark" color scheme."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self("Emulation.setEmulatedMedia", features=features)

    def _read(self) -> dict[str, Any]:
        buffer = bytearray()
        while (byte := self._receive.read(1)) != b"\0":
            assert byte, "the browser has ended"
            buffer += byte
        message = json.loads(buffer)
        params = message.get("params", {})
        match message.get("method"):
            case "Network.requestWillBeSent":
                self.requests.append(params["request"]["url"])
            case "Log.entryAdded":
                self.messages.append(params["entry"]["text"])
            case "Runtime.consoleAPICalled" | "Runtime.exceptionThrown":
                self.messages.append(json.dumps(params))
        return message


@contextmanager
def browse(program: str) -> Generator[Page]:
    """Provides a tab of a new browser with an empty profile."""
    (browser_in, write_end), (read_end, browser_out) = os.pipe(), os.pipe()
    # A process of the browser may still write its profile for a moment after it was stopped.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        flags = [
            *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
            *("--no-first-run", "--disable-background-networking", "--remote-debugging-pipe"),
            f"--user-data-dir={profile}",
        ]
        # The protocol uses file descriptors 3 (to the browser) and 4 (from it).
        wired = f'exec "$0" "$@" 3<&{browser_in} 4>&{browser_out}'
        process = subprocess.Popen(
            ["/bin/bash", "-c", wired, program, *flags],
            pass_fds=(browser_in, browser_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(browser_in)
        os.close(browser_out)
        try:
            yield Page(write_end, read_end)
        finally:
            process.kill()
            process.wait()
            os.close(write_end)
            os.close(read_end)
