"""The paper's tables, made from measured cells: accuracy, its difference from the paper's, and the cost of a target.

Each is written as Markdown, LaTeX and CSV. A `·` marks what is not measured, a `–` what failed to converge.
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
from fedmrl.report.tables import DASH, count, format_seeds, signed
from fedmrl.reproduce.cells import Cell
from fedmrl.reproduce.claims import claims_table
from fedmrl.reproduce.experiments import METHOD_ORDER, SAME_CATEGORY, Scale
from fedmrl.reproduce.measurements import (
    COSTS,
    PROTOCOL_TITLES,
    TITLES,
    Column,
    Cost,
    Kind,
    Measurement,
    Measurements,
    Spread,
    ahead_of_each,
    dataset_title,
    fewer_seeds,
    finished_seeds,
)
from fedmrl.reproduce.standings import BASELINES, Margin, Standing, measured_margin, paper_margin, standing
from fedmrl.results import PROTOCOLS, Protocol

MISSING = "·"
GROUPS = (tuple(m for m in BASELINES if m not in SAME_CATEGORY), SAME_CATEGORY, ("fedmrl",))
"""The groups of methods, which lines separate in a table."""
MARGINS: Mapping[str, tuple[str, Sequence[str]]] = {
    "fedmrl-minus-best-baseline": ("FedMRL − best baseline", BASELINES),
    "fedmrl-minus-best-same-category": ("FedMRL − best same-category baseline", SAME_CATEGORY),
}
COST_TITLES: Mapping[Protocol, str] = {
    "fair": "Protocol fair: accuracy of all clients with the server's latest shared part; real cost, mean over all clients",
    "own": "Protocol own: accuracy of all clients with the copy that each trained last; real cost, mean over all clients",
    "paper": "Protocol paper: accuracy of a round's participants; a participant's cost in a round × rounds",
}
TABLE_NAMES: Mapping[Kind, str] = {"heterogeneous": "table-hetero", "homogeneous": "table-homo"}
SPREAD_NOTE = "±: sample standard deviation over seeds; without ±, a single seed."
SEEDS_NOTE = "[seed …]: only these of the column's seeds."
COMPARED_NOTE = "Marks, leads and ranks compare two methods over the seeds that both have."
FAILED_NOTE = f"{DASH} failed to converge (not finite, or no better than chance)"
INCOMPLETE_NOTE = "* over the methods that are measured and share a seed; others are missing."

Row = dict[str, Any]


def write_tables(cells: Sequence[Cell], scale: Scale, folder: Path) -> list[Path]:
    """Writes the tables that the cells allow to the subfolder `tables`; returns their paths."""
    measurements = Measurements(cells, scale)
    written = []
    for kind, name in TABLE_NAMES.items():
        if any_measured(measurements, kind):
            title = f"Average test accuracy (%), model-{kind} clients"
            grids = [accuracy_grid(measurements, kind, protocol) for protocol in PROTOCOLS]
            written += _write(folder, name, title, grids, accuracy_rows(measurements, kind))
    if written:
        title = "FedMRL's lead" + (", and ours minus the paper's accuracy (points)" if measurements.has_paper else "")
        written += _write(folder, "difference", title, difference_grids(measurements), difference_rows(measurements))
    if any(measurements.of(measurements.main(dataset).setting, m).cells for dataset in scale.datasets for m in METHOD_ORDER):
        federation = measurements.main(scale.datasets[0]).federation_title
        title = f"Rounds, parameters and FLOPs per client to a target accuracy, {federation}"
        grids = [grid for place in (0, 1) for protocol in PROTOCOLS if (grid := cost_grid(measurements, protocol, place))]
        written += _write(folder, "costs", title, grids, cost_rows(measurements))
    return [*written, *_write_texts(folder, "claims", {"md": claims_table(measurements)})] if written else []


def any_measured(measurements: Measurements, kind: Kind) -> bool:
    """Whether any cell of such a table is measured."""
    return any(
        measurements.of(column.setting, method).cells for column in measurements.columns(kind) for method in METHOD_ORDER
    )


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


def accuracy_grid(measurements: Measurements, kind: Kind, protocol: Protocol) -> Grid:
    """Accuracy by method and column, with FedMRL's leads and, under the protocol `paper`, the paper's numbers in brackets."""
    columns, beside = measurements.columns(kind), protocol == "paper" and measurements.has_paper
    by_column = []
    for column in columns:
        found, compared = measurements.methods(column.setting), measurements.compared(column.setting)
        fewer = fewer_seeds(found)
        entries = [_accuracy_entry(measurement, protocol, fewer.get(method, "")) for method, measurement in found.items()]
        ahead = ahead_of_each(compared, lambda measurement: measurement.mean(protocol), shown="{:.2f}".format)
        entries = mark_best(entries, list(ahead.values()))
        if beside:
            printed = [measurements.paper(kind, column, method) for method in METHOD_ORDER]
            entries = [replace(e, aside=_number(p)) for e, p in zip(entries, printed, strict=True)]
            entries = mark_best(entries, ahead_of(printed), aside=True)
        entries += [_margin_entry(measurements, kind, column, protocol, others) for _, others in MARGINS.values()]
        by_column.append(entries)
    rows = dict(zip([*METHOD_ORDER, *MARGINS], zip(*by_column, strict=True), strict=True))
    titles = {**TITLES, **{name: title for name, (title, _) in MARGINS.items()}}
    return Grid(
        caption=PROTOCOL_TITLES[protocol],
        corner="Method",
        header=_header(columns),
        groups=[[(titles[name], rows[name]) for name in group] for group in (*GROUPS, tuple(MARGINS))],
        notes=[
            *_accuracy_notes(measurements, columns, [entry for row in rows.values() for entry in row], beside),
            *(measurements.disagreements(columns) if protocol != "paper" else []),
        ],
        best="Best",
    )


def _header(columns: Sequence[Column]) -> list[list[tuple[str, int]]]:
    datasets = list(dict.fromkeys(column.dataset for column in columns))
    return [
        [(dataset_title(dataset), sum(column.dataset == dataset for column in columns)) for dataset in datasets],
        [(column.federation_title, 1) for column in columns],
    ]


def _accuracy_entry(measurement: Measurement, protocol: Protocol, seeds: str) -> Entry:
    spread = measurement.percent(protocol)
    return Entry(_spread(spread) if spread else _absent(measurement), seeds=seeds)


def _absent(measurement: Measurement) -> str:
    return DASH if measurement.state == "failed" else MISSING


def _spread(spread: Spread, number: Callable[[float], str] = "{:.2f}".format) -> str:
    return number(spread.mean) + ("" if spread.deviation is None else f" ± {number(spread.deviation)}")


def _number(value: float | None) -> str:
    return DASH if value is None else f"{value:.2f}"


def _margin_entry(measurements: Measurements, kind: Kind, column: Column, protocol: Protocol, others: Sequence[str]) -> Entry:
    found = measurements.methods(column.setting)
    states = {method: found[method].state for method in ("fedmrl", *others)}
    ours = measured_margin(measurements, column, protocol, others)
    theirs = paper_margin(measurements, kind, column, others) if protocol == "paper" and measurements.has_paper else None
    aside = signed(theirs.points) if theirs else ""
    if ours:
        return replace(_lead_entry(ours, found), aside=aside)
    return Entry(DASH if states["fedmrl"] == "failed" or "missing" not in states.values() else MISSING, aside=aside)


def _lead_entry(lead: Margin, found: Mapping[str, Measurement]) -> Entry:
    """The lead in points, with its seeds if the column has more."""
    fewer = set(lead.seeds) != finished_seeds(found.values())
    return Entry(signed(lead.points) + ("" if lead.complete else "*"), seeds=format_seeds(lead.seeds) if fewer else "")


def _accuracy_notes(measurements: Measurements, columns: Sequence[Column], entries: Sequence[Entry], beside: bool) -> list[str]:
    notes = ["In brackets: the paper's number; – in brackets: failed to converge there."] if beside else []
    return notes + _notes(measurements, columns, entries)


def _notes(measurements: Measurements, columns: Sequence[Column], entries: Sequence[Entry]) -> list[str]:
    """Notes on the signs in a table, and on what is left out."""
    texts = [entry.text for entry in entries]
    notes = [SPREAD_NOTE] if any("±" in text for text in texts) else []
    notes += [SEEDS_NOTE, COMPARED_NOTE] if any(entry.seeds for entry in entries) else []
    notes += [f"{MISSING} not measured."] if MISSING in texts else []
    notes += [INCOMPLETE_NOTE] if any("*" in text for text in texts) else []
    compared = {column: measurements.compared(column.setting) for column in columns}
    for state, said in (("incomparable", "Not compared, since they share no seed with most others"), ("failed", FAILED_NOTE)):
        names = []
        for method in METHOD_ORDER:
            where = [
                column.short if state == "incomparable" else f"{column.short} {found[method].how_failed()}"
                for column, found in compared.items()
                if found[method].state == state
            ]
            names += [f"{TITLES[method]} ({', '.join(where)})"] if where else []
        notes += [f"{said}: {'; '.join(names)}."] if names else []
    return notes + measurements.left_out_note(column.setting for column in columns)


def accuracy_rows(measurements: Measurements, kind: Kind) -> list[Row]:
    """The table of accuracies as CSV rows, in percent: one for each protocol, column, and method or lead."""
    rows: list[Row] = []
    for protocol in PROTOCOLS:
        for column in measurements.columns(kind):
            where = {"models": kind, "dataset": column.dataset, "federation": column.federation, "protocol": protocol}
            for method in METHOD_ORDER:
                measurement = measurements.of(column.setting, method)
                paper = measurements.paper(kind, column, method) if protocol == "paper" and measurements.has_paper else None
                margin_only = {"compared_over": "", "against": ""}
                rows.append({**where, "row": method, **_raw(measurement, protocol), "paper": _blank(paper), **margin_only})
            for name, (_, others) in MARGINS.items():
                ours = measured_margin(measurements, column, protocol, others)
                theirs = (
                    paper_margin(measurements, kind, column, others) if protocol == "paper" and measurements.has_paper else None
                )
                values = {"accuracy": _lead(ours), "paper": _lead(theirs), "compared_over": _seeds(ours.seeds if ours else ())}
                blank = dict.fromkeys(rows[-1], "")
                rows.append({**blank, **where, "row": name, **values, "against": ours.against if ours else ""})
    return rows


def _raw(measurement: Measurement, protocol: Protocol) -> Row:
    spread = measurement.percent(protocol)
    return {
        "status": measurement.state,
        "seeds": _seeds(measurement.seeds),
        "accuracy": _blank(spread.mean if spread else None),
        "deviation": _blank(spread.deviation if spread else None),
        "by_seed": " ".join(repr(100 * accuracy) for accuracy in measurement.accuracies(protocol)),
    }


def _seeds(seeds: Sequence[int]) -> str:
    return " ".join(map(str, seeds))


def _blank(value: float | None) -> float | str:
    return "" if value is None else value


def _lead(margin: Margin | None) -> float | str:
    return margin.points if margin else ""


# Difference


def difference_grids(measurements: Measurements) -> list[Grid]:
    """Ours minus the paper's, if the paper has such a table, and FedMRL's standing under `fair` and `own`."""
    kinds = [kind for kind in TABLE_NAMES if any_measured(measurements, kind)]
    grids = [_against_paper(measurements, kind) for kind in kinds] if measurements.has_paper else []
    return [*grids, *(_standings(measurements, kinds, protocol) for protocol in ("fair", "own"))]


def _against_paper(measurements: Measurements, kind: Kind) -> Grid:
    columns = measurements.columns(kind)
    rows = {method: [_difference_entry(measurements, kind, column, method) for column in columns] for method in METHOD_ORDER}
    entries = [entry for row in rows.values() for entry in row]
    points = [d for column in columns for m in METHOD_ORDER if (d := difference(measurements, kind, column, m)) is not None]
    notes = []
    if points:
        higher = sum(point > 0 for point in points)
        size = float(np.mean(np.abs(points)))
        notes.append(f"Mean absolute difference {size:.2f} points over {len(points)} numbers; ours is higher in {higher}.")
    failed = "†: our accuracy (%), since the method failed to converge in the paper."
    notes += [failed] if any("†" in entry.text for entry in entries) else []
    return Grid(
        caption=f"Ours minus the paper's, in points: {kind} models, protocol paper ({PROTOCOLS['paper']})",
        corner="Method",
        header=_header(columns),
        groups=[[(TITLES[method], rows[method]) for method in group] for group in GROUPS],
        notes=notes + _notes(measurements, columns, entries),
    )


def difference(measurements: Measurements, kind: Kind, column: Column, method: str) -> float | None:
    """Ours minus the paper's under its protocol, in points, if both have a number."""
    ours, theirs = measurements.of(column.setting, method).mean("paper"), measurements.paper(kind, column, method)
    return None if ours is None or theirs is None else ours - theirs


def _difference_entry(measurements: Measurements, kind: Kind, column: Column, method: str) -> Entry:
    found, points = measurements.methods(column.setting), difference(measurements, kind, column, method)
    seeds, ours = fewer_seeds(found).get(method, ""), found[method].mean("paper")
    if points is not None:
        return Entry(signed(points), seeds=seeds)
    return Entry(_absent(found[method]) if ours is None else f"{ours:.2f}†", seeds=seeds)


def _standings(measurements: Measurements, kinds: Sequence[Kind], protocol: Protocol) -> Grid:
    groups = [
        [(column.title, _standing_entries(measurements, kind, column, protocol)) for column in measurements.columns(kind)]
        for kind in kinds
    ]
    entries = [entry for group in groups for _, row in group for entry in row]
    notes = ["Rank among the methods that are measured; one that failed to converge ranks below all others."]
    return Grid(
        caption=f"FedMRL against the best other method, in points. {PROTOCOL_TITLES[protocol]}",
        corner="Federation",
        header=[[(text, 1) for text in ("Models", "FedMRL (%)", "Best other", "Margin", "Rank")]],
        groups=groups,
        notes=notes + _notes(measurements, [column for kind in kinds for column in measurements.columns(kind)], entries),
    )


def _standing_entries(measurements: Measurements, kind: Kind, column: Column, protocol: Protocol) -> list[Entry]:
    found, place = measurements.methods(column.setting), standing(measurements, column, protocol)
    ours, lead = found["fedmrl"], place.margin if place else None
    against = [Entry(TITLES[lead.against]), _lead_entry(lead, found)] if lead else [Entry(_absent(ours))] * 2
    rank = Entry(f"{place.rank} of {place.of}" if place else _absent(ours))
    return [Entry(kind), _accuracy_entry(ours, protocol, fewer_seeds(found).get("fedmrl", "")), *against, rank]


def difference_rows(measurements: Measurements) -> list[Row]:
    """The table of differences as CSV rows, in percent; only FedMRL's rows have a rank and a lead."""
    rows: list[Row] = []
    for kind in TABLE_NAMES:
        for column in measurements.columns(kind):
            places = {protocol: standing(measurements, column, protocol) for protocol in ("fair", "own")}
            for method in METHOD_ORDER:
                measurement = measurements.of(column.setting, method)
                paper = measurements.paper(kind, column, method) if measurements.has_paper else None
                apart = difference(measurements, kind, column, method) if measurements.has_paper else None
                rows.append(
                    {
                        "models": kind, "dataset": column.dataset, "federation": column.federation, "method": method,
                        "status": measurement.state, "ours": _blank(measurement.mean("paper")), "paper": _blank(paper),
                        "ours_minus_paper": _blank(apart),
                        **{k: v for p, place in places.items() for k, v in _standing_row(p, place, method).items()},
                    }
                )  # fmt: skip
    return rows


def _standing_row(protocol: str, place: Standing | None, method: str) -> Row:
    """FedMRL's rank and lead; blank for other methods."""
    own = place if method == "fedmrl" else None
    return {
        f"{protocol}_rank": own.rank if own else "",
        f"{protocol}_ranked": own.of if own else "",
        f"{protocol}_margin": _lead(own.margin) if own else "",
        f"{protocol}_best_other": own.margin.against if own and own.margin else "",
    }


# Costs


def cost_grid(measurements: Measurements, protocol: Protocol, place: int = 0) -> Grid | None:
    """The cost of a target for each method and dataset, at the main federation.

    `place` 0 is the paper's target, 1 the one that most methods reach; None if no dataset has it.
    """
    targets = {
        dataset: of[place] for dataset in measurements.scale.datasets if len(of := measurements.targets(dataset)) > place
    }
    if not targets:
        return None
    by_column = []
    for dataset, target in targets.items():
        for what in COSTS:
            setting = measurements.main(dataset).setting
            found = measurements.methods(setting)
            fewer = fewer_seeds(found)
            entries = [Entry(_cost(o, o.cost(protocol, target, what)), seeds=fewer.get(m, "")) for m, o in found.items()]
            ahead = ahead_of_each(measurements.compared(setting), _mean_cost(protocol, target, what), shown=count, low=True)
            by_column.append(mark_best(entries, list(ahead.values())))
    rows = dict(zip(METHOD_ORDER, zip(*by_column, strict=True), strict=True))
    entries = [entry for row in rows.values() for entry in row]
    mains = [measurements.main(dataset) for dataset in targets]
    some = "(k/n): mean over the k of n seeds that reached the target."
    common = "The target is the highest multiple of 5% that most methods reach under fair; few reach the paper's."
    return Grid(
        caption=f"{'A target that most methods reach. ' if place else ''}{COST_TITLES[protocol]}",
        corner="Method",
        header=[
            [(f"{main.dataset_title}, {100 * targets[main.dataset]:g}%", len(COSTS)) for main in mains],
            [(title, 1) for _ in mains for title in COSTS.values()],
        ],
        groups=[[(TITLES[method], rows[method]) for method in group] for group in GROUPS],
        notes=[
            *([common] if place else []),
            *([some] if any("/" in entry.text for entry in entries) else []),
            *_notes(measurements, mains, entries),
        ],
        best="Least",
    )


def _mean_cost(protocol: Protocol, target: float, what: str) -> Callable[[Measurement], float | None]:
    def mean(measurement: Measurement) -> float | None:
        cost = measurement.cost(protocol, target, what)
        return cost.mean if cost else None

    return mean


def _cost(measurement: Measurement, cost: Cost | None) -> str:
    if cost is None:
        return _absent(measurement)
    if not cost.values:
        return "not reached"
    spread = Spread.of(cost.values)
    shown = _spread(spread, count) if spread.mean else "0"
    return shown if cost.everywhere else f"{shown} ({len(cost.values)}/{cost.seeds})"


def cost_rows(measurements: Measurements) -> list[Row]:
    """The costs as CSV rows: one for each dataset, target, protocol, method and seed."""
    rows: list[Row] = []
    for dataset in measurements.scale.datasets:
        main = measurements.main(dataset)
        for target, protocol in product(measurements.targets(dataset), PROTOCOLS):
            for method in METHOD_ORDER:
                measurement = measurements.of(main.setting, method)
                where = {"dataset": dataset, "federation": main.federation, "target": target, "protocol": protocol}
                for seed in measurement.cells or [None]:
                    own = Measurement((seed,) if seed else ())
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
