"""Folders of clients, made from a recipe's dataset, for trials: each has its own samples, its model and its bounds."""

from pathlib import Path

import numpy as np
import tomli_w

from fedmrl.config import ModelsTable, Recipe
from fedmrl.data import Dataset, sources
from fedmrl.data.partition import partition
from fedmrl.errors import UserError
from fedmrl.federation.setup import terms_elsewhere
from fedmrl.files import replacing, write_whole
from fedmrl.flower.checks import epochs_a_round
from fedmrl.flower.client_config import Bounds
from fedmrl.models import is_own

CONFIG = "client.toml"


def deal(recipe: Recipe, folder: Path) -> list[Path]:
    """Writes the folders of a recipe's clients, which would get the same samples in a simulation; returns them by number."""
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder} is not empty; choose a new folder")
    if recipe.models.own is not None or any(is_own(model) for model in recipe.models.kinds):
        raise UserError(
            "the recipe's models are not fedmrl's; put them into the clients' folders yourself, as client.toml says"
        )
    data = sources.load(recipe.data)
    # The simulation standardises all clients' samples by the same numbers, which here are common knowledge.
    standardise = {"mean": data.mean.tolist(), "std": data.std.tolist()} if data.vocabulary is None else None
    leaves = _leaving(recipe, data)
    splits = partition(recipe.partition, data, recipe.clients, recipe.seed)
    models = recipe.models.of_clients(recipe.clients)
    made = []
    for number, (own, model) in enumerate(zip(splits, models, strict=True)):
        path = folder / f"client-{number}"
        path.mkdir(parents=True)
        with replacing(path / "data.npz") as part, part.open("wb") as file:
            np.savez(
                file, x=data.x[own.train], y=data.y[own.train], x_test=data.x[own.test], y_test=data.y[own.test],
                allow_pickle=False,
            )  # fmt: skip
        config = {
            "name": path.name,
            "model": ModelsTable(local=[model]).model_dump(mode="json")["local"][0],
            "data": "data.npz",
            "classes": list(data.classes),
            **({} if standardise is None else {"standardise": standardise}),
            "bounds": {"methods": [recipe.method.name], "leaves": leaves, "class_counts": True, **_limits(recipe)},
        }
        write_whole(path / CONFIG, f"# A client for trials, dealt from {data.name}.\n\n{tomli_w.dumps(config)}")
        made.append(path)
    return made


def _leaving(recipe: Recipe, data: Dataset) -> list[str]:
    """How the names of tensors begin that a client of this method sends."""
    form = terms_elsewhere(recipe, data.shape, data.classes, data.vocabulary).upload_form
    names = {name for group in form for choice in group for name in choice}
    return sorted({f"{name.partition('.')[0]}." if "." in name else name for name in names})


def _limits(recipe: Recipe) -> dict[str, int]:
    """The bounds that the recipe needs beyond their defaults."""
    defaults, training = Bounds(), recipe.training
    needed = {
        "max_rounds": max(defaults.max_rounds, recipe.rounds),
        "max_epochs": max(defaults.max_epochs, epochs_a_round(recipe)),
        "min_batch_size": min(defaults.min_batch_size, training.batch_size),
        "max_batch_size": max(defaults.max_batch_size, training.batch_size),
    }
    return {key: value for key, value in needed.items() if value != getattr(defaults, key)}
