"""Spark on two machines: two workers, of which one has another temporary folder, in a mount namespace."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import workbench as wb
from workbench.engines import ClientReader, Spark
from workbench.errors import EngineError

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(not shutil.which("java"), reason="no Java"),
]
CLIENTS = 40
X = np.arange(CLIENTS, dtype=np.float32)


@wb.program(clients=CLIENTS)
def stateful(x: Any) -> Any:
    """Three rounds in which each client adds its number to its state."""

    def turn(state: Any, _: Any) -> Any:
        state = wb.map_fn(lambda s, x: s + x, (state, x))
        return state, wb.reduce_sum(state)

    return jax.lax.scan(turn, x * 0, None, length=3)[1]


@wb.program(clients=CLIENTS)
def total(x: Any) -> Any:
    return wb.reduce_sum(wb.map_fn(lambda x: x + jnp.float32(1), x))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    from spark_cluster import standalone, why_no_namespaces, without

    folder, own = tmp_path_factory.mktemp("cluster"), tmp_path_factory.mktemp("own")
    if why := why_no_namespaces(own):
        pytest.skip(f"this machine allows no mount namespaces: {why}")
    with standalone(folder, without(own)) as master:
        yield master, own


@pytest.fixture
def engine(cluster: tuple[str, Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[Spark]:
    from spark_cluster import CONF

    monkeypatch.setattr("tempfile.tempdir", str(cluster[1]))  # the second worker sees another folder there
    with Spark(cluster[0], conf=CONF, clients_per_batch=2) as engine:
        yield engine


def test_a_folder_that_one_machine_does_not_see_is_refused_before_clients_are_computed(engine: Spark, tmp_path: Path):
    assert float(engine.run(total, X).results) == 820.0  # needs no folder
    for program, given in ((stateful, X), (total, ClientReader(list(enumerate(X))))):
        with pytest.raises(EngineError, match=r"cannot see that folder.*Pass `folder=`") as caught:
            engine.run(program, given)
        assert str(engine.folder or "") in str(caught.value)
    engine.folder = tmp_path
    assert engine.run(stateful, X).results.tolist() == [780.0, 1560.0, 2340.0]
    assert float(engine.run(total, ClientReader(list(enumerate(X)))).results) == 820.0
    assert not list(tmp_path.iterdir())
