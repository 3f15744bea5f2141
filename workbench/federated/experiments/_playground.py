"""The playground: experiments in federated learning without writing code."""

from types import SimpleNamespace
from typing import TYPE_CHECKING

from workbench._open_types import Foreign, Option
from workbench.federated.experiments._code import write_code
from workbench.federated.experiments._experiment import Experiment, count_labels
from workbench.federated.experiments._settings import ALGORITHMS, COMPRESSIONS, Settings

if TYPE_CHECKING:
    from workbench_widgets import Playground


def playground(**settings: Option) -> "Playground":
    """Shows a widget for choosing, running and comparing experiments, and for copying their code.

    Args:
        **settings: Initial settings, as for `wb.experiments.Settings`: `algorithm=`, `clients=`, `alpha=`, …

    Returns:
        The widget; the last line of a cell displays it.

    Raises:
        ProgramError: if the settings are invalid.

    Example:
        >>> type(playground(algorithm="FedAvg", clients=4, rounds=2)).__name__
        'Playground'
    """
    import workbench_widgets

    experiments: Foreign = SimpleNamespace(  # stands in for the package, which imports this module
        ALGORITHMS=ALGORITHMS,
        COMPRESSIONS=COMPRESSIONS,
        Settings=Settings,
        Experiment=Experiment,
        write_code=write_code,
        count_labels=count_labels,
    )
    return workbench_widgets.Playground(experiments, Settings(**settings))
