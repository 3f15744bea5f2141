"""Exercises of notebook 30: meshes with two axes."""

from workbench.course._grading import called, exercise, expect_number


@exercise("30.1", "bytes that a layer sends on a mesh of two axes")
def bytes_of_a_layer(answer: object) -> str:
    for weights, activations, devices, model in ((1000.0, 0.0, 8, 1), (0.0, 1000.0, 8, 8), (3000.0, 500.0, 16, 4)):
        data = devices // model
        expected = 4 * (1 - 1 / data) * weights / model + 4 * (1 - 1 / model) * activations / data
        hint = (
            f"For {weights:g} bytes of weights and {activations:g} bytes of activations on {devices} devices, {model} "
            f"of them along `model`, the answer is {expected:g}. Weights: two gathers and an all-reduce. Activations: "
            "two all-reduces."
        )
        value = called(answer, weights, activations, devices, model)
        expect_number(value, expected, hint, what="the number of bytes")
    return "a layer needs two gathers, and three all-reduces that send twice the bytes of a gather."


@exercise("30.2", "the best size of a tensor axis")
def best_axis(answer: object) -> str:
    expect_number(answer, 8, "Use k = √(2 n F / T): n devices, hidden layer F, T tokens in the whole step.")
    return "a 32 × 8 mesh."


@exercise("30.3", "tokens per device at which computation hides FSDP communication")
def hidden_tokens(answer: object) -> str:
    hint = "Set 3 w · 2 bytes / bandwidth equal to 6 t w FLOPs / (FLOPs per second), and solve for t."
    expect_number(answer, 197e12 / 90e9, hint, rtol=5e-3)
    return "the answer is the ratio of the two speeds, for any width."
