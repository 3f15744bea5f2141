"""Sections of the demo report, made from records, with headings, sentences, pictures and tables."""

import collections
import io
from collections.abc import Sequence

from workbench import render
from workbench.cli._training import accuracies_of
from workbench.records.compiled import ProgramRecord
from workbench.records.live import RoundRecord
from workbench.records.program import ClientDataRecord
from workbench.render.report import ReportCode, ReportImage, ReportSection, ReportText, ReportView
from workbench.render.units import axes_text, seconds_text, share_text


def data_section(record: ClientDataRecord) -> ReportSection:
    """Lists every client's data."""
    examples = record.examples
    skew = "" if record.mean_total_variation is None else f" (mean total variation {record.mean_total_variation:.2f})"
    text = (
        f"{sum(examples):,} real handwritten digits are stored at {len(examples)} clients, {min(examples)} to "
        f"{max(examples)} each. No client has a representative sample: the labels follow a Dirichlet "
        f"distribution{skew}."
    )
    caption = "Number of examples of each client; each colour is one digit."
    return ReportSection(
        heading="The data stay with their clients",
        pieces=(ReportText(text=text), _image(caption, record)),
    )


def training_section(history: Sequence[RoundRecord], seconds: float) -> ReportSection:
    """Shows the losses and accuracies of the rounds."""
    accuracies = accuracies_of(history)
    good = next((n + 1 for n, accuracy in enumerate(accuracies) if accuracy >= 0.9), None)
    reached = f" The accuracy reached 90 % in round {good}." if good else ""
    text = (
        f"After {len(accuracies)} rounds the network classifies {share_text(accuracies[-1])} of the held-out digits "
        f"correctly.{reached} Compiling and training took {seconds_text(seconds)} on this machine."
    )
    caption = "Test accuracy after each round, and the clients' loss on their own examples during that round."
    return ReportSection(heading="Training", pieces=(ReportText(text=text), _image(caption, history)))


def round_section(code: str, player: str) -> ReportSection:
    """Shows the user's code, and plays one round step by step."""
    return ReportSection(
        heading="A round",
        pieces=(
            ReportText(text="One function trains one client. Three primitives turn it into a round:"),
            ReportCode(text=code),
            ReportView(
                fragment=player,
                caption="The first round with its real values. Press Play, or step with the arrow keys.",
            ),
        ),
    )


def program_section(record: ProgramRecord, gradient: ProgramRecord, explorer: str) -> ReportSection:
    """Shows the compiled program in the explorer, and counts the stages and collectives of its derivative."""
    text = (
        f"The compiled round has {_size(record)}. Its derivative, through the training of every client, is a program "
        f"of the same primitives: {_size(gradient)}."
    )
    caption = (
        "Click a stage or a client. The tabs show FLOPs, memory and communication by line, the compiled module, the "
        "sharding of every array, and the mesh."
    )
    return ReportSection(
        heading="Inside the program", pieces=(ReportText(text=text), ReportView(fragment=explorer, caption=caption))
    )


def _size(record: ProgramRecord) -> str:
    """Counts the stages and the collectives of a program."""
    kinds = (
        collections.Counter(f"{c.kind} over {axes_text(c.axes)}" for c in record.module.collectives)
        if record.module
        else {}
    )
    listing = " and ".join(f"{count} {kind}" for kind, count in kinds.items())
    return f"{sum(1 for _ in record.plan.walk())} stages and {listing or 'no collective'}"


def next_section(command: str) -> ReportSection:
    """Names the next steps."""
    return ReportSection(
        heading="Next",
        pieces=(
            ReportText(text="Build this program yourself, in a 35-minute notebook:"),
            ReportCode(text=f"{command} lab 01-start-here"),
            ReportText(text="Or look inside your own function, in any notebook:"),
            ReportCode(text="import workbench as wb\n\nwb.show(train_step)(state, batch)"),
        ),
    )


def _image(caption: str, record: object) -> ReportImage:
    files = io.BytesIO(), io.BytesIO()
    for file, dark in zip(files, (False, True), strict=True):
        render.plot(record, dark=dark).savefig(file, format="png")
    return ReportImage(png=files[0].getvalue(), dark=files[1].getvalue(), caption=caption)
