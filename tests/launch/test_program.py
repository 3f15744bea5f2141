"""Programs as graphs: labels, edges, hosts, and every mistake that is caught before launch."""

import ast
import collections
import dataclasses
import functools
import subprocess
import sys
import threading
from pathlib import Path

import launch_nodes as nodes
import pytest

import workbench.launch as lazy
from workbench.errors import NodeError, ProgramError
from workbench.launch import (
    Program,
    PyClassNode,
    PyNode,
    ReplayNode,
    Restart,
    ServiceNode,
    batched,
    current_node,
    launch,
)
from workbench.launch._nodes import dereference, handles_in
from workbench.records.launch import EdgeRecord


def small_program():
    program = Program("small")
    with program.group("store", resources={"GPU": 1}, restart=Restart(limit=3)):
        store = program.add_node(ServiceNode(nodes.Counter), concurrency=2)
    with program.group("worker"):
        first = program.add_node(PyClassNode(nodes.Adder, store, 1))
        program.add_node(PyNode(nodes.add_once, n=1, counter=[{"deep": (store, store)}]))
    return program, store, first


def test_nodes_are_called_by_group_and_number_and_handles_become_edges():
    program, store, _ = small_program()
    lone = program.add_node(PyNode(nodes.idle))
    graph = program.graph()
    assert [node.label for node in graph.nodes] == ["store/0", "worker/0", "worker/1", "main/0"]
    assert graph.edges == (
        EdgeRecord(source="worker/0", target="store/0"),
        EdgeRecord(source="worker/1", target="store/0"),
    )
    assert (store.label, lone.label) == ("store/0", "main/0")


def test_graph_says_what_a_node_is_offers_and_needs():
    found = small_program()[0].graph().nodes[0]
    assert (found.kind, found.target, found.runs) == ("service", "Counter", False)
    assert {"add", "slow", "pid"} < set(found.methods)
    assert (found.resources, found.restart_limit, found.concurrency) == ({"GPU": 1}, 3, 2)


def test_graph_is_plain_data():
    assert small_program()[0].graph().to_dict()["nodes"][1]["record"] == "NodeRecord"


def test_a_replay_node_answers_many_calls_at_once_unless_asked_otherwise():
    program = Program("tables")
    program.add_node(ReplayNode(4))
    program.add_node(ReplayNode(4), concurrency=3)
    assert [node.concurrency for node in program.graph().nodes] == [256, 3]


def test_colocation_joins_whole_sets_of_nodes():
    program = Program("sets")
    handles = [program.add_node(ServiceNode(nodes.Counter)) for _ in range(5)]
    program.colocate(handles[0], handles[1])
    program.colocate(handles[3], handles[4])
    program.colocate(handles[1], handles[4])
    assert [node.host for node in program.graph().nodes] == [0, 0, 1, 0, 0]


class NoMethods:
    def _private(self): ...


class TakesAName:
    def futures(self): ...


MISTAKES = {
    "a node that is no node": (lambda p: p.add_node(print), "A program consists of nodes: wrap a function in `PyNode`"),
    "a target that cannot be called": (lambda p: PyNode(3), "`PyNode` was given 3 of type int, which cannot be called"),
    "a service that is no class": (lambda p: ServiceNode(nodes.Counter()), "class and its constructor arguments"),
    "a service without methods": (lambda p: ServiceNode(NoMethods), "`NoMethods`, which has no public method"),
    "a service with a client's name": (
        lambda p: ServiceNode(TakesAName),
        r"with the public names `futures`\. These names are reserved for clients",
    ),
    "a class without run": (lambda p: PyClassNode(nodes.Counter), "`Counter`, which has no `run` method"),
    "no concurrency": (lambda p: p.add_node(PyNode(nodes.idle), concurrency=0), "concurrency=0 and hang_seconds=None"),
    "no time to hang": (lambda p: p.add_node(PyNode(nodes.idle), hang_seconds=0), "`hang_seconds` above 0"),
    "a handle without methods": (
        lambda p: p.add_node(PyNode(nodes.add_once, p.add_node(PyNode(nodes.idle)), 1)),
        "handles to 'main/0' in the arguments of 'main/1'. These nodes have no methods",
    ),
    "a handle of another program": (
        lambda p: p.add_node(PyNode(nodes.add_once, small_program()[1], 1)),
        "handles from another program: store/0 of small",
    ),
    "colocation with another program": (lambda p: p.colocate(small_program()[1]), "`Program.colocate` of 'mistakes'"),
    "a label with a slash": (lambda p: p.group("a/b").__enter__(), "was given the label 'a/b'"),
    "an impossible restart": (lambda p: Restart(limit=-1), "limit=-1. `limit` must"),
    "a restart for no cause": (lambda p: Restart(causes=("bored",)), "causes="),
    "an empty batch": (lambda p: batched(max_size=0), "max_size=0 and wait_seconds=0.01"),
    "an empty program": (launch, "which has no nodes"),
    "no node here": (lambda p: current_node(), "outside of a launched node"),
}


@pytest.mark.parametrize(("mistake", "message"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_named_before_launch(mistake, message):
    with pytest.raises(ProgramError, match=message):
        mistake(Program("mistakes"))


def test_groups_do_not_nest():
    program = Program("nested")
    with program.group("outer"), pytest.raises(ProgramError, match="inside group 'outer'"), program.group("inner"):
        pass


def test_nodes_with_different_environments_cannot_share_a_process():
    program = Program("two worlds")
    with program.group("a", environment={"A": "1"}):
        first = program.add_node(ServiceNode(nodes.Counter))
    second = program.add_node(ServiceNode(nodes.Counter))
    with pytest.raises(ProgramError, match="asked to colocate a/0, main/0"):
        program.colocate(first, second)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"on": "docker"}, "on='docker'"), ({"on_failure": "pray"}, "on_failure='pray'")],
    ids=["engine", "on_failure"],
)
def test_launch_names_what_it_does_not_know(options, message):
    with pytest.raises(ProgramError, match=message):
        launch(small_program()[0], **options)


def test_threads_cannot_have_an_environment_of_their_own():
    program = Program("environment")
    with program.group("special", environment={"A": "1"}):
        program.add_node(PyNode(nodes.idle))
    with pytest.raises(ProgramError, match="groups special set environment variables"):
        launch(program)


class TestWhileItRuns:
    @pytest.fixture
    def launched(self):
        program = Program("running")
        self.counter = program.add_node(ServiceNode(nodes.Counter))
        self.idle = program.add_node(PyNode(nodes.idle))
        with launch(program) as launched:
            yield launched

    def test_only_service_nodes_have_clients(self, launched):
        with pytest.raises(ProgramError, match="Only this program's service nodes can be called: main/0"):
            launched.client(self.idle)

    def test_a_client_knows_its_methods(self, launched):
        client = launched.client(self.counter)
        assert "add" in dir(client)
        assert "add" in dir(client.futures)
        with pytest.raises(AttributeError, match=r"'subtract'. The node's public methods are add, attempt"):
            client.subtract(1)

    def test_a_client_cannot_be_sent_elsewhere(self, launched):
        with pytest.raises(NodeError, match="pass the node's handle to the other node's constructor"):
            launched.client(self.counter).__reduce__()

    def test_logs_of_an_unknown_node_name_the_known_ones(self, launched):
        with pytest.raises(ProgramError, match="use one of main/0, main/1"):
            launched.logs("main/7")

    def test_wait_gives_up_after_its_timeout_and_the_program_runs_on(self, launched):
        assert launched.wait(0.05) == {"main/0": None, "main/1": None}
        assert launched.alive

    def test_calls_after_stop_are_turned_away(self, launched):
        client = launched.client(self.counter)
        launched.stop()
        with pytest.raises(NodeError, match=r"could not reach node 'main/0'.*the program has stopped"):
            client.add(1)
        with pytest.raises(NodeError, match="was not sent to node 'main/0'"):
            client.futures.add(1)

    def test_a_running_program_is_drawn_with_its_states(self, launched):
        card = launched._repr_mimebundle_()["text/html"]
        assert "on threads: " in card
        assert "main: 2 × Counter (service)." in card

    def test_a_service_that_calls_itself_keeps_its_slot(self, launched):
        program = Program("mirror")
        mirror = program.add_node(ServiceNode(nodes.Mirror))
        with launch(program) as other:
            client = other.client(mirror)
            assert client.call(client, 3) == 3


def test_calls_wait_for_each_other_unless_more_are_allowed_at_once():
    program = Program("iterations")
    one = program.add_node(ServiceNode(nodes.Meter))
    many = program.add_node(ServiceNode(nodes.Meter), concurrency=4)
    with launch(program) as launched:
        peaks = []
        for handle in (one, many):
            client = launched.client(handle)
            waiting = [client.futures.stay() for _ in range(4)]
            peaks.append(max(future.result(30) for future in waiting))
    assert peaks == [1, 4]


def test_a_batch_with_different_arguments_is_refused():
    program = Program("batches")
    doubler = program.add_node(ServiceNode(nodes.Doubler))
    with launch(program) as launched:
        client = launched.client(doubler)
        answers = [call for _ in range(2) for call in (client.futures.double(1), client.futures.double(xs=2))]
        with pytest.raises(NodeError, match="different arguments in one batch: 0 positional and keywords"):
            answers[0].result(30)


def test_two_hundred_nodes_run_on_threads():
    program = Program("many")
    counter = program.add_node(ServiceNode(nodes.Counter))
    with program.group("adders"):
        for _ in range(199):
            program.add_node(PyClassNode(nodes.Adder, counter, 5))
    with launch(program) as launched:
        codes = launched.wait(60)
        assert launched.client(counter).add(0) == 995
    assert len(codes) == 200
    assert set(codes.values()) == {None, 0}


class SlowToEnd:
    """An engine whose node is still there when it says that it has stopped, as a thread or a process is."""

    name, kills = "slow", True

    def open(self, program, emit):
        self.specs, self.emit, self.over = tuple(program.specs), emit, threading.Event()
        return [self]

    def close(self, reason=None):
        if reason is not None:
            self.emit("main/0", "stopped", None)
            threading.Timer(0.5, self.end).start()

    def end(self):
        self.over.set()
        self.emit("main/0", "gone", None)

    def ended(self):
        return self.over.is_set()

    def start(self, attempt):
        self.emit("main/0", "serving", None)

    def request_stop(self):
        pass

    def snapshot(self, label):
        return {}

    def hung(self):
        return []


def test_stop_returns_as_soon_as_everything_has_ended():
    program = Program("slow")
    program.add_node(ServiceNode(nodes.Counter))
    launched = launch(program, SlowToEnd())
    stopping = threading.Thread(target=launched.stop, args=(600.0,), daemon=True)
    stopping.start()
    stopping.join(60.0)  # of the 600 that it would wait for a node that does not end
    assert not stopping.is_alive()
    assert launched.exit_codes == {"main/0": 0}


def test_what_a_spawned_process_imports_is_small():
    # The root package stays out of this: what it imports is its own choice.
    code = (
        "import sys, types; root = types.ModuleType('workbench'); root.__path__ = [sys.argv[1]]\n"
        "sys.modules['workbench'] = root; import workbench.launch._child\n"
        "heavy = {'jax', 'numpy', 'distributed', 'psutil', 'cloudpickle', 'workbench.render'}\n"
        "sys.exit(str(sorted(heavy & set(sys.modules))))\n"
    )
    folder = sys.modules["workbench"].__path__[0]
    done = subprocess.run([sys.executable, "-c", code, folder], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == "[]"


def test_a_program_is_drawn_as_one_card_per_group():
    shown = small_program()[0]._repr_mimebundle_()["text/html"]
    assert "<img" in shown
    assert "store: 1 × Counter (service). worker: 2 × Adder (run loop), calls store." in shown


def test_names_of_the_package_are_those_of_its_stub():
    tree = ast.parse(Path(lazy.__file__).with_suffix(".pyi").read_text())
    named = {alias.asname for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert set(lazy.__all__) == named
    assert all(getattr(lazy, name).__name__ for name in named)
    with pytest.raises(AttributeError, match="docker"):
        lazy.docker  # noqa: B018


class Ring:
    """Holds itself, and a handle; no dataclass."""


@dataclasses.dataclass
class Linked:
    """A dataclass that may hold itself."""

    value: object
    next: object = None


def test_handles_are_found_in_every_container_and_replaced_without_changing_it():
    _, store, _ = small_program()
    held = collections.OrderedDict(a=1, b=store)
    links = Linked(store)
    links.next = links
    values = [held, {store}, frozenset({store}), functools.partial(print, store, end=store), [links]]
    for value in values[:4]:
        assert set(handles_in(value)) == {store}
        changed = dereference(value, lambda handle: f"client of {handle.label}")
        assert "client of store/0" in str(changed)
        assert type(changed) is type(value)
    assert list(handles_in(values[4])) == [store]
    assert dereference(held, str)["a"] == 1
    assert held["b"] is store
    plain = Linked(1)
    assert dereference(plain, str) is plain
    assert list(handles_in((Ring, Linked, Ring()))) == []
