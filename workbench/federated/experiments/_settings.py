"""Settings of an experiment."""

import dataclasses
import math
from typing import Any, get_type_hints

from workbench.errors import ProgramError

ALGORITHMS = ("FedAvg", "FedProx", "FedAdam", "SCAFFOLD", "Mime-lite", "DiLoCo")
COMPRESSIONS = ("none", "top 1 %", "top 10 %", "8 bits", "4 bits")
_WITHOUT_AGGREGATOR = ("SCAFFOLD",)
_RANGES: dict[str, tuple[float, float]] = {
    "clients": (2, 256),
    "alpha": (0.01, math.inf),
    "participation": (0.01, 1.0),
    "local_steps": (1, 100),
    "learning_rate": (1e-4, 10.0),
    "server_learning_rate": (1e-4, 10.0),
    "dropout": (0.0, 0.99),
    "clip": (1e-3, 1e3),
    "noise": (0.0, 100.0),
    "rounds": (1, 1000),
    "seed": (0, 2**31 - 1),
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of an experiment in which clients with handwritten digits train a small network.

    Args (of the constructor):
        algorithm: One of `ALGORITHMS`.
        clients: Number of clients.
        alpha: Dirichlet concentration of the labels; 0.1 gives strong label skew, and `inf` gives none.
        participation: Probability that a client is asked to take part in a round.
        local_steps: Number of steps, with 16 examples each, that a client takes in a round.
        learning_rate: The clients' learning rate.
        server_learning_rate: The server's learning rate.
        dropout: Probability that an asked client does not answer.
        clip: The largest norm of one client's update, if `noise` is not 0.
        noise: Ratio of the noise's standard deviation to `clip`, for differential privacy; 0 adds no noise.
        compression: Compression of the clients' updates, one of `COMPRESSIONS`.
        rounds: Number of rounds.
        seed: Seed for all random draws.

    Raises:
        ProgramError: if a value is out of range, or settings cannot be combined.

    Example:
        >>> Settings(algorithm="SCAFFOLD", alpha=0.1).changed()
        {'algorithm': 'SCAFFOLD', 'alpha': 0.1}
    """

    algorithm: str = "FedAvg"
    clients: int = 64
    alpha: float = 0.3
    participation: float = 0.5
    local_steps: int = 8
    learning_rate: float = 0.2
    server_learning_rate: float = 1.0
    dropout: float = 0.0
    clip: float = 1.0
    noise: float = 0.0
    compression: str = "none"
    rounds: int = 40
    seed: int = 0

    def __post_init__(self) -> None:
        wrong = [
            f"{name}={getattr(self, name)!r} is not one of {', '.join(options)}"
            for name, options in (("algorithm", ALGORITHMS), ("compression", COMPRESSIONS))
            if getattr(self, name) not in options
        ]
        types = get_type_hints(Settings)
        for name, (low, high) in _RANGES.items():
            value = getattr(self, name)
            is_number = isinstance(value, types[name] | int) and not isinstance(value, bool)
            if not is_number or not low <= value <= high:
                kind = "whole number" if types[name] is int else "number"
                wrong.append(f"{name}={value!r} is not a {kind} from {low:g} to {high:g}")
        if self.algorithm in _WITHOUT_AGGREGATOR and (self.noise or self.compression != "none"):
            wrong.append(
                f"{self.algorithm} sends two values that depend on one another, so noise and compression are not "
                "supported"
            )
        if self.noise and self.compression.endswith("bits"):
            wrong.append(
                f"with {self.compression}, all clients share one scale, so noise gives no privacy: use 'top 1 %' or "
                "'top 10 %'"
            )
        if wrong:
            message = (
                f"`Settings` received invalid values: {'; '.join(wrong)}. Every setting has a range, and noise and "
                "compression work only for algorithms whose mean they can replace: change these settings, or omit "
                "them."
            )
            raise ProgramError(message)

    def changed(self) -> dict[str, Any]:
        """Returns the settings that differ from the defaults."""
        usual = {field.name: field.default for field in dataclasses.fields(self)}
        return {name: getattr(self, name) for name in usual if getattr(self, name) != usual[name]}
