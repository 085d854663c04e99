"""What a run came to: its summary, made from its records and a last evaluation of every client."""

import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedmrl.config import Recipe
from fedmrl.cpu import cpu_name
from fedmrl.federation.checkpoint import Snapshot
from fedmrl.federation.clients import Roster
from fedmrl.protocols import PROTOCOLS, counted
from fedmrl.version import __version__

STAGES = ("train", "aggregate", "store", "evaluate")
Accuracies = Mapping[str, Mapping[str, Mapping[int, float]]]
"""Accuracy by view (`own`, `aggregated`), mode and client."""


@dataclass(frozen=True)
class Run:
    """What a run gave: its summary, a record of each round, and where it lies if it was written."""

    recipe: Recipe
    summary: dict[str, Any]
    records: tuple[dict[str, Any], ...]
    folder: Path | None


def shown_mode(recipe: Recipe) -> str:
    """The mode whose accuracy counts."""
    return recipe.evaluation.mode or recipe.method.modes[0]


def shown_view(recipe: Recipe) -> str:
    """The view whose accuracy counts: with what the server has last, as in the paper, where that makes a difference."""
    return "aggregated" if recipe.method.hears_server else "own"


def views(recipe: Recipe) -> tuple[str, ...]:
    """The views whose accuracy is measured: a client as it is, and after hearing the server, if it does."""
    return ("own", "aggregated") if recipe.method.hears_server else ("own",)


def all_evaluated(recipe: Recipe, number: int) -> bool:
    """Whether all clients are evaluated after this round, counted from 1."""
    return number % recipe.evaluation.every == 0 or number == recipe.rounds


def recorded_modes(recipe: Recipe) -> list[str]:
    """The modes whose accuracy is recorded in each round."""
    method = recipe.method
    return list(dict.fromkeys([shown_mode(recipe), *(method.modes if method.records_every_mode else method.modes[:1])]))


def summarise(
    recipe: Recipe, roster: Roster, snapshot: Snapshot, final: Accuracies, facts: Mapping[str, Any]
) -> dict[str, Any]:
    """The whole of `summary.json` for a run that finished."""
    records = snapshot.records
    return {
        "status": "finished",
        **facts,
        "accuracy": {
            whose: {
                view: {mode: _last_and_best(records, whose, view, mode) for mode in recorded_modes(recipe)} for view in final
            }
            for whose in ("all", "participants")
        },
        "inference": {
            view: {mode: mean(of_clients.values()) for mode, of_clients in modes.items()} for view, modes in final.items()
        },
        "communication": {
            way: {what: sum(r[way][what] for r in records) for what in ("parameters", "bytes")} for way in ("up", "down")
        },
        "flops": sum(r["flops"] for r in records),
        "targets": [
            cost_to_target(records, recipe.clients, target, whose, view, shown_mode(recipe))
            for target in recipe.evaluation.targets
            for whose, view in dict.fromkeys(counted(protocol, shown_view(recipe))[:2] for protocol in PROTOCOLS)
        ],
        "seconds": {what: sum(r["seconds"].get(what, 0.0) for r in records) for what in STAGES},
        "clients": client_rows(recipe, roster, snapshot, final),
        "split": samples_by_class(roster),
    }


def facts(recipe: Recipe, engines: Sequence[str], devices: Sequence[str], together: int) -> dict[str, Any]:
    """What was run, and on what; `together` is how many seeds were run as one, whose times are those of all of them."""
    return {
        "method": recipe.method.name,
        "seed": recipe.seed,
        "rounds": recipe.rounds,
        "mode": shown_mode(recipe),
        "view": shown_view(recipe),
        "engine": ", then ".join(engines),
        "device": ", then ".join(devices),
        "versions": versions(),
        "together": together,
    }


def versions() -> dict[str, str]:
    """Of all that numbers and times depend on."""
    return {
        "fedmrl": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }


def device_name(device: torch.device) -> str:
    """What something ran on."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{cpu_name()}, {torch.get_num_threads()} threads"


def mean(values: Any) -> float:
    """The mean over clients, each counting alike."""
    return float(np.mean(list(values)))


def curve(records: Sequence[Mapping[str, Any]], whose: str, view: str, mode: str) -> Iterator[tuple[int, float]]:
    """Round and accuracy wherever this kind of accuracy was measured."""
    for record in records:
        if whose in record["accuracy"]:
            yield record["round"], record["accuracy"][whose][view][mode]


def _last_and_best(records: Sequence[Mapping[str, Any]], whose: str, view: str, mode: str) -> dict[str, Any]:
    points = list(curve(records, whose, view, mode))
    best_round, best = max(points, key=lambda point: (point[1], -point[0]))
    return {"last": points[-1][1], "best": best, "best_round": best_round}


def cost_to_target(
    records: Sequence[Mapping[str, Any]], clients: int, target: float, whose: str, view: str, mode: str
) -> dict[str, Any]:
    """Rounds, parameters and FLOPs until an accuracy was reached.

    `parameters` and `flops` are what was really spent, as a mean over all clients. The paper's product (what one
    participant spends in a round, times rounds) stands beside them: it counts each client in every round.
    """
    asked = {"target": target, "accuracy_of": whose, "view": view, "mode": mode}
    reached = next((r for r, accuracy in curve(records, whose, view, mode) if accuracy >= target), None)
    if reached is None:
        return {**asked, "reached": False}
    until = records[:reached]
    turns = sum(len(r["participants"]) for r in until)
    parameters = sum(r["up"]["parameters"] + r["down"]["parameters"] for r in until)
    flops = sum(r["flops"] for r in until)
    return {
        **asked,
        "reached": True,
        "rounds": reached,
        "parameters": parameters / clients,
        "flops": flops / clients,
        "paper_parameters": parameters / turns * reached,
        "paper_flops": flops / turns * reached,
    }


def samples_by_class(roster: Roster) -> list[dict[str, int]] | None:
    """For each client the number of its training samples of each class, by the class's label; None if some do not say."""
    told = [client.classes for client in roster.values() if client.classes is not None]
    if len(told) < len(roster):
        return None
    return [{str(label): count for label, count in classes.items()} for classes in told]


def client_rows(recipe: Recipe, roster: Roster, snapshot: Snapshot, final: Accuracies) -> list[dict[str, Any]]:
    """A row for each client: what it is, what it has, how well it does at the end."""
    rows = []
    for client, own in roster.items():
        accuracies = {
            f"{view}_{mode}": of_clients[client] for view, modes in final.items() for mode, of_clients in modes.items()
        }
        rows.append(
            {
                "client": client,
                "model": own.model,
                "classes": " ".join(map(str, own.classes or ())),
                "train_samples": own.train,
                "test_samples": own.test,
                "rounds": snapshot.times.get(client, 0),
                "accuracy": final[shown_view(recipe)][shown_mode(recipe)][client],
                **accuracies,
            }
        )
    return rows
