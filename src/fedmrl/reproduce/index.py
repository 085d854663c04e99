"""The page of a reproduction: whether the paper's claims hold, with tables and charts, made only from measured cells.

Missing cells are shown as such.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from fedmrl.files import write_whole
from fedmrl.report.charts import Curve, difference_chart, limits_of, line_chart
from fedmrl.report.grid import Grid
from fedmrl.report.page import ALL_CLIENT_PROTOCOLS, percent, sample_worth, table_hint
from fedmrl.report.rendering import CURVE_SENTENCES, render
from fedmrl.report.styles import STYLES, WITHOUT_MRL, Style
from fedmrl.report.tables import NO_BREAK, format_seeds, format_time, join_words, signed
from fedmrl.reproduce.cells import Cell
from fedmrl.reproduce.claims import (
    CLAIMS,
    IN_SMALL_VERSION,
    KINDS,
    SMALL_VERSION_NOTE,
    Claim,
    client_gains,
    format_share,
    is_ahead,
    mode_means,
    standings,
)
from fedmrl.reproduce.experiments import CPU, EXPERIMENTS, METHOD_ORDER, PAPER, Scale
from fedmrl.reproduce.figures import PAPER_GAINS, SWEEPS, curve_values, smooth, window
from fedmrl.reproduce.measurements import (
    TITLES,
    Column,
    Kind,
    Measurement,
    Measurements,
    dataset_title,
    fewer_seeds,
    finished_seeds,
)
from fedmrl.reproduce.standings import BASELINES, Margin, measured_margin, paper_margin
from fedmrl.reproduce.tables import TABLE_NAMES, accuracy_grid, any_measured, cost_grid, difference
from fedmrl.results import PROTOCOLS, Protocol

Data = dict[str, Any]

MAX_POINTS = 60
"""The most points of a curve, since a panel is a few hundred pixels wide."""
CONTENTS: Mapping[str, str] = {
    "table": "Accuracy",
    "curves": "Over the rounds",
    "clients": "Client by client",
    "costs": "Cost of a target",
    "inference": "Inference modes",
    "sweeps": "One setting varied",
    "repeat": "Repeat it",
    "glossary": "Glossary",
}
SWEEP_WORDS: Mapping[str, tuple[str, str]] = {
    "non-iid-class": ("Classes per client", "classes per client"),
    "non-iid-dirichlet": ("Dirichlet parameter α", "α"),
    "d1": ("Dimension d₁ of the small model", "d₁"),
    "ablation": ("With and without Matryoshka learning", "d₁"),
}
"""Each sweep's title and x axis."""


def write_index(cells: Sequence[Cell], scale: Scale, folder: Path) -> Path:
    """Writes the page of a reproduction to index.html in its folder.

    The page of `results/paper`, or without one that of `results/paper-cpu`, goes to `results` itself.
    """
    larger = (folder.parent / PAPER.folder / "cells").exists()
    home = folder.parts[-2:] == ("results", scale.folder) and (scale is PAPER or (scale is CPU and not larger))
    path = (folder.parent if home else folder) / "index.html"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, index(cells, scale))
    return path


def index(cells: Sequence[Cell], scale: Scale) -> str:
    """The page as HTML."""
    shown = index_data(cells, scale)
    data = {
        "methods": shown["methods"],
        "curves": [panel["charts"] for panel in shown["curves"]],
        "clients": {protocol: [panel["chart"] for panel in panels] for protocol, panels in shown["clients"].items()},
        "sweeps": [[panel["charts"] for panel in sweep["panels"]] for sweep in shown["sweeps"]],
        "runs": shown["runs"],
    }
    return render("index", shown, data, "fedmrl.reproduce")


def index_data(cells: Sequence[Cell], scale: Scale) -> Data:
    """The data of the page."""
    measurements = Measurements(cells, scale)
    shown: Data = {
        "brand": "reproduction",
        "option": scale.option,
        "facts": _facts(measurements),
        "notes": [
            *([] if scale.has_paper else [SMALL_VERSION_NOTE]),
            *measurements.left_out_note(cell.setting for cell in cells),
        ],
        "disagreements": [
            sentence for kind in TABLE_NAMES for sentence in measurements.disagreements(measurements.columns(kind))
        ],
        "answers": {protocol: _answer(measurements, protocol) for protocol in PROTOCOLS},
        "styles": {TITLES[method]: STYLES[method].on_page for method in METHOD_ORDER},
        "kinds": {kind: words.capitalize() for kind, words in KINDS.items()},
        "tables": {
            kind: {protocol: _accuracy_table(measurements, kind, protocol) for protocol in PROTOCOLS}
            for kind in TABLE_NAMES
            if any_measured(measurements, kind)
        },
        "curves": _curves(measurements),
        "curves_say": {protocol: _curves_say(measurements, protocol) for protocol in PROTOCOLS},
        "clients": {protocol: _clients(measurements, protocol) for protocol in ALL_CLIENT_PROTOCOLS},
        "costs": _costs(measurements),
        "inference": {protocol: _inference(measurements, protocol) for protocol in ALL_CLIENT_PROTOCOLS},
        "sweeps": [found for name in SWEEPS if (found := _sweep(measurements, name))],
        "experiments": [{"name": name, "says": says, **_measured(measurements, name)} for name, says in EXPERIMENTS.items()],
        "hint": "Point at a chart, or focus it and use the arrow keys.",
        **_runs(cells, measurements),
    }
    drawn = {line["name"] for panel in shown["curves"] if panel["charts"] for line in panel["charts"]["fair"]["lines"]}
    shown["methods"] = [
        {"name": TITLES[method], "style": STYLES[method].on_page} for method in METHOD_ORDER[::-1] if TITLES[method] in drawn
    ]
    present = {
        "table": shown["tables"], "curves": shown["curves"], "clients": shown["clients"]["fair"], "costs": shown["costs"],
        "inference": shown["inference"]["fair"], "sweeps": shown["sweeps"], "repeat": True, "glossary": True,
    }  # fmt: skip
    shown["contents"] = {name: title for name, title in CONTENTS.items() if present[name]}
    return shown


# The headline


def _facts(measurements: Measurements) -> str:
    what = "FedMRL (NeurIPS 2024), reproduced" if measurements.has_paper else "FedMRL (NeurIPS 2024), a small reproduction"
    failed = sum(cell is not None and not cell.converged for cell in measurements.runs("all"))
    said = "{measured} of {of} runs are measured".format(**_measured(measurements, "all"))
    said += f", {failed} of which failed to converge" if failed else ""
    size = _format_rounds(measurements)
    return " · ".join(
        [what, join_words([dataset_title(d) for d in measurements.scale.datasets]), *([size] if size else []), said]
    )


def _format_rounds(measurements: Measurements) -> str:
    """The number of rounds in the main federation, if it is the same for all runs."""
    main = measurements.methods(measurements.main(measurements.scale.datasets[0]).setting)
    rounds = {int(cell.recipe["rounds"]) for measurement in main.values() for cell in measurement.cells}
    return f"{rounds.pop()} rounds" if len(rounds) == 1 else ""


def _measured(measurements: Measurements, what: str) -> Data:
    """The number of measured runs of an experiment, and of all its runs."""
    runs = measurements.runs(what)
    return {"measured": sum(cell is not None for cell in runs), "of": len(runs)}


def _answer(measurements: Measurements, protocol: Protocol) -> Data:
    """The result under a protocol: a title, a few sentences, and a card for each claim that can be judged."""
    title = _title(measurements, protocol)
    mains = [said for dataset in measurements.scale.datasets if (said := _main_sentence(measurements, dataset, protocol))]
    return {
        "title": title,
        "lead": "\n".join(mains),
        "cards": [card for claim in CLAIMS if (card := _card(claim, measurements, protocol))],
    }


def _card(claim: Claim, measurements: Measurements, protocol: Protocol) -> Data | None:
    """A claim with its verdict and numbers; None if it cannot be judged."""
    found = claim.evidence(measurements, protocol)
    if not found.held:
        return None
    values = [list(value) for value in found.values]
    return {"claim": claim.title, "verdict": claim.verdict(measurements, protocol), "values": values, "note": claim.note}


def _title(measurements: Measurements, protocol: Protocol) -> str:
    places = list(standings(measurements, protocol).values())
    if not places:
        return "Too few runs to rank FedMRL"
    leads = [place.margin.points for place in places if place.margin and place.first]
    behind = [-place.margin.points for place in places if place.margin and place.margin.behind]
    level = sum(place.level for place in places)
    where = f"{IN_SMALL_VERSION[0].upper()}{IN_SMALL_VERSION[1:]}, " if not measurements.has_paper else ""
    so_far = "" if measurements.is_whole("table-hetero") else " so far"
    if level == len(places):
        return f"{where}FedMRL is level with the best in {_all_of(level)}{so_far}"
    won = [place.first for place in places]
    tied = f"; level with the best in {level}" if level else ""
    return f"{where}FedMRL is {_first_in(won)}{so_far}{_by(leads) if any(won) else _by(behind, ' behind')}{tied}"


def _first_in(judged: Sequence[bool]) -> str:
    """Formats the number of federations in which FedMRL is first.

    >>> _first_in([True, False, True]), _first_in([True, True]), _first_in([False])
    ('first in 2 of 3 federations', 'first in both federations', 'not first in the only federation')
    """
    wins, every = sum(judged), len(judged)
    if every in (1, wins):
        return f"{'' if wins else 'not '}first in {_all_of(every)}"
    return f"first in {wins or 'none'} of {every} federations"


def _all_of(federations: int) -> str:
    return {1: "the only federation", 2: "both federations"}.get(federations, f"all {federations} federations")


def _by(points: Sequence[float], behind: str = "") -> str:
    """Formats a range of leads.

    >>> _by([0.12, 8.5]), _by([2.0], " behind"), _by([])
    (', by 0.1 to 8.5\\xa0points', ', 2.0\\xa0points behind', '')
    """
    if not points:
        return ""
    low, high = f"{min(points):.1f}", f"{max(points):.1f}"
    said = low if low == high else f"{low} to {high}"
    return f", {'' if behind else 'by '}{said}{NO_BREAK}points{behind}"


def _main_sentence(measurements: Measurements, dataset: str, protocol: Protocol) -> str:
    """FedMRL's accuracy at the main federation, and its lead."""
    main = measurements.main(dataset)
    measured = measurements.of(main.setting, "fedmrl")
    ours = measured.mean(protocol)
    if ours is None:
        return ""
    lead = measured_margin(measurements, main, protocol, BASELINES)
    name = main.dataset_title.replace("-", "\N{NON-BREAKING HYPHEN}")
    said = f"{name} with {main.federation_title}: FedMRL {ours:.2f}{NO_BREAK}%"
    said += f", {signed(lead.points)}{NO_BREAK}points against {_against(lead)}" if lead else ""
    said += f", over {format_seeds(lead.seeds)}, which both have" if lead and lead.seeds != measured.seeds else ""
    if protocol == "paper" and measurements.has_paper:
        theirs = measurements.paper("heterogeneous", main, "fedmrl")
        printed = paper_margin(measurements, "heterogeneous", main, BASELINES)
        if theirs is not None and printed:
            said += f" (the paper: {theirs:.2f}{NO_BREAK}%, {signed(printed.points)})"
    return f"{said}."


def _against(lead: Margin) -> str:
    return f"{TITLES[lead.against]}, the best of the others{'' if lead.complete else ' so far'}"


# Tables


def _accuracy_table(measurements: Measurements, kind: Kind, protocol: Protocol) -> Data:
    """The table of accuracies and, under the protocol `paper`, the differences from the paper."""
    shown = _grid(accuracy_grid(measurements, kind, protocol))
    if protocol == "paper" and measurements.has_paper:
        methods = {title: method for method, title in TITLES.items()}
        for row in (row for group in shown["groups"] for row in group if row["name"] in methods):
            for column, entry in zip(measurements.columns(kind), row["entries"], strict=True):
                points = difference(measurements, kind, column, methods[row["name"]])
                if points is not None:
                    entry["difference"] = signed(points)
        shown["notes"].insert(2, "After the brackets: ours minus the paper’s, in points.")
    return shown


def _grid(grid: Grid) -> Data:
    """A grid for the template; `edges` are the columns at which a group begins."""
    header = [
        [
            {"title": title, "span": span, "place": sum(before for _, before in row[:number])}
            for number, (title, span) in enumerate(row)
        ]
        for row in grid.header
    ]
    return {
        "caption": grid.caption,
        "corner": grid.corner,
        "header": header,
        "edges": [cell["place"] for cell in header[0]],
        "groups": [
            [{"name": name, "entries": [{**asdict(e), "difference": ""} for e in entries]} for name, entries in group]
            for group in grid.groups
        ],
        "notes": [*([f"{grid.best} of a column shaded, second underlined."] if grid.best else []), *grid.notes],
        "reached": any(entry.text[:1].isdigit() for group in grid.groups for _, entries in group for entry in entries),
    }


def _costs(measurements: Measurements) -> Data | None:
    """The table of costs by protocol; None if no method is measured in the main federation."""
    mains = [measurements.main(dataset) for dataset in measurements.scale.datasets]
    if not any(cell.spent for main in mains for method in METHOD_ORDER for cell in measurements.of(main.setting, method).cells):
        return None
    grids = {protocol: [cost_grid(measurements, protocol, place) for place in (0, 1)] for protocol in PROTOCOLS}
    return {protocol: [_grid(grid) for grid in of if grid] for protocol, of in grids.items()}


# Curves


def _curves(measurements: Measurements) -> list[Data]:
    """A panel for each dataset and federation, with the same limits for a dataset; empty if nothing can be drawn."""
    found = {column: _finished(measurements, column) for column in measurements.columns()}
    if not any(found.values()):
        return []
    curves = {p: {column: [_curve(m, o, p) for m, o in of.items()] for column, of in found.items()} for p in PROTOCOLS}

    def chart(column: Column, protocol: Protocol) -> Data:
        alike = [curve for other, of in curves[protocol].items() if other.dataset == column.dataset for curve in of]
        label = f"{column.title}: accuracy by round. Use the left and right arrow keys to read each round."
        shown = curves[protocol][column]
        titles = "communication round", "accuracy (%)"
        return line_chart(shown, label, *titles, limits=limits_of(alike), height=230).on_page()

    return [
        {
            "title": column.title,
            "charts": {protocol: chart(column, protocol) for protocol in PROTOCOLS} if of else None,
            "absent": _absent({TITLES[m]: o for m, o in measurements.methods(column.setting).items()}) if of else "",
        }
        for column, of in found.items()
    ]


def _finished(measurements: Measurements, column: Column) -> dict[str, Measurement]:
    """The finished measurements of a column, FedMRL first."""
    found = measurements.methods(column.setting)
    return {method: found[method] for method in METHOD_ORDER[::-1] if found[method].state == "finished"}


def _curves_say(measurements: Measurements, protocol: Protocol) -> str:
    found = [measurement for column in measurements.columns() for measurement in _finished(measurements, column).values()]
    most = max((len(curve_values(measurement, protocol)[0]) for measurement in found), default=0)
    said = [
        CURVE_SENTENCES[protocol],
        f"A line is a running mean over {window(most)} rounds; the table counts the best single round, which is higher."
        if protocol == "paper" and most
        else "",
        "Line: mean over seeds; band: their range." if any(len(measurement.cells) > 1 for measurement in found) else "",
    ]
    return " ".join(filter(None, said))


def _absent(found: Mapping[str, Measurement]) -> str:
    """Notes on what cannot be drawn, and why.

    >>> _absent({"FD": Measurement(), "FML": Measurement()})
    'Not measured: FD, FML.'
    """
    said = []
    for state, why in (
        ("failed", "Failed to converge"),
        ("missing", "Not measured"),
        ("incomparable", "No seed in common with the others"),
    ):
        names = [name for name, measurement in found.items() if measurement.state == state]
        said += [f"{why}: {', '.join(names)}."] if names else []
    fewer = [f"{name} ({seeds})" for name, seeds in fewer_seeds(found).items()]
    return " ".join([*said, *([f"Over fewer seeds: {', '.join(fewer)}."] if fewer else [])])


def _curve(method: str, measurement: Measurement, protocol: Protocol) -> Curve:
    rounds, values = curve_values(measurement, protocol)
    kept = thinned(len(rounds))
    return Curve(
        TITLES[method], STYLES[method], [rounds[place] for place in kept], smooth(values, protocol)[:, kept],
        strong=method == "fedmrl",
    )  # fmt: skip


def thinned(rounds: int) -> list[int]:
    """Indices of at most MAX_POINTS evenly spaced rounds, including the last.

    >>> thinned(3), thinned(120)[:3], thinned(120)[-1]
    ([0, 1, 2], [1, 3, 5], 119)
    """
    step = -(-rounds // MAX_POINTS) or 1
    return list(range(rounds - 1, -1, -step))[::-1]


# Clients, inference modes, sweeps


def _clients(measurements: Measurements, protocol: Protocol) -> list[Data]:
    """Each client's gain with FedMRL over FedProto, by dataset."""
    shown = []
    for dataset in measurements.scale.datasets:
        main, gained = measurements.main(dataset), client_gains(measurements, dataset, protocol)
        if gained:
            share = f"{np.mean(gained.shares):.0f}{NO_BREAK}% of the clients gain"
            shown.append(
                {
                    "title": main.title,
                    "share": share,
                    "paper": f"The paper: {PAPER_GAINS[dataset]}{NO_BREAK}%." if measurements.has_paper else "",
                    "said": " ".join([f"Bars: {gained.said}.", *([worth] if (worth := _worth(measurements, main)) else [])]),
                    "chart": difference_chart(
                        "FedMRL", "FedProto", STYLES["fedmrl"], STYLES["fedproto"], gained.points, f"{main.title}: "
                    ).on_page(),
                }
            )
    return shown


def _worth(measurements: Measurements, column: Column) -> str:
    """A sentence on how much one test sample counts, if clients have few of them."""
    found = [cell.clients.test_samples for cell in measurements.of(column.setting, "fedmrl").cells if cell.clients]
    return sample_worth(found[0]) if found and found[0] else ""


def _inference(measurements: Measurements, protocol: Protocol) -> list[Data]:
    """The accuracy of each inference mode, by dataset."""
    mains = [measurements.main(dataset) for dataset in measurements.scale.datasets]
    found = {main.title: mode_means(measurements.of(main.setting, "fedmrl"), protocol) for main in mains}
    return [{"title": title, "modes": [*modes.items()]} for title, modes in found.items() if modes]


def _sweep(measurements: Measurements, name: str) -> Data | None:
    """A panel for each dataset that has measurements beyond those in the tables."""
    sweep, (title, axis) = SWEEPS[name], SWEEP_WORDS[name]
    names = list(sweep.lines)
    panels = []
    for dataset in measurements.scale.datasets:
        main, found = measurements.main(dataset).setting, sweep.compared(measurements, dataset)
        cells = [cell for of in found.values() for measurement in of for cell in measurement.cells]
        if all(cell.setting == main and cell.variant in METHOD_ORDER for cell in cells):
            continue
        lines = [{x: of[place] for x, of in found.items()} for place in range(len(names))]
        absent = {
            f"{names[place]} at {x:g}": measurement for place, line in enumerate(lines) for x, measurement in line.items()
        }
        label = f"{measurements.main(dataset).title}: accuracy by {axis}. Use the left and right arrow keys to read each value."
        panels.append(
            {
                "title": measurements.main(dataset).title,
                "charts": {
                    protocol: line_chart(
                        [curve for place, line in enumerate(lines) if (curve := _line(names[place], line, protocol))],
                        label, axis, "accuracy (%)", place=lambda x: f"{axis} = {x:g}", x_ticks=list(found), height=220,
                    ).on_page()
                    for protocol in PROTOCOLS
                },
                "absent": _absent(absent),
                "said": {protocol: _sweep_sentence(found, names, axis, protocol) for protocol in PROTOCOLS},
            }
        )  # fmt: skip
    shown = [(name, _style(name).on_page) for name in names]
    return {"name": name, "title": title, "axis": axis, "lines": shown, "panels": panels} if panels else None


def _style(name: str) -> Style:
    methods = {title: method for method, title in TITLES.items()}
    return WITHOUT_MRL if "without" in name else STYLES[methods.get(name, "fedmrl")]


def _line(name: str, points: Mapping[float, Measurement], protocol: Protocol) -> Curve | None:
    found = {x: measurement.accuracies(protocol) for x, measurement in points.items() if measurement.state == "finished"}
    style = _style(name)
    return (
        Curve(name, style, [*found], 100 * np.array([*found.values()]).T, strong=style is STYLES["fedmrl"]) if found else None
    )


def _sweep_sentence(found: Mapping[float, tuple[Measurement, ...]], names: Sequence[str], axis: str, protocol: Protocol) -> str:
    over = format_seeds(finished_seeds(measurement for of in found.values() for measurement in of))
    if len(names) > 1:
        wins = is_ahead(found, protocol)
        return f"{names[0]} is ahead of {names[1]} at {format_share(wins)} measured values ({over})." if wins else ""
    means = {x: mean for x, (measurement,) in found.items() if (mean := measurement.mean(protocol)) is not None}
    if len(means) < 2:
        return ""
    best = max(means, key=lambda x: means[x])
    lost = max(means.values()) - min(means.values())
    if f"{lost:.1f}" == "0.0":
        return f"The same at every {axis} ({over})."
    return f"Best at {axis} = {best:g}, {lost:.1f}{NO_BREAK}points above the worst ({over})."


# How to repeat it


def _runs(cells: Sequence[Cell], measurements: Measurements) -> Data:
    """A table of all runs with what is needed to repeat them, and the total device time."""
    cells = sorted(cells, key=lambda cell: cell.key)
    # The recorded time covers all seeds that were run together, and all runs that shared the device.
    seconds = [cell.wall_seconds / (cell.together * cell.at_once) for cell in cells]
    computed = [cell.cpu_seconds / cell.together for cell in cells]
    spent: dict[str, float] = {}
    for cell, own in zip(cells, seconds, strict=True):
        spent[cell.device] = spent.get(cell.device, 0.0) + own
    total = join_words([f"{format_time(of)} on {device}" for device, of in spent.items()])
    total += f" ({format_time(sum(computed))} of CPU time)" if sum(computed) else ""
    wanted = {(one.setting, one.variant, seed) for one in measurements.specs("all") for seed in one.seeds}
    beyond = sum(cell.key not in wanted for cell in cells)
    more = f" ({beyond:,} of them not needed for tables and figures)" if beyond else ""
    if not cells:
        return {"runs": None, "repeat_says": "Nothing is measured yet. This command measures everything and updates this page:"}
    columns = [
        {"title": "run", "values": [f"{cell.setting} {cell.variant}" for cell in cells]},
        *(_accuracies(protocol, [cell.measured(protocol) for cell in cells]) for protocol in PROTOCOLS),
        {"title": "seed", "number": True, "values": [cell.seed for cell in cells]},
        _times("seconds", seconds),
        _times("CPU seconds", computed),
        {"title": "seeds at once", "number": True, "values": [cell.together for cell in cells]},
        {"title": "device", "values": [cell.device for cell in cells]},
        {"title": "engine", "values": [cell.engine for cell in cells]},
        {"title": "versions", "values": [", ".join(f"{n} {number}" for n, number in cell.versions.items()) for cell in cells]},
        {
            "title": "final states", "code": True,
            "values": [cell.states_sha256[:12] + (" †" if cell.key in measurements.left_out else "") for cell in cells],
        },
        {"title": "command", "code": True, "values": [cell.command for cell in cells]},
    ]  # fmt: skip
    return {
        "runs": {"label": "Runs", "columns": columns, "hint": table_hint(len(cells))},
        "repeat_says": f"{total} for these {len(cells):,} runs, one after another{more}. This command runs what is missing "
        "and updates this page:",
    }


def _accuracies(title: str, values: Sequence[float | None]) -> Data:
    """A column of accuracies, in which diverged runs sort below all others."""
    labels = ["diverged" if value is None else percent(value) for value in values]
    return {"title": title, "number": True, "values": [-1 if v is None else round(v, 5) for v in values], "labels": labels}


def _times(title: str, seconds: Sequence[float]) -> Data:
    labels = [f"{value:.1f}" if value < 100 else f"{value:,.0f}" for value in seconds]
    return {"title": title, "number": True, "values": [round(value, 1) for value in seconds], "labels": labels}
