"""The paper's tables, made from measured cells: accuracy, how far it is from the paper's, and what a target costs.

Each is written as Markdown to read, LaTeX to print and CSV to compute with. What was not measured is a
`·`, what diverged a `–`.
"""

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedmrl.files import write_whole
from fedmrl.report.grid import Entry, Grid, mark_best, to_latex, to_markdown
from fedmrl.report.outcomes import PROTOCOL_TITLES, TITLES, Column, Cost, Kind, Outcome, Outcomes, Spread, dataset_title
from fedmrl.report.tables import DASH, amount
from fedmrl.reproduce.cells import PROTOCOLS, Cell, Protocol
from fedmrl.reproduce.experiments import METHOD_ORDER, SAME_CATEGORY, Scale

MISSING = "·"
BASELINES = tuple(method for method in METHOD_ORDER if method != "fedmrl")
GROUPS = (tuple(m for m in BASELINES if m not in SAME_CATEGORY), SAME_CATEGORY, ("fedmrl",))
"""Methods between two lines of a table."""
MARGINS: Mapping[str, tuple[str, Sequence[str]]] = {
    "fedmrl-minus-best-baseline": ("FedMRL − best baseline", BASELINES),
    "fedmrl-minus-best-same-category": ("FedMRL − best same-category baseline", SAME_CATEGORY),
}
NAMES: Mapping[Kind, str] = {"heterogeneous": "table-hetero", "homogeneous": "table-homo"}
COSTS: Mapping[str, str] = {"rounds": "rounds", "parameters": "parameters", "flops": "FLOPs"}
SPREAD_NOTE = "±: sample standard deviation over seeds; without it, one seed."

Row = dict[str, Any]


@dataclass(frozen=True)
class Margin:
    """How far FedMRL is ahead of the best of some others, in points."""

    points: float
    against: str
    complete: bool
    """Whether all of the others are known; else a better one may yet come."""


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
        title = f"Rounds, parameters and FLOPs per client to an average accuracy of {_targets_said(scale)}, {federation}"
        grids = [cost_grid(outcomes, protocol) for protocol in PROTOCOLS]
        written += _write(folder, "costs", title, grids, cost_rows(outcomes))
    return written


def any_measured(outcomes: Outcomes, kind: Kind) -> bool:
    """Whether there is anything to fill such a table with."""
    return any(outcomes.of(column.setting, method).cells for column in outcomes.columns(kind) for method in METHOD_ORDER)


def _write(folder: Path, name: str, title: str, grids: Sequence[Grid], rows: Sequence[Row]) -> list[Path]:
    texts = {"md": to_markdown(title, grids), "tex": to_latex(title, name, grids), "csv": _csv(rows)}
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
        found = [outcomes.of(column.setting, method) for method in METHOD_ORDER]
        entries = [_accuracy_entry(outcome, protocol) for outcome in found]
        entries = mark_best(entries, [outcome.mean(protocol) for outcome in found])
        if beside:
            printed = [outcomes.paper(kind, column, method) for method in METHOD_ORDER]
            entries = [Entry(e.text, e.mark, _number(p)) for e, p in zip(entries, printed, strict=True)]
            entries = mark_best(entries, printed, aside=True)
        entries += [_margin_entry(outcomes, kind, column, protocol, others) for _, others in MARGINS.values()]
        by_column.append(entries)
    rows = dict(zip([*METHOD_ORDER, *MARGINS], zip(*by_column, strict=True), strict=True))
    titles = {**TITLES, **{name: title for name, (title, _) in MARGINS.items()}}
    return Grid(
        caption=PROTOCOL_TITLES[protocol],
        corner="Method",
        header=_header(columns),
        groups=[[(titles[name], rows[name]) for name in group] for group in (*GROUPS, tuple(MARGINS))],
        notes=_accuracy_notes(outcomes, columns, [entry for row in rows.values() for entry in row], beside),
        best="Best",
    )


def _header(columns: Sequence[Column]) -> list[list[tuple[str, int]]]:
    datasets = list(dict.fromkeys(column.dataset for column in columns))
    return [
        [(dataset_title(dataset), sum(column.dataset == dataset for column in columns)) for dataset in datasets],
        [(column.federation_title, 1) for column in columns],
    ]


def _accuracy_entry(outcome: Outcome, protocol: Protocol) -> Entry:
    spread = outcome.percent(protocol)
    return Entry(_spread(spread) if spread else _absent(outcome))


def _absent(outcome: Outcome) -> str:
    return DASH if outcome.state == "diverged" else MISSING


def _spread(spread: Spread, number: Callable[[float], str] = "{:.2f}".format) -> str:
    return number(spread.mean) + ("" if spread.deviation is None else f" ± {number(spread.deviation)}")


def _number(value: float | None) -> str:
    return DASH if value is None else f"{value:.2f}"


def signed(value: float, digits: int = 2) -> str:
    """A difference with its sign, a real minus.

    >>> signed(1.5), signed(-0.25), signed(-0.001), signed(3.36, digits=1)
    ('+1.50', '−0.25', '0.00', '+3.4')
    """
    text = f"{value:+.{digits}f}"
    return f"{0:.{digits}f}" if float(text) == 0 else text.replace("-", "−")


def margin(values: Mapping[str, float | None], others: Iterable[str], missing: Iterable[str] = ()) -> Margin | None:
    """FedMRL's lead over the best of the others; a value of None is one that failed, and so no rival.

    >>> margin({"fedmrl": 60.0, "fml": 50.0, "fedkd": None}, ["fml", "fedkd"])
    Margin(points=10.0, against='fml', complete=True)
    """
    known = {method: value for method in others if (value := values.get(method)) is not None}
    ours = values.get("fedmrl")
    if ours is None or not known:
        return None
    best = max(known, key=lambda method: known[method])
    return Margin(ours - known[best], best, not set(others) & set(missing))


def measured_margin(outcomes: Outcomes, column: Column, protocol: Protocol, others: Sequence[str]) -> Margin | None:
    """FedMRL's lead in what was measured, if it finished and any other did."""
    found = {method: outcomes.of(column.setting, method) for method in METHOD_ORDER}
    missing = [method for method, outcome in found.items() if outcome.state == "missing"]
    return margin({method: outcome.mean(protocol) for method, outcome in found.items()}, others, missing)


def printed_margin(outcomes: Outcomes, kind: Kind, column: Column, others: Sequence[str]) -> Margin | None:
    """FedMRL's lead in what the paper prints."""
    return margin({method: outcomes.paper(kind, column, method) for method in METHOD_ORDER}, others)


def _margin_entry(outcomes: Outcomes, kind: Kind, column: Column, protocol: Protocol, others: Sequence[str]) -> Entry:
    states = {method: outcomes.of(column.setting, method).state for method in ("fedmrl", *others)}
    ours = measured_margin(outcomes, column, protocol, others)
    if ours:
        text = signed(ours.points) + ("" if ours.complete else "*")
    else:
        text = DASH if states["fedmrl"] == "diverged" or "missing" not in states.values() else MISSING
    theirs = printed_margin(outcomes, kind, column, others) if protocol == "paper" and outcomes.has_paper else None
    return Entry(text, aside=signed(theirs.points) if theirs else "")


def _accuracy_notes(outcomes: Outcomes, columns: Sequence[Column], entries: Sequence[Entry], beside: bool) -> list[str]:
    texts = [entry.text for entry in entries]
    notes = ["In brackets: as printed in the paper; – there: it failed to converge."] if beside else []
    notes += [SPREAD_NOTE] if any("±" in text for text in texts) else []
    notes += [f"{MISSING} not measured."] if MISSING in texts else []
    notes += ["* over those that are measured; some are not."] if any("*" in text for text in texts) else []
    return notes + _diverged_notes(outcomes, columns)


def _diverged_notes(outcomes: Outcomes, columns: Sequence[Column]) -> list[str]:
    said = []
    for method in METHOD_ORDER:
        found = [(column, outcomes.of(column.setting, method)) for column in columns]
        where = [f"{column.short} {o.how_diverged()}".strip() for column, o in found if o.state == "diverged"]
        said += [f"{TITLES[method]} ({', '.join(where)})"] if where else []
    return [f"{DASH} diverged: {'; '.join(said)}."] if said else []


def accuracy_rows(outcomes: Outcomes, kind: Kind) -> list[Row]:
    """The same as plain numbers, in percent: a row for each protocol, column and method, and for each margin."""
    rows: list[Row] = []
    for protocol in PROTOCOLS:
        for column in outcomes.columns(kind):
            where = {"models": kind, "dataset": column.dataset, "federation": column.federation, "protocol": protocol}
            for method in METHOD_ORDER:
                outcome = outcomes.of(column.setting, method)
                paper = outcomes.paper(kind, column, method) if protocol == "paper" and outcomes.has_paper else None
                rows.append({**where, "row": method, **_raw(outcome, protocol), "paper": _blank(paper), "against": ""})
            for name, (_, others) in MARGINS.items():
                ours = measured_margin(outcomes, column, protocol, others)
                theirs = printed_margin(outcomes, kind, column, others) if protocol == "paper" and outcomes.has_paper else None
                values = {"accuracy": _lead(ours), "paper": _lead(theirs)}
                blank = dict.fromkeys(rows[-1], "")
                rows.append({**blank, **where, "row": name, **values, "against": ours.against if ours else ""})
    return rows


def _raw(outcome: Outcome, protocol: Protocol) -> Row:
    spread = outcome.percent(protocol)
    return {
        "status": outcome.state,
        "seeds": " ".join(str(cell.seed) for cell in outcome.cells),
        "accuracy": _blank(spread.mean if spread else None),
        "deviation": _blank(spread.deviation if spread else None),
        "by_seed": " ".join(repr(100 * accuracy) for accuracy in outcome.accuracies(protocol)),
    }


def _blank(value: float | None) -> float | str:
    return "" if value is None else value


def _lead(margin: Margin | None) -> float | str:
    return margin.points if margin else ""


# Difference


@dataclass(frozen=True)
class Standing:
    """Where FedMRL stands among the methods that were measured, under the fair protocol."""

    rank: int
    of: int
    margin: Margin | None
    accuracy: Spread


def standing(outcomes: Outcomes, column: Column) -> Standing | None:
    """FedMRL's rank and lead; one that diverged ranks below all that did not."""
    ours = outcomes.of(column.setting, "fedmrl").percent("fair")
    if ours is None:
        return None
    others = [outcomes.of(column.setting, method) for method in BASELINES]
    better = sum((mean := other.mean("fair")) is not None and mean > ours.mean for other in others)
    measured = sum(other.state != "missing" for other in others)
    return Standing(1 + better, 1 + measured, measured_margin(outcomes, column, "fair", BASELINES), ours)


def difference_grids(outcomes: Outcomes) -> list[Grid]:
    """Ours minus the paper's, where the paper has such a table, and FedMRL's standing under the fair protocol."""
    kinds = [kind for kind in NAMES if any_measured(outcomes, kind)]
    grids = [_against_paper(outcomes, kind) for kind in kinds] if outcomes.has_paper else []
    return [*grids, _standings(outcomes, kinds)]


def _against_paper(outcomes: Outcomes, kind: Kind) -> Grid:
    columns = outcomes.columns(kind)
    rows = {method: [_difference_entry(outcomes, kind, column, method) for column in columns] for method in METHOD_ORDER}
    texts = [entry.text for row in rows.values() for entry in row]
    points = [d for column in columns for m in METHOD_ORDER if (d := difference(outcomes, kind, column, m)) is not None]
    notes = []
    if points:
        higher = sum(point > 0 for point in points)
        size = float(np.mean(np.abs(points)))
        notes.append(f"Mean absolute difference {size:.2f} points over {len(points)} numbers; ours is higher in {higher}.")
    notes += ["† ours (%), where the paper says that the method failed to converge."] if any("†" in t for t in texts) else []
    notes += [f"{MISSING} not measured."] if MISSING in texts else []
    return Grid(
        caption=f"Ours minus the paper's, in points: {kind} models, the paper's protocol ({PROTOCOLS['paper']})",
        corner="Method",
        header=_header(columns),
        groups=[[(TITLES[method], rows[method]) for method in group] for group in GROUPS],
        notes=notes + _diverged_notes(outcomes, columns),
    )


def difference(outcomes: Outcomes, kind: Kind, column: Column, method: str) -> float | None:
    """Ours minus the paper's under the paper's protocol, in points, if both have a number."""
    ours, theirs = outcomes.of(column.setting, method).mean("paper"), outcomes.paper(kind, column, method)
    return None if ours is None or theirs is None else ours - theirs


def _difference_entry(outcomes: Outcomes, kind: Kind, column: Column, method: str) -> Entry:
    outcome, points = outcomes.of(column.setting, method), difference(outcomes, kind, column, method)
    if points is not None:
        return Entry(signed(points))
    ours = outcome.mean("paper")
    return Entry(_absent(outcome) if ours is None else f"{ours:.2f}†")


def _standings(outcomes: Outcomes, kinds: Sequence[Kind]) -> Grid:
    groups = [
        [(column.title, _standing_entries(outcomes, kind, column)) for column in outcomes.columns(kind)] for kind in kinds
    ]
    texts = [entry.text for group in groups for _, entries in group for entry in entries]
    notes = ["Rank among the methods that are measured; one that diverged ranks below all others."]
    notes += [f"{MISSING} not measured."] if MISSING in texts else []
    notes += ["* over those that are measured; some are not."] if any("*" in text for text in texts) else []
    return Grid(
        caption=f"FedMRL against the best other method, in points: fair protocol ({PROTOCOLS['fair']})",
        corner="Federation",
        header=[[(text, 1) for text in ("Models", "FedMRL (%)", "Best other", "Margin", "Rank")]],
        groups=groups,
        notes=notes,
    )


def _standing_entries(outcomes: Outcomes, kind: Kind, column: Column) -> list[Entry]:
    found = standing(outcomes, column)
    if found is None:
        return [Entry(kind), *[Entry(_absent(outcomes.of(column.setting, "fedmrl")))] * 4]
    lead = found.margin
    other = [TITLES[lead.against], signed(lead.points) + ("" if lead.complete else "*")] if lead else [MISSING, MISSING]
    return [Entry(text) for text in (kind, _spread(found.accuracy), *other, f"{found.rank} of {found.of}")]


def difference_rows(outcomes: Outcomes) -> list[Row]:
    """The same as plain numbers, in percent; a margin and a rank stand in FedMRL's row alone."""
    rows: list[Row] = []
    for kind in NAMES:
        for column in outcomes.columns(kind):
            found = standing(outcomes, column)
            for method in METHOD_ORDER:
                outcome = outcomes.of(column.setting, method)
                own = found if method == "fedmrl" else None
                paper = outcomes.paper(kind, column, method) if outcomes.has_paper else None
                apart = difference(outcomes, kind, column, method) if outcomes.has_paper else None
                rows.append(
                    {
                        "models": kind, "dataset": column.dataset, "federation": column.federation, "method": method,
                        "status": outcome.state, "ours": _blank(outcome.mean("paper")), "paper": _blank(paper),
                        "ours_minus_paper": _blank(apart), "fair_rank": own.rank if own else "",
                        "fair_ranked": own.of if own else "",
                        "fair_margin": _lead(own.margin) if own else "",
                        "fair_best_other": own.margin.against if own and own.margin else "",
                    }
                )  # fmt: skip
    return rows


# Costs


def cost_grid(outcomes: Outcomes, protocol: Protocol) -> Grid:
    """What each method spends until the target, for each dataset at the federation that figures look into."""
    scale = outcomes.scale
    by_column = []
    for dataset in scale.datasets:
        for what in COSTS:
            found = [outcomes.of(outcomes.main(dataset).setting, method) for method in METHOD_ORDER]
            costs = [outcome.cost(protocol, scale.targets[dataset], what) for outcome in found]
            entries = [Entry(_cost(o, cost, what)) for o, cost in zip(found, costs, strict=True)]
            whole = [float(np.mean(cost.values)) if cost and cost.everywhere else None for cost in costs]
            by_column.append(mark_best(entries, whole, low=True))
    rows = dict(zip(METHOD_ORDER, zip(*by_column, strict=True), strict=True))
    texts = [entry.text for row in rows.values() for entry in row]
    mains = [outcomes.main(dataset) for dataset in scale.datasets]
    way = (
        "accuracy of a round's participants; a participant's cost of a round, times rounds"
        if protocol == "paper"
        else "accuracy of all clients; what was really spent, mean over all clients"
    )
    notes = [SPREAD_NOTE] if any("±" in text for text in texts) else []
    notes += ["(k/n): k of n seeds reached it; the mean is theirs."] if any("/" in text for text in texts) else []
    notes += [f"{MISSING} not measured."] if MISSING in texts else []
    return Grid(
        caption=f"{'As the paper counts' if protocol == 'paper' else 'Fair'}: {way}",
        corner="Method",
        header=[
            [(f"{main.dataset_title}, {100 * scale.targets[main.dataset]:g}%", len(COSTS)) for main in mains],
            [(title, 1) for _ in mains for title in COSTS.values()],
        ],
        groups=[[(TITLES[method], rows[method]) for method in group] for group in GROUPS],
        notes=notes + _diverged_notes(outcomes, mains),
        best="Least",
    )


def _cost(outcome: Outcome, cost: Cost | None, what: str) -> str:
    if cost is None:
        return _absent(outcome)
    if not cost.values:
        return "not reached"
    spread = Spread.of(cost.values)
    shown = _spread(spread, "{:.0f}".format if what == "rounds" else _amount) if spread.mean else "0"
    return shown if cost.everywhere else f"{shown} ({len(cost.values)}/{cost.seeds})"


def _amount(value: float) -> str:
    return amount(value, "").strip()


def cost_rows(outcomes: Outcomes) -> list[Row]:
    """The same as plain numbers: a row for each dataset, way of counting, method and seed."""
    rows: list[Row] = []
    for dataset in outcomes.scale.datasets:
        main, target = outcomes.main(dataset), outcomes.scale.targets[dataset]
        for protocol in PROTOCOLS:
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


def _targets_said(scale: Scale) -> str:
    said = [f"{100 * scale.targets[dataset]:g}% ({dataset_title(dataset)})" for dataset in scale.datasets]
    return " and ".join(said)
