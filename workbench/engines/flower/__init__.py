"""Plans on Flower: its simulation and deployment runtimes, and export as a Flower app."""

from workbench.engines.flower._engine import Flower as Flower
