"""`workbench demo`: runs the main use case without a browser, and writes one HTML file."""

import inspect
import sys
import time
from collections.abc import Callable
from pathlib import Path

import jax
from tqdm import tqdm

from workbench import api
from workbench.cli import _demo_sections as sections, _training
from workbench.errors import CommandError
from workbench.federated.data import describe
from workbench.inspection import inspect_sharding
from workbench.mesh import make_mesh, simulate_devices
from workbench.records import write_whole
from workbench.render.report import ReportSection, render_report

DEVICES = 8
TITLE = "Federated averaging, looked at"
LEAD = (
    f"A small network learns real handwritten digits that {_training.CLIENTS} clients keep to themselves. Below are "
    "the program, how it is distributed over the devices, and its results. Every number was computed from the program "
    "on this page when the page was made."
)


def write_demo(out: Path, *, rounds: int) -> int:
    """Trains, inspects the program, and writes the report.

    Args:
        out: The HTML file to write.
        rounds: Rounds of federated averaging.

    Returns:
        0, the exit status of the command.

    Raises:
        CommandError: if the file cannot be written.
    """
    require_writable(out)
    mesh = _make_mesh()
    began = time.perf_counter()
    # `disable=None`: in a log file, only the last line is written, without a moving bar.
    with tqdm(total=rounds, desc="training", unit="round", file=sys.stdout, ncols=100, disable=None) as bar:

        def report(number: int, loss: float, accuracy: float) -> None:
            bar.update()
            bar.set_postfix_str(f"loss {loss:.3f}, test accuracy {accuracy:.1%}")

        trained = _training.train(mesh, rounds, report)
    seconds = time.perf_counter() - began
    print(f"trained {rounds} rounds: test accuracy {trained.accuracies[-1]:.1%}; inspecting the program …", flush=True)
    write_whole(out, render_report(TITLE, LEAD, look(mesh, trained, seconds)))
    print(f"wrote {out.resolve().as_uri()}")
    return 0


def require_writable(out: Path) -> None:
    """Checks, before training starts, that the report can be written.

    Raises:
        CommandError: if it cannot be written.
    """
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with out.open("a"):
            pass
    except OSError as error:
        message = (
            f"`workbench demo` was given --out {out}, which cannot be written ({error.strerror}). The report is one "
            "file in a writable folder: name another file with `--out`, for example `--out report.html`."
        )
        raise CommandError(message) from error


def look(mesh: jax.sharding.Mesh, trained: _training.TrainedModel, seconds: float) -> list[ReportSection]:
    """Builds every section of the report from records."""
    arguments = (trained.parameters, trained.data)
    with jax.set_mesh(mesh):
        record = api.inspect(_training.fedavg, examples_per_client=trained.train.counts.tolist())(*arguments)
        gradient = api.inspect(jax.grad(mean_loss))(*arguments)
    reported = [
        sections.data_section(describe(trained.train)),
        sections.program_section(record, code_of(_training.train_locally, _training.fedavg)),
        sections.stages_section(record),
        *([sections.placement_section(record.mesh)] if record.mesh else []),
        sections.sharding_section(inspect_sharding({"parameters": trained.parameters, "data": trained.data})),
        sections.collectives_section(record),
        sections.cost_section(record),
        sections.training_section(trained.losses, trained.accuracies, seconds),
        sections.derivative_section(gradient),
    ]
    return [section for section in reported if section is not None]


def mean_loss(parameters: _training.Parameters, data: dict[str, jax.Array]) -> jax.Array:
    """The clients' mean loss in one round, which is differentiable."""
    return _training.fedavg(parameters, data)[1]


def code_of(*functions: Callable) -> str:
    """The source of the functions, without docstrings."""
    texts = []
    for function in functions:
        lines, _ = inspect.getsourcelines(inspect.unwrap(function))
        text, docstring = "".join(lines), inspect.unwrap(function).__doc__ or ""
        texts.append(text.replace(f'    """{docstring}"""\n\n', "").replace(f'    """{docstring}"""\n', ""))
    return "\n".join(texts).rstrip()


def _make_mesh() -> jax.sharding.Mesh:
    simulate_devices(DEVICES)  # only CPU devices are simulated: JAX still prefers an accelerator if there is one
    count = next(n for n in range(min(len(jax.devices()), _training.CLIENTS), 0, -1) if _training.CLIENTS % n == 0)
    return make_mesh(clients=count)
