"""The server: samples clients, sends them content, aggregates their uploads and records rounds, for one run or several."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import torch

from fedmrl.config import Recipe
from fedmrl.engines import Terms
from fedmrl.engines.base import broken, numbers
from fedmrl.errors import DivergedError, InterruptedRun, UserCodeError, UserError
from fedmrl.export import FinalNets, InMemory, InRunFolder
from fedmrl.federation import summary as summaries
from fedmrl.federation.checkpoint import SaveStates, Snapshot
from fedmrl.federation.clients import Clients, NoReply, Reply, Request, Since
from fedmrl.federation.folder import RunFolder, Spent
from fedmrl.federation.leaves import leaves
from fedmrl.federation.setup import Schedule, schedule
from fedmrl.federation.stopwatch import Stopwatch
from fedmrl.federation.store import STATES_SHARE
from fedmrl.federation.summary import Accuracies
from fedmrl.memory import free_bytes
from fedmrl.messages import Size, Tensors, Upload, sha256, size
from fedmrl.methods import Round
from fedmrl.methods.base import in_order
from fedmrl.privacy import Ledger
from fedmrl.results import (
    DivergedRun,
    Divergence,
    LeftOut,
    Means,
    Outcome,
    PrivacySpent,
    Record,
    RoundAccuracy,
    RunResult,
    Traffic,
)

OnRound = Callable[[Record], None]
"""Called with each round's record."""


class Federation:
    """A run in progress, seen from the server. All that changes is in `now`, a `Snapshot` that each round replaces.

    Only the privacy that a round spends is spent even if the round comes to nothing, as its messages have left.
    """

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
        keeps: bool = True,
    ) -> None:
        """Unless `keeps`, the clients' final states are not kept with the result."""
        self.recipe, self.terms, self.clients, self.who = recipe, terms, clients, who
        self.number, self.folder = number, folder
        self.method = terms.method
        self.modes = recipe.recorded_modes
        self.now = now or Snapshot(0, terms.server_start(clients.device))
        self._drawn_for = len(self.everyone)
        self._begun = (time.monotonic() if begun is None else begun) - self.now.seconds
        self._cpu_begun = time.process_time() - self.now.cpu_seconds
        engine, device = ran_on
        self.engines, self.devices = _each_once(*self.now.engines, engine), _each_once(*self.now.devices, device)
        self._together, self._keeps = together, keeps
        self._leaves = leaves(terms)
        self.ledger = None if terms.privacy is None else Ledger(terms.privacy)
        self._counted: set[int] = set()
        for spent in self._spent_before():
            self._count(spent)
        if not self.now.rounds and self.over_budget:
            raise UserError(
                f"{folder.path if folder else 'the run'} has no complete round, and those that were interrupted have used up "
                "privacy.budget; start again with a larger one in another folder"
            )

    @property
    def seconds(self) -> float:
        """Run time so far, without interruptions."""
        return time.monotonic() - self._begun

    @property
    def cpu_seconds(self) -> float:
        """CPU time of all cores over the same period."""
        return time.process_time() + self.clients.cpu_seconds - self._cpu_begun

    @property
    def everyone(self) -> list[int]:
        """All current clients."""
        return list(self.clients.roster(self.number))

    # ---- steps of a round ----

    def requests(self, round_: Round) -> list[Request]:
        """The requests to the clients sampled in a round, with the content that the server sends."""
        now = self.now
        return [
            self._request(k, now.last_round.get(k), self.method.answer(now.server, k, now.last_round.get(k)))
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
        """The server's state after a round, unchanged if no client replied, but for central privacy's noise."""
        privacy = self.terms.privacy
        if privacy is not None and privacy.mode == "central":
            contents = [upload.content for upload in in_order(self.uploads(replies))]
            draw = privacy.draw(self.terms.seed, round_.index)
            return privacy.server_mean(self.now.server, contents, len(self.who[round_.index]), draw)
        if not replies:
            return self.now.server
        return self.method.aggregate(self.now.server, self.uploads(replies), round_, self.terms.aggregation)

    def uploads(self, replies: Sequence[Reply]) -> list[Upload]:
        """The clients' uploads, each with its number of training samples."""
        roster = self.clients.roster(self.number)
        return [Upload(reply.client, roster[reply.client].train, reply.upload) for reply in replies]

    def due(self, round_: Round, replies: Sequence[Reply], server: Tensors) -> "Evaluation":
        """What to evaluate after a round: the participants, or at regular rounds all clients."""
        answered = [reply.client for reply in replies]
        who = answered if self.clients.scores_every_round else []
        if self.recipe.evaluates_all(round_.index + 1):
            who = self.everyone
        return Evaluation(self, who, {**self.now.last_round, **dict.fromkeys(answered, round_.index)}, server)

    def evaluation(self, who: Iterable[int], since: Since, server: Tensors) -> list[Request]:
        """The requests to evaluate clients in their states after these rounds, with what the server in state `server` sends."""
        hears = self.method.hears_server
        return [self._request(k, since.get(k), self.method.answer(server, k, None) if hears else None) for k in who]

    def _request(self, client: int, since: int | None, content: Tensors | None) -> Request:
        return Request(client, since, content, self.now.times.get(client, 0), self.number)

    def record(
        self,
        round_: Round,
        asked: Sequence[Request],
        replies: Sequence[Reply],
        left_out: Sequence[NoReply],
        due: Sequence[int],
        accuracy: Accuracies,
        seconds: Mapping[str, float],
    ) -> Record:
        """A round's record for `rounds.jsonl`."""
        answered = [reply.client for reply in replies]
        losses = [loss for loss, _ in numbers([reply.told for reply in replies])]
        missing = _missing(accuracy, due)
        self._add_own_counts(accuracy, replies)
        all_clients = self.recipe.evaluates_all(round_.index + 1)
        up = sum((size(reply.upload) for reply in replies), Size())
        down = sum((size(request.content or {}) for request in asked), Size())
        return Record(
            round=round_.index + 1,
            asked=[request.client for request in asked],
            participants=answered,
            left_out=[LeftOut(client=none.client, reason=none.reason) for none in left_out],
            not_evaluated=missing,
            loss=summaries.mean(losses) if losses else None,
            accuracy=RoundAccuracy(
                participants=_means(accuracy, answered),
                all=_means(accuracy, self.everyone) if all_clients else None,
            ),
            up=Traffic(**asdict(up)),
            down=Traffic(**asdict(down)),
            flops=sum(reply.flops for reply in replies),
            seconds=dict(seconds),
            epsilon=self.ledger.epsilon if self.ledger else None,
        )

    def _add_own_counts(self, accuracy: Accuracies, replies: Sequence[Reply]) -> None:
        """Adds the accuracies of clients whose replies carry their counts."""
        for reply in replies:
            for mode, correct in (reply.correct or {}).items():
                tested = self.clients.roster(self.number)[reply.client].test
                accuracy["own"][mode].setdefault(reply.client, correct / tested)

    def after(self, round_: Round, server: Tensors, record: Record) -> Snapshot:
        """The snapshot after a round."""
        now = self.now
        return Snapshot(
            round_.index + 1,
            server,
            {**now.last_round, **dict.fromkeys(record.participants, round_.index)},
            {**now.times, **{k: now.times.get(k, 0) + 1 for k in record.participants}},
            (*now.records, record),
            self.seconds,
            self.cpu_seconds,
            self.engines,
            self.devices,
        )

    # ---- privacy ----

    def spend(self, round_: Round) -> None:
        """Counts the privacy that a round spends, before any client is asked."""
        privacy = self.terms.privacy
        if privacy is None or (privacy.simulation and round_.index in self._counted):  # it has the same noise again
            return
        spent = self._spends(round_.index)
        if self.folder and not privacy.simulation:
            self.folder.write_spent(spent)
        self._count(spent)

    @property
    def over_budget(self) -> bool:
        """Whether the next round would exceed the privacy budget."""
        if self.ledger is None:
            return False
        following = self._spends(self.now.rounds)
        return self.ledger.exceeds(following.clients, following.asked)

    @property
    def ended(self) -> bool:
        """Whether no round is left to run."""
        return self.now.rounds >= self.recipe.rounds or self.over_budget

    def _spent_before(self) -> list[Spent]:
        """The rounds that spent privacy before this run was resumed, among them those that were lost and run again."""
        privacy = self.terms.privacy
        if privacy is None:
            return []
        if self.folder and not privacy.simulation:
            return self.folder.read_spent(self.now.rounds)
        return [self._spends(index) for index in range(self.now.rounds)]

    def _spends(self, index: int) -> Spent:
        # Those asked of all from whom they were drawn, whether or not they have joined yet.
        return Spent(round=index + 1, clients=self._drawn_for, asked=list(self.who[index]))

    def _count(self, spent: Spent) -> None:
        if self.ledger:
            self.ledger.spend(spent.clients, spent.asked)
            self._counted.add(spent.round - 1)

    @property
    def _privacy(self) -> PrivacySpent | None:
        if self.ledger is None:
            return None
        return PrivacySpent(
            **self.ledger.privacy.model_dump(),
            epsilon=self.ledger.epsilon,
            epsilon_if_known=self.ledger.epsilon_if_known,
            stopped=self.now.rounds < self.recipe.rounds and self.over_budget,
        )

    # ---- between rounds, and at the end ----

    def commit(self, snapshot: Snapshot) -> None:
        """Makes a round's snapshot the current one, in memory and on disk."""
        self.now = snapshot
        if self.folder:
            self.folder.append(snapshot, self.save_states)
        self.clients.confirm(self.number, {k: snapshot.last_round[k] for k in snapshot.records[-1].participants})

    @property
    def save_states(self) -> SaveStates:
        """Writes this run's clients' states, for a checkpoint."""
        return partial(self.clients.save, self.number)

    def draw_for_new_clients(self) -> None:
        """Draws the remaining rounds anew if clients have joined since they were drawn."""
        if len(everyone := self.everyone) > self._drawn_for:
            self._drawn_for = len(everyone)
            self.who = [*self.who[: self.now.rounds], *schedule(self.recipe, everyone)[self.now.rounds :]]
            self.clients.foresee({self.number: self.who}, {self.number: self.now.last_round})

    def next_round(self) -> Snapshot:
        """Runs one round; its snapshot takes effect when committed."""
        found = one_round(self.clients, [self])[self.number]
        if isinstance(found, DivergedError):
            raise found
        return found

    def evaluate(self, who: Iterable[int], since: Since, server: Tensors, modes: Sequence[str]) -> Accuracies:
        """Accuracy by view, mode and client, in the clients' states after these rounds and this state of the server."""
        return evaluate(self.clients, {self.number: Evaluation(self, list(who), since, server)}, modes)[self.number]

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
        return {**ran_on, **self.clients.facts(self.number), **times, "privacy": self._privacy, "folder": place}

    def finish(self, final: Accuracies) -> RunResult:
        """Builds and writes the result; `final` is the evaluation of all clients in every mode."""
        facts = {**self._facts, "states_sha256": self.digest(), "leaves": self._leaves, "nets": self._final_nets()}
        result = summaries.summarise(self.recipe, self.clients.roster(self.number), self.now, final, facts)
        if self.folder:
            self.folder.write_result(result)
        return result

    def digest(self) -> str | None:
        """SHA-256 of all states; without clients that never took part, whose states follow from the seed."""
        states = self.clients.states(self.number, dict(sorted(self.now.last_round.items())))
        return None if states is None else sha256(chain([self.now.server], (state for _, state in states)))

    def _final_nets(self) -> FinalNets | None:
        """What builds the clients' final nets: their states are in the run's folder, or in memory if it has none."""
        if not self._keeps:
            return None
        if self.folder:
            return self.clients.final_nets(self.number, InRunFolder(self.folder.path, self.now.rounds))
        host, clients = torch.device("cpu"), {}
        room = STATES_SHARE * free_bytes(host)
        for client, state in self.clients.states(self.number, self.now.last_round) or ():
            room -= size(state).bytes
            if room < 0:
                return None
            clients[client] = {name: tensor.to(host) for name, tensor in state.items()}
        server = {name: tensor.to(host) for name, tensor in self.now.server.items()}
        return self.clients.final_nets(self.number, InMemory(server, clients))

    def interrupted(self) -> InterruptedRun:
        """Saves the records and a checkpoint."""
        if self.folder:
            self.folder.write_records(self.now)
            self.folder.save(replace(self.now, seconds=self.seconds, cpu_seconds=self.cpu_seconds), self.save_states)
        return InterruptedRun(self.now.rounds, self.recipe.rounds, self.folder.path if self.folder else None)

    def diverged(self, error: DivergedError) -> DivergedRun:
        """Writes the result of a diverged run."""
        at = Divergence(client=error.client, round=error.round, reason=str(error))
        outcome = DivergedRun(status="diverged", **self._facts, diverged=at)
        if self.folder:
            self.folder.write_records(self.now)
            self.folder.write_result(outcome)
        return outcome


class Evaluation(NamedTuple):
    """Clients of a run to evaluate, in their states after these rounds and this state of the server."""

    run: Federation
    who: Sequence[int]
    since: Since
    server: Tensors


def one_round(clients: Clients, runs: Sequence[Federation]) -> dict[int, Snapshot | DivergedError]:
    """Runs one round of federations at the same round; returns each one's snapshot, or why it diverged, by run number.

    The federations are not changed, so an interrupted round has no effect.
    """
    watch, round_ = Stopwatch(clients.device), Round(runs[0].now.rounds, runs[0].recipe.rounds)

    # Sample, send, train.
    for run in runs:
        run.draw_for_new_clients()
    for run in runs:
        run.spend(round_)
    asked = {run.number: run.requests(round_) for run in runs}
    upcoming = [request for run in runs for request in run.upcoming(round_)]
    replies = clients.train(round_, [request for of_run in asked.values() for request in of_run], upcoming)
    answered = {run.number: [r for r in replies if r.run == run.number and isinstance(r, Reply)] for run in runs}
    left_out = {run.number: [r for r in replies if r.run == run.number and isinstance(r, NoReply)] for run in runs}
    watch.passed("train")

    # Aggregate. If clients run ahead, divergence is checked at the end, so that a round waits for the device only once.
    failed = {} if clients.runs_ahead else _diverged(answered, round_)
    going = [run for run in runs if run.number not in failed]
    servers = {run.number: run.aggregate(round_, answered[run.number]) for run in going}
    for server in servers.values():
        clients.check_server(round_, server)
    watch.passed("aggregate")

    # Evaluate the participants, or at regular rounds all clients.
    due = {run.number: run.due(round_, answered[run.number], servers[run.number]) for run in going}
    accuracy = evaluate(clients, due, runs[0].modes)
    watch.passed("evaluate")

    # Record.
    failed |= _diverged(answered, round_) if clients.runs_ahead else {}
    seconds = watch.seconds()
    found: dict[int, Snapshot | DivergedError] = {**failed}
    for run in going:
        if run.number not in failed:
            own = answered[run.number]
            who, found_there = due[run.number].who, accuracy[run.number]
            record = run.record(round_, asked[run.number], own, left_out[run.number], who, found_there, seconds)
            found[run.number] = run.after(round_, servers[run.number], record)
    return found


def evaluate(
    clients: Clients,
    evaluations: Mapping[int, Evaluation],
    modes: Sequence[str],
) -> dict[int, Accuracies]:
    """The accuracy of each run's clients, by run number."""
    result: dict[int, Accuracies] = {
        number: {view: {mode: {} for mode in modes} for view in of_run.run.recipe.views}
        for number, of_run in evaluations.items()
    }
    longest = max((len(due.who) for due in evaluations.values()), default=0)
    for first in range(0, longest, each := clients.at_once):
        requests = [
            request
            for run, who, since, server in evaluations.values()
            for request in run.evaluation(who[first : first + each], since, server)
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
        clients.foresee({run.number: run.who for run in runs}, {run.number: run.now.last_round for run in runs})
        while left := [run for run in _with_all_who_joined(going()) if not run.ended]:
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
        _measure_all_at_the_end(clients, [run for run in going() if run.now.records[-1].accuracy.all is None])
        for run in going():
            if run.folder:
                run.folder.save_last(run.now, run.save_states)
        last = {run.number: Evaluation(run, run.everyone, run.now.last_round, run.now.server) for run in going()}
        final = evaluate(clients, last, runs[0].method.modes)
        done |= {run.number: run.finish(final[run.number]) for run in going()}
    except KeyboardInterrupt:
        stopped = [run.interrupted() for run in going()]
        raise stopped[0] if stopped else InterruptedRun(0, 0, None) from None
    except UserCodeError as error:
        for run in going():
            run.interrupted()
            if run.folder:
                run.folder.allow_changed_code()
        kept = [f"{run.folder.path} after round {run.now.rounds} of {run.recipe.rounds}" for run in going() if run.folder]
        raise UserCodeError(f"{error}; then resume {', '.join(kept)}" if kept else str(error)) from error
    return [done[run.number] for run in runs]


def _with_all_who_joined(runs: Sequence[Federation]) -> Sequence[Federation]:
    for run in runs:
        run.draw_for_new_clients()
    return runs


def _measure_all_at_the_end(clients: Clients, runs: Sequence[Federation]) -> None:
    """Adds the accuracy of all clients to the last record of runs that ended before they were to be measured."""
    last = {run.number: Evaluation(run, run.everyone, run.now.last_round, run.now.server) for run in runs}
    found = evaluate(clients, last, runs[0].modes) if runs else {}
    for run in runs:
        *earlier, record = run.now.records
        accuracy = RoundAccuracy(participants=record.accuracy.participants, all=_means(found[run.number], run.everyone))
        measured = {"accuracy": accuracy, "not_evaluated": _missing(found[run.number], run.everyone)}
        run.now = replace(run.now, records=(*earlier, record.model_copy(update=measured)))
        if run.folder:
            run.folder.write_records(run.now)
            run.folder.save(run.now, run.save_states)


def _diverged(answered: Mapping[int, Sequence[Reply]], round_: Round) -> dict[int, DivergedError]:
    """The first client that diverged in each run, if any."""
    found: dict[int, DivergedError] = {}
    for number, replies in answered.items():
        for reply, told in zip(replies, numbers([reply.told for reply in replies]), strict=True):
            if what := broken(*told):
                found[number] = DivergedError.of(reply.client, round_.index + 1, what)
                break
    return found


def _missing(accuracy: Accuracies, due: Sequence[int]) -> list[int] | None:
    """Those of the clients due that were not evaluated; None if all were."""
    evaluated = {client for modes in accuracy.values() for of_clients in modes.values() for client in of_clients}
    return [client for client in due if client not in evaluated] or None


def _means(accuracy: Accuracies, clients: Iterable[int]) -> Means | None:
    """The unweighted mean over these clients, by view and mode, as far as they were evaluated."""
    chosen = set(clients)
    means = {
        view: {mode: summaries.mean(values) for mode, of in modes.items() if (values := [of[k] for k in of if k in chosen])}
        for view, modes in accuracy.items()
    }
    measured = {view: by_mode for view, by_mode in means.items() if by_mode}
    return Means.model_validate(measured) if measured else None


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
