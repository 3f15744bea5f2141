"""Plans as coarse-grained Apache Spark jobs."""

from workbench.engines.spark._engine import Spark as Spark, table_of_examples as table_of_examples
