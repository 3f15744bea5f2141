"""The comparison view: several programs side by side, differences first."""

from workbench.records.advice import ComparisonRecord
from workbench.render import GLOSSARY
from workbench.render.units import sources_text
from workbench_widgets._base import WorkbenchWidget
from workbench_widgets._compare_tree import compare_tree_state
from workbench_widgets.states import ComparedRow, CompareState


class CompareView(WorkbenchWidget):
    """Live comparison of several programs: searchable groups of figures, largest changes first.

    Args:
        record: The comparison.
    """

    view_name = "compare"

    def __init__(self, record: ComparisonRecord, **values: object) -> None:
        self.record = self._subject = record
        sentence = f"{len(record.differences)} of {len(record.rows)} figures differ"
        programs = " and ".join(f"{n} on {t}" for n, t in zip(record.names, record.targets, strict=True))
        tree, arrays = compare_tree_state(record.trees)
        rows: list[ComparedRow] = [
            {
                "group": row.group,
                "name": row.name,
                "values": list(row.values),
                "unit": row.unit,
                "status": row.status,
                "place": sources_text(row.lines),
            }
            for row in record.rows
        ]
        state: CompareState = {
            **tree,
            "names": list(record.names),
            "targets": list(record.targets),
            "rows": rows,
            "notes": list(record.notes),
            "sentence": sentence,
        }
        data = {**state, "glossary": GLOSSARY}
        super().__init__(data=data, arrays=arrays, label=f"{programs}: {sentence}", **values)
