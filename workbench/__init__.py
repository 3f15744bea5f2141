"""A Jupyter workbench for JAX: see what a function does on its devices, and write sharded, differentiable MapReduce.

Importing it prints nothing, starts no device and reaches no network: every name below is looked up at its first use.

* What are the stages, and what goes between them? ``wb.trace(fn)(*args).plan``
* What did the compiler do with it? ``wb.inspect(fn)(*args)``
* Open all views. ``wb.explore(fn)(*args)``, ``wb.show(fn)(*args)``
* Would it fit on 256 TPU chips? ``wb.inspect(fn, on="v5e:16x16")(*args)``
* How is this array laid out? ``wb.show(array)``
* Run it with memory that does not grow with clients. ``wb.jit(fn)``
* Where did the time go? ``wb.measure(fn)(*args)``
* What did one client compute? ``wb.trace(fn)(*args).tap(client=17)``
* What happens in a round, step by step? ``wb.trace(fn)(*args).play()``
"""

import logging
import sys
from types import ModuleType

import lazy_loader

from workbench import _renderer

# The list of names is `__init__.pyi`, for type checkers and for this line alike. Packages are looked up like all names.
__getattr__, _, _names = lazy_loader.attach_stub(__name__, __file__)
_unlisted = (
    "advice aot api cli cost course distributed errors inspection launch measurement mesh plan primitives records "
    "render replicate testing __version__"
).split()
__all__ = [name for name in _names if name not in _unlisted]


def __dir__() -> list[str]:
    return [*__all__, *(name for name in _names if name not in __all__)]


if sys.modules.get("jax") is not None:
    # Makes what JAX keys its traces by, while nothing is compiled yet: later, it would compile everything again.
    from workbench import _jax_compat as _jax_compat

logging.getLogger(__name__).addHandler(logging.NullHandler())  # silent until the reader installs a handler

del lazy_loader, logging, sys


def _load_render() -> ModuleType:
    from workbench import render

    return render


_renderer.load = _load_render  # records are below `render`, and find it by this


def load_ipython_extension(shell: object) -> None:
    """Registers `%%explore`, `%%measure` and `%inspect`: what `%load_ext workbench` calls."""
    from workbench.magics import load_ipython_extension as load

    load(shell)  # pyright: ignore[reportArgumentType] -- IPython's shell, which is not imported here
