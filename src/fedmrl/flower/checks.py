"""What an agent accepts and lets out, by the organisation's bounds and by what the recipe's method sends."""

import math
import tomllib
from collections.abc import Mapping
from typing import Any

import torch

from fedmrl.config import Recipe, parse_recipe, path_keys
from fedmrl.data.sources import AtClients
from fedmrl.engines import Terms
from fedmrl.errors import UserError
from fedmrl.files import sha256_of_text
from fedmrl.flower.client_config import Bounds, Organisation
from fedmrl.flower.protocol import Reason
from fedmrl.messages import MessageForm, TensorForm, Tensors, UpTo, check_form
from fedmrl.registry import loading_nothing


class Refused(Exception):  # noqa: N818  (a refusal is an answer)
    """A request that is not carried out; the sentence goes to the peer and holds nothing private."""

    def __init__(self, reason: Reason, sentence: str) -> None:
        super().__init__(sentence)
        self.reason = reason


def refuse(sentence: str) -> Refused:
    """A refusal of what is out of bounds or out of turn."""
    return Refused("refused", sentence)


def approved_recipe(text: str, bounds: Bounds) -> Recipe:
    """The recipe that a peer sent, which imports nothing and reads no file; raises `Refused` if it is out of bounds."""
    if bounds.recipe_sha256 and sha256_of_text(text) not in bounds.recipe_sha256:
        raise refuse(f"the recipe's SHA-256, {sha256_of_text(text)}, is not one that this client approved")
    try:
        plain = tomllib.loads(text)
        with loading_nothing():
            _check_names(plain, bounds)
            recipe = parse_recipe(plain, "the recipe")
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise refuse(f"the recipe is not TOML: {error}") from error
    except UserError as error:
        raise refuse(str(error)) from error
    _check_recipe(recipe, bounds)
    return recipe


def _check_names(plain: Mapping[str, Any], bounds: Bounds) -> None:
    """Raises `Refused` for imports and paths that the organisation does not name."""
    imports = plain.get("imports", [])
    for name in imports if isinstance(imports, list) else [imports]:
        if name not in bounds.recipe_imports:
            raise refuse(f"the recipe imports {name!r}, which is not in this client's bounds.recipe_imports")
    for key in path_keys(plain):
        table, _, last = key.rpartition(".")
        within = plain.get(table) if table else plain
        value = within.get(last) if isinstance(within, Mapping) else None
        if isinstance(value, str) and value not in bounds.recipe_paths:
            raise refuse(f"the recipe's {key} is a path, {value!r}, which is not in this client's bounds.recipe_paths")


def epochs_a_round(recipe: Recipe) -> int:
    """The most passes over the data in a round, of all phases together."""
    return max(sum(phase.epochs for phase in recipe.method.phases(recipe.training, earlier)) for earlier in (0, 1))


def _check_recipe(recipe: Recipe, bounds: Bounds) -> None:
    method, training = recipe.method, recipe.training
    if method.name not in bounds.methods:
        raise refuse(f"method.name is {method.name!r}; this client takes {', '.join(bounds.methods) or 'none'}")
    if recipe.rounds > bounds.max_rounds:
        raise refuse(f"rounds is {recipe.rounds}; this client takes part in at most {bounds.max_rounds}")
    if recipe.clients > bounds.max_clients:
        raise refuse(f"clients is {recipe.clients}; this client takes part in runs of at most {bounds.max_clients}")
    epochs = epochs_a_round(recipe)
    if epochs > bounds.max_epochs:
        raise refuse(f"a round passes over the data {epochs} times; this client does at most {bounds.max_epochs} times")
    least, most = bounds.min_batch_size, bounds.max_batch_size
    if not least <= training.batch_size <= most:
        raise refuse(f"training.batch_size is {training.batch_size}; this client takes {least} to {most}")


def check_data(recipe: Recipe, organisation: Organisation) -> None:
    """Raises `Refused` for a recipe that is for data of another shape, or with other classes, than the organisation's.

    An organisation that gives only the number of its classes takes any names.
    """
    if not isinstance(data := recipe.data, AtClients):
        return
    if tuple(data.shape) != organisation.data.shape:
        raise refuse(f"the recipe is for samples of shape {tuple(data.shape)}, and this client's have another")
    tokens = organisation.data.vocabulary
    if (data.vocabulary is None) != (tokens is None):
        is_for, has = ("numbers", "tokens") if data.vocabulary is None else ("tokens", "numbers")
        raise refuse(f"the recipe is for {is_for}, and this client has {has}; data.vocabulary in the recipe says which")
    if tokens is not None and data.vocabulary is not None and tokens > data.vocabulary:
        raise refuse(f"the recipe is for tokens below {data.vocabulary} (data.vocabulary), and this client has larger ones")
    own = organisation.config.classes
    if own != (data.classes if isinstance(own, list) else len(data.classes)):
        raise refuse(f"the recipe is for {len(data.classes)} classes, and this client's are not the same")


class Messages:
    """The forms of a run's messages, checked against the bounds."""

    def __init__(self, terms: Terms, bounds: Bounds) -> None:
        self.bounds = bounds
        self.answer: MessageForm = terms.answer_form
        self.upload: MessageForm = terms.upload_form
        for name in self.upload_tensors:
            self._check_may_leave(name)
        largest = sum(max((sum(map(_most, choice.values())) for choice in group), default=0) for group in self.upload)
        if largest > bounds.max_parameters:
            raise refuse(f"an upload may have {largest} numbers; this client sends at most {bounds.max_parameters}")

    @property
    def upload_tensors(self) -> dict[str, TensorForm]:
        """All tensors that an upload may have."""
        return {name: form for group in self.upload for choice in group for name, form in choice.items()}

    def _check_may_leave(self, name: str) -> None:
        if not name.startswith(tuple(self.bounds.leaves)):
            raise refuse(f"an upload has {name}, and this client lets only {', '.join(self.bounds.leaves) or 'nothing'} leave")

    def check_received(self, content: Tensors) -> None:
        """Raises `Refused` unless the server's content has the method's form, is finite, and within the bounds."""
        _check(content, self.answer, self.bounds.max_received_norm, "the content")

    def check_upload(self, content: Tensors) -> None:
        """Raises `Refused` unless an upload has the method's form, is finite, and within the bounds."""
        _check(content, self.upload, self.bounds.max_upload_norm, "the upload")
        for name in content:
            self._check_may_leave(name)
        if (count := sum(tensor.numel() for tensor in content.values())) > self.bounds.max_parameters:
            raise refuse(f"the upload has {count} numbers; this client sends at most {self.bounds.max_parameters}")


def _most(form: TensorForm) -> int:
    return math.prod(size.most if isinstance(size, UpTo) else size for size in form.shape)


def _check(content: Tensors, form: MessageForm, most: float, what: str) -> None:
    try:
        check_form(content, form)
    except UserError as error:
        raise refuse(f"{what} does not fit the recipe's method: {error}") from error
    floating = {name: tensor.double() for name, tensor in content.items() if tensor.is_floating_point()}
    for name, tensor in floating.items():
        if not torch.isfinite(tensor).all():
            raise refuse(f"{what} has {name} with values that are not finite")
    norm = math.sqrt(sum(float(tensor.square().sum()) for tensor in floating.values()))
    if not norm <= most:
        # Without the norm itself: that of an upload, which does not leave, would tell of private data.
        raise refuse(f"{what} has a norm above {most:.3g}, the most that this client takes")
