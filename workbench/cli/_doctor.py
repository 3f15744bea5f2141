"""`workbench doctor`: what is installed, which devices are there, what is wrong, and the line that fixes it."""

import importlib
import importlib.metadata
import json
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from packaging.requirements import Requirement

from workbench.cli import _browser, _lab, _metadata
from workbench.errors import CommandError

DEVICE_TIMEOUT_SECONDS = 120
ASK_FOR_DEVICES = """
import json, jax
devices = jax.devices()
print(json.dumps([devices[0].platform, devices[0].device_kind, len(devices), jax.process_count()]))
"""
FRONT_ENDS = {"anywidget": "anywidget", "@jupyter-widgets/jupyterlab-manager": "jupyterlab_widgets"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One finding: `absent` is optional and not here, `broken` has to be repaired; `fix` is the line that does it."""

    name: str
    state: Literal["ok", "absent", "broken"]
    found: str
    fix: str = ""


def report_health() -> int:
    """Prints every finding and returns 1 when something is broken, else 0."""
    checks = list(examine())
    width = max(len(check.name) for check in checks)
    for check in checks:
        print(f"{check.state:6}  {check.name:{width}}  {check.found}")
        if check.fix:
            print(f"{'':6}  {'':{width}}  → {check.fix}")
    broken = [check.name for check in checks if check.state == "broken"]
    print(f"\nBroken: {', '.join(broken)}." if broken else "\nNothing is broken.")
    return 1 if broken else 0


def examine() -> Iterable[Check]:
    """Every finding, in the order in which a reader can repair them."""
    yield Check(name="Python", state="ok", found=f"{sys.version.split()[0]} at {sys.prefix}")
    try:
        required, extras = _metadata.read_requirements(), _metadata.read_extras()
    except importlib.metadata.PackageNotFoundError:
        fix = "pip install --no-deps -e .   (in the repository)"
        yield Check(name=_metadata.DISTRIBUTION, state="broken", found="not installed in this Python", fix=fix)
        required, extras = [], {}
    else:
        yield Check(name=_metadata.DISTRIBUTION, state="ok", found=importlib.metadata.version(_metadata.DISTRIBUTION))
    yield from (check_library(requirement) for requirement in required)
    yield from (_guard(name, lambda name=name: check_import(name)) for name in ("workbench", "widgets"))
    yield _guard("devices", check_devices)
    yield _guard("kernel", check_kernel)
    yield from (check_front_end(name, library) for name, library in FRONT_ENDS.items())
    yield _guard("notebooks", check_notebooks)
    yield _guard("browser", check_browser)
    yield from (check_extra(name, requirements) for name, requirements in extras.items())


def check_library(requirement: Requirement) -> Check:
    """Whether a library that is always needed is here, in a version that is allowed."""
    version = _installed_version(requirement)
    if version is None:
        return Check(name=requirement.name, state="broken", found="not installed", fix=f'pip install "{requirement}"')
    if not requirement.specifier.contains(version, prereleases=True):
        found = f"{version}, but {requirement.specifier} is needed"
        return Check(name=requirement.name, state="broken", found=found, fix=f'pip install "{requirement}"')
    return Check(name=requirement.name, state="ok", found=version)


def check_extra(name: str, requirements: list[Requirement]) -> Check:
    """Whether an optional extra is here: all of it, none of it, or (which is broken) in versions that do not fit."""
    title, fix = f"extra {name}", f'pip install "{_metadata.DISTRIBUTION}[{name}]"'
    versions = {requirement: _installed_version(requirement) for requirement in requirements}
    wrong = [f"{r.name} {v} (needs {r.specifier})" for r, v in versions.items() if v and v not in r.specifier]
    missing = [r.name for r, v in versions.items() if v is None]
    if wrong:
        return Check(name=title, state="broken", found="wrong version: " + ", ".join(wrong), fix=fix)
    if missing:
        return Check(name=title, state="absent", found="not installed: " + ", ".join(missing), fix=fix)
    return Check(name=title, state="ok", found=", ".join(f"{r.name} {v}" for r, v in versions.items()))


def check_import(name: str) -> Check:
    """Whether one of our own packages can be imported."""
    module = importlib.import_module(name)
    return Check(name=f"import {name}", state="ok", found=str(Path(module.__file__ or "").parent))


def check_devices() -> Check:
    """Which devices JAX finds, asked in a process of its own: a driver that hangs or aborts must not take us along."""
    fix = "JAX_PLATFORMS=cpu workbench doctor   (if that works, the accelerator's driver or plugin is at fault)"
    try:
        asked = subprocess.run(
            [sys.executable, "-c", ASK_FOR_DEVICES], capture_output=True, text=True, timeout=DEVICE_TIMEOUT_SECONDS
        )
    except subprocess.TimeoutExpired:
        found = f"JAX found no device within {DEVICE_TIMEOUT_SECONDS} seconds"
        return Check(name="devices", state="broken", found=found, fix=fix)
    if asked.returncode != 0:
        lines = asked.stderr.strip().splitlines() or [f"JAX ended with status {asked.returncode}"]
        return Check(name="devices", state="broken", found=lines[-1], fix=fix)
    platform, kind, count, hosts = json.loads(asked.stdout.strip().splitlines()[-1])
    found = f"{count} × {platform} ({kind}), {hosts} host{'s' if hosts > 1 else ''}"
    if platform == "cpu" and count == 1:
        found += "; `workbench.simulate_devices(8)` makes more"
    return Check(name="devices", state="ok", found=found)


def check_kernel() -> Check:
    """Whether JupyterLab will find a Python kernel."""
    from jupyter_client.kernelspec import KernelSpecManager

    specs = KernelSpecManager().find_kernel_specs()
    if "python3" in specs:
        return Check(name="kernel", state="ok", found=specs["python3"])
    return Check(
        name="kernel",
        state="broken",
        found="no kernel named python3 (there are: " + (", ".join(specs) or "none") + ")",
        fix="python -m ipykernel install --sys-prefix",
    )


def check_front_end(extension: str, library: str) -> Check:
    """Whether the browser's half of a widget library is where JupyterLab looks for it."""
    from jupyter_core.paths import jupyter_path

    places = [Path(place) / extension for place in jupyter_path("labextensions")]
    found = next((place for place in places if (place / "package.json").is_file()), None)
    if found is not None:
        return Check(name=f"front end {library}", state="ok", found=str(found))
    return Check(
        name=f"front end {library}",
        state="broken",
        found=f"JupyterLab has no extension {extension}: widgets will not show",
        fix=f"pip install --force-reinstall --no-deps {library}",
    )


def check_notebooks() -> Check:
    """Whether `workbench lab` will find the notebooks."""
    try:
        folder = _lab.find_notebook(None)
    except CommandError:
        fix = "workbench lab path/to/mine.ipynb, or start it in a clone of the repository"
        return Check(name="notebooks", state="absent", found="not beside the package nor in this folder", fix=fix)
    return Check(name="notebooks", state="ok", found=f"{len(list(folder.glob('*.ipynb')))} in {folder}")


def check_browser() -> Check:
    """Which browser the tests would use; reading notebooks needs none of these, any modern browser will do."""
    browser = _browser.find_browser()
    if browser is not None:
        return Check(name="browser", state="ok", found=str(browser))
    found = "no Chromium, Chrome or Edge: browser tests will be skipped"
    return Check(name="browser", state="absent", found=found, fix=_browser.FIX)


def _guard(name: str, check: Callable[[], Check]) -> Check:
    # A diagnosis that dies of the illness is of no use: whatever a check raises is its finding.
    try:
        return check()
    except Exception as error:
        text = str(error).strip() or "no message"
        fix = "pip install --require-hashes -r requirements.lock   (in the repository)"
        return Check(name=name, state="broken", found=f"{type(error).__name__}: {text.splitlines()[0]}", fix=fix)


def _installed_version(requirement: Requirement) -> str | None:
    try:
        return importlib.metadata.version(requirement.name)
    except importlib.metadata.PackageNotFoundError:
        return None
