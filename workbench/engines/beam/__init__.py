"""Plans as Apache Beam pipelines."""

from workbench.engines.beam._engine import Beam as Beam
from workbench.engines.beam._tables import count_examples as count_examples
