"""A program as a Flower app, the processes around Flower, and settings; what needs flwr is skipped without it."""

import importlib
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import psutil
import pytest
from engine_contract import (
    CASES,
    Case,
    client_data,
    fedavg,
    printing,
    rounds,
    start,
    together,
)
from flower_tests import flower_warnings, have_an_identity, needs_flower, none_left

import workbench as wb
from workbench._processes import _supervisor
from workbench.engines import Flower
from workbench.engines.flower._runtime import FlowerProcesses, check_port, free_port
from workbench.engines.flower._simulation import start_ray
from workbench.errors import EngineError, MissingDependencyError, ProgramError

pytestmark = flower_warnings


@pytest.fixture
def exported(tmp_path: Path) -> Iterator[Any]:
    """Runs an exported project with nodes of this process; its modules are imported under its own package name."""

    def walk(folder: Path) -> Any:
        sys.path.insert(0, str(folder))
        client, nodes, program, asks = (
            importlib.import_module(f"workbench_app.{name}") for name in ("client", "nodes", "program", "asks")
        )
        described = json.loads((folder / "workbench_app" / "program.json").read_text())
        contexts = [
            SimpleNamespace(node_config={"partition-id": i}, run_config={"data": str(folder / "data")}, state={})
            for i in range(described["nodes"])
        ]

        def ask(wanted: Any) -> list[Any]:
            pairs = zip(nodes.as_contents(wanted), contexts, strict=False)
            return [asks.NodeReply(*client._answer(content, context)) for content, context in pairs]

        inputs = {path.stem: np.load(path) for path in (folder / "inputs").glob("*.npy")}
        return program.FlowerProgram(folder / "workbench_app", inputs, ask)

    before = list(sys.path)
    yield walk
    sys.path[:] = before
    for name in [name for name in sys.modules if name.split(".")[0] == "workbench_app"]:
        del sys.modules[name]


@needs_flower
@pytest.mark.parametrize(
    "case", [case for case in CASES if case.name != "clients that talk to each other"], ids=lambda case: case.name
)
def test_exported_program_gives_the_same_numbers(exported: Any, tmp_path: Path, case: Case):
    program = exported(Flower.export(case.fn, tmp_path / "app", start(), case.data()))
    results = list(program.run().values())
    expected = jax.tree.leaves(wb.jit(case.fn)(start(), case.data()))
    for ours, theirs in zip(results, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


@needs_flower
def test_exported_app_needs_nothing_of_the_workbench_and_holds_no_pickles(tmp_path: Path):
    folder = Flower.export(rounds, tmp_path / "app", start(), client_data())
    sources = [path.read_text() for path in (folder / "workbench_app").glob("*.py")]
    assert not [
        line
        for text in sources
        for line in text.splitlines()
        if "import workbench" in line or "pickle" in line.replace("allow_pickle=False", "")
    ]
    assert not [line for text in sources for line in text.splitlines() if line.startswith("from workbench")]
    assert {path.suffix for path in (folder / "workbench_app").rglob("*") if path.is_file()} == {".py", ".json"}
    assert (folder / "data" / "4" / "data-1.npy").exists()
    assert "float32[3]" in (folder / "README.md").read_text()


@needs_flower
def test_two_programs_fit_into_one_flower_project_and_hold_no_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from flwr.app import Context, Message, RecordDict
    from flwr.clientapp import ClientApp

    have_an_identity(monkeypatch)
    app = ClientApp()
    app.query()(lambda message, context: Message(RecordDict(), reply_to=message))  # one of the project's own
    for package, fn in (("first_app", fedavg), ("second_app", rounds)):
        folder = Flower.export(fn, tmp_path / package, start(), client_data(), package=package)
        texts = [path.read_text() for path in folder.rglob("*") if path.suffix in (".py", ".json", ".toml", ".md")]
        assert not [text for text in texts if str(tmp_path) in text]
        monkeypatch.syspath_prepend(str(folder))
        importlib.import_module(f"{package}.client").add_to(app)
    for package in ("first_app", "second_app"):
        (ask,) = importlib.import_module(f"{package}.nodes").as_contents(
            [importlib.import_module(f"{package}.asks").Ask()]
        )
        message = Message(ask, dst_node_id=1, message_type=f"query.{package}")
        context = Context(1, 1, {"partition-id": 7}, RecordDict(), {})
        assert app(message, context).content["reported"]["partition"] == 7


@needs_flower
def test_changed_stage_of_an_app_is_not_run(exported: Any, tmp_path: Path):
    folder = Flower.export(fedavg, tmp_path / "app", start(), client_data())
    for path in (folder / "workbench_app" / "stages").glob("*.json"):
        report = json.loads(path.read_text())
        path.write_text(json.dumps({**report, "base64": report["base64"][:-8] + "AAAAAAA="}))
    with pytest.raises(ValueError, match="was changed after it was exported"):
        exported(folder).run()


@needs_flower
def test_exported_app_keeps_what_the_finished_rounds_carried_on(exported: Any, tmp_path: Path):
    folder = Flower.export(rounds, tmp_path / "app", start(), client_data())
    program = exported(folder)
    whole, calls = program.ask, []

    def ask(wanted: Any) -> Any:
        calls.append(0)
        if len(calls) == 3:
            message = "left"
            raise ConnectionError(message)
        return whole(wanted)

    program.ask = ask
    with pytest.raises(ConnectionError):
        program.run()
    two = jax.lax.scan(lambda w, _: fedavg(w, client_data()), start(), None, length=2)[0]
    assert program.finished_rounds == 2
    np.testing.assert_allclose(program.carried[0], two, rtol=1e-5, atol=1e-6)


@needs_flower
@pytest.mark.parametrize(
    ("fn", "arguments", "expected"),
    [
        (together, (start(), client_data()), "clients communicate with each other in stage"),
        (lambda w, x: fedavg(w, x)[0] + x[0].sum(), (start(), client_data()), r"`x\[0\]`: the clients read"),
        (fedavg, (jax.ShapeDtypeStruct((3,), np.float32), client_data()), "only shapes for the argument `w`"),
    ],
    ids=["talk", "server reads data", "no value"],
)
def test_program_that_cannot_be_an_app_is_refused(tmp_path: Path, fn: Any, arguments: Any, expected: str):
    with pytest.raises(ProgramError, match=expected):
        Flower.export(fn, tmp_path / "app", *arguments)
    assert not (tmp_path / "app").exists()


@needs_flower
def test_callbacks_cannot_be_in_an_app(tmp_path: Path):
    with pytest.raises(ProgramError, match=r"could not write stage 0 \(`one`\): jax.*contains no Python") as refused:
        Flower.export(wb.program(clients=2)(printing), tmp_path / "app", np.ones(2, np.float32))
    assert "Sequential" not in str(refused.value)  # an app cannot be run there


@needs_flower
def test_app_is_not_written_over_files(tmp_path: Path):
    (tmp_path / "mine.txt").write_text("keep")
    with pytest.raises(ProgramError, match="which is not empty"):
        Flower.export(fedavg, tmp_path, start(), client_data())


def test_export_without_flower_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match=r"`workbench.engines.Flower.export` needs the library `flwr`"):
        Flower.export(fedavg, tmp_path / "app", start(), client_data())


def test_port_in_use_is_reported_before_anything_starts():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(EngineError, match=rf"port={port} for its SuperLink, but it cannot listen on .*free port"):
            check_port(port)
    check_port(free_port())


def _processes(folder: Path) -> FlowerProcesses:
    return FlowerProcesses(folder, {})


def test_kept_processes_end_with_what_they_started(tmp_path: Path):
    processes = _processes(tmp_path)
    sleep = "import time; time.sleep(60)"
    code = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {sleep!r}]); {sleep}"
    processes.start("one", [sys.executable, "-c", code])
    supervisor = psutil.Process(processes._supervisor.pid)
    until = time.monotonic() + 120
    while len(family := supervisor.children(recursive=True)) < 2 and time.monotonic() < until:
        time.sleep(0.05)
    assert len(family) == 2
    processes.close()
    assert none_left([supervisor, *family])


def test_kept_processes_end_when_the_engines_process_is_killed(tmp_path: Path):
    code = (
        "import sys, time; from pathlib import Path; from workbench.engines.flower._runtime import FlowerProcesses\n"
        "p = FlowerProcesses(Path(sys.argv[1]), {})\n"
        "p.start('one', [sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "while not p.pids: time.sleep(0.05)\n"
        "print(p.pids['one'], flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True) as engine:
        assert engine.stdout is not None
        kept = psutil.Process(int(engine.stdout.readline()))
        engine.kill()
    assert none_left([kept])


def test_waiting_for_a_process_that_ended_reports_its_last_words(tmp_path: Path):
    processes = _processes(tmp_path)
    try:
        processes.start("superlink", [sys.executable, "-c", "import sys; sys.exit('no such federation')"])
        with pytest.raises(
            EngineError, match=r"superlink ended with exit status 1 .* for the nodes.*no such federation"
        ):
            processes.wait(lambda: None, "the nodes", lambda: None, 30)
    finally:
        processes.close()


def test_waiting_is_bounded(tmp_path: Path):
    processes = _processes(tmp_path)
    try:
        with pytest.raises(EngineError, match=r"waited 0 s for the nodes.*Increase `start_seconds`"):
            processes.wait(lambda: None, "the nodes", lambda: None, 0.2)
    finally:
        processes.close()


def test_second_process_with_a_name_is_reported_too(tmp_path: Path):
    processes, until = _processes(tmp_path), time.monotonic() + 120
    try:
        for status in (3, 4):
            processes.start("node", [sys.executable, "-c", f"raise SystemExit({status})"])
            while not processes.ended and time.monotonic() < until:
                time.sleep(0.05)
            assert processes.ended.pop("node", None) == status
    finally:
        processes.close()


def test_supervisor_needs_neither_jax_nor_the_workbench():
    text = Path(_supervisor.__file__).read_text()
    assert "jax" not in [line.split()[1].split(".")[0] for line in text.splitlines() if line.startswith("import ")]
    assert "workbench" not in text.replace("the workbench", "")


@pytest.mark.parametrize("library", ["flwr", "ray"])
def test_missing_library_says_what_to_install(monkeypatch: pytest.MonkeyPatch, library: str):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == library else SimpleNamespace())
    with pytest.raises(MissingDependencyError, match=rf"`{library}`.*pip install \"mapreduce-workbench\[flower\]\""):
        Flower()


def test_deployment_does_not_need_ray(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "ray" else SimpleNamespace())
    assert Flower("deployment").name == "flower (deployment)"


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"runtime": "cloud"}, r"runtime='cloud'.*\"simulation\".*\"deployment\""),
        ({"nodes": 0}, "nodes=0.*positive int"),
        ({"clients_per_node": True}, "clients_per_node=True.*positive int"),
        ({"workers": 1.5}, "workers=1.5.*positive int"),
    ],
    ids=["runtime", "nodes", "clients", "workers"],
)
def test_impossible_settings_are_refused(monkeypatch: pytest.MonkeyPatch, settings: Any, expected: str):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: SimpleNamespace())
    with pytest.raises(ProgramError, match=expected):
        Flower(**settings)


class NoRay:
    """Stands for Ray: fails as often as it is asked to, then answers."""

    def __init__(self, failures: int) -> None:
        self.failures, self.did = failures, []

    def init(self, **options: Any) -> None:
        self.did.append("init")
        if self.failures:
            self.failures -= 1
            message = "The current node timed out during startup"
            raise RuntimeError(message)

    def shutdown(self) -> None:
        self.did.append("shutdown")

    def remote(self, **options: Any) -> Any:
        return lambda task: SimpleNamespace(remote=task)

    def get(self, answer: Any, timeout: float) -> None:
        self.did.append("get")


def test_ray_is_started_again_when_it_ended_while_it_started(monkeypatch: pytest.MonkeyPatch):
    ray = NoRay(failures=1)
    monkeypatch.setitem(sys.modules, "ray", ray)
    start_ray({"num_cpus": 1}, patience=60)
    assert ray.did == ["init", "shutdown", "init", "get"]


def test_starting_ray_again_is_bounded(monkeypatch: pytest.MonkeyPatch):
    ray = NoRay(failures=5)
    monkeypatch.setitem(sys.modules, "ray", ray)
    with pytest.raises(RuntimeError, match="timed out during startup"):
        start_ray({"num_cpus": 1}, patience=-1)
    assert ray.did == ["init", "shutdown"]
