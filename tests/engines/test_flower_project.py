"""A Flower project on a SuperLink and two SuperNodes with TLS and node keys; takes minutes and is asked for.

The client file is the one of docs/federated-systems.md, the strategy is Flower's FedAvg, and `flwr run` submits it.
"""

import datetime
import ipaddress
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest
from flower_tests import flower_warnings, needs_deployment, needs_flower

import workbench as wb
from workbench.engines import _same_user
from workbench.engines.flower._runtime import FlowerProcesses, _answers, _program, free_port

pytestmark = [needs_flower, needs_deployment, *flower_warnings]
PAGE = Path(__file__).parents[2] / "docs" / "federated-systems.md"
SERVER = """
import time
from pathlib import Path

import numpy as np
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

from my_app.client_app import init
from workbench.engines import flower

app = ServerApp()


class Marked(FedAvg):
    folder = Path()
    waits_in = 0

    def configure_train(self, server_round, arrays, config, grid):
        (self.folder / f"round-{server_round}").touch()
        while server_round == self.waits_in and len(list(grid.get_node_ids())) < 2:
            time.sleep(0.5)
        return super().configure_train(server_round, arrays, config, grid)


@app.main()
def main(grid, context):
    strategy = Marked(fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=1)
    strategy.folder = Path(context.run_config["results"])
    strategy.waits_in = context.run_config["waits-in"]
    rounds = context.run_config["rounds"]
    result = strategy.start(grid=grid, initial_arrays=flower.to_arrays(init()), num_rounds=rounds)
    params = flower.from_arrays(result.arrays, init())
    with (strategy.folder / "part").open("wb") as file:
        np.savez(file, **params)
    (strategy.folder / "part").rename(strategy.folder / "result.npz")
"""
PROJECT = """
[project]
name = "my-app"
version = "1.0.0"
license = "Apache-2.0"

[tool.flwr.app]
publisher = "workbench"

[tool.flwr.app.components]
serverapp = "my_app.server_app:app"
clientapp = "my_app.client_app:app"

[tool.flwr.app.config]
results = ""
rounds = 3
waits-in = 0
"""


class Federation:
    """A SuperLink and SuperNodes on the loopback interface, and the commands that a user types."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        environment = {
            "FLWR_HOME": str(folder / "home"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "JAX_PLATFORMS": "cpu",
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
            "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry),
        }
        self.processes = FlowerProcesses(folder, environment)
        certificates(folder)
        (folder / "home").mkdir()
        (folder / "home" / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "127.0.0.1:{self.port}"\n'
            f'root-certificates = "{folder / "ca.pem"}"\n'
        )
        package = folder / "project" / "my_app"
        package.mkdir(parents=True)
        client = PAGE.read_text().split("# my_app/client_app.py\n")[1].split("```")[0]
        (package / "client_app.py").write_text(client)
        (package / "server_app.py").write_text(SERVER)
        (package / "__init__.py").touch()
        (folder / "project" / "pyproject.toml").write_text(PROJECT)

    def start(self) -> None:
        """Starts the SuperLink, registers two keys, and starts their SuperNodes."""
        guarded = [sys.executable, "-P", _same_user.__file__, "flower-superlink"]
        files = {"--ssl-certfile": "link.pem", "--ssl-keyfile": "link.key", "--ssl-ca-certfile": "ca.pem"}
        tls = [part for flag, name in files.items() for part in (flag, str(self.folder / name))]
        options = ["--enable-supernode-auth", "--disable-runtime-dependency-installation"]
        address = ["--host", "127.0.0.1", "--port", str(self.port)]
        self.processes.start("superlink", [*guarded, *options, *tls, *address])
        self.wait(lambda: True if _answers(self.port) else None, "the SuperLink")
        for node in range(2):
            key = node_key(self.folder / f"node-{node}")
            self.flwr(f"register {node}", "supernode", "register", str(key), "here")
        for node in range(2):
            self.node(node)

    def node(self, number: int) -> None:
        """Starts the SuperNode of a client."""
        guarded = [sys.executable, "-P", _same_user.__file__, "flower-supernode"]
        flags = ["--superlink", f"127.0.0.1:{self.port}", "--port", str(free_port()), "--max-retries", "3"]
        keys = ["--auth-supernode-private-key", str(self.folder / f"node-{number}")]
        tls = ["--root-certificates", str(self.folder / "ca.pem")]
        config = ["--node-config", f"partition-id={number} num-partitions=2"]
        home = {"FLWR_HOME": str(self.folder / f"home-{number}")}
        self.processes.start(f"supernode {number}", [*guarded, *flags, *keys, *tls, *config], home)

    def flwr(self, name: str, *arguments: str) -> None:
        """Runs a command of the `flwr` program to its end."""
        self.processes.start(name, [_program("flwr"), *arguments])
        status = self.wait(lambda: self.processes.ended.pop(name, None), name)
        assert status == 0, self.processes.log(name)

    def submit(self, rounds: int, waits_in: int = 0) -> Path:
        """Submits the project, whose server waits in one round for both nodes; returns the folder of its results."""
        results = Path(tempfile.mkdtemp(dir=self.folder))
        config = ["--run-config", f"results='{results}' rounds={rounds} waits-in={waits_in}"]
        self.flwr("flwr run", "run", str(self.folder / "project"), "here", *config)
        return results

    def wait(self, ready: Any, task: str) -> Any:
        return self.processes.wait(ready, task, lambda: None, 900)

    def result(self, results: Path) -> dict[str, np.ndarray]:
        """The parameters that the strategy returned."""
        self.wait(lambda: (results / "result.npz").exists() or None, "the results")
        return dict(np.load(results / "result.npz"))


def certificates(folder: Path) -> None:
    """Writes a root certificate, and the SuperLink's certificate for 127.0.0.1."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    keys = {name: ec.generate_private_key(ec.SECP384R1()) for name in ("ca", "link")}
    names = {name: x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)]) for name in keys}
    now = datetime.datetime.now(datetime.UTC)
    for name, key in keys.items():
        here = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        certificate = (
            x509.CertificateBuilder(names["ca"], names[name], key.public_key(), x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=name == "ca", path_length=None), critical=True)
            .add_extension(here, critical=False)
            .sign(keys["ca"], hashes.SHA256())
        )
        (folder / f"{name}.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        pem = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        (folder / f"{name}.key").write_bytes(key.private_bytes(*pem))


def node_key(path: Path) -> Path:
    """Writes a SuperNode's private key, and its public key, whose path is returned."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP384R1())
    pem = serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    path.write_bytes(key.private_bytes(*pem))
    path.chmod(0o600)
    public = path.with_suffix(".pub")
    public.write_bytes(
        key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    )
    return public


@pytest.fixture(scope="module")
def federation() -> Iterator[Federation]:
    folder = Path(tempfile.mkdtemp())
    running = Federation(folder)
    try:
        running.start()
        yield running
    finally:
        running.processes.close()
        shutil.rmtree(folder)


def on_the_mesh(*clients_of_rounds: list[int]) -> Any:
    """FedAvg of the workbench on the mesh engine, with these clients in each round."""
    names: dict[str, Any] = {"__name__": "my_app"}
    exec(PAGE.read_text().split("# my_app/client_app.py\n")[1].split("```")[0], names)
    init, loss, data = (names[name] for name in ("init", "loss", "data"))
    params = init()
    for clients in clients_of_rounds:
        fedavg = wb.algorithms.fedavg(loss, clients=len(clients), client_optimizer=optax.sgd(0.1))
        contexts = [type("Context", (), {"node_config": {"partition-id": i}}) for i in clients]
        batches = jax.tree.map(lambda *rows: np.stack(rows), *(data(None, context) for context in contexts))
        state, _ = wb.engines.MeshEngine().run(fedavg.round, fedavg.init(params), batches).results
        params = state.params
    return params


def assert_close(ours: dict[str, Any], theirs: Any) -> None:
    assert ours.keys() == theirs.keys()
    for name, x in theirs.items():
        np.testing.assert_allclose(ours[name], x, rtol=1e-5, atol=1e-6)


def test_fedavg_on_two_supernodes_equals_the_mesh(federation: Federation):
    result = federation.result(federation.submit(rounds=2))
    assert_close(result, on_the_mesh([0, 1], [0, 1]))


def test_supernode_without_a_registered_key_is_refused(federation: Federation):
    node_key(federation.folder / "node-2")
    federation.node(2)
    status = federation.wait(lambda: federation.processes.ended.pop("supernode 2", None), "the refusal")
    assert status != 0


def test_rounds_go_on_without_a_killed_supernode_and_with_it_when_it_is_started_again(federation: Federation):
    """Flower's heartbeats notice it; its round and the next one are those of the other client."""
    results = federation.submit(rounds=5, waits_in=4)
    federation.wait(lambda: (results / "round-2").exists() or None, "the second round")
    os.kill(federation.processes.pids["supernode 1"], signal.SIGKILL)
    federation.wait(lambda: federation.processes.ended.pop("supernode 1", None), "the kill")
    federation.wait(lambda: (results / "round-4").exists() or None, "the fourth round")
    federation.node(1)
    assert_close(federation.result(results), on_the_mesh([0, 1], [0], [0], [0, 1], [0, 1]))
