"""Specs as pictures and HTML without scripts: what a saved notebook shows without a kernel.

No global state of matplotlib is touched: the kernel's own thread may be drawing at the same time.
"""

import base64
import io
from html import escape

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from detlab_widgets.palette import COLOURS, WIDTHS
from detlab_widgets.spec import ChartSpec, ExperimentSpec, Role, Table

WIDTH, HEIGHT = 760, 360  # pixels on the page
LARGEST_SHARP = 60_000  # bytes
_COLOURS = 64
_SHARPNESS = 1.6  # pixels of the picture for one on the page
_DPI = 96
_TEXT, _GRID = "#333333", "#e8e8e8"
_BORDER = "border: 1px solid #cccccc; padding: 2px 8px; text-align: left"


def draw(chart: ChartSpec) -> Figure:
    """The chart as a matplotlib figure: one line for each series, labelled alike."""
    figure = Figure(figsize=(WIDTH / _DPI, HEIGHT / _DPI), facecolor="white", layout="constrained")
    axes = figure.add_subplot(facecolor="white")
    for series in chart.series:
        axes.plot(
            series.x,
            series.y,
            label=series.label,
            color=COLOURS[series.role],
            linewidth=WIDTHS[series.role] * 0.75,  # points
            linestyle="-",
            marker="o" if len(series.x) == 1 or (series.role is Role.BEST and len(series.x) <= 30) else "",
            markersize=4,
            alpha=0.7 if series.role is Role.ENDED else 1.0,
        )
    axes.set_title(_text(chart.title), fontsize=11, color=_TEXT)
    axes.set_xlabel(_text(chart.x_label), fontsize=9, color=_TEXT)
    axes.set_ylabel(_text(chart.y_label), fontsize=9, color=_TEXT)
    axes.tick_params(labelsize=8, colors=_TEXT)
    axes.grid(True, color=_GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    best = [line for line, series in zip(axes.lines, chart.series, strict=True) if series.role is Role.BEST]
    if best:
        axes.legend(handles=best, fontsize=8, title="best", title_fontsize=8, labelcolor=_TEXT)
    if chart.note or not chart.series:
        note = chart.note or "no validation has been reported yet"
        axes.annotate(_text(note), (0.99, 0.98), xycoords="axes fraction", ha="right", va="top", fontsize=8)
    return figure


def picture(chart: ChartSpec) -> bytes:
    """The chart as a PNG: sharper than the page where that takes at most LARGEST_SHARP bytes, else as the page."""
    figure = draw(chart)
    sharp = _png(figure, _DPI * _SHARPNESS)
    return sharp if len(sharp) <= LARGEST_SHARP else _png(figure, _DPI)


def _png(figure: Figure, dpi: float) -> bytes:
    canvas = FigureCanvasAgg(figure)
    figure.set_dpi(dpi)
    canvas.draw()  # type: ignore[no-untyped-call]
    pixels = canvas.buffer_rgba()  # type: ignore[no-untyped-call]
    drawn = Image.frombuffer("RGBA", canvas.get_width_height(), pixels).convert("RGB")
    # A chart has few colours. Naming them halves the picture.
    few = drawn.quantize(_COLOURS, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    target = io.BytesIO()
    few.save(target, "png")
    return target.getvalue()


def chart_html(chart: ChartSpec) -> str:
    data = base64.b64encode(picture(chart)).decode()
    count = len(chart.series)
    words = escape(f"{chart.title}, {count} series by {chart.x_label}")
    return f'<img src="data:image/png;base64,{data}" alt="{words}" width="{WIDTH}">'


def table_html(table: Table) -> str:
    head = "".join(f'<th style="{_BORDER}">{escape(name)}</th>' for name in table.columns)
    rows = []
    for row in table.rows:
        weight = ' style="font-weight: bold"' if row.best else ""
        cells = "".join(f'<td style="{_BORDER}">{escape(cell)}</td>' for cell in row.cells)
        rows.append(f"<tr{weight}>{cells}</tr>")
    note = f"<p>{escape(table.note)}</p>" if table.note else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>{note}"


def rest_html(experiment_id: int, spec: ExperimentSpec | None, *, trouble: str = "", as_of: str = "") -> str:
    """All but the chart. `trouble`: why there is nothing newer; `as_of`: when it was so, if it may change."""
    title = spec.title if spec is not None else f"Experiment {experiment_id}"
    lines = [f"<b>{escape(title)}</b>"]
    if spec is not None:
        lines[0] += f" {escape(spec.state)}, {spec.progress:.0%}"
        lines.append(escape(spec.summary))
    if trouble:
        lines.append(escape(trouble))
    if as_of:
        lines.append(f"as of {escape(as_of)}; run the cell again to see it now")
    table = table_html(spec.table) if spec is not None else ""
    return f"<p>{'<br>'.join(lines)}</p>{table}"


def _text(text: str) -> str:
    """Matplotlib reads TeX between dollar signs; a name is none."""
    return text.replace("$", r"\$")
