"""The paper's figures, drawn from measured cells in the paper's width and font.

A method has the same style in all figures. Missing and diverged runs are left out and named in a note.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedmrl.files import replacing
from fedmrl.report.figures import PRINT, new_figure
from fedmrl.report.rendering import CURVE_SENTENCES, MODEL_PHRASES
from fedmrl.report.styles import DASHED, STYLES, WITHOUT_MRL, Dash, Style
from fedmrl.report.tables import count, format_seeds
from fedmrl.reproduce.cells import Cell
from fedmrl.reproduce.experiments import METHOD_ORDER, Scale, class_setting
from fedmrl.reproduce.measurements import (
    COSTS,
    TITLES,
    Measurement,
    Measurements,
    dataset_title,
    fewer_seeds,
    finished_seeds,
    over_common_seeds,
)
from fedmrl.results import PROTOCOLS, Protocol

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

Values = NDArray[np.float64]

WIDTH = 5.5
"""The text width of NeurIPS papers, in inches."""
SUFFIXES = ("png", "svg", "pdf")
GREY = "#666666"
PROTOCOL_DASHES: Mapping[Protocol, Dash] = {"fair": "-", "own": ":", "paper": DASHED}
PAPER_GAINS: Mapping[str, int] = {"cifar10": 87, "cifar100": 99}
"""The percentage of clients that, according to the paper, gain with FedMRL over FedProto."""
MODES: Mapping[str, str] = {
    "mix-large": STYLES["fedmrl"].light,
    "mix-small": "#eba580",
    "single-large": "#666666",
    "single-small": "#B3B3B3",
}


def write_figures(cells: Sequence[Cell], scale: Scale, folder: Path) -> list[Path]:
    """Writes the figures that the cells allow to the subfolder `figures`; returns their paths."""
    from matplotlib import rc_context

    measurements, written = Measurements(cells, scale), []
    with rc_context(PRINT):
        for name, draw in FIGURES.items():
            if figure := draw(measurements):
                written += [_save(figure, folder / "figures" / f"{name}.{suffix}") for suffix in SUFFIXES]
    return written


def _save(figure: "Figure", path: Path) -> Path:
    kind = path.suffix.removeprefix(".")
    path.parent.mkdir(parents=True, exist_ok=True)
    # Without a creation date, the same cells give the same file.
    metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind)
    with replacing(path) as part:
        figure.savefig(part, format=kind, dpi=200, metadata=metadata)
    return path


# Shared by all figures


def _panels(rows: int, columns: int, size: tuple[float, float], **shared: Any) -> "tuple[Figure, list[Axes]]":
    figure = new_figure(*size)
    return figure, list(figure.subplots(rows, columns, squeeze=False, **shared).flat)


def _width(panels: int) -> float:
    return max(3.3, min(WIDTH, 2.75 * panels))


def _legend(figure: "Figure", styles: Mapping[str, Style], columns: int) -> None:
    """Draws a legend above all panels."""
    from matplotlib.lines import Line2D

    lines = [
        Line2D([], [], color=s.light, linestyle=s.dash, marker=s.marker, markersize=4, linewidth=1.4, label=title)
        for title, s in styles.items()
    ]
    figure.legend(handles=lines, loc="outside upper center", ncols=columns, handlelength=2.0, columnspacing=1.2)


def _notes(figure: "Figure", notes: Iterable[str]) -> None:
    """Draws notes below all panels, in additional space."""
    text = "\n".join(fill(note, int(24 * figure.get_figwidth())) for note in notes if note)
    if text:
        figure.set_figheight(figure.get_figheight() + 0.12 * (1 + text.count("\n")))  # so that the panels keep their height
        figure.supxlabel(text, x=0.01, ha="left", fontsize=6.5, color=GREY)


def _round_ticks(axis: "Axis", ticks: int = 5, *, whole: bool = False) -> None:
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(ticks, steps=[1, 2, 5, 10], integer=whole))


def _empty(axes: "Axes", measurements: Iterable[Measurement]) -> None:
    """Draws an empty panel with the reason."""
    why = "failed to converge" if any(measurement.state == "failed" for measurement in measurements) else "not measured"
    axes.text(0.5, 0.5, why, transform=axes.transAxes, ha="center", va="center", color=GREY, fontstyle="italic")
    axes.spines[:].set_visible(False)
    axes.tick_params(bottom=False, labelbottom=False, left=False, labelleft=False)


def _label(panels: Sequence["Axes"], text: str) -> None:
    """Labels the y axis of the first panel."""
    panels[0].set_ylabel(text)
    panels[0].tick_params(labelleft=True)


def _absences(found: Sequence[tuple[str, str, Measurement]], failed: str = "Failed to converge") -> list[str]:
    """Notes on what is left out and why, grouped by name or by place, whichever is shorter."""
    notes = []
    for state, said in (("failed", failed), ("missing", "Not measured"), ("incomparable", "No seed in common with the others")):
        absent = [(name, place) for name, place, measurement in found if measurement.state == state]
        listed = min(_grouped(absent), _grouped([(place, name) for name, place in absent]), key=len)
        notes += [f"{said}: {listed}."] if absent else []
    return notes


def _fewer_note(found: Mapping[str, Mapping[str, Measurement]]) -> str:
    """A note on means over fewer seeds than others in the same place."""
    fewer = [(TITLES[m], f"{place}: {seeds}") for place, of in found.items() for m, seeds in fewer_seeds(of).items()]
    return f"Over fewer seeds than others: {_grouped(fewer)}." if fewer else ""


def _grouped(pairs: Sequence[tuple[str, str]]) -> str:
    """Groups pairs by their first element.

    >>> _grouped([("FD", "here"), ("FD", "there"), ("FML", "here")])
    'FD (here, there); FML (here)'
    """
    groups: dict[str, list[str]] = {}
    for first, second in pairs:
        groups.setdefault(first, []).append(second)
    return "; ".join(f"{first} ({', '.join(seconds)})" for first, seconds in groups.items())


# Accuracy by round


def curves_figure(measurements: Measurements, protocol: Protocol) -> "Figure | None":
    """Draws accuracy by round: a row for each dataset, a column for each federation that was run; one federation makes a row.

    Curves of the protocol `paper` are smoothed.
    """
    everywhere = measurements.columns()
    found = {c: measurements.methods(c.setting) for c in everywhere}
    run = {c.federation for c in everywhere if any(one.state in ("finished", "failed") for one in found[c].values())}
    columns = [c for c in everywhere if c.federation in run]
    shown = [c for c in columns if any(measurement.state == "finished" for measurement in found[c].values())]
    if not shown:
        return None
    rows, wide = (1, len(columns)) if len(run) == 1 else (len(measurements.scale.datasets), len(run))
    figure, panels = _panels(rows, wide, (WIDTH, 0.55 + 1.5 * rows), sharey="row" if rows > 1 else False)
    for number, (axes, column) in enumerate(zip(panels, columns, strict=True)):
        axes.set_title(column.title)
        if column not in shown:
            _empty(axes, found[column].values())
            continue
        for place, (method, measurement) in enumerate(found[column].items()):
            if measurement.state == "finished":
                _draw_curve(axes, measurement, protocol, STYLES[method], emphasised=method == "fedmrl", place=place)
        axes.grid(visible=True)
        _round_ticks(axes.xaxis, whole=True)
        if number // wide == rows - 1:
            axes.set_xlabel("communication round")
    together = [range(row * wide, (row + 1) * wide) for row in range(rows)] if rows > 1 else [[n] for n in range(wide)]
    for here in together:  # panels of one dataset share their limits
        _fit([panels[number] for number in here if columns[number] in shown])
    drawn = [m for m in METHOD_ORDER if any(found[c][m].state == "finished" for c in shown)]
    _legend(figure, {TITLES[method]: STYLES[method] for method in drawn}, columns=len(drawn) if len(drawn) < 6 else 4)
    absent = [
        (TITLES[method], column.short, found[column][method])
        for method in METHOD_ORDER
        for column in columns
        if column in shown or found[column][method].state == "failed"  # an empty panel shows the reason itself
    ]
    never = dict.fromkeys(c.federation_title.partition(",")[0] for c in everywhere if c.federation not in run)
    _notes(
        figure,
        [
            _curve_note((found[c] for c in columns), protocol),
            _fewer_note({c.short: found[c] for c in shown}),
            *_absences(absent),
            f"No runs with {' or '.join(never)}." if never else "",
        ],
    )
    return figure


def _curve_note(found: Iterable[Mapping[str, Measurement]], protocol: Protocol) -> str:
    several = any(len(measurement.cells) > 1 for of_column in found for measurement in of_column.values())
    band = " Line: mean over seeds, band: their range." if several else ""
    smoothed = " Running mean; faint: as measured." if protocol == "paper" else ""
    return CURVE_SENTENCES[protocol] + smoothed + band


def curve_values(measurement: Measurement, protocol: Protocol) -> tuple[list[int], Values]:
    """The rounds that all seeds have, and the accuracy in percent by seed and round."""
    curves = [dict(cell.curve(protocol)) for cell in measurement.cells]
    rounds = sorted(set.intersection(*map(set, curves)))
    return rounds, np.array([[100 * curve[r] for r in rounds] for curve in curves])


def running_mean(values: Values, window: int) -> Values:
    """The mean over a window around each value; at both ends, over the available part of the window.

    >>> running_mean(np.array([0.0, 3.0, 6.0, 0.0]), window=3)
    array([1.5, 3. , 3. , 3. ])
    """
    sums, index = np.concatenate([[0.0], np.cumsum(values)]), np.arange(len(values))
    first, last = np.maximum(index - window // 2, 0), np.minimum(index + window // 2 + 1, len(values))
    means: Values = (sums[last] - sums[first]) / (last - first)
    return means


def window(rounds: int) -> int:
    """The width of the running mean, in evaluated rounds."""
    return max(3, rounds // 20)


def smooth(values: Values, protocol: Protocol) -> Values:
    """Replaces the noisy curves of the protocol `paper` by running means; other curves stay as they are."""
    return np.array([running_mean(seed, window(len(seed))) for seed in values]) if protocol == "paper" else values


def _draw_curve(
    axes: "Axes", measurement: Measurement, protocol: Protocol, style: Style, *, emphasised: bool, place: int
) -> None:
    rounds, values = curve_values(measurement, protocol)
    order = 10 if emphasised else 3
    if protocol == "paper":
        axes.plot(rounds, values.mean(axis=0), color=style.light, linewidth=0.4, alpha=0.22, zorder=1)
        values = smooth(values, protocol)
    if len(values) > 1:
        low, high = values.min(axis=0), values.max(axis=0)
        axes.fill_between(rounds, low, high, color=style.light, alpha=0.18, linewidth=0, zorder=order - 1)
    step = max(1, len(rounds) // 5)
    first = min(1 + place * step // len(METHOD_ORDER), len(rounds) - 1)  # so that the markers of two methods rarely overlap
    axes.plot(
        rounds, values.mean(axis=0), color=style.light, linestyle=style.dash, linewidth=1.8 if emphasised else 0.9,
        marker=style.marker, markersize=3.6 if emphasised else 2.6, markevery=(first, step), zorder=order,
    )  # fmt: skip


def _fit(panels: Sequence["Axes"]) -> None:
    """Sets the shared y limits of a row of panels; the low accuracies of the first rounds are cut off."""
    if not panels:
        return
    lines = [line.get_xydata() for axes in panels for line in axes.lines]
    settled = np.concatenate([points[points[:, 0] >= 0.06 * points[-1, 0], 1] for points in map(np.asarray, lines)])
    room = 0.07 * max(1.0, float(np.ptp(settled)))
    panels[0].set_ylim(float(settled.min()) - room, min(101.0, float(settled.max()) + room))
    _label(panels, "accuracy (%)")
    _round_ticks(panels[0].yaxis)


# Each client


@dataclass(frozen=True)
class Gains:
    """Each client's gain with FedMRL over FedProto in points, with the seeds behind it."""

    points: Values
    said: str
    shares: tuple[float, ...]
    """The percentage of clients that gain, by seed."""


def gains(ours: Measurement, theirs: Measurement, protocol: Protocol = "fair") -> Gains | None:
    """The gains by client: the mean over seeds if all have the same split, otherwise those of the first seed."""
    others = {cell.seed: cell for cell in theirs.cells}
    pairs = [(cell, others[cell.seed]) for cell in ours.cells if cell.seed in others]
    pairs = [(a, b) for a, b in pairs if _split(a) is not None and _split(a) == _split(b)]
    if not pairs:
        return None
    points = [
        100 * (np.array(a.clients.accuracy(protocol)) - np.array(b.clients.accuracy(protocol)))
        for a, b in pairs
        if a.clients and b.clients
    ]
    shares = tuple(100 * float(np.mean(of_seed > 0)) for of_seed in points)
    seeds = [cell.seed for cell, _ in pairs]
    if len(pairs) == 1:
        return Gains(points[0], f"seed {seeds[0]}", shares)
    if all(_split(cell) == _split(pairs[0][0]) for cell, _ in pairs):
        return Gains(np.mean(points, axis=0), f"mean over seeds {', '.join(map(str, seeds))}", shares)
    said = f"seed {seeds[0]}, since each seed has its own split; with seeds {', '.join(map(str, seeds))}, "
    return Gains(points[0], said + ", ".join(f"{share:.0f}%" for share in shares) + " of clients gain", shares)


def _split(cell: Cell) -> tuple[list[list[int]], list[int]] | None:
    return (cell.clients.classes, cell.clients.train_samples) if cell.clients else None


def clients_figure(measurements: Measurements, protocol: Protocol) -> "Figure | None":
    """Draws FedMRL minus FedProto for each client, sorted, in the colour of the better method."""
    mains = [measurements.main(dataset) for dataset in measurements.scale.datasets]
    found = {m: gains(measurements.of(m.setting, "fedmrl"), measurements.of(m.setting, "fedproto"), protocol) for m in mains}
    if not any(found.values()):
        return None
    figure, panels = _panels(1, len(mains), (_width(len(mains)), 1.95), sharey=True)
    shown: list[Axes] = []
    for axes, (main, gained) in zip(panels, found.items(), strict=True):
        axes.set_title(main.title)
        if gained is None:
            _empty(axes, [measurements.of(main.setting, method) for method in ("fedmrl", "fedproto")])
            continue
        points = np.sort(gained.points)[::-1]
        better, worse = STYLES["fedmrl"].light, STYLES["fedproto"].light
        axes.bar(range(1, len(points) + 1), points, width=1.0, color=np.where(points > 0, better, worse), linewidth=0)
        axes.axhline(0, color="black", linewidth=0.6)
        axes.set_xlabel("clients, sorted")
        _round_ticks(axes.xaxis, whole=True)
        share, lost, same = (100 * float(np.mean(which)) for which in (points > 0, points < 0, points == 0))
        equal = f", equal: {same:.0f}%" if same else ""
        paper = f"\n(the paper: {PAPER_GAINS[main.dataset]}%)" if measurements.has_paper else ""
        won, within = f"FedMRL better: {share:.0f}% of clients{paper}", axes.transAxes
        axes.text(0.98, 0.97, won, color=better, ha="right", va="top", transform=within)
        axes.text(0.02, 0.04, f"FedProto better: {lost:.0f}%{equal}", color=worse, ha="left", va="bottom", transform=within)
        shown.append(axes)
    _label(shown, "FedMRL − FedProto\n(accuracy, points)")
    shown[0].set_ylim(*_room_for_text([np.sort(gained.points)[::-1] for gained in found.values() if gained]))
    said = [f"{main.dataset_title}: {gained.said}." for main, gained in found.items() if gained]
    _notes(figure, [f"Last round, each client {MODEL_PHRASES[protocol]}.", *said])
    return figure


def _room_for_text(sorted_points: Sequence[Values]) -> tuple[float, float]:
    """Y limits that leave room for text: one line at the lower left and two lines at the upper right."""
    low = 1.05 * min(-0.5, *(float(points.min()) for points in sorted_points))
    high = 1.05 * max(0.5, *(float(points.max()) for points in sorted_points))
    left = min(0.0, *(float(points[: int(0.6 * len(points)) + 1].min()) for points in sorted_points))
    right = max(0.0, *(float(points[int(0.35 * len(points)) :].max()) for points in sorted_points))
    for _ in range(20):  # the text's height is a share of the axis, which it enlarges, so iterate
        tall = high - low
        low, high = min(low, left - 0.17 * tall), max(high, right + 0.3 * tall)
    return low, high


# Costs


def costs_figure(measurements: Measurements, protocol: Protocol) -> "Figure | None":
    """Draws rounds, parameters and FLOPs until each target that a method reached, in one row of panels for each."""
    found = {dataset: measurements.methods(measurements.main(dataset).setting) for dataset in measurements.scale.datasets}
    targets = [(dataset, target) for dataset in found for target in measurements.targets(dataset)]
    rows = [
        (dataset, target)
        for dataset, target in targets
        if any((cost := one.cost(protocol, target, "rounds")) and cost.values for one in found[dataset].values())
    ]
    if not rows:
        return None
    figure, panels = _panels(len(rows), len(COSTS), (WIDTH, 0.1 + 1.6 * len(rows)), sharey=True)
    for (axes, what), (dataset, target) in zip(
        zip(panels, [*COSTS] * len(rows), strict=True), [row for row in rows for _ in COSTS], strict=True
    ):
        if what == "rounds":
            axes.set_title(f"{measurements.main(dataset).title}: until {100 * target:g}% accuracy")
        _draw_costs(axes, found[dataset], protocol, target, what)
        axes.set_xlabel(
            COSTS[what] + ("" if what == "rounds" else " per client") + (" (log scale)" if axes.get_xscale() == "log" else "")
        )
    way = (
        "As in the paper: accuracy of a round's participants; a participant's cost in a round × rounds."
        if protocol == "paper"
        else f"Accuracy of all clients, each {MODEL_PHRASES[protocol]}; real cost, mean over all clients."
    )
    several = any(len(measurement.cells) > 1 for of in found.values() for measurement in of.values())
    seeds = "Mean over seeds; (k/n): mean over the k of n seeds that reached the target." if several else ""
    fewer = _fewer_note({measurements.main(dataset).short: of for dataset, of in found.items()})
    unreached = [f"{100 * target:g}% on {dataset_title(d)}" for d, target in targets if (d, target) not in rows]
    never = f"Reached by no measured method: {', '.join(unreached)}." if unreached else ""
    _notes(figure, [way, f"Parameters: sent and received. {seeds}".strip(), fewer, never])
    return figure


def _draw_costs(axes: "Axes", found: Mapping[str, Measurement], protocol: Protocol, target: float, what: str) -> None:
    from matplotlib.ticker import FuncFormatter

    costs = {method: measurement.cost(protocol, target, what) for method, measurement in found.items()}
    means = {method: float(np.mean(cost.values)) for method, cost in costs.items() if cost and cost.values}
    positive = [value for value in means.values() if value > 0] or [1.0]
    low, high = min(positive), max(positive)
    logarithmic = high > 30 * low
    start = 10 ** (np.floor(np.log10(low)) - 0.5) if logarithmic else 0.0
    axes.set_xscale("log" if logarithmic else "linear")
    axes.set_xlim(start, start * (high / start) ** 1.45 if logarithmic else 1.4 * high)
    for place, (method, cost) in enumerate(costs.items()):
        colour, mean = STYLES[method].light, means.get(method)
        if cost and mean is not None:
            axes.barh(place, max(mean - start, 0), left=start, height=0.7, color=colour, linewidth=0)
            text = count(mean) + ("" if cost.everywhere else f" ({len(cost.values)}/{cost.seeds})")
        else:
            text = {"failed": "– failed", "missing": "· not measured"}.get(found[method].state, "not reached")
        seen = mean is not None
        axes.annotate(
            text, (max(mean or 0, start), place), xytext=(3, 0), textcoords="offset points", va="center", fontsize=7,
            color="black" if seen else GREY, fontstyle="normal" if seen else "italic",
            fontweight="bold" if seen and method == "fedmrl" else "normal",
        )  # fmt: skip
    if not means:
        axes.set_xticks([])
    elif not logarithmic:
        _round_ticks(axes.xaxis, 4)
    axes.minorticks_off()
    axes.set_yticks(range(len(costs)), [TITLES[method] for method in costs])
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(costs) - 0.5, -0.5)
    if what != "rounds":
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: count(value)))


# Inference modes


def inference_figure(measurements: Measurements, protocol: Protocol) -> "Figure | None":
    """Draws the final accuracy of each inference mode."""
    mains = [measurements.main(dataset) for dataset in measurements.scale.datasets]
    found = {main: measurements.of(main.setting, "fedmrl") for main in mains}
    if not any(measurement.state == "finished" for measurement in found.values()):
        return None
    figure, panels = _panels(1, len(mains), (_width(len(mains)), 1.8), sharey=True)
    for axes, (main, measurement) in zip(panels, found.items(), strict=True):
        axes.set_title(main.title)
        if measurement.state != "finished":
            _empty(axes, [measurement])
            continue
        for place, (mode, colour) in enumerate(MODES.items()):
            values = [100 * of[mode] for cell in measurement.cells if mode in (of := cell.served(protocol))]
            if not values:
                continue
            deviation = float(np.std(values, ddof=1)) if len(values) > 1 else None
            axes.bar(
                place, np.mean(values), yerr=deviation, width=0.68, color=colour, error_kw={"elinewidth": 0.7, "capthick": 0.7}
            )
            top = float(np.mean(values)) + (deviation or 0)
            axes.annotate(
                f"{np.mean(values):.1f}", (place, top), xytext=(0, 2), textcoords="offset points", ha="center", fontsize=7.5
            )
        axes.set_xticks(range(len(MODES)), list(MODES))
        axes.tick_params(axis="x", length=0)
    _label(
        [axes for axes, measurement in zip(panels, found.values(), strict=True) if measurement.state == "finished"],
        "accuracy (%)",
    )
    panels[0].set_ylim(0, 108)
    panels[0].set_yticks(range(0, 101, 25))
    several = any(len(measurement.cells) > 1 for measurement in found.values())
    spread = " Error bars: sample standard deviation over seeds." if several else ""
    places = [("FedMRL", main.short, measurement) for main, measurement in found.items() if measurement.state == "failed"]
    _notes(figure, [f"Last round, each client {MODEL_PHRASES[protocol]}; mean over all clients.{spread}", *_absences(places)])
    return figure


# Sweeps


@dataclass(frozen=True)
class Sweep:
    """A figure in which one setting varies along the x axis."""

    axis: str
    lines: Mapping[str, Style]
    points: Callable[[Measurements, str], dict[float, tuple[Measurement, ...]]]
    """Returns the measurements of all lines, by value of the setting, for a dataset."""

    def compared(self, measurements: Measurements, dataset: str) -> dict[float, tuple[Measurement, ...]]:
        """The points over the seeds they have in common, since the runs of the tables have more seeds than others."""
        found = self.points(measurements, dataset)
        over = over_common_seeds({(x, line): measurement for x, of in found.items() for line, measurement in enumerate(of)})
        return {x: tuple(over[x, line] for line in range(len(of))) for x, of in found.items()}


def _by_classes(measurements: Measurements, dataset: str) -> dict[float, tuple[Measurement, ...]]:
    settings = {number: class_setting(dataset, number, measurements.scale) for number in measurements.scale.classes[dataset]}
    return {x: (measurements.of(setting, "fedmrl"), measurements.of(setting, "fedproto")) for x, setting in settings.items()}


def _by_alpha(measurements: Measurements, dataset: str) -> dict[float, tuple[Measurement, ...]]:
    settings = {alpha: f"{measurements.main(dataset).setting}-dirichlet-{alpha}" for alpha in measurements.scale.alphas}
    return {x: (measurements.of(setting, "fedmrl"), measurements.of(setting, "fedproto")) for x, setting in settings.items()}


def _by_dim(measurements: Measurements, dataset: str) -> dict[float, tuple[Measurement, ...]]:
    setting = measurements.main(dataset).setting
    return {d1: (measurements.of_dim(setting, d1),) for d1 in measurements.scale.dims}


def _by_dim_and_mrl(measurements: Measurements, dataset: str) -> dict[float, tuple[Measurement, ...]]:
    setting = measurements.main(dataset).setting
    return {
        d1: (measurements.of_dim(setting, d1), measurements.of_dim(setting, d1, mrl=False)) for d1 in measurements.scale.dims
    }


AGAINST_FEDPROTO = {"FedMRL": STYLES["fedmrl"], "FedProto": STYLES["fedproto"]}
SWEEPS: Mapping[str, Sweep] = {
    "non-iid-class": Sweep("classes per client", AGAINST_FEDPROTO, _by_classes),
    "non-iid-dirichlet": Sweep(r"Dirichlet parameter $\alpha$", AGAINST_FEDPROTO, _by_alpha),
    "d1": Sweep("representation dimension $d_1$", {"FedMRL": STYLES["fedmrl"]}, _by_dim),
    "ablation": Sweep(
        "representation dimension $d_1$",
        {"FedMRL with MRL": STYLES["fedmrl"], "FedMRL without MRL": WITHOUT_MRL},
        _by_dim_and_mrl,
    ),
}


def sweep_figure(measurements: Measurements, sweep: Sweep) -> "Figure | None":
    """Draws a sweep, with a panel for each dataset; the dash of a line tells the protocol."""
    mains = [measurements.main(dataset) for dataset in measurements.scale.datasets]
    found = {main: sweep.compared(measurements, main.dataset) for main in mains}
    shown = [main for main, points in found.items() if any(o.state == "finished" for of in points.values() for o in of)]
    if not shown:
        return None
    figure, panels = _panels(1, len(mains), (_width(len(mains)), 2.15))
    for axes, main in zip(panels, mains, strict=True):
        axes.set_title(main.title)
        if main not in shown:
            _empty(axes, [measurement for of in found[main].values() for measurement in of])
            continue
        for number, style in enumerate(sweep.lines.values()):
            for protocol in PROTOCOLS:
                _draw_sweep(axes, {x: measurements[number] for x, measurements in found[main].items()}, protocol, style)
        axes.set_xticks(list(found[main]))
        axes.margins(y=0.12)
        bottom, top = axes.get_ylim()
        crossed = any(measurement.state == "failed" for of in found[main].values() for measurement in of)
        axes.set_ylim(bottom - (0.12 * (top - bottom) if crossed else 0), min(101.0, top))
        _round_ticks(axes.yaxis)
        low, high = min(found[main]), max(found[main])
        axes.set_xlim(low - 0.06 * (high - low), high + 0.06 * (high - low))
        axes.set_xlabel(sweep.axis)
        axes.grid(visible=True, axis="y")
    _label([axes for axes, main in zip(panels, mains, strict=True) if main in shown], "accuracy (%)")
    protocols: dict[str, Style] = {protocol: Style(GREY, GREY, "", PROTOCOL_DASHES[protocol]) for protocol in PROTOCOLS}
    _legend(figure, {**sweep.lines, **protocols}, columns=2 if len(mains) == 1 else 5)
    absent = [
        (name, f"{main.dataset_title} at {x:g}", measurement)
        for main in shown
        for x, of in found[main].items()
        for name, measurement in zip(sweep.lines, of, strict=True)
    ]
    seeds = {main: finished_seeds(measurement for of in found[main].values() for measurement in of) for main in shown}
    several = any(len(measurement.cells) > 1 for _, _, measurement in absent)
    _notes(
        figure,
        [
            " ".join(f"{main.dataset_title}: {format_seeds(of)}." for main, of in seeds.items()),
            "Error bars: sample standard deviation, where there are several seeds." if several else "",
            *_absences(absent, "Failed to converge (×)"),
        ],
    )
    return figure


def _draw_sweep(axes: "Axes", points: Mapping[float, Measurement], protocol: Protocol, style: Style) -> None:
    spreads = [measurement.percent(protocol) for measurement in points.values()]
    fair = protocol == "fair"
    axes.errorbar(
        list(points), [spread.mean if spread else np.nan for spread in spreads],
        yerr=[(spread.deviation or 0) if spread else np.nan for spread in spreads], elinewidth=0.7, capthick=0.7,
        color=style.light, linestyle=PROTOCOL_DASHES[protocol], linewidth=1.5 if fair else 0.9, marker=style.marker,
        markersize=4 if fair else 3.2, markerfacecolor=style.light if fair else "white", zorder=4 if fair else 3,
    )  # fmt: skip
    failed = [x for x, measurement in points.items() if measurement.state == "failed"]
    if failed:
        axes.plot(failed, [0.04] * len(failed), "x", color=style.light, markersize=5, transform=axes.get_xaxis_transform())


FIGURES: "Mapping[str, Callable[[Measurements], Figure | None]]" = {
    "curves": partial(curves_figure, protocol="fair"),
    "curves-own": partial(curves_figure, protocol="own"),
    "curves-paper": partial(curves_figure, protocol="paper"),
    "clients": partial(clients_figure, protocol="fair"),
    "clients-own": partial(clients_figure, protocol="own"),
    "costs": partial(costs_figure, protocol="fair"),
    "costs-own": partial(costs_figure, protocol="own"),
    "costs-paper": partial(costs_figure, protocol="paper"),
    "inference": partial(inference_figure, protocol="fair"),
    "inference-own": partial(inference_figure, protocol="own"),
    **{name: partial(sweep_figure, sweep=sweep) for name, sweep in SWEEPS.items()},
}
