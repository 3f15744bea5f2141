from typing import Any

import numpy as np
import pytest
from engine_contract import client_data, failing, fedavg, start

import workbench as wb
from workbench.engines import ClientReader, MeshEngine, Sequential
from workbench.errors import EngineError


@pytest.mark.parametrize("mesh", [None, "four"], ids=["no mesh", "four devices"])
def test_results_are_those_of_the_oracle(mesh: Any):
    engine = MeshEngine(wb.make_mesh(clients=4) if mesh else None)
    x, y = client_data()
    run = engine.run(fedavg, start(), ClientReader([(i, (x[i], y[i])) for i in range(5)]))
    np.testing.assert_allclose(run.results[0], Sequential().run(fedavg, start(), (x, y)).results[0], rtol=1e-5)
    assert run.engine == "mesh"
    assert run.seconds > 0


def test_failing_program_says_who_can_report_more():
    with pytest.raises(EngineError, match=r"(?s)`failing` failed: its host callback `refuse` raised.*Sequential\(\)"):
        MeshEngine().run(wb.program(clients=5)(failing), np.ones(5, np.float32))
