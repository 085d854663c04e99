"""The paper's claims about FedMRL, and whether the measurements support them under each protocol."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from fedmrl.report.tables import DASH, NO_BREAK, PROTOCOL_NOTES, count, markdown, signed
from fedmrl.reproduce.experiments import SAME_CATEGORY
from fedmrl.reproduce.figures import MODES, PAPER_GAINS, SWEEPS, Gains, gains
from fedmrl.reproduce.measurements import COSTS, TITLES, Column, Kind, Measurement, Measurements, dataset_title, on_shared_seeds
from fedmrl.reproduce.standings import BASELINES, Standing, measured_margin, paper_margin, print_alike, standing
from fedmrl.results import PROTOCOLS, Protocol

NOT_MEASURED = "not measured"
IN_SMALL_VERSION = "in this small version"
SMALL_VERSION_NOTE = (
    "A small version: narrow networks on scikit-learn’s digits, eight rounds, one seed. It shows that the pipeline works, "
    "not whether the paper’s claims hold."
)


@dataclass(frozen=True)
class Evidence:
    """Whether a claim holds in each measured case, and the numbers behind that, with captions."""

    held: Sequence[bool]
    values: Sequence[tuple[str, str]]
    level: bool = False
    """Whether any case is too close to call; such a case does not count as held."""

    @property
    def verdict(self) -> str:
        """Whether the claim holds in all, some or none of the cases."""
        if any(self.held):
            return "holds" if all(self.held) else "holds in part"
        return "level" if self.level else "does not hold"


@dataclass(frozen=True)
class Claim:
    """A claim of the paper, and how it is judged."""

    title: str
    paper: str
    note: str
    experiments: Sequence[str]
    """The experiments that must be complete for a final verdict."""
    weigh: Callable[[Measurements, Protocol], Evidence]
    of_all: bool = False
    """Whether the claim is about all clients after the last round, which the protocol `paper` does not evaluate."""

    def evidence(self, measurements: Measurements, protocol: Protocol) -> Evidence:
        """The evidence under a protocol."""
        return Evidence([], []) if self.of_all and protocol == "paper" else self.weigh(measurements, protocol)

    def verdict(self, measurements: Measurements, protocol: Protocol) -> str:
        """The verdict, such as `holds`; with prefixes if runs are missing (`so far`) or the reproduction is a small version."""
        found = self.evidence(measurements, protocol)
        if not found.held:
            return NOT_MEASURED
        whole = all(measurements.is_whole(experiment) for experiment in self.experiments)
        limits = [*([] if measurements.has_paper else [IN_SMALL_VERSION]), *([] if whole else ["so far"])]
        return ": ".join([*([", ".join(limits)] if limits else []), found.verdict])


def claims_table(measurements: Measurements) -> str:
    """The claims as Markdown, with the measurements under each protocol and the verdict."""
    rows = []
    for claim in CLAIMS:
        absent: dict[Protocol, str] = {"paper": DASH} if claim.of_all else {}
        measured = [absent.get(p) or _format_evidence(claim.evidence(measurements, p)) for p in PROTOCOLS]
        verdicts = {p: claim.verdict(measurements, p) for p in PROTOCOLS if p not in absent}
        rows.append([claim.title, f"{claim.paper} _{claim.note}_", *measured, _format_verdicts(verdicts)])
    columns = ["Claim", "What the paper says, and _how it is judged_", *PROTOCOLS, "Whether it holds"]
    notes = "\n".join(
        [
            *(f"- {note}" for note in PROTOCOL_NOTES),
            f"- {DASH}: the claim is about all clients after the last round, which the protocol `paper` does not evaluate.",
            "- So far: some of the runs for this claim are missing.",
            "- Level: both print the same number, or seeds disagree about which is ahead and the mean difference is below its "
            "standard deviation.",
            *(f"- {sentence}" for kind in KINDS for sentence in measurements.disagreements(measurements.columns(kind))),
            *(f"- {sentence}" for sentence in measurements.left_out_note(one.setting for one in measurements.specs("all"))),
        ]
    )
    toy = "" if measurements.has_paper else f"{SMALL_VERSION_NOTE}\n\n"
    return f"# The paper's claims\n\n{toy}{markdown(columns, rows)}\n{notes}\n".replace(NO_BREAK, " ")


def _format_verdicts(verdicts: Mapping[Protocol, str]) -> str:
    """One verdict if all protocols agree, otherwise one for each."""
    if len(set(verdicts.values())) == 1:
        return next(iter(verdicts.values()))
    return "; ".join(f"{protocol}: {verdict}" for protocol, verdict in verdicts.items())


def _format_evidence(found: Evidence) -> str:
    return "; ".join(f"{value} ({caption})" for value, caption in found.values) or NOT_MEASURED


# Accuracy


def standings(measurements: Measurements, protocol: Protocol, kind: Kind = "heterogeneous") -> dict[Column, Standing]:
    """FedMRL's standing in each column that allows one."""
    found = {column: standing(measurements, column, protocol) for column in measurements.columns(kind)}
    return {column: place for column, place in found.items() if place}


KINDS: Mapping[Kind, str] = {"heterogeneous": "different models", "homogeneous": "one model for all"}


def _first(measurements: Measurements, protocol: Protocol) -> Evidence:
    values, held, level = [], list[bool](), 0
    for kind, words in KINDS.items():
        places = list(standings(measurements, protocol, kind).values())
        tied = sum(place.level for place in places)
        caption = f"with {words}" + (f"; level with the best in {tied}" if tied else "")
        values += [(format_share(place.first for place in places), caption)] if places else []
        held += [place.first for place in places]
        level += tied
    return Evidence(held, values, level > 0)


def format_share(held: Iterable[bool]) -> str:
    """The number of true values among all.

    >>> format_share([True, False])
    '1 of 2'
    """
    every = list(held)
    return f"{sum(every)} of {len(every)}"


def _ahead(others: Sequence[str]) -> Callable[[Measurements, Protocol], Evidence]:
    """Judges FedMRL's lead over the best of the others, at the main federation."""

    def weigh(measurements: Measurements, protocol: Protocol) -> Evidence:
        held, values, level = [], [], False
        for dataset in measurements.scale.datasets:
            main = measurements.main(dataset)
            if lead := measured_margin(measurements, main, protocol, others):
                found = measurements.compared(main.setting)
                pair = (
                    measurement.accuracies(protocol) for measurement in on_shared_seeds(found["fedmrl"], found[lead.against])
                )
                wins = [ours > theirs for ours, theirs in zip(*pair, strict=True)]
                caption = f"points against {TITLES[lead.against]}, {main.short}"
                caption += f", ahead in {format_share(wins)} seeds" if len(wins) > 1 else ", one seed"
                caption += ": level" if lead.level else ""
                if protocol == "paper" and measurements.has_paper:
                    printed = paper_margin(measurements, "heterogeneous", main, others)
                    caption += f"; the paper: {signed(printed.points)}" if printed else ""
                held.append(lead.ahead)
                level = level or lead.level
                values.append((signed(lead.points, 1), caption))
        return Evidence(held, values, level)

    return weigh


# Costs


def _cheaper(what: str, others: Sequence[str], *, less: bool = True) -> Callable[[Measurements, Protocol], Evidence]:
    """Judges whether FedMRL needs less than the cheapest of the others to reach a target (or more, if not `less`).

    A method reaches a target only if it does with every seed.
    """

    def weigh(measurements: Measurements, protocol: Protocol) -> Evidence:
        held, values, level = [], [], False
        for dataset in measurements.scale.datasets:
            found = measurements.compared(measurements.main(dataset).setting)
            for target in measurements.targets(dataset):
                if judged := _against_least(found, protocol, target, what, others):
                    ours, best, theirs = judged
                    place = f"{COSTS[what]} to {100 * target:g}{NO_BREAK}%, {dataset_title(dataset)}"
                    if ours is None and theirs is None:
                        values.append((DASH, f"{place}; no method reaches it with every seed"))
                        continue
                    same = ours is not None and theirs is not None and count(ours) == count(theirs)
                    cheaper = ours is not None and (theirs is None or ours < theirs)
                    dearer = ours is not None and theirs is not None and ours > theirs
                    if less or (
                        ours is not None and theirs is not None
                    ):  # without reaching the target, FedMRL has sent neither less nor more
                        held.append(not same and (cheaper if less else dearer))
                    level = level or same
                    nobody = TITLES[others[0]] if len(others) == 1 else "the others"
                    against = f"{nobody}: never" if theirs is None else f"{TITLES[best]}: {count(theirs)}"
                    values.append(("never" if ours is None else count(ours), f"{place}; {against}"))
        return Evidence(held, values, level)

    return weigh


def _against_least(
    found: Mapping[str, Measurement], protocol: Protocol, target: float, what: str, others: Sequence[str]
) -> tuple[float | None, str, float | None] | None:
    """FedMRL's cost, the cheapest other method that reaches the target, and its cost, over the seeds that both have."""

    def needs(measurement: Measurement) -> float | None:
        cost = measurement.cost(protocol, target, what)
        return cost.mean if cost else None

    pairs = {method: on_shared_seeds(found["fedmrl"], found[method]) for method in others}
    pairs = {method: pair for method, pair in pairs.items() if all(measurement.cells for measurement in pair)}
    if not pairs:
        return None
    both = {method: (needs(ours), needs(theirs)) for method, (ours, theirs) in pairs.items()}
    reach = {method: theirs for method, (_, theirs) in both.items() if theirs is not None}
    if not reach:
        return needs(found["fedmrl"]), "", None
    best = min(reach, key=lambda method: reach[method])
    return both[best][0], best, reach[best]


# Clients, inference modes, Matryoshka learning


def client_gains(measurements: Measurements, dataset: str, protocol: Protocol) -> Gains | None:
    """Each client's gain with FedMRL over FedProto at the main federation."""
    found = measurements.methods(measurements.main(dataset).setting)
    return gains(found["fedmrl"], found["fedproto"], protocol)


def _clients(measurements: Measurements, protocol: Protocol) -> Evidence:
    held, values = [], []
    for dataset in measurements.scale.datasets:
        if gained := client_gains(measurements, dataset, protocol):
            share = float(np.mean(gained.shares))
            over = f", mean of {len(gained.shares)} seeds" if len(gained.shares) > 1 else ""
            paper = f"; the paper: {PAPER_GAINS[dataset]}{NO_BREAK}%" if measurements.has_paper else ""
            held.append(share > 50)
            values.append((f"{share:.0f}{NO_BREAK}%", f"of clients, {dataset_title(dataset)}{over}{paper}"))
    return Evidence(held, values)


def _served(measurements: Measurements, protocol: Protocol) -> Evidence:
    held, values = [], []
    for dataset in measurements.scale.datasets:
        modes = mode_means(measurements.of(measurements.main(dataset).setting, "fedmrl"), protocol)
        if len(modes) == len(MODES):
            gap, alone = modes["mix-small"] - modes["mix-large"], max(modes["single-small"], modes["single-large"])
            held.append(abs(gap) < modes["mix-small"] - alone)
            caption = f"points, {dataset_title(dataset)}; best single model: {signed(alone - modes['mix-large'], 1)}"
            values.append((signed(gap, 1), caption))
    return Evidence(held, values)


def mode_means(measurement: Measurement, protocol: Protocol) -> dict[str, float]:
    """The accuracy of each inference mode in percent, mean over seeds."""
    if measurement.state != "finished":
        return {}
    found = {mode: [of[mode] for cell in measurement.cells if mode in (of := cell.served(protocol))] for mode in MODES}
    return {mode: 100 * float(np.mean(values)) for mode, values in found.items() if values}


# Sweeps


def _always_ahead(sweep: str) -> Callable[[Measurements, Protocol], Evidence]:
    """Judges whether the first line of a sweep is above the second at each common point."""

    def weigh(measurements: Measurements, protocol: Protocol) -> Evidence:
        held, values = list[bool](), []
        for dataset in measurements.scale.datasets:
            if wins := is_ahead(SWEEPS[sweep].compared(measurements, dataset), protocol):
                held += wins
                values.append((format_share(wins), dataset_title(dataset)))
        return Evidence(held, values)

    return weigh


def _smaller_is_better(measurements: Measurements, protocol: Protocol) -> Evidence:
    """Judges whether accuracy falls from each measured dimension to the next."""
    held, values = list[bool](), []
    for dataset in measurements.scale.datasets:
        means = {d1: of[0].mean(protocol) for d1, of in SWEEPS["d1"].compared(measurements, dataset).items()}
        known = {d1: mean for d1, mean in means.items() if mean is not None}
        falls = [a > b and not print_alike(a, b) for a, b in pairwise(known.values())]
        if falls:
            held += falls
            best = max(known, key=lambda d1: known[d1])
            values.append((format_share(falls), f"{dataset_title(dataset)}; best at d₁ = {best:g}"))
    return Evidence(held, values)


def _gap_shrinks(measurements: Measurements, protocol: Protocol) -> Evidence:
    """Judges whether Matryoshka learning gains more at the smallest measured dimension than at the largest."""
    held, values = [], []
    for dataset in measurements.scale.datasets:
        points = SWEEPS["ablation"].compared(measurements, dataset)
        means = {d1: [measurement.mean(protocol) for measurement in of] for d1, of in points.items()}
        gaps = [(d1, a - b) for d1, (a, b) in means.items() if a is not None and b is not None]
        if len(gaps) > 1:
            (small, first), (large, last) = gaps[0], gaps[-1]
            held.append(first > last)
            values.append((signed(last - first, 1), f"points, {dataset_title(dataset)}, from d₁ = {small:g} to {large:g}"))
    return Evidence(held, values)


def is_ahead(points: Mapping[float, tuple[Measurement, ...]], protocol: Protocol) -> list[bool]:
    """For each point that both lines have, whether the first is ahead after rounding."""
    means = [[measurement.mean(protocol) for measurement in of] for of in points.values()]
    return [a > b and not print_alike(a, b) for a, b in means if a is not None and b is not None]


CLAIMS = (
    Claim(
        "Most accurate", "First in every federation, with different models and with one model for all.",
        "The number of federations (dataset × number of clients) in which FedMRL is first; in the paper, all.",
        ["table-hetero", "table-homo"], _first,
    ),
    Claim(
        "Ahead of the others", "By up to 8.48 points ahead of the best other method.",
        "Points over the best other method.", ["costs"], _ahead(BASELINES),
    ),
    Claim(
        "Ahead of similar methods", "By up to 24.94 points ahead of the best of FML, FedKD and FedAPEN.",
        "Points over the best of these three.", ["costs"], _ahead(SAME_CATEGORY),
    ),
    Claim(
        "Learns in fewer rounds", "Converges faster than the best other method.",
        "Rounds to a target, against the fastest other method.", ["costs"], _cheaper("rounds", BASELINES),
    ),
    Claim(
        "Sends less than similar methods", "Sends less until a target than FML, FedKD and FedAPEN.",
        "Parameters sent and received by a client, against the lowest of the three.",
        ["costs"], _cheaper("parameters", SAME_CATEGORY),
    ),
    Claim(
        "Sends more than FedProto", "FedMRL sends the small model, FedProto one vector for each class.",
        "Parameters sent and received by a client; the claim holds if FedMRL sends more.",
        ["costs"], _cheaper("parameters", ["fedproto"], less=False),
    ),
    Claim(
        "Computes less", "Less compute until a target than FedProto: more in a round, but fewer rounds.",
        "FLOPs of a client, against FedProto.", ["costs"], _cheaper("flops", ["fedproto"]),
    ),
    Claim(
        "Most clients gain", "87% (CIFAR-10) and 99% (CIFAR-100) of clients are better than with FedProto.",
        "The share of clients that are better with FedMRL than with FedProto after the last round.",
        ["clients"], _clients, of_all=True,
    ),
    Claim(
        "Robust to few classes", "Above FedProto for any number of classes per client.",
        "The measured numbers of classes at which FedMRL is above FedProto.", ["non-iid-class"], _always_ahead("non-iid-class"),
    ),
    Claim(
        "Robust to skew", "Above FedProto at every Dirichlet parameter α.",
        "The measured α at which FedMRL is above FedProto.", ["non-iid-dirichlet"], _always_ahead("non-iid-dirichlet"),
    ),
    Claim(
        "Smaller d₁ is better", "The smaller the small model's representation, the higher the accuracy.",
        "The steps between neighbouring measured d₁ at which accuracy falls.", ["d1"], _smaller_is_better,
    ),
    Claim(
        "mix-small is enough", "As accurate as mix-large, and both far above either single model.",
        "Points between mix-small and the default, mix-large; the claim holds if both single models are further below.",
        ["inference"], _served, of_all=True,
    ),
    Claim(
        "Matryoshka helps", "Better with Matryoshka learning than without, at every d₁.",
        "The measured d₁ at which FedMRL is better with Matryoshka learning.",
        ["ablation"], _always_ahead("ablation"),
    ),
    Claim(
        "Matryoshka helps less at large d₁", "The gain of Matryoshka learning shrinks as d₁ grows.",
        "The change of the gain from the smallest measured d₁ to the largest, in points.", ["ablation"], _gap_shrinks,
    ),
)  # fmt: skip
