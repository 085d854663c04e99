"""Claims: what the paper says of FedMRL, and whether what was measured bears it out, under each protocol."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedmrl.report.outcomes import COSTS, TITLES, Column, Kind, Outcome, Outcomes, dataset_title
from fedmrl.report.page import NO_BREAK
from fedmrl.report.paper_figures import MODES, PAPER_GAINS, SWEEPS, Gains, gains
from fedmrl.report.standings import BASELINES, Standing, measured_margin, print_alike, printed_margin, standing
from fedmrl.report.tables import DASH, count, markdown, signed
from fedmrl.reproduce.cells import PROTOCOLS, Protocol
from fedmrl.reproduce.experiments import SAME_CATEGORY

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
    experiment: str
    """Which must be measured whole for a verdict that stays."""
    weigh: Callable[[Outcomes, Protocol], Evidence]
    fair_only: bool = False
    """Whether it is about all clients after the last round, whatever the protocol."""

    def verdict(self, outcomes: Outcomes, protocol: Protocol) -> str:
        """Such as `holds`; `so far: holds` where runs are missing that may turn it; of a toy never plainly so."""
        found = self.weigh(outcomes, protocol)
        if not found.held:
            return NOT_MEASURED
        limits = [*([] if outcomes.has_paper else [IN_TOY]), *([] if outcomes.is_whole(self.experiment) else ["so far"])]
        return ": ".join([*([", ".join(limits)] if limits else []), found.verdict])


def claims_table(outcomes: Outcomes) -> str:
    """A page of Markdown: each claim, what was measured under the two protocols, and whether it holds."""
    rows = []
    for claim in CLAIMS:
        measured = {p: _evidence_said(claim.weigh(outcomes, p)) for p in PROTOCOLS}
        verdicts = {p: claim.verdict(outcomes, p) for p in PROTOCOLS}
        if claim.fair_only:
            measured["paper"], verdicts["paper"] = DASH, verdicts["fair"]
        same = verdicts["paper"] == verdicts["fair"]
        said = verdicts["fair"] if same else f"its protocol: {verdicts['paper']}; fair: {verdicts['fair']}"
        rows.append([claim.title, f"{claim.paper} _{claim.note}_", measured["paper"], measured["fair"], said])
    columns = ["Claim", "What the paper says, and _how it is judged_", "Its protocol", "Fair protocol", "Whether it holds"]
    protocols = [f"- {name}: {says}." for name, says in zip(("Its protocol", "Fair"), PROTOCOLS.values(), strict=True)]
    absent = f"- {DASH}: about all clients after the last round, so counted fairly alone."
    level = "- Level: the two print alike, or seeds disagree who is ahead and it is by less than they vary."
    sources = [f"- {sentence}" for sentence in outcomes.left_out_said(one.setting for one in outcomes.wanted("all"))]
    notes = "\n".join([*protocols, absent, "- So far: some of the runs that it takes are not measured yet.", level, *sources])
    toy = "" if outcomes.has_paper else f"{TOY}\n\n"
    return f"# The paper's claims\n\n{toy}{markdown(columns, rows)}\n{notes}\n".replace(NO_BREAK, " ")


def _evidence_said(found: Evidence) -> str:
    return "; ".join(f"{value} ({caption})" for value, caption in found.values) or NOT_MEASURED


# Accuracy


def standings(outcomes: Outcomes, protocol: Protocol, kind: Kind = "heterogeneous") -> dict[Column, Standing]:
    """Where FedMRL stands, wherever it can be said."""
    found = {column: standing(outcomes, column, protocol) for column in outcomes.columns(kind)}
    return {column: place for column, place in found.items() if place}


KINDS: Mapping[Kind, str] = {"heterogeneous": "unlike models", "homogeneous": "one model for all"}


def _first(outcomes: Outcomes, protocol: Protocol) -> Evidence:
    values, of = [], {kind: list(standings(outcomes, protocol, kind).values()) for kind in KINDS}
    for kind, places in of.items():
        level = sum(place.level for place in places)
        caption = f"with {KINDS[kind]}" + (f"; level with the best in {level}" if level else "")
        values += [(share_said(place.first for place in places), caption)] if places else []
    unlike = of["heterogeneous"]
    return Evidence([place.first for place in unlike], values, any(place.level for place in unlike))


def share_said(held: Iterable[bool]) -> str:
    """How many of them.

    >>> share_said([True, False])
    '1 of 2'
    """
    every = list(held)
    return f"{sum(every)} of {len(every)}"


def _ahead(outcomes: Outcomes, protocol: Protocol) -> Evidence:
    held, values, level = [], [], False
    for dataset in outcomes.scale.datasets:
        main = outcomes.main(dataset)
        if lead := measured_margin(outcomes, main, protocol, BASELINES):
            found = outcomes.compared(main.setting)
            pairs = zip(found["fedmrl"].accuracies(protocol), found[lead.against].accuracies(protocol), strict=True)
            wins = [ours > theirs for ours, theirs in pairs]
            caption = f"{main.short}, against {TITLES[lead.against]}"
            caption += f", ahead with {share_said(wins)} seeds" if len(wins) > 1 else ", one seed"
            caption += ": level" if lead.level else ""
            if protocol == "paper" and outcomes.has_paper:
                printed = printed_margin(outcomes, "heterogeneous", main, BASELINES)
                caption += f"; the paper: {signed(printed.points)}" if printed else ""
            held.append(lead.points > 0 and not lead.level)
            level = level or lead.level
            values.append((signed(lead.points, 1), caption))
    return Evidence(held, values, level)


# Costs


def _cheaper(what: str, others: Sequence[str]) -> Callable[[Outcomes, Protocol], Evidence]:
    """Less until the target than the least of the others; only who reaches it with every seed reaches it."""

    def weigh(outcomes: Outcomes, protocol: Protocol) -> Evidence:
        held, values, level = [], [], False
        for dataset, target in outcomes.scale.targets.items():
            found = outcomes.compared(outcomes.main(dataset).setting)
            costs = {method: found[method].cost(protocol, target, what) for method in ("fedmrl", *others)}
            known = [method for method, cost in costs.items() if cost or found[method].state == "diverged"]
            if "fedmrl" not in known or len(known) == 1:
                continue
            means = {method: mean for method in known if (cost := costs[method]) and (mean := cost.mean) is not None}
            ours = means.pop("fedmrl", None)
            best = min(means, key=lambda method: means[method], default=None)
            same = ours is not None and best is not None and count(ours) == count(means[best])
            held.append(ours is not None and (best is None or ours < means[best]) and not same)
            level = level or same
            nobody = TITLES[others[0]] if len(others) == 1 else "the others"
            against = f"{nobody} never" if best is None else f"{TITLES[best]} {count(means[best])}"
            caption = f"{dataset_title(dataset)}, {COSTS[what]} to {100 * target:g}{NO_BREAK}%; {against}"
            values.append(("never" if ours is None else count(ours), caption))
        return Evidence(held, values, level)

    return weigh


# Clients, models to serve, Matryoshka learning


def client_gains(outcomes: Outcomes, dataset: str) -> Gains | None:
    """What each client gains with FedMRL over FedProto, where figures look."""
    found = outcomes.methods(outcomes.main(dataset).setting)
    return gains(found["fedmrl"], found["fedproto"])


def _clients(outcomes: Outcomes, _: Protocol) -> Evidence:
    held, values = [], []
    for dataset in outcomes.scale.datasets:
        if gained := client_gains(outcomes, dataset):
            share = float(np.mean(gained.shares))
            over = f", mean of {len(gained.shares)} seeds" if len(gained.shares) > 1 else ""
            paper = f"; the paper: {PAPER_GAINS[dataset]}{NO_BREAK}%" if outcomes.has_paper else ""
            held.append(share > 50)
            values.append((f"{share:.0f}{NO_BREAK}%", f"{dataset_title(dataset)}{over}{paper}"))
    return Evidence(held, values)


def _served(outcomes: Outcomes, _: Protocol) -> Evidence:
    held, values = [], []
    for dataset in outcomes.scale.datasets:
        modes = mode_means(outcomes.of(outcomes.main(dataset).setting, "fedmrl"))
        if len(modes) == len(MODES):
            gap, alone = modes["mix-small"] - modes["mix-large"], max(modes["single-small"], modes["single-large"])
            held.append(abs(gap) < modes["mix-small"] - alone)
            caption = f"{dataset_title(dataset)}; a single model {signed(alone - modes['mix-large'], 1)}"
            values.append((signed(gap, 1), caption))
    return Evidence(held, values)


def mode_means(outcome: Outcome) -> dict[str, float]:
    """The accuracy of each model that a client can serve, in percent, mean over seeds."""
    if outcome.state != "finished":
        return {}
    found = {mode: [of[mode] for cell in outcome.cells if mode in (of := cell.inference.get(cell.view, {}))] for mode in MODES}
    return {mode: 100 * float(np.mean(values)) for mode, values in found.items() if values}


def _matryoshka(outcomes: Outcomes, protocol: Protocol) -> Evidence:
    held, values = [], []
    for dataset in outcomes.scale.datasets:
        if wins := is_ahead(SWEEPS["ablation"].compared(outcomes, dataset), protocol):
            held += wins
            values.append((share_said(wins), dataset_title(dataset)))
    return Evidence(held, values)


def is_ahead(points: Mapping[float, tuple[Outcome, ...]], protocol: Protocol) -> list[bool]:
    """Wherever both of two lines have a point, whether the first is ahead by what is shown of them."""
    means = [[outcome.mean(protocol) for outcome in of] for of in points.values()]
    return [a > b and not print_alike(a, b) for a, b in means if a is not None and b is not None]


CLAIMS = (
    Claim(
        "Most accurate", "First in every federation, with unlike models and with one for all.",
        "Federations (dataset × number of clients) in which FedMRL is first; in the paper all.", "table-hetero", _first,
    ),
    Claim(
        "Ahead of the others", "By up to 8.48 points ahead of the best other method.",
        "Points over the best of the others.", "costs", _ahead,
    ),
    Claim(
        "Learns in fewer rounds", "Converges faster than the best other method.",
        "Against the soonest of the others.", "costs", _cheaper("rounds", BASELINES),
    ),
    Claim(
        "Sends less than its kind", "Less to a target than FML, FedKD and FedAPEN, though more than FedProto.",
        "Sent and received by a client, against the least of FML, FedKD and FedAPEN.",
        "costs", _cheaper("parameters", SAME_CATEGORY),
    ),
    Claim(
        "Computes less", "Less to a target than FedProto: more in a round, but fewer rounds.",
        "FLOPs of a client, against FedProto.", "costs", _cheaper("flops", ["fedproto"]),
    ),
    Claim(
        "Most clients gain", "87% (CIFAR-10) and 99% (CIFAR-100) of clients do better than with FedProto.",
        "Clients that do better with FedMRL than with FedProto, all of them after the last round.",
        "clients", _clients, fair_only=True,
    ),
    Claim(
        "mix-small is enough", "As accurate as mix-large, and both far above either model alone.",
        "Points from mix-large, the default, to mix-small; it holds where that is nearer than any single model.",
        "inference", _served, fair_only=True,
    ),
    Claim(
        "Matryoshka helps", "Better with Matryoshka learning than without, at every d₁.",
        "Dimensions d₁ at which FedMRL is better with Matryoshka learning than without.", "ablation", _matryoshka,
    ),
)  # fmt: skip
