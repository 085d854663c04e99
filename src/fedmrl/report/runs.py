"""Finished runs as they lie in their folders, and the series they make: a method in a setting, over its seeds."""

import hashlib
import shlex
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fedmrl.errors import UserError
from fedmrl.federation.folder import settings_of
from fedmrl.federation.summary import curve
from fedmrl.federation.written import LastAndBest, Summary, parsed, read_records, read_summary, read_text
from fedmrl.methods import METHODS
from fedmrl.protocols import PROTOCOLS, Protocol, counted


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
        return {key: value for key, value in settings_of(self.config).items() if key != "seed"}

    def headline(self, protocol: Protocol) -> float:
        """The accuracy that counts under a protocol."""
        whose, view, which = counted(protocol, self.summary.view)
        found = self.summary.accuracy[whose][view][self.summary.mode]
        return found.best if which == "best" else found.last

    def clients(self, protocol: Protocol) -> list[float]:
        """Each client's accuracy at the end; `paper` has no count of its own, and is given the headline's."""
        view = "own" if protocol == "own" else self.summary.view
        return [client.accuracy_by(view, self.summary.mode) for client in self.summary.clients]

    @property
    def best(self) -> LastAndBest:
        """What the paper's protocol counts, and in which round it was."""
        return self.summary.accuracy["participants"]["own"][self.summary.mode]

    def curve(self, protocol: Protocol) -> list[tuple[int, float]]:
        """Accuracy by round, as a protocol counts it."""
        whose, view, _ = counted(protocol, self.summary.view)
        return list(curve(self.records, whose, view, self.summary.mode))

    @property
    def idle(self) -> int:
        """How many clients never took part."""
        return sum(not client.rounds for client in self.summary.clients)

    @property
    def ways(self) -> dict[str, list[str]]:
        """The ways to predict that were measured at the end, by view."""
        return {view: sorted(modes) for view, modes in self.summary.inference.items()}

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
    summary = parsed(path, read_text(path)) if path.is_file() else {}
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
    config, split = read_text(folder / "config.toml"), read_text(folder / "split.json")
    try:
        tomllib.loads(config)
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        raise UserError(f"{folder / 'config.toml'} is damaged ({error}); run it again into another folder") from error
    summary = read_summary(folder / "summary.json")
    records = [record.model_dump() for record in read_records(folder / "rounds.jsonl")]
    digest = hashlib.sha256(f"{len(summary.clients)} {split}".encode()).hexdigest()
    run = FinishedRun(folder, config, summary, records, digest)
    try:
        if not all(run.curve(protocol) for protocol in PROTOCOLS):
            raise KeyError("its rounds")
    except KeyError as error:
        raise UserError(f"{folder} lacks the accuracy of {error}; run it again into another folder") from error
    return run


def make_series(runs: Iterable[FinishedRun]) -> list[Series]:
    """Runs that differ in their seed only become one series; a seed that is there already begins another."""
    groups: list[list[FinishedRun]] = []
    for run in runs:
        for group in groups:
            same = (group[0].settings, group[0].ways) == (run.settings, run.ways)
            if same and run.summary.seed not in [other.summary.seed for other in group]:
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
