"""A record that has a picture and a text, and nothing to choose in it."""

from collections.abc import Callable

from workbench.records.live import TimelineRecord
from workbench.records.run import RunRecord
from workbench.render import (
    Markup,
    describe_run,
    describe_timeline,
    render_gantt_svg,
    render_run_svg,
    render_text,
)
from workbench_widgets._base import WorkbenchWidget

_NARROW = 560


def for_both_widths(render: Callable[..., Markup], record: object) -> list[str]:
    """A picture for wide and one for narrow pages, where a wide one would shrink until its words cannot be read."""
    return [str(render(record)), str(render(record, width=_NARROW))]


class PictureView(WorkbenchWidget):
    """A measured run or a simulated round as a time line, in the colours of the page.

    Args:
        record: The run or the round.
    """

    view_name = "picture"

    def __init__(self, record: RunRecord | TimelineRecord, **values: object) -> None:
        self.record = record
        if isinstance(record, RunRecord):
            drawn, sentence = for_both_widths(render_run_svg, record), describe_run(record)
        else:
            drawn, sentence = for_both_widths(render_gantt_svg, record), describe_timeline(record)
        self._picture = Markup(drawn[0])
        super().__init__(data={"drawn": drawn, "sentence": sentence}, label=sentence, **values)

    def static_svg(self) -> Markup:
        """The time line."""
        return self._picture

    def text(self) -> str:
        """The time line in words."""
        return render_text(self.record) if isinstance(self.record, RunRecord) else self.label
