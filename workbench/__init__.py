"""A Jupyter workbench for JAX: inspect functions on devices, and write differentiable MapReduce.

Importing `workbench` does not print, initialize devices or use the network, because names are imported on first use.

* What are the stages, and what data passes between them? ``wb.trace(fn)(*args).plan``
* What did the compiler do with it? ``wb.inspect(fn)(*args)``
* Open all views. ``wb.explore(fn)(*args)``, ``wb.show(fn)(*args)``
* Would it fit on 256 TPU chips? ``wb.inspect(fn, on="v5e:16x16")(*args)``
* How is this array laid out? ``wb.show(array)``
* Run it with memory use that does not grow with the number of clients. ``wb.jit(fn)``
* Where did the time go? ``wb.measure(fn)(*args)``
* What did one client compute? ``wb.trace(fn)(*args).tap(client=17)``
* What happens in a round, step by step? ``wb.trace(fn)(*args).play()``
"""

import logging
import sys
from types import ModuleType

import lazy_loader

from workbench import _renderer

# `__init__.pyi` lists the names, for type checkers and for this line. Packages are imported lazily, like all names.
__getattr__, _, _names = lazy_loader.attach_stub(__name__, __file__)
_unlisted = (
    "advice aot api cli cost course distributed errors inspection launch measurement mesh plan primitives records "
    "render replicate testing __version__"
).split()
__all__ = [name for name in _names if name not in _unlisted]


def __dir__() -> list[str]:
    return [*__all__, *(name for name in _names if name not in __all__)]


if sys.modules.get("jax") is not None:
    # Creates the keys of JAX's trace caches before any compilation; doing so later would recompile everything.
    from workbench import _jax_compat as _jax_compat

logging.getLogger(__name__).addHandler(logging.NullHandler())  # silent unless the user installs a handler

del lazy_loader, logging, sys


def _load_render() -> ModuleType:
    from workbench import render

    return render


_renderer.load = _load_render  # records are in a lower layer than `render`, and find the package here


def load_ipython_extension(shell: object) -> None:
    """Registers `%%explore`, `%%measure` and `%inspect` when `%load_ext workbench` runs."""
    from workbench.magics import load_ipython_extension as load

    load(shell)  # pyright: ignore[reportArgumentType] -- IPython's shell, which is not imported here
