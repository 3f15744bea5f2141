import importlib.metadata

import pytest

from workbench.aot import compile_for_target, list_targets
from workbench.errors import MissingDependencyError


@pytest.fixture
def nothing_installed(monkeypatch):
    def absent(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", absent)


def test_targets_names_the_line_that_installs_what_is_missing(nothing_installed):
    lines = {(chip.platform, chip.install) for chip in list_targets()}
    assert lines == {
        ("tpu", 'pip install "mapreduce-workbench[tpu-aot]"'),
        ("cuda", 'pip install "mapreduce-workbench[gpu-aot]"'),
    }
    assert not any(chip.installed or chip.compiler for chip in list_targets())


def test_targets_needs_no_line_for_what_is_installed(monkeypatch):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.0.42")
    chip = list_targets()[0]
    assert (chip.installed, chip.compiler, chip.install) == (True, "libtpu 0.0.42", "")


def test_terms_of_libtpu_are_named_with_every_tpu():
    assert all("not open source" in chip.terms for chip in list_targets() if chip.platform == "tpu")


@pytest.mark.parametrize(
    ("target", "axes", "library", "extra"),
    [("v5e:2x2", {"clients": 4}, "libtpu", "tpu-aot"), ("h100:8", {"clients": 8}, "jax-cuda12-pjrt", "gpu-aot")],
    ids=["tpu", "gpu"],
)
def test_compiling_without_the_compiler_says_which_line_installs_it(nothing_installed, target, axes, library, extra):
    with pytest.raises(MissingDependencyError) as caught:
        compile_for_target("module {}", target, mesh_axes=axes)
    assert f'pip install "mapreduce-workbench[{extra}]"' in str(caught.value)
    assert repr(target) in str(caught.value)
    assert (caught.value.library, caught.value.extra) == (library, extra)
