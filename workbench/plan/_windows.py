"""Counts multiplications in a convolution's sliding window."""

import math


def valid_positions(
    size: int,
    window: int,
    out: int,
    *,
    stride: int = 1,
    padding_low: int = 0,
    base_dilation: int = 1,
    dilation: int = 1,
) -> int:
    """Counts the pairs (output position, window tap) that read an input element, for one dimension of a convolution.

    Taps on padding or on the holes of a dilated input are not counted. The count is therefore exact for batched dot
    products that the TPU compiler writes as convolutions.

    Args:
        size: Number of input elements along the dimension.
        window: Number of kernel taps.
        out: Output positions.
        stride: Step of the window.
        padding_low: Padding before the first element; negative values crop.
        base_dilation: Distance between adjacent input elements.
        dilation: Distance between adjacent taps.

    Returns:
        The number of pairs.

    Example:
        >>> valid_positions(5, 3, 5, padding_low=1)  # "same" convolution: 3 taps, except 2 at either end
        13
    """
    if base_dilation == 1 and padding_low == 0 and (out - 1) * stride + (window - 1) * dilation < size:
        return window * out
    last = (size - 1) * base_dilation
    # The taps visit positions in arithmetic progression, so loop over the shorter side and count the other side.
    short, long, short_step, long_step = window, out, dilation, stride
    if out < window:
        short, long, short_step, long_step = out, window, stride, dilation
    return sum(_hits(tap * short_step - padding_low, long_step, long, last, base_dilation) for tap in range(short))


def _hits(first: int, step: int, count: int, last: int, modulus: int) -> int:
    """Counts the multiples of `modulus` in [0, last] among the values `first + i*step`, i < count."""
    start = max(0, -(first // step))
    stop = min(count - 1, (last - first) // step)
    if modulus == 1:
        return max(0, stop - start + 1)
    common = math.gcd(step, modulus)
    if first % common:
        return 0
    period = modulus // common
    match = -(first // common) * pow(step // common, -1, period) % period  # the smallest i ≥ 0 that gives a multiple
    match += -(-max(0, start - match) // period) * period
    return max(0, (stop - match) // period + 1)
