import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from records_parts import TOY_CHIP

import workbench as wb
from workbench.errors import EngineError, MeasureError
from workbench.measurement import ReadingOptions, measure_compiled
from workbench.measurement._device_events import DeviceEvent
from workbench.measurement._join import join_profile
from workbench.measurement._measure import _kept, _stage_runs
from workbench.measurement._profile import Profile
from workbench.records.compiled import CollectiveRecord, InstructionRecord, MemoryRecord, ModuleRecord, StagePartRecord
from workbench.records.run import EventRecord

STEPS = [3, 1, 2, 5, 0, 4, 7, 1, 1, 6, 2, 2, 3, 8, 1, 2, 4, 0, 5, 1, 9, 2, 3, 1]


@pytest.fixture(scope="module")
def run(looped_round):
    options = ReadingOptions(mesh=looped_round.mesh, client_stages=("1",))
    return measure_compiled(looped_round.compiled, looped_round.args, looped_round.module, rounds=2, options=options)


def test_every_event_is_an_instruction_of_the_module(run):
    assert run.joined_events == 1.0


def test_stages_and_devices_are_all_there(run):
    assert {(stage.stage, stage.where) for stage in run.stages} >= {
        (stage, f"cpu:{device}") for stage in ("1", "2") for device in range(8)
    }


def test_clients_stage_only_computes_and_the_reduction_communicates(run):
    for stage in run.stages:
        if stage.stage == "1":
            assert stage.collective_seconds == stage.wait_seconds == 0
        if stage.stage == "2":
            assert stage.collective_seconds > 0


def test_collective_counts_alike_on_every_device_and_the_rest_is_waiting(run):
    reduction = [stage for stage in run.stages if stage.stage == "2"]
    work = [stage.collective_seconds for stage in reduction]
    assert work == pytest.approx([work[0]] * 8)
    assert min(stage.wait_seconds for stage in reduction) < max(stage.wait_seconds for stage in reduction)


def test_spans_add_up_to_the_stages(run):
    for kind in ("compute", "collective", "wait"):
        spans = sum(event.seconds for event in run.events if event.kind == kind) / run.rounds
        assert spans == pytest.approx(sum(getattr(stage, f"{kind}_seconds") for stage in run.stages))


def test_what_the_compiler_made_of_several_stages_shares_its_seconds_as_its_work():
    common = {"computation": "main", "shape": "f32[]", "size_bytes": 4, "executions": 1.0, "stage": "1"}
    parts = (StagePartRecord(stage="1", flops=30.0, accessed_bytes=4), StagePartRecord(stage="2", flops=10.0))
    fusion = InstructionRecord(name="fusion", opcode="fusion", flops=40.0, stage_parts=parts, **common)
    copies = tuple(part.replace(flops=0.0, accessed_bytes=size) for part, size in zip(parts, (8, 24), strict=True))
    copy = InstructionRecord(name="copy", opcode="fusion", stage_parts=copies, **common)
    reduce = InstructionRecord(name="all-reduce", opcode="all-reduce", **common)
    sent = CollectiveRecord(
        name="all-reduce", kind="all-reduce", axes=("clients",), group_size=1, groups=1, payload_bytes=8,
        wire_bytes=0.0, executions=1.0, stages=("1", "2"), stage_shares={"1": 0.9, "2": 0.1},
    )  # fmt: skip
    module = ModuleRecord(
        name="jit_f", platform="cpu", devices=1, instructions=(fusion, copy, reduce), collectives=(sent,), flops=40.0,
        accessed_bytes=36.0, memory=MemoryRecord(), attributed_instructions=1, attributed_flops=1, attributed_bytes=1,
    )  # fmt: skip
    seconds = {"fusion": 4.0, "copy": 8.0, "all-reduce": 10.0}
    events = tuple(DeviceEvent(0, name, "jit_f", 1, at, long) for at, (name, long) in enumerate(seconds.items()))
    leaves = join_profile(Profile(events=events), module).leaves
    first, second = _stage_runs(leaves, module, {0: "cpu:0"}, 2, ReadingOptions())
    # Two rounds: 3/4 of 4 s and 1/4 of 8 s; 1/4 and 3/4; the collective as its bytes.
    assert (first.stage, first.compute_seconds, first.collective_seconds) == ("1", 2.5, 4.5)
    assert (second.stage, second.compute_seconds, second.collective_seconds) == ("2", 3.5, 0.5)
    assert (first.flops_per_second, second.flops_per_second) == (15 / 2.5, 5 / 3.5)


def test_step_counts_of_the_clients_are_exact(run):
    assert [client.steps for client in run.clients] == STEPS
    assert [client.client for client in run.clients] == list(range(24))
    assert [client.where for client in run.clients] == [f"cpu:{client // 3}" for client in range(24)]


def test_client_flops_are_its_steps_times_one_multiplication(run):
    assert [client.flops for client in run.clients] == [steps * 2 * 16**3 for steps in STEPS]
    assert all(client.seconds > 0 for client in run.clients)


def test_one_client_per_device_has_exact_steps_although_xla_dissolved_the_loop(one_client_per_device):
    options = ReadingOptions(mesh=one_client_per_device.mesh, client_stages=("1",))
    run = measure_compiled(
        one_client_per_device.compiled, one_client_per_device.args, one_client_per_device.module, options=options
    )
    assert [client.steps for client in run.clients] == STEPS[:8]


def test_padding_slots_are_left_out(looped_round):
    held = [*looped_round.mesh.clients]
    held[7] = held[7].replace(stop=22, padding=2)
    options = ReadingOptions(mesh=looped_round.mesh.replace(clients=tuple(held)), client_stages=("1",))
    run = measure_compiled(looped_round.compiled, looped_round.args, looped_round.module, rounds=1, options=options)
    assert [client.steps for client in run.clients] == STEPS[:22]


def test_program_without_a_loop_over_clients_says_so(looped_round):
    options = ReadingOptions(mesh=looped_round.mesh, client_stages=("2",))
    run = measure_compiled(looped_round.compiled, looped_round.args, looped_round.module, rounds=1, options=options)
    assert run.clients == ()
    (note,) = [note for note in run.notes if note.startswith("Stage 2:")]
    assert "no loop with one iteration per client" in note


def test_rates_are_related_to_the_peaks_of_one_device_of_the_chip(looped_round):
    chip = TOY_CHIP.replace(
        name="two in one",
        peak_flops_per_second={"float32": 2e12},
        hbm_bytes=0,
        hbm_bytes_per_second=4e9,
        link_bytes_per_second=1.0,
        devices_per_chip=2,
    )
    run = measure_compiled(
        looped_round.compiled, looped_round.args, looped_round.module, rounds=1, options=ReadingOptions(chip=chip)
    )
    clients = next(stage for stage in run.stages if stage.stage == "1")
    assert clients.peak_flops_share == pytest.approx(clients.flops_per_second / 1e12)
    assert clients.peak_bandwidth_share == pytest.approx(clients.bytes_per_second / 2e9)


def test_wall_times_overhead_and_limits_are_stated(run):
    assert len(run.round_seconds) == run.rounds == 2
    assert run.seconds == pytest.approx(sum(run.round_seconds))
    assert run.overhead > 0
    assert any(note.startswith("Profiling: ") for note in run.notes)
    assert any("do not predict an accelerator" in note for note in run.notes)
    assert run.memory_before_bytes > 0
    assert run.memory_peak_bytes is None
    assert any("does not measure memory while a program runs" in note for note in run.notes)


def test_result_is_kept_and_the_rest_is_json(run, looped_round):
    assert (run.results == looped_round.compiled(*looped_round.args)).all()
    assert json.loads(run.to_json())["rounds"] == 2


def test_time_line_is_cut_with_a_note_while_sums_stay_whole(looped_round, run):
    cut = measure_compiled(
        looped_round.compiled, looped_round.args, looped_round.module, rounds=1, options=ReadingOptions(max_events=10)
    )
    assert len(cut.events) <= 10
    assert {event.where for event in cut.events} == {event.where for event in run.events}
    assert any(note.startswith("The timeline contains the longest ") for note in cut.notes)
    assert {stage.stage for stage in cut.stages} == {stage.stage for stage in run.stages}


def test_donated_arguments_survive_the_measurement(looped_round):
    program = jax.jit(lambda x: x + 1, donate_argnums=0)
    x = jnp.arange(4.0)
    compiled = program.lower(x).compile()
    run = measure_compiled(compiled, (x,), looped_round.module.replace(name="jit__lambda_"), rounds=2)
    assert np.asarray(x).tolist() == [0, 1, 2, 3]
    assert np.asarray(run.results).tolist() == [1, 2, 3, 4]


def test_no_rounds_is_an_error(looped_round):
    with pytest.raises(MeasureError, match=r"given rounds=0 and warmup=1.*at least one call.*Pass rounds >= 1"):
        measure_compiled(looped_round.compiled, looped_round.args, looped_round.module, rounds=0)


def test_a_cut_time_line_keeps_every_device_and_its_longest_spans() -> None:

    spans = [
        EventRecord(where=f"cpu:{device}", name="dot", start_seconds=10.0 * device + i, seconds=0.1 * (i + 1))
        for device in range(4)
        for i in range(10)
    ]
    kept = _kept(spans, 8)
    assert {span.where for span in kept} == {"cpu:0", "cpu:1", "cpu:2", "cpu:3"}
    assert [span.start_seconds for span in kept] == [8.0, 9.0, 18.0, 19.0, 28.0, 29.0, 38.0, 39.0]
    assert _kept(spans, 40) == tuple(spans)


def test_measure_that_runs_out_of_memory_says_what_was_planned():
    def large(x):
        return jnp.sort(jnp.outer(jnp.arange(2.0**30) * x, jnp.arange(2.0**15)))  # 128 TiB: more than an address space

    with pytest.raises(EngineError, match=r"`large` ran out of memory while it was measured: RESOURCE_EXHAUSTED.*MiB"):
        wb.measure(large, rounds=1)(2.0)
