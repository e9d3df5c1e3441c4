"""The outputs of a view in the notebook's file.

Lab saves outputs and no widget state, so a view has two outputs, both replaced as time goes on:

  first   while the experiment runs the live widget; afterwards the chart, as a Plotly figure, which Lab draws
          without a kernel, and as a picture for everybody else
  second  a picture and the table while it runs, hidden in the page for as long as the live widget stands
          above it; afterwards the table

So the file holds a picture from the first moment on, with no script needed to see it. Both are found by their
display ids: Lab routes an update to the cell that first showed the id, whatever cell runs when it is sent.
It forgets that route when the page is loaded anew: the live widget comes back, but the file keeps the picture
of before, which names its time, until the cell is run again.
"""

import threading
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from IPython.core.getipython import get_ipython
from IPython.display import publish_display_data

Bundle = Mapping[str, Any]  # content by mime type


def in_notebook() -> bool:
    """Whether this process is a kernel, whose outputs can be replaced, and not a terminal or a program."""
    return hasattr(get_ipython(), "kernel")


def hear_beside_cells(comm: Any) -> None:
    """Take a comm's messages in the subshell that the page sends them to, also while a cell runs.

    ipykernel (seen in 7.4) takes them in the shell that last sent on the comm instead. For a view that is the main
    one, which is busy as long as a cell waits for the search: the buttons would be dead. Where ipykernel does not
    ask, this changes nothing.
    """
    if hasattr(comm, "_reply_subshell_for"):
        comm._reply_subshell_for = lambda data, asked_for: asked_for


class CellOutput:
    """Two outputs that can be replaced, from any thread."""

    def __init__(self) -> None:
        self._ids = (uuid.uuid4().hex, uuid.uuid4().hex)
        self._sent: list[Bundle] = []
        self._lock = threading.Lock()

    @property
    def shown(self) -> bool:
        return bool(self._sent)

    def show(self, first: Bundle, second: Bundle) -> None:
        """Put both under the running cell."""
        with self._lock:
            self._sent = [first, second]
            for display_id, bundle in zip(self._ids, self._sent, strict=True):
                _publish(bundle, display_id)

    def replace(self, first: Bundle, second: Bundle) -> None:
        """Replace what has changed, wherever it is shown; nothing before `show`."""
        with self._lock:
            if not self._sent:
                return
            for i, bundle in enumerate((first, second)):
                if bundle != self._sent[i]:
                    # The message's parent is the cell that runs now, or ran last. Lab finds the output by its
                    # display id whatever the parent is; nbclient hears the running cell only.
                    _publish(bundle, self._ids[i], update=True)
                    self._sent[i] = bundle


def _publish(bundle: Bundle, display_id: str, **options: bool) -> None:
    transient = {"display_id": display_id}
    publish_display_data(dict(bundle), transient=transient, **options)  # type: ignore[no-untyped-call]


class _Cells:
    """Which views a cell has shown, so that running it again ends those of the run before."""

    def __init__(self) -> None:
        self._shown: dict[str, tuple[str, list[Callable[[], None]]]] = {}

    def enter(self, end: Callable[[], None]) -> None:
        """Note that the running cell shows a view, which `end` ends. Not every front end names its cells."""
        shell = get_ipython()
        parent = shell.get_parent() if shell is not None and hasattr(shell, "get_parent") else {}
        cell = (parent.get("metadata") or {}).get("cellId")
        run = (parent.get("header") or {}).get("msg_id")
        if not cell or not run:
            return
        last_run, ends = self._shown.get(cell, (run, []))
        if last_run != run:
            for each in ends:
                each()
            ends = []
        if end not in ends:
            ends.append(end)
        self._shown[cell] = run, ends


cells = _Cells()  # of this kernel
