"""Statistics of client data for plots."""

import numpy as np

from workbench.federated.data._client_data import ClientData
from workbench.records.program import ClientDataRecord, FieldRecord


def describe(data: ClientData) -> ClientDataRecord:
    """Counts every client's examples and labels, and measures their heterogeneity.

    Label skew is the total variation distance between a client's label shares and the label shares of all examples:
    half the sum of the absolute differences. Label skew is 0 for identical shares, and near 1 if a client has only rare
    classes. Size skew is the standard deviation of the clients' example counts divided by their mean.

    Args:
        data: The clients.

    Returns:
        The record contains label counts and label skew only if `data.label` is the name of a field with class labels. A
        client without examples has distance 0 and is left out of the mean.

    Example:
        >>> data = ClientData(arrays={"a": {"y": np.array([0, 0])}, "b": {"y": np.array([1, 1])}}, label="y")
        >>> record = describe(data)
        >>> record.label_counts, record.mean_total_variation
        (((2, 0), (0, 2)), 0.5)

    References:
        For total variation as label skew, see Hsu et al., arXiv 1909.06335, and Zhao et al., arXiv 1806.00582. Zhao et
        al. use the earth mover's distance between label distributions, which is twice as large.
    """
    counts = data.counts
    labels, classes = _label_counts(data)
    distance, mean, weighted = _heterogeneity(labels, counts)
    return ClientDataRecord(
        name=data.name,
        clients=data.clients,
        examples=tuple(counts.tolist()),
        bytes=tuple(sum(value.nbytes for value in fields.values()) for fields in data.arrays.values()),
        fields=tuple(
            FieldRecord(
                name=field,
                dtype=str(value.dtype),
                shape=value.shape[1:],
                bytes=sum(fields[field].nbytes for fields in data.arrays.values()),
            )
            for field, value in data[0].items()
        ),
        label=data.label if labels is not None else None,
        classes=classes,
        label_counts=() if labels is None else tuple(tuple(row) for row in labels.tolist()),
        total_variation=distance,
        mean_total_variation=mean,
        weighted_total_variation=weighted,
        size_variation=float(counts.std() / counts.mean()) if counts.any() else 0.0,
    )


def _label_counts(data: ClientData) -> tuple[np.ndarray | None, tuple[str, ...]]:
    if data.label is None or data[0][data.label].dtype.kind not in "iubUS" or data[0][data.label].ndim != 1:
        return None, ()
    label_arrays = [fields[data.label] for fields in data.arrays.values()]
    values, index = np.unique(np.concatenate(label_arrays), return_inverse=True)
    if data.classes and values.dtype.kind in "iu" and values.size and 0 <= values[0] <= values[-1] < len(data.classes):
        # Named classes keep their slot even if no client has examples of them.
        index, classes = values[index].astype(np.int64), data.classes
    else:
        classes = tuple(str(value) for value in values)
    owner = np.repeat(np.arange(len(label_arrays)), [len(labels) for labels in label_arrays])
    counts = np.zeros((len(label_arrays), len(classes)), np.int64)
    np.add.at(counts, (owner, index), 1)
    return counts, classes


def _heterogeneity(
    labels: np.ndarray | None, counts: np.ndarray
) -> tuple[tuple[float, ...], float | None, float | None]:
    if labels is None or not labels.any():
        return (), None, None
    everywhere = labels.sum(axis=0) / labels.sum()
    share = labels / np.maximum(counts, 1)[:, None]
    distance = np.where(counts > 0, np.abs(share - everywhere).sum(axis=1) / 2, 0.0)
    mean = float(distance[counts > 0].mean())
    return tuple(distance.tolist()), mean, float((distance * counts).sum() / counts.sum())
