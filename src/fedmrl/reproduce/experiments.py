"""Which runs each table and figure of the paper is made of."""

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from fedmrl.config import Recipe, load_recipe
from fedmrl.methods import METHODS
from fedmrl.reproduce.cells import hash_of

METHOD_ORDER = ("standalone", "lg-fedavg", "fd", "fedproto", "fml", "fedkd", "fedapen", "fedmrl")
"""As the paper's tables have them."""
HOMOGENEOUS = {"conv1": 4, "conv2": 8, "fc1": 64, "fc2": 32}
"""What all clients have in a small reproduction, where they have the same."""
PARTICIPANTS = 5
"""Of a round in a small reproduction, however many clients there are; the paper has ten."""
SAME_CATEGORY = ("fml", "fedkd", "fedapen")
"""Those that share a small model beside each client's own, as FedMRL does."""


@dataclass(frozen=True)
class Scale:
    """How large a reproduction is: as the paper has it, or small enough for a CPU."""

    name: str
    datasets: tuple[str, ...]
    federations: tuple[str, ...]
    """Names of numbers of clients, such as n100; the last is the one that figures look into."""
    classes: Mapping[str, tuple[int, ...]]
    """How many classes a client may have, by dataset; the first is that of the tables."""
    alphas: tuple[float, ...]
    dims: tuple[int, ...]
    """The representation dimensions d1 that are tried; the first is the default."""
    targets: Mapping[str, float]
    """The accuracy whose cost is counted, by dataset."""
    seeds: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Seeds of the methods in the heterogeneous table, by federation; else seed 0 alone."""

    @property
    def main(self) -> str:
        """The federation that figures look into."""
        return self.federations[-1]

    def seeds_of(self, setting: str, variant: str) -> tuple[int, ...]:
        """The seeds that a variant is run with in a setting."""
        _, federation, *rest = setting.split("-", 2)
        return self.seeds.get(federation, (0,)) if variant in METHODS and not rest else (0,)


PAPER = Scale(
    name="paper",
    datasets=("cifar10", "cifar100"),
    federations=("n10", "n50", "n100"),
    classes={"cifar10": (2, 4, 6, 8, 10), "cifar100": (10, 30, 50, 70, 90, 100)},
    alphas=(0.1, 0.2, 0.3, 0.4, 0.5),
    dims=(100, 150, 200, 250, 300, 350, 400, 450, 500),
    targets={"cifar10": 0.9, "cifar100": 0.5},
    seeds={"n100": (0, 1, 2)},
)
QUICK = Scale(
    name="quick",
    datasets=("digits",),
    federations=("n5", "n10", "n20"),
    classes={"digits": (2, 6, 10)},
    alphas=(0.1, 0.5),
    dims=(8, 16, 32),
    targets={"digits": 0.7},
)


@dataclass(frozen=True)
class Wanted:
    """A variant of a method in a setting, with the seeds it is wanted with."""

    setting: str
    variant: str
    recipe: Recipe
    seeds: tuple[int, ...]

    @property
    def name(self) -> str:
        """Such as `cifar10-n100/fedmrl`."""
        return f"{self.setting}/{self.variant}"


EXPERIMENTS: Mapping[str, str] = {
    "table-hetero": "accuracy of all methods, clients of five structures",
    "table-homo": "accuracy of all methods, clients of one structure",
    "curves": "accuracy by round, a panel for each federation",
    "clients": "each client's accuracy, FedMRL against FedProto",
    "costs": "rounds, parameters and FLOPs to a target accuracy",
    "non-iid-class": "accuracy by the number of classes that a client has",
    "non-iid-dirichlet": "accuracy by the Dirichlet parameter",
    "d1": "accuracy by the small model's representation dimension",
    "ablation": "FedMRL with and without Matryoshka learning, by dimension",
    "inference": "the four models that a client can serve",
}


@cache
def printed() -> Mapping[str, Any]:
    """The paper's tables: kind, dataset and method to one value for each of n10, n50 and n100; None: did not converge."""
    found: dict[str, Any] = json.loads((files("fedmrl.reproduce") / "paper.json").read_text())
    return found


def wanted(what: str, scale: Scale) -> list[Wanted]:
    """The runs that an experiment is made of, each once; `all` for every experiment."""
    found: dict[str, Wanted] = {}
    for name in EXPERIMENTS if what == "all" else [what]:
        for one in _runs(name, scale):
            found.setdefault(one.name, one)
    return list(found.values())


def _runs(what: str, scale: Scale) -> Iterator[Wanted]:
    # In the order in which they tell most: the federation that figures look into comes first.
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
            plain = _wanted(main, "fedmrl", scale)
            for d1 in scale.dims:
                for mrl in (True, False) if what == "ablation" else (True,):
                    one = _wanted(main, dim_variant(d1, mrl), scale)
                    # The dimension that FedMRL has anyway is not run under a second name.
                    yield plain if hash_of(one.recipe) == hash_of(plain.recipe) else one


def class_setting(dataset: str, number: int, scale: Scale) -> str:
    """The setting in which a client has so many classes; the first number is that of the tables."""
    main = f"{dataset}-{scale.main}"
    return main if number == scale.classes[dataset][0] else f"{main}-classes-{number}"


def dim_variant(d1: int, mrl: bool = True) -> str:
    """FedMRL with this d1.

    >>> dim_variant(150), dim_variant(150, mrl=False)
    ('fedmrl-d1-150', 'fedmrl-without-mrl-d1-150')
    """
    return f"fedmrl{'' if mrl else '-without-mrl'}-d1-{d1}"


def _methods(setting: str, methods: Sequence[str], scale: Scale) -> Iterator[Wanted]:
    for method in methods:
        yield _wanted(setting, method, scale)


def _wanted(setting: str, variant: str, scale: Scale) -> Wanted:
    return Wanted(setting, variant, recipe_of(setting, variant, scale), scale.seeds_of(setting, variant))


def recipe_of(setting: str, variant: str, scale: Scale, searched: Mapping[str, Any] | None = None) -> Recipe:
    """The setting's recipe with the method on top, as it was chosen for this dataset; or as a search wants it."""
    method, changes = _variant(variant)
    dataset, federation, *rest = setting.split("-", 2)
    of_dataset = chosen().get(dataset, {})
    own = {"method.name": method, **of_dataset.get("all", {}), **(searched or of_dataset.get(method, {})), **changes}
    if scale.name == "paper":
        return load_recipe(f"paper/{setting}", own)
    clients = int(federation[1:])
    return load_recipe("quick", {"clients": clients, "participation": PARTICIPANTS / clients, **_dealt(rest), **own})


def _variant(variant: str) -> tuple[str, dict[str, Any]]:
    """A variant's method, and what it changes.

    >>> _variant("fedmrl-without-mrl-d1-150")
    ('fedmrl', {'method.mrl': False, 'method.d1': 150})
    """
    if variant in METHODS:
        return variant, {}
    rest, _, d1 = variant.rpartition("-d1-")
    return "fedmrl", {"method.mrl": rest == "fedmrl", "method.d1": int(d1)}


def _dealt(rest: Sequence[str]) -> dict[str, Any]:
    """What the last part of a small setting's name says."""
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
def chosen() -> Mapping[str, Any]:
    """What the search chose, by dataset and method (`all`: for all of them)."""
    return tomllib.loads((files("fedmrl.reproduce") / "chosen.toml").read_text())
