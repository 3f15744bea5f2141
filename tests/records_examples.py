"""Programs as records, written by hand for the tests of views and widgets: a FedAvg round and its relatives."""

import math

from records_parts import (
    CLIENT_FLOPS as CLIENT_FLOPS,
    EXAMPLES as EXAMPLES,
    PARAMETER_BYTES as PARAMETER_BYTES,
    cost_record as cost_record,
    leaf as leaf,
    mesh_record as mesh_record,
    module_record as module_record,
    module_text as module_text,
    sharding_record as sharding_record,
    source as source,
    value as value,
)

from workbench.records.compiled import ProgramRecord
from workbench.records.program import DisclosedRecord, PlacementRecord, PlanRecord, StageRecord

CLIENT_JAXPR = """{ lambda ; w:f32[64,10] b:f32[10] x:f32[128,64] y:i32[128]. let
    logits:f32[128,10] = dot_general[dimension_numbers=(([1], [0]), ([], []))] x w
    shifted:f32[128,10] = add logits b
    dw:f32[64,10] = dot_general[dimension_numbers=(([0], [0]), ([], []))] x shifted
    loss:f32[] = reduce_sum[axes=(0, 1)] shifted
  in (dw, b, loss) }"""

STABLEHLO = (
    "module @jit_fedavg {",
    "  func.func public @main(%arg0: tensor<64x10xf32>) {",
    '    %0 = stablehlo.dot_general %arg0, %arg1 : tensor<128x10xf32> loc("train_locally"("fedavg.py":4:0))',
    '    %1 = stablehlo.reduce %0 : tensor<10xf32> loc("reduce_mean"("fedavg.py":12:0))',
    "    return",
    "  }",
    "}",
)


def round_stages(clients: int = 64, prefix: str = "", placement: str = "clients") -> tuple[StageRecord, ...]:
    """Broadcast, local training, two averages, the server's update."""

    def stage(index: int, kind: str, name: str, **fields: object) -> StageRecord:
        fields = {"source": source(10 + index)} | fields
        return StageRecord(index=index, path=f"{prefix}{index}", kind=kind, name=name, **fields)  # type: ignore[arg-type]

    w, b = value("w", 64, 10), value("b", 10)
    local_w, local_b = value("local.w", clients, 64, 10), value("local.b", clients, 10)
    x, y = value("data.x", clients, EXAMPLES, 64), value("data.y", clients, EXAMPLES, dtype="int32")
    dw, db = value("delta.w", clients, 64, 10), value("delta.b", clients, 10)
    loss = value("loss", clients)
    mean_w, mean_b, mean_loss = value("mean.w", 64, 10), value("mean.b", 10), value("mean_loss")
    at_clients = {"placement": placement, "clients": clients}
    return (
        stage(
            0,
            "broadcast",
            "broadcast",
            operation="broadcast",
            inputs=(w, b),
            outputs=(local_w, local_b),
            consumes=(-1,),
            moved_bytes=clients * PARAMETER_BYTES,
            **at_clients,
        ),
        stage(
            1,
            "clients",
            "train_locally",
            operation="map_fn",
            inputs=(local_w, local_b, x, y),
            outputs=(dw, db, loss),
            consumes=(0, -1),
            flops_per_client=CLIENT_FLOPS,
            bytes_per_client=39_000,
            jaxpr=CLIENT_JAXPR,
            source=source(4, "train_locally"),
            **at_clients,
        ),
        stage(
            2,
            "reduce",
            "reduce_mean",
            operation="reduce_mean",
            inputs=(dw, db),
            outputs=(mean_w, mean_b),
            consumes=(1,),
            moved_bytes=clients * PARAMETER_BYTES,
            **at_clients,
        ),
        stage(
            3,
            "reduce",
            "reduce_mean",
            operation="reduce_mean",
            inputs=(loss,),
            outputs=(mean_loss,),
            consumes=(1,),
            moved_bytes=clients * 4,
            **at_clients,
        ),
        stage(
            4,
            "server",
            "apply_update",
            inputs=(w, b, mean_w, mean_b),
            outputs=(value("new.w", 64, 10), value("new.b", 10)),
            consumes=(2, -1),
            flops_per_client=1300.0,
            bytes_per_client=7800,
        ),
    )


def share(stage: str, *shape: int, name: str = "reduce_mean") -> DisclosedRecord:
    """A client's share of a reduction, in float32."""
    size = 4 * math.prod(shape)
    return DisclosedRecord(stage=stage, name=name, shape=shape, dtype="float32", size_bytes=size, kind="partial result")


def round_disclosed(prefix: str = "") -> tuple[DisclosedRecord, ...]:
    """Disclosed to the server by each client in a round: its shares of two means."""
    return (share(f"{prefix}2", 64, 10), share(f"{prefix}2", 10), share(f"{prefix}3"))


STAYS = (value("data.x", EXAMPLES, 64), value("data.y", EXAMPLES, dtype="int32"))


def fedavg_record(clients: int = 64, instruction_count: int = 24) -> ProgramRecord:
    """One round: server → broadcast → clients → two means → server, on a mesh of 4 × 2 devices."""
    plan = PlanRecord(
        name="fedavg",
        placements=(PlacementRecord(name="clients", size=clients, mesh_axes=("clients",)),),
        stages=round_stages(clients),
        inputs=(
            value("w", 64, 10),
            value("b", 10),
            value("data.x", clients, EXAMPLES, 64),
            value("data.y", clients, EXAMPLES),
        ),
        outputs=(value("new.w", 64, 10), value("new.b", 10), value("mean_loss")),
        disclosed=round_disclosed(),
        kept_local=STAYS,
    )
    return ProgramRecord(
        name="fedavg",
        target="cpu x 8",
        plan=plan,
        mesh=mesh_record(clients=clients),
        inputs=sharding_record(clients),
        module=module_record(instruction_count),
        cost=cost_record(clients),
        stablehlo="\n".join(STABLEHLO),
    )


def gradient_record(clients: int = 64) -> ProgramRecord:
    """What `jax.grad` makes of the loss: local slopes and one sum back to the server."""
    w, local, slope = value("w", 64, 10), value("local.w", clients, 64, 10), value("slope.w", clients, 64, 10)
    where = {"placement": "clients", "clients": clients}
    stages = (
        StageRecord(
            index=0,
            path="0",
            kind="broadcast",
            name="broadcast",
            operation="broadcast",
            inputs=(w,),
            outputs=(local,),
            consumes=(-1,),
            moved_bytes=clients * 2560,
            source=source(10),
            **where,
        ),
        StageRecord(
            index=1,
            path="1",
            kind="clients",
            name="linearize(train_locally)",
            operation="map_fn",
            inputs=(local, value("data.x", clients, EXAMPLES, 64)),
            outputs=(slope,),
            consumes=(0, -1),
            flops_per_client=2 * CLIENT_FLOPS,
            source=source(4),
            **where,
        ),
        StageRecord(
            index=2,
            path="2",
            kind="clients",
            name="transpose(train_locally)",
            operation="map_fn",
            inputs=(slope,),
            outputs=(value("ct.w", clients, 64, 10),),
            consumes=(1,),
            flops_per_client=CLIENT_FLOPS,
            **where,
        ),
        StageRecord(
            index=3,
            path="3",
            kind="reduce",
            name="reduce_sum",
            operation="reduce_sum",
            inputs=(value("ct.w", clients, 64, 10),),
            outputs=(value("grad.w", 64, 10),),
            consumes=(2,),
            moved_bytes=clients * 2560,
            source=source(10),
            **where,
        ),
    )
    plan = PlanRecord(
        name="grad(fedavg)",
        placements=(PlacementRecord(name="clients", size=clients, mesh_axes=("clients",)),),
        stages=stages,
        inputs=(w, value("data.x", clients, EXAMPLES, 64)),
        outputs=(value("grad.w", 64, 10),),
        disclosed=(share("3", 64, 10, name="reduce_sum"),),
        kept_local=STAYS[:1],
    )
    return ProgramRecord(name="grad(fedavg)", target="cpu x 8", plan=plan, mesh=mesh_record(clients=clients))


def rounds_record(clients: int = 64, rounds: int = 10) -> ProgramRecord:
    """Ten rounds in a loop, then one evaluation at the server."""
    loop = StageRecord(
        index=0,
        path="0",
        kind="loop",
        name="scan",
        trip_count=rounds,
        inputs=(value("w", 64, 10),),
        outputs=(value("final.w", 64, 10),),
        consumes=(-1,),
        source=source(20, "train"),
        body=round_stages(clients, "0."),
    )
    last = StageRecord(
        index=1,
        path="1",
        kind="server",
        name="evaluate",
        inputs=(value("final.w", 64, 10),),
        outputs=(value("accuracy"),),
        consumes=(0,),
        flops_per_client=5e5,
        source=source(23, "train"),
    )
    base = fedavg_record(clients)
    plan = base.plan.replace(
        name="train", stages=(loop, last), outputs=(value("accuracy"),), disclosed=round_disclosed("0.")
    )
    return base.replace(name="train", plan=plan, module=module_record(prefix="0."), cost=cost_record(clients, "0."))


def pods_record(pods: int = 4, clients: int = 16) -> ProgramRecord:
    """Two placements, one inside the other: every pod runs a round of its own clients."""
    w, at_pods = value("w", 64, 10), value("pod.w", pods, 64, 10)
    where = {"placement": "pods", "clients": pods}
    stages = (
        StageRecord(
            index=0,
            path="0",
            kind="broadcast",
            name="broadcast",
            operation="broadcast",
            inputs=(w,),
            outputs=(at_pods,),
            consumes=(-1,),
            moved_bytes=pods * PARAMETER_BYTES,
            source=source(30),
            **where,
        ),
        StageRecord(
            index=1,
            path="1",
            kind="clients",
            name="pod_round",
            operation="map_fn",
            inputs=(at_pods, value("data.x", pods, clients, EXAMPLES, 64)),
            outputs=(at_pods,),
            consumes=(0, -1),
            flops_per_client=clients * CLIENT_FLOPS,
            source=source(31),
            body=round_stages(clients, "1."),
            **where,
        ),
        StageRecord(
            index=2,
            path="2",
            kind="reduce",
            name="reduce_mean",
            operation="reduce_mean",
            inputs=(at_pods,),
            outputs=(w,),
            consumes=(1,),
            moved_bytes=pods * PARAMETER_BYTES,
            source=source(32),
            **where,
        ),
    )
    placements = (
        PlacementRecord(name="pods", size=pods, mesh_axes=("clients",)),
        PlacementRecord(name="clients", size=clients, mesh_axes=("model",)),
    )
    plan = PlanRecord(
        name="pods",
        placements=placements,
        stages=stages,
        inputs=(w, value("data.x", pods, clients, EXAMPLES, 64)),
        outputs=(w,),
    )
    return ProgramRecord(name="pods", target="cpu x 8", plan=plan, mesh=mesh_record(clients=0))
