"""Starting runs: all checks come before anything is written."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from pydantic import ValidationError

from fedmrl.config import Recipe, Settings, load_named
from fedmrl.config.problems import recipe_sentence
from fedmrl.config.settings import pairs
from fedmrl.data import Dataset, Files, dataset_of, sources
from fedmrl.data.partition import PartitionTable
from fedmrl.data.sources import Given, source_of
from fedmrl.engines import RAY, EngineChoice, Setting, check_engine, engine_for
from fedmrl.errors import UserError
from fedmrl.export import InRunFolder
from fedmrl.federation import summary as summaries
from fedmrl.federation.clients import Clients
from fedmrl.federation.cluster import ClusterClients
from fedmrl.federation.folder import RunFolder, refuse_used
from fedmrl.federation.hosts import Hosts
from fedmrl.federation.server import Federation, OnRound, run_in_step
from fedmrl.federation.setup import Schedule, prepare, schedule, shared_model_notices
from fedmrl.federation.simulated import SimulatedClients, final_nets_of
from fedmrl.federation.store import check_store, choose, make_store
from fedmrl.files import output_path, user_path
from fedmrl.methods import Method
from fedmrl.models import ModelSpec, SharedSpec
from fedmrl.models.own import own_model, own_models
from fedmrl.plugins import UNREGISTERED, named_by
from fedmrl.results import DivergedRun, Outcome, RunResult

OnNotice = Callable[[str], None]
OwnModels = Any
"""Modules, functions that make one, or `ModelSpec`s, which clients get in turn; or a recipe's table of models."""


def run(
    recipe: str | Path | Recipe,
    *,
    method: str | Method | None = None,
    settings: Settings = (),
    out: str | Path | None = None,
    resume: bool = False,
    device: str = "auto",
    engine: EngineChoice = "auto",
    store: str = "auto",
    models: OwnModels = None,
    small: Any = None,
    data: Any = None,
    label: str | None = None,
    on_round: OnRound | None = None,
    on_notice: OnNotice | None = None,
    **keys: Any,
) -> RunResult:
    """Runs a recipe (an object, name, file or run's folder), with another method or other settings if given.

    Other keywords are keys of the recipe, as in `rounds=5` or `training={"lr": 0.05}`. `out` is the folder to write to.
    `data` is `(x, y)`, a torch Dataset, a DataFrame, a mapping of columns, a file, or a list with one of these for each client;
    `label` names the column of the labels. `models` has modules or functions that make one, which clients get in turn, and
    `small` is the one that all share. Rerunning the folder needs them again. `on_notice` is called with notices before the run
    starts.

    >>> import fedmrl
    >>> short = {"rounds": 1, "models.local": [{"conv1": 2, "conv2": 2, "fc1": 8, "fc2": 8}]}
    >>> run("quickstart", method=fedmrl.FedMRL(d1=4), settings=short).status
    'finished'
    """
    check_callbacks(on_round=on_round, on_notice=on_notice)
    if out is not None:
        output_path(out, "out")
    outs = None if out is None else [out]
    changes, models, small = with_keys(settings, keys, models, small)
    data = given_for(changes, data, label)
    recipe = load_named(recipe, changes, method, on_notice=on_notice or log).recipe
    done = run_seeds(
        recipe, [recipe.seed], outs=outs, resume=resume, device=device, engine=engine, store=store, models=models, small=small,
        data=data, on_round=on_round, on_notice=on_notice,
    )[0]  # fmt: skip
    if isinstance(done, DivergedRun):
        raise done.error()
    return done


def run_seeds(
    recipe: str | Path | Recipe,
    seeds: Sequence[int],
    *,
    method: str | Method | None = None,
    settings: Settings = (),
    outs: Sequence[str | Path] | None = None,
    resume: bool = False,
    device: str = "auto",
    engine: EngineChoice = "auto",
    store: str = "auto",
    models: OwnModels = None,
    small: Any = None,
    data: Any = None,
    label: str | None = None,
    keep: bool = True,
    on_round: OnRound | None = None,
    on_notice: OnNotice | None = None,
    **keys: Any,
) -> list[Outcome]:
    """Runs a recipe with several seeds together, each into its folder of `outs`, with the same results as one by one.

    Data, models and other keywords are as in `run`.

    A run that diverges is returned as a `DivergedRun`; the others continue. `on_round` is called with the mean over seeds.
    Each seed's records have the times of all seeds together. Tables with missing numbers and `data.standardise_from` give each
    seed other numbers: such seeds run one after another, and `on_round` is called with the rounds of each. Unless `keep`,
    clients' states are deleted at the end.
    """
    begun = time.monotonic()
    check_callbacks(on_round=on_round, on_notice=on_notice)
    check_flags(resume=resume, keep=keep)
    changes, models, small = with_keys(settings, keys, models, small)
    check_seeds(seeds)
    check_engine(engine)
    check_store(store)
    data = given_for(changes, data, label)
    recipe = load_named(recipe, changes, method).recipe
    on_notice = on_notice or log
    paths = _paths(seeds, outs)
    for path in paths:
        if path is not None and not resume:
            refuse_used(path)
    if data is not None:
        recipe = with_data(recipe, data, on_notice)
        data = sources.with_moments(data, recipe.data)
    recipe, models, small = with_models(recipe, models, small)
    place = _device_for(engine, device)
    seeded = [recipe.model_copy(update={"seed": int(seed)}) for seed in seeds]
    if data is None and (recipe.models.own is None or models is not None):
        data = sources.load(recipe.data)
    prepared = _prepared(seeded, data, lambda of_seed: prepare(of_seed, place, models, data, small))
    if prepared is None:
        what = "are standardised" if recipe.data.standardise_from is not None else "have missing numbers filled"
        said: set[str] = set()
        on_notice(f"the seeds run one after another, as the samples {what} by each one's own training samples")

        def once(line: str) -> None:
            if line not in said:
                said.add(line)
                on_notice(line)

        alone = partial(
            run_seeds, recipe, resume=resume, device=device, engine=engine, store=store, models=models, small=small, data=data,
            keep=keep, on_round=on_round, on_notice=once,
        )  # fmt: skip
        return [alone([seed], outs=outs and [outs[place]])[0] for place, seed in enumerate(seeds)]
    schedules = [schedule(of_seed) for of_seed in seeded]
    recipe.aggregation.check(min(map(len, schedules[0])))
    for line in (*prepared[0].data.notices, *_needed_again(recipe)):
        on_notice(line)
    if not isinstance(engine, str):  # one that makes none is refused before anything is written
        engine_for(engine, *prepared)
    on_round = on_round or (lambda _: None)
    with ExitStack() as stack:
        hosts = None
        if engine == RAY:  # a cluster that cannot be used is reported before anything is written
            hosts = stack.enter_context(closing(Hosts(prepared, recipe.imports, store, on_notice)))
        folders = _opened(paths, seeded, prepared, resume)
        for folder in folders:
            if folder is not None:
                stack.callback(folder.close)
        clients_of = partial(_clients, engine=engine, hosts=hosts, store=store, tell=on_notice)
        return _run_all(seeded, prepared, schedules, folders, resume, clients_of, keep, on_round, on_notice, begun)


def _prepared(seeded: Sequence[Recipe], data: Dataset | None, prepare_one: Callable[[Recipe], Setting]) -> list[Setting] | None:
    """The checked setting of each seed; None if each has other numbers, as engines train runs together only on the same."""
    first = prepare_one(seeded[0])
    if len(seeded) == 1 or first.data is data:
        return [first, *map(prepare_one, seeded[1:])]
    for of_seed in seeded[1:]:  # checked before anything is written; the copies of the data are not kept
        prepare_one(of_seed)
    return None


def _device_for(engine: EngineChoice, device: str) -> torch.device:
    """The device of that name; a Ray cluster trains on CPUs."""
    if engine != RAY:
        return pick_device(device)
    if device not in ("auto", "cpu"):
        pick_device(device)
        raise UserError(f"device is {device} and engine is {RAY!r}, which trains on CPUs; leave out one of them")
    return torch.device("cpu")


def with_keys(settings: Settings, keys: Mapping[str, Any], models: Any, small: Any) -> tuple[dict[str, Any], Any, Any]:
    """The changes to a recipe from settings and keywords; tables of models, and a shared model by name, are changes, too."""
    tables = {"models": models} if isinstance(models, Mapping) else {}
    changes = dict(pairs(settings))
    for key, value in (*keys.items(), *tables.items()):
        changes |= {f"{key}.{name}": of_it for name, of_it in value.items()} if isinstance(value, Mapping) else {key: value}
    if isinstance(small, str | Mapping):
        changes["models.small"], small = small, None
    return changes, None if tables else models, small


def given_dataset(data: Any, label: str | None, size: Any = None) -> Dataset | None:
    """The user's data as a dataset; `size` is what the settings have as `data.size`, for image folders."""
    if data is None:
        if label is not None:
            raise UserError("label is for data that is given, and there is none; give data, or leave label out")
        return None
    listed = data if isinstance(data, list) else [data]
    if listed and all(isinstance(one, str | Path) for one in listed):  # a recipe can name them, so that it can be run again
        paths = [str(user_path(output_path(one, "data"), "data").absolute()) for one in listed]
        plain = {"files": paths, "label": label, "size": size}
        try:
            return sources.load(Files.model_validate(plain))
        except ValidationError as error:
            raise UserError(recipe_sentence(error, plain, "settings", {"data": Files}, prefix="data.")) from error
    if size is not None:
        raise UserError("data.size is for image folders, and data is none; leave data.size out")
    return dataset_of(data, label)


def given_for(changes: dict[str, Any], data: Any, label: str | None) -> Dataset | None:
    """The user's data as a dataset that fits the changes to a recipe; takes `data.size` out of them, as it is for reading."""
    found = given_dataset(data, label, None if data is None else changes.pop("data.size", None))
    check_clients(changes, found)
    return found


def check_clients(changes: Mapping[str, Any], data: Dataset | None) -> None:
    """Raises `UserError` if another number of clients is asked for than has data."""
    if data is None or data.owners is None or changes.get("clients", len(data.owners)) == len(data.owners):
        return
    raise UserError(f"clients is {changes['clients']!r:.40}, and data has that of {len(data.owners)}; leave clients out")


def with_models(recipe: Recipe, models: Any, small: Any) -> tuple[Recipe, Sequence[ModelSpec] | None, SharedSpec | None]:
    """The recipe with the names of models from Python, the model of each client, and the shared one."""
    changes: dict[str, Any] = {}
    if models is not None:
        models = own_models(models, recipe.clients)
        changes["own"] = [spec.label for spec in models]
    if small is not None:
        small = own_model(small, "small", "small")
        changes["own_small"] = small.label
    table = recipe.models.model_copy(update=changes)
    return recipe.model_copy(update={"models": table}) if changes else recipe, models, small


def with_data(recipe: Recipe, data: Dataset, tell: OnNotice = lambda line: None) -> Recipe:
    """The recipe of a run on this dataset. One that was run on data from Python takes no other."""
    own, asked = source_of(data), recipe.data
    given = {name: values for name in ("mean", "std") if (values := getattr(asked, name)) is not None}
    if given and not isinstance(asked, Given) and any(getattr(own, name) != values for name, values in given.items()):
        tell(f"the data is standardised by {' and '.join(f'data.{name}' for name in given)} of the recipe")
    source = own.model_copy(update={"standardise_from": asked.standardise_from, **given})
    if isinstance(recipe.data, Given) and source != recipe.data:
        raise UserError(
            f"data is not what this recipe was run on ({recipe.data.called}, SHA-256 {recipe.data.sha256[:12]}…): it is "
            f"{source.title}; give the same, or begin with another recipe"
        )
    if data.owners is None:
        return recipe.model_copy(update={"data": source})
    clients = len(data.owners)
    changes: dict[str, Any] = {"data": source, "clients": clients}
    changes["partition"] = PartitionTable(kind="own", test_share=recipe.partition.test_share)
    if isinstance(recipe.participation, float) and clients > 1 and round(recipe.participation * clients) < 2:
        tell(f"participation is {recipe.participation:g}, less than two of {clients} clients; all take part in each round")
        changes["participation"] = 1.0
    return recipe.model_copy(update=changes)


def _needed_again(recipe: Recipe) -> Iterator[str]:
    """A line for each object given from Python, which a rerun needs again."""
    if isinstance(recipe.data, Given):
        yield f"the data ({recipe.data.called}) was given from Python: a rerun needs it again, and takes no other"
    for key, origin in recipe.origins.items():
        if origin.startswith(UNREGISTERED):
            table, _, of_model = key.partition(".")[0].partition(" ")
            name = of_model or named_by(getattr(recipe, table))
            what = "model" if of_model else table
            yield f"the {what} {name!r} was given from Python and is not registered: a rerun needs it again"


def log(line: str) -> None:
    """Writes a notice to the logger `fedmrl`; unless logging is configured, it appears on stderr."""
    logging.getLogger("fedmrl").warning(line)


def check_callbacks(**callbacks: Any) -> None:
    """Raises `UserError` for arguments that cannot be called."""
    for name, function in callbacks.items():
        if function is not None and not callable(function):
            raise UserError(f"{name} is {function!r:.80}; it must be a function, as in {name}=print")


def check_flags(**flags: Any) -> None:
    """Raises `UserError` for arguments that are neither true nor false."""
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise UserError(f"{name} is {value!r:.80}; it must be True or False")


def check_seeds(seeds: Any) -> None:
    """Raises `UserError` unless these are different whole numbers."""
    several = isinstance(seeds, Sequence) or (isinstance(seeds, np.ndarray) and seeds.ndim == 1)
    whole = several and all(isinstance(seed, int | np.integer) and seed >= 0 and seed is not True for seed in seeds)
    if not whole or len(set(seeds)) < len(seeds):
        raise UserError(f"seeds is {seeds!r:.80}; give whole numbers from 0, each once, as in [0, 1, 2]")
    if not len(seeds):
        raise UserError("seeds is empty; name at least one")


class _Place(NamedTuple):
    """The clients of runs, with where they are, for the results."""

    clients: Clients
    engine: str
    device: str
    notices: Sequence[str]
    store: Sequence[str]
    """A notice on where clients' states are kept."""


def _clients(
    settings: Sequence[Setting],
    runs: Sequence[int],
    folders: Sequence[Path | None],
    *,
    engine: EngineChoice,
    hosts: Hosts | None,
    store: str,
    tell: OnNotice,
) -> _Place:
    """The clients of these runs, with their checkpoints' folders, on this machine or on the cluster."""
    chosen = [settings[run] for run in runs]
    if hosts is not None:
        hosts.hold(runs)
        return _Place(ClusterClients(chosen, hosts, folders), RAY, hosts.device, hosts.notices, [])
    device = settings[0].device
    where, line = choose(store, chosen[0], len(chosen[0].members) * len(runs))
    clients = SimulatedClients(chosen, engine, [make_store(where, device, folder) for folder in folders], tell)
    return _Place(clients, clients.engine.name, summaries.device_name(device), clients.engine.notices, [line])


def _run_all(
    seeded: Sequence[Recipe],
    settings: Sequence[Setting],
    schedules: Sequence[Schedule],
    folders: Sequence[RunFolder | None],
    resume: bool,
    clients_of: Callable[[Sequence[Setting], Sequence[int], Sequence[Path | None]], _Place],
    keep: bool,
    on_round: OnRound,
    on_notice: OnNotice,
    begun: float,
) -> list[Outcome]:
    """Runs the seeds, once everything is checked and the folders exist."""
    done: dict[int, Outcome] = {}
    for number, folder in enumerate(folders):
        if resume and folder is not None and (result := folder.finished(on_notice)):
            nets = final_nets_of(settings[number], InRunFolder(folder.path, result.rounds)) if keep else None
            done[number] = result.model_copy(update={"nets": nets})
    if left := [number for number in range(len(seeded)) if number not in done]:
        checkpoints = [folder.checkpoint.folder if (folder := folders[number]) else None for number in left]
        place = clients_of(settings, left, checkpoints)
        clients, device = place.clients, settings[0].device
        try:
            chosen = shared_model_notices(seeded[left[0]], settings[left[0]])
            for notice in (*place.notices, *chosen, *place.store):
                on_notice(notice)
            runs = []
            for run, number in enumerate(left):
                now = None
                if folder := folders[number]:
                    folder.concurrent_runs, folder.keeps = len(left) - 1, keep
                    now = folder.load(device, partial(clients.restore, run), on_notice)
                runs.append(
                    Federation(
                        seeded[number], settings[number].terms, clients, schedules[number], number=run, now=now, folder=folder,
                        ran_on=(place.engine, place.device), together=len(left), begun=begun, keeps=keep,
                    )
                )  # fmt: skip
            done |= dict(zip(left, run_in_step(clients, runs, on_round), strict=True))
        finally:
            clients.close()
    return [done[number] for number in range(len(seeded))]


def _paths(seeds: Sequence[int], outs: Sequence[str | Path] | None) -> Sequence[Path | None]:
    """The folder of each seed, or None to write nothing."""
    if outs is None:
        return [None] * len(seeds)
    named = list(outs) if isinstance(outs, Sequence) and not isinstance(outs, str | bytes) else []
    if len(named) != len(seeds):
        raise UserError(f"outs must name a folder for each of the {len(seeds)} seeds, all different; it is {outs!r:.80}")
    paths = [output_path(out, f"outs[{place}]") for place, out in enumerate(named)]
    if len(set(paths)) < len(paths):
        raise UserError(f"outs must name a folder for each of the {len(seeds)} seeds, all different; it is {outs!r:.80}")
    return paths


def _opened(
    paths: Sequence[Path | None], recipes: Sequence[Recipe], settings: Sequence[Setting], resume: bool
) -> list[RunFolder | None]:
    """Opens each run's folder, existing ones first, so that an error there leaves no new folder behind."""
    found: dict[int, RunFolder] = {}
    try:
        for resumes in (True, False):
            for number, (path, recipe, setting) in enumerate(zip(paths, recipes, settings, strict=True)):
                if path is not None and resumes is (resume and _resumes(path, len(paths))):
                    found[number] = (RunFolder.reopen if resumes else RunFolder.create)(
                        path, recipe, [*setting.members.values()]
                    )
    except BaseException:
        for folder in found.values():
            folder.close()
        raise
    return [found.get(number) for number in range(len(paths))]


def _resumes(path: Path, runs: int) -> bool:
    """Whether to resume from a folder; one of several runs, or one killed while its folder was made, starts again."""
    return (path / "config.toml").exists() or (runs == 1 and not (path / "rounds.jsonl").exists())


def pick_device(name: str) -> torch.device:
    """The device of that name, if available."""
    if isinstance(name, str) and name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if not isinstance(name, str) or name not in ("cpu", "cuda"):
        raise UserError(f"device is {name!r:.80}; choose auto, cpu or cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError("device is cuda, and torch finds no CUDA device here; use cpu or auto")
    return torch.device(name)
