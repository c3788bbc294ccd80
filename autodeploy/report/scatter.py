"""Predicted against measured step times as a page: log-log, a 10 % band, the run under the pointer."""

from __future__ import annotations

from collections import defaultdict

from autodeploy.errors import spec_error
from autodeploy.fidelity.document import Validation
from autodeploy.fidelity.predict import Prediction

BAND = 0.10
HEIGHT = 850
SYMBOLS = {"dense": "circle", "moe": "diamond"}


def scatter_page(found: Validation) -> str:
    """A page that needs no other file. Raises `SpecError` where plotly is not installed."""
    try:
        import plotly.graph_objects as go
    except ModuleNotFoundError as error:
        raise spec_error("--html", "needs plotly", "pip install 'autodeploy[report]'") from error
    figure = go.Figure()
    steps = [each.run.step_s for each in found.known if each.run.step_s]
    ends = [min(steps, default=0.1) / 1.5, max(steps, default=10.0) * 1.5]
    for factor, name in ((1.0, "predicted = measured"), (1.0 + BAND, "+10 %"), (1.0 - BAND, "-10 %")):
        dash = "solid" if factor == 1.0 else "dot"
        line = {"color": "gray", "dash": dash, "width": 1}
        figure.add_scatter(x=ends, y=[factor * x for x in ends], mode="lines", line=line, name=name, hoverinfo="skip")
    colours = _colours(found)
    for name, members in sorted(_series(found).items()):
        figure.add_scatter(
            x=[each.run.step_s for each in members],
            y=[each.result.step_time_s for each in members if each.result],
            mode="markers", name=name, text=[_hover(each) for each in members], hoverinfo="text",
            marker={"size": 6, "symbol": SYMBOLS[members[0].run.kind], "color": colours[_hardware(members[0])]},
        )  # fmt: skip
    figure.update_xaxes(type="log", title="measured step time, s")
    figure.update_yaxes(type="log", title="predicted step time, s")
    figure.update_layout(title=_title(found), height=HEIGHT, template="plotly_white")
    page: str = figure.to_html(full_html=True, include_plotlyjs=True, div_id="predicted-against-measured")
    return page


def _series(found: Validation) -> dict[str, list[Prediction]]:
    series: dict[str, list[Prediction]] = defaultdict(list)
    for each in found.known:
        series[f"{_hardware(each)} {each.run.kind}"].append(each)
    return series


def _hardware(each: Prediction) -> str:
    return each.run.space.cluster.name


def _colours(found: Validation) -> dict[str, str]:
    """One hue per kind of machine, spread evenly over the circle."""
    names = sorted({_hardware(each) for each in found.known})
    return {name: f"hsl({round(360 * i / len(names))}, 65%, {(40, 60)[i % 2]}%)" for i, name in enumerate(names)}


def _title(found: Validation) -> str:
    return f"{len(found.known)} published runs, none fitted: predicted against measured step time"


def _hover(each: Prediction) -> str:
    row, error, result = each.run.row, each.error_frac or 0.0, each.result
    lines = (
        f"<b>{row.id}</b> {row.model} on {each.run.space.devices} x {each.run.space.cluster.name}",
        each.run.plan_text,
        f"predicted {result.step_time_s:.3g} s, measured {each.run.step_s:.3g} s, {error:+.1%}" if result else "",
        row.source,
    )
    return "<br>".join(lines)
