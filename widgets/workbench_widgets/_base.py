"""Base class of all live views: a static picture, answered requests, and visible errors."""

import contextvars
import html
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import anywidget
import traitlets
from ipywidgets import widget_serialization

from workbench import render
from workbench.records import write_whole
from workbench.render import Markup, display_record, figure
from workbench_widgets._bundle import chunk, chunk_models, loader
from workbench_widgets._export import SHARED, SavedView, code_texts, page, plain_state
from workbench_widgets._job import problem
from workbench_widgets._lessons import find_lessons
from workbench_widgets._outbox import Outbox
from workbench_widgets._saved import SAVED, runs_unseen, saved_page, saved_view

Selection = dict[str, Any]
SELECTABLE = ("stage", "client", "device", "axis", "line", "instruction", "leaf", "node")


if TYPE_CHECKING:

    class _Widget(traitlets.HasTraits):
        """The attributes of `anywidget.AnyWidget` that views use, with their types."""

        _esm: object
        _css: object
        comm: Any
        layout: Any
        model_id: str
        keys: list[str]

        def on_msg(self, callback: Callable[..., Any], remove: bool = False) -> None: ...
        def send(self, content: object, buffers: object = None) -> None: ...
        def get_state(self, key: object = None, drop_defaults: bool = False) -> dict[str, Any]: ...
        def send_state(self, key: object = None) -> None: ...
        def hold_sync(self) -> AbstractContextManager[None]: ...
        def close(self) -> None: ...
        def _repr_mimebundle_(self, **kwargs: object) -> Any: ...

else:
    _Widget = anywidget.AnyWidget


class Answering:
    """Answers requests from a view's page."""

    requests: ClassVar[dict[str, str]] = {}
    background: ClassVar[frozenset[str]] = frozenset()

    def close(self) -> None:
        """Stops work in progress, because the view is closed."""


class WorkbenchWidget(_Widget):
    """A live view of a record.

    The kernel computes; the browser draws and handles clicks. Subclasses name their view in the bundle, and define the
    static picture and the text.

    Attributes:
        selection: The selected items, keyed by kind (`stage`, `client`, `device`, `axis`, `line`, `instruction`,
            `leaf`, `node`).
        settings: The view's settings, such as the open tab, the sort order and the filters.
        problem: The last error raised in a callback, shown in the view.
    """

    view_name: ClassVar[str] = ""  # one of the views in the bundle
    dock: Literal["right"] | None = None  # next to the notebook instead of below its cell, in JupyterLab
    _outbox: Outbox | None = None
    _unsubscribe: Callable[[], object] | None = None  # functions that cancel the view's subscriptions
    _subject: Any = None  # the record whose static picture and text the view has, if any
    requests: ClassVar[dict[str, str]] = {}  # requests from the browser, and the view's methods that answer them
    background: ClassVar[frozenset[str]] = frozenset()  # slow requests, which run in separate threads
    _answering: tuple[Answering, ...] = ()  # objects that answer further requests

    data: "traitlets.Dict[str, Any]" = traitlets.Dict().tag(sync=True)
    arrays: "traitlets.Dict[str, Any]" = traitlets.Dict().tag(sync=True)
    live: "traitlets.Dict[str, Any]" = traitlets.Dict().tag(sync=True)
    label: "traitlets.Unicode[str, str | bytes]" = traitlets.Unicode().tag(sync=True)
    selection: "traitlets.Dict[str, Any]" = traitlets.Dict().tag(sync=True)
    settings: "traitlets.Dict[str, Any]" = traitlets.Dict().tag(sync=True)
    problem: "traitlets.Dict[str, Any]" = traitlets.Dict().tag(sync=True)
    chunks: "traitlets.Dict[str, Any]" = traitlets.Dict().tag(sync=True, **widget_serialization)

    def __init_subclass__(cls, **kwargs: object) -> None:
        if cls.__dict__.get("view_name"):
            cls._esm = loader(cls.view_name)
        super().__init_subclass__(**kwargs)

    def __init__(self, **values: object) -> None:
        self._open_views: int | None = None  # None: possibly shown, but no page has reported yet
        me = weakref.ref(self)  # a pending timer must not keep a closed view alive

        def send(values: Mapping[str, Any]) -> None:
            if (widget := me()) is not None and widget.comm is not None:
                widget.live = {**widget.live, **values}

        self._outbox = Outbox(send, is_open=lambda: (widget := me()) is not None and widget.is_open)
        data = values.get("data")
        if isinstance(data, dict) and "glossary" in data:
            values["data"] = {**data, "lessons": find_lessons()}
        self._stops: dict[str, threading.Event] = {}
        own_layout = "layout" not in values
        super().__init__(**values, **({"chunks": chunk_models()} if self.view_name else {}))
        self._made_layout = self.layout if own_layout else None
        self.on_msg(self._receive)

    @property
    def is_open(self) -> bool:
        """True if a page may be showing this view.

        Also True if no page has reported yet, because a busy kernel receives no reports.
        """
        return self.comm is not None and (self._open_views is None or self._open_views > 0)

    def describe(self) -> str:
        """One sentence for screen readers and captions."""
        return self.label

    def static_picture(self) -> Markup | bytes | None:
        """The static picture of the view (SVG or PNG): by default, the picture of the record, if it has one."""
        drawn = render.svg.dispatch(type(self._subject)) is not render.svg.dispatch(object)
        return render.svg(self._subject) if drawn else None

    def static_html(self) -> str:
        """HTML for a page without scripts: the picture and its caption, or the card of a record without a picture."""
        if picture := self.static_picture():
            return str(figure(picture, self.describe()))
        return "" if self._subject is None else display_record(self._subject)["text/html"]

    def text(self) -> str:
        """The view as plain text: by default, the text of the record."""
        return self.describe() if self._subject is None else render.text(self._subject)

    def select(self, **chosen: object) -> None:
        """Selects a stage, client, device, axis, line, instruction or leaf; `None` clears a selection."""
        unknown = sorted(set(chosen) - set(SELECTABLE))
        if unknown:
            message = (
                f"`select` was given {', '.join(unknown)}, which no view can select. A selection consists of "
                f"{', '.join(SELECTABLE)}: for example `select(stage='1', client=17)`."
            )
            raise ValueError(message)
        selection = {**self.selection, **chosen}
        self.selection = {kind: value for kind, value in selection.items() if value is not None}

    def update_live(self, **values: object) -> None:
        """Sends the newest values, at most twenty times a second; callable from any thread."""
        if self._outbox is not None:
            self._outbox.put(**values)

    def flush(self) -> None:
        """Sends the newest values now."""
        if self._outbox is not None:
            self._outbox.flush()

    def report(self, error: BaseException) -> None:
        """Shows an error in the view, with a traceback to copy; does not raise."""
        self.problem = problem(error)

    def name_in_notebook(self) -> str | None:
        """The view's name in the notebook (a variable, or `Out[n]`), used by code in a new cell."""
        ipython = sys.modules.get("IPython")
        names = getattr(ipython.get_ipython() if ipython is not None else None, "user_ns", {})
        user_names = (name for name, value in names.items() if value is self and not name.startswith("_"))
        shown = (f"Out[{number}]" for number, value in dict(names.get("Out", {})).items() if value is self)
        return next(user_names, None) or next(shown, None)

    def guarded(self, callback: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps `callback` so that its errors are shown in the view instead of being lost."""

        def call(*args: object, **kwargs: object) -> object:
            try:
                return callback(*args, **kwargs)
            except Exception as error:
                self.report(error)
                return None

        return call

    def to_html(self, file: str | Path | None = None, *, title: str | None = None, author: str | None = None) -> str:
        """Exports the view as one page that stays interactive without a kernel or a network.

        Args:
            file: File to write the page to; by default, no file is written.
            title: The page's title; by default the view's description.
            author: The page's author; by default the system's user name. "" omits the author.

        Returns:
            The page.
        """
        text = to_html([self], title=title or self.describe(), author=author)
        if file is not None:
            write_whole(file, text)
        return text

    def to_fragment(self) -> str:
        """Exports the view as HTML with its script, to embed in a page. Without scripts, the picture is shown."""
        return saved_page(self.saved(), self.static_html() or html.escape(self.describe()))

    def saved(self) -> SavedView:
        """Returns the view in the form used for a page without a kernel."""
        title, code = self.data.get("title") or self.label.split(":")[0], code_texts(self.data.get("code"))
        state = plain_state({name: getattr(self, name) for name in SHARED})
        return SavedView(self._esm, self.view_name, self.model_id, title, code, state)

    def close(self) -> None:
        """Closes the view and cancels its subscriptions, so that it can be garbage-collected."""
        end, self._unsubscribe = self._unsubscribe, None  # ipywidgets calls `close` again during garbage collection
        if end is not None:
            end()
        for owner in self._answering:
            owner.close()
        if self._outbox is not None:  # absent if __init__ failed, because ipywidgets also closes such objects
            self._outbox.close()
        layout = getattr(self, "_made_layout", None) if self.comm is not None else None
        super().close()
        if layout is not None:  # a separate widget, because ipywidgets would never release it
            layout.close()

    def _repr_mimebundle_(self, **kwargs: object) -> tuple[dict[str, Any], dict[str, Any]] | None:
        bundle = super()._repr_mimebundle_(**kwargs)
        data, metadata = bundle if bundle is not None else ({}, {})
        if runs_unseen():  # an exported notebook could load the widget manager only from the network
            return {"text/plain": self.text(), "text/html": self.to_fragment()}, metadata
        shown = self.static_html()
        extra: dict[str, Any] = {"text/plain": self.text()}
        if shown:
            extra["text/html"] = shown
        if (saved := saved_view(self.saved(), dock=self.dock)) is not None:
            extra[SAVED] = saved
        return {**data, **extra}, metadata

    def _receive(self, _widget: object, content: Mapping[str, Any], _buffers: object) -> None:
        kind = content.get("kind")
        if kind == "view":
            self._open_views = max(0, (self._open_views or 0) + (1 if content.get("open") else -1))
            self.flush()
        elif kind == "chunk":
            name = str(content.get("name"))
            self.send({"kind": "chunk", "name": name, **chunk(name)})
        elif kind == "cancel":
            if (stop := self._stops.get(str(content.get("id")))) is not None:
                stop.set()
        elif kind == "request" and any(content.get("name") in owner.background for owner in self._owners):
            _in_background(lambda: self._answer(content))
        elif kind == "request":
            self._answer(content)

    @property
    def _owners(self) -> "tuple[WorkbenchWidget | Answering, ...]":
        return (self, *self._answering)

    def _answer(self, content: Mapping[str, Any]) -> None:
        reply: dict[str, Any] = {"kind": "response", "id": content.get("id")}
        try:
            name = str(content.get("name"))
            answers = {request: (owner, how) for owner in self._owners for request, how in owner.requests.items()}
            answers["name_in_notebook"] = (self, "name_in_notebook")
            if name not in answers:
                message = (
                    f"the view requested {name!r}, but {type(self).__name__} answers only {', '.join(sorted(answers))}"
                )
                raise ValueError(message)
            owner, method = answers[name]
            arguments = dict(content.get("args") or {})
            if name in owner.background:
                arguments["report"] = self._reporter(str(content.get("id")))
            reply["value"] = getattr(owner, method)(**arguments)
        except Exception as error:
            reply["error"] = problem(error)
        finally:
            self._stops.pop(str(content.get("id")), None)
        self.send(reply)

    def _reporter(self, request: str) -> Callable[[str], None]:
        """Reports the progress of a long request; aborts the request once the user has stopped it."""
        stop = self._stops[request] = threading.Event()
        began = time.monotonic()

        def report(phase: str) -> None:
            if stop.is_set():
                message = f"{phase} was stopped"
                raise StoppedError(message)
            progress = {"phase": phase, "seconds": time.monotonic() - began}
            self.send({"kind": "progress", "id": request, "progress": progress})

        return report


def to_html(widgets: Sequence[WorkbenchWidget], *, title: str = "Workbench", author: str | None = None) -> str:
    """Exports widgets as one self-contained page, with working selection, sorting and search.

    Args:
        widgets: The views.
        title: The page's title.
        author: The page's author; by default the system's user name. "" omits the author.

    Returns:
        The page, including its date and the source code of the programs in the views.
    """
    return page([widget.saved() for widget in widgets], title=title, author=author)


def require_dock(dock: str | None) -> None:
    """Checks that `dock` is a place that the front ends support."""
    if dock not in (None, "right"):
        message = (
            f"a view was given dock={dock!r}, but a view can be shown only below its cell (None) or next to the "
            'notebook ("right"). Pass dock="right", or omit `dock`.'
        )
        raise ValueError(message)


def _in_background(work: Callable[[], None]) -> None:
    run = contextvars.copy_context().run  # placements and meshes of the view's cell
    threading.Thread(target=run, args=(work,), name="workbench-view", daemon=True).start()


class StoppedError(Exception):
    """The user stopped the request."""
