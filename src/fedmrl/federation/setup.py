"""Preparing a run from its recipe, with all checks, before anything is written."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedmrl.config import Recipe
from fedmrl.data import Dataset, sources
from fedmrl.data.partition import partition
from fedmrl.engines import Member, Setting, Terms
from fedmrl.engines.base import DTYPES, failures_told
from fedmrl.errors import CODE_FAILS, UserError, cause
from fedmrl.federation.trial import needs_trial, try_out
from fedmrl.files import read_json, user_path
from fedmrl.guard import is_line
from fedmrl.memory import format_bytes, free_bytes
from fedmrl.methods import Batch, ClientNet, Common, Header
from fedmrl.models import CNN, MLP, Model, ModelSpec, OwnModel, SharedSpec, Split, Text, is_own
from fedmrl.models.shared import shared_beside
from fedmrl.models.split import WithinMemory, check_split
from fedmrl.privacy import check_privacy
from fedmrl.randomness import generator, host_seeded, torch_seeded

Schedule = list[list[int]]


def prepare(
    recipe: Recipe,
    device: torch.device,
    models: Sequence[ModelSpec] | None = None,
    data: Dataset | None = None,
    small: SharedSpec | None = None,
) -> Setting:
    """Loads the data (unless given), partitions it, and checks that the method supports the models."""
    if recipe.models.own is not None and models is None:
        raise UserError(
            f"this recipe's models were given from Python ({', '.join(dict.fromkeys(recipe.models.own))}); run it "
            "there, with fedmrl.run(recipe, models=…)"
        )
    if recipe.models.own_small is not None and small is None:
        raise UserError(
            f"this recipe's shared model was given from Python ({recipe.models.own_small}); run it there, with "
            "fedmrl.run(recipe, small=…)"
        )
    recipe.to_toml()  # raises `UserError` if it cannot be written
    data = sources.with_moments(data, recipe.data) if data else sources.load(recipe.data)
    _check_augmentation(recipe, data)
    splits = partition(recipe.partition, data, recipe.clients, recipe.seed)
    if data.missing is not None or recipe.data.standardise_from is not None:
        data = data.of_training(np.concatenate([own.train for own in splits]), recipe.data.standardise_from is not None)
    chosen = models if models is not None else recipe.models.of_clients(recipe.clients)
    specs = [for_data(spec, data) for spec in chosen]
    if len(specs) != recipe.clients:
        raise UserError(f"{len(specs)} models were given for {recipe.clients} clients; give one for each")
    for client, spec in enumerate(specs):
        _check_spec(client, spec)
    members = {k: Member(own.train, own.test, spec) for k, (own, spec) in enumerate(zip(splits, specs, strict=True))}
    _check_memory(recipe, specs, data, device)
    forms = {spec: _form(spec, data, recipe.seed) for spec in dict.fromkeys(specs)}
    named = recipe.models.shared if models is None or recipe.models.small != "auto" else None
    shared = small or named or _shared_among(forms, data)
    common = Common(data.shape, len(data.classes), for_data(shared, data), Header.of(forms[specs[0]]))
    terms = recipe.terms(common)
    setting = Setting(terms, data, members, device)
    _check_models(setting, forms, _clients_a_round(recipe))
    if recipe.privacy is not None:
        check_privacy(recipe.privacy, recipe.clients, schedule(recipe)[0], terms.server_start(torch.device("cpu")))
    return setting


S = TypeVar("S", bound=ModelSpec)


def for_data(spec: S, data: Dataset) -> S:
    """The model as it is built for this data; raises `UserError` for one of fedmrl's that does not take such inputs."""
    if isinstance(spec, OwnModel):
        return replace(spec, vocabulary=data.vocabulary)
    if data.vocabulary is not None and isinstance(spec, CNN | MLP) and not is_own(spec):
        raise UserError(
            f"{spec.label} takes numbers, and {data.name} has tokens, as its x is whole numbers of 64 bits; choose the model "
            f"{{name = 'text', vocabulary = {data.vocabulary}}}, or give x as floats"
        )
    if isinstance(spec, Text) and (data.vocabulary is None or spec.vocabulary < data.vocabulary):
        has = "no tokens, which are" if data.vocabulary is None else f"tokens up to {data.vocabulary - 1}, all"
        raise UserError(
            f"{spec.label} has a vocabulary of {spec.vocabulary}, and {data.name} has {has} whole numbers of 64 bits"
        )
    return spec


def _check_spec(client: int, spec: ModelSpec) -> None:
    """Raises `UserError` for a kind of model without a label, or that cannot be a dictionary's key."""
    if not is_own(spec):
        return
    where = f"client {client}'s model ({type(spec).__name__})"
    try:
        label = spec.label
        hash(spec)
    except UserError:
        raise
    except CODE_FAILS as error:
        raise UserError(f"{where} cannot be used ({cause(error)}); mend it") from error
    if not is_line(label):
        raise UserError(f"{where} has the label {label!r}; it must be a line of text")


def prepare_alone(recipe: Recipe, device: torch.device, client: int, member: Member, data: Dataset) -> Setting:
    """The setting of one client that sees no other, with the checks of `prepare`. Its numbers are those that the client has
    among others.
    """
    _check_augmentation(recipe, data)
    if recipe.models.shared is None:
        raise UserError("models.small is 'auto', and clients that do not see each other's models cannot choose it; name it")
    _check_spec(client, member.model)
    member = replace(member, model=for_data(member.model, data))
    _check_memory(recipe, [member.model], data, device)
    form = _form(member.model, data, recipe.seed)
    common = Common(data.shape, len(data.classes), for_data(recipe.models.shared, data), Header.of(form))
    terms = recipe.terms(common)
    setting = Setting(terms, data, {client: member}, device)
    _check_models(setting, {member.model: form}, _clients_a_round(recipe))
    return setting


def _clients_a_round(recipe: Recipe) -> int:
    if isinstance(recipe.participation, str):
        return len(schedule(recipe.model_copy(update={"rounds": 1}))[0])
    return _sampled(recipe.participation, recipe.clients)


def _sampled(participation: float, clients: int) -> int:
    """How many clients a round samples."""
    return max(1, round(participation * clients))


def _check_augmentation(recipe: Recipe, data: Dataset) -> None:
    if recipe.training.augment.active and len(data.shape) != 3:
        raise UserError(f"training.augment is for images, and {data.name} has samples of shape {data.shape}; leave it out")


def _shared_among(forms: Mapping[ModelSpec, Split], data: Dataset) -> SharedSpec:
    """The smallest of clients' models that can be shared; else one that is no larger than any of them."""
    can_be_shared = [spec for spec in forms if isinstance(spec, Model) and type(spec).with_dim is not Model.with_dim]
    if can_be_shared:
        return min(can_be_shared, key=lambda spec: _size(forms[spec]))
    return shared_beside(min(map(_size, forms.values())), data.shape, len(data.classes), data.vocabulary)


def shared_model_notices(recipe: Recipe, setting: Setting) -> list[str]:
    """A line that names the shared model, if it was chosen by the size of the clients' own."""
    if recipe.models.shared is not None or recipe.models.own_small is not None:
        return []
    small = dict(setting.fresh_net(next(iter(setting.members))).named_children()).get("small")
    if not isinstance(small, Split):
        return []
    label, size = setting.terms.common.small.with_dim(small.dim).label, _size(small)
    return [
        f"the model that all clients share is {label} with {size:,} parameters, chosen by the size of their own; set "
        "models.small to choose another"
    ]


def _size(model: nn.Module) -> int:
    """The number of trainable parameters."""
    return sum(parameter.numel() for parameter in model.parameters())


def _check_memory(recipe: Recipe, specs: Sequence[ModelSpec], data: Dataset, device: torch.device) -> None:
    """Raises `UserError` for models that do not fit into memory, by size alone: building one would kill the process.

    The checks build one of each kind; training takes the weights, their gradients and the new state. Clients' states do not
    count, as those that do not fit are kept on disk.
    """
    shares = "small" in recipe.method.parts and recipe.models.small != "auto"
    kinds = dict.fromkeys([*specs, *([recipe.models.shared] if shares else [])])
    itemsize = DTYPES[recipe.training.precision].itemsize
    sizes = [
        (itemsize * spec.parameters(data.shape, len(data.classes)), spec.label)
        for spec in kinds
        if isinstance(spec, CNN | MLP | Text) and not is_own(spec)
    ]
    largest, label = max(sizes, default=(0, ""))
    for place in dict.fromkeys((torch.device("cpu"), device)):
        needed = max(3 * largest, sum(size for size, _ in sizes) if place.type == "cpu" else 0)
        if needed > (free := free_bytes(place)):
            where = "memory" if place.type == "cpu" else "GPU memory"
            raise UserError(
                f"the models need {format_bytes(needed)} of {where} (the largest, {label}, has {format_bytes(largest)}), and "
                f"{format_bytes(free)} are free; choose smaller ones in models.local and models.small"
            )


def _form(model: ModelSpec, data: Dataset, seed: int) -> Split:
    """A model of this kind on the meta device, for its shapes."""
    with host_seeded(seed, "form"), failures_told([model], "models", "is made"):
        made = model.build(data.shape, len(data.classes))
        if is_own(model):
            check_split(made, data.blank(2, torch.device("cpu"), torch.float32), len(data.classes))
        return made.to("meta")


def joined(setting: Setting, client: int, member: Member) -> Setting:
    """The setting with a client more; raises `UserError` if the method cannot serve its model beside the others'."""
    member = replace(member, model=for_data(member.model, setting.data))
    whole = replace(setting, members={**setting.members, client: member})
    _check_models(whole, {spec: _form(spec, setting.data, setting.seed) for spec in whole.models}, len(whole.members))
    return whole


def _check_models(setting: Setting, forms: Mapping[ModelSpec, Split], clients_a_round: int) -> None:
    """Builds one net of each kind and raises `UserError` for models and methods that fail."""
    specs = [member.model for member in setting.members.values()]
    # The method's own check comes first: with shapes that do not match, building a net would fail with torch's message.
    labels = {spec: f"model {spec.label!r}" if is_own(spec) else spec.label for spec in forms}
    setting.method.check([forms[spec] for spec in specs], [labels[spec] for spec in specs])
    nets: dict[ModelSpec, ClientNet] = {}
    for spec, client in setting.models.items():
        with failures_told([spec], f"client {client}", "is made"), WithinMemory(f"a client's net with {spec.label}"):
            nets[spec] = setting.fresh_net(client)
    if needs_trial(setting):
        try_out(setting, clients_a_round)
    for spec, client in setting.models.items():
        _check_kind(setting, client, nets[spec])
    clients = [nets[spec] for spec in specs]
    tried: set[ModelSpec] = set()
    for client, spec, net in zip(setting.members, specs, clients, strict=True):
        try:
            cuts = setting.subsets(client)
        except UserError as error:
            raise UserError(f"client {client}: {error}") from error
        trains = {phase.subset for phase in setting.method.phases(setting.training, earlier=1) if "local" in phase.lr}
        single = any((len(cuts[subset]) - 1) % setting.training.batch_size == 0 for subset in trains)
        if single and any(isinstance(module, _BatchNorm) for module in net.modules()):
            raise UserError(
                f"client {client}'s model ({spec.label}) normalises over the batch, and with "
                f"training.batch_size = {setting.training.batch_size} its last batch has a single sample; choose another"
            )
        if single and spec not in tried and is_own(spec):
            tried.add(spec)
            size = f"with training.batch_size = {setting.training.batch_size} its last batch has one sample; choose another"
            _try_out(setting, client, 1, f" on a single sample, and {size}")


def _check_kind(setting: Setting, client: int, net: ClientNet) -> None:
    """Raises `UserError` for a model that cannot be trained, or whose random buffers are missing from its state."""
    spec = setting.members[client].model
    label, persistent = spec.label, net.state_dict()
    non_persistent = {name: buffer for name, buffer in net.named_buffers() if name not in persistent}
    if non_persistent:
        terms = replace(setting.terms, seed=setting.seed + 1)
        other = dict(replace(setting, terms=terms).fresh_net(client).named_buffers())
        for name, buffer in non_persistent.items():
            if not torch.equal(buffer, other[name]):
                raise UserError(f"{label}: {name} is drawn at random and not kept in its state; register it as persistent")
    if is_own(spec):
        _try_out(setting, client, 2)


def _try_out(setting: Setting, client: int, samples: int, when: str = "") -> None:
    """Raises `UserError` if a user's model cannot be trained on a batch of this many samples."""
    label = setting.members[client].model.label
    x = setting.data.blank(samples, setting.device, setting.dtype)
    y_B = torch.zeros(samples, dtype=torch.long, device=setting.device)
    for phase in setting.method.phases(setting.training, earlier=1):
        trial = setting.fresh_net(client)
        trial.learn(phase.lr)
        try:
            with torch_seeded(setting.seed, "trial"):
                outcome = phase.loss(trial, Batch(x, y_B))
        except UserError:
            raise
        except CODE_FAILS as error:
            raise UserError(f"client {client}'s model ({label}) cannot be trained{when} ({cause(error)})") from error
        loss = outcome[0] if isinstance(outcome, tuple) else outcome
        if not loss.requires_grad:
            raise UserError(f"{label} has nothing that can be trained: all of it is frozen; leave one layer trainable")


def schedule(recipe: Recipe, clients: Sequence[int] | None = None) -> Schedule:
    """The clients of each round: sampled from `clients` (default: the recipe's), or read from the recipe's file."""
    clients = range(recipe.clients) if clients is None else clients
    if isinstance(recipe.participation, str):
        return _given(recipe, user_path(recipe.participation, "participation"))
    count = _sampled(recipe.participation, len(clients))
    if count == len(clients):  # all rounds share one list, as copies would fill memory
        return [sorted(clients)] * recipe.rounds
    return [
        np.sort(generator(recipe.seed, "sampling", r).choice(clients, count, replace=False)).tolist()
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


def terms_elsewhere(recipe: Recipe, shape: Sequence[int], classes: Sequence[str], vocabulary: int | None = None) -> Terms:
    """What a server that has no client's data or model knows before the first round."""
    if recipe.models.shared is None:
        raise UserError("models.small is 'auto', and a server that does not see clients' models cannot choose it; name it")
    x, ones = np.zeros((1, *shape), np.float32 if vocabulary is None else np.int64), np.ones(shape[0])
    y = np.zeros(1, np.int64)
    form_only = Dataset("the clients' own data", x, y, tuple(classes), 1, 0 * ones, ones, vocabulary=vocabulary)
    header = Header.of(_form(for_data(recipe.models.kinds[0], form_only), form_only, recipe.seed))
    common = Common(form_only.shape, len(classes), for_data(recipe.models.shared, form_only), header)
    return recipe.terms(common)
