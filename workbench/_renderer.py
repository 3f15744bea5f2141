"""Package that draws records: records are below it, so the root package says which one it is."""

from collections.abc import Callable
from types import ModuleType


def _none() -> ModuleType:
    message = "no package that draws records is registered: `import workbench` registers `workbench.render`"
    raise LookupError(message)


load: Callable[[], ModuleType] = _none
