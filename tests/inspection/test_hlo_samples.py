"""One local-SGD round compiled for four chips: 4 steps, a 2-layer perceptron, `clients` × `model` = 4 × 2 devices.

Its matrix products per device, by hand: 4 steps × (2 forward + 3 backward) × 2 · 32 · 512 · (1024 / 2 model shards).
"""

from pathlib import Path

import pytest

from workbench.errors import InspectionError
from workbench.inspection import inspect_module
from workbench.records.compiled import ModuleRecord
from workbench.records.hardware import AxisRecord, MeshRecord

DATA = Path(__file__).parent / "hlo_samples"
SAMPLES = ("round_cpu8", "round_v5e_2x4", "round_tpu7x", "round_h100x8")
PLATFORMS = ("cpu", "tpu", "tpu", "gpu")
FLOPS = 4 * 5 * 2 * 32 * 512 * 512
ACTIVATION = 32 * 512 * 4  # what the tensor-parallel forward pass sums over "model"
WEIGHTS = 2 * 512 * 512 * 4  # what the round averages over "clients", with one float32 loss
MESH = MeshRecord(
    axes=(AxisRecord(name="clients", size=4), AxisRecord(name="model", size=2)), devices=(), abstract=True
)

every_sample = pytest.mark.parametrize("sample", SAMPLES)


def text_of(sample: str) -> str:
    return (DATA / f"{sample}.hlo.txt").read_text()


def planned(sample: str) -> ModuleRecord:
    """The sample with the scopes of a plan: stage 1 maps clients, stage 2 averages, stage 3 is the server's."""
    text = text_of(sample)
    text = text.replace("map_fn/", "wb:1:clients/").replace("reduce_mean/", "wb:2:reduce/")
    for plain in ("add", "div", "reduce_sum"):
        text = text.replace(f'op_name="jit(rnd)/{plain}"', f'op_name="jit(rnd)/wb:3:server/{plain}"')
    return inspect_module(text, mesh=MESH)


@every_sample
def test_flops_of_samples_are_exact(sample):
    assert inspect_module(text_of(sample)).flops == FLOPS == 335_544_320


@pytest.mark.parametrize(("sample", "platform"), list(zip(SAMPLES, PLATFORMS, strict=True)), ids=SAMPLES)
def test_platform_of_samples_is_read_from_the_text(sample, platform):
    module = inspect_module(text_of(sample))
    assert (module.platform, module.devices, module.name) == (platform, 8, "jit_rnd")


@every_sample
def test_activations_are_summed_over_model_in_each_of_four_steps(sample):
    (activation,) = [c for c in planned(sample).collectives if c.axes == ("model",)]
    assert (activation.kind, activation.reduction) == ("all-reduce", "add")
    assert (activation.executions, activation.group_size, activation.groups) == (4.0, 2, 4)
    assert (activation.payload_bytes, activation.wire_bytes) == (ACTIVATION, ACTIVATION)  # ring of 2: 2·S·1/2
    assert activation.stages == ("1",)
    assert [str(line) for line in activation.sources] == ["example/aot_env.py:15"]


@every_sample
def test_weights_are_summed_over_clients_once(sample):
    over_clients = [c for c in planned(sample).collectives if c.axes == ("clients",)]
    assert sum(c.payload_bytes for c in over_clients) == WEIGHTS + 4
    assert sum(c.wire_bytes for c in over_clients) == (WEIGHTS + 4) * 2 * 3 / 4
    assert {c.executions for c in over_clients} == {1.0}
    assert over_clients[0].stages[0] == "2"
    assert "example/aot_env.py:25" in {str(line) for line in over_clients[0].sources}


@every_sample
def test_nothing_is_left_without_a_stage(sample):
    module = planned(sample)
    assert module.attributed_flops == 1.0
    assert module.attributed_bytes >= 0.99
    assert module.attributed_instructions >= 0.9


@every_sample
def test_instructions_sum_to_the_module(sample):
    module = inspect_module(text_of(sample))
    assert sum(i.flops * i.executions for i in module.instructions) == module.flops
    assert sum(i.accessed_bytes * i.executions for i in module.instructions) == module.accessed_bytes


@pytest.mark.parametrize(
    ("sample", "algorithms"),
    [
        ("round_cpu8", {None}),
        ("round_v5e_2x4", {"StrategyRing (colors 1, phases 1)", "UniDirection1DRingStrategy (colors 2, phases 1)"}),
        ("round_tpu7x", {"SparseCore offload, 2 rings", "SparseCore offload, 4 rings", "SinglePhaseRingSumEmitter"}),
        ("round_h100x8", {"KERNEL_STRATEGY_TRITON_ONE_SHOT", "KERNEL_STRATEGY_DEFAULT"}),
    ],
    ids=SAMPLES,
)
def test_algorithms_are_those_that_the_compiler_wrote(sample, algorithms):
    assert {c.algorithm for c in inspect_module(text_of(sample)).collectives} == algorithms


def test_tpu7x_collectives_hidden_behind_call_start_are_asynchronous():
    hidden = {c.name for c in inspect_module(text_of("round_tpu7x")).collectives if c.asynchronous}
    assert hidden == {"all-reduce.11", "all-reduce.9"}


def test_tpu_values_in_vmem_do_not_count_as_memory_traffic():
    module = inspect_module(text_of("round_v5e_2x4"))
    inside = {i.name: i for i in module.instructions}["fusion.72"]  # f32[32,512]S(1) from two operands in S(1)
    assert inside.memory_space == 1
    assert inside.accessed_bytes == 0


@every_sample
def test_arguments_are_among_the_largest_buffers(sample):
    memory = inspect_module(text_of(sample)).memory
    assert {"param.2", "param.3"} <= {buffer.name for buffer in memory.largest}
    assert max(live for _, live in memory.timeline) >= WEIGHTS + 2 * 4 * ACTIVATION  # weights, inputs and labels


@every_sample
def test_record_of_a_sample_is_json(sample):
    assert f'"flops": {float(FLOPS)}' in inspect_module(text_of(sample)).to_json()


@every_sample
@pytest.mark.parametrize("share", [0.0, 0.02, 0.11, 0.29, 0.503, 0.71, 0.88, 0.97, 0.999])
def test_text_cut_at_the_end_is_refused(sample, share):
    text = text_of(sample).rstrip()
    with pytest.raises(InspectionError, match=r"no ENTRY|no end|not a line of HLO|no text"):
        inspect_module(text[: int(share * len(text))])


@every_sample
def test_text_cut_anywhere_raises_our_error_or_is_exact(sample):
    text = text_of(sample).rstrip()
    for offset in range(1, len(text), 2999):
        for part in (text[:offset], text[offset:]):
            try:
                module = inspect_module(part)
            except InspectionError:
                continue
            assert module.flops == FLOPS


# ---- small programs compiled ahead of time for chips that are not here


@pytest.mark.parametrize(
    ("sample", "flops"),
    [
        # einsum bij,bkj->bki of [7, 24, 16] and [7, 32, 16]; the TPU writes it as a convolution over the batch
        pytest.param("v5e_batched_dots", 2 * 7 * 24 * 16 * 32, id="v5e batched dots"),
        # 5 × "same" 3 × 3 of [16, 8, 9, 9] to 32 features: 25 of 27 taps along each dimension meet the image
        pytest.param("v5e_vmapped_convolution", 5 * 2 * 16 * 8 * 32 * 25 * 25, id="v5e vmapped convolution"),
        # forward and weight gradient of 6 × [16, 32] @ [32, 48]
        pytest.param("v5e_vmapped_gradient", 2 * 2 * 6 * 16 * 32 * 48, id="v5e vmapped gradient"),
        # counts from 20 down by 2 while above 3: 9 turns of [64, 128] @ [128, 128], no trip count in the text
        pytest.param("v5e_countdown", 9 * 2 * 64 * 128 * 128, id="v5e countdown"),
        pytest.param("h100_convolution_gradient", 3 * 2 * 16 * 8 * 32 * 25 * 25, id="H100 convolution gradient"),
    ],
)
def test_flops_of_programs_for_absent_chips_are_exact(sample, flops):
    assert inspect_module(text_of(sample)).flops == flops


@pytest.mark.parametrize("sample", ["v5e_collectives", "tpu7x_collectives", "h100_collectives"])
def test_collectives_of_absent_chips_are_named_whatever_their_form(sample):
    """Every device holds float32[64, 256]; the operations and axes are those of the program."""
    found = {(c.kind, c.axes): c for c in inspect_module(text_of(sample), mesh=MESH).collectives}
    assert set(found) == {
        ("all-gather", ("model",)),
        ("reduce-scatter", ("clients",)),
        ("all-to-all", ("model",)),
        ("collective-permute", ("clients",)),
    }
    assert {c.payload_bytes for c in found.values()} == {64 * 256 * 4}
    assert {c.executions for c in found.values()} == {1.0}


every_file = pytest.mark.parametrize(
    "sample", sorted(path.name.removesuffix(".hlo.txt") for path in DATA.glob("*.hlo.txt"))
)


@every_file
def test_call_tree_adds_up_to_the_module(sample):
    module = inspect_module(text_of(sample), mesh=MESH)
    total = module.call_tree.root.total
    assert total.flops_matmul == pytest.approx(module.flops)
    assert total.flops_elementwise == pytest.approx(
        sum(i.elementwise_flops * i.executions for i in module.instructions)
    )
    assert total.traffic_bytes == pytest.approx(module.accessed_bytes)
    sent = sum(c.wire_bytes * c.executions for c in module.collectives)
    assert sum(total.sent_bytes.values()) == pytest.approx(sent)


@every_file
def test_nothing_in_what_compilers_wrote_is_unknown(sample):
    assert inspect_module(text_of(sample)).notes == ()
