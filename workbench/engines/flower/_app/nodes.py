"""The server's side of a stage: asks every node, waits no longer than it may, and says which one failed how."""

# pyright: reportMissingImports=false

import time
from collections.abc import Sequence

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from .asks import Ask, NodeFailure, NodeReply
from .stages import as_plain


def find_nodes(grid: Grid, count: int, timeout_seconds: float) -> list[int]:
    """The ids of the nodes with partitions 0 to `count - 1`, in this order; each is asked which one it has.

    Raises:
        RuntimeError: if fewer come in time, or if two have the same partition.
    """
    ended = time.monotonic() + timeout_seconds
    while len(found := list(grid.get_node_ids())) < count:
        if time.monotonic() > ended:
            message = f"{len(found)} of {count} nodes have come within {timeout_seconds:g} s"
            raise RuntimeError(message)
        time.sleep(0.2)
    hello = [Ask() for _ in found]
    replies = ask_nodes(grid, found, hello, max(ended - time.monotonic(), 60.0))
    partitions = [int(reply.reported["partition"]) for reply in replies]
    by_partition = dict(zip(partitions, found, strict=True))
    if len(by_partition) < len(found) or not set(range(count)) <= set(by_partition):
        message = (
            f"the nodes have the partitions {sorted(partitions)}, and {count} nodes need the partitions 0 to "
            f"{count - 1}, one each: start every SuperNode with its own `partition-id` in --node-config"
        )
        raise RuntimeError(message)
    return [by_partition[i] for i in range(count)]


def ask_nodes(grid: Grid, nodes: Sequence[int], asks: Sequence[Ask], timeout_seconds: float) -> list[NodeReply]:
    """Asks the first nodes, one for each ask; replies in their order.

    Raises:
        NodeFailure: naming the first node that raised, left, or did not answer in time.
    """
    contents = zip(nodes, as_contents(asks), strict=False)
    messages = [Message(content, dst_node_id=node, message_type="query") for node, content in contents]
    replies = list(grid.send_and_receive(messages, timeout=timeout_seconds))
    found = {reply.metadata.reply_to_message_id: reply for reply in replies}
    answers = []
    for slot, message in enumerate(messages):
        reply = found.get(message.metadata.message_id)
        if reply is None:
            raise NodeFailure(slot, f"did not answer within {timeout_seconds:g} s", worker_lost=True)
        if reply.has_error():
            reason = str(reply.error.reason or reply.error.code)
            raise NodeFailure(slot, f"Flower says: {reason}", worker_lost="Actor" in reason)
        if error := reply.content["reported"]["error"]:
            raise NodeFailure(slot, str(error))
        answers.append(_reply(reply))
    return answers


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
