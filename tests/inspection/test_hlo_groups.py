"""Replica groups as mesh axes, against groups enumerated coordinate by coordinate."""

import itertools
import math

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from workbench.inspection.hlo import group_axes, pair_axes
from workbench.inspection.hlo._groups import parse_groups

NAMES = ("clients", "model", "pods", "stage")


def groups_of(sizes, swept):
    """Positions of a row-major mesh that differ along the swept axes alone."""
    groups = {}
    for position, place in enumerate(itertools.product(*map(range, sizes))):
        fixed = tuple(c for axis, c in enumerate(place) if axis not in swept)
        groups.setdefault(fixed, []).append(position)
    return tuple(map(tuple, groups.values()))


def as_sets(groups):
    return {frozenset(group) for group in groups}


def explicit_text(groups):
    return "{" + ",".join("{" + ",".join(map(str, group)) + "}" for group in groups) + "}"


def iota_text(sizes, swept):
    """Grouped axes last, which is how XLA transposes an iota into groups."""
    order = [axis for axis in range(len(sizes)) if axis not in swept] + sorted(swept)
    size = math.prod(sizes[axis] for axis in swept)
    dims, perm = ",".join(map(str, sizes)), ",".join(map(str, order))
    return f"[{math.prod(sizes) // size},{size}]<=[{dims}]T({perm})"


def mesh_text(sizes, swept):
    """XLA's names are its own, and it puts axes of size 1 between ours."""
    axes = [item for i, size in enumerate(sizes) for item in (f"'axis_{2 * i}'={size}", f"'axis_{2 * i + 1}'=1")]
    swept_names = ",".join(f"'axis_{2 * axis}'" for axis in sorted(swept))
    return f"mesh[{','.join(axes)}] {{{swept_names}}}"


meshes = st.lists(st.sampled_from([1, 2, 3, 4, 6, 8]), min_size=1, max_size=4).filter(lambda s: math.prod(s) <= 64)


@st.composite
def mesh_and_axes(draw):
    sizes = tuple(draw(meshes))
    swept = frozenset(draw(st.sets(st.integers(0, len(sizes) - 1), min_size=1)))
    return sizes, swept


@settings(max_examples=400, deadline=None, derandomize=True)
@given(mesh_and_axes(), st.sampled_from([explicit_text, iota_text, mesh_text]), st.randoms(use_true_random=False))
def test_whole_axes_are_named_in_every_syntax(case, syntax, random):
    sizes, swept = case
    groups = list(groups_of(sizes, swept))
    random.shuffle(groups)  # neither the order of groups nor of their members means anything
    text = explicit_text(groups) if syntax is explicit_text else syntax(sizes, swept)
    parsed = parse_groups(text, math.prod(sizes))
    assert parsed is not None
    assert as_sets(parsed) == as_sets(groups)
    assert group_axes(parsed, NAMES, sizes).names == tuple(NAMES[a] for a in sorted(swept) if sizes[a] > 1)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(mesh_and_axes(), st.randoms(use_true_random=False))
def test_names_are_never_wrong_on_permuted_devices(case, random):
    """Groups of a mesh whose devices were permuted are named only if the same axes would give those very groups."""
    sizes, swept = case
    order = list(range(math.prod(sizes)))
    random.shuffle(order)
    groups = tuple(tuple(order[position] for position in group) for group in groups_of(sizes, swept))
    axes = group_axes(groups, NAMES, sizes)
    if axes.names and "[" not in "".join(axes.names):
        assert as_sets(groups_of(sizes, {NAMES.index(name) for name in axes.names})) == as_sets(groups)
    elif not axes.names:
        assert axes.note


@st.composite
def digits_and_swept(draw):
    """A mesh whose axes are split into digits, and some of the digits."""
    axes = draw(st.lists(st.lists(st.sampled_from([2, 3, 4]), min_size=1, max_size=3), min_size=1, max_size=3))
    digits = [size for axis in axes for size in axis]
    swept = draw(st.sets(st.integers(0, len(digits) - 1), min_size=1))
    return axes, digits, swept


@settings(max_examples=300, deadline=None, derandomize=True)
@given(digits_and_swept().filter(lambda case: math.prod(case[1]) <= 96))
def test_parts_of_axes_are_named_with_their_size(case):
    axes, digits, swept = case
    sizes = tuple(math.prod(axis) for axis in axes)
    expected, first = [], 0
    for name, axis, size in zip(NAMES, axes, sizes, strict=False):
        width = math.prod(digits[i] for i in range(first, first + len(axis)) if i in swept)
        first += len(axis)
        if width > 1:
            expected.append(name if width == size else f"{name}[{width} of {size}]")
    assert group_axes(groups_of(digits, swept), NAMES, sizes).names == tuple(expected)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(meshes.filter(lambda s: math.prod(s) > 1), st.randoms(use_true_random=False))
def test_pairs_name_exactly_the_axes_along_which_they_move(sizes, random):
    sizes = tuple(sizes)
    axis = random.randrange(len(sizes))
    step = random.randrange(sizes[axis])
    pairs = []
    for place in itertools.product(*map(range, sizes)):
        target = [*place]
        target[axis] = (target[axis] + step) % sizes[axis]
        pairs.append(tuple(sum(c * math.prod(sizes[i + 1 :]) for i, c in enumerate(p)) for p in (place, target)))
    assert pair_axes(tuple(pairs), NAMES, sizes).names == ((NAMES[axis],) if step else ())


@pytest.mark.parametrize(
    ("groups", "note"),
    [
        pytest.param(((0, 1), (2, 3), (4, 7), (5, 6)), "not a product of axes", id="diagonal pairs"),
        pytest.param(((0, 1, 2), (3, 4, 5), (6, 7)), "groups of different sizes", id="unequal"),
        pytest.param(((0, 1), (2, 3)), "not fit this mesh", id="half of the mesh"),
        pytest.param(((0, 1), (1, 2), (3, 4), (5, 6)), "not fit this mesh", id="one device twice"),
        pytest.param(tuple((i,) for i in range(8)), "nothing is sent", id="alone"),
        pytest.param(((0, 3), (1, 2), (4, 7), (5, 6)), "not a product of axes", id="mirrored pairs"),
    ],
)
def test_groups_that_are_no_product_of_axes_are_reported_as_so(groups, note):
    axes = group_axes(groups, NAMES, (2, 4))
    assert axes.names == ()
    assert note in axes.note


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        pytest.param("{}", ((0, 1, 2, 3),), id="empty means all"),
        pytest.param("[1,4]<=[4]", ((0, 1, 2, 3),), id="iota"),
        pytest.param("[4]<=[4]", ((0, 1, 2, 3),), id="iota of one group"),
        pytest.param("[2,2]<=[2,2]T(1,0)", ((0, 2), (1, 3)), id="transposed iota"),
        pytest.param("{{0,2},{1,3}}", ((0, 2), (1, 3)), id="explicit"),
        pytest.param("mesh['a'=2,'b'=2] {'a'}", ((0, 2), (1, 3)), id="mesh"),
        # device_ids: [[0,1],[2,3]] transposed, so that 'a' steps through 0, 1
        pytest.param("mesh['a'=2,'b'=2], device_ids=([2,2]T(1,0)) {'a'}", ((0, 1), (2, 3)), id="mesh of permuted ids"),
        pytest.param("mesh['a'=2,'b'=2], device_ids=(0,2,1,3) {'b'}", ((0, 2), (1, 3)), id="mesh of listed ids"),
        pytest.param("mesh['a'=2,'b'=2] {'b','a'}", ((0, 2, 1, 3),), id="axes out of order"),
        pytest.param("mesh['a'=4] {'a':(1)2}", ((0, 2), (1, 3)), id="major half of an axis"),
        pytest.param("mesh['a'=4] {'a':(2)2}", ((0, 1), (2, 3)), id="minor half of an axis"),
        pytest.param("mesh['a'=2,'b'=2] {'a','b'}", ((0, 1, 2, 3),), id="two axes"),
        pytest.param("something new", None, id="unknown"),
    ],
)
def test_every_syntax_of_groups_is_read(text, groups):
    assert parse_groups(text, 4) == groups
