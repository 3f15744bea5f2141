"""A summary of the course on one page."""

from pathlib import Path

SHEET = {
    "Programs": [
        "@wb.program(clients=64)            server -> clients -> server",
        "wb.broadcast(x)                    one copy for each client",
        "wb.map_fn(f, (a, b))               f of ONE client, at every client",
        "wb.reduce_sum / mean / max / min   clients -> server",
        "wb.reduce_weighted_mean(x, w)      by number of examples",
        "wb.reduce_by_key(x, keys, n)       MapReduce's shuffle",
        "transpose: broadcast <-> reduce_sum",
    ],
    "Look": [
        "t = wb.trace(fn)(*args); t.plan    stages, what is disclosed",
        "wb.inspect(fn)(*args)              collectives, memory, FLOPs",
        "wb.why(fn)(*args)                  why each collective is there",
        "wb.show / wb.explore               click, step",
        'wb.inspect(fn, on="v5e:4x4")       ahead of time for a TPU',
    ],
    "Shardings (mesh clients=4, model=2)": [
        'P("clients", None)                 rows in 4, columns whole',
        'P(None, "model")                   columns in 2',
        'P(("clients", "model"))            rows in 8',
        "x @ up @ down: columns, then rows -> one all-reduce",
    ],
    "Costs (n devices, S bytes, latency a, bandwidth B, m microbatches on p stages)": [
        "ring all-reduce     2 (n-1) a + 2 S (n-1)/n / B",
        "tree                2 log2 n (a + S / B)",
        "all-gather          (n-1) a + S (n-1)/n / B   (S: the result)",
        "bubble              (p-1) / (m+p-1)",
        "ridge               peak FLOP/s / bandwidth",
        "AdamW in float32    16 bytes per parameter",
    ],
    "Federated learning": [
        "FedAvg     K local steps, weighted mean of updates",
        "FedOpt     the mean update is a pseudo-gradient",
        "FedProx    + mu/2 |w - w_server|^2 at the client",
        "SCAFFOLD   y <- y - r (g - c_i + c)",
        "DiLoCo     H AdamW steps, outer Nesterov 0.7 / 0.9",
        "DP mean    clip to C, noise z C in the sum: z C / n in the mean",
    ],
}


def write_cheatsheet(path: Path) -> Path:
    """Writes one A4 page with the course's primitives, views, shardings, costs and algorithms.

    Args:
        path: The PDF file.

    Returns:
        The path.

    Example:
        >>> import tempfile
        >>> write_cheatsheet(Path(tempfile.mkdtemp()) / "sheet.pdf").name
        'sheet.pdf'
    """
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    path.parent.mkdir(parents=True, exist_ok=True)
    figure = plt.figure(figsize=(8.27, 11.69))
    figure.text(0.06, 0.955, "Workbench: the course on one page", fontsize=16, weight="bold")
    height = 0.925
    for title, lines in SHEET.items():
        figure.text(0.06, height, title, fontsize=11.5, weight="bold", color="#0072B2")
        for line in lines:
            height -= 0.0215
            figure.text(0.07, height, line, fontsize=9, family="monospace")
        height -= 0.037
    figure.text(0.06, 0.03, "Every exercise: wb.course.check(number, answer)", fontsize=9)
    figure.savefig(path, format="pdf", metadata={"CreationDate": None, "Title": "Workbench cheat sheet"})
    plt.close(figure)
    return path
