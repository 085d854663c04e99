"""The clients of a federation on Flower: each keeps its model, data and state, and every reply is checked."""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from time import monotonic, sleep
from typing import Any, NamedTuple, TypeVar

import torch
from pydantic import Field

from fedmrl.config import Recipe
from fedmrl.engines import Terms
from fedmrl.errors import UserCodeError, UserError
from fedmrl.federation.clients import Clients, Enrolled, NoReply, Reply, Request, Roster, Score
from fedmrl.files import check_sha256, sha256_of_json, write_whole
from fedmrl.flower import protocol
from fedmrl.flower.frame import FrameError
from fedmrl.flower.grid import Post, Unanswered
from fedmrl.flower.protocol import Evaluate, EvaluateOk, Failure, Hello, HelloOk, Train, TrainOk
from fedmrl.flower.registration import Registered
from fedmrl.flower.server_config import ServerConfig
from fedmrl.flower.server_folder import recipe_text
from fedmrl.guard import is_line
from fedmrl.messages import Tensors, check_form
from fedmrl.methods import Round
from fedmrl.schema import Part, checked, parsed, read_text

_FIRST_HELLO, _LATER_HELLO = 120.0, 20.0
"""Seconds to reply to a hello: before the first round, and between two, when the other clients wait."""
_FIRST_PAUSE, _LAST_PAUSE = 30.0, 1800.0  # seconds before a client that failed to greet is greeted again

T = TypeVar("T", HelloOk, TrainOk, EvaluateOk)


class TooFewReplies(UserError):  # noqa: N818  (the name of what happened)
    """A round had too few good replies, however often it was tried."""


class Joined(Part):
    """A client that has taken up a run, as written to `federation.json`."""

    name: str
    model: str
    train: int
    test: int
    classes: dict[int, int] | None = None

    def enrolled(self) -> Enrolled:
        """As the server's round loop knows it."""
        return Enrolled(self.name, self.model, self.train, self.test, self.classes)


class Members(Part):
    """`federation.json` in a run's folder: the run's name at the clients, and those who have joined, by number.

    It has its own SHA-256, not one in the checkpoint, as clients join between a round's checkpoint and the next.
    """

    run: str
    clients: dict[int, Joined] = Field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> "Members":
        """Reads the file back; raises `UserError` if it is not as it was written."""
        plain = parsed(path, read_text(path))
        written = plain.pop("sha256", None) if isinstance(plain, dict) else None
        check_sha256(path, sha256_of_json(plain) if written else "", str(written or "-"))
        return checked(path, cls, _numbers_as_keys(plain))

    def write(self, path: Path) -> None:
        """Writes the file."""
        plain = self.model_dump(mode="json")
        write_whole(path, json.dumps({**plain, "sha256": sha256_of_json(plain)}, indent=1) + "\n")


def _numbers_as_keys(plain: Any) -> Any:
    """JSON has text as keys, and numbers are clients and classes."""
    if isinstance(plain, dict):
        return {int(key) if key.isdecimal() else key: _numbers_as_keys(value) for key, value in plain.items()}
    return plain


def _norm(tensors: Iterable[torch.Tensor]) -> float:
    return math.sqrt(sum(float(tensor.double().square().sum()) for tensor in tensors))


class _BadReplyError(Exception):
    """A reply that does not count; the message says why, as a clause about the client, in one line."""

    def __init__(self, reason: str) -> None:
        super().__init__(protocol.one_line(reason))


class _Refused(NamedTuple):
    """A client whose last hello failed: why, and when it is greeted again, after ever longer pauses."""

    reason: str
    pause: float
    until: float


class _StrangerError(_BadReplyError):
    """The client's agent does not know this run, and needs a hello first."""


class FlowerClients(Clients):
    """The clients of one run that are reached over Flower.

    A client joins by answering `hello`, when the run begins or between two rounds, and stays in the roster when it is gone.
    """

    scores_every_round = False
    device = torch.device("cpu")

    def __init__(
        self,
        post: Post,
        registered: Callable[[], Sequence[Registered]],
        recipe: Recipe,
        terms: Terms,
        config: ServerConfig,
        members: Members,
        tell: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._post, self._registered, self._tell = post, registered, tell
        self._recipe, self._terms, self._config = recipe, terms, config
        self._text = recipe_text(recipe)
        self._form, self._answer_form = terms.upload_form, terms.answer_form
        self.members = members
        self.file: Path | None = None
        """Where the members are written when some have joined."""
        self._greeted: set[int] = set()
        self._refused: dict[int, _Refused] = {}
        """These clients are asked for nothing but a hello."""

    # ---- joining ----

    def roster(self, run: int = 0) -> Roster:
        """See `Clients`."""
        return {number: joined.enrolled() for number, joined in sorted(self.members.clients.items())}

    def admit(self, seconds: float = _LATER_HELLO) -> list[int]:
        """Lets connected clients that have not joined do so, in at most this time; returns their numbers."""
        joined = dict(self.members.clients)
        for number, greeting in self._hello(self._new(), seconds).items():
            if isinstance(greeting, Unanswered):
                self._tell(f"{self._called(number)} {greeting.reason}; it does not take part")
            elif number not in joined:
                joined[number] = greeting
        found = sorted(joined.keys() - self.members.clients.keys())
        if found:
            self.members = Members(run=self.members.run, clients=dict(sorted(joined.items())))
            self.write_members()
            for number in found:
                one = joined[number]
                self._tell(f"{one.name} joins as client {number} ({one.model}, {one.train} training samples)")
        return found

    def write_members(self) -> None:
        """Writes `federation.json`, if the run has a folder."""
        if self.file is not None:
            self.members.write(self.file)

    def gather(self, least: int, seconds: float) -> None:
        """Waits until all registered clients have joined, or for this time; raises `UserError` if fewer than `least` have.

        A client that joined before the run was interrupted counts once it has taken up the run again.
        """
        until = monotonic() + seconds
        while True:
            self.admit(_FIRST_HELLO)
            here = len(self._greeted)
            if here >= len(self._registered()) or monotonic() >= until:
                break
            sleep(1)
        if here < least:
            raise UserError(
                f"{here} of {len(self._registered())} registered clients have joined within {seconds:g} seconds, and a round "
                f"needs {least}; start the others, or lower min_clients"
            )

    def _new(self) -> list[int]:
        """The connected clients that have not been greeted, but for those whose last hello failed lately."""
        waiting = {number for number, refused in self._refused.items() if monotonic() < refused.until}
        return sorted(self._post.connected().keys() - self._greeted - waiting)

    def _hello(self, numbers: Sequence[int], seconds: float) -> dict[int, Joined | Unanswered]:
        """Begins or goes on with the run at these clients."""
        if not numbers:
            return {}
        requests = {number: Hello(run=self.members.run, client=number, recipe=self._text) for number in numbers}
        frames = {number: protocol.to_bytes(request) for number, request in requests.items()}
        replies = self._post.exchange(frames, "query", "hello", min(self._config.round_seconds, seconds))
        found: dict[int, Joined | Unanswered] = {}
        for number, reply in replies.items():
            try:
                hello, _ = self._read(HelloOk, requests[number].id, reply)
                found[number] = self._joined(number, hello)
                self._greeted.add(number)
                self._refused.pop(number, None)
            except _BadReplyError as bad:
                found[number] = Unanswered(str(bad))
                self._greeted.discard(number)
                pause = min(2 * self._refused[number].pause, _LAST_PAUSE) if number in self._refused else _FIRST_PAUSE
                self._refused[number] = _Refused(str(bad), pause, monotonic() + pause)
        return found

    def _joined(self, number: int, hello: HelloOk) -> Joined:
        registered = self._called(number)
        if hello.name != registered:
            raise _BadReplyError(f"calls itself {hello.name[:80]!r}, and its key is registered as {registered}")
        if not hello.train or not hello.test:
            raise _BadReplyError("has no training or no test samples")
        most = self._config.max_samples
        for kind, count in (("training", hello.train), ("test", hello.test)):
            if count > most:
                raise _BadReplyError(f"has {count:,} {kind} samples, and at most {most:,} are taken")
        if not is_line(hello.model) or len(hello.model) > 200:
            raise _BadReplyError("calls its model something that is no short line of text")
        joined = Joined(name=hello.name, model=hello.model, train=hello.train, test=hello.test, classes=self._classes(hello))
        if (before := self.members.clients.get(number)) is not None and before != joined:
            raise _BadReplyError("has other data or another model than when it joined this run")
        return joined

    def _classes(self, hello: HelloOk) -> dict[int, int] | None:
        """The client's training samples by class, if it tells them."""
        if hello.classes is None:
            return None
        labels = {str(label): label for label in range(self._terms.common.classes)}
        if not hello.classes.keys() <= labels.keys():
            raise _BadReplyError("names classes that the recipe does not have")
        if (counted := sum(hello.classes.values())) != hello.train:
            raise _BadReplyError(f"counts {counted:,} training samples by class, and has {hello.train:,}")
        return {labels[label]: count for label, count in hello.classes.items()}

    def _called(self, number: int) -> str:
        return next((client.name for client in self._registered() if client.number == number), f"client {number}")

    # ---- rounds ----

    def train(self, round_: Round, requests: Sequence[Request], upcoming: Sequence[Request] = ()) -> list[Reply | NoReply]:
        """See `Clients`. With too few good replies the clients that gave none are asked again, some times."""
        found: dict[int, Reply | NoReply] = {}
        for attempt in range(1, self._config.attempts + 1):
            asked = [request for request in requests if not isinstance(found.get(request.client), Reply)]
            found |= self._train_once(round_, asked)
            good = sum(isinstance(reply, Reply) for reply in found.values())
            if not (lack := self._lack(good, len(requests))):
                return [found[request.client] for request in requests]
            for none in found.values():
                if isinstance(none, NoReply):
                    self._tell(self._sentence(none, round_))
            if attempt < self._config.attempts:
                self._tell(
                    f"round {round_.index + 1} has {good} good replies; trying again in {self._config.pause_seconds:g} s"
                )
                sleep(self._config.pause_seconds)
        raise TooFewReplies(
            f"round {round_.index + 1} has {good} good replies{lack}, after "
            f"{self._config.attempts} attempts; the rounds before it are kept, so resume when the clients are back"
        )

    def _lack(self, good: int, asked: int) -> str:
        """What so many good replies lack, as a clause; nothing if they are enough."""
        # Of the clients that a round asks, some may not have joined yet.
        if good < (least := min(self._config.min_clients, asked)):
            return f" and needs {least}"
        try:
            if asked:
                self._terms.aggregation.check(good)
        except UserCodeError:
            raise
        except UserError as error:
            return f", too few for its rule ({error})"
        return ""

    def _sentence(self, none: NoReply, round_: Round) -> str:
        return f"client {none.client} ({self._called(none.client)}), round {round_.index + 1}: it {none.reason}; left out"

    def _train_once(self, round_: Round, requests: Sequence[Request]) -> dict[int, Reply | NoReply]:
        run, total = self.members.run, round_.total
        messages = {
            r.client: (Train(run=run, round=round_.index, rounds=total, since=r.since, earlier=r.earlier), r.content or {})
            for r in requests
        }
        replies = self._ask(TrainOk, messages, "train", str(round_.index + 1))
        found: dict[int, Reply | NoReply] = {}
        for client, reply in replies.items():
            try:
                if isinstance(reply, Unanswered):
                    raise _BadReplyError(reply.reason)
                found[client] = self._reply(round_, client, *reply)
            except _BadReplyError as bad:
                found[client] = NoReply(client, str(bad))
        return found

    def _reply(self, round_: Round, client: int, trained: TrainOk, upload: Tensors) -> Reply:
        if trained.round != round_.index:
            raise _BadReplyError(f"sent round {trained.round + 1}, and was asked for round {round_.index + 1}")
        if trained.loss is None or not trained.finite:
            raise _BadReplyError("has a loss or weights that became NaN or infinite")
        try:
            check_form(upload, self._form)
        except UserError as error:
            raise _BadReplyError(f"sent an upload that does not fit: {error}") from error
        for name, tensor in upload.items():
            if not torch.isfinite(tensor).all():
                raise _BadReplyError(f"sent {name} with values that are NaN or infinite")
        norm = _norm(upload.values())
        if not norm <= self._config.max_norm:
            raise _BadReplyError(f"sent an upload of norm {norm:.3g}, and at most {self._config.max_norm:.3g} is taken")
        self._check_counts(client, "own", trained.correct, self._recipe.recorded_modes)
        told = torch.tensor([trained.loss, 1.0], dtype=torch.float64)
        correct = {mode: trained.correct[mode] for mode in self._recipe.recorded_modes}
        return Reply(client, upload, told, trained.flops, correct=correct)

    def _check_counts(self, client: int, view: str, counts: Mapping[str, int], modes: Sequence[str]) -> None:
        if missing := set(modes) - set(counts):
            raise _BadReplyError(f"lacks counts of correct predictions ({view}, {min(missing)})")
        tested = self.members.clients[client].test
        if any(count > tested for count in counts.values()):
            raise _BadReplyError(f"counts more correct predictions than its {tested} test samples")

    def check_server(self, round_: Round, server: Tensors) -> None:
        """See `Clients`: what the server would send must be finite, of the method's form, and of a norm that clients take."""
        what = f"round {round_.index + 1} gives a state that clients would refuse"
        kept = "the rounds before it are kept; see to its uploads and max_norm, then resume"
        for client in self.members.clients:
            content = self._terms.method.answer(server, client, round_.index)
            try:
                check_form(content, self._answer_form)
            except UserError as error:
                raise UserError(f"{what} ({error}); {kept}") from error
            norm = _norm(tensor for tensor in content.values() if tensor.is_floating_point())
            if not norm <= self._config.max_norm:
                raise UserError(f"{what} (it has norm {norm:.3g}, and max_norm is {self._config.max_norm:.3g}); {kept}")

    def evaluate(self, requests: Sequence[Request], modes: Sequence[str]) -> list[Score]:
        """See `Clients`; raises `UserError` if no client replies."""
        run, views = self.members.run, self._recipe.views
        messages = {
            r.client: (Evaluate(run=run, since=r.since, content=r.content is not None, modes=list(modes)), r.content or {})
            for r in requests
        }
        scores: list[Score] = []
        for client, reply in self._ask(EvaluateOk, messages, "evaluate", "evaluation").items():
            try:
                if isinstance(reply, Unanswered):
                    raise _BadReplyError(reply.reason)
                correct = {view: reply[0].correct.get(view, {}) for view in views}  # type: ignore[call-overload]
                for view, counts in correct.items():
                    self._check_counts(client, view, counts, modes)
                scores.append(Score(client, correct))
            except _BadReplyError as bad:
                self._tell(f"client {client} ({self._called(client)}): it {bad!s}; it is not evaluated")
        if requests and not scores:
            raise TooFewReplies("no client could be evaluated; the rounds so far are kept, so resume when the clients are back")
        return scores

    def facts(self, run: int) -> dict[str, Any]:
        """See `Clients`."""
        data = self._recipe.data
        return {"store": "clients", "class_names": list(getattr(data, "classes", ())) or None}

    # ---- messages ----

    def _ask(
        self, kind: type[T], messages: Mapping[int, tuple[protocol.Request, Tensors]], name: str, group: str
    ) -> dict[int, tuple[T, Tensors] | Unanswered]:
        """Each client's typed reply, in the order of the messages; a client that is new or asks for it gets a `hello` first."""
        until = monotonic() + self._config.round_seconds
        if messages.keys() - self._greeted:
            self._hello([number for number in self._new() if number in messages], _LATER_HELLO)
        found: dict[int, tuple[T, Tensors] | Unanswered] = {
            number: Unanswered(self._refused[number].reason) for number in messages if number in self._refused
        }
        asked = {number: message for number, message in messages.items() if number not in found}
        replies, strangers = self._ask_once(kind, asked, name, group, self._config.round_seconds)
        found |= replies
        if strangers:  # their agents were started again
            greeted = self._hello(sorted(strangers), _FIRST_HELLO)
            found |= {number: reply for number, reply in greeted.items() if isinstance(reply, Unanswered)}
            known = {number: messages[number] for number in strangers - found.keys()}
            again, strangers = self._ask_once(kind, known, name, group, max(until - monotonic(), 1.0))
            found |= again | {number: Unanswered("does not know this run, even after a hello") for number in strangers}
        return {number: found[number] for number in messages}

    def _ask_once(
        self, kind: type[T], messages: Mapping[int, tuple[protocol.Request, Tensors]], name: str, group: str, seconds: float
    ) -> tuple[dict[int, tuple[T, Tensors] | Unanswered], set[int]]:
        """The clients' replies, and the clients that need a hello first."""
        frames = {number: protocol.to_bytes(message, content) for number, (message, content) in messages.items()}
        found: dict[int, tuple[T, Tensors] | Unanswered] = {}
        strangers: set[int] = set()
        for number, reply in self._post.exchange(frames, name, group, seconds).items():
            try:
                found[number] = self._read(kind, messages[number][0].id, reply)
            except _StrangerError:
                strangers.add(number)
            except _BadReplyError as bad:
                found[number] = Unanswered(str(bad))
        return found, strangers

    def _read(self, kind: type[T], message_id: str, reply: bytes | Unanswered) -> tuple[T, Tensors]:
        """A reply of this kind to this message."""
        if isinstance(reply, Unanswered):
            raise _BadReplyError(reply.reason)
        most = int(self._config.max_megabytes * 1e6)
        if len(reply) > most:
            raise _BadReplyError(f"sent {len(reply):,} bytes, and at most {most:,} are taken")
        try:
            message, arrays = protocol.read_reply(reply, max_body=most)
        except FrameError as error:
            raise _BadReplyError(f"sent a reply that cannot be read: {error}") from error
        if isinstance(message, Failure):
            if message.reason == "hello-first":
                raise _StrangerError("does not know this run")
            raise _BadReplyError(f"refused: {' '.join(message.sentence.split())[:300]}")
        if message.id != message_id:
            raise _BadReplyError("replied to another message")
        if not isinstance(message, kind):
            raise _BadReplyError(f"sent {message.type}, which is no reply to this")
        return message, protocol.to_tensors(arrays)
