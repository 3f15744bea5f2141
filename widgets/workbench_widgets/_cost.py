"""The cost view: roofline, time per stage, bytes per mesh axis, memory; targets side by side."""

from collections.abc import Sequence

from workbench.records.compiled import ProgramRecord
from workbench.render import GLOSSARY
from workbench.render.units import bytes_text, seconds_text, work_text
from workbench_widgets._answers import Answers, CompileFor
from workbench_widgets._base import WorkbenchWidget
from workbench_widgets._cost_state import cost_state


class CostView(WorkbenchWidget):
    """Live view of a program's predicted cost; you can select a stage in the roofline or in the bars.

    Args:
        record: The program with its cost.
        others: The same program compiled for other targets, for comparison.
        compile_for: Compiles the program for a target selected in the view.

    Attributes:
        answers: The kernel's answers, such as the programs compiled for other targets.
    """

    view_name = "cost"

    def __init__(
        self,
        record: ProgramRecord,
        others: Sequence[ProgramRecord] = (),
        *,
        compile_for: CompileFor | None = None,
        **values: object,
    ) -> None:
        self.records: tuple[ProgramRecord, ...] = (record, *others)
        self._subject = record.cost
        data = cost_state(record, others, can_compile=compile_for is not None)
        data = {**data, "glossary": GLOSSARY}
        super().__init__(data=data, label=data["sentence"], **values)
        self.answers = Answers(self, record, others, compile_for=compile_for)
        self._answering = (self.answers,)

    def text(self) -> str:
        """One line per stage and target."""
        lines = [self.label + "."]
        for target in self.data["targets"]:
            lines.append(f"{target['target']} ({target['chip']}), predicted:")
            for stage in target["stages"]:
                times = (
                    f", {seconds_text(stage['seconds'])}, bound by {stage['bound']}"
                    if stage["seconds"] is not None
                    else ""
                )
                flops, moved = work_text(stage["flops"], stage["elementwise"]), bytes_text(stage["accessed"])
                lines.append(f"  {stage['stage']}. {stage['name']}: {flops}, {moved} of memory traffic{times}")
        return "\n".join(lines)
