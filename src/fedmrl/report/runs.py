"""Finished runs as they lie in their folders, and the series they make: a method in a setting, over its seeds."""

import hashlib
import json
import shlex
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, FiniteFloat, TypeAdapter, ValidationError

from fedmrl.errors import UserError
from fedmrl.federation.folder import flat
from fedmrl.federation.summary import curve
from fedmrl.methods import METHODS

T = TypeVar("T")


class _Part(BaseModel):
    """A part of a run's files, as far as it is read here; newer versions may write more."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class LastAndBest(_Part):
    """Accuracy at the last round and at the best."""

    last: FiniteFloat
    best: FiniteFloat
    best_round: int


class Sent(_Part):
    """What all clients together sent, or were sent."""

    parameters: FiniteFloat
    bytes: FiniteFloat


class Target(_Part):
    """What it took to reach an accuracy; nothing of it where it was not reached."""

    target: FiniteFloat
    accuracy_of: str
    reached: bool
    rounds: int = 0
    parameters: FiniteFloat = 0
    flops: FiniteFloat = 0
    paper_parameters: FiniteFloat = 0
    paper_flops: FiniteFloat = 0


class Client(_Part):
    """What a client is, what it has, and how well it does at the end."""

    model: str
    classes: str
    train_samples: int
    test_samples: int
    rounds: int
    accuracy: FiniteFloat


class Summary(_Part):
    """A finished run's `summary.json`."""

    method: str
    seed: int
    rounds: int
    mode: str
    view: str
    engine: str = "not recorded"
    device: str
    versions: dict[str, str]
    accuracy: dict[str, dict[str, dict[str, LastAndBest]]]
    inference: dict[str, dict[str, FiniteFloat]]
    communication: dict[str, Sent]
    flops: FiniteFloat
    targets: list[Target]
    seconds: dict[str, FiniteFloat]
    together: int = 1
    """How many seeds were run as one; `seconds` are of all of them."""
    clients: list[Client]
    class_names: list[str] | None = None
    split: list[dict[int, int]] | None = None
    """Training samples by class, for each client; runs of version 0.1 do not have it."""


class Record(_Part):
    """A line of `rounds.jsonl`."""

    round: int
    accuracy: dict[str, dict[str, dict[str, FiniteFloat]]]


@dataclass(frozen=True)
class FinishedRun:
    """A run that came to its end, read from its folder."""

    folder: Path
    config: str
    summary: Summary
    records: Sequence[Mapping[str, Any]]
    split_digest: str
    """Equal for runs whose clients have the same samples."""

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Every key of the recipe but the seed, by its path."""
        return {key: value for key, value in flat(tomllib.loads(self.config)).items() if key != "seed"}

    def headline(self, protocol: str) -> float:
        """What a protocol reports: fair, all clients at the last round; paper, the best round's participants."""
        if protocol == "paper":
            return self.best.best
        return self.summary.accuracy["all"][self.summary.view][self.summary.mode].last

    @property
    def best(self) -> LastAndBest:
        """What the paper's protocol counts, and in which round it was."""
        return self.summary.accuracy["participants"]["own"][self.summary.mode]

    def curve(self, protocol: str) -> list[tuple[int, float]]:
        """Accuracy by round, as a protocol counts it."""
        return list(curve(self.records, *self._counted(protocol), self.summary.mode))

    def _counted(self, protocol: str) -> tuple[str, str]:
        """Whose accuracy a protocol looks at, and with which models."""
        return ("all", self.summary.view) if protocol == "fair" else ("participants", "own")

    @property
    def idle(self) -> int:
        """How many clients never took part."""
        return sum(not client.rounds for client in self.summary.clients)

    @property
    def seconds(self) -> float:
        """Of this seed: an equal share, where several were run as one."""
        return sum(self.summary.seconds.values()) / self.summary.together


@dataclass(frozen=True)
class Series:
    """Runs that differ in their seed only, in the order of their seeds."""

    name: str
    runs: Sequence[FinishedRun]

    @property
    def first(self) -> FinishedRun:
        """Stands for all in what does not depend on the seed."""
        return self.runs[0]

    @property
    def seeds(self) -> list[int]:
        """The seeds there are."""
        return [run.summary.seed for run in self.runs]


def find_runs(paths: Sequence[Path]) -> tuple[list[FinishedRun], list[str]]:
    """The finished runs in these folders or right below them, and a sentence for each that is left out."""
    runs: dict[Path, FinishedRun] = {}
    left_out: list[str] = []
    for path in paths:
        below = _folders(path)
        several = below != [path]
        for folder in below:
            if not (unfinished := _unfinished(folder)):
                runs[folder.resolve()] = _read(folder)
            elif several:
                left_out.append(unfinished)
            else:
                raise UserError(unfinished)
        if several and not any(folder.resolve() in runs for folder in below):
            raise UserError(f"{path}: none of its runs is finished; {left_out[-1]}")
    return list(runs.values()), left_out


def _folders(path: Path) -> list[Path]:
    if not path.is_dir():
        is_what = "is a file" if path.exists() else "does not exist"
        raise UserError(f"{path} {is_what}; name the folder of a run, of 'fedmrl run --seeds' or of 'fedmrl compare'")
    if (path / "config.toml").is_file():
        return [path]
    below = sorted((child for child in path.iterdir() if (child / "config.toml").is_file()), key=lambda child: child.name)
    if not below:
        raise UserError(f"{path} holds no run (a folder with config.toml and summary.json); name one that 'fedmrl run' wrote")
    return below


def _unfinished(folder: Path) -> str | None:
    """What keeps a run off the page, if it is not finished."""
    path = folder / "summary.json"
    summary = _json(path, _text(path)) if path.is_file() else {}
    if not isinstance(summary, dict):
        raise UserError(f"{path} is not a summary; run it again into another folder")
    match summary.get("status"):
        case "finished":
            return None
        case "diverged":
            reason = summary["diverged"].get("reason") if isinstance(summary.get("diverged"), dict) else None
            return f"{folder} diverged, so it has no result: {reason or 'its summary does not say where'}"
        case _:
            return f"{folder} is not finished; go on with it by 'fedmrl run {shlex.quote(str(folder))} --resume'"


def _read(folder: Path) -> FinishedRun:
    config, split, rounds = (_text(folder / name) for name in ("config.toml", "split.json", "rounds.jsonl"))
    try:
        tomllib.loads(config)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{folder / 'config.toml'} is damaged ({error}); run it again into another folder") from error
    summary = _checked(
        folder / "summary.json", TypeAdapter(Summary), _json(folder / "summary.json", _text(folder / "summary.json"))
    )
    lines = [_json(folder / "rounds.jsonl", line) for line in rounds.splitlines()]
    records = [record.model_dump() for record in _checked(folder / "rounds.jsonl", TypeAdapter(list[Record]), lines)]
    run = FinishedRun(folder, config, summary, records, hashlib.sha256(split.encode()).hexdigest())
    try:
        if not (all(run.curve(protocol) and run.headline(protocol) >= 0 for protocol in ("fair", "paper")) and summary.clients):
            raise KeyError("its rounds")
    except KeyError as error:
        raise UserError(f"{folder} lacks the accuracy of {error}; run it again into another folder") from error
    return run


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); the page is made from it") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is damaged: it is not text; run it again into another folder") from error


def _json(path: Path, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is damaged ({error}); run it again into another folder") from error


def _checked(path: Path, wanted: TypeAdapter[T], plain: Any) -> T:
    try:
        return wanted.validate_python(plain)
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(map(str, problem["loc"])) or "its content"
        raise UserError(f"{path} is damaged ({where}: {problem['msg']}); run it again into another folder") from error


def make_series(runs: Iterable[FinishedRun]) -> list[Series]:
    """Runs that differ in their seed only become one series; a seed that is there already begins another."""
    groups: list[list[FinishedRun]] = []
    for run in runs:
        for group in groups:
            if group[0].settings == run.settings and run.summary.seed not in [other.summary.seed for other in group]:
                group.append(run)
                break
        else:
            groups.append([run])
    ordered = [sorted(group, key=lambda run: run.summary.seed) for group in groups]
    return [Series(name, group) for name, group in zip(_names([group[0] for group in ordered]), ordered, strict=True)]


def _names(firsts: Sequence[FinishedRun]) -> Iterator[str]:
    """The method's title; where that is not enough, with what sets it apart."""
    titles = [METHODS[run.summary.method].title if run.summary.method in METHODS else run.summary.method for run in firsts]
    for title, run in zip(titles, firsts, strict=True):
        alike = [other for other, its in zip(firsts, titles, strict=True) if its == title]
        differs = differing(alike)
        said = ", ".join(f"{key.removeprefix('method.')} = {_setting(run, key)}" for key in differs)
        same = [other for other in alike if other.settings == run.settings]
        if len(alike) == 1:
            yield title
        elif len(same) > 1 or len(differs) > 3:
            yield f"{title} ({run.folder.name})"
        else:
            yield f"{title} ({said})"


def _setting(run: FinishedRun, key: str) -> Any:
    """A setting's value; of a file its name alone, since where it lies is nobody's business."""
    value = run.settings.get(key, "not set")
    return Path(value).name if isinstance(value, str) and Path(value).is_absolute() else value


def differing(runs: Sequence[FinishedRun]) -> list[str]:
    """The keys in which these runs' recipes differ."""
    keys = sorted({key for run in runs for key in run.settings})
    return [key for key in keys if len({repr(run.settings.get(key)) for run in runs}) > 1]
