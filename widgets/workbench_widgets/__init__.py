"""Live views of records for notebooks; each view also has a static picture and a text form."""

from workbench_widgets._base import WorkbenchWidget as WorkbenchWidget, to_html as to_html
from workbench_widgets._devices import DevicesView as DevicesView
from workbench_widgets._explorer import Explorer as Explorer
from workbench_widgets._hlo import HloView as HloView
from workbench_widgets._mesh import MeshView as MeshView
from workbench_widgets._overlay import RunsView as RunsView
from workbench_widgets._player import PlayerView as PlayerView
from workbench_widgets._playground import Playground as Playground
from workbench_widgets._profile import ProfileView as ProfileView
from workbench_widgets._program import ProgramView as ProgramView
from workbench_widgets._run import RunView as RunView
from workbench_widgets._saved import runs_unseen as runs_unseen
from workbench_widgets._sharding import ShardingView as ShardingView
from workbench_widgets._show import PROGRAM_VIEWS as PROGRAM_VIEWS, show_record as show_record, views_of as views_of
from workbench_widgets._timeline import TimelineView as TimelineView
