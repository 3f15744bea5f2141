"""Simulates up to 10⁸ devices: their availability, and the duration and cost of rounds."""

from workbench.federated.population._availability import (
    Always as Always,
    Availability as Availability,
    Sessions as Sessions,
)
from workbench.federated.population._devices import (
    PHONES as PHONES,
    Population as Population,
    RecordedDevices as RecordedDevices,
)
from workbench.federated.population._schedules import Buffered as Buffered, Synchronous as Synchronous
from workbench.federated.population._servers import Servers as Servers
from workbench.federated.population._simulate import Simulation as Simulation, simulate as simulate
from workbench.federated.population._traces import (
    read_devices as read_devices,
    read_fedscale_devices as read_fedscale_devices,
    read_fedscale_sessions as read_fedscale_sessions,
    read_sessions as read_sessions,
)
from workbench.federated.population._train import train as train
from workbench.federated.population._work import work_of as work_of
from workbench.records.run import WorkRecord as WorkRecord
