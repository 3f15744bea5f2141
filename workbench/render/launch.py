"""Texts about a program of nodes, before launch and while the program runs."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from workbench.records.launch import LaunchedRecord, NodeRecord, NodeStateRecord, ProgramGraphRecord
from workbench.render.units import bytes_text, count_text, counted_text, number, seconds_text

STATE_HUES = {
    "waiting": "muted", "starting": "muted", "running": "good", "serving": "good", "finished": "accent",
    "stopped": "muted", "restarting": "reduce", "raised": "bad", "killed": "bad", "hung": "bad",
}  # fmt: skip
STATE_SIGNS = {
    "waiting": "○", "starting": "◌", "running": "▶", "serving": "●", "finished": "✓",
    "stopped": "■", "restarting": "↻", "raised": "✗", "killed": "✗", "hung": "✗",
}  # fmt: skip
NODE_KINDS = {"function": "function", "class": "run loop", "service": "service"}
_FAILED = ("raised", "killed", "hung")
_SHOWN = 8  # maximum number of nodes listed per group; failed nodes are always listed


def groups_of(graph: ProgramGraphRecord) -> dict[str, tuple[NodeRecord, ...]]:
    """The nodes by group, in the order in which they were added."""
    groups: dict[str, list[NodeRecord]] = {}
    for node in graph.nodes:
        groups.setdefault(node.group, []).append(node)
    return {label: tuple(nodes) for label, nodes in groups.items()}


def calls_between(graph: ProgramGraphRecord) -> Counter[tuple[str, str]]:
    """Number of edges between groups."""
    group_of = {node.label: node.group for node in graph.nodes}
    edges = (edge for edge in graph.edges if edge.source in group_of and edge.target in group_of)
    return Counter((group_of[edge.source], group_of[edge.target]) for edge in edges)


def describe_graph(graph: ProgramGraphRecord) -> str:
    """Describes the graph with one sentence per group, for screen readers and plain text.

    Example:
        >>> describe_graph(ProgramGraphRecord(name="p", nodes=()))
        'Program p: no nodes.'
    """
    if not graph.nodes:
        return f"Program {graph.name}: no nodes."
    sentences = (_group_sentence(label, nodes, graph) for label, nodes in groups_of(graph).items())
    return f"Program {graph.name}. {'. '.join(sentences)}."


def describe_launched(record: LaunchedRecord) -> str:
    """Describes a launched program in one sentence.

    Example:
        >>> graph = ProgramGraphRecord(name="p", nodes=())
        >>> known = {"graph": graph, "engine": "threads", "status": "running", "elapsed_seconds": 2.0, "states": ()}
        >>> describe_launched(LaunchedRecord(**known))
        'Program p on threads: running for 2 s, 0 nodes.'
    """
    spent = f"{'for' if record.status == 'running' else 'after'} {seconds_text(record.elapsed_seconds)}"
    counted = count_states(record.states)
    nodes = counted_text(len(record.graph.nodes), "node")
    total = f"{nodes}: {counted}" if counted else nodes
    return f"Program {record.graph.name} on {record.engine}: {record.status} {spent}, {total}."


def _node_notes(node: NodeRecord, sharing: bool) -> str:
    """Resources and permissions of a node, in a few words."""
    notes = [f"{name} {number(need)}" for name, need in node.resources.items()]
    notes += [f"{node.concurrency} calls at once"] if node.concurrency > 1 else []
    notes += [f"restarts ≤ {node.restart_limit}"] if node.restart_limit else []
    notes += ["shares its process"] if sharing else []
    return " · ".join(notes)


def count_states(states: Iterable[NodeStateRecord]) -> str:
    """Number of nodes in each state, with the state's symbol; failures come first.

    Example:
        >>> count_states([NodeStateRecord(label="a/0", state="running", where="thread 1")])
        '▶ 1 running'
    """
    counted = Counter(state.state for state in states)
    order = sorted(counted, key=lambda state: (state not in _FAILED, list(STATE_SIGNS).index(state)))
    return " · ".join(f"{STATE_SIGNS[state]} {counted[state]} {state}" for state in order)


def worst_hue(states: Sequence[NodeStateRecord]) -> str:
    """The colour that represents several nodes: the colour of the worst state."""
    order = ("bad", "reduce", "good", "accent", "muted")
    return min((STATE_HUES[state.state] for state in states), key=order.index, default="muted")


def load_text(states: Sequence[NodeStateRecord]) -> str:
    """Calls per second, waiting calls, processors and memory for several nodes; unknown values are omitted.

    Memory of nodes that share a process is counted only once.
    """
    rates = [state.calls_per_second for state in states if state.calls_per_second is not None]
    waiting = sum(state.queue_length for state in states)
    cores = {state.where: state.cpu_cores for state in states if state.cpu_cores is not None}
    memory = {state.where: state.memory_bytes for state in states if state.memory_bytes is not None}
    parts = [f"{_rate_text(sum(rates))} calls/s"] if sum(rates) >= 0.05 else []
    parts += [f"{count_text(waiting)} waiting"] if waiting else []
    parts += [f"{sum(cores.values()):.2g} cores"] if sum(cores.values()) >= 0.01 else []
    parts += [bytes_text(sum(memory.values()))] if memory else []
    return " · ".join(parts)


def _rate_text(rate: float) -> str:
    """A rate with its significant digits."""
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.1f}"


def render_graph_text(graph: ProgramGraphRecord) -> str:
    """A program before launch, with one line per group.

    Example:
        >>> node = NodeRecord(label="main/0", group="main", kind="function", target="train")
        >>> print(render_graph_text(ProgramGraphRecord(name="p", nodes=(node,))))
        Program p: 1 node, not launched.
          main: 1 × train (function)
    """
    lines = [f"Program {graph.name}: {counted_text(len(graph.nodes), 'node')}, not launched."]
    for label, nodes in groups_of(graph).items():
        lines.append(f"  {_group_sentence(label, nodes, graph)}")
        lines += [f"    {words}" for words in group_details(nodes, graph)]
    return "\n".join(lines)


def render_launched_text(record: LaunchedRecord) -> str:
    """A launched program: states per group, then each node; long groups are truncated, but failures are kept."""
    states = {state.label: state for state in record.states}
    lines = [describe_launched(record)]
    for label, nodes in groups_of(record.graph).items():
        group_states = [states[node.label] for node in nodes if node.label in states]
        load = load_text(group_states)
        lines.append(
            f"  {_group_sentence(label, nodes, record.graph)}: "
            f"{count_states(group_states)}{f' · {load}' if load else ''}"
        )
        shown = [state for place, state in enumerate(group_states) if place < _SHOWN or state.state in _FAILED]
        for state in shown:
            lines += [f"    {line}" for line in _node_lines(state)]
        if len(shown) < len(group_states):
            lines.append(f"    … and {count_text(len(group_states) - len(shown))} more")
    return "\n".join(lines)


def group_details(nodes: Sequence[NodeRecord], graph: ProgramGraphRecord) -> list[str]:
    """A group's methods and its nodes' resources, without empty lines."""
    sizes = Counter(node.host for node in graph.nodes)
    methods = dict.fromkeys(name for node in nodes for name in node.methods)
    sharing = any(sizes[node.host] > 1 for node in nodes)
    lines = (", ".join(f".{name}()" for name in methods), _node_notes(nodes[0], sharing))
    return [line for line in lines if line]


def _group_sentence(label: str, nodes: Sequence[NodeRecord], graph: ProgramGraphRecord) -> str:
    called = [target for source, target in calls_between(graph) if source == label]
    subject = f"{label}: {len(nodes)} × {nodes[0].target} ({NODE_KINDS[nodes[0].kind]})"
    return subject + (f", calls {', '.join(called)}" if called else "")


def _node_lines(state: NodeStateRecord) -> list[str]:
    beat = state.heartbeat_age_seconds
    facts = [
        f"{STATE_SIGNS[state.state]} {state.state}",
        state.where,
        "" if beat is None else f"last heartbeat {seconds_text(beat)} ago",
        f"{count_text(state.calls)} calls" if state.calls else "",
        load_text([state]),
        f"{state.call_errors} errors" if state.call_errors else "",
        f"restarted {state.restarts} ×" if state.restarts else "",
        "" if state.exit_code is None else f"exit code {state.exit_code}",
    ]
    lines = [f"{state.label}: {' · '.join(fact for fact in facts if fact)}"]
    if state.error:
        lines += [f"  {line}" for line in state.error.rstrip().splitlines()[-6:]]
    elif state.log_tail:
        lines.append(f"  log: {state.log_tail[-1]}")
    return lines


def state_map(states: Iterable[NodeStateRecord]) -> Mapping[str, NodeStateRecord]:
    """The states, keyed by the label of the node."""
    return {state.label: state for state in states}
