"""Live views of records for notebooks; every one also has a static picture and a text."""

from widgets._base import WorkbenchWidget as WorkbenchWidget
from widgets._clients import ClientsView as ClientsView
from widgets._cost import CostView as CostView
from widgets._devices import DevicesView as DevicesView
from widgets._explorer import Explorer as Explorer
from widgets._export import to_html as to_html
from widgets._hlo import HloView as HloView
from widgets._launch import LaunchView as LaunchView
from widgets._mesh import MeshView as MeshView
from widgets._picture import PictureView as PictureView
from widgets._playground import Playground as Playground
from widgets._program import ProgramView as ProgramView
from widgets._propagation import PropagationView as PropagationView
from widgets._run import RunView as RunView
from widgets._sharding import ShardingView as ShardingView
from widgets._show import show_record as show_record
