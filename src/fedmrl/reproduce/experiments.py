"""Experiments: the runs behind each table and figure of the paper, at each scale."""

import difflib
import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from typing import Any

from fedmrl.config import Recipe, load_recipe
from fedmrl.errors import UserError
from fedmrl.report.tables import format_seeds
from fedmrl.reproduce.cells import Cell, recipe_hash

METHOD_ORDER = ("standalone", "lg-fedavg", "fd", "fedproto", "fml", "fedkd", "fedapen", "fedmrl")
"""The methods in the order of the paper's tables."""
HOMOGENEOUS = {"conv1": 4, "conv2": 8, "fc1": 64, "fc2": 32}
"""The model of all clients in the small version of the homogeneous table."""
PARTICIPANTS = 5
"""The number of participants in a round of the small version; the paper has ten."""
SAME_CATEGORY = ("fml", "fedkd", "fedapen")
"""The methods that, like FedMRL, share a small model beside each client's own."""


@dataclass(frozen=True)
class Scale:
    """The size of a reproduction: as in the paper, with fewer rounds, or a small version."""

    name: str
    folder: str
    """The folder of the results, within `results`."""
    datasets: tuple[str, ...]
    federations: tuple[str, ...]
    """Names of federations by number of clients, such as n100; the last is the main one."""
    classes: Mapping[str, tuple[int, ...]]
    """The numbers of classes per client, by dataset; the first is used in the tables."""
    alphas: tuple[float, ...]
    dims: tuple[int, ...]
    """The representation dimensions d1; the first is the default."""
    targets: Mapping[str, float]
    """The target accuracy by dataset."""
    seeds: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """The seeds of the heterogeneous table, by federation; all other runs have seed 0."""
    changes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Changes to the paper's recipes, by federation."""

    @property
    def option(self) -> str:
        """The option that selects the scale on the command line."""
        return {"paper": "", "quick": " --quick"}.get(self.name, f" --scale {self.name}")

    @property
    def has_paper(self) -> bool:
        """Whether the paper has results in these settings."""
        return self.name != "quick"

    @property
    def main(self) -> str:
        """The main federation, which the figures show."""
        return self.federations[-1]

    def seeds_of(self, setting: str, variant: str) -> tuple[int, ...]:
        """The seeds of a variant in a setting."""
        _, federation, *rest = setting.split("-", 2)
        return self.seeds.get(federation, (0,)) if variant in METHOD_ORDER and not rest else (0,)


PAPER = Scale(
    name="paper",
    folder="paper",
    datasets=("cifar10", "cifar100"),
    federations=("n10", "n50", "n100"),
    classes={"cifar10": (2, 4, 6, 8, 10), "cifar100": (10, 30, 50, 70, 90, 100)},
    alphas=(0.1, 0.2, 0.3, 0.4, 0.5),
    dims=(100, 150, 200, 250, 300, 350, 400, 450, 500),
    targets={"cifar10": 0.9, "cifar100": 0.5},
    seeds={"n100": (0, 1, 2)},
)
_FEWER = {"rounds": 100, "evaluation.every": 10, "training.batch_size": 64}
CPU = replace(
    PAPER,
    name="cpu",
    folder="paper-cpu",
    dims=(100, 250, 500),
    seeds={},
    changes={
        "n10": {**_FEWER, "training.epochs": 1},
        "n50": {**_FEWER, "training.epochs": 10},
        "n100": {**_FEWER, "training.epochs": 10},
    },
)
"""The paper's data and models, with the smallest rounds and epochs of its own grid: hours on two cores."""
QUICK = Scale(
    name="quick",
    folder="quick",
    datasets=("digits",),
    federations=("n5", "n10", "n20"),
    classes={"digits": (2, 6, 10)},
    alphas=(0.1, 0.5),
    dims=(8, 16, 32),
    targets={"digits": 0.7},
)
SCALES: Mapping[str, Scale] = {scale.name: scale for scale in (PAPER, CPU, QUICK)}


@dataclass(frozen=True)
class RunSpec:
    """A variant of a method in a setting, with the seeds to run."""

    setting: str
    variant: str
    recipe: Recipe
    seeds: tuple[int, ...]
    stage: int = 0
    """Lower stages run first, since their results may decide about later runs."""

    @property
    def name(self) -> str:
        """Such as `cifar10-n100/fedmrl`."""
        return f"{self.setting}/{self.variant}"

    @property
    def label(self) -> str:
        """Such as `cifar10-n100/fedmrl, seed 0`."""
        return f"{self.name}, {format_seeds(self.seeds)}"


EXPERIMENTS: Mapping[str, str] = {
    "table-hetero": "accuracy of all methods, clients of five structures",
    "table-homo": "accuracy of all methods, clients of one structure",
    "curves": "accuracy by round, a panel for each federation",
    "clients": "each client's accuracy, FedMRL against FedProto",
    "costs": "rounds, parameters and FLOPs to a target accuracy",
    "non-iid-class": "accuracy by the number of classes per client",
    "non-iid-dirichlet": "accuracy by the Dirichlet parameter",
    "d1": "accuracy by the small model's representation dimension",
    "ablation": "FedMRL with and without Matryoshka learning, by dimension",
    "inference": "FedMRL's four inference modes",
}


@cache
def paper_results() -> Mapping[str, Any]:
    """The paper's tables by kind, dataset and method: accuracies for n10, n50 and n100; None if the method did not converge."""
    found: dict[str, Any] = json.loads((files("fedmrl.reproduce") / "paper.json").read_text())
    return found


def find(what: str, scale: Scale, cells: Iterable[Cell] = ()) -> list[RunSpec]:
    """The runs of an experiment, of all experiments, or the single run of that name."""
    if what == "all" or what in EXPERIMENTS:
        return run_specs(what, scale, cells)
    everything = [one for name in (*EXPERIMENTS, "all") for one in run_specs(name, scale, cells)]
    if named := [one for one in everything if one.name == what]:
        return [replace(named[0], seeds=tuple(sorted({seed for one in named for seed in one.seeds})), stage=0)]
    near = difflib.get_close_matches(what, [*EXPERIMENTS, "all", *(one.name for one in everything)], n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise UserError(
        f"there is no experiment {what!r}; {hint}choose {', '.join(EXPERIMENTS)}, all, or a cell listed by "
        "'fedmrl reproduce all --dry-run'"
    )


def run_specs(what: str, scale: Scale, cells: Iterable[Cell] = ()) -> list[RunSpec]:
    """The runs of an experiment, or of `all`, without repetitions.

    At the scale `cpu`, the measured `cells` decide which methods are run with more seeds.
    """
    found: dict[tuple[str, tuple[int, ...]], RunSpec] = {}
    if what == "all" and scale.name == "cpu":
        runs: Iterable[RunSpec] = _in_stages(scale, list(cells))
    else:
        runs = (one for name in (EXPERIMENTS if what == "all" else [what]) for one in _runs(name, scale))
    for one in runs:
        found.setdefault((one.name, one.seeds), one)
    return list(found.values())


def _in_stages(scale: Scale, cells: Sequence[Cell]) -> Iterator[RunSpec]:
    """The runs at the scale `cpu`, the most informative first, one seed each so that cells appear early."""
    mains = [f"{dataset}-{scale.main}" for dataset in scale.datasets]
    smaller = [[f"{dataset}-{federation}" for dataset in scale.datasets] for federation in scale.federations[:-1]]

    def stage(number: int, settings: Iterable[str], variants: Iterable[str], seeds: Iterable[int] = (0,)) -> Iterator[RunSpec]:
        for setting in settings:
            for variant in variants:
                for seed in seeds:
                    yield RunSpec(setting, variant, recipe_of(setting, variant, scale), (seed,), number)

    yield from stage(1, mains, METHOD_ORDER)
    yield from stage(2, mains, [dim_variant(scale.dims[0], mrl=False)])
    for main in mains:
        yield from stage(3, [main], ["fedmrl", "standalone", *best_others(main, cells)], (1, 2))
    yield from stage(4, smaller[0], ["fedmrl", "standalone", "fedproto"], (0, 1, 2))
    yield from stage(5, mains, [dim_variant(d1) for d1 in scale.dims[1:]])
    yield from stage(6, smaller[1], METHOD_ORDER)
    yield from stage(7, [f"{main}-homogeneous" for main in mains], METHOD_ORDER)


def best_others(setting: str, cells: Iterable[Cell], count: int = 2) -> list[str]:
    """The best methods other than FedMRL and Standalone under the protocol `fair` with seed 0; empty until all are measured."""
    others = [method for method in METHOD_ORDER if method not in ("fedmrl", "standalone")]
    found = {cell.variant: cell for cell in cells if cell.setting == setting and cell.seed == 0 and cell.variant in others}
    if len(found) < len(others):
        return []
    return sorted(others, key=lambda method: found[method].measured("fair") or 0.0, reverse=True)[:count]


def _runs(what: str, scale: Scale) -> Iterator[RunSpec]:
    # The most informative runs come first: those of the main federation.
    federations = scale.federations[::-1]
    for dataset in scale.datasets:
        main = f"{dataset}-{scale.main}"
        if what in ("table-hetero", "table-homo", "curves"):
            suffix = "-homogeneous" if what == "table-homo" else ""
            for federation in federations:
                yield from _methods(f"{dataset}-{federation}{suffix}", METHOD_ORDER, scale)
        elif what in ("costs", "inference"):
            yield from _methods(main, METHOD_ORDER if what == "costs" else ["fedmrl"], scale)
        elif what == "clients":
            yield from _methods(main, ["fedproto", "fedmrl"], scale)
        elif what == "non-iid-class":
            for number in scale.classes[dataset]:
                yield from _methods(class_setting(dataset, number, scale), ["fedproto", "fedmrl"], scale)
        elif what == "non-iid-dirichlet":
            for alpha in scale.alphas:
                yield from _methods(f"{main}-dirichlet-{alpha}", ["fedproto", "fedmrl"], scale)
        else:
            plain = _run_spec(main, "fedmrl", scale)
            for d1 in scale.dims:
                for mrl in (True, False) if what == "ablation" else (True,):
                    one = _run_spec(main, dim_variant(d1, mrl), scale)
                    # FedMRL's default dimension is not run again under a second name.
                    yield plain if recipe_hash(one.recipe) == recipe_hash(plain.recipe) else one


def class_setting(dataset: str, number: int, scale: Scale) -> str:
    """The setting with `number` classes per client; the first number has the setting of the tables."""
    main = f"{dataset}-{scale.main}"
    return main if number == scale.classes[dataset][0] else f"{main}-classes-{number}"


def dim_variant(d1: int, mrl: bool = True) -> str:
    """The variant's name of FedMRL with this d1.

    >>> dim_variant(150), dim_variant(150, mrl=False)
    ('fedmrl-d1-150', 'fedmrl-without-mrl-d1-150')
    """
    return f"fedmrl{'' if mrl else '-without-mrl'}-d1-{d1}"


def _methods(setting: str, methods: Sequence[str], scale: Scale) -> Iterator[RunSpec]:
    for method in methods:
        yield _run_spec(setting, method, scale)


def _run_spec(setting: str, variant: str, scale: Scale) -> RunSpec:
    return RunSpec(setting, variant, recipe_of(setting, variant, scale), scale.seeds_of(setting, variant))


def recipe_of(setting: str, variant: str, scale: Scale) -> Recipe:
    """The recipe of a variant in a setting, with the tuned settings of its dataset."""
    method, changes = _variant(variant)
    dataset, federation, *rest = setting.split("-", 2)
    of_dataset = tuned_settings().get(dataset, {})
    own = {"method.name": method, **of_dataset.get("all", {}), **of_dataset.get(method, {}), **changes}
    if scale.has_paper:
        return load_recipe(f"paper/{setting}", {**scale.changes.get(federation, {}), **own})
    clients = int(federation[1:])
    return load_recipe(
        "quick", {"clients": clients, "participation": PARTICIPANTS / clients, **_partition_settings(rest), **own}
    )


def _variant(variant: str) -> tuple[str, dict[str, Any]]:
    """A variant's method and changed settings.

    >>> _variant("fedmrl-without-mrl-d1-150")
    ('fedmrl', {'method.mrl': False, 'method.d1': 150})
    """
    if variant in METHOD_ORDER:
        return variant, {}
    rest, _, d1 = variant.rpartition("-d1-")
    return "fedmrl", {"method.mrl": rest == "fedmrl", "method.d1": int(d1)}


def _partition_settings(rest: Sequence[str]) -> dict[str, Any]:
    """The recipe's keys for the last part of a small setting's name."""
    how, _, value = rest[0].partition("-") if rest else ("", "", "")
    match how:
        case "homogeneous":
            return {"models.local": [HOMOGENEOUS]}
        case "classes":
            return {"partition.classes_per_client": int(value)}
        case "dirichlet":
            return {"partition.kind": "dirichlet", "partition.alpha": float(value)}
    return {}


@cache
def tuned_settings() -> Mapping[str, Any]:
    """Tuned settings on top of the paper's recipes, by dataset and method (`all`: every method)."""
    return tomllib.loads((files("fedmrl.reproduce") / "chosen.toml").read_text())
