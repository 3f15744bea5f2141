"""The server's side of a stage: sends requests, waits with a deadline, and reports failures."""

# pyright: reportMissingImports=false

import time
from collections.abc import Sequence

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from .asks import NAME, Ask, NodeFailure, NodeReply
from .stages import as_plain


def find_nodes(grid: Grid, count: int, timeout_seconds: float) -> list[int]:
    """Asks nodes for their partitions; returns the node ids of partitions 0 to `count - 1`."""
    ended = time.monotonic() + timeout_seconds
    while len(nodes := list(grid.get_node_ids())) < count:
        if time.monotonic() > ended:
            message = f"{len(nodes)} of {count} nodes have connected within {timeout_seconds:g} s"
            raise RuntimeError(message)
        time.sleep(0.2)
    hello = [Ask(slot=slot) for slot in range(len(nodes))]
    replies = ask_nodes(grid, nodes, hello, max(ended - time.monotonic(), 60.0))
    partitions = [int(reply.reported["partition"]) for reply in replies]
    by_partition = dict(zip(partitions, nodes, strict=True))
    if len(by_partition) < len(nodes) or not set(range(count)) <= set(by_partition):
        message = (
            f"the nodes have the partitions {sorted(partitions)}, but {count} nodes need the partitions 0 to "
            f"{count - 1}, one per node: start every SuperNode with its own `partition-id` in --node-config"
        )
        raise RuntimeError(message)
    return [by_partition[i] for i in range(count)]


def ask_nodes(
    grid: Grid,
    nodes: Sequence[int],
    asks: Sequence[Ask],
    timeout_seconds: float,
    *,
    enough: tuple[int, float | None] | None = None,
    late: dict[int, str] | None = None,
) -> list[NodeReply]:
    """Sends each request to the node in its slot; returns replies in request order.

    `enough` is a pair: the number of replies that suffice, and the seconds to wait for more replies (None: stop as
    soon as enough replies are there). Failed and late nodes then reply with an "error" and no values, unless a worker
    exited. `late` maps slots to unanswered messages of earlier calls. Nodes in these slots
    receive no request.
    """
    late = {} if late is None else late
    for reply in grid.pull_messages(late.values()) if late else ():
        late.pop(next(slot for slot, number in late.items() if number == reply.metadata.reply_to_message_id))
    messages = {
        ask.slot: Message(content, dst_node_id=nodes[ask.slot], message_type=f"query.{NAME}")
        for ask, content in zip(asks, as_contents(asks), strict=True)
        if ask.slot not in late
    }
    waiting, reply_of = set(grid.push_messages(messages.values())), {}
    started, need = time.monotonic(), len(asks) if enough is None else enough[0]
    while waiting and (passed := time.monotonic() - started) < timeout_seconds:
        for reply in grid.pull_messages(waiting):
            reply_of[reply.metadata.reply_to_message_id] = reply
        waiting -= reply_of.keys()
        good = sum(not _error(reply)[0] for reply in reply_of.values())
        if enough is not None and good >= need and passed >= (enough[1] or 0.0):
            break
        time.sleep(0.02 if waiting else 0.0)
    answers, passed = [], time.monotonic() - started
    for ask in asks:
        message = messages.get(ask.slot)
        reply = None if message is None else reply_of.get(message.metadata.message_id)
        error, lost = f"did not answer within {passed:.3g} s", enough is None
        if message is None:
            error = "is still computing an earlier round"
        elif reply is not None:
            error, lost = _error(reply)
        elif enough is not None:
            late[ask.slot] = message.metadata.message_id
        if error and (enough is None or lost):
            raise NodeFailure(ask.slot, error, worker_lost=lost)
        answers.append(NodeReply([], {"error": error}) if error or reply is None else _reply(reply))
    return answers


def _error(reply: Message) -> tuple[str, bool]:
    """Returns a reply's error, and whether the worker exited."""
    if not reply.has_error():
        return str(reply.content["reported"]["error"]), False
    reason = str(reply.error.reason or reply.error.code)
    return f"Flower says: {reason}", "Actor" in reason


def as_contents(asks: Sequence[Ask]) -> list[RecordDict]:
    """Converts requests to Flower messages; values that all nodes receive are encoded once."""
    ready: dict[int, Array] = {}
    return [_as_content(ask, ready) for ask in asks]


def _as_content(ask: Ask, ready: dict[int, Array]) -> RecordDict:
    record = {name: value for name, value in vars(ask).items() if name != "sent"}
    for x in ask.sent:
        if id(x) not in ready:
            ready[id(x)] = Array(as_plain(x))
    arrays = ArrayRecord({str(i): ready[id(x)] for i, x in enumerate(ask.sent)})
    return RecordDict({"ask": ConfigRecord(record), "sent": arrays})


def _reply(message: Message) -> NodeReply:
    values = message.content["values"]
    return NodeReply([values[str(i)].numpy() for i in range(len(values))], dict(message.content["reported"]))
