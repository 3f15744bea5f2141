"""The real compilers: TPU and GPU programs from a machine that has neither."""

import os
import re
import signal

import jax
import jax.numpy as jnp
import pytest
from target_programs import (
    lowered_round,
    lowered_too_large,
    lowered_transformer,
    mesh_for,
    mesh_for_sixteen,
    transformer_flops,
)

import workbench as wb
from workbench.aot import compile_for_target, parse_target
from workbench.aot._process import Worker, shared_worker
from workbench.errors import EngineError, MeshError
from workbench.inspection import inspect_module

SECONDS = 500


@pytest.fixture
def compiled(needs, shared_cache):
    def compiled(lowered, target, *, force=False, **changes):
        needs(parse_target(target, force=force).platform)
        mesh = mesh_for(target, force=force)
        arguments = {"mesh_axes": mesh.axes, "cache": shared_cache, "timeout_seconds": SECONDS}
        return compile_for_target(lowered(mesh), mesh.target, **(arguments | changes))

    return compiled


TARGETS = [
    pytest.param("v5e:4x4", id="v5e-4x4"),
    pytest.param("v5p:4x4x4", id="v5p-4x4x4"),
    pytest.param("v6e:16x16", id="v6e-16x16"),
    pytest.param("tpu7x:4x4x4", id="tpu7x-4x4x4", marks=pytest.mark.slow),
    pytest.param("h100:8", id="h100-8"),
    pytest.param("b200:4x8", id="b200-4x8"),
]


@pytest.mark.parametrize("target", TARGETS)
def test_round_is_compiled_with_its_shapes_per_device(compiled, target):
    done = compiled(lowered_round, target)
    head = done.hlo.partition("\n")[0]
    assert f"num_partitions={done.target.devices}" in head
    # parameters a and b halved over the model axis, two clients of 32 examples of 512 numbers
    assert "f32[512,256]" in head
    assert "f32[256,512]" in head
    assert "f32[2,32,512]" in head
    assert done.memory.argument_bytes == 4 * (2 * 512 * 256 + 2 * 32 * 512)
    assert done.memory.fits is True
    assert done.memory.peak_bytes > done.memory.argument_bytes
    assert done.error == ""
    assert re.search(r'op_name="[^"]*wb:1:clients', done.hlo)
    assert "all-reduce" in done.hlo


@pytest.mark.parametrize("target", TARGETS)
def test_mesh_says_where_every_device_sits(compiled, target):
    done = compiled(lowered_round, target)
    devices, shape = done.mesh.devices, done.mesh.shape
    assert len(devices) == len({device.id for device in devices}) == done.target.devices
    assert devices[-1].position == tuple(size - 1 for size in shape)
    assert len({device.host for device in devices}) == done.target.hosts
    if done.target.platform == "tpu":
        places = {(device.coords, device.core_on_chip) for device in devices}
        assert len(places) == done.target.devices
        extents = [max(device.coords[axis] for device in devices) + 1 for axis in range(3)]
        assert [extent for extent in extents if extent > 1] == [int(n) for n in done.target.topology.split("x")]
        assert all(axis.mean_hops is not None for axis in done.mesh.axes)


def inspected(done):
    return inspect_module(done.hlo, mesh=done.mesh, platform=done.target.platform.replace("cuda", "gpu"))


@pytest.mark.parametrize("target", TARGETS)
def test_round_has_the_flops_counted_by_hand_and_its_two_collectives_by_axis(compiled, target):
    # 4 steps x 5 matmuls x 2 clients x 2 x 32 x 512 x 512, halved by the model axis
    module = inspected(compiled(lowered_round, target))
    assert module.flops == 4 * 5 * 2 * 2 * 32 * 512 * 512 // 2 == 335_544_320
    # the hidden layer's partial sums in every step, the mean over clients once: both weights in one
    found = {(c.kind, c.axes, c.executions, c.payload_bytes) for c in module.collectives}
    assert found == {
        ("all-reduce", ("model",), 4.0, 4 * 2 * 32 * 512),
        ("all-reduce", ("clients",), 1.0, 4 * 2 * 512 * 256),
    }
    assert {stage for c in module.collectives if c.axes == ("clients",) for stage in c.stages} == {"2"}


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_transformer_of_sixteen_clients_has_exact_flops_and_collectives_by_axis(compiled, target):
    mesh = mesh_for_sixteen(target)
    done = compiled(lambda _: lowered_transformer(mesh), target, mesh_axes=mesh.axes)
    module = inspected(done)
    assert (done.error, done.memory.fits) == ("", True)
    assert module.flops == transformer_flops(mesh)
    assert {c.axes for c in module.collectives} == {("clients",), ("model",)}
    (mean,) = (c for c in module.collectives if c.axes == ("clients",))
    # six kinds of weights, 12 layers, cut along model: 12 x (4 M^2 + 2 M H) numbers of 4 bytes
    assert (mean.kind, mean.executions) == ("all-reduce", 1.0)
    assert mean.payload_bytes == 4 * 12 * (4 * 128**2 + 2 * 128 * 256) / mesh.axes["model"]
    assert all(c.executions == 12 for c in module.collectives if c.axes == ("model",))


def test_topology_order_has_shorter_ways_and_another_strategy_than_the_naive_one(compiled):
    mesh = mesh_for_sixteen("v5p:4x4x4")
    best, naive = (
        compiled(lambda _: lowered_round(mesh), "v5p:4x4x4", mesh_axes=mesh.axes, order=order)
        for order in ("topology", "naive")
    )
    assert (best.order, naive.order) == ("topology", "naive")
    assert best.mesh.axes[0].mean_hops < naive.mesh.axes[0].mean_hops
    assert [d.id for d in best.mesh.devices] != [d.id for d in naive.mesh.devices]
    ways = [{c.algorithm for c in inspected(done).collectives if c.axes == ("clients",)} for done in (best, naive)]
    assert ways[0] != ways[1]


def test_slices_are_crossed_by_one_mesh_axis_alone(compiled):
    done = compiled(lowered_round, "v5e:4x4*2")
    clients, model = done.mesh.axes
    assert (clients.mean_hops, model.mean_hops) == (None, 1.0)
    # The outer half of the clients axis is one slice, the inner half the other one.
    halves = [{device.slice_index for device in part} for part in (done.mesh.devices[:16], done.mesh.devices[16:])]
    assert halves == [{0}, {1}]


@pytest.mark.parametrize(
    ("target", "available"),
    [("v5e:4x4", 15.75), ("v6e:2x4", 31.25), ("h100:8", 80.0)],
    ids=["v5e", "v6e", "h100"],
)
def test_program_that_does_not_fit_says_by_how_much_and_because_of_which_lines(compiled, target, available):
    done = compiled(lambda mesh: lowered_too_large(mesh, 4 * 131072), target)
    assert done.memory.fits is False
    assert done.memory.available_bytes == int(available * 2**30)
    # 524288 rows of 8192 floats: x alone takes 16 GiB, and of each of six layers something is kept
    assert done.needed_bytes > 2 * 16 * 2**30
    sizes = [buffer.size_bytes for buffer in done.memory.largest]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] == 16 * 2**30
    written = [buffer for buffer in done.memory.largest if "wb:1:clients" in buffer.op_name]
    assert all(buffer.source.file.endswith("target_programs.py") for buffer in written)
    assert written
    assert done.hlo.startswith("HloModule")


def test_gpu_compiler_says_itself_that_memory_is_not_enough(compiled):
    too_much = compiled(lambda mesh: lowered_too_large(mesh, 4 * 131072), "h100:8")
    (said,) = (note for note in too_much.notes if "compiler message about memory" in note)
    assert re.search(r"Can't reduce memory use below [\d.]+GiB \(\d+ bytes\) by rematerialization", said)
    assert not any("compiler message about memory" in note for note in compiled(lowered_round, "h100:8").notes)


def test_out_of_memory_errors_exact_bytes_agree_with_its_words(compiled):
    done = compiled(lambda mesh: lowered_too_large(mesh, 4 * 131072), "v5e:4x4")
    words = re.search(r"temporaries \(([\d.]+)G\)", done.error)
    assert done.needed_bytes / 2**30 == pytest.approx(float(words[1]), abs=0.01)


@pytest.mark.parametrize(
    ("target", "name"), [("v5e:32x32", "SIGABRT"), ("v5p:16x24x24", "SIGFPE")], ids=["abort", "divide-by-zero"]
)
@pytest.mark.slow
def test_topology_that_crashes_the_compiler_is_an_error_and_the_next_one_compiles(compiled, target, name):
    with pytest.raises(EngineError) as caught:
        compiled(lowered_round, target, force=True)
    assert f"Compiling for target {target!r}" in str(caught.value)
    assert f"ended by {name}" in str(caught.value)
    assert compiled(lowered_round, "v5e:2x2").memory.fits


def test_topology_that_the_compiler_rejects_is_an_error_with_its_words(compiled):
    with pytest.raises(MeshError, match=r"the compiler does not know this topology\. The compiler reported:") as caught:
        compiled(lowered_round, "v5e:3x6", force=True)
    assert "`list_targets()`" in str(caught.value)


@pytest.mark.parametrize("target", ["v5e:2x2", "h100:8"], ids=["tpu", "gpu"])
def test_option_that_the_compiler_does_not_know_is_refused_by_name(compiled, target):
    with pytest.raises(EngineError, match="xla_no_such_option"):
        compiled(lowered_round, target, options={"xla_no_such_option": True})


@pytest.mark.parametrize("target", ["v5e:2x2"], ids=["tpu"])
def test_stablehlo_that_is_none_is_refused_and_the_worker_lives_on(compiled, target):
    compiled(lowered_round, target, options={"xla_dump_to": ""})  # an answer from disk would start no worker
    pid = shared_worker("tpu").pid
    with pytest.raises(EngineError, match="the compiler failed with"):
        compiled(lambda mesh: "this is no module", target)
    assert shared_worker("tpu").pid == pid is not None


def test_killing_libtpu_in_the_middle_of_a_compilation_leaves_the_next_one_unharmed(compiled):
    def kill(phase, seconds):
        if phase == "compiling":
            os.kill(shared_worker("tpu").pid, signal.SIGKILL)

    with pytest.raises(EngineError, match=r"'v5e:2x4' failed while compiling: .* was ended by SIGKILL"):
        compiled(lowered_round, "v5e:2x4", progress=kill)
    assert compiled(lowered_round, "v5e:2x4").memory.fits


def test_two_workers_hold_libtpu_at_once(compiled):
    with_own = Worker()
    try:
        first = compiled(lowered_round, "v5e:2x2", options={"xla_dump_to": ""})
        second = compiled(lowered_round, "v5e:2x2", options={"xla_dump_to": ""}, worker=with_own)
    finally:
        with_own.close()
    assert first.hlo == second.hlo


def test_result_survives_the_cache(compiled):
    first = compiled(lowered_round, "v5e:2x2")
    second = compiled(lowered_round, "v5e:2x2")
    assert second.cached
    assert second.replace(cached=first.cached) == first


def test_program_is_inspected_on_hardware_that_is_not_here(needs, tmp_path, monkeypatch):
    needs("tpu")
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path))

    @wb.program(clients=64)
    def round_of(params, data):
        def train(params, x):
            return params - 0.1 * jax.grad(lambda p: jnp.mean((x @ p) ** 2))(params)

        return wb.reduce_mean(wb.map_fn(train, (wb.broadcast(params), data)))

    args = (jnp.zeros((256, 128)), jnp.zeros((64, 32, 256)))
    record = wb.inspect(round_of, on="v5e:4x4")(*args)
    # 64 clients on 16 devices, forward and the gradient of the weights: 4 x 2 matmuls x 2 x 32 x 256 x 128
    assert record.module.flops == 4 * 2 * 2 * 32 * 256 * 128
    assert [(c.kind, c.axes, c.payload_bytes) for c in record.module.collectives] == [
        ("all-reduce", ("clients",), 4 * 256 * 128)
    ]
    assert len(list((tmp_path / "targets").iterdir())) == 1
    again = wb.inspect(round_of, on="v5e:4x4")(*args)  # from another line: the same entry of the cache
    assert len(list((tmp_path / "targets").iterdir())) == 1
    assert again.module == record.module
