"""The HLO operations that this inspector knows; unknown operations are reported instead of counting as zero."""

_KNOWN = frozenset(
    "abs acos acosh add add-dependency after-all all-gather all-reduce all-to-all and asin asinh async atan2 atanh "
    "batch-norm-grad batch-norm-inference batch-norm-training bitcast bitcast-convert broadcast call cbrt ceil "
    "cholesky clamp collective-broadcast collective-permute compare complex concatenate conditional constant convert "
    "convolution copy cos cosh cosine count-leading-zeros custom-call divide domain dot dynamic-reshape dynamic-slice "
    "dynamic-update-slice erf exponential exponential-minus-one fft floor fusion gather get-dimension-size "
    "get-tuple-element imag infeed iota is-finite log log-plus-one logistic map maximum minimum multiply negate not "
    "opt-barrier or outfeed pad parameter partition-id popcnt power ragged-all-to-all ragged-dot real recv reduce "
    "reduce-precision reduce-scatter reduce-window remainder replica-id reshape reverse rng rng-bit-generator "
    "rng-get-and-update-state round-nearest-afz round-nearest-even rsqrt scaled-dot scatter select select-and-scatter "
    "send set-dimension-size shift-left shift-right-arithmetic shift-right-logical sign sine sinh slice sort sqrt "
    "stochastic-convert subtract tan tanh topk transpose triangular-solve tuple while xor".split()
)
_WITHOUT_FORMULA = frozenset(("cholesky", "fft", "triangular-solve"))
_PARTS = ("-start", "-done", "-update")


def note_on_opcode(opcode: str) -> str | None:
    """Note about an operation's cost.

    Example:
        >>> note_on_opcode("all-reduce-start") is None
        True
    """
    plain = opcode
    if plain not in _KNOWN:
        plain = next((opcode.removesuffix(part) for part in _PARTS if opcode.endswith(part)), opcode)
    if plain not in _KNOWN:
        return f"`{opcode}` is an operation that this inspector does not know: its FLOPs are not counted"
    return f"FLOPs of `{plain}` are not counted" if plain in _WITHOUT_FORMULA else None
