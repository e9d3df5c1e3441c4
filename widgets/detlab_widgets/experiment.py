"""The view of an experiment: progress, learning curves, trials; buttons to pause, activate and kill it."""

import dataclasses
import datetime
import threading
import time
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from determined.common.api import errors
from determined.experimental import Experiment, ExperimentState
from detlab_widgets import follow, plotly_view, spec, static_view
from detlab_widgets.facts import ExperimentFacts
from detlab_widgets.output import Bundle, CellOutput, cells, hear_beside_cells, in_notebook
from detlab_widgets.read import ExperimentSource

FIRST_READING = 3.0  # seconds that showing waits for it, so that the first picture has something on it
PICTURE_INTERVAL = 10.0  # seconds between two pictures of an experiment that runs

_HERE = Path(__file__).parent
_VERBS = {"pause": Experiment.pause, "activate": Experiment.activate, "kill": Experiment.kill}


class ExperimentView(anywidget.AnyWidget):
    """A live view of one experiment. It keeps the id and follows the master.

        view = ExperimentView(7)
        view          # as the last line of a cell, or display(view)
        view.wait()   # until the experiment has ended

    Any number of views of a kernel share one connection. `close` ends a view, running its cell again too.
    """

    _esm = _HERE / "experiment.js"
    _css = _HERE / "experiment.css"

    head = traitlets.Dict().tag(sync=True)  # title, state, progress, summary, verbs
    figure = traitlets.Dict().tag(sync=True)  # of plotly.js
    table = traitlets.Dict().tag(sync=True)  # columns, rows, note
    trouble = traitlets.Unicode().tag(sync=True)  # why there is nothing newer
    refusal = traitlets.Unicode().tag(sync=True)  # why the last button had no effect
    pending = traitlets.Unicode().tag(sync=True)  # the button that is at work
    static_class = traitlets.Unicode().tag(sync=True)  # of the pictures that the live view hides

    def __init__(self, experiment_id: int, *, follower: follow.Follower | None = None) -> None:
        super().__init__()
        self.experiment_id = experiment_id
        self.static_class = f"detlab-static-{self.model_id}"
        self._follower = follower or follow.shared
        self._spec: spec.ExperimentSpec | None = None
        self._facts: ExperimentFacts | None = None
        self._told = threading.Event()
        self._over = False  # nothing more will come
        self._ended = threading.Event()  # and the outputs say so
        self._output = CellOutput()
        self._picture: tuple[spec.ExperimentSpec | None, str] | None = None  # what the saved picture shows
        self._next_picture = 0.0
        self._lock = threading.RLock()
        self._pages = 0  # that show this view, as far as they say
        self.on_msg(self._received)
        hear_beside_cells(self.comm)
        self._following: follow.Following | None = None
        self._follow()

    # What a program asks for.

    def pause(self) -> None:
        """Pause the experiment. Raises what the SDK raises, as the next two do."""
        self._do("pause")

    def activate(self) -> None:
        self._do("activate")

    def kill(self) -> None:
        self._do("kill")

    def wait(self, timeout: float | None = None) -> ExperimentState | None:
        """Wait until the experiment has ended, at most `timeout` seconds; its state, None if not known.

        Raises TimeoutError.
        """
        if not self._ended.wait(timeout):
            raise TimeoutError(f"experiment {self.experiment_id} has not ended within {timeout:g} s")
        return self._facts.state if self._facts is not None else None

    def close(self) -> None:
        """End the view. What the notebook shows of it stays as it is."""
        self._unfollow()
        super().close()

    def __repr__(self) -> str:
        return f"ExperimentView({self.experiment_id})"

    # How it gets into the notebook.

    def _ipython_display_(self) -> None:
        self._told.wait(FIRST_READING)
        if not in_notebook():
            print(self._text())
            return
        cells.enter(self.close)
        with self._lock:
            self._output.show(*self._bundles())

    def _repr_mimebundle_(self, **_: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Widget and picture in one, for programs that ask for a representation and keep it."""
        self._told.wait(FIRST_READING)
        with self._lock:
            return {**self._live(), "text/html": self._chart_html() + self._rest_html()}, {}

    def _bundles(self) -> tuple[Bundle, Bundle]:
        """The two outputs, as output.py describes them."""
        self._picture = self._spec, self.trouble
        self._next_picture = time.monotonic() + PICTURE_INTERVAL
        if not self._over:
            picture = self._chart_html() + self._rest_html()
            hidden = f'<div class="detlab-static {self.static_class}">{picture}</div>'
            return self._live(), {"text/plain": self._text(), "text/html": hidden}
        first: dict[str, Any] = {"text/plain": repr(self), "text/html": self._chart_html()}
        if self._spec is not None:
            first[plotly_view.MIME] = plotly_view.render(self._spec.chart)
        return first, {"text/plain": self._text(), "text/html": self._rest_html()}

    def _live(self) -> dict[str, Any]:
        view = {"version_major": 2, "version_minor": 0, "model_id": self.model_id}
        return {"text/plain": repr(self), "application/vnd.jupyter.widget-view+json": view}

    def _text(self) -> str:
        shown = self._spec
        if shown is None:
            return f"Experiment {self.experiment_id}: {self.trouble or 'not read yet'}"
        lines = [f"{shown.title} {shown.state}, {shown.progress:.0%}", shown.summary, self.trouble]
        return "\n".join(line for line in lines if line)

    def _chart_html(self) -> str:
        return static_view.chart_html(self._spec.chart) if self._spec is not None else ""

    def _rest_html(self) -> str:
        now = "" if self._over else f"{datetime.datetime.now().astimezone():%Y-%m-%d %H:%M %Z}"
        return static_view.rest_html(self.experiment_id, self._spec, trouble=self.trouble, as_of=now)

    # What the follower's thread tells.

    def _update(self, update: follow.Update[ExperimentFacts]) -> None:
        try:
            self._take(update)
        except Exception as e:  # the follower lets go of a view that fails; who waits for it must not wait on
            self.trouble = f"this view has failed: {e!r}"
            self._over = True
            self._told.set()
            self._ended.set()
            raise

    def _take(self, update: follow.Update[ExperimentFacts]) -> None:
        with self._lock:
            self._over = update.ended
            if update.facts is not None and update.facts != self._facts:
                self._facts = update.facts
                self._spec = spec.experiment(update.facts)
            self._show(self._spec, update.trouble)
            self._told.set()
            current = self._spec, update.trouble
            due = update.ended or time.monotonic() >= self._next_picture
            if self._output.shown and due and (update.ended or current != self._picture):
                self._output.replace(*self._bundles())
            if update.ended:
                self._ended.set()

    def _show(self, shown: spec.ExperimentSpec | None, trouble: str) -> None:
        with self.hold_sync():
            self.trouble = trouble
            if shown is None:
                self.head = {"title": f"Experiment {self.experiment_id}"}
                return
            self.head = {
                "title": shown.title,
                "state": shown.state,
                "progress": shown.progress,
                "summary": shown.summary,
                "verbs": list(shown.verbs),
            }
            self.figure = plotly_view.render(shown.chart)
            self.table = {
                "columns": list(shown.table.columns),
                "rows": [{**dataclasses.asdict(row), "cells": list(row.cells)} for row in shown.table.rows],
                "note": shown.table.note,
            }

    # What the page sends.

    def _received(self, _: object, content: dict[str, Any], buffers: object) -> None:
        kind = content.get("kind")
        if kind == "library":
            self.send({"kind": "library"}, [plotly_view.packed_library()])
        elif kind == "verb" and content.get("verb") in _VERBS:
            self._press(content["verb"])
        elif kind == "shown":
            self._pages += 1
            self._follow()
        elif kind == "hidden":
            self._pages -= 1
            if self._pages <= 0:  # nobody looks; whoever shows it again is caught up at once
                self._unfollow()

    def _press(self, verb: str) -> None:
        """A button: what goes wrong is said in the view."""
        with self._lock:
            self.pending, self.refusal = verb, ""
        refusal = ""
        try:
            self._do(verb)
        except (errors.RequestFailed, errors.NotLoggedIn, errors.TokenStoreError) as e:
            refusal = f"{verb}: {' '.join(str(e).split())}"
        finally:
            with self._lock:
                self.pending, self.refusal = "", refusal

    def _do(self, verb: str) -> None:
        with follow.connect() as client:
            _VERBS[verb](client.get_experiment(self.experiment_id))
        if self._following is not None:
            self._following.wake()

    def _follow(self) -> None:
        with self._lock:
            if self._following is None and not self._over:
                self._following = self._follower.follow(ExperimentSource(self.experiment_id), self._update)

    def _unfollow(self) -> None:
        with self._lock:
            following, self._following = self._following, None
        if following is not None:
            following.stop()


def show(experiment_id: int) -> None:
    """Show the live view of an experiment under this cell. Outside a notebook: print how it is."""
    view = ExperimentView(experiment_id)
    view._ipython_display_()
    if not in_notebook():
        view.close()
