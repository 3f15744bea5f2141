"""The printed record of a profile."""

from pathlib import Path

import workbench as wb


def test_the_text_says_what_bounds_an_operation():
    """The transpose of a convolution only moves values."""
    file = Path(__file__).parents[1] / "recorded/mi300x_conv_two_kernels.xplane.pb"
    (transpose,) = [line for line in str(wb.open_profile(file)).splitlines() if "× input_transpose_fusion (" in line]
    assert ", memory-bound" in transpose.partition("predicted")[2]
