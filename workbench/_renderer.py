"""The package that draws records; registered by the root package, because records are a lower layer."""

from collections.abc import Callable
from types import ModuleType


def _none() -> ModuleType:
    message = "no renderer of records is registered: run `import workbench`, which registers `workbench.render`"
    raise LookupError(message)


load: Callable[[], ModuleType] = _none
