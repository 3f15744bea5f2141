"""`workbench demo`: runs the main use case without a browser, and writes one HTML file."""

import ast
import inspect
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

import jax

from workbench import api
from workbench.cli import _demo_sections as sections, _training
from workbench.errors import CommandError
from workbench.federated.data import describe
from workbench.mesh import make_mesh, simulate_devices
from workbench.records import write_whole
from workbench.render.report import ReportSection, render_report
from workbench.render.units import share_text

DEVICES = 8
TITLE = f"{_training.CLIENTS} clients train one network"


def write_demo(out: Path, *, rounds: int) -> int:
    """Trains, inspects the program, and writes the report."""
    require_writable(out)
    mesh = _make_mesh()
    began = time.perf_counter()
    trained = _training.train(mesh, rounds, progress=sys.stderr.isatty())
    seconds = time.perf_counter() - began
    accuracy = share_text(_training.accuracies_of(trained.history)[-1])
    print(f"trained {rounds} rounds: test accuracy {accuracy}; inspecting the program …", flush=True)
    write_whole(out, render_report(TITLE, lead_of(trained), look(mesh, trained, seconds)))
    print(f"wrote {out.resolve().as_uri()}")
    print("Open it in a browser: play the round, and click through the program.")
    print(f"Next: `{command()} lab 01-start-here` opens the notebook that builds this program.")
    return 0


def lead_of(trained: _training.TrainedModel) -> str:
    """The opening sentences: what was trained, on what data, with what result."""
    counts, accuracies = trained.train.counts, _training.accuracies_of(trained.history)
    return (
        f"Each of {len(counts)} clients keeps its own {min(counts)} to {max(counts)} handwritten digits. After "
        f"{len(accuracies)} rounds of federated averaging, their shared network classifies "
        f"{share_text(accuracies[-1])} of new digits correctly."
    )


def command() -> str:
    """The command `workbench`, with its folder if the shell would not find it."""
    program = Path(sys.executable).parent / "workbench"
    if shutil.which("workbench") == str(program) or not program.exists():
        return "workbench"
    return str(program.relative_to(Path.cwd()) if program.is_relative_to(Path.cwd()) else program)


def require_writable(out: Path) -> None:
    """Checks, before training starts, that the report can be written."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with out.open("a"):
            pass
    except OSError as error:
        message = (
            f"`workbench demo` was given --out {out}, which cannot be written ({error.strerror}). The report is one "
            "file in a writable folder: choose another file with `--out`, for example `--out report.html`."
        )
        raise CommandError(message) from error


def look(mesh: jax.sharding.Mesh, trained: _training.TrainedModel, seconds: float) -> list[ReportSection]:
    """Builds every section of the report from records."""
    with jax.set_mesh(mesh):
        traced = api.trace(_training.fedavg)(trained.start, trained.data)
        player = traced.play()
        record = traced.inspect(examples_per_client=trained.train.counts.tolist())
        gradient = api.inspect(jax.grad(mean_loss))(trained.start, trained.data)
    return [
        sections.training_section(trained.history, seconds),
        sections.data_section(describe(trained.train)),
        sections.round_section(code_of(_training.train_locally, _training.fedavg), player.to_fragment()),
        sections.program_section(record, gradient, api.explore(record).to_fragment()),
        sections.next_section(command()),
    ]


def mean_loss(parameters: _training.Parameters, data: dict[str, jax.Array]) -> jax.Array:
    """The clients' mean loss in one round, as a differentiable function."""
    return _training.fedavg(parameters, data)[1]


def code_of(*functions: Callable) -> str:
    """The source of the functions, without docstrings and types."""
    return "\n".join(
        _without_types("".join(inspect.getsourcelines(inspect.unwrap(fn))[0])) for fn in functions
    ).rstrip()


def _without_types(source: str) -> str:
    lines = source.splitlines(keepends=True)

    def offset(line: int, column: int) -> int:
        return sum(map(len, lines[: line - 1])) + column

    cuts = []  # (start, end) of the text to leave out
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.arg) and (kind := node.annotation) is not None:
            start = offset(node.lineno, node.col_offset) + len(node.arg)
            cuts.append((start, offset(kind.end_lineno or kind.lineno, kind.end_col_offset or 0)))
        if isinstance(node, ast.FunctionDef):
            if (kind := node.returns) is not None:
                end = offset(kind.end_lineno or kind.lineno, kind.end_col_offset or 0)
                cuts.append((source.rindex(" ->", 0, end), end))
            if ast.get_docstring(node) is not None:
                words, following = node.body[0], node.body[1]
                cuts.append((offset(words.lineno, words.col_offset), offset(following.lineno, following.col_offset)))
    for start, end in sorted(cuts, reverse=True):
        source = source[:start] + source[end:]
    return source


def _make_mesh() -> jax.sharding.Mesh:
    simulate_devices(DEVICES)  # only CPU devices are simulated: JAX still prefers an accelerator if there is one
    count = next(n for n in range(min(len(jax.devices()), _training.CLIENTS), 0, -1) if _training.CLIENTS % n == 0)
    return make_mesh(clients=count)
