"""Figures: the accuracy of several methods over the rounds, and who has which data."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedmrl.report.looks import Look

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def new_figure(width: float, height: float) -> "Figure":
    """An empty figure that needs no screen."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


Curve = Sequence[tuple[int, float]]


def accuracy_figure(
    curves: Mapping[str, Sequence[Curve]], looks: Mapping[str, Look], title: str, subtitle: str, path: Path
) -> None:
    """Accuracy over rounds: a line for each method in its own look, the mean over its seeds, with their range shaded."""
    from matplotlib.ticker import MaxNLocator

    figure = new_figure(8, 4.8)
    axes: Axes = figure.subplots()
    ends = []
    for name, seeds in curves.items():
        if not seeds:
            continue
        rounds = [r for r, _ in seeds[0]]
        values = 100 * np.array([[accuracy for _, accuracy in seed] for seed in seeds])
        mean, colour = values.mean(axis=0), looks[name].light
        axes.plot(rounds, mean, color=colour, marker=looks[name].marker, markersize=5, linewidth=2)
        if len(seeds) > 1:
            axes.fill_between(rounds, values.min(axis=0), values.max(axis=0), color=colour, alpha=0.15, linewidth=0)
        ends.append((mean[-1], rounds[-1], f"{name} {mean[-1]:.1f}%", colour))
    _label_ends(axes, ends)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("communication round")
    axes.set_ylabel("accuracy, mean over all clients (%)")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(plain(subtitle), fontsize=9, color="#555555", loc="left")
    axes.annotate(
        plain(title), (0, 1), xytext=(0, 24), xycoords="axes fraction", textcoords="offset points", fontsize=13,
        fontweight="bold",
    )  # fmt: skip
    _save(figure, path)


def plain(text: str) -> str:
    r"""A name that a person gave, as matplotlib shows it: dollar signs would be read as formulas.

    >>> plain("a$x$")
    'a\\$x\\$'
    """
    return text.replace("$", r"\$")


def _label_ends(axes: "Axes", ends: list[tuple[float, int, str, str]]) -> None:
    """Name each line at its end, apart enough to be read; a legend would make the eye travel."""
    if not ends:
        return
    low, high = axes.get_ylim()
    apart, place = (high - low) * 0.055, -np.inf
    for value, last, text, colour in sorted(ends):
        place = max(value, place + apart)
        axes.annotate(
            plain(text), (last, value), xytext=(1.01, place), textcoords=("axes fraction", "data"),
            color=colour, va="center", fontweight="bold", annotation_clip=False,
        )  # fmt: skip


def partition_figure(counts_KC: NDArray[np.int64], classes: Sequence[str], title: str, path: Path) -> None:
    """Who has what: a row for each client, a column for each class, darker for more samples."""
    clients, labels = counts_KC.shape
    figure = new_figure(min(14.0, 3.5 + 0.35 * labels), min(16.0, 2.2 + 0.22 * clients))
    axes: Axes = figure.subplots()
    shown = np.ma.masked_equal(counts_KC, 0)
    image = axes.imshow(shown, aspect="auto", cmap="Blues", vmin=0, vmax=max(1, int(counts_KC.max())), interpolation="nearest")
    figure.colorbar(image, ax=axes, label="samples", fraction=0.05, pad=0.02)
    few = clients * labels <= 600
    if few:
        for client, label in np.argwhere(counts_KC):
            count = int(counts_KC[client, label])
            dark = count > 0.6 * counts_KC.max()
            axes.text(label, client, str(count), ha="center", va="center", fontsize=7, color="white" if dark else "#333333")
    step = 1 if labels <= 30 else 10
    shown_classes = [plain(classes[i]) for i in range(0, labels, step)]
    axes.set_xticks(range(0, labels, step), shown_classes, fontsize=8)
    if max(map(len, shown_classes)) > 3:
        axes.tick_params(axis="x", rotation=60)
    step = max(1, -(-clients // 40))
    axes.set_yticks(range(0, clients, step), [str(i) for i in range(0, clients, step)], fontsize=8)
    axes.set_xlabel("class")
    axes.set_ylabel("client")
    axes.set_title(plain(title), fontsize=11, fontweight="bold", loc="left")
    _save(figure, path)


def _save(figure: "Figure", path: Path) -> None:
    options: dict[str, Any] = {"dpi": 150} if path.suffix == ".png" else {}
    figure.savefig(path, **options)
