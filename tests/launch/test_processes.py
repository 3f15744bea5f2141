"""What only processes can do: be killed, keep apart, and leave nothing behind."""

import contextlib
import gc
import linecache
import os
import signal
import subprocess
import sys
import textwrap
import threading

import launch_nodes as nodes
import psutil
import pytest
from faults import living

from workbench.errors import NodeError
from workbench.launch import Program, PyClassNode, PyNode, Restart, ServiceNode, launch

LONG = 120.0  # seconds after which something is broken; nothing here waits so long on purpose


def pids(launched):
    return {int(state.where.split()[1]) for state in launched.state()}


def counter_program(**options):
    program = Program("processes")
    counter = program.add_node(ServiceNode(nodes.Counter), **options)
    return program, counter


def test_each_node_has_its_own_process_and_none_is_left_after_stop():
    program, counter = counter_program()
    other = program.add_node(ServiceNode(nodes.Counter))
    with launch(program, "processes") as launched:
        found = {launched.client(counter).pid(), launched.client(other).pid()}
        assert len(found | {os.getpid()}) == 3
        assert found == pids(launched) == living(found)
    assert living(found) == set()


def test_a_killed_node_is_reported_with_its_signal_and_no_process_is_left():
    program, counter = counter_program()
    program.add_node(PyNode(nodes.idle))
    launched = launch(program, "processes")
    found = {launched.client(counter).pid(), *pids(launched)}
    os.kill(launched.client(counter).pid(), signal.SIGKILL)
    with pytest.raises(NodeError, match=r"'main/0' \(killed\)") as caught:
        launched.wait(LONG)
    assert "was killed by signal 9 (SIGKILL)" in str(caught.value)
    assert launched.exit_codes == {"main/0": -9, "main/1": 0}
    assert living(found) == set()


def test_a_killed_node_is_restarted_and_its_clients_find_it_again():
    program, counter = counter_program(restart=Restart(limit=1))
    with launch(program, "processes") as launched:
        client = launched.client(counter)
        first = psutil.Process(client.pid())  # with the time of its start: numbers are used again
        assert client.add(5) == 5
        launched.kill(counter)
        assert nodes.eventually(lambda: not first.is_running(), LONG)  # a zombie's threads may still hold its sockets
        assert nodes.eventually(lambda: launched.state()[0].restarts == 1, LONG)
        assert nodes.eventually(lambda: launched.state()[0].state == "serving", LONG)
        assert client.add(1) == 1  # a new object
        assert client.attempt() == 1
        assert psutil.Process(client.pid()) != first
        assert launched.state()[0].restarts == 1


def test_a_call_that_kills_its_node_raises_and_says_that_it_may_have_had_an_effect():
    program, counter = counter_program(restart=Restart(limit=1))
    with launch(program, "processes") as launched:
        with pytest.raises(NodeError, match="ended during the call"):
            launched.client(counter).die()
        assert launched.client(counter).add(1) == 1


def test_a_process_that_is_frozen_by_a_signal_is_reported_as_hung_and_killed():
    program = Program("frozen")
    program.add_node(PyNode(nodes.idle), hang_seconds=2.0)
    launched = launch(program, "processes")
    assert nodes.eventually(lambda: launched.state()[0].state == "running")
    (pid,) = pids(launched)
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(NodeError, match=r"'main/0' \(hung\)"):
        launched.wait(LONG)
    assert living({pid}) == set()


def test_a_node_that_ignores_stop_is_killed_after_the_grace():
    program = Program("deaf")
    program.add_node(PyNode(nodes.hang))
    launched = launch(program, "processes")
    assert nodes.eventually(lambda: launched.state()[0].state == "running")
    found = pids(launched)
    launched.stop(grace_seconds=0.1)
    assert living(found) == set()
    assert launched.exit_codes == {"main/0": -9}


def test_colocated_nodes_share_a_process_and_call_each_other_directly():
    program = Program("together")
    with program.group("pair", colocate=True):
        counter = program.add_node(ServiceNode(nodes.Counter))
        program.add_node(PyClassNode(nodes.Adder, counter, 7))
    with program.group("apart"):
        program.add_node(PyClassNode(nodes.Adder, counter, 2))
    assert [node.host for node in program.graph().nodes] == [0, 0, 1]
    with launch(program, "processes") as launched:
        assert launched.wait(LONG) == {"pair/0": None, "pair/1": 0, "apart/0": 0}
        assert launched.client(counter).add(0) == 9
        assert len(pids(launched)) == 2


def test_when_one_colocated_node_fails_its_sibling_ends_with_it_and_the_report_names_the_cause():
    program, counter = counter_program()
    broken = program.add_node(PyNode(nodes.raise_error))
    program.colocate(counter, broken)
    launched = launch(program, "processes")
    with pytest.raises(NodeError, match=r"failed nodes: 'main/1' \(raised\)\."):
        launched.wait(LONG)
    assert not launched.alive


def test_printed_text_is_in_the_log_of_the_process():
    program = Program("prints")
    node = program.add_node(PyNode(nodes.print_and_log, "that"))
    with launch(program, "processes") as launched:
        launched.wait(LONG)
        assert launched.logs(node) == ("printed that", "logged that")


def test_a_group_sets_environment_variables_of_its_processes():
    program = Program("environment")
    with program.group("service"):
        counter = program.add_node(ServiceNode(nodes.Counter))
    with program.group("reader", environment={"WORKBENCH_TEST_NUMBER": "41"}):
        program.add_node(PyNode(nodes.read_environment, counter, "WORKBENCH_TEST_NUMBER"))
    with launch(program, "processes") as launched:
        launched.wait(LONG)
        assert launched.client(counter).add(1) == 42
    assert "WORKBENCH_TEST_NUMBER" not in os.environ


def test_a_target_that_cannot_be_imported_there_is_reported_with_its_traceback():
    program = Program("lost")
    program.add_node(PyNode(nodes.Unloadable()))
    launched = launch(program, "processes")
    with pytest.raises(NodeError, match="cannot be loaded here"):
        launched.wait(LONG)


def test_a_process_reports_processor_and_memory():
    program, counter = counter_program()
    with launch(program, "processes") as launched:
        launched.client(counter).add(1)
        assert nodes.eventually(lambda: launched.state()[0].cpu_cores is not None)
        assert launched.state()[0].memory_bytes > 2**20


SCRIPT = """
    import sys, time

    if __name__ == "__main__":  # the children import this script, but not what only the parent needs
        import launch_nodes as nodes
        from workbench.launch import Program, PyNode, ServiceNode, launch

        program = Program("orphans")
        counter = program.add_node(ServiceNode(nodes.Counter))
        program.add_node(PyNode(nodes.idle))
        program.add_node(PyNode(nodes.hang))
        launched = launch(program, "processes")
        launched.client(counter).add(1)
        while any(state.state == "starting" for state in launched.state()):
            time.sleep(0.02)
        print(*[state.where.split()[1] for state in launched.state()], flush=True)
        if sys.argv[1] == "stay":
            time.sleep(600)
"""


def started_script(folder, *arguments):
    script = folder / "orphans.py"
    script.write_text(textwrap.dedent(SCRIPT))
    paths = os.pathsep.join(path for path in sys.path if path)
    environment = os.environ | {"PYTHONPATH": paths, "TMPDIR": str(folder)}
    process = subprocess.Popen(
        [sys.executable, str(script), *arguments], stdout=subprocess.PIPE, text=True, env=environment
    )
    found = {int(word) for word in process.stdout.readline().split()}
    assert len(found) == 3
    return process, found


@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "terminated"])
def test_when_the_parent_dies_by_a_signal_no_process_and_no_folder_is_left(signal_number, tmp_path_factory):
    folder = tmp_path_factory.mktemp("t")  # short: addresses of sockets have about a hundred characters
    process, found = started_script(folder, "stay")
    assert len(list(folder.glob("wb-*"))) == 1
    shared = shared_memory(found)
    assert living(found) == found
    process.send_signal(signal_number)
    process.wait(LONG)
    process.stdout.close()
    assert nodes.eventually(lambda: not living(found))
    assert nodes.eventually(lambda: {file.name for file in folder.iterdir()} == {"orphans.py"})
    assert nodes.eventually(lambda: not any(os.path.exists(name) for name in shared))  # noqa: PTH110


def shared_memory(pids):
    """The files of shared memory that processes use."""
    names = set()
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            names |= {map.path for map in psutil.Process(pid).memory_maps() if map.path.startswith("/dev/shm/")}
    return names


def test_when_the_parent_ends_without_stop_no_process_is_left_and_nothing_hangs(tmp_path):
    process, found = started_script(tmp_path, "leave")
    assert process.wait(LONG) == 0
    process.stdout.close()
    assert nodes.eventually(lambda: not living(found))


NESTED = """
    import multiprocessing, os, signal, sys, time

    def kernel(pipe):
        import launch_nodes as nodes
        from workbench.launch import Program, ServiceNode, launch

        program = Program("nested")
        counter = program.add_node(ServiceNode(nodes.Counter))
        launched = launch(program, "processes")
        launched.client(counter).add(1)
        pipe.send([int(state.where.split()[1]) for state in launched.state()])
        time.sleep(600)

    if __name__ == "__main__":
        context, found = multiprocessing.get_context("forkserver"), []
        for _ in range(2):  # the first has a temporary folder of its own, the second that of this process
            receive, send = context.Pipe(duplex=False)
            process = context.Process(target=kernel, args=(send,))
            process.start()
            found += receive.recv()
            process.kill()
            process.join()
        print(*found, flush=True)
        time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="nodes are forked from a server on Linux alone")
def test_killed_kernel_that_a_process_started_leaves_the_folder_of_that_process(tmp_path_factory):
    folder = tmp_path_factory.mktemp("n")
    script = folder / "nested.py"
    script.write_text(textwrap.dedent(NESTED))
    paths = os.pathsep.join(path for path in sys.path if path)
    environment = os.environ | {"PYTHONPATH": paths, "TMPDIR": str(folder)}
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        found = {int(word) for word in process.stdout.readline().split()}
        assert len(found) == 2
        assert nodes.eventually(lambda: not living(found))
        assert nodes.eventually(lambda: [file.name[:5] for file in sorted(folder.iterdir())] == ["neste", "pymp-"])
        assert len(list(folder.glob("pymp-*/listener-*"))) == 1
        process.kill()


def dropped_program(engine):
    """Starts services and workers, and returns what must not be there when nobody holds the program any more."""
    program, counter = counter_program()
    program.add_node(PyNode(nodes.idle))
    launched = launch(program, engine)
    launched.client(counter).add(1)
    return launched, counter


def left_of(engine, before):
    if engine == "processes":
        return living({process.pid for process in psutil.Process().children(recursive=True)} - before["processes"])
    return {thread for thread in threading.enumerate() if thread.name.startswith("processes:")} - before["threads"]


@pytest.fixture
def before():
    with launch(counter_program()[0], "processes"):  # the server that forks stays
        pass
    processes = {process.pid for process in psutil.Process().children(recursive=True)}
    return {"processes": processes, "threads": set(threading.enumerate())}


@pytest.mark.parametrize("engine", ["threads", "processes"])
@pytest.mark.parametrize("in_a_cycle", [False, True], ids=["", "in a cycle"])
def test_a_program_that_nobody_holds_is_stopped(engine, in_a_cycle, before, caplog):
    launched, _ = dropped_program(engine)
    assert left_of(engine, before)
    if in_a_cycle:
        launched.itself = launched
    del launched
    gc.collect()
    assert nodes.eventually(lambda: not left_of(engine, before))
    assert "the launched program and its clients are no longer referenced" in caplog.text


@pytest.mark.parametrize("engine", ["threads", "processes"])
def test_a_program_is_not_stopped_while_somebody_holds_a_client_of_it(engine, before):
    launched, counter = dropped_program(engine)
    client = launched.client(counter).within(LONG)
    del launched
    gc.collect()
    assert [client.add(1) for _ in range(3)] == [2, 3, 4]
    del client
    gc.collect()
    assert nodes.eventually(lambda: not left_of(engine, before))


def test_a_call_under_way_is_answered_though_nobody_holds_the_program(before):
    launched, counter = dropped_program("processes")
    future = launched.client(counter).futures.add(1)
    del launched
    gc.collect()
    assert future.result(LONG) == 2
    assert nodes.eventually(lambda: not left_of("processes", before))


def test_a_process_imports_only_what_its_node_needs():
    program, counter = counter_program()
    node = program.add_node(PyNode(nodes.imported_modules, counter))
    with launch(program, "processes") as launched:
        launched.wait(LONG)
        assert launched.logs(node) == ("imported []",)


@pytest.mark.slow
def test_sixteen_processes_start_work_and_end():
    program, counter = counter_program()
    with program.group("adders"):
        for _ in range(15):
            program.add_node(PyClassNode(nodes.Adder, counter, 10))
    with launch(program, "processes") as launched:
        launched.wait(3 * LONG)
        assert launched.client(counter).add(0) == 150
        found = pids(launched)
        assert len(found) == 16
    assert living(found) == set()


def test_a_process_gets_the_whole_workbench_as_soon_as_its_node_asks_for_it():
    program, counter = counter_program()
    node = program.add_node(PyNode(nodes.use_the_workbench, counter))
    with launch(program, "processes") as launched:
        launched.wait(3 * LONG)
        assert launched.logs(node) == ("jax before False, broadcast True, after True",)


def test_a_traceback_from_a_process_shows_the_lines_of_the_notebook(tmp_path):
    cell = tmp_path / "cell.py"  # as a notebook's cell, a file that the other process cannot read
    source = (
        "def fails(x):\n    raise ValueError('in a cell')\n\n"
        "class Divider:\n    def divide(self, x):\n        return 1 / x\n"
    )
    namespace = {"__name__": "__main__"}
    exec(compile(source, str(cell), "exec"), namespace)
    linecache.cache[str(cell)] = (len(source), None, source.splitlines(keepends=True), str(cell))  # as IPython does
    program = Program("cells")
    divider = program.add_node(ServiceNode(namespace["Divider"]))
    program.add_node(PyNode(namespace["fails"], 1))
    with launch(program, "processes", on_failure="continue") as launched:
        with pytest.raises(NodeError, match=r'cell.py", line 2, in fails\n    raise ValueError\(') as caught:
            launched.wait(LONG)
        assert str(caught.value).count("raise ValueError('in a cell')") == 1
        with pytest.raises(ZeroDivisionError) as divided:
            launched.client(divider).divide(0)
        assert 'cell.py", line 6, in divide\n    return 1 / x' in str(divided.value.__cause__)
