"""Simulates up to 10⁸ devices: their availability, and the duration and cost of rounds."""

from workbench.federated.population._availability import Sessions as Sessions
from workbench.federated.population._devices import PHONES as PHONES, Population as Population
from workbench.federated.population._schedules import Buffered as Buffered, Synchronous as Synchronous
from workbench.federated.population._servers import Servers as Servers
from workbench.federated.population._simulate import simulate as simulate
from workbench.federated.population._traces import (
    read_devices as read_devices,
    read_sessions as read_sessions,
)
from workbench.federated.population._train import train as train
from workbench.federated.population._work import work_of as work_of
