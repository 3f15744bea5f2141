"""Replica groups against jaxlib's own parser of the same text.

jaxlib expands groups that are lists or an iota when it converts a module to StableHLO. Groups that are axes of a mesh
stay axes there, so that their members are computed with NumPy: the mesh's device ids as an array with a dimension per
axis, grouped along the axes that jaxlib read.
"""

import math
import re

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from workbench.inspection.hlo import inspect_module
from workbench.inspection.hlo._groups import parse_groups

_hlo = pytest.importorskip("jaxlib._hlo", reason="this jaxlib has no parser of its own")

MODULE = """HloModule m, num_partitions={devices}

%add (a: f32[], b: f32[]) -> f32[] {{
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}}

ENTRY %main (x: f32[8,4]) -> f32[8,4] {{
  %x = f32[8,4]{{1,0}} parameter(0)
  ROOT %all = f32[8,4]{{1,0}} all-reduce(%x), channel_id=1, replica_groups={groups}, use_global_device_ids=true, to_apply=%add
}}
"""  # noqa: E501


def written_by_jaxlib(groups, devices):
    """The collective in the StableHLO that jaxlib makes of the HLO text."""
    mlir = getattr(pytest.importorskip("jaxlib._jax"), "mlir", None)
    if not hasattr(mlir, "hlo_to_stablehlo"):
        pytest.skip("this jaxlib converts no HLO to StableHLO")
    from jax._src.interpreters.mlir import make_ir_context  # noqa: TID251 -- only here: the oracle's printer
    from jax._src.lib.mlir import ir  # noqa: TID251

    module = _hlo.hlo_module_from_text(MODULE.format(devices=devices, groups=groups))
    with make_ir_context():
        return str(ir.Module.parse(mlir.hlo_to_stablehlo(module.as_serialized_hlo_module_proto())))


def expanded_by_jaxlib(groups, devices):
    text = written_by_jaxlib(groups, devices)
    found = re.search(r"replica_groups = dense<([^>]*)> : tensor<(\d+)x(\d+)xi64>", text)
    numbers = [int(number) for number in re.findall(r"\d+", found[1])]
    count, size = int(found[2]), int(found[3])
    return tuple(map(tuple, np.resize(numbers, (count, size)).tolist()))  # MLIR writes a number once if all are equal


@st.composite
def iota(draw):
    fewer = st.lists(st.sampled_from([1, 2, 3, 4, 8]), min_size=1, max_size=4)
    sizes = draw(fewer.filter(lambda sizes: math.prod(sizes) <= 96))  # MLIR prints more than 100 numbers as bytes
    total = math.prod(sizes)
    order = draw(st.permutations(range(len(sizes))))
    size = draw(st.sampled_from([divisor for divisor in range(1, total + 1) if total % divisor == 0]))
    turned = f"T({','.join(map(str, order))})" if len(sizes) > 1 else ""  # jaxlib wants it then, also in order
    return f"[{total // size},{size}]<=[{','.join(map(str, sizes))}]{turned}", total


@settings(max_examples=60, deadline=None, derandomize=True)
@given(iota())
def test_iota_groups_are_those_of_jaxlib(case):
    text, devices = case
    assert parse_groups(text, devices) == expanded_by_jaxlib(text, devices)


@pytest.mark.parametrize(
    "text",
    [
        "[2,4]<=[8]",
        "[2,4]<=[4,2]T(1,0)",
        "[4,2]<=[2,2,2]T(2,0,1)",
        "[8,1]<=[8]",
        "{{0,1,2,3},{4,5,6,7}}",
        "{{7,0},{6,1},{5,2},{4,3}}",
        "{{0,2,4,6,1,3,5,7}}",
    ],
)
def test_groups_of_a_collective_are_those_of_jaxlib(text):
    (collective,) = inspect_module(MODULE.format(devices=8, groups=text)).collectives
    assert parse_groups(text, 8) == expanded_by_jaxlib(text, 8)
    assert collective.group_size == len(expanded_by_jaxlib(text, 8)[0])


def grouped_by_numpy(ids, axes, references):
    """Groups along some axes (or parts of them) of a mesh, in the order in which the axes are named."""
    cuts = []  # dimensions: (axis, size of what is more major in it, size)
    for axis, size in axes:
        parts = sorted((before, part) for name, before, part in references if name == axis)
        done = 1
        for before, part in parts:
            cuts += [(axis, done, before // done), (axis, before, part)]
            done = before * part
        cuts.append((axis, done, size // done))
    array = np.asarray(ids).reshape([size for *_, size in cuts])
    named = [(name, before) for name, before, _ in references]
    along = [next(i for i, cut in enumerate(cuts) if cut == (name, before, part)) for name, before, part in references]
    assert len(set(along)) == len(named)
    rest = [i for i in range(len(cuts)) if i not in along]
    size = math.prod(cuts[i][2] for i in along)
    return tuple(map(tuple, array.transpose([*rest, *along]).reshape(-1, size).tolist()))


MESHES = {
    "one axis": ("mesh['a'=2,'b'=4] {'b'}", np.arange(8)),
    "the major axis": ("mesh['a'=2,'b'=4] {'a'}", np.arange(8)),
    "both, turned": ("mesh['a'=2,'b'=4] {'b','a'}", np.arange(8)),
    "transposed ids": ("mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)) {'b'}", np.arange(8).reshape(4, 2).T),
    "ids of three axes": (
        "mesh['a'=2,'b'=2,'c'=2], device_ids=([2,2,2]T(2,0,1)) {'a','c'}",
        np.arange(8).reshape(2, 2, 2).transpose(2, 0, 1),
    ),
    "listed ids": ("mesh['a'=2,'b'=4], device_ids=(0,2,4,6,1,3,5,7) {'b'}", [0, 2, 4, 6, 1, 3, 5, 7]),
    "major half of an axis": ("mesh['a'=2,'b'=4] {'b':(1)2}", np.arange(8)),
    "minor half of an axis": ("mesh['a'=2,'b'=4] {'b':(2)2}", np.arange(8)),
    "half of an axis and another": ("mesh['a'=2,'b'=4] {'a','b':(1)2}", np.arange(8)),
    "half of an axis of listed ids": ("mesh['a'=2,'b'=4], device_ids=(7,6,5,4,3,2,1,0) {'b':(2)2}", [*range(8)][::-1]),
}


@pytest.mark.parametrize("name", MESHES)
def test_groups_along_mesh_axes_are_those_that_jaxlib_reads(name):
    text, ids = MESHES[name]
    try:
        written = written_by_jaxlib(text, 8)
    except Exception as error:
        if type(error).__name__ not in ("XlaRuntimeError", "JaxRuntimeError", "MLIRError", "ValueError"):
            raise
        pytest.skip(f"this jaxlib reads no groups along mesh axes: {error}")
    axes = [(axis, int(size)) for axis, size in re.findall(r"'(\w+)'=(\d+)", text)]
    read = re.search(r"replica_group_mesh_axes<mesh = @\w+, axes = \[(.*?)\]>[,>]", written)[1]
    references = [
        (axis, int(before or 1), int(size or dict(axes)[axis]))
        for axis, before, size in re.findall(r'axis_ref<name = "(\w+)"(?:, sub_axis_info = \((\d+)\)(\d+))?>', read)
    ]
    assert set(parse_groups(text, 8)) == set(grouped_by_numpy(ids, axes, references))
