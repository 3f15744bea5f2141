"""Plans as Apache Beam pipelines."""

from workbench.engines.beam._clients import count_examples as count_examples
from workbench.engines.beam._engine import Beam as Beam
