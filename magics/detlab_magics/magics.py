"""%det and %%det_experiment: arguments, and one call."""
# IPython does not say what its decorators return:
# mypy: disable-error-code="no-untyped-call, untyped-decorator"

import shlex

from IPython.core.magic import Magics, cell_magic, line_magic, magics_class
from IPython.core.magic_arguments import argument, magic_arguments
from IPython.display import display

from detlab_magics import run
from detlab_magics.config import SEARCHERS
from detlab_magics.errors import OptionError
from detlab_magics.submit import submit

NAMES = {"line": ("det",), "cell": ("det_experiment",)}


@magics_class
class DetlabMagics(Magics):
    """The notebook's commands. Each has a function behind it: detlab_magics.det, status, submit."""

    @line_magic
    def det(self, line: str) -> run.ClusterStatus | None:
        """Look at the cluster, or run a `det` command.

            %det                          which cluster, who you are, which slots are free
            %det experiment list          any command of `det`; %det --help lists them
            %det experiment kill {e.id}   variables of the notebook in braces
            %det token                    make a token, to log in from elsewhere

        In a program: detlab_magics.status() and detlab_magics.det("experiment list").
        """
        if not line.strip():
            return run.status()
        run.det(line)
        return None

    @magic_arguments()
    @argument("--name", help="what the experiment is called; default: the class")
    @argument("--searcher", choices=SEARCHERS, help="default adaptive_asha, or single with nothing to search")
    @argument("--max-trials", type=int, metavar="N", help="how many trials the search may run")
    @argument("--metric", help="the validation metric to go by")
    @argument("--smaller-is-better", dest="smaller_is_better", action="store_true", default=None)
    @argument("--larger-is-better", dest="smaller_is_better", action="store_false", default=None)
    @argument("--max-length", type=int, metavar="BATCHES", help="how long a trial trains at most")
    @argument("--validation-period", type=int, metavar="BATCHES", help="how often a trial validates")
    @argument("--batch-size", type=int, metavar="N", help="hyperparameter global_batch_size")
    @argument("--slots", type=int, metavar="N", help="per trial")
    @argument("--pool", help="the resource pool")
    @argument("--config", metavar="FILE", help="an experiment configuration that all of this is laid over")
    @argument(
        "--include", nargs="+", action="extend", default=[], metavar="PATH", help="send these files too"
    )
    @argument("--trial", metavar="CLASS", help="which class to run, where the cell defines several")
    @argument(
        "--reuse", action="store_true", help="show the experiment that this cell submitted before, if any"
    )
    @argument("--as", dest="variable", default="experiment", metavar="NAME", help="the variable that gets it")
    @cell_magic
    def det_experiment(self, line: str, cell: str) -> None:
        """Train what this cell defines in the cluster, and show it under the cell.

        The cell defines a PyTorchTrial, or a function main() that uses the Core API. It runs in the cluster
        and not in this notebook, so it imports all that it uses. What a search may vary stands in it as well:

            hparams = {"learning_rate": loguniform(1e-4, 1e-1), "width": randint(4, 24), "dropout": uniform(0, 0.5)}

        The notebook is free at once, and the variable `experiment` holds the experiment. In a program:
        detlab_magics.submit(source, ...).
        """
        options = vars(self.det_experiment.parser.parse_args(_split(line)))
        variable = options.pop("variable")
        if not variable.isidentifier():
            raise OptionError(f"--as {variable}: this is no name for a variable")
        experiment = submit(cell, **options)
        assert self.shell is not None  # that calls us
        self.shell.push({variable: experiment})

        from detlab_widgets.experiment import ExperimentView  # takes a while

        display(ExperimentView(experiment.id))


def _split(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError as e:
        raise OptionError(f"cannot read {line!r}: {e}") from None
