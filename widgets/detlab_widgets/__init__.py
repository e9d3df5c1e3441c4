"""Live views of experiments in the notebook, which leave a picture behind in the saved file.

    import detlab_widgets

    detlab_widgets.show(7)

A view holds an id and nothing else: it follows the master, all views of a kernel over one connection, and
finds its experiment again when the cell is run again.
"""

from detlab_widgets.experiment import ExperimentView, show

__all__ = ["ExperimentView", "show"]
