"""A run's result, from its records and the final evaluation of every client."""

import platform
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from fedmrl.config import Recipe
from fedmrl.cpu import cpu_name
from fedmrl.federation.checkpoint import Snapshot
from fedmrl.federation.clients import Roster
from fedmrl.results import (
    PROTOCOLS,
    WHOSE,
    Accuracy,
    ByMode,
    ByView,
    ClientResult,
    ClientResults,
    Communication,
    RunResult,
    Scores,
    Traffic,
    Whose,
    cost_to_target,
    counted,
    last_and_best,
)
from fedmrl.version import __version__

STAGES = ("train", "aggregate", "evaluate")
Accuracies = dict[str, dict[str, dict[int, float]]]
"""Accuracy by view (`own`, `aggregated`), mode and client."""


def summarise(recipe: Recipe, roster: Roster, snapshot: Snapshot, final: Accuracies, facts: Mapping[str, Any]) -> RunResult:
    """The result of a finished run, of the clients that could be evaluated at its end."""
    records = snapshot.records
    evaluated = final[recipe.headline_view][recipe.headline_mode]
    missing = [client for client in roster if client not in evaluated]
    roster = {client: own for client, own in roster.items() if client in evaluated}

    def scores(whose: Whose) -> ByView[Scores]:
        modes = {view: Scores({m: last_and_best(records, whose, view, m) for m in recipe.recorded_modes}) for view in final}
        return ByView[Scores].model_validate(modes)

    def sent(way: str) -> Traffic:
        ways: list[Traffic] = [getattr(record, way) for record in records]
        return Traffic(parameters=sum(s.parameters for s in ways), bytes=sum(s.bytes for s in ways))

    return RunResult(
        status="finished",
        **{**facts, "rounds": snapshot.rounds},
        accuracy=Accuracy(**{whose: scores(whose) for whose in WHOSE}),
        inference=ByView[ByMode[float]].model_validate(
            {view: {mode: mean(of_clients.values()) for mode, of_clients in modes.items()} for view, modes in final.items()}
        ),
        communication=Communication(up=sent("up"), down=sent("down")),
        flops=sum(record.flops for record in records),
        targets=[
            cost_to_target(records, len(roster), target, whose, view, recipe.headline_mode)
            for target in recipe.evaluation.targets
            for whose, view in dict.fromkeys(counted(protocol, recipe.headline_view)[:2] for protocol in PROTOCOLS)
        ],
        seconds={stage: sum(record.seconds.get(stage, 0.0) for record in records) for stage in STAGES},
        clients=client_rows(recipe, roster, snapshot, final),
        split=samples_by_class(roster),
        not_evaluated=missing or None,
        records=records,
    )


def facts(recipe: Recipe, engines: Sequence[str], devices: Sequence[str], together: int) -> dict[str, Any]:
    """What was run and on which device; `together` is the number of seeds that ran together and share their times."""
    return {
        "method": recipe.method.name,
        "title": recipe.method.title,
        "colour": recipe.method.colour,
        "seed": recipe.seed,
        "rounds": recipe.rounds,
        "mode": recipe.headline_mode,
        "view": recipe.headline_view,
        "engine": ", then ".join(engines),
        "device": ", then ".join(devices),
        "versions": versions(),
        "together": together,
        "config": recipe.to_toml(),
        "ran": recipe,
    }


def versions() -> dict[str, str]:
    """The versions of the software that results depend on."""
    return {
        "fedmrl": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }


def device_name(device: torch.device) -> str:
    """The device's name, for results."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{cpu_name()}, {torch.get_num_threads()} threads"


def mean(values: Any) -> float:
    """The unweighted mean over clients."""
    return float(np.mean(list(values)))


def samples_by_class(roster: Roster) -> list[dict[int, int]] | None:
    """Each client's training samples per class label; None if any client does not report them."""
    reported = [client.classes for client in roster.values() if client.classes is not None]
    if len(reported) < len(roster):
        return None
    return [dict(classes) for classes in reported]


def client_rows(recipe: Recipe, roster: Roster, snapshot: Snapshot, final: Accuracies) -> ClientResults:
    """One row per client: its model, its data and its final accuracy."""
    by_mode = {f"{view}_{mode}": of_clients for view, modes in final.items() for mode, of_clients in modes.items()}
    headline = final[recipe.headline_view][recipe.headline_mode]
    return ClientResults(
        [
            ClientResult(
                client=client,
                model=own.model,
                classes=" ".join(map(str, own.classes or ())),
                train_samples=own.train,
                test_samples=own.test,
                rounds=snapshot.times.get(client, 0),
                accuracy=headline[client],
                **{name: of_clients[client] for name, of_clients in by_mode.items()},
            )
            for client, own in roster.items()
        ]
    )
