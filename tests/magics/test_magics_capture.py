"""From a cell to a module that a trial can run."""

import ast
import textwrap
from pathlib import Path

import pytest

from detlab_magics.capture import capture, undefined
from detlab_magics.errors import CaptureError

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "digits" / "model_def.py"


def cell(text: str) -> str:
    return textwrap.dedent(text).lstrip("\n")


TRIAL = cell(
    """
    from determined.pytorch import PyTorchTrial

    class Trial(PyTorchTrial):
        def __init__(self, context):
            self.rate = context.get_hparam("rate")
    """
)


def test_a_whole_example_goes_as_it_is() -> None:
    source = EXAMPLE.read_text()
    captured = capture(source)
    assert captured.source == source
    assert (captured.target, captured.entrypoint) == ("DigitsTrial", "model_def:DigitsTrial")
    assert captured.hyperparameters == {}
    assert captured.needs_batch_size
    assert captured.imports == {"__future__", "typing", "torch", "sklearn", "determined"}


def test_what_is_shipped_has_the_lines_of_the_cell() -> None:
    source = cell(
        """
        import math; from detlab_magics.searchspace import (
            loguniform,
            uniform as between,
        ); import json
        from detlab_magics import searchspace
        highest = 10 ** -1
        hparams: dict = {
            "ß": loguniform(1e-4, highest),  # a comment
            "dropout": between(0, 0.5), "fixed": math.pi,
        }; after = 1
        from determined import pytorch
        class Trial(pytorch.PyTorchTrial):
            first = hparams["fixed"], after, json
        """
    )
    captured = capture(source)
    assert captured.hyperparameters == {
        "ß": {"type": "log", "base": 10.0, "minval": -4.0, "maxval": -1.0},
        "dropout": {"type": "double", "minval": 0.0, "maxval": 0.5},
        "fixed": 3.141592653589793,
    }
    assert "detlab_magics" not in captured.source
    before, after = ast.parse(source), ast.parse(captured.source)
    assert [node.lineno for node in before.body] == [node.lineno for node in after.body]
    ran: dict[str, object] = {}
    exec(captured.source.replace("(pytorch.PyTorchTrial)", ""), ran)  # noqa: S102 - written above
    assert ran["hparams"] == captured.hyperparameters
    assert ran["after"] == 1


def test_only_what_hparams_needs_is_run_here() -> None:
    source = TRIAL + cell(
        """
        import definitely_not_installed_here
        def widths():
            return [lowest, 8]
        lowest = 4
        data = definitely_not_installed_here.load()
        hparams = {"width": widths(), "dropout": uniform(0, 1)}
        """
    )
    assert capture(source).hyperparameters["width"] == {"type": "categorical", "vals": [4, 8]}


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("import os.path as p\nprint(p, __name__, ValueError)", []),
        ("print(a, b)\nb = 1", ["a"]),
        ("def f(x, *y, z=w, **k):\n  q = [x for x in y]\n  return q, later\nlater = 1", ["w"]),
        ("class A:\n  x = 1\n  def f(self):\n    return x, __class__, super()", ["x"]),
        ("def f():\n  global g\n  g = 1\nprint(g)", []),
        ("from math import *\nprint(anything)", []),
        ("try:\n  import a\nexcept ImportError as e:\n  print(e)\nwith open('f') as f: a, f", []),
        ("match 1:\n  case [x, *rest]: print(x, rest)\nprint((y := 2), y)", []),
        ("for i in range(3): pass\nprint(i, lambda j: (i, j, k))", ["k"]),
        ("from __future__ import annotations\ndef f(x: Unknown) -> None: pass", []),
        ("@decorate\ndef f(): return display(1)", ["decorate", "display"]),
    ],
)
def test_undefined_names(code: str, names: list[str]) -> None:
    assert undefined(code) == names


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (TRIAL + "def f(:\n", "syntax error in line 6: invalid syntax\n    def f(:\n          ^"),
        ("import os\n!pip install x\n", "line 2 of the cell, '!pip install x', is for the notebook only"),
        ("%matplotlib inline\n", "is for the notebook only"),
        (TRIAL + "x = images[0], labels\n", "uses `images`, `labels`, which it neither defines nor imports"),
        ("x = 1\n", "defines nothing to run"),
        (
            TRIAL + "class Other(Trial): pass\n",
            "several trials, Trial, Other: name the one to run with --trial",
        ),
        (TRIAL + "hparams = [1]\n", "`hparams` is a list: it must be a dict"),
        (TRIAL + "hparams = {'a': 1 / 0}\n", "`hparams`, in line 6 of the cell: ZeroDivisionError"),
        (TRIAL + "hparams = {'a': uniform(1, 0)}\n", r"uniform(1, 0): the first must be below the second"),
        (TRIAL + "hparams = {'a': undefined_here}\n", "name 'undefined_here' is not defined"),
        (TRIAL + "hparams = {}\nhparams['a'] = 1\n", "line 7 of the cell uses `hparams` again"),
        (TRIAL + "hparams = {}\nhparams = {}\n", "`hparams` is assigned 2 times, in lines 6, 7"),
        (
            "from detlab_magics.searchspace import uniform\n" + TRIAL + "x = uniform(0, 1)\n",
            "What detlab_magics gives can be used in `hparams` only",
        ),
        ("def main(core_context): pass\n", "main wants the argument 'core_context'"),
        ("def main(*, a, b=1): pass\n", "main wants the argument 'a'"),
    ],
)
def test_what_cannot_be_sent(code: str, message: str) -> None:
    with pytest.raises(CaptureError) as caught:
        capture(code)
    assert message in str(caught.value)


def test_names_of_other_cells_are_pointed_out() -> None:
    with pytest.raises(CaptureError, match="Other cells of this notebook define it"):
        capture(TRIAL + "x = images\n", elsewhere={"images"})


def test_which_class_to_run() -> None:
    several = (
        TRIAL + "class Other(Trial): pass\nclass Third(module_of_mine.Base): pass\nimport module_of_mine\n"
    )
    assert capture(several, trial="Other").entrypoint == "model_def:Other"
    assert capture(several, trial="Third").entrypoint == "model_def:Third"
    with pytest.raises(CaptureError, match="defines no Missing"):
        capture(several, trial="Missing")


def test_a_main_of_the_core_api() -> None:
    called_by_us = ["python3", "-c", "import model_def; model_def.main()"]
    assert capture("def main(a=1, *, b=2): pass\n").entrypoint == called_by_us
    assert capture("def main():\n    main()\n").entrypoint == called_by_us
    script = ["python3", "model_def.py"]
    assert capture("def main(): pass\nif __name__ == '__main__':\n    main()\n").entrypoint == script
    assert not capture("def main(): pass\nmain()\n").is_trial_class


def test_hparams_within_functions_are_their_own() -> None:
    source = "def main():\n    hparams = {}\n    hparams['a'] = 1\n"
    assert capture(source).source == source
