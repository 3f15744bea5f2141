"""A launched program that does what a test tells it, without threads or processes."""

from workbench.records.launch import EdgeRecord, LaunchedRecord, NodeRecord, NodeStateRecord, ProgramGraphRecord


def graph() -> ProgramGraphRecord:
    """Two workers, which share a process, call a store."""
    store = NodeRecord(label="store/0", group="store", kind="service", target="Store", methods=("get", "put"))
    workers = [NodeRecord(label=f"workers/{i}", group="workers", kind="class", target="Work", host=1) for i in (0, 1)]
    edges = tuple(EdgeRecord(source=each.label, target="store/0") for each in workers)
    return ProgramGraphRecord(name="p", nodes=(store, *workers), edges=edges)


def node_state(label: str, **fields: object) -> NodeStateRecord:
    """A node at work."""
    known = {
        "state": "serving" if label == "store/0" else "running",
        "where": "process 7",
        "heartbeat_age_seconds": 0.2,
        "uptime_seconds": 3.0,
        "calls_per_second": 12.0,
        "queue_length": 3,
        "cpu_cores": 0.5,
        "log_tail": ("first", "last"),
    }
    return NodeStateRecord(label=label, **(known | fields))  # pyright: ignore[reportArgumentType]


class FakeLaunched:
    """A launched program whose state is given."""

    def __init__(self, *, error: str | None = None, log: tuple[str, ...] = ("line 0", "line 1", "line 2")) -> None:
        self.alive, self.status = True, "running"
        self.calls, self.broken = 0, False
        self.reported: list[str] = []
        self._error, self._log = error, log

    @property
    def record(self) -> LaunchedRecord:
        if self.broken:
            message = "the engine lost its record"
            raise RuntimeError(message)
        failed = {"state": "raised", "error": self._error, "exit_code": 1} if self._error else {}
        states = (
            node_state("store/0", calls=self.calls, **failed),
            node_state("workers/0"),
            node_state("workers/1", state="finished", exit_code=0),
        )
        return LaunchedRecord(
            graph=graph(),
            engine="processes",
            status=self.status,  # pyright: ignore[reportArgumentType]
            elapsed_seconds=3.0,
            states=states,
        )

    def logs(self, node: str) -> tuple[str, ...]:
        del node
        return self._log

    def stop(self) -> None:
        self.reported.append("stop")
        self.alive, self.status = False, "stopped"
