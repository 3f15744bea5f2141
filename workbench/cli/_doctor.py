"""`workbench doctor`: checks the installation and devices, and prints commands for repairs."""

import dataclasses
import importlib
import importlib.metadata
import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from workbench.cli import _browser, _lab, _metadata
from workbench.cli._name import REINSTALL
from workbench.errors import pip_command

DEVICE_TIMEOUT_SECONDS = 120
ASK_FOR_DEVICES = """
import json, jax
devices = jax.devices()
try:
    from workbench.aot import calibration_of_devices
    chip = calibration_of_devices()
    rates = "" if chip is None else chip.as_of
except ImportError:
    rates = ""
print(json.dumps([devices[0].platform, devices[0].device_kind, len(devices), jax.process_count(), rates]))
"""
PACKAGES = ("workbench", "workbench_widgets")
FRONT_ENDS = {"anywidget": "anywidget", "@jupyter-widgets/jupyterlab-manager": "jupyterlab_widgets"}


# Core dependencies, without which the workbench does not work; excludes those for JupyterLab, figures and tables.
CORE = frozenset({"anywidget", "jax", "jaxtyping", "lazy-loader", "numpy", "optax", "treescope"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One finding: `absent` means optional and not installed; `broken` means that the command `fix` is needed."""

    name: str
    state: Literal["ok", "absent", "broken"]
    found: str
    fix: str = ""


def report_health(form: Literal["short", "long", "json"] = "short") -> int:
    """Prints the findings and returns 1 if something is broken, else 0."""
    checks = list(examine())
    broken = [check for check in checks if check.state == "broken"]
    if form == "json":
        print(json.dumps({"ok": not broken, "checks": [dataclasses.asdict(check) for check in checks]}, indent=1))
        return 1 if broken else 0
    shown = checks if form == "long" else _short(checks)
    width = max(len(check.name) for check in shown)
    for check in shown:
        print(f"{check.state:6}  {check.name:{width}}  {check.found}")
        if check.fix and (form == "long" or check.state == "broken"):
            print(f"{'':6}  {'':{width}}  → {check.fix}")
    names = ", ".join(check.name for check in broken)
    print(f"\nBroken: {names}." if broken else "\nNothing is broken.")
    if not broken and {"kernel", "course"} <= {check.name for check in checks if check.state == "ok"}:
        print("Next: `workbench lab 01-start-here` opens the first notebook.")
    return 1 if broken else 0


def _short(checks: Sequence[Check]) -> list[Check]:
    """Lists failed checks in full, and all other checks in one line per group."""
    lines: list[Check] = []
    for check in checks:
        group = check.name.partition(" ")[0] if check.name.startswith(("extra ", "library ", "front end ")) else ""
        if check.state == "broken" or not group:
            lines.append(check)
    for group, title in (("library ", "libraries"), ("front end ", "widgets in JupyterLab")):
        members = [check for check in checks if check.name.startswith(group)]
        missing = [check.name.removeprefix(group) for check in members if check.state == "absent"]
        good = [check for check in members if check.state == "ok"]
        if good or missing:
            finding = f"{len(good)} of {len(members)}" + (f"; not installed: {', '.join(missing)}" if missing else "")
            lines.append(Check(name=title, state="ok" if good else "absent", found=finding))
    extras = [check for check in checks if check.name.startswith("extra ")]
    if extras:
        here = [check.name.removeprefix("extra ") for check in extras if check.state == "ok"]
        more = [check.name.removeprefix("extra ") for check in extras if check.state == "absent"]
        finding = f"{', '.join(here) or 'none'}; {len(more)} optional ones are not installed (`--verbose` lists them)"
        lines.append(Check(name="extras", state="ok", found=finding))
    return lines


def examine() -> Iterable[Check]:
    """Runs all checks, in the order in which problems should be repaired."""
    yield Check(name="Python", state="ok", found=f"{sys.version.split()[0]} at {sys.prefix}")
    try:
        required, extras = _metadata.read_requirements(), _metadata.read_extras()
    except importlib.metadata.PackageNotFoundError:
        fix = "pip install --no-deps -e .   (in the repository)"
        yield Check(name=_metadata.DISTRIBUTION, state="broken", found="not installed in this Python", fix=fix)
        required, extras = [], {}
    else:
        yield Check(name=_metadata.DISTRIBUTION, state="ok", found=importlib.metadata.version(_metadata.DISTRIBUTION))
    yield from (_guard(f"import {name}", lambda name=name: check_import(name)) for name in PACKAGES)
    yield from filter(None, [check_foreign(), check_folder(Path.cwd())])
    yield _guard("devices", check_devices)
    yield from (check_library(requirement) for requirement in required)
    if _installed_version(Requirement("jupyterlab")) is not None:
        yield _guard("kernel", check_kernel)
        for name, library in FRONT_ENDS.items():
            yield _guard(f"front end {library}", lambda name=name, library=library: check_front_end(name, library))
        yield _guard("front end workbench_widgets", check_labextension)
    yield _guard("course", check_course)
    yield _guard("browser", check_browser)
    yield from (check_extra(name, requirements) for name, requirements in extras.items())


def check_foreign() -> Check | None:
    """Finds another distribution that installs packages with our names; None if there is none.

    On the package index, `workbench` is another project. The distribution that is installed later overwrites files of
    the earlier one, and uninstalling either one deletes those files.
    """
    owners = importlib.metadata.packages_distributions()
    distributions = sorted(
        {owner for name in PACKAGES for owner in owners.get(name, ()) if owner != _metadata.DISTRIBUTION}
    )
    if not distributions:
        return None
    return Check(
        name="other distribution",
        state="broken",
        found=f"{', '.join(distributions)} also installs files into the package `workbench`",
        fix=f"pip uninstall {' '.join(distributions)} && {REINSTALL}   (in a clone; or use separate environments)",
    )


def check_folder(folder: Path) -> Check | None:
    """Finds modules with our names that a folder's notebooks would import by mistake; None if there are none."""
    modules = [f"{name}.py" for name in PACKAGES if (folder / f"{name}.py").exists()]
    if not modules:
        return None
    return Check(
        name="this folder",
        state="broken",
        found=f"{' and '.join(modules)} in {folder}: notebooks in this folder import from there instead of from the "
        "library",
        fix="rename it",
    )


def check_library(requirement: Requirement) -> Check:
    """Checks that a dependency has a suitable version; only a core dependency can count as broken."""
    name, version = f"library {requirement.name}", _installed_version(requirement)
    fix = f'{pip_command()} install "{requirement}"'
    if version is None:
        state = "broken" if canonicalize_name(requirement.name) in CORE else "absent"
        return Check(name=name, state=state, found="not installed", fix=fix)
    if not requirement.specifier.contains(version, prereleases=True):
        finding = f"{version}, but {requirement.specifier} is needed"
        return Check(name=name, state="broken", found=finding, fix=fix)
    return Check(name=name, state="ok", found=version)


def check_extra(name: str, requirements: list[Requirement]) -> Check:
    """Checks that all packages of an optional extra are installed in suitable versions.

    A missing extra does not count as broken.
    """
    title, fix = f"extra {name}", f'{pip_command()} install "{_metadata.DISTRIBUTION}[{name}]"'
    versions = {requirement: _installed_version(requirement) for requirement in requirements}
    wrong = [f"{r.name} {v} (needs {r.specifier})" for r, v in versions.items() if v and v not in r.specifier]
    missing = [r.name for r, v in versions.items() if v is None]
    if wrong:
        return Check(name=title, state="absent", found="other versions: " + ", ".join(wrong), fix=fix)
    if missing:
        return Check(name=title, state="absent", found="not installed: " + ", ".join(missing), fix=fix)
    return Check(name=title, state="ok", found=", ".join(f"{r.name} {v}" for r, v in versions.items()))


def check_import(name: str) -> Check:
    """Checks that one of our own packages can be imported."""
    module = importlib.import_module(name)
    return Check(name=f"import {name}", state="ok", found=str(Path(module.__file__ or "").parent))


def check_devices() -> Check:
    """Lists JAX's devices in a child process, in case a driver hangs or aborts."""
    fix = "JAX_PLATFORMS=cpu workbench doctor   (if that works, the accelerator's driver or plugin is at fault)"
    try:
        process = subprocess.run(
            [sys.executable, "-c", ASK_FOR_DEVICES], capture_output=True, text=True, timeout=DEVICE_TIMEOUT_SECONDS
        )
    except subprocess.TimeoutExpired:
        finding = f"JAX found no device within {DEVICE_TIMEOUT_SECONDS} seconds"
        return Check(name="devices", state="broken", found=finding, fix=fix)
    if process.returncode != 0:
        lines = process.stderr.strip().splitlines() or [f"JAX exited with status {process.returncode}"]
        return Check(name="devices", state="broken", found=lines[-1], fix=fix)
    platform, kind, count, hosts, *rates = json.loads(process.stdout.strip().splitlines()[-1])
    finding = f"{count} × {platform} ({kind}), {hosts} host{'s' if hosts > 1 else ''}"
    if rates:
        finding += f"; rates measured on {rates[0]}" if rates[0] else "; rates not measured (`workbench calibrate`)"
    if platform == "cpu" and count == 1:
        finding += "; `workbench.simulate_devices(8)` makes more"
    return Check(name="devices", state="ok", found=finding)


def check_kernel() -> Check:
    """Checks that JupyterLab will find a Python kernel."""
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
    """Checks that the browser part of a widget library is where JupyterLab looks for it."""
    from jupyter_core.paths import jupyter_path

    places = [Path(place) / extension for place in jupyter_path("labextensions")]
    folder = next((place for place in places if (place / "package.json").is_file()), None)
    if folder is not None:
        return Check(name=f"front end {library}", state="ok", found=str(folder))
    return Check(
        name=f"front end {library}",
        state="broken",
        found=f"JupyterLab has no extension {extension}: widgets will not show",
        fix=f"pip install --force-reinstall --no-deps {library}",
    )


def check_labextension() -> Check:
    """Checks that JupyterLab will load our extension, in the version that belongs to this package.

    The extension shows saved views in reopened notebooks.
    """
    from jupyter_core.paths import jupyter_path

    name = "front end workbench_widgets"
    fix = f"{REINSTALL}   (in a clone; editable: pip install --no-deps --no-build-isolation -e .)"
    place = next(
        (path for d in jupyter_path("labextensions") if (path := Path(d) / _metadata.DISTRIBUTION).is_dir()), None
    )
    if place is None:
        finding = f"JupyterLab has no extension {_metadata.DISTRIBUTION}: reopened notebooks show no saved views"
        return Check(name=name, state="broken", found=finding, fix=fix)
    spec = importlib.util.find_spec("workbench_widgets")
    package = Path(spec.origin or "").parent if spec is not None else Path()
    pairs = {"lab.js": package / "labextension/static/lab.js", "workbench.js": package / "static/built/workbench.js"}
    differing = [
        file
        for file, source in pairs.items()
        if not (place / "static" / file).is_file() or (place / "static" / file).read_bytes() != source.read_bytes()
    ]
    if differing:
        finding = f"{place}: {' and '.join(differing)} not from this installation"
        return Check(name=name, state="broken", found=finding, fix=fix)
    return Check(name=name, state="ok", found=str(place))


def check_course() -> Check:
    """Checks that `workbench lab` will find the course."""
    folder = _lab.find_course()
    if folder is None:
        fix = f"{REINSTALL}   (in a clone)"
        return Check(name="course", state="absent", found="neither in the package nor next to it", fix=fix)
    finding = f"{len(list(folder.glob('*.ipynb')))} notebooks in {folder}; `workbench lab` opens a copy"
    return Check(name="course", state="ok", found=finding)


def check_browser() -> Check:
    """Names the browser that the tests use; notebooks work in any modern browser."""
    browser = _browser.find_browser()
    if browser is not None:
        return Check(name="browser", state="ok", found=str(browser))
    finding = "no Chromium, Chrome or Edge: browser tests will be skipped"
    return Check(name="browser", state="absent", found=finding, fix=_browser.FIX)


def _guard(name: str, check: Callable[[], Check]) -> Check:
    # Any exception raised by a check becomes a finding, so that `doctor` never crashes.
    try:
        return check()
    except Exception as error:
        text = str(error).strip() or "no message"
        fix = f"{REINSTALL}   (in a clone)"
        return Check(name=name, state="broken", found=f"{type(error).__name__}: {text.splitlines()[0]}", fix=fix)


def _installed_version(requirement: Requirement) -> str | None:
    try:
        return importlib.metadata.version(requirement.name)
    except importlib.metadata.PackageNotFoundError:
        return None
