"""The paper's tables, made from measured cells: accuracy, how far it is from the paper's, and what a target costs.

Each is written as Markdown to read, LaTeX to print and CSV to compute with. What was not measured is a
`·`, what failed to converge a `–`.
"""

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from fedmrl.files import write_whole
from fedmrl.report.grid import Entry, Grid, ahead_of, mark_best, to_latex, to_markdown
from fedmrl.report.tables import DASH, count, seeds_said, signed
from fedmrl.reproduce.cells import Cell
from fedmrl.reproduce.claims import claims_table
from fedmrl.reproduce.experiments import METHOD_ORDER, SAME_CATEGORY, Scale
from fedmrl.reproduce.outcomes import (
    COSTS,
    PROTOCOL_TITLES,
    TITLES,
    Column,
    Cost,
    Kind,
    Outcome,
    Outcomes,
    Spread,
    ahead_of_each,
    dataset_title,
    fewer_seeds,
    finished_seeds,
)
from fedmrl.reproduce.standings import BASELINES, Margin, Standing, measured_margin, printed_margin, standing
from fedmrl.results import PROTOCOLS, Protocol

MISSING = "·"
GROUPS = (tuple(m for m in BASELINES if m not in SAME_CATEGORY), SAME_CATEGORY, ("fedmrl",))
"""Methods between two lines of a table."""
MARGINS: Mapping[str, tuple[str, Sequence[str]]] = {
    "fedmrl-minus-best-baseline": ("FedMRL − best baseline", BASELINES),
    "fedmrl-minus-best-same-category": ("FedMRL − best same-category baseline", SAME_CATEGORY),
}
COST_TITLES: Mapping[Protocol, str] = {
    "fair": "Fair protocol: accuracy of all clients with what the server has; what was really spent, mean over all clients",
    "own": "Own copies: accuracy of all clients with the copy each trained last; what was really spent, mean over all clients",
    "paper": "The paper's protocol: accuracy of a round's participants; a participant's cost of a round, times rounds",
}
NAMES: Mapping[Kind, str] = {"heterogeneous": "table-hetero", "homogeneous": "table-homo"}
SPREAD_NOTE = "±: sample standard deviation over seeds; without it, one seed."
SEEDS_NOTE = "[seed …]: over these seeds alone, of those in its column."
COMPARED_NOTE = "Marks, margins and ranks compare two methods over the seeds that both have."
FAILED_NOTE = f"{DASH} failed to converge (not finite, or no better than chance)"
INCOMPLETE_NOTE = "* over those that are measured and share a seed; others are still to come."

Row = dict[str, Any]


def write_tables(cells: Sequence[Cell], scale: Scale, folder: Path) -> list[Path]:
    """Write what the cells allow into `tables` of a folder; the files that were written."""
    outcomes = Outcomes(cells, scale)
    written = []
    for kind, name in NAMES.items():
        if any_measured(outcomes, kind):
            title = f"Average test accuracy (%), model-{kind} clients"
            grids = [accuracy_grid(outcomes, kind, protocol) for protocol in PROTOCOLS]
            written += _write(folder, name, title, grids, accuracy_rows(outcomes, kind))
    if written:
        title = "FedMRL's lead" + (", and ours minus the paper's accuracy (points)" if outcomes.has_paper else "")
        written += _write(folder, "difference", title, difference_grids(outcomes), difference_rows(outcomes))
    if any(outcomes.of(outcomes.main(dataset).setting, m).cells for dataset in scale.datasets for m in METHOD_ORDER):
        federation = outcomes.main(scale.datasets[0]).federation_title
        title = f"Rounds, parameters and FLOPs per client to a target accuracy, {federation}"
        grids = [grid for place in (0, 1) for protocol in PROTOCOLS if (grid := cost_grid(outcomes, protocol, place))]
        written += _write(folder, "costs", title, grids, cost_rows(outcomes))
    return [*written, *_write_texts(folder, "claims", {"md": claims_table(outcomes)})] if written else []


def any_measured(outcomes: Outcomes, kind: Kind) -> bool:
    """Whether there is anything to fill such a table with."""
    return any(outcomes.of(column.setting, method).cells for column in outcomes.columns(kind) for method in METHOD_ORDER)


def _write(folder: Path, name: str, title: str, grids: Sequence[Grid], rows: Sequence[Row]) -> list[Path]:
    return _write_texts(folder, name, {"md": to_markdown(title, grids), "tex": to_latex(title, name, grids), "csv": _csv(rows)})


def _write_texts(folder: Path, name: str, texts: Mapping[str, str]) -> list[Path]:
    (folder / "tables").mkdir(parents=True, exist_ok=True)
    paths = [folder / "tables" / f"{name}.{suffix}" for suffix in texts]
    for path, text in zip(paths, texts.values(), strict=True):
        write_whole(path, text)
    return paths


def _csv(rows: Sequence[Row]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


# Accuracy


def accuracy_grid(outcomes: Outcomes, kind: Kind, protocol: Protocol) -> Grid:
    """Methods by columns under one protocol, the paper's numbers in brackets under its own, and FedMRL's margins."""
    columns, beside = outcomes.columns(kind), protocol == "paper" and outcomes.has_paper
    by_column = []
    for column in columns:
        found, compared = outcomes.methods(column.setting), outcomes.compared(column.setting)
        fewer = fewer_seeds(found)
        entries = [_accuracy_entry(outcome, protocol, fewer.get(method, "")) for method, outcome in found.items()]
        ahead = ahead_of_each(compared, lambda outcome: outcome.mean(protocol), shown="{:.2f}".format)
        entries = mark_best(entries, list(ahead.values()))
        if beside:
            printed = [outcomes.paper(kind, column, method) for method in METHOD_ORDER]
            entries = [replace(e, aside=_number(p)) for e, p in zip(entries, printed, strict=True)]
            entries = mark_best(entries, ahead_of(printed), aside=True)
        entries += [_margin_entry(outcomes, kind, column, protocol, others) for _, others in MARGINS.values()]
        by_column.append(entries)
    rows = dict(zip([*METHOD_ORDER, *MARGINS], zip(*by_column, strict=True), strict=True))
    titles = {**TITLES, **{name: title for name, (title, _) in MARGINS.items()}}
    return Grid(
        caption=PROTOCOL_TITLES[protocol],
        corner="Method",
        header=_header(columns),
        groups=[[(titles[name], rows[name]) for name in group] for group in (*GROUPS, tuple(MARGINS))],
        notes=[
            *_accuracy_notes(outcomes, columns, [entry for row in rows.values() for entry in row], beside),
            *(outcomes.disagreements(columns) if protocol != "paper" else []),
        ],
        best="Best",
    )


def _header(columns: Sequence[Column]) -> list[list[tuple[str, int]]]:
    datasets = list(dict.fromkeys(column.dataset for column in columns))
    return [
        [(dataset_title(dataset), sum(column.dataset == dataset for column in columns)) for dataset in datasets],
        [(column.federation_title, 1) for column in columns],
    ]


def _accuracy_entry(outcome: Outcome, protocol: Protocol, seeds: str) -> Entry:
    spread = outcome.percent(protocol)
    return Entry(_spread(spread) if spread else _absent(outcome), seeds=seeds)


def _absent(outcome: Outcome) -> str:
    return DASH if outcome.state == "failed" else MISSING


def _spread(spread: Spread, number: Callable[[float], str] = "{:.2f}".format) -> str:
    return number(spread.mean) + ("" if spread.deviation is None else f" ± {number(spread.deviation)}")


def _number(value: float | None) -> str:
    return DASH if value is None else f"{value:.2f}"


def _margin_entry(outcomes: Outcomes, kind: Kind, column: Column, protocol: Protocol, others: Sequence[str]) -> Entry:
    found = outcomes.methods(column.setting)
    states = {method: found[method].state for method in ("fedmrl", *others)}
    ours = measured_margin(outcomes, column, protocol, others)
    theirs = printed_margin(outcomes, kind, column, others) if protocol == "paper" and outcomes.has_paper else None
    aside = signed(theirs.points) if theirs else ""
    if ours:
        return replace(_lead_entry(ours, found), aside=aside)
    return Entry(DASH if states["fedmrl"] == "failed" or "missing" not in states.values() else MISSING, aside=aside)


def _lead_entry(lead: Margin, found: Mapping[str, Outcome]) -> Entry:
    """The points, with the seeds they are over where the column has more."""
    fewer = set(lead.seeds) != finished_seeds(found.values())
    return Entry(signed(lead.points) + ("" if lead.complete else "*"), seeds=seeds_said(lead.seeds) if fewer else "")


def _accuracy_notes(outcomes: Outcomes, columns: Sequence[Column], entries: Sequence[Entry], beside: bool) -> list[str]:
    notes = ["In brackets: as printed in the paper; – there: it says that the method failed to converge."] if beside else []
    return notes + _notes(outcomes, columns, entries)


def _notes(outcomes: Outcomes, columns: Sequence[Column], entries: Sequence[Entry]) -> list[str]:
    """What the signs in a table mean, and what was left out of it."""
    texts = [entry.text for entry in entries]
    notes = [SPREAD_NOTE] if any("±" in text for text in texts) else []
    notes += [SEEDS_NOTE, COMPARED_NOTE] if any(entry.seeds for entry in entries) else []
    notes += [f"{MISSING} not measured."] if MISSING in texts else []
    notes += [INCOMPLETE_NOTE] if any("*" in text for text in texts) else []
    compared = {column: outcomes.compared(column.setting) for column in columns}
    for state, said in (("apart", "Not compared, as no seed is shared with most others"), ("failed", FAILED_NOTE)):
        names = []
        for method in METHOD_ORDER:
            where = [
                column.short if state == "apart" else f"{column.short} {found[method].how_failed()}"
                for column, found in compared.items()
                if found[method].state == state
            ]
            names += [f"{TITLES[method]} ({', '.join(where)})"] if where else []
        notes += [f"{said}: {'; '.join(names)}."] if names else []
    return notes + outcomes.left_out_said(column.setting for column in columns)


def accuracy_rows(outcomes: Outcomes, kind: Kind) -> list[Row]:
    """The same as plain numbers, in percent: a row for each protocol, column and method, and for each margin."""
    rows: list[Row] = []
    for protocol in PROTOCOLS:
        for column in outcomes.columns(kind):
            where = {"models": kind, "dataset": column.dataset, "federation": column.federation, "protocol": protocol}
            for method in METHOD_ORDER:
                outcome = outcomes.of(column.setting, method)
                paper = outcomes.paper(kind, column, method) if protocol == "paper" and outcomes.has_paper else None
                margin_only = {"compared_over": "", "against": ""}
                rows.append({**where, "row": method, **_raw(outcome, protocol), "paper": _blank(paper), **margin_only})
            for name, (_, others) in MARGINS.items():
                ours = measured_margin(outcomes, column, protocol, others)
                theirs = printed_margin(outcomes, kind, column, others) if protocol == "paper" and outcomes.has_paper else None
                values = {"accuracy": _lead(ours), "paper": _lead(theirs), "compared_over": _seeds(ours.seeds if ours else ())}
                blank = dict.fromkeys(rows[-1], "")
                rows.append({**blank, **where, "row": name, **values, "against": ours.against if ours else ""})
    return rows


def _raw(outcome: Outcome, protocol: Protocol) -> Row:
    spread = outcome.percent(protocol)
    return {
        "status": outcome.state,
        "seeds": _seeds(outcome.seeds),
        "accuracy": _blank(spread.mean if spread else None),
        "deviation": _blank(spread.deviation if spread else None),
        "by_seed": " ".join(repr(100 * accuracy) for accuracy in outcome.accuracies(protocol)),
    }


def _seeds(seeds: Sequence[int]) -> str:
    return " ".join(map(str, seeds))


def _blank(value: float | None) -> float | str:
    return "" if value is None else value


def _lead(margin: Margin | None) -> float | str:
    return margin.points if margin else ""


# Difference


def difference_grids(outcomes: Outcomes) -> list[Grid]:
    """Ours minus the paper's, where the paper has such a table, and FedMRL's standing among all clients."""
    kinds = [kind for kind in NAMES if any_measured(outcomes, kind)]
    grids = [_against_paper(outcomes, kind) for kind in kinds] if outcomes.has_paper else []
    return [*grids, *(_standings(outcomes, kinds, protocol) for protocol in ("fair", "own"))]


def _against_paper(outcomes: Outcomes, kind: Kind) -> Grid:
    columns = outcomes.columns(kind)
    rows = {method: [_difference_entry(outcomes, kind, column, method) for column in columns] for method in METHOD_ORDER}
    entries = [entry for row in rows.values() for entry in row]
    points = [d for column in columns for m in METHOD_ORDER if (d := difference(outcomes, kind, column, m)) is not None]
    notes = []
    if points:
        higher = sum(point > 0 for point in points)
        size = float(np.mean(np.abs(points)))
        notes.append(f"Mean absolute difference {size:.2f} points over {len(points)} numbers; ours is higher in {higher}.")
    failed = "† ours (%), where the paper says that the method failed to converge."
    notes += [failed] if any("†" in entry.text for entry in entries) else []
    return Grid(
        caption=f"Ours minus the paper's, in points: {kind} models, the paper's protocol ({PROTOCOLS['paper']})",
        corner="Method",
        header=_header(columns),
        groups=[[(TITLES[method], rows[method]) for method in group] for group in GROUPS],
        notes=notes + _notes(outcomes, columns, entries),
    )


def difference(outcomes: Outcomes, kind: Kind, column: Column, method: str) -> float | None:
    """Ours minus the paper's under the paper's protocol, in points, if both have a number."""
    ours, theirs = outcomes.of(column.setting, method).mean("paper"), outcomes.paper(kind, column, method)
    return None if ours is None or theirs is None else ours - theirs


def _difference_entry(outcomes: Outcomes, kind: Kind, column: Column, method: str) -> Entry:
    found, points = outcomes.methods(column.setting), difference(outcomes, kind, column, method)
    seeds, ours = fewer_seeds(found).get(method, ""), found[method].mean("paper")
    if points is not None:
        return Entry(signed(points), seeds=seeds)
    return Entry(_absent(found[method]) if ours is None else f"{ours:.2f}†", seeds=seeds)


def _standings(outcomes: Outcomes, kinds: Sequence[Kind], protocol: Protocol) -> Grid:
    groups = [
        [(column.title, _standing_entries(outcomes, kind, column, protocol)) for column in outcomes.columns(kind)]
        for kind in kinds
    ]
    entries = [entry for group in groups for _, row in group for entry in row]
    notes = ["Rank among the methods that are measured; one that failed to converge ranks below all others."]
    return Grid(
        caption=f"FedMRL against the best other method, in points. {PROTOCOL_TITLES[protocol]}",
        corner="Federation",
        header=[[(text, 1) for text in ("Models", "FedMRL (%)", "Best other", "Margin", "Rank")]],
        groups=groups,
        notes=notes + _notes(outcomes, [column for kind in kinds for column in outcomes.columns(kind)], entries),
    )


def _standing_entries(outcomes: Outcomes, kind: Kind, column: Column, protocol: Protocol) -> list[Entry]:
    found, place = outcomes.methods(column.setting), standing(outcomes, column, protocol)
    ours, lead = found["fedmrl"], place.margin if place else None
    against = [Entry(TITLES[lead.against]), _lead_entry(lead, found)] if lead else [Entry(_absent(ours))] * 2
    rank = Entry(f"{place.rank} of {place.of}" if place else _absent(ours))
    return [Entry(kind), _accuracy_entry(ours, protocol, fewer_seeds(found).get("fedmrl", "")), *against, rank]


def difference_rows(outcomes: Outcomes) -> list[Row]:
    """The same as plain numbers, in percent; a margin and a rank stand in FedMRL's row alone."""
    rows: list[Row] = []
    for kind in NAMES:
        for column in outcomes.columns(kind):
            places = {protocol: standing(outcomes, column, protocol) for protocol in ("fair", "own")}
            for method in METHOD_ORDER:
                outcome = outcomes.of(column.setting, method)
                paper = outcomes.paper(kind, column, method) if outcomes.has_paper else None
                apart = difference(outcomes, kind, column, method) if outcomes.has_paper else None
                rows.append(
                    {
                        "models": kind, "dataset": column.dataset, "federation": column.federation, "method": method,
                        "status": outcome.state, "ours": _blank(outcome.mean("paper")), "paper": _blank(paper),
                        "ours_minus_paper": _blank(apart),
                        **{k: v for p, place in places.items() for k, v in _standing_row(p, place, method).items()},
                    }
                )  # fmt: skip
    return rows


def _standing_row(protocol: str, place: Standing | None, method: str) -> Row:
    """FedMRL's rank and margin; blank for the other methods."""
    own = place if method == "fedmrl" else None
    return {
        f"{protocol}_rank": own.rank if own else "",
        f"{protocol}_ranked": own.of if own else "",
        f"{protocol}_margin": _lead(own.margin) if own else "",
        f"{protocol}_best_other": own.margin.against if own and own.margin else "",
    }


# Costs


def cost_grid(outcomes: Outcomes, protocol: Protocol, place: int = 0) -> Grid | None:
    """What each method spends until a target, for each dataset at the federation that figures look into.

    The first target is the paper's, the second one that most methods reach; None where no dataset has it.
    """
    targets = {dataset: of[place] for dataset in outcomes.scale.datasets if len(of := outcomes.targets(dataset)) > place}
    if not targets:
        return None
    by_column = []
    for dataset, target in targets.items():
        for what in COSTS:
            setting = outcomes.main(dataset).setting
            found = outcomes.methods(setting)
            fewer = fewer_seeds(found)
            entries = [Entry(_cost(o, o.cost(protocol, target, what)), seeds=fewer.get(m, "")) for m, o in found.items()]
            ahead = ahead_of_each(outcomes.compared(setting), _mean_cost(protocol, target, what), shown=count, low=True)
            by_column.append(mark_best(entries, list(ahead.values())))
    rows = dict(zip(METHOD_ORDER, zip(*by_column, strict=True), strict=True))
    entries = [entry for row in rows.values() for entry in row]
    mains = [outcomes.main(dataset) for dataset in targets]
    some = "(k/n): k of n seeds reached it; the mean is theirs."
    common = "The highest multiple of 5% that most methods reach by the fair protocol, since few reach the paper's target."
    return Grid(
        caption=f"{'A target that most reach. ' if place else ''}{COST_TITLES[protocol]}",
        corner="Method",
        header=[
            [(f"{main.dataset_title}, {100 * targets[main.dataset]:g}%", len(COSTS)) for main in mains],
            [(title, 1) for _ in mains for title in COSTS.values()],
        ],
        groups=[[(TITLES[method], rows[method]) for method in group] for group in GROUPS],
        notes=[
            *([common] if place else []),
            *([some] if any("/" in entry.text for entry in entries) else []),
            *_notes(outcomes, mains, entries),
        ],
        best="Least",
    )


def _mean_cost(protocol: Protocol, target: float, what: str) -> Callable[[Outcome], float | None]:
    def mean(outcome: Outcome) -> float | None:
        cost = outcome.cost(protocol, target, what)
        return cost.mean if cost else None

    return mean


def _cost(outcome: Outcome, cost: Cost | None) -> str:
    if cost is None:
        return _absent(outcome)
    if not cost.values:
        return "not reached"
    spread = Spread.of(cost.values)
    shown = _spread(spread, count) if spread.mean else "0"
    return shown if cost.everywhere else f"{shown} ({len(cost.values)}/{cost.seeds})"


def cost_rows(outcomes: Outcomes) -> list[Row]:
    """The same as plain numbers: a row for each dataset, way of counting, method and seed."""
    rows: list[Row] = []
    for dataset in outcomes.scale.datasets:
        main = outcomes.main(dataset)
        for target, protocol in product(outcomes.targets(dataset), PROTOCOLS):
            for method in METHOD_ORDER:
                outcome = outcomes.of(main.setting, method)
                where = {"dataset": dataset, "federation": main.federation, "target": target, "protocol": protocol}
                for seed in outcome.cells or [None]:
                    own = Outcome((seed,) if seed else ())
                    costs = {what: own.cost(protocol, target, what) for what in COSTS}
                    reached = costs["rounds"] and bool(costs["rounds"].values)
                    numbers = {what: cost.values[0] if cost and cost.values else "" for what, cost in costs.items()}
                    said = {
                        "seed": seed.seed if seed else "",
                        "status": own.state,
                        "reached": "" if reached is None else reached,
                    }
                    rows.append({**where, "method": method, **said, **numbers})
    return rows
