"""The server: samples clients, sends them content, aggregates their uploads and records rounds, for one run or several."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from fedmrl.config import Recipe
from fedmrl.engines import EngineChoice, Member, Setting, Terms
from fedmrl.engines.base import broken, numbers
from fedmrl.errors import DivergedError, InterruptedRun, UserCodeError, UserError
from fedmrl.federation import summary as summaries
from fedmrl.federation.checkpoint import Snapshot
from fedmrl.federation.clients import Clients, Reply, Request, State
from fedmrl.federation.folder import RunFolder
from fedmrl.federation.setup import Schedule, schedule
from fedmrl.federation.simulated import SimulatedClients
from fedmrl.federation.stopwatch import Stopwatch
from fedmrl.federation.summary import Accuracies
from fedmrl.messages import Size, Tensors, Upload, size
from fedmrl.methods import Round
from fedmrl.results import DivergedRun, Divergence, Means, Outcome, Record, RoundAccuracy, RunResult, Sent

OnRound = Callable[[Record], None]
"""Called with each round's record."""


class Federation:
    """A run in progress, seen from the server. All that changes is in `now`, a `Snapshot` that each round replaces."""

    def __init__(
        self,
        recipe: Recipe,
        terms: Terms,
        clients: Clients,
        who: Schedule,
        *,
        number: int = 0,
        now: Snapshot | None = None,
        folder: RunFolder | None = None,
        ran_on: tuple[str, str] = ("", ""),
        together: int = 1,
        begun: float | None = None,
    ) -> None:
        self.recipe, self.terms, self.clients, self.who = recipe, terms, clients, who
        self.number, self.folder = number, folder
        self.method = terms.method
        self.modes = recipe.recorded_modes
        self.now = now or Snapshot(0, terms.server_start(clients.device))
        self._begun = (time.monotonic() if begun is None else begun) - self.now.seconds
        self._cpu_begun = time.process_time() - self.now.cpu_seconds
        engine, device = ran_on
        self.engines, self.devices = _each_once(*self.now.engines, engine), _each_once(*self.now.devices, device)
        self._together = together

    @classmethod
    def simulated(cls, recipe: Recipe, setting: Setting, engine: EngineChoice = "reference") -> "Federation":
        """A run with simulated clients that writes nothing."""
        clients = SimulatedClients([setting], engine)
        ran_on = clients.engine.name, summaries.device_name(setting.device)
        return cls(recipe, setting.terms, clients, schedule(recipe), ran_on=ran_on)

    @property
    def seconds(self) -> float:
        """Run time so far, without interruptions."""
        return time.monotonic() - self._begun

    @property
    def cpu_seconds(self) -> float:
        """CPU time of all cores over the same period."""
        return time.process_time() - self._cpu_begun

    @property
    def everyone(self) -> list[int]:
        """All current clients."""
        return list(self.clients.roster(self.number))

    # ---- steps of a round ----

    def requests(self, round_: Round) -> list[Request]:
        """The requests to the clients sampled in a round, with the content that the server sends."""
        now = self.now
        return [
            self._request(k, now.states.get(k), self.method.answer(now.server, k, now.last_round.get(k)))
            for k in self._present(round_.index)
        ]

    def upcoming(self, round_: Round) -> list[Request]:
        """The next round's requests, as far as known."""
        following, asked, times = round_.index + 1, set(self.who[round_.index]), self.now.times
        present = self._present(following) if following < round_.total else []
        return [Request(k, None, None, times.get(k, 0) + (k in asked), self.number) for k in present]

    def _present(self, index: int) -> list[int]:
        """The clients of a round that have already joined."""
        roster = self.clients.roster(self.number)
        return [k for k in self.who[index] if k in roster]

    def aggregate(self, round_: Round, replies: Sequence[Reply]) -> Tensors:
        """The server's state after a round, unchanged if no client replied."""
        if not replies:
            return self.now.server
        return self.method.aggregate(self.now.server, self.uploads(replies), round_, self.terms.aggregation)

    def uploads(self, replies: Sequence[Reply]) -> list[Upload]:
        """The clients' uploads, each with its number of training samples."""
        roster = self.clients.roster(self.number)
        return [Upload(reply.client, roster[reply.client].train, reply.upload) for reply in replies]

    def evaluation(self, who: Iterable[int], states: Mapping[int, State], server: Tensors) -> list[Request]:
        """The requests to evaluate clients in these states, with what a server in state `server` would send them."""
        hears = self.method.hears_server
        return [self._request(k, states.get(k), self.method.answer(server, k, None) if hears else None) for k in who]

    def _request(self, client: int, state: State | None, content: Tensors | None) -> Request:
        return Request(client, state, content, self.now.times.get(client, 0), self.number)

    def record(
        self,
        round_: Round,
        asked: Sequence[Request],
        replies: Sequence[Reply],
        losses: Sequence[float],
        accuracy: Accuracies,
        seconds: Mapping[str, float],
    ) -> Record:
        """A round's record for `rounds.jsonl`."""
        answered = [reply.client for reply in replies]
        all_clients = self.recipe.evaluates_all(round_.index + 1)
        up = sum((size(reply.upload) for reply in replies), Size())
        down = sum((size(request.content or {}) for request in asked), Size())
        return Record(
            round=round_.index + 1,
            asked=[request.client for request in asked],
            participants=answered,
            loss=summaries.mean(losses) if losses else None,
            accuracy=RoundAccuracy(
                participants=_means(accuracy, answered) if answered else None,
                all=_means(accuracy, self.everyone) if all_clients else None,
            ),
            up=Sent(**asdict(up)),
            down=Sent(**asdict(down)),
            flops=sum(reply.flops for reply in replies),
            seconds=dict(seconds),
        )

    def after(
        self, round_: Round, server: Tensors, states: Mapping[int, State], record: Record, answered: Sequence[int]
    ) -> Snapshot:
        """The snapshot after a round."""
        now = self.now
        return Snapshot(
            round_.index + 1,
            server,
            states,
            {**now.last_round, **dict.fromkeys(answered, round_.index)},
            {**now.times, **{k: now.times.get(k, 0) + 1 for k in answered}},
            (*now.records, record),
            self.seconds,
            self.cpu_seconds,
            self.engines,
            self.devices,
        )

    # ---- between rounds, and at the end ----

    def commit(self, snapshot: Snapshot) -> None:
        """Makes a round's snapshot the current one, in memory and on disk."""
        before, self.now = self.now, snapshot
        if self.folder:
            self.folder.append(snapshot)
        for client in snapshot.records[-1].participants:
            if client in before.states:
                self.clients.release(self.number, before.states[client])

    def join(self, member: Member) -> int:
        """Adds a simulated client between two rounds and returns its number; the next round may sample it."""
        if not isinstance(self.clients, SimulatedClients):
            raise UserError("join is for simulated clients; a client elsewhere enrols by itself")
        if self.folder is not None:
            raise UserError("no client can join a run that is written to a folder: its split is of the clients it began with")
        client = self.clients.join(member, self.number)
        self.who = [*self.who[: self.now.rounds], *schedule(self.recipe, len(self.everyone))[self.now.rounds :]]
        self.clients.foresee({self.number: self.who}, {self.number: self.now.states})
        return client

    def next_round(self) -> Snapshot:
        """Runs one round; its snapshot takes effect when committed."""
        found = one_round(self.clients, [self])[self.number]
        if isinstance(found, DivergedError):
            raise found
        return found

    def evaluate(self, who: Iterable[int], states: Mapping[int, State], server: Tensors, modes: Sequence[str]) -> Accuracies:
        """Accuracy by view, mode and client, in these states of clients and server."""
        return evaluate(self.clients, {self.number: (self, list(who), states, server)}, modes)[self.number]

    def run(self, on_round: OnRound = lambda record: None) -> RunResult:
        """Runs to the last round and returns the result."""
        done = run_in_step(self.clients, [self], on_round)[0]
        if isinstance(done, DivergedRun):
            raise done.error()
        return done

    @property
    def _facts(self) -> dict[str, Any]:
        ran_on = summaries.facts(self.recipe, self.engines, self.devices, self._together)
        times = {"wall_seconds": self.seconds, "cpu_seconds": self.cpu_seconds}
        place = self.folder.path if self.folder else None
        return {**ran_on, **self.clients.facts(self.number), **times, "folder": place}

    def finish(self, final: Accuracies) -> RunResult:
        """Builds and writes the result; `final` is the evaluation of all clients in every mode."""
        digest = self.clients.digest(self.number, self.now.server, self.now.states)
        facts = {**self._facts, "states_sha256": digest}
        result = summaries.summarise(self.recipe, self.clients.roster(self.number), self.now, final, facts)
        if self.folder:
            self.folder.write_result(result)
        return result

    def interrupted(self) -> InterruptedRun:
        """Saves the records and a checkpoint."""
        if self.folder:
            self.folder.write_records(self.now)
            self.folder.save(replace(self.now, seconds=self.seconds, cpu_seconds=self.cpu_seconds))
        return InterruptedRun(self.now.rounds, self.recipe.rounds, self.folder.path if self.folder else None)

    def diverged(self, error: DivergedError) -> DivergedRun:
        """Writes the result of a diverged run."""
        at = Divergence(client=error.client, round=error.round, reason=str(error))
        outcome = DivergedRun(status="diverged", **self._facts, diverged=at)
        if self.folder:
            self.folder.write_records(self.now)
            self.folder.write_result(outcome)
        return outcome


def one_round(clients: Clients, runs: Sequence[Federation]) -> dict[int, Snapshot | DivergedError]:
    """Runs one round of federations at the same round; returns each one's snapshot, or why it diverged, by run number.

    The federations are not changed, so an interrupted round has no effect.
    """
    watch, round_ = Stopwatch(clients.device), Round(runs[0].now.rounds, runs[0].recipe.rounds)

    # Sample, send, train.
    asked = {run.number: run.requests(round_) for run in runs}
    upcoming = [request for run in runs for request in run.upcoming(round_)]
    replies = clients.train(round_, [request for of_run in asked.values() for request in of_run], upcoming)
    answered = {run.number: [reply for reply in replies if reply.run == run.number] for run in runs}
    watch.passed("train")

    # Aggregate. If clients run ahead, divergence is checked at the end, so that a round waits for the device only once.
    failed = {} if clients.runs_ahead else _diverged(answered, round_)
    going = [run for run in runs if run.number not in failed]
    servers = {run.number: run.aggregate(round_, answered[run.number]) for run in going}
    watch.passed("aggregate")

    # Evaluate the participants, or at regular rounds all clients.
    states = {run.number: {**run.now.states, **{r.client: r.state for r in answered[run.number]}} for run in going}
    all_clients = runs[0].recipe.evaluates_all(round_.index + 1)
    evaluated = {run.number: run.everyone if all_clients else [r.client for r in answered[run.number]] for run in going}
    evaluations = {run.number: (run, evaluated[run.number], states[run.number], servers[run.number]) for run in going}
    accuracy = evaluate(clients, evaluations, runs[0].modes)
    watch.passed("evaluate")

    # Record.
    failed |= _diverged(answered, round_) if clients.runs_ahead else {}
    seconds = watch.seconds()
    found: dict[int, Snapshot | DivergedError] = {**failed}
    for run in going:
        if run.number not in failed:
            own = answered[run.number]
            losses = [loss for loss, _ in numbers([reply.told for reply in own])]
            record = run.record(round_, asked[run.number], own, losses, accuracy[run.number], seconds)
            present = [reply.client for reply in own]
            found[run.number] = run.after(round_, servers[run.number], states[run.number], record, present)
    return found


def evaluate(
    clients: Clients,
    evaluations: Mapping[int, tuple[Federation, Sequence[int], Mapping[int, State], Tensors]],
    modes: Sequence[str],
) -> dict[int, Accuracies]:
    """The accuracy of each run's clients, in the given states of clients and server."""
    result: dict[int, Accuracies] = {
        number: {view: {mode: {} for mode in modes} for view in run.recipe.views} for number, (run, *_) in evaluations.items()
    }
    longest = max((len(evaluated) for _, evaluated, *_ in evaluations.values()), default=0)
    for first in range(0, longest, each := clients.at_once):
        requests = [
            request
            for run, evaluated, states, server in evaluations.values()
            for request in run.evaluation(evaluated[first : first + each], states, server)
        ]
        for score in clients.evaluate(requests, modes):
            tested = clients.roster(score.run)[score.client].test
            for view, by_mode in result[score.run].items():
                for mode in modes:
                    by_mode[mode][score.client] = score.correct[view][mode] / tested
    return result


def run_in_step(clients: Clients, runs: Sequence[Federation], on_round: OnRound = lambda record: None) -> list[Outcome]:
    """Runs federations of one recipe to the end in lockstep, so that their clients can train together."""
    done: dict[int, Outcome] = {}

    def going() -> list[Federation]:
        return [run for run in runs if run.number not in done]

    try:
        clients.foresee({run.number: run.who for run in runs}, {run.number: run.now.states for run in runs})
        while left := [run for run in going() if run.now.rounds < run.recipe.rounds]:
            # A resumed run that is ahead waits for the others, and they continue together.
            behind = min(run.now.rounds for run in left)
            in_step = [run for run in left if run.now.rounds == behind]
            found = one_round(clients, in_step)
            for run in in_step:
                outcome = found[run.number]
                if isinstance(outcome, DivergedError):
                    done[run.number] = run.diverged(outcome)
                else:
                    run.commit(outcome)
            records = [outcome.records[-1] for outcome in found.values() if isinstance(outcome, Snapshot)]
            if records:
                on_round(_mean_record(records))
        for run in going():
            if run.folder:
                run.folder.save_last(run.now)
        last = {run.number: (run, run.everyone, run.now.states, run.now.server) for run in going()}
        final = evaluate(clients, last, runs[0].method.modes)
        done |= {run.number: run.finish(final[run.number]) for run in going()}
    except KeyboardInterrupt:
        stopped = [run.interrupted() for run in going()]
        raise stopped[0] if stopped else InterruptedRun(0, 0, None) from None
    except UserCodeError as error:
        for run in going():
            run.interrupted()
            if run.folder:
                run.folder.allow_changed_code(run.now)
        kept = [f"{run.folder.path} after round {run.now.rounds} of {run.recipe.rounds}" for run in going() if run.folder]
        raise UserCodeError(f"{error}; then resume {', '.join(kept)}" if kept else str(error)) from error
    return [done[run.number] for run in runs]


def _diverged(answered: Mapping[int, Sequence[Reply]], round_: Round) -> dict[int, DivergedError]:
    """The first client that diverged in each run, if any."""
    found: dict[int, DivergedError] = {}
    for number, replies in answered.items():
        for reply, told in zip(replies, numbers([reply.told for reply in replies]), strict=True):
            if what := broken(*told):
                found[number] = DivergedError.of(reply.client, round_.index + 1, what)
                break
    return found


def _means(accuracy: Accuracies, clients: Iterable[int]) -> Means:
    """The unweighted mean over these clients, by view and mode."""
    chosen = set(clients)
    return Means.model_validate(
        {
            view: {mode: summaries.mean(of[k] for k in of if k in chosen) for mode, of in modes.items()}
            for view, modes in accuracy.items()
        }
    )


def _each_once(*names: str) -> tuple[str, ...]:
    return tuple(name for name in dict.fromkeys(names) if name)


def _mean_record(records: Sequence[Record]) -> Record:
    """One record for a round of several runs: accuracy and loss are means over the runs, the rest is the first run's."""
    if len(records) == 1:
        return records[0]

    def mean(values: Sequence[Any]) -> Any:
        if isinstance(values[0], Mapping):
            return {key: mean([value[key] for value in values]) for key in values[0]}
        return summaries.mean(values)

    averaged = {key: mean([record.plain()[key] for record in records]) for key in ("accuracy", "loss")}
    return Record.model_validate({**records[0].plain(), **averaged})


__all__ = ["Accuracies", "Federation", "OnRound", "evaluate", "one_round", "run_in_step"]
