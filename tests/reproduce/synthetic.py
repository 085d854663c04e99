"""Cells that nobody measured: one with numbers to check by hand, and whole reproductions that look like real ones."""

from collections.abc import Iterator
from functools import cache
from math import exp
from zlib import crc32

import numpy as np

from fedmrl.errors import UserError
from fedmrl.methods import METHODS
from fedmrl.reproduce.cells import Cell, CellClients, CellCurve, CumulativeCost, without_seed
from fedmrl.reproduce.experiments import METHOD_ORDER, PAPER, QUICK, Scale, class_setting, dim_variant, paper_results, recipe_of
from fedmrl.version import NUMBERS

SHARES = {"n10": 1.0, "n50": 0.2, "n100": 0.1, "n5": 1.0, "n20": 0.25}
MODES = ("mix-large", "mix-small", "single-small", "single-large")
OLD = {"numbers": NUMBERS - 1}
"""Fields of a cell that was measured when fedmrl gave other numbers."""


@cache
def recipe_for(setting, variant) -> dict:
    """The recipe that this version has for a cell, without its seed; that of the plain method for a setting of no figure."""
    scale = PAPER if "cifar" in setting else QUICK
    try:
        return without_seed(recipe_of(setting, variant, scale))
    except (UserError, ValueError):
        return without_seed(recipe_of("-".join(setting.split("-")[:2]), "fedmrl", scale))


def cell(setting="cifar10-n100", variant="fedmrl", seed=0, *, fair=0.8, own=None, paper=0.9, **fields) -> Cell:
    """A cell that converged with these accuracies (`own` is as `fair` unless given); any other field may be given."""
    federation = setting.split("-")[1]
    method = next(m for m in sorted(METHOD_ORDER, key=len, reverse=True) if variant.startswith(m))
    view, mode = ("aggregated" if method != "standalone" else "own"), ("mix-large" if method == "fedmrl" else "local")
    view, own = fields.get("view", view), fair if own is None else own
    clients = int(federation[1:])

    def last(value):
        return {mode: {"last": value, "best": value, "best_round": 2}}

    def curve(rounds, values):
        return CellCurve(rounds=rounds, own=values, aggregated=values if view == "aggregated" else None)

    curves = {"all": curve([1, 2], [fair / 2, fair]), "participants": curve([1, 2], [paper / 2, paper])}
    curves |= fields.pop("curves", {})
    rounds = max(rounds for one in curves.values() for rounds in one.rounds)
    steps = range(1, rounds + 1)
    turns = round(SHARES[federation] * clients)
    served = dict.fromkeys(MODES if method == "fedmrl" else [mode], fair)
    known = {
        "numbers": NUMBERS, "setting": setting, "variant": variant, "method": method, "title": METHODS[method].title,
        "seed": seed, "command": "fedmrl reproduce", "status": "finished", "device": "none", "engine": "none",
        "recipe": recipe_for(setting, variant), "versions": {}, "together": 1, "wall_seconds": 1.0, "view": view, "mode": mode,
        "accuracy": {"all": {"own": last(own), view: last(fair)}, "participants": {"own": last(paper)}},
        "inference": {"own": served, view: served},
        "curves": curves,
        "spent": CumulativeCost(turns=[r * turns for r in steps], parameters=list(steps), flops=[float(r) for r in steps]),
        "clients": of_clients(*[fair] * clients),
        "states_sha256": "0" * 64,
    }  # fmt: skip
    return Cell(**known | fields)


def of_clients(*fair, own=None, classes=(0, 9), test=25) -> CellClients:
    """CellClients with these accuracies; `own` are as `fair` unless given."""
    number = len(fair)
    return CellClients(
        model=["CNN-1"] * number, classes=[list(classes)] * number, train_samples=[100] * number,
        test_samples=[test] * number, rounds=[1] * number, own=list(fair if own is None else own), aggregated=list(fair),
    )  # fmt: skip


def diverged(setting="cifar10-n100", variant="fd", seed=0, at=12) -> Cell:
    """A cell whose losses were no numbers any more."""
    return cell(setting, variant, seed).model_copy(
        update={
            "status": "diverged",
            "diverged": {"client": 3, "round": at, "reason": "loss is nan"},
            **{name: {} for name in ("accuracy", "inference", "curves")},
            "clients": None,
            "spent": None,
        }
    )


def reaching(target, rounds=None, parameters=0.0, flops=0.0, *, paper_rounds=None, clients=100, turns=10) -> dict:
    """Fields of a cell whose clients reach a target in that round, each having spent so much; without one they never do."""
    at, first, length = rounds or 1, paper_rounds or rounds or 1, 100

    def curve(reached):
        values = [target if rounds and r >= reached else 0.1 for r in range(1, length + 1)]
        return CellCurve(rounds=list(range(1, length + 1)), own=values, aggregated=values)

    def spent(each):
        return [each * clients * r / at for r in range(1, length + 1)]

    return {
        "curves": {"all": curve(at), "participants": curve(first)},
        "spent": CumulativeCost(
            turns=[turns * r for r in range(1, length + 1)],
            parameters=[round(n) for n in spent(parameters)],
            flops=spent(flops),
        ),
    }  # fmt: skip


# What a participant sends and computes in a round, roughly as the paper's CNNs have it.
PARAMETERS = {
    "standalone": 0, "lg-fedavg": 1e4, "fd": 40, "fedproto": 2e3, "fml": 1.3e6, "fedkd": 1.1e6, "fedapen": 1.3e6, "fedmrl": 9e5
}  # fmt: skip
FLOPS = {
    "standalone": 9e10, "lg-fedavg": 9e10, "fd": 9.2e10, "fedproto": 9.5e10, "fml": 1.4e11, "fedkd": 1.5e11, "fedapen": 1.7e11,
    "fedmrl": 1.5e11,
}  # fmt: skip


def grown(setting, variant, seed, final, chance, rounds, scale) -> Cell:
    """A cell with curves that rise to a final accuracy, and all that follows from them."""
    federation = setting.split("-")[1]
    number, share = int(federation[1:]), SHARES[federation]
    rng = np.random.default_rng(crc32(f"{setting}/{variant}/{seed}".encode()))
    clients = np.random.default_rng(crc32(f"{setting}/{seed}".encode()))
    method = next(m for m in sorted(METHOD_ORDER, key=len, reverse=True) if variant.startswith(m))
    pace = rounds * (0.1 if method == "fedmrl" else 0.18) * rng.uniform(0.8, 1.2)
    noise = 0.12 / np.sqrt(number * share * 4)

    def at(r):
        return final - (final - chance) * exp(-r / pace)

    measured = sorted({r for r in range(0, rounds + 1, max(1, rounds // 50)) if r} | {rounds})
    everyone = [float(np.clip(at(r) - 0.01 + rng.normal(0, 0.004), 0, 1)) for r in measured]
    chosen = [float(np.clip(at(r) + 0.005 + rng.normal(0, noise), 0, 0.995)) for r in range(1, rounds + 1)]
    base = cell(setting, variant, seed, fair=everyone[-1], paper=max(chosen))
    aggregated = base.view == "aggregated"
    modes = {"mix-large": 0, "mix-small": -0.012, "single-small": -0.19, "single-large": -0.26}
    served = {m: everyone[-1] + off for m, off in modes.items()} if method == "fedmrl" else {base.mode: final}
    inference = {"own": served, base.view: served}
    ability = clients.normal(0, 0.05, number) + rng.normal(0, 0.025, number)
    return base.model_copy(
        update={
            "curves": {
                "all": CellCurve(rounds=measured, own=everyone, aggregated=everyone if aggregated else None),
                "participants": CellCurve(
                    rounds=list(range(1, rounds + 1)), own=chosen, aggregated=chosen if aggregated else None
                ),
            },
            "spent": CumulativeCost(
                turns=[round(share * number) * r for r in range(1, rounds + 1)],
                parameters=[round(share * number * r * PARAMETERS[method]) for r in range(1, rounds + 1)],
                flops=[share * number * r * FLOPS[method] for r in range(1, rounds + 1)],
            ),
            "inference": inference,
            "clients": CellClients(
                model=["CNN-1"] * number,
                classes=[sorted(map(int, clients.choice(10, 2, replace=False))) for _ in range(number)],
                train_samples=[int(n) for n in clients.integers(300, 500, number)],
                test_samples=[100] * number,
                rounds=[rounds] * number,
                own=[float(np.clip(everyone[-1] + a, 0, 1)) for a in ability],
                aggregated=[float(np.clip(everyone[-1] + a, 0, 1)) for a in ability],
            ),
        }
    )


def paper_cells() -> Iterator[Cell]:
    """All that the paper's tables and figures are made of, near what the paper prints."""
    for dataset in PAPER.datasets:
        for kind, suffix in (("heterogeneous", ""), ("homogeneous", "-homogeneous")):
            for column, federation in enumerate(PAPER.federations):
                for method in METHOD_ORDER:
                    yield from as_printed(
                        f"{dataset}-{federation}{suffix}", method, paper_results()[kind][dataset][method][column]
                    )
        yield from case_studies(dataset, best=0.93 if dataset == "cifar10" else 0.6)


def as_printed(setting, method, value) -> Iterator[Cell]:
    """All seeds of a method, a little below what the paper prints; FD diverges where it does in the paper."""
    if value is None and method == "fd":
        yield from (diverged(setting, method, seed) for seed in PAPER.seeds_of(setting, method))
        return
    chance, other = (0.5, 78) if setting.startswith("cifar10-") else (0.1, 40)
    final = (value or other) / 100 - 0.025
    for seed in PAPER.seeds_of(setting, method):
        yield grown(setting, method, seed, final, min(chance, final / 2), 500, PAPER)


def case_studies(dataset, best) -> Iterator[Cell]:
    """What the paper looks into at its largest federation."""
    main = f"{dataset}-{PAPER.main}"
    for method, off in (("fedproto", -0.05), ("fedmrl", 0)):
        for number, of in enumerate(PAPER.classes[dataset][1:], start=1):
            yield grown(class_setting(dataset, of, PAPER), method, 0, best + off - 0.07 * number, 0.1, 500, PAPER)
        for number, alpha in enumerate(PAPER.alphas):
            yield grown(f"{main}-dirichlet-{alpha}", method, 0, best - 0.1 + off - 0.03 * number, 0.1, 500, PAPER)
    for number, d1 in enumerate(PAPER.dims):
        for mrl in (True, False):
            off = -0.004 * number - (0 if mrl else 0.03 - 0.003 * number)
            for seed in PAPER.seeds_of(main, "fedmrl"):
                yield grown(main, dim_variant(d1, mrl), seed, best + off, 0.1, 500, PAPER)


def quick_cells() -> Iterator[Cell]:
    """A small reproduction that is under way: methods, settings and dimensions are missing."""
    finals = {"standalone": 0.78, "fedproto": 0.81, "fml": 0.62, "fedkd": 0.74, "fedmrl": 0.86}
    for method, final in finals.items():
        yield grown("digits-n20", method, 0, final, 0.3, 20, QUICK)
    yield diverged("digits-n20", "fd")
    for method in ("standalone", "fedmrl"):
        yield grown("digits-n10", method, 0, finals[method] + 0.02, 0.3, 20, QUICK)
    yield grown("digits-n20-classes-6", "fedmrl", 0, 0.71, 0.2, 20, QUICK)
    yield diverged("digits-n20-classes-6", "fedproto")
    yield grown("digits-n20-dirichlet-0.5", "fedmrl", 0, 0.8, 0.2, 20, QUICK)
    yield grown("digits-n20", "fedmrl-d1-32", 0, 0.83, 0.2, 20, QUICK)
    yield grown("digits-n20", "fedmrl-without-mrl-d1-8", 0, 0.8, 0.2, 20, QUICK)


def all_cells(scale: Scale) -> list[Cell]:
    """The synthetic reproduction of a scale."""
    return list(paper_cells() if scale is PAPER else quick_cells())
