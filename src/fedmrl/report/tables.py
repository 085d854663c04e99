"""Rows of the table that compares methods, and the formatting of numbers."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from operator import attrgetter

import numpy as np

from fedmrl.results import PROTOCOLS, Outcome, Protocol, RunResult

Outcomes = Mapping[str, Sequence[Outcome]]
"""The outcomes of each method's runs, one for each seed."""

ACCURACIES: Mapping[str, Callable[[RunResult], float]] = {
    **{protocol: partial(RunResult.headline, protocol=protocol) for protocol in PROTOCOLS},
    "worst client": attrgetter("worst_client"),
}
"""The columns of accuracies, in percent."""
COMPARISON_COLUMNS = ("method", *ACCURACIES, "sent and received", "compute", "time a seed")
DASH = "–"
NO_BREAK = "\N{NO-BREAK SPACE}"
FEW_TEST_SAMPLES = 100
"""Test samples, below which one sample is more than a point of accuracy."""
PROTOCOL_NOTES = [f"{protocol}: {says}." for protocol, says in PROTOCOLS.items()]
"""A sentence on each protocol."""
COLUMN_NOTES = [
    "Accuracy of each client on its own test samples, mean over clients:",
    *PROTOCOL_NOTES,
    "worst client: the lowest accuracy of any client under fair.",
    "sent and received, compute: a client's total over all rounds, mean over clients.",
]
"""Sentences on the columns."""


def comparison_rows(titles: Mapping[str, str], outcomes: Outcomes) -> list[tuple[str, ...]]:
    """A row for each method, the most accurate first, with dashes for a method that diverged."""
    return [
        (
            titles[name],
            *(mean_percent([of_run(run) for run in runs]) if runs else DASH for of_run in ACCURACIES.values()),
            *cost_cells(runs),
        )
        for name, runs in by_accuracy(outcomes).items()
    ]


def by_accuracy(outcomes: Outcomes) -> dict[str, list[RunResult]]:
    """The results of each method, the most accurate first; methods that diverged come last, with an empty list."""
    found = {name: finished_results(runs) for name, runs in outcomes.items()}
    return dict(sorted(found.items(), key=lambda item: -_mean(item[1], RunResult.headline) if item[1] else np.inf))


def finished_results(runs: Sequence[Outcome]) -> list[RunResult]:
    """The results, or an empty list if a seed diverged."""
    results = [run for run in runs if isinstance(run, RunResult)]
    return results if len(results) == len(runs) else []


def why_worst(runs: Sequence[RunResult], protocol: Protocol = "fair") -> str:
    """Why the worst client of each seed is so low: it never took part, or has few test samples; empty if neither."""
    reasons = []
    for run in runs:
        accuracies = run.of_clients(protocol)
        worst = [client for client, own in zip(run.clients, accuracies, strict=True) if own == min(accuracies)]
        tested = min(client.test_samples for client in worst)
        if not all(client.rounds for client in worst):
            reasons.append("never took part")
        elif tested < FEW_TEST_SAMPLES:
            reasons.append(f"has {tested} test sample{'' if tested == 1 else 's'}")
        else:
            return ""
    return " or ".join(sorted(set(reasons), key=lambda reason: (reason[0] != "n", len(reason), reason)))


def worst_notes(titles: Mapping[str, str], outcomes: Outcomes) -> list[str]:
    """A sentence for each reason why methods' worst clients are so low."""
    whose: dict[str, list[str]] = {}
    for name, runs in by_accuracy(outcomes).items():
        if runs and (why := why_worst(runs)):
            whose.setdefault(why, []).append(titles[name])
    return [f"The worst client of {join_words(names)} {why}." for why, names in whose.items()]


def join_words(words: Sequence[str]) -> str:
    """Joins words with commas and a final "and".

    >>> join_words(["FD", "FML", "FedKD"]), join_words(["FD"])
    ('FD, FML and FedKD', 'FD')
    """
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _sent(run: RunResult) -> float:
    return (run.communication.up.bytes + run.communication.down.bytes) / len(run.clients)


def _compute(run: RunResult) -> float:
    return run.flops / len(run.clients)


def _mean(runs: Sequence[RunResult], what: Callable[[RunResult], float]) -> float:
    return float(np.mean([what(run) for run in runs]))


def cost_cells(runs: Sequence[RunResult]) -> tuple[str, str, str]:
    """The cells for bytes sent and received, compute, and time, as means over seeds; dashes without results."""
    if not runs:
        return (DASH, DASH, DASH)
    seconds = f"{_mean(runs, lambda run: run.seconds_of_seed):.1f} s"
    return amount(_mean(runs, _sent), "B"), amount(_mean(runs, _compute), "FLOP"), seconds


def mean_percent(values: Sequence[float]) -> str:
    """The mean in percent and, for several values, the sample standard deviation.

    >>> mean_percent([0.5]), mean_percent([0.5, 0.6])
    ('50.0 %', '55.0 ± 7.1 %')
    """
    mean = 100 * float(np.mean(values))
    return f"{mean:.1f} %" if len(values) == 1 else f"{mean:.1f} ± {100 * np.std(values, ddof=1):.1f} %"


def percentage(value: float) -> str:
    """A percentage with a no-break space before the sign.

    >>> percentage(45.67)
    '45.7\\xa0%'
    """
    return f"{value:.1f}{NO_BREAK}%"


def amount(value: float, unit: str) -> str:
    """A number with three digits and an SI prefix.

    >>> amount(0, "B"), amount(1_234_567, "B"), amount(2.5e12, "FLOP")
    ('0 B', '1.23 MB', '2.5 TFLOP')
    """
    for prefix, factor in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= factor:
            return f"{value / factor:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}"


def count(value: float) -> str:
    """A number with at most three digits.

    >>> count(59.6), count(0.25), count(2.5e6)
    ('60', '0.25', '2.5 M')
    """
    return f"{value:.0f}" if 1 <= value < 1000 else amount(value, "").strip()


def signed(value: float, digits: int = 2) -> str:
    """A difference with its sign, which is a true minus rather than a hyphen.

    >>> signed(1.5), signed(-0.25), signed(-0.001), signed(3.36, digits=1)
    ('+1.50', '−0.25', '0.00', '+3.4')
    """
    text = f"{value:+.{digits}f}"
    return f"{0:.{digits}f}" if float(text) == 0 else text.replace("-", "−")


def is_undecided(differences: Sequence[float]) -> bool:
    """Whether a lead, given by seed, may be chance: seeds disagree about its sign, and its mean is below its deviation.

    >>> is_undecided([4.0, -1.0]), is_undecided([4.0, 3.0, -0.1]), is_undecided([1.0, 9.0]), is_undecided([0.1])
    (True, False, False, False)
    """
    agreed = all(one > 0 for one in differences) or all(one < 0 for one in differences)
    return len(differences) > 1 and not agreed and bool(abs(np.mean(differences)) <= np.std(differences, ddof=1))


def format_time(seconds: float) -> str:
    """A duration in its two largest units.

    >>> format_time(4.21), format_time(200), format_time(9000)
    ('4.2 s', '3 min 20 s', '2 h 30 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def format_privacy(run: RunResult) -> list[str]:
    """Sentences on a run's differential privacy: what it spent, whether it ended early, and whether it protects anybody."""
    spent = run.privacy
    if spent is None:
        return []
    known = f", and {spent.epsilon_if_known:.3g} towards those who know who took part when" if spent.mode == "central" else ""
    said = [f"Privacy ({spent.mode} noise): ε = {spent.epsilon:.3g} at δ = {spent.delta:g}{known}."]
    if spent.stopped:
        said.append(
            f"It ended after round {run.rounds} of {run.settings['rounds']}: one more would have exceeded privacy.budget "
            f"(ε = {spent.budget:g})."
        )
    if spent.simulation:
        said.append(
            "Its noise was drawn from the recipe's seed (privacy.simulation): it shows what noise costs and protects nobody."
        )
    return said


def format_seeds(seeds: Iterable[int]) -> str:
    """Formats a list of seeds.

    >>> format_seeds([0]), format_seeds([2, 0])
    ('seed 0', 'seeds 0, 2')
    """
    every = sorted(set(seeds))
    return f"seed{'' if len(every) == 1 else 's'} {', '.join(map(str, every))}"


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(row) + " |" for row in [columns, ["---"] * len(columns), *rows]]
    return "\n".join(lines) + "\n"
