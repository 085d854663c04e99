"""Claims: what the paper says of FedMRL, and whether what was measured bears it out, under each protocol."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from fedmrl.report.tables import DASH, NO_BREAK, count, markdown, signed
from fedmrl.reproduce.experiments import SAME_CATEGORY
from fedmrl.reproduce.figures import MODES, PAPER_GAINS, SWEEPS, Gains, gains
from fedmrl.reproduce.outcomes import COSTS, TITLES, Column, Kind, Outcome, Outcomes, dataset_title, in_pair
from fedmrl.reproduce.standings import BASELINES, Standing, measured_margin, print_alike, printed_margin, standing
from fedmrl.results import PROTOCOLS, Protocol

NOT_MEASURED = "not measured"
IN_TOY = "in this small version"
TOY = (
    "A toy: narrow networks on scikit-learn’s digits, eight rounds, one seed. It shows that all of this works, and says "
    "nothing of whether the paper’s claims hold."
)


@dataclass(frozen=True)
class Evidence:
    """Whether a claim holds in each case that can be judged, and the numbers that say so, each with its caption."""

    held: Sequence[bool]
    values: Sequence[tuple[str, str]]
    level: bool = False
    """Whether in any case it is too close to call; it does not hold there."""

    @property
    def verdict(self) -> str:
        """Whether it holds in all, some or none of the cases."""
        if any(self.held):
            return "holds" if all(self.held) else "holds in part"
        return "level" if self.level else "does not hold"


@dataclass(frozen=True)
class Claim:
    """What the paper says, and how it is judged here."""

    title: str
    paper: str
    note: str
    experiments: Sequence[str]
    """Which must be measured whole for a verdict that stays."""
    weigh: Callable[[Outcomes, Protocol], Evidence]
    of_all: bool = False
    """Whether it is about all clients after the last round, so that the paper's protocol has nothing to say of it."""

    def evidence(self, outcomes: Outcomes, protocol: Protocol) -> Evidence:
        """What bears it out under a protocol."""
        return Evidence([], []) if self.of_all and protocol == "paper" else self.weigh(outcomes, protocol)

    def verdict(self, outcomes: Outcomes, protocol: Protocol) -> str:
        """Such as `holds`; `so far: holds` where runs are missing that may turn it; of a toy never plainly so."""
        found = self.evidence(outcomes, protocol)
        if not found.held:
            return NOT_MEASURED
        whole = all(outcomes.is_whole(experiment) for experiment in self.experiments)
        limits = [*([] if outcomes.has_paper else [IN_TOY]), *([] if whole else ["so far"])]
        return ": ".join([*([", ".join(limits)] if limits else []), found.verdict])


def claims_table(outcomes: Outcomes) -> str:
    """A page of Markdown: each claim, what was measured under each protocol, and whether it holds."""
    rows = []
    for claim in CLAIMS:
        absent: dict[Protocol, str] = {"paper": DASH} if claim.of_all else {}
        measured = [absent.get(p) or _evidence_said(claim.evidence(outcomes, p)) for p in PROTOCOLS]
        verdicts = {p: claim.verdict(outcomes, p) for p in PROTOCOLS if p not in absent}
        rows.append([claim.title, f"{claim.paper} _{claim.note}_", *measured, _verdicts_said(verdicts)])
    columns = ["Claim", "What the paper says, and _how it is judged_", *map(_heading, PROTOCOLS), "Whether it holds"]
    protocols = [f"- {_heading(protocol)}: {says}." for protocol, says in PROTOCOLS.items()]
    notes = "\n".join(
        [
            *protocols,
            f"- {DASH}: about all clients after the last round, so the paper's protocol does not count it.",
            "- So far: some of the runs that it takes are not measured yet.",
            "- Level: the two print alike, or seeds disagree who is ahead and it is by less than they vary.",
            *(f"- {sentence}" for kind in KINDS for sentence in outcomes.disagreements(outcomes.columns(kind))),
            *(f"- {sentence}" for sentence in outcomes.left_out_said(one.setting for one in outcomes.specs("all"))),
        ]
    )
    toy = "" if outcomes.has_paper else f"{TOY}\n\n"
    return f"# The paper's claims\n\n{toy}{markdown(columns, rows)}\n{notes}\n".replace(NO_BREAK, " ")


def _heading(protocol: Protocol) -> str:
    return {"fair": "Fair", "own": "Own copies", "paper": "The paper's protocol"}[protocol]


def _verdicts_said(verdicts: Mapping[Protocol, str]) -> str:
    """One verdict where all protocols agree, else each."""
    if len(set(verdicts.values())) == 1:
        return next(iter(verdicts.values()))
    return "; ".join(f"{_heading(protocol).lower()}: {verdict}" for protocol, verdict in verdicts.items())


def _evidence_said(found: Evidence) -> str:
    return "; ".join(f"{value} ({caption})" for value, caption in found.values) or NOT_MEASURED


# Accuracy


def standings(outcomes: Outcomes, protocol: Protocol, kind: Kind = "heterogeneous") -> dict[Column, Standing]:
    """Where FedMRL stands, wherever it can be said."""
    found = {column: standing(outcomes, column, protocol) for column in outcomes.columns(kind)}
    return {column: place for column, place in found.items() if place}


KINDS: Mapping[Kind, str] = {"heterogeneous": "unlike models", "homogeneous": "one model for all"}


def _first(outcomes: Outcomes, protocol: Protocol) -> Evidence:
    values, held, level = [], list[bool](), 0
    for kind, words in KINDS.items():
        places = list(standings(outcomes, protocol, kind).values())
        tied = sum(place.level for place in places)
        caption = f"with {words}" + (f"; level with the best in {tied}" if tied else "")
        values += [(share_said(place.first for place in places), caption)] if places else []
        held += [place.first for place in places]
        level += tied
    return Evidence(held, values, level > 0)


def share_said(held: Iterable[bool]) -> str:
    """How many of them.

    >>> share_said([True, False])
    '1 of 2'
    """
    every = list(held)
    return f"{sum(every)} of {len(every)}"


def _ahead(others: Sequence[str]) -> Callable[[Outcomes, Protocol], Evidence]:
    """Points ahead of the best of the others, at the federation that figures look into."""

    def weigh(outcomes: Outcomes, protocol: Protocol) -> Evidence:
        held, values, level = [], [], False
        for dataset in outcomes.scale.datasets:
            main = outcomes.main(dataset)
            if lead := measured_margin(outcomes, main, protocol, others):
                found = outcomes.compared(main.setting)
                pair = (outcome.accuracies(protocol) for outcome in in_pair(found["fedmrl"], found[lead.against]))
                wins = [ours > theirs for ours, theirs in zip(*pair, strict=True)]
                caption = f"{main.short}, against {TITLES[lead.against]}"
                caption += f", ahead with {share_said(wins)} seeds" if len(wins) > 1 else ", one seed"
                caption += ": level" if lead.level else ""
                if protocol == "paper" and outcomes.has_paper:
                    printed = printed_margin(outcomes, "heterogeneous", main, others)
                    caption += f"; the paper: {signed(printed.points)}" if printed else ""
                held.append(lead.ahead)
                level = level or lead.level
                values.append((signed(lead.points, 1), caption))
        return Evidence(held, values, level)

    return weigh


# Costs


def _cheaper(what: str, others: Sequence[str], *, less: bool = True) -> Callable[[Outcomes, Protocol], Evidence]:
    """Less until a target than the least of the others, or more than it; who misses it with any seed does not reach it."""

    def weigh(outcomes: Outcomes, protocol: Protocol) -> Evidence:
        held, values, level = [], [], False
        for dataset in outcomes.scale.datasets:
            found = outcomes.compared(outcomes.main(dataset).setting)
            for target in outcomes.targets(dataset):
                if judged := _against_least(found, protocol, target, what, others):
                    ours, best, theirs = judged
                    place = f"{dataset_title(dataset)}, {COSTS[what]} to {100 * target:g}{NO_BREAK}%"
                    if ours is None and theirs is None:
                        values.append((DASH, f"{place}; nobody reaches it"))
                        continue
                    same = ours is not None and theirs is not None and count(ours) == count(theirs)
                    cheaper = ours is not None and (theirs is None or ours < theirs)
                    dearer = ours is not None and theirs is not None and ours > theirs
                    if less or (ours is not None and theirs is not None):  # who never gets there has sent neither less nor more
                        held.append(not same and (cheaper if less else dearer))
                    level = level or same
                    nobody = TITLES[others[0]] if len(others) == 1 else "the others"
                    against = f"{nobody} never" if theirs is None else f"{TITLES[best]} {count(theirs)}"
                    values.append(("never" if ours is None else count(ours), f"{place}; {against}"))
        return Evidence(held, values, level)

    return weigh


def _against_least(
    found: Mapping[str, Outcome], protocol: Protocol, target: float, what: str, others: Sequence[str]
) -> tuple[float | None, str, float | None] | None:
    """What FedMRL needs, and who of the others needs least of those that reach the target, over the seeds that both have."""

    def needs(outcome: Outcome) -> float | None:
        cost = outcome.cost(protocol, target, what)
        return cost.mean if cost else None

    pairs = {method: in_pair(found["fedmrl"], found[method]) for method in others}
    pairs = {method: pair for method, pair in pairs.items() if all(outcome.cells for outcome in pair)}
    if not pairs:
        return None
    both = {method: (needs(ours), needs(theirs)) for method, (ours, theirs) in pairs.items()}
    reach = {method: theirs for method, (_, theirs) in both.items() if theirs is not None}
    if not reach:
        return needs(found["fedmrl"]), "", None
    best = min(reach, key=lambda method: reach[method])
    return both[best][0], best, reach[best]


# Clients, models to serve, Matryoshka learning


def client_gains(outcomes: Outcomes, dataset: str, protocol: Protocol) -> Gains | None:
    """What each client gains with FedMRL over FedProto, where figures look."""
    found = outcomes.methods(outcomes.main(dataset).setting)
    return gains(found["fedmrl"], found["fedproto"], protocol)


def _clients(outcomes: Outcomes, protocol: Protocol) -> Evidence:
    held, values = [], []
    for dataset in outcomes.scale.datasets:
        if gained := client_gains(outcomes, dataset, protocol):
            share = float(np.mean(gained.shares))
            over = f", mean of {len(gained.shares)} seeds" if len(gained.shares) > 1 else ""
            paper = f"; the paper: {PAPER_GAINS[dataset]}{NO_BREAK}%" if outcomes.has_paper else ""
            held.append(share > 50)
            values.append((f"{share:.0f}{NO_BREAK}%", f"{dataset_title(dataset)}{over}{paper}"))
    return Evidence(held, values)


def _served(outcomes: Outcomes, protocol: Protocol) -> Evidence:
    held, values = [], []
    for dataset in outcomes.scale.datasets:
        modes = mode_means(outcomes.of(outcomes.main(dataset).setting, "fedmrl"), protocol)
        if len(modes) == len(MODES):
            gap, alone = modes["mix-small"] - modes["mix-large"], max(modes["single-small"], modes["single-large"])
            held.append(abs(gap) < modes["mix-small"] - alone)
            caption = f"{dataset_title(dataset)}; a single model {signed(alone - modes['mix-large'], 1)}"
            values.append((signed(gap, 1), caption))
    return Evidence(held, values)


def mode_means(outcome: Outcome, protocol: Protocol) -> dict[str, float]:
    """The accuracy of each model that a client can serve, in percent, mean over seeds."""
    if outcome.state != "finished":
        return {}
    found = {mode: [of[mode] for cell in outcome.cells if mode in (of := cell.served(protocol))] for mode in MODES}
    return {mode: 100 * float(np.mean(values)) for mode, values in found.items() if values}


# What is varied


def _always_ahead(sweep: str) -> Callable[[Outcomes, Protocol], Evidence]:
    """Wherever both lines of a sweep have a point, the first is above the second."""

    def weigh(outcomes: Outcomes, protocol: Protocol) -> Evidence:
        held, values = list[bool](), []
        for dataset in outcomes.scale.datasets:
            if wins := is_ahead(SWEEPS[sweep].compared(outcomes, dataset), protocol):
                held += wins
                values.append((share_said(wins), dataset_title(dataset)))
        return Evidence(held, values)

    return weigh


def _smaller_is_better(outcomes: Outcomes, protocol: Protocol) -> Evidence:
    """From each dimension to the next that is measured, accuracy falls."""
    held, values = list[bool](), []
    for dataset in outcomes.scale.datasets:
        means = {d1: of[0].mean(protocol) for d1, of in SWEEPS["d1"].compared(outcomes, dataset).items()}
        known = {d1: mean for d1, mean in means.items() if mean is not None}
        falls = [a > b and not print_alike(a, b) for a, b in pairwise(known.values())]
        if falls:
            held += falls
            best = max(known, key=lambda d1: known[d1])
            values.append((share_said(falls), f"{dataset_title(dataset)}; best at d₁ = {best:g}"))
    return Evidence(held, values)


def _gap_shrinks(outcomes: Outcomes, protocol: Protocol) -> Evidence:
    """What Matryoshka learning gains at the smallest dimension that is measured, and at the largest."""
    held, values = [], []
    for dataset in outcomes.scale.datasets:
        points = SWEEPS["ablation"].compared(outcomes, dataset)
        means = {d1: [outcome.mean(protocol) for outcome in of] for d1, of in points.items()}
        gaps = [(d1, a - b) for d1, (a, b) in means.items() if a is not None and b is not None]
        if len(gaps) > 1:
            (small, first), (large, last) = gaps[0], gaps[-1]
            held.append(first > last)
            values.append((signed(last - first, 1), f"{dataset_title(dataset)}, from d₁ = {small:g} to {large:g}"))
    return Evidence(held, values)


def is_ahead(points: Mapping[float, tuple[Outcome, ...]], protocol: Protocol) -> list[bool]:
    """Wherever both of two lines have a point, whether the first is ahead by what is shown of them."""
    means = [[outcome.mean(protocol) for outcome in of] for of in points.values()]
    return [a > b and not print_alike(a, b) for a, b in means if a is not None and b is not None]


CLAIMS = (
    Claim(
        "Most accurate", "First in every federation, with unlike models and with one for all.",
        "Federations (dataset × number of clients) in which FedMRL is first; in the paper all.",
        ["table-hetero", "table-homo"], _first,
    ),
    Claim(
        "Ahead of the others", "By up to 8.48 points ahead of the best other method.",
        "Points over the best of the others.", ["costs"], _ahead(BASELINES),
    ),
    Claim(
        "Ahead of its kind", "By up to 24.94 points ahead of the best method of its kind: FML, FedKD, FedAPEN.",
        "Points over the best of the three.", ["costs"], _ahead(SAME_CATEGORY),
    ),
    Claim(
        "Learns in fewer rounds", "Converges faster than the best other method.",
        "Against the soonest of the others.", ["costs"], _cheaper("rounds", BASELINES),
    ),
    Claim(
        "Sends less than its kind", "Less to a target than FML, FedKD and FedAPEN.",
        "Sent and received by a client, against the least of FML, FedKD and FedAPEN.",
        ["costs"], _cheaper("parameters", SAME_CATEGORY),
    ),
    Claim(
        "Sends more than FedProto", "It sends the small model, FedProto one vector for each class.",
        "Sent and received by a client; it holds where FedMRL sends more.",
        ["costs"], _cheaper("parameters", ["fedproto"], less=False),
    ),
    Claim(
        "Computes less", "Less to a target than FedProto: more in a round, but fewer rounds.",
        "FLOPs of a client, against FedProto.", ["costs"], _cheaper("flops", ["fedproto"]),
    ),
    Claim(
        "Most clients gain", "87% (CIFAR-10) and 99% (CIFAR-100) of clients do better than with FedProto.",
        "Clients that do better with FedMRL than with FedProto, all of them after the last round.",
        ["clients"], _clients, of_all=True,
    ),
    Claim(
        "Robust to few classes", "Above FedProto however many classes a client has.",
        "Numbers of classes at which FedMRL is above FedProto.", ["non-iid-class"], _always_ahead("non-iid-class"),
    ),
    Claim(
        "Robust to skew", "Above FedProto at every Dirichlet parameter α.",
        "Values of α at which FedMRL is above FedProto.", ["non-iid-dirichlet"], _always_ahead("non-iid-dirichlet"),
    ),
    Claim(
        "Smaller d₁ is better", "The smaller the small model's representation, the higher the accuracy.",
        "Steps from one measured d₁ to the next at which accuracy falls.", ["d1"], _smaller_is_better,
    ),
    Claim(
        "mix-small is enough", "As accurate as mix-large, and both far above either model alone.",
        "Points from mix-large, the default, to mix-small; it holds where that is nearer than any single model.",
        ["inference"], _served, of_all=True,
    ),
    Claim(
        "Matryoshka helps", "Better with Matryoshka learning than without, at every d₁.",
        "Dimensions d₁ at which FedMRL is better with Matryoshka learning than without.",
        ["ablation"], _always_ahead("ablation"),
    ),
    Claim(
        "It helps less at large d₁", "What Matryoshka learning gains shrinks as d₁ grows.",
        "Change of that gain from the smallest measured d₁ to the largest, in points.", ["ablation"], _gap_shrinks,
    ),
)  # fmt: skip
