"""Multi-host JAX, which runs one program on the devices of several processes from a notebook."""

from workbench.distributed._data import from_local_clients as from_local_clients
from workbench.distributed._hosts import Hosts as Hosts, join as join, start_hosts as start_hosts
from workbench.distributed._synchronize import synchronized as synchronized, wait_for as wait_for
