"""Importing user code: by a `module:Class` name, and from a folder without leaving traces."""

import contextlib
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from determined.errors import TrialError


@contextlib.contextmanager
def import_from_path(path: str | Path) -> Iterator[None]:
    """Within this context, imports look into the folder `path` first.

    Modules imported from there are taken out of `sys.modules` afterwards, and modules of the same names
    that were loaded before come back, so that the code of several checkpoints can be loaded in turn.
    Objects that were made from the imported code stay usable.
    """
    folder = Path(path).resolve()
    names = {entry.stem if entry.suffix == ".py" else entry.name for entry in folder.iterdir()}
    hidden = {name: module for name, module in sys.modules.items() if name.partition(".")[0] in names}
    for name in hidden:
        if not _lies_in(sys.modules[name], Path(sys.prefix)) and name != "__main__":
            del sys.modules[name]
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name, module in list(sys.modules.items()):
            if _lies_in(module, folder):
                del sys.modules[name]
        sys.modules.update(hidden)


def _lies_in(module: ModuleType, folder: Path) -> bool:
    file = getattr(module, "__file__", None)
    return bool(file) and Path(str(file)).is_relative_to(folder)


def import_class(spec: str) -> type[Any]:
    """The class that `module:Class` names (`a.b:Outer.Inner` too).

    Raises TrialError for a malformed name, a missing module or class. What the user's module itself raises
    passes through, so that its traceback shows the user's lines.
    """
    module_name, colon, class_name = spec.partition(":")
    if not (module_name and colon and class_name):
        raise TrialError(f"the entrypoint {spec!r} is not of the form module:TrialClass")
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as e:
        if e.name is not None and (module_name == e.name or module_name.startswith(f"{e.name}.")):
            raise TrialError(
                f"the entrypoint {spec!r} names the module {module_name!r}, which is neither in the model "
                f"folder nor installed (looked in {', '.join(p or '.' for p in sys.path[:3])}, ...)"
            ) from None
        raise
    for attribute in class_name.split("."):
        if not hasattr(found, attribute):
            raise TrialError(f"the entrypoint {spec!r}: {found.__name__} has no {attribute!r}")
        found = getattr(found, attribute)
    if not isinstance(found, type):
        raise TrialError(f"the entrypoint {spec!r} names a {type(found).__name__}, not a class")
    return found
