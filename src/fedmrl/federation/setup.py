"""From a recipe to all that a run needs, checked, before anything is written."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from fedmrl.config import Recipe
from fedmrl.data import sources
from fedmrl.data.partition import partition, read_json
from fedmrl.data.sources import Dataset
from fedmrl.engines import Setting
from fedmrl.errors import UserError
from fedmrl.models import CNN, ModelSpec, Split
from fedmrl.randomness import generator, torch_seeded

Schedule = list[list[int]]


def prepare(recipe: Recipe, device: torch.device, models: Sequence[ModelSpec] | None = None) -> Setting:
    """Load the data, deal it, and see that the method can serve these models."""
    data = sources.load(recipe.data)
    if recipe.training.augment.active and len(data.shape) != 3:
        raise UserError(f"training.augment is for images, and {data.name} has samples of shape {data.shape}; leave it out")
    splits = partition(recipe.partition, data, recipe.clients, recipe.seed)
    specs = models if models is not None else recipe.models.of_clients(recipe.clients)
    if len(specs) != recipe.clients:
        raise UserError(f"{len(specs)} models were given for {recipe.clients} clients; give one for each")
    small = recipe.models.shared([spec for spec in specs if isinstance(spec, CNN)] or [CNN()])
    setting = Setting(recipe.method, data, splits, specs, small, recipe.training, recipe.seed, device)
    _check_models(setting, data)
    for client in range(recipe.clients):
        setting.subsets(client)
    return setting


def _check_models(setting: Setting, data: Dataset) -> None:
    built: dict[ModelSpec, Split] = {}
    with torch_seeded(setting.seed, "check"):
        for spec in set(setting.models):
            built[spec] = spec.build(data.shape, len(data.classes))
    clients = [built[spec] for spec in setting.models]
    setting.method.check(clients, [spec.label for spec in setting.models])


def schedule(recipe: Recipe) -> Schedule:
    """Who takes part in each round: drawn, or as the recipe's file says."""
    if isinstance(recipe.participation, str):
        return _given(recipe, Path(recipe.participation).expanduser())
    count = max(1, round(recipe.participation * recipe.clients))
    return [
        np.sort(generator(recipe.seed, "sampling", r).choice(recipe.clients, count, replace=False)).tolist()
        for r in range(recipe.rounds)
    ]


def _given(recipe: Recipe, path: Path) -> Schedule:
    rounds = read_json(path, "participation")
    if not isinstance(rounds, list) or len(rounds) < recipe.rounds:
        found = f"{len(rounds)}" if isinstance(rounds, list) else "no list"
        raise UserError(f"{path} must hold a list of clients for each of the {recipe.rounds} rounds; it holds {found}")
    for number, clients in enumerate(rounds, start=1):
        good = isinstance(clients, list) and all(type(k) is int and 0 <= k < recipe.clients for k in clients)
        if not good or not clients or len(set(clients)) < len(clients):
            raise UserError(
                f"{path}: round {number}'s entry must list at least one client, each once, from 0 to {recipe.clients - 1}"
            )
    return [sorted(clients) for clients in rounds[: recipe.rounds]]
