"""A round written by hand, and a reader of HLO text that knows just enough to check joins against."""

import re
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from records_parts import toy_module

from workbench.records.compiled import CollectiveRecord, InstructionRecord, ModuleRecord
from workbench.records.hardware import AxisRecord, ClientRange, DeviceRecord, MeshRecord

WIDTH = 16
STEPS = np.array(
    [3, 1, 2, 5, 0, 4, 7, 1, 1, 6, 2, 2, 3, 8, 1, 2, 4, 0, 5, 1, 9, 2, 3, 1], np.int32
)  # 24 clients, 8 devices


class Round(NamedTuple):
    compiled: Any
    args: tuple[Any, ...]
    module: ModuleRecord
    mesh: MeshRecord


def read_module(compiled: Any) -> ModuleRecord:
    """Instructions with their computation, calls and the stage in their op_name; no costs."""
    instructions, collectives, computation = [], [], ""
    for line in compiled.as_text().splitlines():
        opening = re.match(r"(?:ENTRY )?%?(\S+) \(.*\{$", line)
        if opening:
            computation = opening[1]
        found = re.match(r"\s+(?:ROOT )?%(\S+) = (\(.*?\)|\S+) ([a-z][\w\-]*)\(", line)
        if not found:
            continue
        scope = re.findall(r"wb:([\d.]+):\w+", line)
        called = re.findall(r"(?:body|condition|calls|to_apply)=%([^\s,}]+)", line)
        name, shape, opcode = found.groups()
        instructions.append(
            InstructionRecord(
                name=name,
                opcode=opcode,
                computation=computation,
                shape=shape,
                size_bytes=0,
                executions=None,
                flops=2.0 * WIDTH**3 if opcode in ("dot", "fusion") and "dot_general" in line else 0.0,
                op_name=line,
                stage=scope[-1] if scope else None,
                calls=tuple(called),
            )
        )
        if opcode == "all-reduce":
            collectives.append(
                CollectiveRecord(
                    name=name,
                    kind=opcode,
                    axes=("clients",),
                    group_size=8,
                    groups=1,
                    payload_bytes=4 * WIDTH**2,
                    wire_bytes=0.0,
                    executions=1,
                )
            )
    return toy_module(
        name=re.match(r"HloModule (\S+?),", compiled.as_text())[1],
        devices=8,
        instructions=tuple(instructions),
        collectives=tuple(collectives),
        attributed_instructions=0.0,
        attributed_flops=0.0,
        attributed_bytes=0.0,
    )


def mesh_record(clients_per_device: int) -> MeshRecord:
    return MeshRecord(
        axes=(AxisRecord(name="clients", size=8),),
        devices=tuple(DeviceRecord(id=i, position=(i,), platform="cpu") for i in range(8)),
        clients=tuple(
            ClientRange(
                placement="clients", device_id=i, start=i * clients_per_device, stop=(i + 1) * clients_per_device
            )
            for i in range(8)
        ),
    )


def build_round(steps: np.ndarray) -> Round:
    """Each client multiplies its matrix `steps` times; the server takes the mean. Clients of a device run in a loop."""
    mesh = Mesh(np.array(jax.devices()[:8]), ("clients",))

    def client(count, x):
        return jax.lax.fori_loop(0, count, lambda _, w: jnp.tanh(w @ w), x)

    def local(counts, xs):
        with jax.named_scope("wb:1:clients"):
            ys = jax.lax.map(lambda both: client(*both), (counts, xs))
        with jax.named_scope("wb:2:reduce"):
            return jax.lax.pmean(ys.mean(axis=0), "clients")

    program = jax.jit(jax.shard_map(local, mesh=mesh, in_specs=P("clients"), out_specs=P(), check_vma=False))
    placed = NamedSharding(mesh, P("clients"))
    args = (
        jax.device_put(jnp.asarray(steps), placed),
        jax.device_put(jnp.full((len(steps), WIDTH, WIDTH), 0.01), placed),
    )
    compiled = program.lower(*args).compile()
    return Round(compiled, args, read_module(compiled), mesh_record(len(steps) // 8))


@pytest.fixture(scope="session")
def looped_round() -> Round:
    return build_round(STEPS)


@pytest.fixture(scope="session")
def one_client_per_device() -> Round:
    return build_round(STEPS[:8])
