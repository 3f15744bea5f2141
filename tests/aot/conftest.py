import pytest

from workbench.aot import list_targets, stop_workers
from workbench.aot._cache import CompilationCache


@pytest.fixture
def needs(request):
    """Skips where the compiler of a platform is not installed, with the line that installs it."""

    def needs(platform):
        chip = next(chip for chip in list_targets() if chip.platform == platform)
        if not chip.installed:
            pytest.skip(f"no compiler for {platform} is installed: {chip.install}")

    return needs


@pytest.fixture(scope="module")
def shared_cache(tmp_path_factory):
    """A cache that the tests of a module share, so that each program is compiled once per target."""
    yield CompilationCache(tmp_path_factory.mktemp("compilations"))
    stop_workers()
