"""A chart spec as a Plotly figure, in the plain JSON that plotly.js and its mime type take."""

import gzip
import html
from functools import cache
from importlib import resources
from typing import Any

from detlab_widgets.palette import COLOURS, WIDTHS
from detlab_widgets.spec import ChartSpec, Role, Series

MIME = "application/vnd.plotly.v1+json"
HEIGHT = 380  # pixels
_MARKERS_UP_TO = 30  # points of a line whose single reports should be seen


def render(chart: ChartSpec) -> dict[str, Any]:
    """`{"data": [...], "layout": {...}}`."""
    axis = {"showgrid": True, "gridcolor": "#e8e8e8", "zeroline": False, "automargin": True}
    layout: dict[str, Any] = {
        "title": {"text": _text(chart.title), "font": {"size": 15}},
        "xaxis": {**axis, "title": {"text": _text(chart.x_label)}, "rangemode": "tozero"},
        "yaxis": {**axis, "title": {"text": _text(chart.y_label)}},
        "height": HEIGHT,
        "margin": {"l": 60, "r": 20, "t": 45, "b": 50},
        "showlegend": False,
        "hovermode": "closest",
        "paper_bgcolor": "#ffffff",
        "plot_bgcolor": "#ffffff",
        "font": {"color": "#333333"},
        "uirevision": "kept",  # a zoom survives the next update
    }
    if chart.note:
        layout["annotations"] = [_corner(chart.note, y=1.0)]
    if not chart.series:
        layout["annotations"] = [_corner("no validation has been reported yet", y=0.9)]
    return {"data": [_trace(series) for series in chart.series], "layout": layout}


@cache
def packed_library() -> bytes:
    """plotly.js of the installed plotly package, gzipped: the browser gets it from the kernel."""
    source = resources.files("plotly").joinpath("package_data", "plotly.min.js").read_bytes()
    return gzip.compress(source, compresslevel=6, mtime=0)


def _trace(series: Series) -> dict[str, Any]:
    colour = COLOURS[series.role]
    hover = "<br>".join(_text(line) for line in (series.label, *series.details))
    return {
        "type": "scatter",
        "mode": "lines+markers" if len(series.x) <= _MARKERS_UP_TO else "lines",
        "name": series.label,
        "x": list(series.x),
        "y": list(series.y),
        "line": {"color": colour, "width": WIDTHS[series.role]},
        "marker": {"color": colour, "size": 6 if series.role is Role.BEST else 4},
        "opacity": 0.7 if series.role is Role.ENDED else 1.0,
        "text": hover,
        "hovertemplate": "%{y} at %{x}<br>%{text}<extra></extra>",
    }


def _corner(text: str, y: float) -> dict[str, Any]:
    return {"text": _text(text), "xref": "paper", "yref": "paper", "x": 1.0, "y": y, "showarrow": False}


def _text(text: str) -> str:
    """Plotly reads a little HTML and LaTeX in texts; names of experiments and metrics are neither."""
    return html.escape(text, quote=False).replace("$", "&#36;")
