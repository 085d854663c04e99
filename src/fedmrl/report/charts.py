"""Descriptions of charts, with all limits and labels, which the page's script (`charts.js`) and `figures` only draw."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmrl.errors import UserError
from fedmrl.report.styles import Style
from fedmrl.report.tables import percentage, signed
from fedmrl.results import Protocol, RunResult

Values = NDArray[np.float64]

MAX_BARS = 300
"""The most bars in a chart of differences; more would be thinner than a pixel on a phone."""
MAX_HEAT_MAP_CLIENTS = 500
"""The most clients in a heat map, for the same reason."""
LABEL_STEPS = ((20, 1), (100, 5), (MAX_HEAT_MAP_CLIENTS, 10))
"""Pairs (clients, step): a heat map of at most so many clients labels each step-th one."""


@dataclass(frozen=True)
class Axis:
    """An axis: its title, limits, and ticks with their labels."""

    title: str
    low: float
    high: float
    ticks: Sequence[tuple[float, str]]

    def on_page(self) -> dict[str, Any]:
        """The axis as JSON for the page's script."""
        return {"title": self.title, "low": round(self.low, 3), "high": round(self.high, 3), "ticks": self.ticks}


@dataclass(frozen=True)
class Curve:
    """The data of a line: accuracy in percent by seed (S) and x (X)."""

    name: str
    style: Style
    x: Sequence[float]
    values_SX: Values
    end: str = ""
    """The label at the line's end; if empty, the last mean."""
    rings: Sequence[tuple[float, float]] = ()
    """Points to mark with a ring, such as best rounds."""
    strong: bool = False


@dataclass(frozen=True)
class Line:
    """A line to draw: the mean over seeds at each x and, for several seeds, their range."""

    name: str
    style: Style
    x: Sequence[float]
    mean: Sequence[float]
    low: Sequence[float] | None
    high: Sequence[float] | None
    end: str
    rings: Sequence[tuple[float, float]]
    strong: bool

    @property
    def labels(self) -> list[str]:
        """The mean at each x as text."""
        return [percentage(value) for value in self.mean]

    @property
    def spreads(self) -> list[str] | None:
        """The range over seeds at each x as text."""
        return [f"({a:.1f}–{b:.1f})" for a, b in zip(self.low, self.high, strict=True)] if self.low and self.high else None


@dataclass(frozen=True)
class LineChart:
    """A line chart with all its labels."""

    label: str
    """A description for screen readers."""
    x: Axis
    y: Axis
    lines: Sequence[Line]
    places: Mapping[float, str]
    """The name of each x, such as "Round 3"."""
    height: int = 360
    """The height on a page, in pixels."""

    def ends(self, apart: float) -> list[float]:
        """The y positions of the lines' end labels, separated by at least `apart`, a share of the height."""
        return spread_labels([line.mean[-1] for line in self.lines], self.y.low, self.y.high, apart)

    def on_page(self) -> dict[str, Any]:
        """The chart as JSON for the page's script; a line has null where it has no value at an x."""
        rows = zip(self.lines, self.ends(17 / (self.height - 50)), strict=True)
        return {
            "label": self.label, "height": self.height, "x": self.x.on_page(), "y": self.y.on_page(),
            "places": [*self.places.items()],
            "lines": [
                {
                    "name": line.name, "style": line.style.on_page, "strong": line.strong,
                    "end": line.end, "endAt": round(at, 2),
                    "rings": [[x, round(value, 2)] for x, value in line.rings],
                    "mean": self._aligned(line, np.round(line.mean, 2)), "labels": self._aligned(line, line.labels),
                    **({"low": self._aligned(line, np.round(line.low, 2))} if line.low else {}),
                    **({"high": self._aligned(line, np.round(line.high, 2))} if line.high else {}),
                    **({"spreads": self._aligned(line, line.spreads)} if line.spreads else {}),
                }
                for line, at in rows
            ],
        }  # fmt: skip

    def _aligned(self, line: Line, values: Iterable[Any]) -> list[Any]:
        found = dict(zip(line.x, values, strict=True))
        return [found.get(x) for x in self.places]


def line_chart(
    curves: Sequence[Curve],
    label: str,
    x_title: str,
    y_title: str,
    *,
    place: Callable[[float], str] = lambda x: f"Round {x:g}",
    x_ticks: Sequence[float] | None = None,
    limits: tuple[float, float] | None = None,
    height: int = 360,
) -> LineChart:
    """Describes a line chart; without `limits`, the y axis fits the curves."""
    every = sorted({x for curve in curves for x in curve.x})
    first, last = (every[0], every[-1]) if every else (0.0, 1.0)
    low, high = limits or limits_of(curves)
    marks = ticks(first, last, 6, whole=True) if x_ticks is None else [x for x in x_ticks if first <= x <= last]
    return LineChart(
        label,
        Axis(x_title, first, last, [(x, f"{x:g}") for x in marks]),
        Axis(y_title, low, high, [(y, f"{y:g}") for y in ticks(low, high, 5)]),
        [_line(curve) for curve in curves],
        {x: place(x) for x in every},
        height,
    )


def accuracy_chart(series: Sequence[tuple[str, Style, Sequence[RunResult]]], protocol: Protocol) -> LineChart:
    """Describes accuracy by round, with one line for each series; under the protocol `paper`, rings mark the best rounds."""
    curves = [
        Curve(
            name,
            style,
            [round_ for round_, _ in runs[0].curve(protocol)],
            _by_seed(runs, protocol),
            ("best " if protocol == "paper" else "")
            + percentage(100 * float(np.mean([run.headline(protocol) for run in runs]))),
            [(run.best.best_round, 100 * run.best.best) for run in runs] if protocol == "paper" else (),
        )
        for name, style, runs in series
    ]
    label = "Accuracy by round. Use the left and right arrow keys to read each round."
    whose = "the round’s participants" if protocol == "paper" else "all clients"
    return line_chart(curves, label, "communication round", f"accuracy of {whose} (%)")


def _by_seed(runs: Sequence[RunResult], protocol: Protocol) -> Values:
    curves = [dict(run.curve(protocol)) for run in runs]
    if any(list(curve) != list(curves[0]) for curve in curves):
        folders = ", ".join(str(run.folder) for run in runs)
        raise UserError(
            f"{folders}: these runs have one recipe but different rounds, so a rounds.jsonl is damaged; repeat the run"
        )
    return 100 * np.array([list(curve.values()) for curve in curves])


def _line(curve: Curve) -> Line:
    mean = curve.values_SX.mean(axis=0)
    several = len(curve.values_SX) > 1
    low = curve.values_SX.min(axis=0).tolist() if several else None
    high = curve.values_SX.max(axis=0).tolist() if several else None
    end = curve.end or percentage(mean[-1])
    return Line(curve.name, curve.style, curve.x, mean.tolist(), low, high, f"{curve.name} {end}", curve.rings, curve.strong)


def limits_of(curves: Iterable[Curve]) -> tuple[float, float]:
    """The y limits for some curves: their range with a margin, within 0 to 100."""
    parts = [np.append(curve.values_SX.ravel(), [value for _, value in curve.rings]) for curve in curves]
    values = np.concatenate(parts) if parts else np.array([0.0, 100.0])
    low, high = float(values.min()), float(values.max())
    room = max(0.08 * (high - low), 2.0)
    return max(0.0, low - room), min(100.0, high + room)


def ticks(low: float, high: float, most: int, *, whole: bool = False) -> list[float]:
    """Round numbers between two limits.

    >>> ticks(27.1, 55.9, 5), ticks(2, 6, 6, whole=True)
    ([30.0, 40.0, 50.0], [2.0, 3.0, 4.0, 5.0, 6.0])
    """
    from matplotlib.ticker import MaxNLocator

    if low == high:
        return [low]
    found = MaxNLocator(most, steps=[1, 2, 5, 10], integer=whole, min_n_ticks=1).tick_values(low, high)
    return [round(float(tick), 9) for tick in found if low - 1e-9 <= tick <= high + 1e-9]


def spread_labels(values: Sequence[float], low: float, high: float, apart: float) -> list[float]:
    """Moves label positions until they are at least `apart` (a share of the height) from each other.

    >>> spread_labels([50.0, 10.0, 51.0], 0.0, 100.0, 0.1)
    [50.0, 10.0, 60.0]
    """
    step, order = apart * (high - low), np.argsort(values, kind="stable")
    places = list(values)
    for before, place in pairwise(order):
        places[place] = max(places[place], places[before] + step)
    ceiling = high
    for place in order[::-1]:
        places[place] = min(places[place], ceiling)
        ceiling = places[place] - step
    return places


@dataclass(frozen=True)
class DifferenceChart:
    """The difference between two methods for each client, in points, from the largest gain to the largest loss."""

    label: str
    gain: Style
    loss: Style
    clients: Sequence[int]
    points: Sequence[float]
    y: Axis
    ties: tuple[int, int] | None
    """The first and last bar of the clients with a difference of zero."""
    counts: tuple[int, int, int]
    """The numbers of clients that gain, lose, and stay the same."""

    def on_page(self) -> dict[str, Any]:
        """The chart as JSON for the page's script, which reads a bar's height from its label."""
        tied = self.counts[2]
        return {
            "label": self.label, "gain": self.gain.on_page, "loss": self.loss.on_page, "clients": self.clients,
            "labels": [signed(value, 1) for value in self.points], "y": self.y.on_page(),
            "ties": [*self.ties, f"{tied:,} tie{'s' if tied > 1 else ''}"] if self.ties else None,
        }  # fmt: skip


def difference_chart(first: str, second: str, gain: Style, loss: Style, points: Values, name: str = "") -> DifferenceChart:
    """Describes the first method's gain over the second by client; above `MAX_BARS` clients, a regular subset is drawn."""
    points = np.round(points, 6)  # rounding errors of the means must not break ties
    order = np.argsort(-points, kind="stable")
    shown = order[:: -(-len(order) // MAX_BARS)]
    low, high = 1.1 * min(-1.0, float(points.min())), 1.1 * max(1.0, float(points.max()))
    tied = np.flatnonzero(points[shown] == 0)
    counts = tuple(int(which.sum()) for which in (points > 0, points < 0, points == 0))
    label = f"{name}accuracy of {first} minus that of {second}, client by client. Use the left and right arrow keys."
    return DifferenceChart(
        label[0].upper() + label[1:],
        gain,
        loss,
        shown.tolist(),
        np.round(points[shown], 1).tolist(),
        Axis(f"{first} − {second}, points", low, high, [(y, signed(y, 1).removesuffix(".0")) for y in ticks(low, high, 5)]),
        (int(tied[0]), int(tied[-1])) if len(tied) else None,
        (counts[0], counts[1], counts[2]),
    )


@dataclass(frozen=True)
class HeatMap:
    """The number of training samples by client (K) and class (C); colours range from `low` to `high`."""

    counts_KC: NDArray[np.int64]
    classes: Sequence[str]

    @property
    def low(self) -> int:
        """The lowest count above zero."""
        return int(self.counts_KC[self.counts_KC > 0].min(initial=self.high))

    @property
    def high(self) -> int:
        """The highest count."""
        return max(1, int(self.counts_KC.max(initial=0)))

    def on_page(self) -> dict[str, Any]:
        """The heat map as JSON for the page's script; a client is a flat list of class, count, class, count, …"""
        shown = self.counts_KC[:MAX_HEAT_MAP_CLIENTS]
        every = next(n for most, n in LABEL_STEPS if len(shown) <= most)
        label = (
            f"Training samples of {len(shown)} clients in {len(self.classes)} classes. Use the arrow keys to read each cell."
        )
        return {
            "label": label, "names": self.classes, "low": self.low, "high": self.high,
            "every": {"names": 1 if len(self.classes) <= 30 else 5, "clients": every},
            "counts": [[int(n) for place in np.flatnonzero(own) for n in (place, own[place])] for own in shown],
        }  # fmt: skip


def heat_map(split: Sequence[Mapping[int, int]], classes: Sequence[str]) -> HeatMap:
    """Describes a split, given as the number of training samples by class for each client."""
    counts_KC = np.zeros((len(split), len(classes)), dtype=np.int64)
    for client, own in enumerate(split):
        for label, count in own.items():
            counts_KC[client, label] = count
    return HeatMap(counts_KC, classes)
