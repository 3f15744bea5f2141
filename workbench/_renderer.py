"""The package that draws records; registered by the root package, because records are a lower layer."""

from collections.abc import Callable
from types import ModuleType


def _none() -> ModuleType:
    message = "no package that draws records is registered: `import workbench` registers `workbench.render`"
    raise LookupError(message)


load: Callable[[], ModuleType] = _none
