"""Plans as Apache Beam pipelines."""

from workbench.engines.beam._engine import Beam as Beam
