"""The documentation site: its links lead somewhere, also those to other projects, and what checks them can fail."""

import importlib
import importlib.util

import pytest
from repository_files import ROOT


def load(path):
    """A module of ours that is in no package."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


LINKS = load(ROOT / ".ci" / "links.py")
OTHER_SITES = load(ROOT / "docs" / "other_sites.py")
WHOLE = '<h1 id="top">A page</h1><a href="other.html#there">a link</a><img src="dot.png" alt="a dot">'


@pytest.fixture
def site(tmp_path):
    """A site of two pages without a fault."""
    (tmp_path / "index.html").write_text(WHOLE)
    (tmp_path / "other.html").write_text('<p id="there">Here.</p><a href="https://docs.jax.dev/en/latest/">JAX</a>')
    (tmp_path / "dot.png").write_bytes(b"")
    return tmp_path


def test_a_site_without_faults_passes(site):
    assert list(LINKS.faults(site)) == []


@pytest.mark.parametrize(
    ("whole", "broken", "fault"),
    [
        ("other.html#there", "another.html", "no such file"),
        ("other.html#there", "other.html#elsewhere", "no such anchor"),
        ("other.html#there", "#elsewhere", "no such anchor"),
        ("other.html#there", "https://jax", "not an address"),
        ('src="dot.png"', 'src="gone.png"', "no such file"),
        ('src="dot.png"', 'src="https://elsewhere.org/dot.png"', "from another site"),
        (' alt="a dot"', "", "no alternative text"),
    ],
)
def test_a_fault_of_a_site_is_found(site, whole, broken, fault):
    (site / "index.html").write_text(WHOLE.replace(whole, broken))
    found = list(LINKS.faults(site))
    assert len(found) == 1
    assert found[0].startswith("index.html: ")
    assert fault in found[0]


def names_of_other_sites():
    return [name for _, pages in OTHER_SITES.SITES.values() for names in pages.values() for name in names.split()]


def exists(name):
    module, _, attribute = name.rpartition(".")
    try:
        holder = importlib.import_module(module)
    except ModuleNotFoundError:  # a class between the module and the name
        module, _, between = module.rpartition(".")
        holder = getattr(importlib.import_module(module), between)
    return hasattr(holder, attribute)


def test_names_of_other_projects_exist():
    assert [name for name in [*names_of_other_sites(), *OTHER_SITES.ALIASES.values()] if not exists(name)] == []
