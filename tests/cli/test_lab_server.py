"""`workbench lab` as a process: what the server lets in, and what its front end is told."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest

TOKEN = "a-token-of-the-test"
SETTINGS = "/lab/api/settings/@jupyterlab/apputils-extension:notification"

pytestmark = pytest.mark.lab


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """The address of a server that `workbench lab` started in an empty home."""
    home = tmp_path_factory.mktemp("home")
    (home / "mine.ipynb").write_text('{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}')
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("JUPYTER", "IPYTHON", "XDG"))}
    command = [sys.executable, "-m", "workbench", "lab", str(home / "mine.ipynb"), "--port", str(port), "--no-browser"]
    with (home / "log").open("w") as log:
        environment = kept | {"HOME": str(home), "JUPYTER_TOKEN": TOKEN}
        server = subprocess.Popen(command, env=environment, cwd=home, stdout=log, stderr=subprocess.STDOUT)
    try:
        wait_until_it_answers(server, f"http://127.0.0.1:{port}/api", home / "log")
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(120)


def wait_until_it_answers(server, url, log, patience_seconds=120):
    until = time.monotonic() + patience_seconds
    while time.monotonic() < until and server.poll() is None:
        try:
            urllib.request.urlopen(url, timeout=5).close()
        except OSError:
            time.sleep(0.2)
        else:
            return
    pytest.fail(f"no server: {log.read_text()[-2000:]}")


def fetch(url, token=TOKEN):
    request = urllib.request.Request(url, headers={"Authorization": f"token {token}"} if token else {})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


@pytest.mark.parametrize("token", [None, "a-guess"], ids=["no token", "a wrong token"])
def test_lab_refuses_who_does_not_know_the_token(address, token):
    with pytest.raises(urllib.error.HTTPError, match="403"):
        fetch(f"{address}/api/contents", token)


def test_lab_serves_the_folder_of_the_notebook(address):
    assert "mine.ipynb" in [entry["name"] for entry in fetch(f"{address}/api/contents")["content"]]


def test_lab_reports_the_front_end_to_ask_for_neither_news_nor_updates(address):
    properties = fetch(address + SETTINGS)["schema"]["properties"]
    assert properties["fetchNews"]["default"] == "false"
    assert properties["checkForUpdates"]["default"] is False


def test_lab_lets_python_kernels_start(address):
    assert "python3" in fetch(f"{address}/api/kernelspecs")["kernelspecs"]
