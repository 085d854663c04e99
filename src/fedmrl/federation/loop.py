"""The round loop: sample, answer, train, aggregate, evaluate, record; for one run, or for several seeds of it as one."""

import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from fedmrl.config import Recipe
from fedmrl.data import Dataset, sources
from fedmrl.engines import Engine, Outcome, Right, Setting, Turn, check_engine, engine_for
from fedmrl.errors import DivergedError, InterruptedRun, UserError
from fedmrl.federation import summary as summaries
from fedmrl.federation.checkpoint import Snapshot
from fedmrl.federation.first import FirstNets
from fedmrl.federation.folder import RunFolder, refuse_used
from fedmrl.federation.setup import Schedule, prepare, schedule
from fedmrl.federation.stopwatch import Stopwatch
from fedmrl.federation.store import DeviceStore, Kept, Store, check_store, choose, make_store
from fedmrl.messages import Size, Tensors, Upload, copy, sha256, size
from fedmrl.methods import Round
from fedmrl.metrics.flops import FlopCounter
from fedmrl.models import ModelSpec

OnRound = Callable[[Mapping[str, Any]], None]
OnNotice = Callable[[str], None]

_LOADED = 128 * 1024**2  # bytes of states that are fetched for an evaluation at once, if they do not lie on the device
_ANSWERED = 500  # clients that are answered at once for an evaluation


@dataclass(frozen=True)
class Run:
    """What a run gave: its summary, a record of each round, and where it lies if it was written."""

    recipe: Recipe
    summary: dict[str, Any]
    records: tuple[dict[str, Any], ...]
    folder: Path | None


def run(
    recipe: Recipe,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    device: str = "auto",
    engine: str = "auto",
    store: str = "auto",
    models: Sequence[ModelSpec] | None = None,
    data: Dataset | None = None,
    on_round: OnRound | None = None,
    on_notice: OnNotice | None = None,
) -> Run:
    """Run a recipe; with `out`, into that folder. `models` gives each client a local model of one's own; `data` is
    what the recipe names, where that is loaded already; `on_notice` hears what is worth knowing before it starts.

    >>> from fedmrl import load_recipe
    >>> short = {"rounds": 1, "models.local": [{"conv1": 2, "conv2": 2, "fc1": 8, "fc2": 8}], "method.d1": 4}
    >>> run(load_recipe("quickstart", short)).summary["status"]
    'finished'
    """
    if out is not None and (not isinstance(out, str | Path) or not str(out)):
        raise UserError(f"out is {out!r}; it must be the name of a folder, or None to write nothing")
    outs = None if out is None else [out]
    _check_types(recipe, (), None, None, {})
    done = run_seeds(
        recipe, [recipe.seed], outs=outs, resume=resume, device=device, engine=engine, store=store, models=models, data=data,
        on_round=on_round, on_notice=on_notice,
    )[0]  # fmt: skip
    if isinstance(done, DivergedError):
        raise done
    return done


def run_seeds(
    recipe: Recipe,
    seeds: Sequence[int],
    *,
    outs: Sequence[str | Path] | None = None,
    resume: bool = False,
    device: str = "auto",
    engine: str = "auto",
    store: str = "auto",
    models: Sequence[ModelSpec] | None = None,
    data: Dataset | None = None,
    keep: bool = True,
    on_round: OnRound | None = None,
    on_notice: OnNotice | None = None,
) -> list[Run | DivergedError]:
    """Run a recipe with several seeds as one, each into its folder of `outs`: every run gives what it would give alone.

    One that diverges is returned as its error, and the others go on. `on_round` hears the mean over the seeds. What a round
    takes is that of all of them together, in each one's records. Without `keep`, clients' states are dropped when all is done.
    """
    begun = time.monotonic()
    _check_types(recipe, seeds, models, data, {"on_round": on_round, "on_notice": on_notice})
    check_engine(engine)
    check_store(store)
    on_notice = on_notice or (lambda _: None)
    paths = _paths(seeds, outs)
    for path in paths:
        if path is not None and not resume:
            refuse_used(path)
    if models is not None:
        table = recipe.models.model_copy(update={"own": [spec.label for spec in models]})
        recipe = recipe.model_copy(update={"models": table})
    place = pick_device(device)
    seeded = [recipe.model_copy(update={"seed": int(seed)}) for seed in seeds]
    if recipe.models.own is None or models is not None:
        data = data or sources.load(recipe.data)
    settings = [prepare(one, place, models, data) for one in seeded]
    schedules = [schedule(one) for one in seeded]
    folders = _opened(paths, seeded, settings, resume)
    on_round = on_round or (lambda _: None)
    try:
        return _run_all(seeded, settings, schedules, folders, resume, engine, store, keep, on_round, on_notice, begun)
    finally:
        for folder in folders:
            if folder is not None:
                folder.close()


def _check_types(recipe: Any, seeds: Any, models: Any, data: Any, heard: Mapping[str, Any]) -> None:
    """Refuse what is of another type than it must be: deep inside it would fail where nobody can tell why."""
    if not isinstance(recipe, Recipe):
        raise UserError(f"recipe is {recipe!r}; give a fedmrl.Recipe, as fedmrl.load_recipe makes it")
    several = isinstance(seeds, Sequence | np.ndarray)
    whole = several and all(isinstance(seed, int | np.integer) and seed >= 0 and seed is not True for seed in seeds)
    if not whole or len(set(seeds)) < len(seeds):
        raise UserError(f"seeds is {seeds!r}; give whole numbers from 0, each once, as in [0, 1, 2]")
    if models is not None:
        listed = models if isinstance(models, Sequence) and not isinstance(models, str) else [models]
        for client, model in enumerate(listed):
            if isinstance(model, type | nn.Module) or not isinstance(model, ModelSpec):
                raise UserError(
                    f"models: client {client}'s is a {type(model).__name__}; give a list with a fedmrl.OwnModel for each "
                    "client, which says how one is made, as in fedmrl.OwnModel('net', lambda: Net(), last='fc')"
                )
    if data is not None and not isinstance(data, Dataset):
        raise UserError(f"data is a {type(data).__name__}; leave it out, or give a fedmrl.data.Dataset")
    for name, function in heard.items():
        if function is not None and not callable(function):
            raise UserError(f"{name} is {function!r}; it must be a function, as in {name}=print")


def _run_all(
    seeded: Sequence[Recipe],
    settings: Sequence[Setting],
    schedules: Sequence[Schedule],
    folders: Sequence[RunFolder | None],
    resume: bool,
    engine: str,
    store: str,
    keep: bool,
    on_round: OnRound,
    on_notice: OnNotice,
    begun: float,
) -> list[Run | DivergedError]:
    """The same, when all is checked and every folder is there."""
    done: dict[int, Run | DivergedError] = {}
    for number, (one, folder) in enumerate(zip(seeded, folders, strict=True)):
        if resume and folder is not None and (summary := folder.finished(on_notice)):
            done[number] = Run(one, summary, folder.records(one.rounds), folder.path)
    if left := [number for number in range(len(seeded)) if number not in done]:
        working = engine_for(engine, *(settings[number] for number in left))
        working.tell = on_notice
        for line in working.notices:
            on_notice(line)
        where, line = choose(store, settings[left[0]], seeded[0].clients * len(left))
        on_notice(line)
        working.foresee([schedules[number] for number in left])
        federations: list[Federation] = []
        for number in left:
            folder = folders[number]
            if folder:
                folder.beside, folder.keeps = len(left) - 1, keep
            kept = make_store(where, settings[number].device, folder.checkpoint.folder if folder else None)
            federations.append(
                Federation(
                    seeded[number], settings[number], schedules[number], working, folder, kept,
                    number=len(federations), together=len(left), begun=begun, tell=on_notice,
                )
            )  # fmt: skip
        try:
            done |= dict(zip(left, together(working, federations, on_round), strict=True))
        finally:
            for federation in federations:
                federation.close()
    return [done[number] for number in range(len(seeded))]


def _paths(seeds: Sequence[int], outs: Sequence[str | Path] | None) -> Sequence[Path | None]:
    """A folder for each seed, if they are to be written."""
    if outs is None:
        return [None] * len(seeds)
    named = [] if isinstance(outs, str | Path) or not isinstance(outs, Iterable) else list(outs)
    wrong = [out for out in named if not isinstance(out, str | Path) or not str(out)]
    if wrong or len(named) != len(seeds) or len(set(map(Path, named))) < len(named):
        raise UserError(f"outs must name a folder for each of the {len(seeds)} seeds, each another; it is {outs!r}")
    return [Path(out) for out in named]


def _opened(
    paths: Sequence[Path | None], recipes: Sequence[Recipe], settings: Sequence[Setting], resume: bool
) -> list[RunFolder | None]:
    """Each run's folder. Those that are there come first: what refuses one of them leaves nothing behind."""
    found: dict[int, RunFolder] = {}
    try:
        for goes_on in (True, False):
            for number, (path, recipe, setting) in enumerate(zip(paths, recipes, settings, strict=True)):
                if path is not None and goes_on is (resume and _goes_on(path, len(paths))):
                    found[number] = (RunFolder.reopen if goes_on else RunFolder.create)(path, recipe, setting.splits)
    except BaseException:
        for folder in found.values():
            folder.close()
        raise
    return [found.get(number) for number in range(len(paths))]


def _goes_on(path: Path, runs: int) -> bool:
    """Whether a folder holds a run. One of several may start anew, and one that was stopped while its folder was made."""
    return (path / "config.toml").exists() or (runs == 1 and not (path / "rounds.jsonl").exists())


def pick_device(name: str) -> torch.device:
    """The device of that name, if it is here."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name not in ("cpu", "cuda"):
        raise UserError(f"--device: there is no {name!r}; choose auto, cpu or cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError("device is cuda, and torch finds no CUDA device here; use cpu or auto")
    return torch.device(name)


@dataclass(frozen=True)
class Train:
    """A federation asks for its clients to be trained."""

    round: Round
    turns: Sequence[Turn]
    then: Sequence[Turn] = ()
    """Who is next, their states not known yet."""


@dataclass(frozen=True)
class Evaluate:
    """A federation asks for clients to be evaluated."""

    turns: Sequence[Turn]
    modes: Sequence[str]


Asks = Train | Evaluate
Answers = list[Outcome] | list[Right]


class Federation:
    """A run in progress: all that changes is in `self.now`, replaced as a whole at the end of each round.

    What needs an engine it asks for, by yielding: so that several runs can be answered at once.
    """

    def __init__(
        self,
        recipe: Recipe,
        setting: Setting,
        who: Sequence[Sequence[int]],
        engine: str | Engine,
        folder: RunFolder | None,
        store: Store | None = None,
        number: int = 0,
        together: int = 1,
        begun: float | None = None,
        tell: OnNotice = lambda line: None,
    ) -> None:
        self.recipe, self.setting, self.who, self.folder, self.number = recipe, setting, who, folder, number
        self.method = recipe.method
        self.engine = engine_for(engine, setting) if isinstance(engine, str) else engine
        self.store = store or DeviceStore(setting.device)
        self.flops = FlopCounter(setting)
        self.modes = summaries.recorded_modes(recipe)
        self.start = setting.server_start()
        self.now = (folder.load(self.store, tell) if folder else None) or Snapshot(0, self.start)
        self._check_fits(self.now)
        self._begun = (time.monotonic() if begun is None else begun) - self.now.seconds
        self._cpu_begun = time.process_time() - self.now.cpu_seconds
        self.engines = _each_once(*self.now.engines, self.engine.name)
        self.devices = _each_once(*self.now.devices, summaries.device_name(setting.device))
        facts = summaries.facts(recipe, setting, self.engines, self.devices, together)
        self.facts = {**facts, "store": self.store.where}
        self._unjoined: dict[int, Kept] = {}
        wanted = dict.fromkeys([*(client for clients in who for client in clients), *range(recipe.clients)])
        ahead = self.engine.runs_ahead and self.store.where != "disk"
        self._first = FirstNets(setting, [k for k in wanted if k not in self.now.states], ahead=ahead)

    @property
    def seconds(self) -> float:
        """Since the run began, without the time that it lay stopped."""
        return time.monotonic() - self._begun

    @property
    def cpu_seconds(self) -> float:
        """What this process has computed since then, all cores together."""
        return time.process_time() - self._cpu_begun

    @property
    def _times(self) -> dict[str, float]:
        return {"wall_seconds": self.seconds, "cpu_seconds": self.cpu_seconds}

    def close(self) -> None:
        """Stops the worker thread and closes the store."""
        self._first.close()
        self.store.close()

    def _check_fits(self, snapshot: Snapshot) -> None:
        """A state that was loaded must be one of the client's model."""
        shapes: dict[ModelSpec, dict[str, list[int]]] = {}
        for client, kept in snapshot.states.items():
            if client >= self.recipe.clients:
                raise UserError(f"the checkpoint is damaged (there is no client {client}); start it anew in another folder")
            spec = self.setting.models[client]
            if spec not in shapes:
                shapes[spec] = {name: list(t.shape) for name, t in self.setting.fresh_net(client).state_dict().items()}
            if self.store.shapes(kept) != shapes[spec]:
                raise UserError(
                    f"client {client}'s state in the checkpoint does not fit the model that it is given now ({spec.label}); "
                    "resume with the models that the run was started with"
                )

    def run(self, on_round: OnRound) -> Run:
        """Go on to the last round, and sum up."""
        done = together(self.engine, [self], on_round)[0]
        if isinstance(done, DivergedError):
            raise done
        return done

    def next_round(self) -> Snapshot:
        """One round by itself. Nothing of the present snapshot is changed: a round that is cut short leaves no trace."""
        snapshot: Snapshot = _answered(self.engine, self.round())
        return snapshot

    def round(self) -> Generator[Asks, Any, Snapshot]:
        """One round, asking for what it needs."""
        now, round_ = self.now, Round(self.now.rounds, self.recipe.rounds)
        watch = Stopwatch(self.setting.device)
        clients = self.who[round_.index]
        answers = {k: self.method.answer(now.server, k, now.last_round.get(k)) for k in clients}
        turns = [Turn(k, self.state(k), answers[k], now.times.get(k, 0), self.number) for k in clients]
        times = {**now.times, **{k: now.times.get(k, 0) + 1 for k in clients}}
        outcomes: list[Outcome] = yield Train(round_, turns, self._then(round_, times))
        watch.passed("train")
        if not self.engine.runs_ahead or self.store.where != "device":
            _check(outcomes, round_)
        uploads = [Upload(o.client, len(self.setting.splits[o.client].train), o.upload) for o in outcomes]
        server = self.method.aggregate(now.server, uploads, round_)
        watch.passed("aggregate")
        kept = {o.client: self.store.keep(o.client, round_.index + 1, o.state) for o in outcomes}
        states = {**now.states, **kept}
        for client in clients:
            self._unjoined.pop(client, None)
        watch.passed("store")
        accuracy = yield from self._accuracy(clients, states, server, round_)
        watch.passed("evaluate")
        _check(outcomes, round_)  # an engine that runs ahead is asked only now: a round waits for its device once
        record = {
            "round": round_.index + 1,
            "participants": list(clients),
            "loss": summaries.mean(o.loss for o in outcomes),
            "accuracy": accuracy,
            "up": asdict(sum((size(upload.content) for upload in uploads), Size())),
            "down": asdict(sum(map(size, answers.values()), Size())),
            "flops": sum(self.flops.of_round(turn.client, turn.earlier) for turn in turns),
            "seconds": watch.seconds(),
        }
        return Snapshot(
            round_.index + 1,
            server,
            states,
            {**now.last_round, **dict.fromkeys(clients, round_.index)},
            times,
            (*now.records, record),
            self.seconds,
            self.cpu_seconds,
            self.engines,
            self.devices,
        )

    def _then(self, round_: Round, times: Mapping[int, int]) -> list[Turn]:
        """The next round's turns, as far as they are known."""
        after = round_.index + 1
        return [Turn(k, {}, None, times.get(k, 0), self.number) for k in self.who[after]] if after < round_.total else []

    def commit(self, snapshot: Snapshot) -> None:
        """A round is over: what it came to is what counts now, in memory and on disk."""
        before, self.now = self.now, snapshot
        if self.folder:
            self.folder.append(snapshot)
        for client in snapshot.records[-1]["participants"]:
            if client in before.states:
                self.store.forget(before.states[client])

    def state(self, client: int, states: Mapping[int, Kept] | None = None) -> Tensors:
        """A client's state; one that never took part has its first weights, and the shared part that all began with."""
        if states is None:
            states = self.now.states
        if client in states:
            return self.store.load(states[client])
        if client in self._unjoined:
            return self.store.load(self._unjoined[client])
        net = self._first.take(client)
        self.method.receive(net, self.method.answer(self.start, client, None))
        state = copy(net.state_dict())
        if self.store.where != "disk":  # there it would be written as slowly as it is made anew
            self._unjoined[client] = self.store.keep(client, 0, state)
        return state

    def evaluate(
        self, clients: Iterable[int], states: Mapping[int, Kept], server: Tensors, modes: Sequence[str]
    ) -> dict[str, dict[str, dict[int, float]]]:
        """Accuracy by view, mode and client: with what each client holds, and with what the server would send it now."""
        found: dict[str, dict[str, dict[int, float]]] = _answered(self.engine, self._evaluation(clients, states, server, modes))
        return found

    def _evaluation(
        self, clients: Iterable[int], states: Mapping[int, Kept], server: Tensors, modes: Sequence[str]
    ) -> Generator[Asks, Any, dict[str, dict[str, dict[int, float]]]]:
        hears = self.method.hears_server
        views = summaries.views(self.recipe)
        result: dict[str, dict[str, dict[int, float]]] = {view: {mode: {} for mode in modes} for view in views}
        for together in self._at_once(list(clients)):
            received = [self.method.answer(server, k, None) if hears else None for k in together]
            turns = [Turn(k, self.state(k, states), got, run=self.number) for k, got in zip(together, received, strict=True)]
            counts: list[Right] = yield Evaluate(turns, modes)
            for k, right in zip(together, counts, strict=True):
                for view in views:
                    for mode in modes:
                        result[view][mode][k] = right[view][mode] / len(self.setting.splits[k].test)
        return result

    def _at_once(self, clients: list[int]) -> Iterable[list[int]]:
        """The clients whose states and answers are fetched together."""
        each = _ANSWERED
        if self.store.where != "device" and clients:
            each = max(1, _LOADED // max(1, size(self.state(clients[0])).bytes))
        return [clients[first : first + each] for first in range(0, len(clients), each)]

    def _accuracy(
        self, clients: Sequence[int], states: Mapping[int, Kept], server: Tensors, round_: Round
    ) -> Generator[Asks, Any, dict[str, Any]]:
        """Means over clients: of the participants, and of all wherever all are evaluated."""
        everyone = summaries.all_evaluated(self.recipe, round_.index + 1)
        who = range(self.recipe.clients) if everyone else clients
        by_client = yield from self._evaluation(who, states, server, self.modes)

        def means(chosen: Iterable[int]) -> dict[str, dict[str, float]]:
            chosen = list(chosen)
            return {
                view: {mode: summaries.mean(of[k] for k in chosen) for mode, of in modes.items()}
                for view, modes in by_client.items()
            }

        return {"participants": means(clients), **({"all": means(who)} if everyone else {})}

    def finish(self) -> Generator[Asks, Any, Run]:
        """The last evaluation, by every mode, and the summary."""
        if self.folder:
            self.folder.save_last(self.now)
        everyone = range(self.recipe.clients)
        final = yield from self._evaluation(everyone, self.now.states, self.now.server, self.method.modes)
        # Clients that never took part are not hashed: their states follow from the seed.
        states = (self.store.load(self.now.states[client]) for client in sorted(self.now.states))
        digest = sha256([self.now.server, *states])
        facts = {**self.facts, **self._times, "states_sha256": digest}
        summary = summaries.summarise(self.recipe, self.setting, self.now, final, facts)
        if self.folder:
            self.folder.write_clients(summary["clients"])
            self.folder.write_summary(summary)
        return Run(self.recipe, summary, self.now.records, self.folder.path if self.folder else None)

    def interrupted(self) -> InterruptedRun:
        """Save what there is."""
        if self.folder:
            self.folder.write_records(self.now)
            self.folder.save(replace(self.now, seconds=self.seconds, cpu_seconds=self.cpu_seconds))
        return InterruptedRun(self.now.rounds, self.recipe.rounds, self.folder.path if self.folder else None)

    def diverged(self, error: DivergedError) -> None:
        """Write down that it did, and where."""
        if self.folder:
            self.folder.write_records(self.now)
            at = {"client": error.client, "round": error.round + 1, "reason": str(error)}
            facts = {**self.facts, **self._times}
            self.folder.write_summary({"status": "diverged", **facts, "diverged": at})


def together(engine: Engine, federations: Sequence[Federation], on_round: OnRound) -> list[Run | DivergedError]:
    """Run federations of one recipe to their end, round by round in step, so that the engine sees all their clients."""
    done: dict[int, Run | DivergedError] = {}

    def all_answered(asking: Mapping[int, Generator[Asks, Any, Any]]) -> dict[int, Any]:
        results, failed = _in_step(engine, asking)
        for number, error in failed.items():
            federations[number].diverged(error)
        done.update(failed)
        return results

    try:
        while left := {n: f for n, f in enumerate(federations) if n not in done and f.now.rounds < f.recipe.rounds}:
            # One that was saved a little later than the others waits for them, and they go on together.
            behind = min(federation.now.rounds for federation in left.values())
            snapshots = all_answered({n: f.round() for n, f in left.items() if f.now.rounds == behind})
            for number, snapshot in snapshots.items():
                federations[number].commit(snapshot)
            if snapshots:
                on_round(_mean_record([snapshot.records[-1] for snapshot in snapshots.values()]))
        done |= all_answered({n: f.finish() for n, f in enumerate(federations) if n not in done})
    except KeyboardInterrupt:
        stopped = [f.interrupted() for n, f in enumerate(federations) if n not in done]
        raise stopped[0] if stopped else InterruptedRun(0, 0, None) from None
    return [done[number] for number in range(len(federations))]


def _in_step(
    engine: Engine, asking: Mapping[int, Generator[Asks, Any, Any]]
) -> tuple[dict[int, Any], dict[int, DivergedError]]:
    """Answer what they ask for, all at once as long as they ask for the same, until each has its result or diverged."""
    results: dict[int, Any] = {}
    failed: dict[int, DivergedError] = {}
    heard: dict[int, Any] = dict.fromkeys(asking)
    while heard:
        asked: dict[int, Asks] = {}
        for number, answer in heard.items():
            try:
                asked[number] = asking[number].send(answer)
            except StopIteration as end:
                results[number] = end.value
            except DivergedError as error:
                failed[number] = error
        heard = _answers(engine, asked)
    return results, failed


def _answers(engine: Engine, asked: Mapping[int, Asks]) -> dict[int, Answers]:
    if not asked:
        return {}
    turns = [turn for one in asked.values() for turn in one.turns]
    first = next(iter(asked.values()))
    found: list[Any]
    if isinstance(first, Train):
        then = [turn for one in asked.values() if isinstance(one, Train) for turn in one.then]
        found = engine.train(first.round, turns, then)
    else:
        found = list(engine.evaluate(turns, first.modes))
    left = iter(found)
    return {number: [next(left) for _ in one.turns] for number, one in asked.items()}


def _check(outcomes: Sequence[Outcome], round_: Round) -> None:
    for outcome in outcomes:
        if outcome.broken:
            raise DivergedError(outcome.client, round_.index, outcome.broken)


def _answered(engine: Engine, asking: Generator[Asks, Any, Any]) -> Any:
    results, failed = _in_step(engine, {0: asking})
    if failed:
        raise failed[0]
    return results[0]


def _each_once(*names: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


def _mean_record(records: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """A round of several runs in one record, for those who watch: accuracies and losses are means over the runs, the rest is
    the first one's.
    """
    if len(records) == 1:
        return records[0]

    def mean(values: Sequence[Any]) -> Any:
        if isinstance(values[0], Mapping):
            return {key: mean([value[key] for value in values]) for key in values[0]}
        return summaries.mean(values)

    averaged = {key: mean([record[key] for record in records]) for key in ("accuracy", "loss")}
    return {**records[0], **averaged}
