"""Figures in matplotlib: accuracy by round, and the split of the data over clients."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmrl.report.charts import HeatMap, LineChart

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def new_figure(width: float, height: float) -> "Figure":
    """An empty figure that needs no display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


# A serif font that comes with matplotlib and is embedded: as TrueType in a PDF, as paths in an SVG.
PRINT: dict[Any, Any] = {
    "font.family": "STIXGeneral", "mathtext.fontset": "stix", "font.size": 8, "axes.titlesize": 8, "axes.labelsize": 8,
    "xtick.labelsize": 7, "ytick.labelsize": 7, "legend.fontsize": 8, "legend.frameon": False, "axes.linewidth": 0.6,
    "xtick.major.width": 0.6, "ytick.major.width": 0.6, "xtick.major.size": 2.5, "ytick.major.size": 2.5,
    "axes.spines.top": False, "axes.spines.right": False, "axes.titlelocation": "left", "axes.axisbelow": True,
    "grid.color": "#dddddd", "grid.linewidth": 0.5, "pdf.fonttype": 42, "svg.fonttype": "path", "svg.hashsalt": "fedmrl",
    "text.hinting": "none", "figure.constrained_layout.w_pad": 0.04,
    "figure.constrained_layout.h_pad": 0.04, "figure.constrained_layout.wspace": 0.05, "figure.constrained_layout.hspace": 0.06,
    "errorbar.capsize": 1.5, "lines.solid_capstyle": "round",
}  # fmt: skip
COLUMN_WIDTH = 3.3
"""The width of a column in a two-column paper, in inches."""
HEAT_COLOURS = ("#d5e6f3", "#004a7c")
"""The colours of the lowest and the highest count, as on pages with a light background."""


def accuracy_figure(chart: LineChart, title: str, subtitle: str, path: Path) -> None:
    """Draws accuracy by round, with each line labelled at its end, which is easier to read than a legend."""
    figure = new_figure(8, 4.8)
    axes: Axes = figure.subplots()
    _draw_lines(axes, chart, width=2.0, size=5.0)
    for line, place in zip(chart.lines, chart.ends(0.055), strict=True):
        axes.annotate(
            escape_dollars(line.end), (line.x[-1], line.mean[-1]), xytext=(1.01, place), textcoords=("axes fraction", "data"),
            color=line.style.light, va="center", fontweight="bold", annotation_clip=False,
        )  # fmt: skip
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(escape_dollars(subtitle), fontsize=9, color="#555555", loc="left")
    axes.annotate(
        escape_dollars(title), (0, 1), xytext=(0, 24), xycoords="axes fraction", textcoords="offset points", fontsize=13,
        fontweight="bold",
    )  # fmt: skip
    _save(figure, path)


def column_figure(chart: LineChart, path: Path) -> None:
    """Draws accuracy by round for a column of a paper, without a title (the caption replaces it) and with a legend."""
    from matplotlib import rc_context

    with rc_context(PRINT):
        figure = new_figure(COLUMN_WIDTH, 1.9 + 0.14 * -(-len(chart.lines) // 2))
        axes: Axes = figure.subplots()
        _draw_lines(axes, chart, width=1.2, size=3.2)
        figure.legend(
            handles=axes.lines, loc="outside upper left", ncols=2, handlelength=1.6, columnspacing=1.2, labelspacing=0.25
        )
        # Without a creation date, the same runs give the same file.
        figure.savefig(path, metadata={"CreationDate": None} if path.suffix == ".pdf" else None)


def _draw_lines(axes: "Axes", chart: LineChart, width: float, size: float) -> None:
    for line in chart.lines:
        few = len(line.x) <= 40
        every = None if few else len(line.x) // 8
        axes.plot(
            line.x, line.mean, color=line.style.light, marker=line.style.marker, markevery=every, markersize=size,
            linewidth=width, label=escape_dollars(line.end),
        )  # fmt: skip
        if line.low and line.high:
            axes.fill_between(line.x, line.low, line.high, color=line.style.light, alpha=0.15, linewidth=0)
    axes.set_ylim(chart.y.low, chart.y.high)
    axes.set_xticks(*zip(*chart.x.ticks, strict=True))
    axes.set_yticks(*zip(*chart.y.ticks, strict=True))
    axes.set_xlabel(chart.x.title)
    axes.set_ylabel(chart.y.title)
    axes.grid(visible=True, color="#dddddd", linewidth=0.5)
    axes.set_axisbelow(True)


def escape_dollars(text: str) -> str:
    r"""Escapes dollar signs, between which matplotlib would expect a formula.

    >>> escape_dollars("a$x$")
    'a\\$x\\$'
    """
    return text.replace("$", r"\$")


def partition_figure(heat: HeatMap, title: str, path: Path) -> None:
    """Draws the number of training samples by client (rows) and class (columns); darker means more."""
    from matplotlib.colors import LinearSegmentedColormap

    counts_KC, classes = heat.counts_KC, heat.classes
    clients, labels = counts_KC.shape
    figure = new_figure(min(14.0, 3.5 + 0.35 * labels), min(16.0, 2.2 + 0.22 * clients))
    axes: Axes = figure.subplots()
    shown = np.ma.masked_equal(counts_KC, 0)
    colours = LinearSegmentedColormap.from_list("heat", HEAT_COLOURS)
    low = min(heat.low, heat.high - 1)
    image = axes.imshow(shown, aspect="auto", cmap=colours, vmin=low, vmax=heat.high, interpolation="nearest")
    figure.colorbar(image, ax=axes, label="training samples", fraction=0.05, pad=0.02)
    few = clients * labels <= 600
    if few:
        for client, label in np.argwhere(counts_KC):
            count = int(counts_KC[client, label])
            dark = count - low > 0.5 * (heat.high - low)
            axes.text(label, client, str(count), ha="center", va="center", fontsize=7, color="white" if dark else "#333333")
    step = 1 if labels <= 30 else 10
    shown_classes = [escape_dollars(classes[i]) for i in range(0, labels, step)]
    axes.set_xticks(range(0, labels, step), shown_classes, fontsize=8)
    if max(map(len, shown_classes)) > 3:
        axes.tick_params(axis="x", rotation=60)
    step = max(1, -(-clients // 40))
    axes.set_yticks(range(0, clients, step), [str(i) for i in range(0, clients, step)], fontsize=8)
    axes.set_xlabel("class")
    axes.set_ylabel("client")
    axes.set_title(escape_dollars(title), fontsize=11, fontweight="bold", loc="left")
    _save(figure, path)


def _save(figure: "Figure", path: Path) -> None:
    options: dict[str, Any] = {"dpi": 150} if path.suffix == ".png" else {}
    figure.savefig(path, **options)
