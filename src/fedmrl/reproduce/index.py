"""The page of a reproduction: one HTML file that says whether the paper's claims hold, made from measured cells alone.

Cells that are missing are said, no error.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from fedmrl.files import write_whole
from fedmrl.report.charts import Curve, difference_chart, limits_of, line_chart
from fedmrl.report.grid import Grid
from fedmrl.report.looks import LOOKS, WITHOUT_MRL, Look
from fedmrl.report.page import OF_ALL, listed, percent, sample_worth, table_hint
from fedmrl.report.rendering import PROTOCOL_LABELS, render
from fedmrl.report.tables import NO_BREAK, seeds_said, signed, time_said
from fedmrl.reproduce.cells import Cell
from fedmrl.reproduce.claims import CLAIMS, IN_TOY, TOY, Claim, client_gains, is_ahead, mode_means, share_said, standings
from fedmrl.reproduce.experiments import CPU, EXPERIMENTS, METHOD_ORDER, PAPER, Scale
from fedmrl.reproduce.figures import PAPER_GAINS, SWEEPS, curve_values, smooth, window
from fedmrl.reproduce.outcomes import (
    TITLES,
    Column,
    Kind,
    Outcome,
    Outcomes,
    dataset_title,
    fewer_seeds,
    finished_seeds,
)
from fedmrl.reproduce.standings import BASELINES, Margin, measured_margin, printed_margin
from fedmrl.reproduce.tables import NAMES, accuracy_grid, any_measured, cost_grid, difference
from fedmrl.results import PROTOCOLS, Protocol

Data = dict[str, Any]

MOST_POINTS = 60
"""Of a curve: a panel is a few hundred pixels wide."""
CONTENTS: Mapping[str, str] = {
    "table": "Accuracy",
    "curves": "Over the rounds",
    "clients": "Client by client",
    "costs": "What a target costs",
    "inference": "Models to serve",
    "sweeps": "When one thing is varied",
    "repeat": "How to repeat it",
    "glossary": "What the words mean",
}
RUN_TITLES: Mapping[Protocol, str] = {"fair": "fair", "own": "own", "paper": "paper’s"}
KINDS: Mapping[Kind, str] = {"heterogeneous": "Unlike models", "homogeneous": "One model for all"}
SWEEP_WORDS: Mapping[str, tuple[str, str]] = {
    "non-iid-class": ("Classes per client", "classes per client"),
    "non-iid-dirichlet": ("Dirichlet parameter α", "α"),
    "d1": ("Dimension d₁ of the small model", "d₁"),
    "ablation": ("With and without Matryoshka learning", "d₁"),
}
"""What each sweep is called, and what it varies."""


def write_index(cells: Sequence[Cell], scale: Scale, folder: Path) -> Path:
    """Write the page of a reproduction, whatever is measured of it.

    `results` opens with that of `results/paper`, or as long as there is none, with that of `results/paper-cpu`.
    """
    larger = (folder.parent / PAPER.folder / "cells").exists()
    home = folder.parts[-2:] == ("results", scale.folder) and (scale is PAPER or (scale is CPU and not larger))
    path = (folder.parent if home else folder) / "index.html"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, index(cells, scale))
    return path


def index(cells: Sequence[Cell], scale: Scale) -> str:
    """The page, whole."""
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
    """All that the page shows."""
    outcomes = Outcomes(cells, scale)
    shown: Data = {
        "brand": "reproduction",
        "option": scale.option,
        "facts": _facts(outcomes),
        "notes": [
            *([] if scale.has_paper else [TOY]),
            *(sentence for kind in NAMES for sentence in outcomes.disagreements(outcomes.columns(kind))),
            *outcomes.left_out_said(cell.setting for cell in cells),
        ],
        "answers": {protocol: _answer(outcomes, protocol) for protocol in PROTOCOLS},
        "looks": {TITLES[method]: LOOKS[method].on_page for method in METHOD_ORDER},
        "kinds": KINDS,
        "tables": {
            kind: {protocol: _accuracy_table(outcomes, kind, protocol) for protocol in PROTOCOLS}
            for kind in NAMES
            if any_measured(outcomes, kind)
        },
        "curves": _curves(outcomes),
        "curves_say": {protocol: _curves_say(outcomes, protocol) for protocol in PROTOCOLS},
        "clients": {protocol: _clients(outcomes, protocol) for protocol in OF_ALL},
        "costs": _costs(outcomes),
        "inference": {protocol: _inference(outcomes, protocol) for protocol in OF_ALL},
        "sweeps": [found for name in SWEEPS if (found := _sweep(outcomes, name))],
        "experiments": [{"name": name, "says": says, **_measured(outcomes, name)} for name, says in EXPERIMENTS.items()],
        "hint": "Point at a chart, or focus it and use the arrow keys.",
        **_runs(cells, outcomes),
    }
    drawn = {line["name"] for panel in shown["curves"] if panel["charts"] for line in panel["charts"]["fair"]["lines"]}
    shown["methods"] = [
        {"name": TITLES[method], "look": LOOKS[method].on_page} for method in METHOD_ORDER[::-1] if TITLES[method] in drawn
    ]
    present = {
        "table": shown["tables"], "curves": shown["curves"], "clients": shown["clients"]["fair"], "costs": shown["costs"],
        "inference": shown["inference"]["fair"], "sweeps": shown["sweeps"], "repeat": True, "glossary": True,
    }  # fmt: skip
    shown["contents"] = {name: title for name, title in CONTENTS.items() if present[name]}
    return shown


# The answer


def _facts(outcomes: Outcomes) -> str:
    what = "FedMRL (NeurIPS 2024), reproduced" if outcomes.has_paper else "FedMRL (NeurIPS 2024), a small reproduction"
    failed = sum(cell is not None and not cell.converged for cell in outcomes.runs("all"))
    said = "{measured} of {of} runs are measured".format(**_measured(outcomes, "all"))
    said += f", {failed} of which failed to converge" if failed else ""
    size = _size_said(outcomes)
    return " · ".join([what, listed([dataset_title(d) for d in outcomes.scale.datasets]), *([size] if size else []), said])


def _size_said(outcomes: Outcomes) -> str:
    """How many rounds the runs have, where the figures look."""
    main = outcomes.methods(outcomes.main(outcomes.scale.datasets[0]).setting)
    rounds = {int(cell.recipe["rounds"]) for outcome in main.values() for cell in outcome.cells}
    return f"{rounds.pop()} rounds" if len(rounds) == 1 else ""


def _measured(outcomes: Outcomes, what: str) -> Data:
    """How much of an experiment there is."""
    runs = outcomes.runs(what)
    return {"measured": sum(cell is not None for cell in runs), "of": len(runs)}


def _answer(outcomes: Outcomes, protocol: Protocol) -> Data:
    """What came out under a protocol, as a title, a few sentences, and a card for each claim that can be judged."""
    title = _title(outcomes, protocol)
    how = {
        "fair": "Every client counts, with the latest the server has, after the last round.",
        "own": "Every client counts, with the copy of the shared part that it trained last, after the last round.",
        "paper": "Counted as the paper does: the best round, over the clients that took part in it.",
    }
    mains = [said for dataset in outcomes.scale.datasets if (said := _main_said(outcomes, dataset, protocol))]
    return {
        "title": title,
        "lead": "\n".join([how[protocol], *mains]),
        "cards": [card for claim in CLAIMS if (card := _card(claim, outcomes, protocol))],
    }


def _card(claim: Claim, outcomes: Outcomes, protocol: Protocol) -> Data | None:
    """A claim, whether it holds, and the numbers that say so; none if it cannot be judged."""
    found = claim.evidence(outcomes, protocol)
    if not found.held:
        return None
    values = [list(value) for value in found.values]
    return {"claim": claim.title, "verdict": claim.verdict(outcomes, protocol), "values": values, "note": claim.note}


def _title(outcomes: Outcomes, protocol: Protocol) -> str:
    places = list(standings(outcomes, protocol).values())
    if not places:
        return "Whether FedMRL wins cannot be said yet"
    leads = [place.margin.points for place in places if place.margin and place.first]
    behind = [-place.margin.points for place in places if place.margin and place.margin.behind]
    level = sum(place.level for place in places)
    where = f"{IN_TOY[0].upper()}{IN_TOY[1:]} " if not outcomes.has_paper else ""
    so_far = "" if outcomes.is_whole("table-hetero") else " so far"
    if level == len(places):
        return f"{where}FedMRL is level with the best in {_all_of(level)}{so_far}"
    won = [place.first for place in places]
    tied = f"; level with the best in {level}" if level else ""
    return f"{where}FedMRL is {_first_in(won)}{so_far}{_by(leads) if any(won) else _by(behind, ' behind')}{tied}"


def _first_in(judged: Sequence[bool]) -> str:
    """In how many federations FedMRL is first.

    >>> _first_in([True, False, True]), _first_in([True, True]), _first_in([False])
    ('first in 2 of 3 federations', 'first in both federations', 'not first in the one federation')
    """
    wins, every = sum(judged), len(judged)
    if every in (1, wins):
        return f"{'' if wins else 'not '}first in {_all_of(every)}"
    return f"first in {wins or 'none'} of {every} federations"


def _all_of(federations: int) -> str:
    return {1: "the one federation", 2: "both federations"}.get(federations, f"all {federations} federations")


def _by(points: Sequence[float], behind: str = "") -> str:
    """By how much, in as few words as it takes.

    >>> _by([0.12, 8.5]), _by([2.0], " behind"), _by([])
    (', by 0.1 to 8.5\\xa0points', ', 2.0\\xa0points behind', '')
    """
    if not points:
        return ""
    low, high = f"{min(points):.1f}", f"{max(points):.1f}"
    said = low if low == high else f"{low} to {high}"
    return f", {'' if behind else 'by '}{said}{NO_BREAK}points{behind}"


def _main_said(outcomes: Outcomes, dataset: str, protocol: Protocol) -> str:
    """What FedMRL reaches at the federation that figures look into, and how far ahead that is."""
    main = outcomes.main(dataset)
    measured = outcomes.of(main.setting, "fedmrl")
    ours = measured.mean(protocol)
    if ours is None:
        return ""
    lead = measured_margin(outcomes, main, protocol, BASELINES)
    name = main.dataset_title.replace("-", "\N{NON-BREAKING HYPHEN}")
    said = f"{name} with {main.federation_title}: FedMRL {ours:.2f}{NO_BREAK}%"
    said += f", {signed(lead.points)}{NO_BREAK}points against {_against(lead)}" if lead else ""
    said += f", over {seeds_said(lead.seeds)}, which both have" if lead and lead.seeds != measured.seeds else ""
    if protocol == "paper" and outcomes.has_paper:
        theirs = outcomes.paper("heterogeneous", main, "fedmrl")
        printed = printed_margin(outcomes, "heterogeneous", main, BASELINES)
        if theirs is not None and printed:
            said += f" (the paper: {theirs:.2f}{NO_BREAK}%, {signed(printed.points)})"
    return f"{said}."


def _against(lead: Margin) -> str:
    return f"{TITLES[lead.against]}, the best of the others{'' if lead.complete else ' so far'}"


# Tables


def _accuracy_table(outcomes: Outcomes, kind: Kind, protocol: Protocol) -> Data:
    """The table as the tables' files have it, with how far ours is from the paper's under its own protocol."""
    shown = _grid(accuracy_grid(outcomes, kind, protocol))
    if protocol == "paper" and outcomes.has_paper:
        methods = {title: method for method, title in TITLES.items()}
        for row in (row for group in shown["groups"] for row in group if row["name"] in methods):
            for column, entry in zip(outcomes.columns(kind), row["entries"], strict=True):
                points = difference(outcomes, kind, column, methods[row["name"]])
                if points is not None:
                    entry["difference"] = signed(points)
        shown["notes"].insert(2, "After the bracket: ours minus the paper’s, in points.")
    return shown


def _grid(grid: Grid) -> Data:
    """A grid for the template, with the columns at which a group of them begins."""
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
        "notes": [*([f"{grid.best} of a column on a tint, second underlined."] if grid.best else []), *grid.notes],
        "reached": any(entry.text[:1].isdigit() for group in grid.groups for _, entries in group for entry in entries),
    }


def _costs(outcomes: Outcomes) -> Data | None:
    """The table of costs by protocol, if any method was measured where they are counted."""
    mains = [outcomes.main(dataset) for dataset in outcomes.scale.datasets]
    if not any(cell.spent for main in mains for method in METHOD_ORDER for cell in outcomes.of(main.setting, method).cells):
        return None
    grids = {protocol: [cost_grid(outcomes, protocol, place) for place in (0, 1)] for protocol in PROTOCOLS}
    return {protocol: [_grid(grid) for grid in of if grid] for protocol, of in grids.items()}


# Curves


def _curves(outcomes: Outcomes) -> list[Data]:
    """A panel for each dataset and federation, all of a dataset with the same limits; none if there is nothing to draw."""
    found = {column: _finished(outcomes, column) for column in outcomes.columns()}
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
            "absent": _absent({TITLES[m]: o for m, o in outcomes.methods(column.setting).items()}) if of else "",
        }
        for column, of in found.items()
    ]


def _finished(outcomes: Outcomes, column: Column) -> dict[str, Outcome]:
    """What can be drawn, FedMRL first."""
    found = outcomes.methods(column.setting)
    return {method: found[method] for method in METHOD_ORDER[::-1] if found[method].state == "finished"}


def _curves_say(outcomes: Outcomes, protocol: Protocol) -> str:
    found = [outcome for column in outcomes.columns() for outcome in _finished(outcomes, column).values()]
    most = max((len(curve_values(outcome, protocol)[0]) for outcome in found), default=0)
    said = [
        PROTOCOL_LABELS[protocol]["says"].split(";")[0].removesuffix(".") + ".",
        f"A line is the mean over {window(most)} rounds; the best single round, which counts in the table, is higher."
        if protocol == "paper" and most
        else "",
        "Line: mean over seeds; band: their range." if any(len(outcome.cells) > 1 for outcome in found) else "",
    ]
    return " ".join(filter(None, said))


def _absent(found: Mapping[str, Outcome]) -> str:
    """What cannot be drawn, by why.

    >>> _absent({"FD": Outcome(), "FML": Outcome()})
    'Not measured: FD, FML.'
    """
    said = []
    for state, why in (
        ("failed", "Failed to converge"),
        ("missing", "Not measured"),
        ("apart", "Shares no seed with the others"),
    ):
        names = [name for name, outcome in found.items() if outcome.state == state]
        said += [f"{why}: {', '.join(names)}."] if names else []
    fewer = [f"{name} ({seeds})" for name, seeds in fewer_seeds(found).items()]
    return " ".join([*said, *([f"Over fewer seeds: {', '.join(fewer)}."] if fewer else [])])


def _curve(method: str, outcome: Outcome, protocol: Protocol) -> Curve:
    rounds, values = curve_values(outcome, protocol)
    kept = thinned(len(rounds))
    return Curve(
        TITLES[method], LOOKS[method], [rounds[place] for place in kept], smooth(values, protocol)[:, kept],
        strong=method == "fedmrl",
    )  # fmt: skip


def thinned(rounds: int) -> list[int]:
    """At most MOST_POINTS places of so many rounds, evenly, with the last.

    >>> thinned(3), thinned(120)[:3], thinned(120)[-1]
    ([0, 1, 2], [1, 3, 5], 119)
    """
    step = -(-rounds // MOST_POINTS) or 1
    return list(range(rounds - 1, -1, -step))[::-1]


# Clients, ways to predict, sweeps


def _clients(outcomes: Outcomes, protocol: Protocol) -> list[Data]:
    """What each client gains with FedMRL over FedProto, by dataset."""
    shown = []
    for dataset in outcomes.scale.datasets:
        main, gained = outcomes.main(dataset), client_gains(outcomes, dataset, protocol)
        if gained:
            share = f"{np.mean(gained.shares):.0f}{NO_BREAK}% of the clients gain"
            shown.append(
                {
                    "title": main.title,
                    "share": share,
                    "paper": f"The paper: {PAPER_GAINS[dataset]}{NO_BREAK}%." if outcomes.has_paper else "",
                    "said": " ".join([f"Bars: {gained.said}.", *([worth] if (worth := _worth(outcomes, main)) else [])]),
                    "chart": difference_chart(
                        "FedMRL", "FedProto", LOOKS["fedmrl"], LOOKS["fedproto"], gained.points, f"{main.title}: "
                    ).on_page(),
                }
            )
    return shown


def _worth(outcomes: Outcomes, column: Column) -> str:
    """What one test sample is of a client's accuracy, where that is known and much."""
    found = [cell.clients.test_samples for cell in outcomes.of(column.setting, "fedmrl").cells if cell.clients]
    return sample_worth(found[0]) if found and found[0] else ""


def _inference(outcomes: Outcomes, protocol: Protocol) -> list[Data]:
    """The models that a client can serve, by dataset."""
    mains = [outcomes.main(dataset) for dataset in outcomes.scale.datasets]
    found = {main.title: mode_means(outcomes.of(main.setting, "fedmrl"), protocol) for main in mains}
    return [{"title": title, "modes": [*modes.items()]} for title, modes in found.items() if modes]


def _sweep(outcomes: Outcomes, name: str) -> Data | None:
    """A panel for each dataset in which anything is measured besides what the tables have."""
    sweep, (title, axis) = SWEEPS[name], SWEEP_WORDS[name]
    names = list(sweep.lines)
    panels = []
    for dataset in outcomes.scale.datasets:
        main, found = outcomes.main(dataset).setting, sweep.compared(outcomes, dataset)
        cells = [cell for of in found.values() for outcome in of for cell in outcome.cells]
        if all(cell.setting == main and cell.variant in METHOD_ORDER for cell in cells):
            continue
        lines = [{x: of[place] for x, of in found.items()} for place in range(len(names))]
        absent = {f"{names[place]} at {x:g}": outcome for place, line in enumerate(lines) for x, outcome in line.items()}
        label = f"{outcomes.main(dataset).title}: accuracy by {axis}. Use the left and right arrow keys to read each value."
        panels.append(
            {
                "title": outcomes.main(dataset).title,
                "charts": {
                    protocol: line_chart(
                        [curve for place, line in enumerate(lines) if (curve := _line(names[place], line, protocol))],
                        label, axis, "accuracy (%)", place=lambda x: f"{axis} = {x:g}", x_ticks=list(found), height=220,
                    ).on_page()
                    for protocol in PROTOCOLS
                },
                "absent": _absent(absent),
                "said": {protocol: _sweep_said(found, names, axis, protocol) for protocol in PROTOCOLS},
            }
        )  # fmt: skip
    shown = [(name, _look(name).on_page) for name in names]
    return {"name": name, "title": title, "axis": axis, "lines": shown, "panels": panels} if panels else None


def _look(name: str) -> Look:
    methods = {title: method for method, title in TITLES.items()}
    return WITHOUT_MRL if "without" in name else LOOKS[methods.get(name, "fedmrl")]


def _line(name: str, points: Mapping[float, Outcome], protocol: Protocol) -> Curve | None:
    found = {x: outcome.accuracies(protocol) for x, outcome in points.items() if outcome.state == "finished"}
    look = _look(name)
    return Curve(name, look, [*found], 100 * np.array([*found.values()]).T, strong=look is LOOKS["fedmrl"]) if found else None


def _sweep_said(found: Mapping[float, tuple[Outcome, ...]], names: Sequence[str], axis: str, protocol: Protocol) -> str:
    over = seeds_said(finished_seeds(outcome for of in found.values() for outcome in of))
    if len(names) > 1:
        wins = is_ahead(found, protocol)
        return f"{names[0]} is ahead of {names[1]} at {share_said(wins)} measured values of {axis} ({over})." if wins else ""
    means = {x: mean for x, (outcome,) in found.items() if (mean := outcome.mean(protocol)) is not None}
    if len(means) < 2:
        return ""
    best = max(means, key=lambda x: means[x])
    lost = max(means.values()) - min(means.values())
    if f"{lost:.1f}" == "0.0":
        return f"Level at every {axis} ({over})."
    return f"Best at {axis} = {best:g}, {lost:.1f}{NO_BREAK}points above the worst ({over})."


# How to repeat it


def _runs(cells: Sequence[Cell], outcomes: Outcomes) -> Data:
    """A table of every run with what is needed to repeat it, and the device time of all."""
    cells = sorted(cells, key=lambda cell: cell.key)
    # Seeds that were run as one each carry the time of all of them, and runs at once that in which they shared the device.
    seconds = [cell.wall_seconds / (cell.together * cell.at_once) for cell in cells]
    computed = [cell.cpu_seconds / cell.together for cell in cells]
    spent: dict[str, float] = {}
    for cell, own in zip(cells, seconds, strict=True):
        spent[cell.device] = spent.get(cell.device, 0.0) + own
    total = listed([f"{time_said(of)} on {device}" for device, of in spent.items()])
    total += f" ({time_said(sum(computed))} of computing, all cores together)" if sum(computed) else ""
    wanted = {(one.setting, one.variant, seed) for one in outcomes.specs("all") for seed in one.seeds}
    beyond = sum(cell.key not in wanted for cell in cells)
    more = f" ({beyond:,} of them beyond what the tables and figures need)" if beyond else ""
    if not cells:
        return {"runs": None, "repeat_says": "Nothing is measured yet. This measures it, and writes this page again:"}
    columns = [
        {"title": "run", "values": [f"{cell.setting} {cell.variant}" for cell in cells]},
        *(_accuracies(title, [cell.measured(p) for cell in cells]) for p, title in RUN_TITLES.items()),
        {"title": "seed", "number": True, "values": [cell.seed for cell in cells]},
        _times("seconds", seconds),
        _times("CPU seconds", computed),
        {"title": "seeds at once", "number": True, "values": [cell.together for cell in cells]},
        {"title": "device", "values": [cell.device for cell in cells]},
        {"title": "engine", "values": [cell.engine for cell in cells]},
        {"title": "versions", "values": [", ".join(f"{n} {number}" for n, number in cell.versions.items()) for cell in cells]},
        {
            "title": "final states", "code": True,
            "values": [cell.states_sha256[:12] + (" †" if cell.key in outcomes.left_out else "") for cell in cells],
        },
        {"title": "command", "code": True, "values": [cell.command for cell in cells]},
    ]  # fmt: skip
    return {
        "runs": {"label": "Runs", "columns": columns, "hint": table_hint(len(cells))},
        "repeat_says": f"{total} for these {len(cells):,} runs, one after another{more}. This measures what is missing, and "
        "writes this page again:",
    }


def _accuracies(title: str, values: Sequence[float | None]) -> Data:
    """A column of accuracies, in which a run that diverged is the least of all."""
    labels = ["diverged" if value is None else percent(value) for value in values]
    return {"title": title, "number": True, "values": [-1 if v is None else round(v, 5) for v in values], "labels": labels}


def _times(title: str, seconds: Sequence[float]) -> Data:
    labels = [f"{value:.1f}" if value < 100 else f"{value:,.0f}" for value in seconds]
    return {"title": title, "number": True, "values": [round(value, 1) for value in seconds], "labels": labels}
