"""A client's states of one run on disk, by round, with the last reply; an interruption leaves either the old or the new ones.

The folder of a run has `index.json`, which lists the current files with the SHA-256 of each and of itself, and is replaced
last. It holds two states: the one after the last training, and the one that this training continued from, until a later
training says which of the two counts.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from pydantic import ConfigDict, Field, NonNegativeInt, ValidationError

from fedmrl.errors import UserError
from fedmrl.federation.store import file_name
from fedmrl.files import check_sha256, replacing, sha256_of_bytes, sha256_of_text, write_whole
from fedmrl.flower.protocol import EvaluateOk
from fedmrl.messages import Tensors
from fedmrl.schema import Part, first_problem
from fedmrl.states import StateFile, read_state, write_state

INDEX = "index.json"


class Held(Part):
    """A state that the client holds."""

    file: str
    sha256: str
    earlier: NonNegativeInt
    """The number of trainings that led to it."""


class Index(Part):
    """What the client knows of a run; `states` by round."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    run: str
    client: NonNegativeInt
    recipe_sha256: str
    recipe: str = ""
    """The recipe's text; empty in folders of older versions, until the server greets again."""
    initial: bool = True
    """Whether a training may continue from the initial state, which needs no file."""
    states: dict[int, Held] = Field(default_factory=dict)
    last_round: int = -1
    """The last round of training, which may have ended without a state, if it diverged."""
    asked_sha256: str = ""
    """The digest of its request."""
    reply_file: str = ""
    reply_sha256: str = ""
    evaluated: list[str] = Field(default_factory=list)
    """The digests of the evaluations that were answered."""
    received_file: str = ""
    received_sha256: str = ""
    """What the server sent last for an evaluation: its shared part after a round."""
    received_since: int = -1
    """The round of the client's state that was evaluated with it; -1 for the initial one."""

    @property
    def held(self) -> list[int | None]:
        """The rounds after which the client has a state; None: the initial one."""
        return [*([None] if self.initial else []), *sorted(self.states)]


class RunStates:
    """A client's states of one run, and its last reply."""

    def __init__(self, folder: Path, index: Index) -> None:
        self.folder, self.index = folder, index
        self.evaluated: dict[str, EvaluateOk] = {}
        """The replies to evaluations since the start, by their requests' digests."""

    @property
    def begun(self) -> bool:
        """Whether the client has trained or been evaluated in this run, so that it has a folder."""
        return bool(self.index.reply_file or self.index.evaluated)

    @classmethod
    def open(cls, folder: Path) -> "RunStates | None":
        """The states in a run's folder, if there is an index; raises `UserError` if it is damaged."""
        path = folder / INDEX
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{path} cannot be read ({error}); restore it from a backup, or delete the folder") from error
        try:
            plain = json.loads(text)
            written = plain.pop("sha256")
            check_sha256(path, _digest(plain), str(written) or "-")
            index = Index.model_validate_json(json.dumps(plain))
        except ValidationError as error:
            raise UserError(f"{path} is damaged ({first_problem(error)}); restore it from a backup") from error
        except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{path} is damaged ({type(error).__name__}); restore it from a backup") from error
        return cls(folder, index)

    def load(self, round_: int) -> Tensors:
        """The state after a round; raises `UserError` that names the file if it is missing or damaged."""
        held = self.index.states[round_]
        return self._read(held.file, held.sha256)

    def _read(self, name: str, sha256: str) -> Tensors:
        file = StateFile(self.folder / name, sha256)
        try:
            return read_state(file, torch.device("cpu"))
        except OSError as error:
            raise UserError(f"{file.path} cannot be read ({error.strerror}); restore it from a backup") from error

    def reply(self) -> bytes:
        """The last training's reply."""
        path = self.folder / self.index.reply_file
        try:
            content = path.read_bytes()
        except OSError as error:
            raise UserError(f"{path} cannot be read ({error.strerror}); restore it from a backup") from error
        check_sha256(path, sha256_of_bytes(content), self.index.reply_sha256)
        return content

    def prepared(self, round_: int, since: int | None, state: Tensors | None, reply: bytes, asked_sha256: str) -> Index:
        """Writes a training's state and reply to files, and returns the index that will list them.

        Without a state the training has diverged, and all earlier states remain. An `OSError` leaves nothing behind.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        changes: dict[str, Any] = {"last_round": round_, "asked_sha256": asked_sha256}
        reply_path = self.folder / f"reply-round-{round_ + 1:05d}.frame"
        try:
            with replacing(reply_path) as part:
                part.write_bytes(reply)
            if state is not None:
                path = self.folder / file_name(self.index.client, round_)
                before = {since: self.index.states[since]} if since is not None else {}
                earlier = before[since].earlier if since is not None else 0
                file = write_state(state, path)
                held = Held(file=path.name, sha256=file.sha256, earlier=earlier + 1)
                changes |= {"initial": since is None, "states": {**before, round_: held}}
        except OSError:
            self.discard()
            raise
        changes |= {"reply_file": reply_path.name, "reply_sha256": sha256_of_bytes(reply)}
        return self.index.model_copy(update=changes)

    def received(self) -> Tensors | None:
        """What the server sent last for an evaluation; None if it has sent nothing since the last training."""
        index = self.index
        if not index.received_file or index.received_since < max(index.states, default=-1):
            return None
        return self._read(self.index.received_file, self.index.received_sha256)

    def count_evaluation(self, asked_sha256: str, since: int | None, received: Tensors) -> None:
        """Writes down that an evaluation is answered, so that a restart does not allow it again, and what came with it.

        `since` is the round of the state that was evaluated.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        changes: dict[str, Any] = {"evaluated": [*self.index.evaluated, asked_sha256]}
        if received:
            file = write_state(received, self.folder / f"received-{asked_sha256[:16]}.safetensors")
            changes |= {"received_file": file.path.name, "received_sha256": file.sha256}
            changes["received_since"] = -1 if since is None else since
        self.commit(self.index.model_copy(update=changes))

    def commit(self, index: Index) -> None:
        """Replaces the index by one that was prepared, then deletes what it does not list."""
        plain = index.model_dump(mode="json")
        try:
            write_whole(self.folder / INDEX, json.dumps({**plain, "sha256": _digest(plain)}, indent=1))
        except OSError:
            self.discard()
            raise
        self.index = index
        self.discard()

    def discard(self) -> None:
        """Deletes the files that the index does not list."""
        current = {INDEX, self.index.reply_file, self.index.received_file, *(held.file for held in self.index.states.values())}
        for path in self.folder.iterdir():
            if path.name not in current:
                path.unlink(missing_ok=True)
        if not (self.folder / INDEX).exists():
            self.folder.rmdir()


def _digest(plain: Mapping[str, Any]) -> str:
    return sha256_of_text(json.dumps(plain, sort_keys=True))
