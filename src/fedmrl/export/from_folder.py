"""A client's final net, built again from the folder of its run."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from fedmrl.config import ModelsTable, Recipe
from fedmrl.data import Preparation
from fedmrl.errors import UserError
from fedmrl.export.final_nets import FinalNets, InRunFolder
from fedmrl.methods import Common, Header
from fedmrl.models import ModelSpec, OwnModel, SharedSpec
from fedmrl.models.own import own_model
from fedmrl.randomness import host_seeded


def nets_in_folder(
    states: InRunFolder,
    recipe: Recipe,
    preparation: Preparation,
    small_model: str | Mapping[str, Any] | None,
    client: int,
    held: Sequence[int],
    model: Any,
    small: Any,
) -> FinalNets:
    """What builds a client's final net.

    `small_model` is the shared model that the run recorded, `held` are the classes in the client's training data. `model` and
    `small` are the client's and the shared model where they were given from Python, which a folder does not have.
    """
    local: ModelSpec = recipe.models.of_clients(client + 1)[client]
    if recipe.models.own is not None:
        local = _again(model, preparation, f"client {client}'s model ({recipe.models.own[client]})", client, "model")
    if recipe.models.own_small is not None:
        shared: ModelSpec | None = _again(small, preparation, f"the shared model ({recipe.models.own_small})", client, "small")
    elif small_model is not None:
        shared = ModelsTable.model_validate({"small": small_model}).shared
    else:
        raise UserError(f"{states.folder} does not say which model all clients share; run it again into another folder")
    shape, classes = tuple(preparation.shape), len(preparation.classes)
    with host_seeded(recipe.seed, "form"):
        header = Header.of(local.build(shape, classes))
    terms = recipe.terms(Common(shape, classes, cast(SharedSpec, shared), header))
    return FinalNets(terms, {client: local}, {client: held}, preparation, states)


def _again(given: Any, preparation: Preparation, what: str, client: int, argument: str) -> ModelSpec:
    """A model that is needed again, for the data that the run had."""
    if given is None:
        raise UserError(f"{what} was given from Python; give it again there, as in result.client({client}, {argument}=…)")
    spec = own_model(given, argument, argument)
    return replace(spec, vocabulary=preparation.vocabulary) if isinstance(spec, OwnModel) else spec
