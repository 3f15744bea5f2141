"""Observes Chromium through the DevTools protocol, with only the requested parts of the protocol.

Playwright enables the protocol's network domain in every page. Each message from a page to its kernel then leaves about
48 KiB in the page's process (Chromium 156). Over an hour, this memory looks like a leak of the page.
"""

import contextlib
import json
import subprocess
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import websocket
from chromium import FLAGS, find_browser


class DevTools:
    """A page of a browser.

    Args:
        address: The page's websocket.
        process: Number of the browser's process.
    """

    def __init__(self, address: str, process: int) -> None:
        self.process = process
        self._socket = websocket.create_connection(address, suppress_origin=True)
        self._answers: dict[int, dict[str, Any]] = {}
        self._arrived = threading.Condition()
        self._number = 0
        threading.Thread(target=self._read, daemon=True).start()

    def send(self, method: str, *, seconds: float = 120, **parameters: Any) -> dict[str, Any]:
        """Sends a request to the browser and waits for the answer."""
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": parameters}))
        with self._arrived:
            if not self._arrived.wait_for(lambda: self._number in self._answers, seconds):
                message = f"the browser did not answer {method} within {seconds} s"
                raise TimeoutError(message)
            answer = self._answers.pop(self._number)
        if "error" in answer:
            message = f"the browser refuses {method}: {answer['error']['message']}"
            raise RuntimeError(message)
        return answer["result"]

    def evaluate(self, function: str, *values: Any) -> Any:
        """The value of a JavaScript function, awaited."""
        call = f"({function})({', '.join(json.dumps(value) for value in values)})"
        answer = self.send("Runtime.evaluate", expression=call, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            raise RuntimeError(details.get("exception", {}).get("description", details["text"]))
        return answer["result"].get("value")

    def _read(self) -> None:
        with contextlib.suppress(websocket.WebSocketException, OSError):
            while text := self._socket.recv():
                answer = json.loads(text)
                with self._arrived:
                    if "id" in answer:  # events are nobody's business here
                        self._answers[answer["id"]] = answer
                    self._arrived.notify_all()


@contextlib.contextmanager
def open_page(width: int, height: int) -> Iterator[DevTools]:
    """The empty page of a separate browser."""
    path = find_browser()
    assert path is not None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        own = ["--headless=new", "--remote-debugging-port=0", f"--user-data-dir={profile}"]
        command = [path, *own, f"--window-size={width},{height}", *FLAGS, "about:blank"]
        browser = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            said = Path(profile) / "DevToolsActivePort"
            while not said.exists() or "\n" not in said.read_text():
                time.sleep(0.1)
            with urllib.request.urlopen(f"http://127.0.0.1:{said.read_text().split()[0]}/json") as listed:
                pages = [each for each in json.load(listed) if each["type"] == "page"]
            yield DevTools(pages[0]["webSocketDebuggerUrl"], browser.pid)
        finally:
            browser.terminate()
            browser.wait(30)
