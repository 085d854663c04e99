"""The page of a reproduction: one HTML file that says whether the paper's claims hold, made from measured cells alone.

`index.html` has its sections and `index.js` fills them from the data made here. Cells that are missing are said, no error.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedmrl import __version__
from fedmrl.files import write_whole
from fedmrl.report.grid import Entry, Grid
from fedmrl.report.outcomes import TITLES, Column, Kind, Outcome, Outcomes, dataset_title
from fedmrl.report.page import NO_BREAK, filled
from fedmrl.report.page import PROTOCOLS as PROTOCOL_WORDS
from fedmrl.report.paper_figures import MODES, PAPER_GAINS, SWEEPS, Gains, Values, curve_values, gains
from fedmrl.report.paper_tables import (
    BASELINES,
    NAMES,
    Margin,
    accuracy_grid,
    any_measured,
    cost_grid,
    difference,
    measured_margin,
    printed_margin,
    signed,
)
from fedmrl.report.tables import time_said
from fedmrl.reproduce.cells import PROTOCOLS, Cell, Protocol, hash_of
from fedmrl.reproduce.experiments import EXPERIMENTS, METHOD_ORDER, Scale, Wanted, wanted

Data = dict[str, Any]

MOST_POINTS = 100
"""Of a curve: a panel is a few hundred pixels wide."""
COLOURS: Mapping[str, int] = {
    "fedproto": 0, "fedmrl": 1, "lg-fedavg": 2, "fml": 3, "fedapen": 4, "fedkd": 5, "standalone": 6, "fd": 7
}  # fmt: skip
"""The series' colours in `page.css`, so that a method looks as it does in the figures."""
SWEEP_WORDS: Mapping[str, tuple[str, str]] = {
    "non-iid-class": ("Classes per client", "classes per client"),
    "non-iid-dirichlet": ("Dirichlet parameter α", "α"),
    "d1": ("Dimension d₁ of the small model", "d₁"),
    "ablation": ("With and without Matryoshka learning", "d₁"),
}
"""What each sweep is called, and what it varies."""
WITHOUT_MRL = 6
"""The colour of FedMRL without Matryoshka learning."""


def write_index(cells: Sequence[Cell], scale: Scale, folder: Path) -> Path:
    """Write the page of a reproduction, whatever is measured of it; that of `results/paper` is what `results` opens with."""
    home = scale.name == "paper" and folder.parts[-2:] == ("results", "paper")
    path = (folder.parent if home else folder) / "index.html"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, index(cells, scale))
    return path


def index(cells: Sequence[Cell], scale: Scale) -> str:
    """The page, whole."""
    data = index_data(cells, scale)
    answer = data["answers"]["fair"]
    words = {"title": answer["title"], "lead": answer["lead"], "facts": data["facts"]}
    return filled("index", data, {"brand": "reproduction", **words})


def index_data(cells: Sequence[Cell], scale: Scale) -> Data:
    """All that the page shows."""
    outcomes, coverage = Outcomes(cells, scale), Coverage.of(cells, scale)
    return {
        "version": __version__,
        "quick": scale.name == "quick",
        "facts": _facts(outcomes, coverage),
        "notes": coverage.notes(),
        "protocols": PROTOCOL_WORDS,
        "answers": {protocol: _answer(outcomes, protocol) for protocol in PROTOCOLS},
        "methods": [{"title": TITLES[method], "colour": COLOURS[method]} for method in METHOD_ORDER],
        "tables": {
            kind: {protocol: _accuracy_table(outcomes, kind, protocol) for protocol in PROTOCOLS}
            for kind in NAMES
            if any_measured(outcomes, kind)
        },
        "curves": _curves(outcomes),
        "clients": _clients(outcomes),
        "costs": _costs(outcomes),
        "inference": _inference(outcomes),
        "sweeps": [found for name in SWEEPS if (found := _sweep(outcomes, name))],
        "experiments": coverage.experiments,
        **_runs(cells, coverage),
    }


# What is measured


@dataclass(frozen=True)
class Coverage:
    """How much of a reproduction there is."""

    wanted: int
    measured: int
    diverged: int
    others: frozenset[tuple[str, str, int]]
    """Cells that were measured with another recipe than this version has for them."""
    experiments: list[Data]

    @classmethod
    def of(cls, cells: Sequence[Cell], scale: Scale) -> "Coverage":
        """What the cells are of all that is wanted."""
        all_runs = wanted("all", scale)
        found = {cell.key: cell for cell in cells}
        measured = [found[key] for one in all_runs for key in _keys(one) if key in found]
        hashes = {key: hash_of(one.recipe) for one in all_runs for key in _keys(one)}
        others = frozenset(cell.key for cell in measured if cell.hash != hashes[cell.key])
        experiments = []
        for name, says in EXPERIMENTS.items():
            keys = [key for one in wanted(name, scale) for key in _keys(one)]
            experiments.append({"name": name, "says": says, "measured": sum(key in found for key in keys), "of": len(keys)})
        diverged = sum(cell.status == "diverged" for cell in measured)
        return cls(len(hashes), len(measured), diverged, others, experiments)

    @property
    def said(self) -> str:
        """Such as `14 of 62 runs are measured, 2 of which diverged`."""
        diverged = f", {self.diverged} of which diverged" if self.diverged else ""
        return f"{self.measured} of {self.wanted} runs are measured{diverged}"

    def notes(self) -> list[str]:
        """What a reader must know before believing the numbers."""
        if not self.others:
            return []
        are = "run was" if len(self.others) == 1 else "runs were"
        return [
            f"{len(self.others)} {are} measured with another recipe than this version has (marked † in the list of runs). "
            "Run “fedmrl reproduce” again to measure what has changed."
        ]


def _keys(one: Wanted) -> list[tuple[str, str, int]]:
    return [(one.setting, one.variant, seed) for seed in one.seeds]


def _facts(outcomes: Outcomes, coverage: Coverage) -> str:
    what = "FedMRL (NeurIPS 2024), reproduced" if outcomes.has_paper else "FedMRL (NeurIPS 2024), a small reproduction"
    return " · ".join([what, _listed([dataset_title(d) for d in outcomes.scale.datasets]), coverage.said])


def _listed(words: Sequence[str]) -> str:
    """Words in a row.

    >>> _listed(["FD", "FML", "FedKD"]), _listed(["FD"])
    ('FD, FML and FedKD', 'FD')
    """
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


# The answer


def _answer(outcomes: Outcomes, protocol: Protocol) -> Data:
    """What came out under a protocol, as a title, a few sentences, and a card for each claim that can be judged."""
    title = _title(outcomes, protocol)
    how = {
        "fair": "Every client counts, with the latest the server has, after the last round.",
        "paper": "Counted as the paper does: the best round, over the clients that took part in it.",
    }
    mains = [said for dataset in outcomes.scale.datasets if (said := _main_said(outcomes, dataset, protocol))]
    cards = (_first_card, _margin_card, _convergence_card, _clients_card, _inference_card, _mrl_card)
    return {
        "title": title,
        "lead": "\n".join([how[protocol], *mains]),
        "cards": [card for make in cards if (card := make(outcomes, protocol))],
    }


def is_first(outcomes: Outcomes, column: Column, protocol: Protocol) -> bool | None:
    """Whether FedMRL is ahead of all that are measured; None if that cannot be said. One that diverged is behind."""
    ours = outcomes.of(column.setting, "fedmrl")
    others = [outcomes.of(column.setting, method) for method in BASELINES]
    if ours.state == "missing" or all(other.state == "missing" for other in others):
        return None
    mean = ours.mean(protocol)
    return mean is not None and all((other := o.mean(protocol)) is None or other < mean for o in others)


def _standings(outcomes: Outcomes, protocol: Protocol, kind: Kind = "heterogeneous") -> dict[Column, bool]:
    found = {column: is_first(outcomes, column, protocol) for column in outcomes.columns(kind)}
    return {column: first for column, first in found.items() if first is not None}


def _whole(outcomes: Outcomes, columns: Iterable[Column]) -> bool:
    """Whether every method is measured in these columns."""
    return all(outcomes.of(column.setting, method).state != "missing" for column in columns for method in METHOD_ORDER)


def _title(outcomes: Outcomes, protocol: Protocol) -> str:
    judged = _standings(outcomes, protocol)
    if not judged:
        return "Whether FedMRL wins cannot be said yet"
    found = {column: measured_margin(outcomes, column, protocol, BASELINES) for column in judged}
    leads = [lead.points for column, lead in found.items() if lead and judged[column]]
    behind = [-lead.points for column, lead in found.items() if lead and not judged[column]]
    so_far = "" if _whole(outcomes, outcomes.columns()) else " so far"
    won = any(judged.values())
    return f"FedMRL is {_first_in(list(judged.values()))}{so_far}{_by(leads) if won else _by(behind, ' behind')}"


def _first_in(judged: Sequence[bool]) -> str:
    """In how many federations FedMRL is first.

    >>> _first_in([True, False, True]), _first_in([True, True]), _first_in([False])
    ('first in 2 of 3 federations', 'first in both federations', 'not first in the one federation')
    """
    wins, every = sum(judged), len(judged)
    if every == 1:
        return f"{'' if wins else 'not '}first in the one federation"
    if wins == every:
        return f"first in {'both' if every == 2 else f'all {every}'} federations"
    return f"first in {wins or 'none'} of {every} federations"


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
    ours = outcomes.of(main.setting, "fedmrl").mean(protocol)
    if ours is None:
        return ""
    lead = measured_margin(outcomes, main, protocol, BASELINES)
    name = main.dataset_title.replace("-", "\N{NON-BREAKING HYPHEN}")
    said = f"{name} with {main.federation_title}: FedMRL {ours:.2f}{NO_BREAK}%"
    said += f", {signed(lead.points)}{NO_BREAK}points against {_against(lead)}" if lead else ""
    if protocol == "paper" and outcomes.has_paper:
        theirs = outcomes.paper("heterogeneous", main, "fedmrl")
        printed = printed_margin(outcomes, "heterogeneous", main, BASELINES)
        if theirs is not None and printed:
            said += f" (the paper: {theirs:.2f}{NO_BREAK}%, {signed(printed.points)})"
    return f"{said}."


def _against(lead: Margin) -> str:
    return f"{TITLES[lead.against]}, the best of the others{'' if lead.complete else ' so far'}"


def _card(claim: str, held: Sequence[bool], values: Sequence[tuple[str, str]], note: str) -> Data:
    """A claim, whether it holds in all, some or none of the cases, and the numbers that say so, each with its caption."""
    verdict = "holds" if all(held) else "holds in part" if any(held) else "does not hold"
    return {"claim": claim, "verdict": verdict, "values": [list(value) for value in values], "note": note}


def _first_card(outcomes: Outcomes, protocol: Protocol) -> Data | None:
    """First in how many columns, under both protocols."""
    found = {p: _standings(outcomes, p) for p in sorted(PROTOCOLS, key=lambda p: p != protocol)}
    if not found[protocol]:
        return None
    names = {"fair": "counted fairly", "paper": "the paper’s way"}
    values = [(_of(judged.values()), names[p]) for p, judged in found.items()]
    homogeneous = _standings(outcomes, protocol, "homogeneous")
    parts = [
        "Federations (dataset × number of clients) in which FedMRL is first.",
        f"With one structure for all clients: {_of(homogeneous.values())}." if homogeneous else "",
        "The paper: all of them." if outcomes.has_paper else "",
    ]
    return _card("Most accurate", list(found[protocol].values()), values, _joined(parts))


def _of(held: Iterable[bool]) -> str:
    every = list(held)
    return f"{sum(every)} of {len(every)}"


def _joined(parts: Iterable[str]) -> str:
    return " ".join(part for part in parts if part)


def _margin_card(outcomes: Outcomes, protocol: Protocol) -> Data | None:
    """The lead at the main federation, and with how many seeds there is one."""
    held, values, title = [], [], ""
    for dataset in outcomes.scale.datasets:
        main = outcomes.main(dataset)
        if lead := measured_margin(outcomes, main, protocol, BASELINES):
            title = main.federation_title
            wins = _wins(outcomes.of(main.setting, "fedmrl"), outcomes.of(main.setting, lead.against), protocol)
            caption = f"{main.dataset_title}, against {TITLES[lead.against]}"
            caption += f", ahead with {_of(wins)} seeds" if len(wins) > 1 else ", one seed"
            if protocol == "paper" and outcomes.has_paper:
                printed = printed_margin(outcomes, "heterogeneous", main, BASELINES)
                caption += f"; the paper: {signed(printed.points)}" if printed else ""
            held.append(lead.points > 0)
            values.append((signed(lead.points, 1), caption))
    note = f"Points over the best of the others at {title}."
    return _card(f"Ahead at {title.partition(',')[0]}", held, values, note) if held else None


def _wins(ours: Outcome, theirs: Outcome, protocol: Protocol) -> list[bool]:
    """For each seed that both have, whether ours is ahead."""
    others = {cell.seed: cell.measured(protocol) for cell in theirs.cells}
    pairs = [(cell.measured(protocol), others.get(cell.seed)) for cell in ours.cells]
    return [mine > other for mine, other in pairs if mine is not None and other is not None]


def _convergence_card(outcomes: Outcomes, protocol: Protocol) -> Data | None:
    """Rounds to the target against the soonest of the others; only who reaches it with every seed reaches it."""
    held, values = [], []
    for dataset, target in outcomes.scale.targets.items():
        rounds = _rounds_to(outcomes, dataset, protocol)
        if "fedmrl" not in rounds or len(rounds) == 1:
            continue
        ours, others = rounds["fedmrl"], {m: r for m, r in rounds.items() if m != "fedmrl" and r is not None}
        best = min(others, key=lambda method: others[method], default=None)
        said = "no other reaches it" if best is None else f"{TITLES[best]} {others[best]:.0f}"
        held.append(ours is not None and (best is None or ours < others[best]))
        caption = f"{dataset_title(dataset)}, rounds to {100 * target:g}{NO_BREAK}%; {said}"
        values.append(("never" if ours is None else f"{ours:.0f}", caption))
    return _card("Learns in fewer rounds", held, values, "Against the soonest of the others.") if held else None


def _rounds_to(outcomes: Outcomes, dataset: str, protocol: Protocol) -> dict[str, float | None]:
    """The mean number of rounds to the target, by method; None for one that does not reach it with every seed."""
    found: dict[str, float | None] = {}
    for method in METHOD_ORDER:
        outcome = outcomes.of(outcomes.main(dataset).setting, method)
        cost = outcome.cost(protocol, outcomes.scale.targets[dataset], "rounds")
        if cost:
            found[method] = float(np.mean(cost.values)) if cost.everywhere else None
        elif outcome.state == "diverged":
            found[method] = None
    return found


def _gains(outcomes: Outcomes, dataset: str) -> Gains | None:
    setting = outcomes.main(dataset).setting
    return gains(outcomes.of(setting, "fedmrl"), outcomes.of(setting, "fedproto"))


def _clients_card(outcomes: Outcomes, _: Protocol) -> Data | None:
    """The share of clients that gain over FedProto."""
    held, values = [], []
    for dataset in outcomes.scale.datasets:
        if gained := _gains(outcomes, dataset):
            share = float(np.mean(gained.shares))
            over = f", mean of {len(gained.shares)} seeds" if len(gained.shares) > 1 else ""
            held.append(share > 50)
            values.append((f"{share:.0f}{NO_BREAK}%", f"{dataset_title(dataset)}{over}{_paper_share(outcomes, dataset)}"))
    note = "Clients that do better with FedMRL than with FedProto, all of them after the last round."
    return _card("Most clients gain", held, values, note) if held else None


def _paper_share(outcomes: Outcomes, dataset: str) -> str:
    return f"; the paper: {PAPER_GAINS[dataset]}{NO_BREAK}%" if outcomes.has_paper else ""


def _inference_card(outcomes: Outcomes, _: Protocol) -> Data | None:
    """Whether mix-small is nearer to mix-large than to the better of the two models that serve alone."""
    held, values = [], []
    for dataset in outcomes.scale.datasets:
        modes = _mode_means(outcomes.of(outcomes.main(dataset).setting, "fedmrl"))
        if len(modes) < len(MODES):
            continue
        gap, alone = modes["mix-small"] - modes["mix-large"], max(modes["single-small"], modes["single-large"])
        held.append(abs(gap) < modes["mix-small"] - alone)
        caption = f"{dataset_title(dataset)}; a single model {signed(alone - modes['mix-large'], 1)}"
        values.append((signed(gap, 1), caption))
    note = "Points from mix-large, the default, to mix-small; it holds where that is nearer than any single model."
    return _card("mix-small is enough", held, values, note) if held else None


def _mode_means(outcome: Outcome) -> dict[str, float]:
    """The accuracy of each model that a client can serve, in percent, mean over seeds."""
    if outcome.state != "finished":
        return {}
    found = {mode: [of[mode] for cell in outcome.cells if mode in (of := cell.inference.get(cell.view, {}))] for mode in MODES}
    return {mode: 100 * float(np.mean(values)) for mode, values in found.items() if values}


def _mrl_card(outcomes: Outcomes, protocol: Protocol) -> Data | None:
    """With Matryoshka learning against without, by dimension."""
    held, values = [], []
    for dataset in outcomes.scale.datasets:
        wins = _ahead(SWEEPS["ablation"].points(outcomes, dataset), protocol)
        if wins:
            held += wins
            values.append((_of(wins), dataset_title(dataset)))
    note = "Dimensions d₁ at which FedMRL is better with Matryoshka learning than without."
    return _card("Matryoshka helps", held, values, note) if held else None


def _ahead(points: Mapping[float, tuple[Outcome, ...]], protocol: Protocol) -> list[bool]:
    """Wherever both of two lines have a point, whether the first is ahead."""
    means = [[outcome.mean(protocol) for outcome in of] for of in points.values()]
    return [a > b for a, b in means if a is not None and b is not None]


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
    return {
        "caption": grid.caption,
        "corner": grid.corner,
        "header": [[list(title) for title in row] for row in grid.header],
        "groups": [
            [{"name": name, "entries": [_entry(e) for e in entries]} for name, entries in group] for group in grid.groups
        ],
        "notes": [*([f"{grid.best} of a column on a tint, second underlined."] if grid.best else []), *grid.notes],
    }


def _entry(entry: Entry) -> Data:
    return {name: text for name in ("text", "mark", "aside") if (text := getattr(entry, name))}


def _costs(outcomes: Outcomes) -> Data | None:
    """The table of costs by protocol, if any method was measured where they are counted."""
    mains = [outcomes.main(dataset) for dataset in outcomes.scale.datasets]
    if not any(cell.targets for main in mains for method in METHOD_ORDER for cell in outcomes.of(main.setting, method).cells):
        return None
    return {protocol: _grid(cost_grid(outcomes, protocol)) for protocol in PROTOCOLS}


# Curves


def _curves(outcomes: Outcomes) -> list[Data]:
    """A panel for each dataset and federation; none if there is nothing to draw."""
    panels = []
    for column in outcomes.columns():
        found = {method: outcomes.of(column.setting, method) for method in METHOD_ORDER}
        series = [
            {"method": place, **{protocol: _curve(found[method], protocol) for protocol in PROTOCOLS}}
            for place, method in enumerate(METHOD_ORDER)
            if found[method].state == "finished"
        ]
        absent = _absent({TITLES[method]: outcome for method, outcome in found.items()}) if series else ""
        panels.append({"dataset": column.dataset_title, "title": column.title, "series": series, "absent": absent})
    return panels if any(panel["series"] for panel in panels) else []


def _absent(found: Mapping[str, Outcome]) -> str:
    """What cannot be drawn, by why.

    >>> _absent({"FD": Outcome(), "FML": Outcome()})
    'Not measured: FD, FML.'
    """
    said = []
    for state, why in (("diverged", "Diverged"), ("missing", "Not measured")):
        names = [name for name, outcome in found.items() if outcome.state == state]
        said += [f"{why}: {', '.join(names)}."] if names else []
    return " ".join(said)


def _curve(outcome: Outcome, protocol: Protocol) -> Data:
    rounds, values = curve_values(outcome, protocol)
    kept, values = thinned(rounds, values / 100, means=protocol == "paper")
    return {"rounds": kept, **_spread(values)}


def thinned(rounds: Sequence[int], values: Values, means: bool) -> tuple[list[int], Values]:
    """At most MOST_POINTS rounds of curves by seed and round, with the last; as they are, or means since the one before."""
    step = -(-len(rounds) // MOST_POINTS)
    last = np.arange(len(rounds) - 1, -1, -step)[::-1]
    if means:
        first = np.concatenate([[0], last[:-1] + 1])
        values = np.stack([values[:, a : b + 1].mean(axis=1) for a, b in zip(first, last, strict=True)], axis=1)
    else:
        values = values[:, last]
    return [rounds[place] for place in last], values


def _spread(values: Values) -> dict[str, list[float]]:
    """The mean over seeds (rows), and their range where there are several."""
    shown = {"mean": _rounded(values.mean(axis=0))}
    return shown if len(values) == 1 else {**shown, "low": _rounded(values.min(axis=0)), "high": _rounded(values.max(axis=0))}


def _rounded(values: Iterable[float]) -> list[float]:
    return [round(float(value), 4) for value in values]


# Clients, ways to predict, sweeps


def _clients(outcomes: Outcomes) -> list[Data]:
    """What each client gains with FedMRL over FedProto, by dataset."""
    shown = []
    for dataset in outcomes.scale.datasets:
        main, gained = outcomes.main(dataset), _gains(outcomes, dataset)
        if gained:
            share = f"{np.mean(gained.shares):.0f}{NO_BREAK}% of the clients gain"
            shown.append(
                {
                    "title": main.title,
                    "share": share,
                    "paper": f"The paper: {PAPER_GAINS[dataset]}{NO_BREAK}%." if outcomes.has_paper else "",
                    "said": f"Bars: {gained.said}.",
                    "gains": _rounded(gained.points / 100),
                }
            )
    return shown


def _inference(outcomes: Outcomes) -> list[Data]:
    """The models that a client can serve, by dataset."""
    mains = [outcomes.main(dataset) for dataset in outcomes.scale.datasets]
    found = {main.title: _mode_means(outcomes.of(main.setting, "fedmrl")) for main in mains}
    return [
        {"title": title, "modes": [[mode, round(mean / 100, 4)] for mode, mean in modes.items()]}
        for title, modes in found.items()
        if modes
    ]


def _sweep(outcomes: Outcomes, name: str) -> Data | None:
    """A panel for each dataset in which anything is measured besides what the tables have."""
    sweep, (title, axis) = SWEEPS[name], SWEEP_WORDS[name]
    names = list(sweep.lines)
    panels = []
    for dataset in outcomes.scale.datasets:
        main, found = outcomes.main(dataset).setting, sweep.points(outcomes, dataset)
        cells = [cell for of in found.values() for outcome in of for cell in outcome.cells]
        if all(cell.setting == main and cell.variant in METHOD_ORDER for cell in cells):
            continue
        lines = [{x: of[place] for x, of in found.items()} for place in range(len(names))]
        absent = {f"{names[place]} at {x:g}": outcome for place, line in enumerate(lines) for x, outcome in line.items()}
        panels.append(
            {
                "title": outcomes.main(dataset).title,
                "xs": list(found),
                "series": [
                    {
                        "name": names[place], "colour": _colour(names[place]),
                        "fair": _line(line, "fair"), "paper": _line(line, "paper"),
                    }
                    for place, line in enumerate(lines)
                    if any(outcome.state == "finished" for outcome in line.values())
                ],
                "absent": _absent(absent),
                "said": {protocol: _sweep_said(found, names, axis, protocol) for protocol in PROTOCOLS},
            }
        )  # fmt: skip
    return {"name": name, "title": title, "axis": axis, "panels": panels} if panels else None


def _colour(name: str) -> int:
    colours = {TITLES[method]: colour for method, colour in COLOURS.items()}
    return WITHOUT_MRL if "without" in name else colours.get(name, COLOURS["fedmrl"])


def _line(points: Mapping[float, Outcome], protocol: Protocol) -> Data:
    found = {x: outcome.accuracies(protocol) for x, outcome in points.items() if outcome.state == "finished"}
    shown: Data = {"rounds": list(found), "mean": _rounded(float(np.mean(values)) for values in found.values())}
    if any(len(values) > 1 for values in found.values()):
        shown |= {"low": _rounded(map(min, found.values())), "high": _rounded(map(max, found.values()))}
    return shown


def _sweep_said(found: Mapping[float, tuple[Outcome, ...]], names: Sequence[str], axis: str, protocol: Protocol) -> str:
    if len(names) > 1:
        wins = _ahead(found, protocol)
        return f"{names[0]} is ahead of {names[1]} at {_of(wins)} measured values of {axis}." if wins else ""
    means = {x: mean for x, (outcome,) in found.items() if (mean := outcome.mean(protocol)) is not None}
    if len(means) < 2:
        return ""
    best = max(means, key=lambda x: means[x])
    lost = max(means.values()) - min(means.values())
    return f"Best at {axis} = {best:g}, {lost:.1f}{NO_BREAK}points above the worst."


# How to repeat it


def _runs(cells: Sequence[Cell], coverage: Coverage) -> Data:
    """Every run with what is needed to repeat it, and the device time of all. Machines are written once: there are few."""
    machines: dict[tuple[str, str, str], int] = {}
    rows: list[Data] = []
    seconds: dict[str, float] = {}
    for cell in sorted(cells, key=lambda cell: cell.key):
        versions = ", ".join(f"{name} {number}" for name, number in cell.versions.items())
        machine = machines.setdefault((cell.device, cell.engine, versions), len(machines))
        # Seeds that were run as one each carry the time of all of them.
        own = cell.wall_seconds / max(1, cell.together)
        seconds[cell.device] = seconds.get(cell.device, 0.0) + own
        rows.append(
            {
                "name": f"{cell.setting}/{cell.variant}", "seed": cell.seed, "seconds": round(own, 1),
                "fair": _share(cell.measured("fair")), "paper": _share(cell.measured("paper")),
                "together": cell.together, "machine": machine, "hash": cell.hash, "command": cell.command,
                **({"diverged": str((cell.diverged or {}).get("reason", ""))} if cell.status == "diverged" else {}),
                **({"other": True} if cell.key in coverage.others else {}),
            }
        )  # fmt: skip
    total = _listed([f"{time_said(spent)} on {device}" for device, spent in seconds.items()])
    beyond = len(cells) - coverage.measured
    return {"machines": [list(machine) for machine in machines], "cells": rows, "time": total, "beyond": beyond}


def _share(accuracy: float | None) -> float | None:
    return None if accuracy is None else round(accuracy, 4)
