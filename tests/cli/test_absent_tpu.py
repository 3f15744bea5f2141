import importlib.util
import os

import pytest

from workbench.cli import _absent_tpu


@pytest.fixture
def libtpu(monkeypatch):
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if name == "libtpu" else None)


@pytest.mark.usefixtures("libtpu")
def test_cpu_is_chosen_where_libtpu_is_installed_without_a_tpu(tmp_path):
    assert _absent_tpu.choose_platform(tmp_path) == "cpu"
    assert os.environ["JAX_PLATFORMS"] == "cpu"


@pytest.mark.usefixtures("libtpu")
@pytest.mark.parametrize("name", ["accel0", "vfio/0", "nvidia0", "kfd"], ids=["tpu", "newer-tpu", "nvidia", "amd"])
def test_accelerator_that_is_here_is_left_to_jax(tmp_path, name):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).touch()
    assert _absent_tpu.choose_platform(tmp_path) is None
    assert "JAX_PLATFORMS" not in os.environ


@pytest.mark.usefixtures("libtpu")
def test_own_choice_of_platforms_is_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "tpu,cpu")
    assert _absent_tpu.choose_platform(tmp_path) is None
    assert os.environ["JAX_PLATFORMS"] == "tpu,cpu"


def test_without_libtpu_nothing_is_set(tmp_path, monkeypatch):
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert _absent_tpu.choose_platform(tmp_path) is None
    assert "JAX_PLATFORMS" not in os.environ
