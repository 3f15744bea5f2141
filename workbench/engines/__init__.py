"""Engines that run a plan: client by client, on executors, Beam, Spark, or a mesh."""

from workbench.engines._artifact import pack as pack, read_header as read_header, unpack_apart as unpack_apart
from workbench.engines._client_files import ArrayReader as ArrayReader, ParquetReader as ParquetReader
from workbench.engines._clients import ClientReader as ClientReader
from workbench.engines._drjax import from_drjax as from_drjax
from workbench.engines._engine import Engine as Engine
from workbench.engines._executor import Executor as Executor
from workbench.engines._federated_language import to_federated_language as to_federated_language
from workbench.engines._mesh import MeshEngine as MeshEngine
from workbench.engines._play import play as play
from workbench.engines._ray import Ray as Ray
from workbench.engines._sequential import Sequential as Sequential
from workbench.engines._tables import clients_from as clients_from
from workbench.engines._tap import tap as tap
from workbench.engines.beam import Beam as Beam
from workbench.engines.flower import Flower as Flower, from_flower as from_flower
from workbench.engines.spark import Spark as Spark
