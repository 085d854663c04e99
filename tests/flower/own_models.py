"""Clients' folders with models of their own, in place of the recipe's."""

import tomllib

import kinds_of_model
import tomli_w

from fedmrl import OwnModel
from fedmrl.flower.deal import deal


def bring(recipe, folder, names):
    """Deals the recipe's data to clients who bring these models of `kinds_of_model`; returns folders and models."""
    paths = deal(recipe, folder)
    for path, name in zip(paths, names, strict=True):
        file = path / "client.toml"
        own = {"model": f"{kinds_of_model.__file__}:{name}", "model_label": name, "threads": 1}  # as the tests themselves
        plain = tomllib.loads(file.read_text()) | own
        file.write_text(tomli_w.dumps(plain))
    return paths, [OwnModel(name, getattr(kinds_of_model, name)) for name in names]
