"""Plans on Flower: its simulation and deployment runtimes, exports as Flower apps, and clients from Flower projects."""

from workbench.engines.flower._client_app import (
    client_app as client_app,
    from_arrays as from_arrays,
    to_arrays as to_arrays,
)
from workbench.engines.flower._engine import Flower as Flower
from workbench.engines.flower._from_flower import from_flower as from_flower
