"""The round loop: sample, answer, train, aggregate, evaluate, record."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from fedmrl.config import Recipe
from fedmrl.data import Dataset
from fedmrl.engines import Engine, Setting, Turn, check_engine, engine_for
from fedmrl.errors import DivergedError, InterruptedRun, UserError
from fedmrl.federation import summary as summaries
from fedmrl.federation.checkpoint import Snapshot
from fedmrl.federation.folder import RunFolder, refuse_used
from fedmrl.federation.setup import prepare, schedule
from fedmrl.messages import Size, Tensors, Upload, copy, size
from fedmrl.methods import Round
from fedmrl.metrics.flops import FlopCounter
from fedmrl.models import ModelSpec

OnRound = Callable[[Mapping[str, Any]], None]


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
    models: Sequence[ModelSpec] | None = None,
    data: Dataset | None = None,
    on_round: OnRound | None = None,
) -> Run:
    """Run a recipe; with `out`, into that folder. `models` gives each client a local model of one's own; `data` is
    what the recipe names, where that is loaded already.

    >>> from fedmrl import load_recipe
    >>> short = {"rounds": 1, "models.local": [{"conv1": 2, "conv2": 2, "fc1": 8, "fc2": 8}], "method.d1": 4}
    >>> run(load_recipe("quickstart", short)).summary["status"]
    'finished'
    """
    check_engine(engine)
    folder_path = None if out is None else Path(out)
    if folder_path is not None and not resume:
        refuse_used(folder_path)
    if models is not None:
        table = recipe.models.model_copy(update={"own": [spec.label for spec in models]})
        recipe = recipe.model_copy(update={"models": table})
    setting = prepare(recipe, _device(device), models, data)
    who = schedule(recipe)
    folder = None
    if folder_path is not None:
        folder = (RunFolder.reopen if resume else RunFolder.create)(folder_path, recipe, setting.splits)
        if resume and (summary := folder.finished()):
            return Run(recipe, summary, folder.records(recipe.rounds), folder_path)
    return Federation(recipe, setting, who, engine, folder).run(on_round or (lambda _: None))


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name not in ("cpu", "cuda"):
        raise UserError(f"--device: there is no {name!r}; choose auto, cpu or cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError("device is cuda, and torch finds no CUDA device here; use cpu or auto")
    return torch.device(name)


class Federation:
    """A run in progress: all that changes is in `self.now`, replaced as a whole at the end of each round."""

    def __init__(
        self, recipe: Recipe, setting: Setting, who: Sequence[Sequence[int]], engine: str, folder: RunFolder | None
    ) -> None:
        self.recipe, self.setting, self.who, self.folder = recipe, setting, who, folder
        self.method = recipe.method
        self.engine: Engine = engine_for(engine, setting)
        self.flops = FlopCounter(setting)
        self.facts = summaries.facts(recipe, setting, self.engine.name)
        self.modes = summaries.recorded_modes(recipe)
        self.start = self.method.start(setting.fresh_net(None))
        self.now = (folder.load(setting.device) if folder else None) or Snapshot(0, self.start)
        self._check_fits(self.now)
        self._unjoined: dict[int, Tensors] = {}

    def _check_fits(self, snapshot: Snapshot) -> None:
        """A state that was loaded must be one of the client's model."""
        shapes: dict[ModelSpec, dict[str, torch.Size]] = {}
        for client, state in snapshot.states.items():
            spec = self.setting.models[client]
            if spec not in shapes:
                shapes[spec] = {name: t.shape for name, t in self.setting.fresh_net(client).state_dict().items()}
            if {name: t.shape for name, t in state.items()} != shapes[spec]:
                raise UserError(
                    f"client {client}'s state in the checkpoint does not fit the model that it is given now ({spec.label}); "
                    "resume with the models that the run was started with"
                )

    def run(self, on_round: OnRound) -> Run:
        """Go on to the last round, and sum up."""
        try:
            while self.now.rounds < self.recipe.rounds:
                self.now = self.next_round()
                if self.folder:
                    self.folder.append(self.now)
                on_round(self.now.records[-1])
            if self.folder:
                self.folder.save(self.now)
            return self._finish()
        except KeyboardInterrupt:
            raise self._interrupted() from None
        except DivergedError as error:
            self._diverged(error)
            raise

    def next_round(self) -> Snapshot:
        """One round. Nothing of the present snapshot is changed, so a round that is cut short leaves no trace."""
        now, round_ = self.now, Round(self.now.rounds, self.recipe.rounds)
        started = time.perf_counter()
        clients = self.who[round_.index]
        answers = {k: self.method.answer(now.server, k, now.last_round.get(k)) for k in clients}
        turns = [Turn(k, self.state(k), answers[k], now.times.get(k, 0)) for k in clients]
        outcomes = self.engine.train(round_, turns)
        for outcome in outcomes:
            if outcome.broken:
                raise DivergedError(outcome.client, round_.index, outcome.broken)
        trained = time.perf_counter()
        uploads = [Upload(o.client, len(self.setting.splits[o.client].train), o.upload) for o in outcomes]
        server = self.method.aggregate(now.server, uploads, round_)
        aggregated = time.perf_counter()
        states = {**now.states, **{o.client: o.state for o in outcomes}}
        for client in clients:
            self._unjoined.pop(client, None)
        accuracy = self._accuracy(clients, states, server, round_)
        evaluated = time.perf_counter()
        record = {
            "round": round_.index + 1,
            "participants": list(clients),
            "loss": summaries.mean(o.loss for o in outcomes),
            "accuracy": accuracy,
            "up": asdict(sum((size(upload.content) for upload in uploads), Size())),
            "down": asdict(sum(map(size, answers.values()), Size())),
            "flops": sum(self.flops.of_round(turn.client, turn.earlier) for turn in turns),
            "seconds": {
                "train": trained - started,
                "aggregate": aggregated - trained,
                "evaluate": evaluated - aggregated,
            },
        }
        return Snapshot(
            round_.index + 1,
            server,
            states,
            {**now.last_round, **dict.fromkeys(clients, round_.index)},
            {**now.times, **{k: now.times.get(k, 0) + 1 for k in clients}},
            (*now.records, record),
        )

    def state(self, client: int, states: Mapping[int, Tensors] | None = None) -> Tensors:
        """A client's state; one that never took part has its first weights, and the shared part that all began with."""
        if states is None:
            states = self.now.states
        if client in states:
            return states[client]
        if client not in self._unjoined:
            net = self.setting.fresh_net(client)
            self.method.receive(net, self.method.answer(self.start, client, None))
            self._unjoined[client] = copy(net.state_dict())
        return self._unjoined[client]

    def evaluate(
        self, clients: Iterable[int], states: Mapping[int, Tensors], server: Tensors, modes: Sequence[str]
    ) -> dict[str, dict[str, dict[int, float]]]:
        """Accuracy by view, mode and client: with what each client holds, and with what the server would send it now."""
        clients = list(clients)
        hears = self.method.hears_server
        received = [self.method.answer(server, k, None) if hears else None for k in clients]
        turns = [Turn(k, self.state(k, states), got) for k, got in zip(clients, received, strict=True)]
        right = self.engine.evaluate(turns, modes)
        tests = {k: len(self.setting.splits[k].test) for k in clients}
        return {
            view: {mode: {k: r[view][mode] / tests[k] for k, r in zip(clients, right, strict=True)} for mode in modes}
            for view in (("own", "aggregated") if hears else ("own",))
        }

    def _accuracy(
        self, clients: Sequence[int], states: Mapping[int, Tensors], server: Tensors, round_: Round
    ) -> dict[str, Any]:
        """Means over clients: of the participants, and of all wherever all are evaluated."""
        everyone = (round_.index + 1) % self.recipe.evaluation.every == 0 or round_.index + 1 == round_.total
        who = range(self.recipe.clients) if everyone else clients
        by_client = self.evaluate(who, states, server, self.modes)

        def means(chosen: Iterable[int]) -> dict[str, dict[str, float]]:
            chosen = list(chosen)
            return {
                view: {mode: summaries.mean(of[k] for k in chosen) for mode, of in modes.items()}
                for view, modes in by_client.items()
            }

        return {"participants": means(clients), **({"all": means(who)} if everyone else {})}

    def _finish(self) -> Run:
        everyone = range(self.recipe.clients)
        final = self.evaluate(everyone, self.now.states, self.now.server, self.method.modes)
        summary = summaries.summarise(self.recipe, self.setting, self.now, final, self.facts)
        if self.folder:
            self.folder.write_clients(summary["clients"])
            self.folder.write_summary(summary)
        return Run(self.recipe, summary, self.now.records, self.folder.path if self.folder else None)

    def _interrupted(self) -> InterruptedRun:
        if self.folder:
            self.folder.write_records(self.now)
            self.folder.save(self.now)
        return InterruptedRun(self.now.rounds, self.recipe.rounds, self.folder.path if self.folder else None)

    def _diverged(self, error: DivergedError) -> None:
        if self.folder:
            self.folder.write_records(self.now)
            at = {"client": error.client, "round": error.round + 1, "reason": str(error)}
            self.folder.write_summary({"status": "diverged", **self.facts, "diverged": at})
