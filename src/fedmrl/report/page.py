"""The report: an HTML page about finished runs, with its sentences and the data of its charts."""

import shlex
from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np

from fedmrl.errors import UserError
from fedmrl.files import output_path, write_whole
from fedmrl.report import tables
from fedmrl.report.charts import MAX_HEAT_MAP_CLIENTS, accuracy_chart, difference_chart, heat_map
from fedmrl.report.rendering import CURVE_SENTENCES, MODEL_PHRASES, render
from fedmrl.report.runs import Series, differing, find_runs, make_series
from fedmrl.report.styles import Style, StyleKey, choose_styles
from fedmrl.report.tables import DASH, NO_BREAK, format_seeds, join_words, percentage
from fedmrl.results import PROTOCOLS, ClientResult, Protocol, RunResult, TensorOut, counted

CONTENTS: Mapping[str, str] = {
    "curves": "Accuracy over the rounds",
    "clients": "Client by client",
    "split": "Split of the data",
    "cost": "Cost",
    "modes": "Ways to predict",
    "leaves": "What leaves a client",
    "recipe": "The exact recipe",
    "glossary": "Glossary",
}
ALL_CLIENT_PROTOCOLS: Sequence[Protocol] = ("fair", "own")
"""The protocols that evaluate every client after the last round."""
MAX_NAMED_CLASSES = 10  # classes of a client that fit into a table's cell
MAX_ROWS = 500  # rows of a table that are shown at once
_ELSEWHERE = {
    "models": "Its models were given in Python; repeat it from there.",
    "given": "Its data was given in Python; repeat it from there.",
    "at-clients": "Its data is at the clients; repeat it with them, by fedmrl federation run.",
}
"""What to say of runs that a recipe alone cannot repeat, by the name of their data."""
OLD_SPLIT = (
    "An older version made these runs and did not record how many samples of each class their clients have. "
    "Repeat the runs to see that here."
)


def write_page(paths: Sequence[Path], out: Path | None = None) -> Path:
    """Writes the report of these folders' runs to `out` (default: report.html in the only folder, or the working directory)."""
    target = out or (paths[0] if len(paths) == 1 else Path()) / "report.html"
    if target.suffix not in (".html", ".htm"):
        raise UserError(f"--out is {target}; name an .html file")
    runs, left_out = find_runs(paths)
    text = page(make_series(runs), left_out)
    if target.is_dir() or not target.parent.is_dir():
        raise UserError(f"--out: {target} cannot be written; name a file in an existing folder")
    write_whole(target, text)
    return target


def write_results(runs: Sequence[RunResult], path: str | Path, left_out: Sequence[str] = ()) -> Path:
    """Writes the report of these results to an HTML file, for Python."""
    target = output_path(path, "path")
    if target.suffix not in (".html", ".htm") or target.is_dir() or not target.parent.is_dir():
        raise UserError(f"path is {str(path)!r}; name an .html file in an existing folder")
    write_whole(target, page(make_series(runs), left_out))
    return target


def page(series: Sequence[Series], left_out: Sequence[str] = ()) -> str:
    """The report as HTML."""
    shown = page_data(series, left_out)
    return render("page", shown, {name: shown[name] for name in ("charts", "federations")})


def page_data(series: Sequence[Series], left_out: Sequence[str] = ()) -> dict[str, Any]:
    """The data of the page, with the most accurate series first."""
    ranked = sorted(series, key=lambda one: -_mean(one, "fair"))
    styles = choose_styles([StyleKey(one.first.method, one.name, one.first.colour) for one in ranked])
    several = any(len(one.runs) > 1 for one in ranked)
    totals = [_totals(one) for one in ranked]
    rings = {"paper": f" A ring marks {'each seed’s' if several else 'the'} best round."}
    band = " Line: mean over seeds; band: their range." if several else ""
    return {
        "brand": "report",
        "contents": CONTENTS,
        "facts": _facts(ranked),
        "disagreements": _disagreements(ranked),
        "notes": [*_notes(ranked), *(f"Left out: {sentence}." for sentence in left_out)],
        "answers": {protocol: _answer(ranked, protocol) for protocol in PROTOCOLS},
        "curves_say": {p: says + rings.get(p, "") + band for p, says in CURVE_SENTENCES.items()},
        "charts": {
            protocol: accuracy_chart(
                [(one.name, style, one.runs) for one, style in zip(ranked, styles, strict=True)], protocol
            ).on_page()
            for protocol in PROTOCOLS
        },
        "series": [
            {"name": one.name, "style": style.on_page, "seeds": one.seeds, "modes": _modes(one)}
            for one, style in zip(ranked, styles, strict=True)
        ],
        "federations": _federations(ranked, styles),
        "totals": totals,
        "most_bytes": max(1.0, *(row["bytes"] for row in totals)),
        "most_flops": max(1.0, *(row["flops"] for row in totals)),
        "targets": {protocol: _targets(ranked, protocol) for protocol in PROTOCOLS},
        "highest": {protocol: [(one.name, percent(_highest(one, protocol))) for one in ranked] for protocol in PROTOCOLS},
        "modes_say": _modes_say(ranked),
        "leaves": [_leaves(one) for one in ranked],
        "recipes": [_recipe(one) for one in ranked],
    }


def _facts(series: Sequence[Series]) -> str:
    """The settings that all runs share, in a few words."""
    settings = series[0].first.settings
    apart = differing([one.first.settings for one in series])
    share = settings.get("participation", 1.0)
    said = {
        "data.name": _data_name(settings),
        "clients": _number_of(len(series[0].first.clients), "client"),
        "participation": f"{share:.0%} a round" if isinstance(share, float | int) else "",
        "rounds": _number_of(series[0].first.rounds, "round") if len({one.first.rounds for one in series}) == 1 else "",
    }
    seeds = [seed for one in series for seed in one.seeds]
    words = [str(word) for key, word in said.items() if word and key not in apart]
    return " · ".join([*words, format_seeds(seeds)])


def _data_name(settings: Mapping[str, Any]) -> Any:
    """The data's name; a network's clients have data of their own."""
    name = settings.get("data.called", settings.get("data.name", ""))
    return "the clients’ own data" if name == "at-clients" else name


def _notes(series: Sequence[Series]) -> list[str]:
    """What a reader must know before comparing the series."""
    notes = []
    firsts = [one.first for one in series]
    if apart := [key for key in differing([run.settings for run in firsts]) if not key.startswith("method.")]:
        said = "; ".join(
            f"{key}: {', '.join(dict.fromkeys(str(r.settings.get(key, 'not set')) for r in firsts))}" for key in apart
        )
        notes.append(f"These runs differ in more than the method, which may explain a lead. {said}.")
    for one in series:
        notes += [f"{one.name}: {said}" for said in _privacy_notes(one)]
    if len({tuple(one.seeds) for one in series}) > 1:
        said = "; ".join(f"{one.name}: {', '.join(map(str, one.seeds))}" for one in series)
        notes.append(f"The methods were run with different seeds. {said}.")
    return notes


def _privacy_notes(one: Series) -> list[str]:
    """Sentences on a series' privacy beyond its epsilon, which stands in a card."""
    return list(dict.fromkeys(said for run in one.runs for said in tables.format_privacy(run)[1:]))


def _privacy(one: Series) -> tuple[str, str, str] | None:
    """The largest epsilon of a series, its delta and the kind of noise, if it is private."""
    spent = [run.privacy for run in one.runs if run.privacy is not None]
    if not spent:
        return None
    most = max(spent, key=lambda privacy: privacy.epsilon)
    return f"ε = {most.epsilon:.3g}", f"at δ = {most.delta:g}", f"{most.mode} noise"


def _disagreements(series: Sequence[Series]) -> list[str]:
    """A sentence if the protocols `fair` and `own` disagree about the first place."""
    first = {protocol: max(series, key=lambda one: _mean(one, protocol)) for protocol in ALL_CLIENT_PROTOCOLS}
    fair, own = first["fair"], first["own"]
    if fair is own or any(_level(fair, own, protocol) for protocol in ALL_CLIENT_PROTOCOLS):
        return []
    return [f"The first place depends on the protocol: {fair.name} under fair, {own.name} under own."]


def _mean(one: Series, protocol: Protocol) -> float:
    return float(np.mean([run.headline(protocol) for run in one.runs]))


def _answer(series: Sequence[Series], protocol: Protocol) -> dict[str, Any]:
    """The headline, its explanation, and a card for each series."""
    order = sorted(series, key=lambda one: -_mean(one, protocol))
    title, lead = _alone(order[0], protocol) if len(order) == 1 else _won(order, protocol)
    cards = _cards_of_one(order[0], protocol) if len(order) == 1 else [_card(one, series.index(one), protocol) for one in order]
    return {"title": title, "lead": lead, "cards": cards}


def _alone(one: Series, protocol: Protocol) -> tuple[str, str]:
    reached = percent(_mean(one, protocol))
    if protocol != "paper":
        title = f"{one.name} reached {reached}"
        where = f"Mean over {_everyone(one)}, each on its own test samples{_with_own(protocol)}."
    else:
        title = f"{one.name} reached {reached} in its best round"
        best = _best_rounds(one)
        where = f"Mean over the participants of {best}, each on its own test samples with the model it had just trained."
    spread = f" Over {len(one.runs)} seeds it ranges from {_range(one, protocol)}." if len(one.runs) > 1 else ""
    return (
        title,
        f"{where}{spread} A client sent and received {amount(_sent(one), 'B')} and computed {amount(_flops(one), 'FLOP')}.",
    )


def _everyone(one: Series) -> str:
    """The clients over which `fair` and `own` take the mean."""
    first, idle = one.first, sorted({run.idle for run in one.runs})
    never = f", {' to '.join(map(str, dict.fromkeys((idle[0], idle[-1]))))} of whom never took part" if idle[-1] else ""
    return f"all {_number_of(len(first.clients), 'client')} after {_number_of(first.rounds, 'round')}{never}"


def _with_own(protocol: Protocol) -> str:
    return " with the copy of the shared part that it trained last" if protocol == "own" else ""


def _won(order: Sequence[Series], protocol: Protocol) -> tuple[str, str]:
    """The headline of several series: who is first and by how much, or who is level."""
    winner, second = order[0], order[1]
    level = list(takewhile(lambda one: _level(winner, one, protocol), order[1:]))
    wins, common = _wins(winner, second, protocol)
    ahead = f"{100 * (_mean(winner, protocol) - _mean(second, protocol)):.1f}{NO_BREAK}points"
    mostly = ", on average" if wins < common else ""
    ours, theirs = percent(_mean(winner, protocol)), percent(_mean(second, protocol))
    said = f"{winner.name} is right on {ours} of a client’s test samples and {second.name} on {theirs}"
    first = join_words([one.name for one in (winner, *level)])
    alike = level and all(percent(_mean(one, protocol)) == ours for one in level)
    limit = "" if alike else f", as far as {common} seeds can say"
    if protocol != "paper":
        title = f"{first} end level{limit}" if level else f"{winner.name} ends {ahead} ahead of {second.name}{mostly}"
        reached = f"{said}, mean over {_everyone(winner)}{', each' if protocol == 'own' else ''}{_with_own(protocol)}"
    else:
        title = f"{winner.name}’s best round is {ahead} above {second.name}’s{mostly}"
        title = f"{first} have equally good best rounds{limit}" if level else title
        reached = f"{said}, mean over the participants of its best round, each with the model it had just trained"
    cost = (
        f"A client sent and received {amount(_sent(winner), 'B')} "
        f"({second.name}: {_beside(_sent(second), _sent(winner), 'B')}) "
        f"and computed {amount(_flops(winner), 'FLOP')} ({second.name}: {_beside(_flops(second), _flops(winner), 'FLOP')})."
    )
    return title, f"{reached}. {_certain(wins, common)} {cost}"


def _certain(wins: int, common: int) -> str:
    """How many seeds agree on the winner."""
    if common == 0:
        return "They have no seed in common; with others, the order may change."
    if common == 1:
        return "This is a single seed; with another, the order may change."
    return f"It is ahead in {wins} of {common} seeds."


def _level(one: Series, other: Series, protocol: Protocol) -> bool:
    """Whether two series print the same accuracy, or their difference may be chance (`tables.is_undecided`)."""
    same = percent(_mean(one, protocol)) == percent(_mean(other, protocol))
    return same or tables.is_undecided(_leads(one, other, protocol))


def _leads(one: Series, other: Series, protocol: Protocol) -> list[float]:
    """The lead of one series over another in each seed that both have."""
    theirs = {run.seed: run.headline(protocol) for run in other.runs}
    return [run.headline(protocol) - theirs[run.seed] for run in one.runs if run.seed in theirs]


def _wins(winner: Series, second: Series, protocol: Protocol) -> tuple[int, int]:
    """The number of common seeds in which the winner is ahead, and the number of common seeds."""
    leads = _leads(winner, second, protocol)
    return sum(lead > 0 for lead in leads), len(leads)


def _beside(value: float, other: float, unit: str) -> str:
    """An amount, and its ratio to another.

    >>> _beside(3e6, 2e6, "B"), _beside(2e3, 2e6, "B"), _beside(0, 5, "B")
    ('3\\xa0MB, 1.5 times as much', '2\\xa0kB, 1000 times less', '0\\xa0B')
    """
    said = amount(value, unit)
    if not value or not other:
        return said
    times = max(value / other, other / value)
    if times < 1.05:
        return f"{said}, about as much"
    return f"{said}, {times:.{1 if times < 10 else 0}f} times {'as much' if value > other else 'less'}"


def _card(one: Series, place: int, protocol: Protocol) -> dict[str, Any]:
    notes = [f"{_range(one, protocol)} over {len(one.runs)} seeds"] if len(one.runs) > 1 else []
    notes += [f"best round: {_best_rounds(one).removeprefix('round ')}"] if protocol == "paper" and len(one.runs) == 1 else []
    costs = [["sent and received", amount(_sent(one), "B")], ["compute", amount(_flops(one), "FLOP")]]
    if private := _privacy(one):
        costs.append([f"privacy {private[1]}", private[0]])
    return {
        "label": one.name,
        "series": place,
        "value": percent(_mean(one, protocol)),
        "notes": notes,
        "pairs": [*costs, *([] if protocol == "paper" else [[_worst_title(one, protocol), percent(_worst(one, protocol))]])],
    }


def _cards_of_one(one: Series, protocol: Protocol) -> list[dict[str, Any]]:
    over = f", mean of {len(one.runs)} seeds" if len(one.runs) > 1 else ""
    where = f"participants of {_best_rounds(one)}" if protocol == "paper" else "all clients, last round"
    cards = [("Accuracy", percent(_mean(one, protocol)), f"{where}{over}")]
    if protocol != "paper":
        cards.append((_worst_title(one, protocol).capitalize(), percent(_worst(one, protocol)), f"at the end{over}"))
    cards.append(("Sent and received", amount(_sent(one), "B"), "by a client, in all rounds"))
    cards.append(("Compute", amount(_flops(one), "FLOP"), "of a client, in all rounds"))
    if private := _privacy(one):
        cards.append(("Privacy", private[0], f"{private[1]}, {private[2]}"))
    return [{"label": label, "value": value, "notes": [note], "pairs": [], "series": None} for label, value, note in cards]


def _best_rounds(one: Series) -> str:
    rounds = [run.best.best_round for run in one.runs]
    return f"round {rounds[0]}" if len(rounds) == 1 else f"rounds {', '.join(map(str, rounds))} (one for each seed)"


def _range(one: Series, protocol: Protocol) -> str:
    values = [run.headline(protocol) for run in one.runs]
    return f"{100 * min(values):.1f} to {percent(max(values))}"


def _worst(one: Series, protocol: Protocol) -> float:
    """The lowest accuracy of any client, mean over seeds."""
    return float(np.mean([min(run.of_clients(protocol)) for run in one.runs]))


def _worst_title(one: Series, protocol: Protocol) -> str:
    """The label of the worst client, with the reason if it is known."""
    why = tables.why_worst(one.runs, protocol)
    return f"worst client ({why})" if why else "worst client"


def _sent(one: Series, ways: Sequence[str] = ("up", "down"), what: str = "bytes") -> float:
    """A client's total communication, mean over clients and seeds."""

    def of_run(run: RunResult) -> float:
        return float(sum(getattr(getattr(run.communication, way), what) for way in ways)) / len(run.clients)

    return float(np.mean([of_run(run) for run in one.runs]))


def _flops(one: Series) -> float:
    return float(np.mean([run.flops / len(run.clients) for run in one.runs]))


def _modes_say(series: Sequence[Series]) -> str:
    views = {view for one in series for view, _ in one.first.inference.items()}
    said = "Accuracy of all clients at the end, for each way that a method can predict. Bold: the way that counts above."
    return said + (f" Solid: {MODEL_PHRASES['fair']} (fair); hatched: {MODEL_PHRASES['own']} (own)." if len(views) > 1 else "")


def _modes(one: Series) -> list[dict[str, Any]]:
    """Each way to predict, with a bar for each view; means over seeds."""
    first = one.first
    views = [view for view, _ in reversed(first.inference.items())]

    def bar(mode: str, view: str) -> dict[str, Any]:
        value = float(np.mean([run.inference[view][mode] for run in one.runs]))
        width = round(100 * value, 1)
        return {"view": view, "width": width, "words": percent(value), "hatched": view == "own" and len(views) > 1}

    return [
        {"mode": mode, "counts": mode == first.mode, "bars": [bar(mode, view) for view in views]}
        for mode in first.inference[first.view]
    ]


def _federations(series: Sequence[Series], styles: Sequence[Style]) -> list[dict[str, Any]]:
    """The clients of each split: only clients with the same samples can be compared one by one."""
    digests = {run.split_sha256: run.seed for one in reversed(series) for run in reversed(one.runs)}
    return [_federation(series, styles, digest, len(digests)) for digest in sorted(digests, key=lambda digest: digests[digest])]


def _federation(series: Sequence[Series], styles: Sequence[Style], digest: str, splits: int) -> dict[str, Any]:
    members = {place: [run for run in one.runs if run.split_sha256 == digest] for place, one in enumerate(series)}
    members = {place: own for place, own in members.items() if own}
    runs = [run for own in members.values() for run in own]
    everyone = list(zip(*(run.clients for run in runs), strict=True))
    rounds = [[client.rounds for client in same] for same in everyone]
    took_part = [own[0] for own in rounds] if all(len(set(own)) == 1 for own in rounds) else None
    split = next((heat_map(run.split, run.class_names) for run in runs if run.split and run.class_names), None)
    accuracy = {
        p: {place: np.mean([run.of_clients(p) for run in own], axis=0) for place, own in members.items()}
        for p in ALL_CLIENT_PROTOCOLS
    }

    def gain(protocol: Protocol, first: int, second: int) -> dict[str, Any]:
        a, b = series[first].name, series[second].name
        points = 100 * (accuracy[protocol][first] - accuracy[protocol][second])
        chart = difference_chart(a, b, styles[first], styles[second], points)
        gained, lost, tied = chart.counts
        said = f" with {a} over {b}: {gained:,} of {len(points):,} are better, {lost:,} worse, {tied:,} the same."
        return {**chart.on_page(), "share": f"{100 * gained / len(points):.0f}{NO_BREAK}% of the clients gain", "says": said}

    return {
        "label": format_seeds(run.seed for run in runs),
        "says": {protocol: _clients_say(protocol, everyone, took_part, splits) for protocol in ALL_CLIENT_PROTOCOLS},
        "members": {place: series[place].name for place in members},
        "columns": _columns(everyone, took_part),
        "accuracy": {
            protocol: [
                {
                    "title": series[place].name, "number": True, "style": styles[place].on_page,
                    "values": np.round(values, 5).tolist(), "labels": [percent(value) for value in values],
                }
                for place, values in of.items()
            ]
            for protocol, of in accuracy.items()
        },
        "hint": table_hint(len(everyone)),
        "gains": {
            p: {f"{a}-{b}": gain(p, a, b) for a in members for b in members if a != b} for p in ALL_CLIENT_PROTOCOLS
        },
        "split": split.on_page() if split else None,
        "splitSays": _split_says(len(everyone)) if split else OLD_SPLIT,
    }  # fmt: skip


def _columns(everyone: Sequence[Sequence[ClientResult]], took_part: Sequence[int] | None) -> list[dict[str, Any]]:
    """The table's columns for each client, without the accuracies, which come after the first column."""
    classes = [same[0].classes.split() for same in everyone]
    rounds = {
        "title": "took part", "number": True, "values": took_part,
        "labels": [f"{rounds:,} ×" if rounds else "never" for rounds in took_part or ()],
    }  # fmt: skip
    return [
        {"title": "client", "number": True, "values": list(range(len(everyone)))},
        {"title": "model", "values": [" / ".join(dict.fromkeys(client.model for client in same)) for same in everyone]},
        {
            "title": "classes", "values": [len(own) for own in classes],
            "labels": [", ".join(own) if len(own) <= MAX_NAMED_CLASSES else f"{len(own)} classes" for own in classes],
        },
        {"title": "training samples", "number": True, "values": [same[0].train_samples for same in everyone]},
        {"title": "test samples", "number": True, "values": [same[0].test_samples for same in everyone]},
        *([rounds] if took_part else []),
    ]  # fmt: skip


def table_hint(rows: int) -> str:
    """The hint below a sortable table.

    >>> table_hint(1200)
    'The first 500 of 1,200 rows; sort by another column to see others.'
    """
    if rows > MAX_ROWS:
        return f"The first {MAX_ROWS} of {rows:,} rows; sort by another column to see others."
    return f"{rows} rows. Press a column’s title to sort by it."


def _clients_say(
    protocol: Protocol, everyone: Sequence[Sequence[ClientResult]], took_part: Sequence[int] | None, splits: int
) -> str:
    idle = sum(not rounds for rounds in took_part or ())
    said = [
        f"Each client’s accuracy after the last round, on its own test samples, {MODEL_PHRASES[protocol]} ({protocol}).",
        sample_worth([same[0].test_samples for same in everyone]),
        f"Clients that never took part ({idle:,} of {len(everyone):,}) still have their initial models: only what the "
        "server sends them is trained."
        if idle
        else "",
        "Each seed has its own split, so clients are compared within one seed." if splits > 1 else "",
    ]
    return " ".join(filter(None, said))


def _split_says(clients: int) -> str:
    cut = f"; the first {MAX_HEAT_MAP_CLIENTS} of {clients:,} clients" if clients > MAX_HEAT_MAP_CLIENTS else ""
    return f"Training samples by class (row) and client (column){cut}."


def sample_worth(test_samples: Sequence[int]) -> str:
    """A sentence on how much one test sample counts, if clients have few of them.

    >>> sample_worth([6, 8]), sample_worth([500])
    ('A client has 7 test samples on average, so one sample is worth 14\\xa0points of its accuracy.', '')
    """
    mean = float(np.mean(test_samples))
    if not 0 < mean <= tables.FEW_TEST_SAMPLES:
        return ""
    own = "1 test sample" if f"{mean:.0f}" == "1" else f"{mean:.0f} test samples"
    worth = "1 point" if f"{100 / mean:.0f}" == "1" else f"{100 / mean:.0f} points"
    return f"A client has {own} on average, so one sample is worth {worth.replace(' ', NO_BREAK)} of its accuracy."


def _totals(one: Series) -> dict[str, Any]:
    """A client's total cost: bytes and FLOPs as numbers for the bars, and all amounts as text."""
    sent, flops = _sent(one), _flops(one)
    return {
        "bytes": sent,
        "flops": flops,
        "together": max(run.together for run in one.runs),
        "words": {
            "up": amount(_sent(one, ["up"]), "B"),
            "down": amount(_sent(one, ["down"]), "B"),
            "bytes": amount(sent, "B"),
            "parameters": amount(_sent(one, what="parameters"), ""),
            "flops": amount(flops, "FLOP"),
            "time": tables.format_time(float(np.mean([run.seconds_of_seed for run in one.runs]))),
        },
    }


def _targets(series: Sequence[Series], protocol: Protocol) -> list[dict[str, Any]]:
    """For each target, a row of texts for each series."""
    wanted = sorted({cost.target for one in series for run in one.runs for cost in run.targets})
    rows = {target: [_target(one, target, protocol) for one in series] for target in wanted}
    return [{"target": f"{100 * target:g} %", "rows": of, "reached": any(of)} for target, of in rows.items()]


def _highest(one: Series, protocol: Protocol) -> float:
    return float(np.mean([max(accuracy for _, accuracy in run.curve(protocol)) for run in one.runs]))


def _target(one: Series, target: float, protocol: Protocol) -> list[str] | None:
    """Rounds, parameters and FLOPs as means over the seeds that reached the target; None if none did."""
    costs = [
        cost
        for run in one.runs
        for cost in run.targets
        if (cost.target, cost.accuracy_of, cost.view) == (target, *counted(protocol, run.view)[:2])
    ]
    if not costs:
        return [DASH] * 5
    reached = [cost for cost in costs if cost.reached]
    if not reached:
        return None

    def mean(what: str) -> float:
        return float(np.mean([getattr(cost, what) for cost in reached]))

    only = f" ({len(reached)} of {len(costs)} seeds)" if len(reached) < len(costs) else ""
    amounts = ("parameters", ""), ("flops", "FLOP"), ("paper_parameters", ""), ("paper_flops", "FLOP")
    return [f"{mean('rounds'):.3g}{only}", *(amount(mean(what), unit) for what, unit in amounts)]


def _leaves(one: Series) -> dict[str, Any] | None:
    """The tensors that a client sends and receives in a round; None for methods and older runs that do not say."""
    if (sheet := one.first.leaves) is None:
        return None

    def row(direction: str, tensor: TensorOut) -> dict[str, Any]:
        shape = "×".join(map(str, tensor.shape)) or "one number"
        return {"direction": direction, "name": tensor.name, "shape": shape, "bytes": amount(tensor.bytes, "B")}

    ways = (("sends", sheet.up, sheet.up_bytes), ("receives", sheet.down, sheet.down_bytes))
    most = " and ".join(f"{does} at most {amount(total, 'B')}" if tensors else f"{does} none" for does, tensors, total in ways)
    rows = [
        row(direction, tensor) for direction, tensors in (("sent", sheet.up), ("received", sheet.down)) for tensor in tensors
    ]
    return {"says": f"Of tensors, a client {most} in a round. What stays: {', '.join(sheet.stays)}.", "rows": rows}


def _recipe(one: Series) -> dict[str, Any]:
    first, command = one.first, None
    given = "models.own" in first.settings or first.settings.get("data.name") in ("given", "at-clients")
    if first.folder and not given:
        seeds = f" --seeds {','.join(map(str, one.seeds))}" if len(one.runs) > 1 else ""
        command = f"fedmrl run {shlex.quote(str(first.folder / 'config.toml'))}{seeds}"
    folders = [str(run.folder) for run in one.runs if run.folder]
    return {
        "config": first.config,
        "command": command,
        "elsewhere": _ELSEWHERE.get(
            first.settings.get("data.name", ""), "Its models were given in Python; repeat it from there."
        ),
        "facts": [
            ["device", first.device],
            ["engine", first.engine],
            *([name, number] for name, number in first.versions.items()),
            *([["folder" if len(folders) == 1 else "folders", ", ".join(folders)]] if folders else []),
        ],
    }


def percent(share: float) -> str:
    """A share as a percentage.

    >>> percent(0.4567)
    '45.7\\xa0%'
    """
    return percentage(100 * share)


def amount(value: float, unit: str) -> str:
    """A number with a prefix and a unit, joined by a no-break space."""
    return tables.amount(value, unit).strip().replace(" ", NO_BREAK)


def _number_of(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
