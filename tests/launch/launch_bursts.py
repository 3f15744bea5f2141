"""What holds on every engine that sends calls ahead."""

import tempfile

import launch_nodes as nodes

from workbench.launch import Program, Restart, ServiceNode, launch


def check_that_a_lost_service_takes_few_calls_with_it(engine, lose, seconds):
    program = Program("burst")
    counter = program.add_node(ServiceNode(nodes.Counter), restart=Restart(limit=1))
    with launch(program, engine, on_failure="continue") as launched, tempfile.TemporaryDirectory() as folder:
        client = launched.client(counter)
        totals = [client.futures.add(1).result(seconds) for _ in range(50)]
        assert totals[-1] == 50  # fast, so that calls are sent ahead
        pid = client.pid()
        calls = [client.futures.while_there(folder), *(client.futures.add(1) for _ in range(200))]
        assert nodes.eventually(lambda: launched.state()[0].queue_length > 100, seconds)
        assert nodes.eventually(lambda: launched.state()[0].active_calls == 1, seconds)  # it will be lost
        lose(pid)
        lost = [call for call in calls if call.exception(seconds) is not None]
        assert 1 <= len(lost) <= 66, len(
            lost
        )  # one that was worked on, 64 ahead, and one that was sent to where nobody was left
        assert all("may have taken effect" in str(call.exception()) for call in lost)
        answered = [call.result() for call in calls if call not in lost]
        assert answered == list(range(1, len(answered) + 1))  # a new object, and none of the others is missing
