"""The kernel's side of trials, pages of a propagation, and places of devices, without a browser."""

import math
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import records_examples as examples
import records_parts as parts
import workbench_widgets
from jax.sharding import Mesh
from workbench_widgets._propagation import PropagationView

import workbench as wb
from workbench import render
from workbench.records.compiled import WhatIfRecord
from workbench.records.sharding import PlannedValueRecord, PropagationRecord


class Waiting:
    """Plans at once, then compiles until it is cancelled."""

    def __init__(self) -> None:
        self.started, self.cancelled = threading.Event(), threading.Event()

    def plan(self, specs):
        record = examples.fedavg_record()
        return WhatIfRecord(specs={}, before=record, after=record)

    def compile(self, tried, *, progress, cancel):
        self.started.set()
        assert cancel.wait(60)
        self.cancelled.set()
        message = "was stopped"
        raise RuntimeError(message)


def test_trial_without_a_program_is_refused_with_a_remedy():
    view = workbench_widgets.ShardingView(parts.sharding_record())
    with pytest.raises(RuntimeError, match=r"given specs for w, but this view shows a record"):
        view.answers.start_trial({"w": [["model"], []]})


def test_stop_a_new_trial_and_the_end_of_the_view_each_cancel():
    waiting = Waiting()
    view = workbench_widgets.ShardingView(parts.sharding_record(), what_if=waiting)
    for ending in (lambda: view.answers.stop("trial"), lambda: view.answers.start_trial({}), view.close):
        waiting.cancelled.clear()
        waiting.started.clear()
        view.answers.start_trial({})
        assert waiting.started.wait(60)
        first = view.answers._jobs["trial"]
        ending()
        assert waiting.cancelled.wait(60)
        assert first is not None
        assert first.wait(60)
        view.answers.stop("trial")
        assert view.answers.wait(20)
    assert view.answers.tried is None


def test_failed_trial_is_shown_with_its_message():
    class Refusing(Waiting):
        def plan(self, specs):
            message = "mesh axis 'x' does not exist"
            raise ValueError(message)

    view = workbench_widgets.ShardingView(parts.sharding_record(), what_if=Refusing())
    view.answers.start_trial({"w": [["x"]]})
    assert view.answers.wait(20)
    assert view._outbox is not None
    view._outbox.flush()
    assert view.live["trial"]["status"] == "failed"
    assert view.live["trial"]["error"]["message"] == "ValueError: mesh axis 'x' does not exist"


def test_explorer_tries_specs_too_under_its_own_key():
    view = workbench_widgets.Explorer(examples.fedavg_record(), what_if=Waiting())
    view.answers.start_trial({}, compiled=False)
    assert view.answers.wait(20)
    assert view._outbox is not None
    view._outbox.flush()
    assert view.live["sharding/trial"]["status"] == "done"
    view.close()


def test_explore_opens_a_program_that_can_be_tried_next_to_its_gradient():
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("clients", "model"))

    @wb.program(clients=4)
    def mean_square(w, x):
        return wb.reduce_mean(wb.map_fn(lambda w, x: ((x @ w) ** 2).mean(), (wb.broadcast(w), x)))

    w, x = jnp.ones((8, 8)), jnp.ones((4, 2, 8))
    with jax.set_mesh(mesh):
        view = wb.explore(mean_square, gradient=jax.grad(mean_square))(w, x)
    assert [picture["prefix"] for picture in view.data["program"]["pictures"]] == ["", "gradient/"]
    sharding = view.data["sharding"]
    assert (sharding["can_try"], [leaf["path"] for leaf in sharding["leaves"]]) == (True, ["w", "x"])
    assert [leaf["name"] for leaf in view.data["mesh"]["leaves"]] == ["w", "x"]
    view.answers.start_trial({"w": [[], ["model"]]}, compiled=False)
    assert view.answers.wait(60)
    assert view.answers.tried is not None
    assert view.answers.tried.after.inputs.leaves[0].shard_shape == (8, 4)
    view.close()


def test_record_of_a_what_if_is_shown_with_what_was_tried():
    program = examples.fedavg_record()
    tried = WhatIfRecord(specs={"w": (("model",), ())}, before=program, after=program)
    view = workbench_widgets.show_record(tried)
    assert view.live["trial"]["sentence"].startswith("What if w were P('model')?")
    assert view.settings == {"specs": {"w": [["model"], []]}}


def test_pages_of_a_propagation_are_made_when_they_are_asked_for():
    values = tuple(
        PlannedValueRecord(name=f"%{i}", operation="sine", shape=(8,), dtype="f32", spec=(("clients",),), origins={})
        for i in range(300)
    )
    view = PropagationView(PropagationRecord(values=values))
    assert view.data["svg"].count("data-value") == 120
    assert view.page(240).count("data-value") == 60
    assert 'data-value="%299"' in view.page(240)


MESHES = {
    "8": (("a", 8),),
    "4 x 2": (("clients", 4), ("model", 2)),
    "2 x 4 x 2": (("pods", 2), ("clients", 4), ("model", 2)),
    "1120 x 8": (("clients", 1120), ("model", 8)),
    "8960": (("clients", 8960),),
    "20 x 16 x 28": (("pods", 20), ("x", 16), ("y", 28)),
    "2 x 2 x 2 x 2 x 2": tuple((name, 2) for name in "abcde"),
}


@pytest.mark.parametrize("axes", MESHES.values(), ids=MESHES)
def test_every_device_has_a_cell_of_its_own_in_every_arrangement(axes):
    record = parts.mesh_record(clients=0, axes=axes)
    for found in render.arrange_mesh(record).values():
        assert len({tuple(place) for place in found.places.tolist()}) == len(record.devices)
        assert (found.places >= 0).all()
        assert (found.places < (found.columns, found.rows)).all()
        assert found.columns <= 161


def test_neighbours_along_the_last_axis_are_side_by_side():
    record = parts.mesh_record(clients=0, axes=(("pods", 2), ("clients", 4), ("model", 2)))
    places = render.arrange_mesh(record)["mesh"].places.reshape(2, 4, 2, 2)
    assert (places[:, :, 1] - places[:, :, 0] == (1, 0)).all()
    assert (places[:, 1:, :] - places[:, :-1, :] == (0, 1)).all()


def test_torus_is_offered_where_there_are_coordinates_and_hosts_where_there_are_several():
    plain = parts.mesh_record(clients=0)
    one_host = plain.replace(devices=tuple(device.replace(host=0) for device in plain.devices))
    assert list(render.arrange_mesh(one_host)) == ["mesh"]
    shape = (2, 4)
    devices = tuple(
        d.replace(coords=tuple(int(c) for c in np.unravel_index(d.id, shape)), core_on_chip=0) for d in plain.devices
    )
    found = render.arrange_mesh(plain.replace(devices=devices))
    assert list(found) == ["mesh", "torus", "hosts"]
    # Coordinates are (x, y): y runs down and x across, so device 1 at (0, 1) stands below device 0.
    assert found["torus"].places[1].tolist() == [0, 1]
    assert math.prod((found["torus"].columns, found["torus"].rows)) == 8
