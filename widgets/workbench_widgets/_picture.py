"""A simulated round as a picture, without selection."""

from workbench import render
from workbench.records.live import TimelineRecord
from workbench_widgets._base import WorkbenchWidget
from workbench_widgets.states import PictureState

_NARROW = 560


def picture_state(record: TimelineRecord) -> PictureState:
    """Two pictures: one for wide pages, and one for narrow pages, where the wide picture would be unreadable."""
    drawn = [str(render.svg(record)), str(render.svg(record, width=_NARROW))]
    return {"drawn": drawn, "sentence": render.describe(record)}


class PictureView(WorkbenchWidget):
    """A simulated round, drawn as a Gantt chart in the page's colours.

    Args:
        record: The round.
    """

    view_name = "picture"

    def __init__(self, record: TimelineRecord, **values: object) -> None:
        self.record = self._subject = record
        data = picture_state(record)
        super().__init__(data=data, label=data["sentence"], **values)
