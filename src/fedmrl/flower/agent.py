"""An organisation's agent: the resident process that holds its model, data and private state, and answers at a Unix socket.

It trusts its peer in nothing. A request that is refused changes no state. Nothing leaves without a line in the audit log.
"""

import fcntl
import logging
import math
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch

from fedmrl.engines import ReferenceEngine, Turn
from fedmrl.errors import CODE_FAILS, UserError
from fedmrl.federation.launch import pick_device
from fedmrl.federation.setup import prepare_alone
from fedmrl.files import sha256_of_text
from fedmrl.flower.audit import Audit, Passed
from fedmrl.flower.checks import Messages, Refused, approved_recipe, check_data, refuse
from fedmrl.flower.client_config import Organisation
from fedmrl.flower.frame import Arrays, FrameError
from fedmrl.flower.listener import Listener
from fedmrl.flower.protocol import (
    Evaluate,
    EvaluateOk,
    Failure,
    Hello,
    HelloOk,
    Reply,
    Request,
    Train,
    TrainOk,
    content_digest,
    read_reply,
    read_request,
    to_arrays,
    to_bytes,
    to_tensors,
)
from fedmrl.flower.states import Index, RunStates
from fedmrl.messages import Tensors, copy
from fedmrl.methods import Round
from fedmrl.metrics.flops import FlopCounter

log = logging.getLogger("fedmrl.agent")


class Agent:
    """Serves one organisation. As a context, it holds the state folder for itself."""

    def __init__(self, organisation: Organisation) -> None:
        self.organisation, self.config = organisation, organisation.config
        self.bounds = self.config.bounds
        self.folder = Path(self.config.state)
        self._lock = _locked(self.folder)
        try:
            self.audit = Audit(self.folder)
            self.listener = Listener(self.config, self.handle, self.refused)
        except BaseException:
            self._lock.close()
            raise
        # One request at a time.
        self._worker = ThreadPoolExecutor(1, "agent-training", _use_threads, (self.config.threads,))
        self._run: _Run | None = None
        self._known: dict[str, RunStates] = {}
        """The latest runs that a hello has named since the start, as many as may be kept."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def serve(self) -> None:
        """Answers requests until `close` is called from another thread."""
        self.listener.serve()

    def close(self) -> None:
        """Stops serving, after the request in work."""
        self.listener.close()
        self._worker.shutdown()
        self._lock.close()

    def handle(self, data: bytearray, uid: int) -> bytes:
        """The reply to a request, both as frames; empty if there is none."""
        return self._worker.submit(self._handled, data, uid).result()

    def refused(self, failure: Failure, uid: int, run: str = "") -> bytes:
        """The frame of a reply that carries nothing out; empty if it cannot be written to the audit log."""
        log.warning("refused user %d: %s", uid, failure.sentence)
        try:
            self.audit.record(run, None, uid, [Passed("out", failure.model_dump(), {})])
        except OSError as error:
            log.error("the audit log cannot be written (%s), so nothing is replied", error)
            return b""
        return to_bytes(failure)

    def _handled(self, data: bytearray, uid: int) -> bytes:
        request_id: dict[str, Any] = {}
        run = ""
        try:
            request, arrays = read_request(data, max_body=self.bounds.max_message_bytes)
            request_id, run = {"id": request.id}, request.run
            return self._answered(request, arrays, uid)
        except FrameError as error:
            failure = Failure(**request_id, reason="bad-message", sentence=str(error))
        except Refused as error:
            failure = Failure(**request_id, reason=error.reason, sentence=str(error))
        except CODE_FAILS as error:
            # What failed may have private things in its message: paths, values, the model's code.
            log.error("a request failed: %s", error, exc_info=not isinstance(error, UserError | OSError))
            sentence = "the client could not carry this out; its own log says why"
            failure = Failure(**request_id, reason="failed", sentence=sentence)
        return self.refused(failure, uid, run)

    def _answered(self, request: Request, arrays: Arrays, uid: int) -> bytes:
        if isinstance(request, Hello):
            if arrays:
                raise refuse("a hello has no arrays")
            run = self._greeted(request)
            reply: Reply = run.welcome(request, self.config.name, self.config.model_label, self.bounds.class_counts)
            self._log(request, arrays, reply, {}, uid)
            self._run = run
            self._remember(run.states)
            return to_bytes(reply)
        if self._run is None or self._run.states.index.run != request.run:
            raise Refused("hello-first", f"run {request.run} is not the current one; send a hello first")
        if isinstance(request, Evaluate):
            reply = self._counted(self._run, request, arrays)
            self._log(request, arrays, reply, {}, uid)
            return to_bytes(reply)
        return self._trained(self._run, request, arrays, uid)

    def _counted(self, run: "_Run", request: Evaluate, arrays: Arrays) -> EvaluateOk:
        known, digest = run.states.evaluated, content_digest(request, arrays)
        if digest not in known:
            counted = run.states.index.evaluated
            if digest not in counted and len(counted) >= self.bounds.max_evaluations:
                raise refuse(f"this client has answered {len(counted)} evaluations of this run, and answers no more")
            reply = run.evaluated(request, arrays)
            if digest not in counted:
                run.states.count_evaluation(digest, request.since, to_tensors(arrays))
            known[digest] = reply
        return known[digest].model_copy(update={"id": request.id})

    def _log(self, request: Request, arrays: Arrays, reply: Reply, upload: Arrays, uid: int) -> None:
        """Writes an exchange to the audit log, before the reply leaves."""
        passed = [Passed("in", request.model_dump(), arrays), Passed("out", reply.model_dump(), upload)]
        self.audit.record(request.run, request.round if isinstance(request, Train) else None, uid, passed)

    def _greeted(self, hello: Hello) -> "_Run":
        """The run that a hello names, after all checks."""
        folder, digest = self.folder / "runs" / hello.run, sha256_of_text(hello.recipe)
        states = self._known.get(hello.run)
        if states is not None and states.begun and not folder.exists():  # the operator has deleted it
            states = None
        states = states or RunStates.open(folder)
        if states is None:
            states = RunStates(folder, Index(run=hello.run, client=hello.client, recipe_sha256=digest, recipe=hello.recipe))
        if not folder.exists():
            self._check_room()
        if states.index.recipe_sha256 != digest:
            raise refuse(f"run {hello.run} began with another recipe")
        if states.index.client != hello.client:
            raise refuse(f"this client's number in run {hello.run} is {states.index.client}, not {hello.client}")
        states.index = states.index.model_copy(update={"recipe": hello.recipe})
        return self._run if self._run is not None and self._run.states is states else _Run(self.organisation, hello, states)

    def _trained(self, run: "_Run", request: Train, arrays: Arrays, uid: int) -> bytes:
        digest = content_digest(request, arrays)
        index = run.states.index
        if request.round == index.last_round and digest == index.asked_sha256:
            cached, upload = read_reply(content := run.states.reply(), max_body=len(content))
            reply = cached.model_copy(update={"id": request.id})
            self._log(request, arrays, reply, upload, uid)
            return to_bytes(reply, to_tensors(upload))
        reply, state, tensors = run.trained(request, arrays)
        data = to_bytes(reply, tensors)
        prepared = run.states.prepared(request.round, request.since, state, data, digest)
        try:
            self._log(request, arrays, reply, to_arrays(tensors), uid)
        except OSError:
            run.states.discard()
            raise
        run.states.commit(prepared)
        return data

    def _remember(self, states: RunStates) -> None:
        """Keeps a run's states at hand. Only the latest are kept, as a peer may name any number of runs."""
        self._known.pop(states.index.run, None)
        self._known[states.index.run] = states
        while len(self._known) > self.bounds.max_runs:
            del self._known[next(iter(self._known))]

    def _check_room(self) -> None:
        """Raises `Refused` for a new run if too many have a folder: each takes room, and tells more of the data."""
        if len(list((self.folder / "runs").glob("*"))) >= self.bounds.max_runs:
            raise refuse(f"this client takes part in at most {self.bounds.max_runs} runs; its operator must delete an old one")


class _Run:
    """The current run: this client in the setting of its recipe."""

    def __init__(self, organisation: Organisation, hello: Hello, states: RunStates) -> None:
        self.client, self.states = hello.client, states
        bounds = organisation.config.bounds
        self.recipe = approved_recipe(hello.recipe, bounds)
        check_data(self.recipe, organisation)
        data, member = organisation.in_run(self.recipe, self.client)
        device = pick_device(organisation.config.device)
        try:
            self.setting = prepare_alone(self.recipe, device, self.client, member, data)
        except UserError as error:
            log.error("run %s: %s", hello.run, error)
            raise refuse("this client's model or data does not fit the recipe; its own log says why") from error
        self.messages = Messages(self.setting.terms, bounds)
        self.engine = ReferenceEngine(self.setting)
        self.flops = FlopCounter(self.setting)

    def welcome(self, hello: Hello, name: str, label: str, class_counts: bool) -> HelloOk:
        """Who the client is in this run."""
        member = self.setting.members[self.client]
        labels, counts = np.unique(self.setting.data.y[member.train], return_counts=True)
        by_label = dict(zip(map(str, labels.tolist()), counts.tolist(), strict=True))
        return HelloOk(
            id=hello.id,
            name=name,
            model=label or member.model.label,
            train=len(member.train),
            test=len(member.test),
            classes=by_label if class_counts else None,
        )

    def state(self, since: int | None) -> Tensors:
        """The state after a round; the initial one has the server's initial shared part."""
        if since not in self.states.index.held:
            held = ", ".join("initial" if round_ is None else str(round_) for round_ in self.states.index.held)
            raise refuse(f"since is {'null' if since is None else since}, and this client holds the states {held}")
        if since is not None:
            return {name: tensor.to(self.setting.device) for name, tensor in self.states.load(since).items()}
        net, method = self.setting.fresh_net(self.client), self.setting.method
        method.receive(net, method.answer(self.setting.server_start(), self.client, None))
        return copy(net.state_dict())

    def received(self, arrays: Arrays) -> Tensors:
        """The server's content, checked, on the device."""
        content = to_tensors(arrays)
        self.messages.check_received(content)
        return {name: tensor.to(self.setting.device) for name, tensor in content.items()}

    def trained(self, request: Train, arrays: Arrays) -> tuple[TrainOk, Tensors | None, Tensors]:
        """The reply to a request to train, the new state (None if it diverged), and the upload."""
        index, recipe = self.states.index, self.recipe
        if request.rounds != recipe.rounds or request.round >= recipe.rounds:
            raise refuse(f"round {request.round} of {request.rounds} is not one of the recipe's {recipe.rounds}")
        if request.round <= index.last_round:
            raise refuse(f"round {request.round} is over: this client has trained in round {index.last_round}")
        state = self.state(request.since)
        earlier = 0 if request.since is None else index.states[request.since].earlier
        if request.earlier != earlier:
            raise refuse(f"earlier is {request.earlier}, and this state comes from {earlier} rounds")
        turn = Turn(self.client, state, self.received(arrays), earlier)
        trained = self.engine.train(Round(request.round, request.rounds), [turn])[0]
        loss, finite = trained.told.tolist()
        sound = trained.broken is None
        correct: Mapping[str, int] = {}
        upload = self.setting.terms.leaving(trained.upload, turn.received, Round(request.round, request.rounds), self.client)
        if sound:
            self.messages.check_upload(upload)
            after = Turn(self.client, trained.state, None)
            correct = self.engine.evaluate([after], recipe.recorded_modes)[0]["own"]
        reply = TrainOk(
            id=request.id,
            round=request.round,
            loss=loss if math.isfinite(loss) else None,
            finite=finite == 1,
            flops=self.flops.of_round(self.client, earlier),
            correct=dict(correct),
        )
        return reply, trained.state if sound else None, upload if sound else {}

    def evaluated(self, request: Evaluate, arrays: Arrays) -> EvaluateOk:
        """Counts of correct predictions in one of the client's states, by view and mode."""
        if unknown := set(request.modes) - set(self.setting.method.modes):
            raise refuse(f"there is no mode {min(unknown)[:80]!r}; there is {', '.join(self.setting.method.modes)}")
        if arrays and not request.content:
            raise refuse("the request says that it has no content, and has arrays")
        turn = Turn(self.client, self.state(request.since), self.received(arrays) if request.content else None)
        counts = self.engine.evaluate([turn], request.modes)[0]
        return EvaluateOk.model_validate({"id": request.id, "correct": {view: dict(of) for view, of in counts.items()}})


def _use_threads(number: int | None) -> None:
    if number is not None:
        torch.set_num_threads(number)


def _locked(folder: Path) -> Any:
    """Holds the state folder's lock until it is closed; raises `UserError` if another agent holds it."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = (folder / "agent.lock").open("w")
    except OSError as error:
        raise UserError(f"state is {folder}, where nothing can be written ({error.strerror}); choose another folder") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.close()
        raise UserError(f"another agent uses {folder}; stop it, or choose another state folder") from error
    return lock
