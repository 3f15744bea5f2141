import pytest

from workbench.aot._cache import cache_key

REQUEST = {
    "stablehlo": 'module { return loc("a.py":1:1) }',
    "platform": "tpu",
    "topology_name": "v5e:4x4",
    "arguments": {},
    "axes": [["clients", 16]],
    "order": "topology",
    "options": {},
}


@pytest.mark.parametrize(
    "change",
    [
        {"stablehlo": 'module { return loc("a.py":2:1) }'},
        {"topology_name": "v5e:2x8"},
        {"arguments": {"num_slices": 2}},
        {"axes": [["model", 16]]},
        {"order": "naive"},
        {"options": {"xla_tpu_x": True}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_key_changes_with_everything_that_the_result_depends_on(change):
    assert cache_key(REQUEST | change, compiler="libtpu 1") != cache_key(REQUEST, compiler="libtpu 1")


def test_key_changes_with_the_compiler_and_with_nothing_else():
    assert cache_key(REQUEST, compiler="libtpu 2") != cache_key(REQUEST, compiler="libtpu 1")
    backwards = dict(reversed(REQUEST.items()))
    assert cache_key(backwards, compiler="libtpu 1") == cache_key(REQUEST, compiler="libtpu 1")
