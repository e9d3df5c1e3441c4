"""From the source of a cell to a module that a trial can run; pure but for the evaluation of `hparams`.

The rule: the cell stands by itself. It imports and defines all that it uses, because a trial runs in another
process on another machine, where the notebook's variables do not exist. What is used and not there is named
before anything is submitted.

The module is the cell itself, line by line, so that a line number in a trial's log is a line of the cell.
Two things differ: `hparams` has become the plain dict that was submitted, and imports of detlab_magics, which
a task need not have, are gone.
"""

import ast
import builtins
import symtable
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from detlab_magics import searchspace
from detlab_magics.errors import CaptureError

MODULE = "model_def"
HPARAMS = "hparams"
_TRIAL_BASE = "PyTorchTrial"
_NEED_BATCH_SIZE = {"get_per_slot_batch_size", "get_global_batch_size"}
_MODULE_NAMES = {"__name__", "__file__", "__doc__", "__spec__", "__package__", "__builtins__"}
_OF_IPYTHON = {"display", "get_ipython"}  # IPython puts them among the builtins
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_KNOWN = (set(dir(builtins)) | _MODULE_NAMES) - _OF_IPYTHON


@dataclass(frozen=True)
class Captured:
    """Code that is ready to be sent."""

    source: str  # of the module model_def
    target: str  # the trial class, or main
    entrypoint: str | list[str]  # of the experiment configuration
    hyperparameters: dict[str, Any]  # of the experiment configuration; {} where the cell declares none
    imports: frozenset[str]  # top-level names of the modules that it imports
    needs_batch_size: bool  # it asks its context for the batch size

    @property
    def is_trial_class(self) -> bool:
        """Whether the harness trains it, and not the code itself."""
        return isinstance(self.entrypoint, str)


def capture(source: str, *, trial: str | None = None, elsewhere: Collection[str] = ()) -> Captured:
    """Make a module of a cell that defines a PyTorchTrial, or a function `main` that uses the Core API.

    `trial` names the class where the cell defines several. `elsewhere` are names that the notebook knows, for
    a better message. Raises CaptureError.
    """
    tree = _parse(source)
    declared = _declaration(tree)
    hyperparameters = _evaluate(tree, declared) if declared is not None else {}
    own = [node for node in tree.body if _imports_us(node)]
    edits: list[tuple[ast.stmt | ast.expr, str]] = [(node, "None") for node in own]
    if declared is not None:
        edits.append((declared, repr(hyperparameters)))
    shipped = _replace(source, edits)
    _check_names(shipped, {name for node in own for name in _bound(node)}, elsewhere)
    target = trial if trial is not None else _target(tree)
    return Captured(
        source=shipped,
        target=target,
        entrypoint=_entrypoint(tree, target),
        hyperparameters=hyperparameters,
        imports=frozenset(_imported_modules(tree)),
        needs_batch_size=any(
            isinstance(node, ast.Attribute) and node.attr in _NEED_BATCH_SIZE for node in ast.walk(tree)
        ),
    )


def _parse(source: str) -> ast.Module:
    try:
        return ast.parse(source)
    except SyntaxError as e:
        line = (e.text or "").rstrip("\n")
        if line.lstrip().startswith(("%", "!")):
            raise CaptureError(
                f"line {e.lineno} of the cell, {line.strip()!r}, is for the notebook only: what a trial runs is "
                "plain Python. Put it into a cell of its own"
            ) from None
        mark = f"\n    {line}\n    {' ' * ((e.offset or 1) - 1)}^" if line else ""
        raise CaptureError(f"the cell has a syntax error in line {e.lineno}: {e.msg}{mark}") from None
    except ValueError as e:  # a null byte
        raise CaptureError(f"the cell is not Python: {e}") from None


# The hyperparameters.


def _declaration(tree: ast.Module) -> ast.expr | None:
    """The dict that is assigned to `hparams` at the top level."""
    found: list[ast.expr] = []
    again: list[ast.stmt] = []
    for node in tree.body:
        value = _assigned_to_hparams(node)
        if value is not None:
            found.append(value)
        elif not isinstance(node, _DEFINITIONS) and any(name.id == HPARAMS for name in _names(node)):
            again.append(node)
    if len(found) > 1:
        raise CaptureError(
            f"`{HPARAMS}` is assigned {len(found)} times, in lines "
            f"{', '.join(str(value.lineno) for value in found)} of the cell: write it once"
        )
    if found and again:
        raise CaptureError(
            f"line {again[0].lineno} of the cell uses `{HPARAMS}` again, outside of functions and classes. It is read "
            f"once, when the experiment is submitted: write it in one piece, as `{HPARAMS} = {{...}}`; a trial gets "
            "its own values from context.get_hparam(name)"
        )
    return found[0] if found else None


def _assigned_to_hparams(node: ast.stmt) -> ast.expr | None:
    targets = node.targets if isinstance(node, ast.Assign) else []
    if isinstance(node, ast.AnnAssign):
        targets = [node.target]
    if [target.id for target in targets if isinstance(target, ast.Name)] != [HPARAMS]:
        return None
    assert isinstance(node, ast.Assign | ast.AnnAssign)
    return node.value


def _evaluate(tree: ast.Module, value: ast.expr) -> dict[str, Any]:
    """Run the dict, and of the rest of the cell only what the dict needs."""
    before = [node for node in tree.body if node.end_lineno is not None and node.end_lineno < value.lineno]
    module = ast.Module([*_needed(before, value), _assignment(value)], type_ignores=[])
    space: dict[str, Any] = {name: getattr(searchspace, name) for name in searchspace.__all__}
    space["__name__"] = MODULE
    try:
        exec(compile(module, "<cell>", "exec", dont_inherit=True), space)  # noqa: S102 - the user's own code, in the user's kernel
        evaluated = space[HPARAMS]
        if not isinstance(evaluated, dict):
            raise CaptureError(f"`{HPARAMS}` is a {type(evaluated).__name__}: it must be a dict")
        return searchspace.space(evaluated)
    except CaptureError:
        raise
    except Exception as e:
        what = str(e) if isinstance(e, ValueError) else f"{type(e).__name__}: {e}"
        raise CaptureError(f"`{HPARAMS}`, in line {value.lineno} of the cell: {what}") from e


def _assignment(value: ast.expr) -> ast.stmt:
    node = ast.Assign([ast.Name(HPARAMS, ast.Store())], value)
    return ast.fix_missing_locations(ast.copy_location(node, value))


def _needed(statements: list[ast.stmt], value: ast.expr) -> list[ast.stmt]:
    names = {node.id for node in _names(value)}
    chosen: set[int] = set()
    while True:
        more = {i for i, node in enumerate(statements) if _bound(node) & names} - chosen
        if not more:
            future = [i for i, node in enumerate(statements) if _is_future(node)]
            return [statements[i] for i in sorted(chosen.union(future))]
        chosen |= more
        names |= {node.id for i in more for node in _names(statements[i])}


def _is_future(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and node.module == "__future__"


def _imports_us(node: ast.stmt) -> bool:
    if isinstance(node, ast.ImportFrom):
        return node.level == 0 and (node.module or "").split(".")[0] == "detlab_magics"
    return isinstance(node, ast.Import) and all(a.name.split(".")[0] == "detlab_magics" for a in node.names)


# Names.


def _names(node: ast.AST) -> Iterator[ast.Name]:
    return (inner for inner in ast.walk(node) if isinstance(inner, ast.Name))


def _stored(node: ast.stmt) -> set[str]:
    return {name.id for name in _names(node) if not isinstance(name.ctx, ast.Load)}


def _bound(node: ast.stmt) -> set[str]:
    """The names that a statement of the top level may bind there."""
    if isinstance(node, _DEFINITIONS):
        return {node.name}
    names = _stored(node)
    for inner in ast.walk(node):
        if isinstance(inner, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name.split(".")[0] for alias in inner.names}
        elif isinstance(inner, _DEFINITIONS):
            names.add(inner.name)
    return names


def _imported_modules(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.split(".")[0]


def undefined(source: str) -> list[str]:
    """The names that a module uses and neither defines nor imports, by first use.

    Nothing is said of a module with `import *`, which may define any name.
    """
    tree = ast.parse(source)
    if any(isinstance(node, ast.ImportFrom) and node.names[0].name == "*" for node in ast.walk(tree)):
        return []
    module = symtable.symtable(source, "<cell>", "exec")
    used: set[str] = set()
    bound: set[str] = set()
    for table in _tables(module):
        for symbol in table.get_symbols():
            if table is not module and not symbol.is_global():
                continue
            if symbol.is_assigned() or symbol.is_imported():
                bound.add(symbol.get_name())
            if symbol.is_referenced():
                used.add(symbol.get_name())
    missing = used - bound - _KNOWN
    first = {name.id: (name.lineno, name.col_offset) for name in reversed(list(_names(tree)))}
    return sorted(missing, key=lambda name: first.get(name, (0, 0)))


def _tables(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield table
    for child in table.get_children():
        yield from _tables(child)


def _check_names(source: str, removed: Collection[str], elsewhere: Collection[str]) -> None:
    missing = undefined(source)
    if not missing:
        return
    names = ", ".join(f"`{name}`" for name in missing)
    text = f"the cell uses {names}, which it neither defines nor imports."
    if set(missing) & set(removed):
        text += f" What detlab_magics gives can be used in `{HPARAMS}` only, which is read here."
    elif set(missing) & set(elsewhere):
        text += " Other cells of this notebook define it, but a trial runs this cell alone, in the cluster."
    raise CaptureError(
        f"{text} Define or import it in this cell, or put it into a file that you send with --include"
    )


# What a trial runs.


def _target(tree: ast.Module) -> str:
    trials = _trial_classes(tree)
    if len(trials) == 1:
        return trials[0]
    if trials:
        raise CaptureError(
            f"the cell defines several trials, {', '.join(trials)}: name the one to run with --trial"
        )
    if _function(tree, "main") is not None:
        return "main"
    raise CaptureError(
        f"the cell defines nothing to run: neither a class that is a {_TRIAL_BASE} nor a function main(), which "
        "trains with the Core API. A class with another base is named with --trial"
    )


def _trial_classes(tree: ast.Module) -> list[str]:
    known = {_TRIAL_BASE}
    found = []
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and any(_last_name(base) in known for base in node.bases):
            known.add(node.name)
            found.append(node.name)
    return found


def _last_name(node: ast.expr) -> str | None:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else None


def _function(tree: ast.Module, name: str) -> ast.FunctionDef | None:
    return next((n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == name), None)


def _entrypoint(tree: ast.Module, target: str) -> str | list[str]:
    if target not in {name for node in tree.body for name in _bound(node)}:
        raise CaptureError(f"the cell defines no {target}")
    function = _function(tree, target)
    if function is None:
        return f"{MODULE}:{target}"
    required = _required(function.args)
    if required:
        raise CaptureError(
            f"{target} wants the argument {required[0]!r}, but a trial calls it without any: its hyperparameters "
            "are in determined.get_cluster_info().trial.hparams"
        )
    if any(_calls(node, target) for node in tree.body):
        return ["python3", f"{MODULE}.py"]
    return ["python3", "-c", f"import {MODULE}; {MODULE}.{target}()"]


def _required(arguments: ast.arguments) -> list[str]:
    """The names of the arguments without a default."""
    positional = [*arguments.posonlyargs, *arguments.args]
    required = positional[: len(positional) - len(arguments.defaults)]
    by_name = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    return [arg.arg for arg in [*required, *(arg for arg, default in by_name if default is None)]]


def _calls(node: ast.stmt, function: str) -> bool:
    """Whether this statement of the top level calls the function when the module is run as a script."""
    if isinstance(node, _DEFINITIONS):
        return False
    called = (n.func for n in ast.walk(node) if isinstance(n, ast.Call))
    return any(isinstance(name, ast.Name) and name.id == function for name in called)


# The module's text.


def _replace(source: str, edits: list[tuple[ast.stmt | ast.expr, str]]) -> str:
    """The source with nodes replaced by expressions, each line where it was."""
    lines = source.encode().splitlines(keepends=True)  # columns of the ast are bytes
    for node, text in sorted(edits, key=lambda edit: (-edit[0].lineno, -edit[0].col_offset)):
        assert node.end_lineno is not None and node.end_col_offset is not None
        first, last = node.lineno - 1, node.end_lineno - 1
        before, after = lines[first][: node.col_offset], lines[last][node.end_col_offset :]
        filler = "\n" * (last - first)  # allowed within brackets
        lines[first : last + 1] = [before + f"({text}{filler})".encode() + after]
        lines = b"".join(lines).splitlines(keepends=True)
    return b"".join(lines).decode()
