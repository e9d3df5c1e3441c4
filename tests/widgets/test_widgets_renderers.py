import io
import math

import matplotlib.image
import numpy as np
import plotly.graph_objects as go  # type: ignore[import-untyped]
import pytest

from determined.experimental import TrialState
from detlab_widgets import plotly_view, spec, static_view
from detlab_widgets.facts import ExperimentFacts
from widgets.widget_facts import facts, trial

SEARCH = facts(
    trial(1, 0.5, 0.9), trial(2, 0.4, 0.3, 0.35), trial(3, 0.2, state=TrialState.RUNNING), trial(4)
)
LONG = facts(*(trial(i, *(math.sin(i + step / 40) for step in range(3000))) for i in range(1, 7)))
WIDE = facts(*(trial(i, *(math.sin(i * step) for step in range(60))) for i in range(1, 250)))


@pytest.mark.parametrize("search", [SEARCH, LONG, facts()], ids=["search", "long", "empty"])
def test_both_renderers_show_the_same_series(search: ExperimentFacts) -> None:
    chart = spec.learning_curves(search)
    live = {t["name"]: (t["x"], t["y"], t["line"]["color"]) for t in plotly_view.render(chart)["data"]}
    still = {
        line.get_label(): (
            np.asarray(line.get_xdata()).tolist(),
            np.asarray(line.get_ydata()).tolist(),
            line.get_color(),
        )
        for line in static_view.draw(chart).axes[0].lines
    }
    assert live == still
    assert list(live) == [series.label for series in chart.series]


@pytest.mark.parametrize("search", [SEARCH, WIDE, facts()], ids=["search", "wide", "empty"])
def test_plotly_knows_every_property(search: ExperimentFacts) -> None:
    rendered = plotly_view.render(spec.learning_curves(search))
    figure = go.Figure(rendered)  # raises for a property or a value that Plotly does not have
    assert len(figure.data) == len(rendered["data"])


def test_both_say_what_the_chart_leaves_out() -> None:
    chart = spec.learning_curves(WIDE)
    assert chart.note
    assert chart.note in str(plotly_view.render(chart)["layout"]["annotations"])
    assert chart.note in [text.get_text() for text in static_view.draw(chart).axes[0].texts]
    nothing = spec.learning_curves(facts())
    words = "no validation has been reported yet"
    assert words in str(plotly_view.render(nothing)["layout"]["annotations"])
    assert words in [text.get_text() for text in static_view.draw(nothing).axes[0].texts]


def test_the_picture_is_a_png_and_sharper_than_the_page_unless_it_is_crowded() -> None:
    for search, size in ((SEARCH, (576, 1216)), (facts(), (576, 1216)), (WIDE, (360, 760))):
        pixels = matplotlib.image.imread(io.BytesIO(static_view.picture(spec.learning_curves(search))))
        assert pixels.shape[:2] == size


def test_the_picture_shows_the_colours_of_the_roles() -> None:
    pixels = matplotlib.image.imread(io.BytesIO(static_view.picture(spec.learning_curves(SEARCH))))
    orange = (abs(pixels[..., :3] - [0xD5 / 255, 0x5E / 255, 0]).max(axis=-1) < 0.05).sum()
    assert orange > 500  # the line of the best


@pytest.mark.parametrize("search", [LONG, WIDE], ids=["long", "wide"])
def test_a_saved_view_stays_small(search: ExperimentFacts) -> None:
    shown = spec.experiment(search)
    html = static_view.chart_html(shown.chart) + static_view.rest_html(7, shown)
    assert len(html) + len(repr(plotly_view.render(shown.chart))) < 300_000


def test_names_are_text_and_neither_html_nor_tex() -> None:
    evil = facts(
        trial(1, 0.5, hparams={"lr": "<script>x</script>"}), name="<img src=x> $\\frac{$", metric="a_$b$"
    )
    shown = spec.experiment(evil)
    html = static_view.chart_html(shown.chart) + static_view.rest_html(7, shown, trouble="<b>away</b>")
    assert "<script" not in html
    assert "<img src=x" not in html
    assert "<b>away" not in html
    assert "&lt;script&gt;" in html
    rendered = str(plotly_view.render(shown.chart))
    assert "<script" not in rendered
    assert "<img" not in rendered
    assert "$" not in rendered


def test_a_view_that_knows_nothing_yet_says_why() -> None:
    html = static_view.rest_html(7, None, trouble="cannot reach the master", as_of="12:00")
    assert "Experiment 7" in html
    assert "cannot reach the master" in html
    assert "as of 12:00" in html
    assert "<table" not in html


def test_roles_look_different() -> None:
    chart = spec.learning_curves(SEARCH)
    colours = {line.get_label(): line.get_color() for line in static_view.draw(chart).axes[0].lines}
    assert len(set(colours.values())) == 3
