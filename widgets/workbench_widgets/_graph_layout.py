"""Places for the nodes of a large directed graph: layers by depth, each layer ordered by its neighbours' places."""

from collections.abc import Sequence

import numpy as np

SWEEPS = 4
LEAST_DEPTH = 16  # a graph of fewer layers is not cut into columns
LONG = 0.35  # how much higher than wide a column may be, in rows per node


def lay_out_graph(count: int, edges: Sequence[tuple[int, int]]) -> np.ndarray:
    """`[count, 3]`: the column, row and order in its row of every node; ten thousand take about a tenth of a second.

    A graph much deeper than wide is cut into columns side by side. Where edges form a cycle, as they can between
    groups, those that lead back to an earlier node do not count.

    Example:
        >>> lay_out_graph(3, [(0, 1), (1, 2)]).tolist()
        [[0.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 2.0, 0.0]]
    """
    if not count:
        return np.zeros((0, 3))
    successors, predecessors, order = _neighbours(count, edges)
    layer = [0] * count
    for node in order:
        for after in successors[node]:
            layer[after] = max(layer[after], layer[node] + 1)
    for node in reversed(order):
        if not predecessors[node] and successors[node]:  # an input stands just above its first use, not far up
            layer[node] = min(layer[after] for after in successors[node]) - 1
    rows: dict[int, list[int]] = {}
    for node in range(count):
        rows.setdefault(layer[node], []).append(node)
    _sweep(rows, successors, predecessors, count)
    place = np.zeros(count)
    for row in rows.values():
        place[row] = np.arange(len(row))
    return _fold(place, np.array(layer) - min(rows))


def _fold(place: np.ndarray, layer: np.ndarray) -> np.ndarray:
    """Long rows are broken, and a tall stack of rows is cut into columns, so that the graph fills a page."""
    count, depth = len(place), int(layer.max()) + 1
    longest = max(8, round(2 * np.sqrt(count)))
    widths = np.bincount(layer, minlength=depth)
    lines = -(-widths // longest)  # rows that each layer takes
    row = (np.cumsum(lines) - lines)[layer] + place // longest
    height = int(lines.sum())
    wide = min(int(widths.max()), longest)
    columns = max(1, round(np.sqrt(height * LONG / wide))) if height > LEAST_DEPTH else 1
    rows = -(-height // columns)
    return np.column_stack([row // rows, row % rows, place % longest])


def _neighbours(count: int, edges: Sequence[tuple[int, int]]) -> tuple[list[list[int]], list[list[int]], list[int]]:
    """Successors and predecessors along edges that close no cycle, and a topological order."""
    after: list[list[int]] = [[] for _ in range(count)]
    for a, b in edges:
        if a != b:
            after[a].append(b)
    order = _depth_first(after)
    rank = [0] * count
    for position, node in enumerate(order):
        rank[node] = position
    successors: list[list[int]] = [[] for _ in range(count)]
    predecessors: list[list[int]] = [[] for _ in range(count)]
    for a, b in edges:
        if rank[a] < rank[b]:
            successors[a].append(b)
            predecessors[b].append(a)
    return successors, predecessors, order


def _depth_first(after: list[list[int]]) -> list[int]:
    """Reverse post-order: topological where there is no cycle; in a cycle the first node stays first."""
    done: list[int] = []
    state = [0] * len(after)
    for root in range(len(after)):
        if state[root]:
            continue
        state[root] = 1
        stack = [(root, iter(after[root]))]
        while stack:
            node, rest = stack[-1]
            nearest = next((n for n in rest if not state[n]), None)
            if nearest is None:
                done.append(node)
                stack.pop()
            else:
                state[nearest] = 1
                stack.append((nearest, iter(after[nearest])))
    return done[::-1]


def _sweep(rows: dict[int, list[int]], successors: list[list[int]], predecessors: list[list[int]], count: int) -> None:
    """Orders every row by the mean place of what its nodes are connected to, down and up."""
    place = [0.0] * count
    levels = sorted(rows)
    for sweep in range(SWEEPS):
        down = sweep % 2 == 0
        near = predecessors if down else successors
        for level in levels if down else reversed(levels):
            row = rows[level]
            if len(row) == 1:
                continue
            wanted = {n: sum(place[o] for o in near[n]) / len(near[n]) if near[n] else place[n] for n in row}
            row.sort(key=wanted.__getitem__)
            for position, node in enumerate(row):
                place[node] = position - (len(row) - 1) / 2
