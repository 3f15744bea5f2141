"""A simulated round as a picture, without selection."""

from workbench import render
from workbench.records.live import TimelineRecord
from workbench.render import Markup
from workbench_widgets._base import WorkbenchWidget

_NARROW = 560


def for_both_widths(record: TimelineRecord) -> list[str]:
    """Two pictures: one for wide pages, and one for narrow pages, where the wide picture would be unreadable."""
    return [str(render.svg(record)), str(render.svg(record, width=_NARROW))]


class PictureView(WorkbenchWidget):
    """A simulated round, drawn as a Gantt chart in the page's colours.

    Args:
        record: The round.
    """

    view_name = "picture"

    def __init__(self, record: TimelineRecord, **values: object) -> None:
        self.record = self._subject = record
        drawn, sentence = for_both_widths(record), render.describe(record)
        self._picture = Markup(drawn[0])
        super().__init__(data={"drawn": drawn, "sentence": sentence}, label=sentence, **values)

    def static_picture(self) -> Markup:
        return self._picture
