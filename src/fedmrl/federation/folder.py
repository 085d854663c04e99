"""A run's folder: `config.toml`, `split.json`, `rounds.jsonl`, `clients.csv`, `summary.json` and `checkpoint/`."""

import csv
import hashlib
import io
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedmrl.config import Recipe, read_origins, settings_of
from fedmrl.data import ClientSplit
from fedmrl.data.partition import split_json
from fedmrl.errors import UserError
from fedmrl.federation.checkpoint import Checkpoint, Snapshot
from fedmrl.federation.store import Store
from fedmrl.files import sha256_of, user_path, write_whole
from fedmrl.registry import is_file
from fedmrl.results import WHOSE, ClientResults, Outcome, Record, RunResult, Whose, check_files, read_summary
from fedmrl.schema import checked, parsed, read_text

try:
    import fcntl
except ImportError:  # not a Unix: nothing is held there
    fcntl = None  # type: ignore[assignment]

_OVERHEAD = 0.02  # of the time, that checkpoints may take


class RunFolder:
    """Where a run is written. Made by `create` or `reopen`, which refuse what would harm another run."""

    def __init__(self, path: Path, recipe: Recipe) -> None:
        self.path, self.recipe = path, recipe
        self._held = _held(path)
        self.beside = 0
        """Runs that are made together with this one, and write checkpoints in the same time."""
        self.keeps = True
        """Whether clients' states are kept when the run is over; until then they are, so that it can go on."""
        self.checkpoint = Checkpoint(path / "checkpoint")
        self._log = hashlib.sha256()  # of `rounds.jsonl` as far as it is written
        self._next_save = 0.0

    @classmethod
    def create(cls, path: Path, recipe: Recipe, splits: Sequence[ClientSplit]) -> "RunFolder":
        """A new run's folder; one that is there already must be empty."""
        refuse_used(path)
        try:
            config = recipe.to_toml()
            config.encode()
        except UnicodeEncodeError as error:
            raise UserError(f"a name in the recipe is not text ({error.reason}); rename that file") from error
        try:
            path.mkdir(parents=True, exist_ok=True)
            (path / "rounds.jsonl").touch()
        except OSError as error:
            raise UserError(f"{path} cannot be written ({error.strerror}); name another folder with --out") from error
        folder = cls(path, recipe)
        write_whole(path / "split.json", split_json(splits))
        if found := inputs(recipe):
            write_whole(path / "inputs.json", json.dumps(found))
        if came_from := recipe.origins:
            write_whole(path / "origins.json", json.dumps(came_from))
        write_whole(path / "rounds.jsonl", "")
        write_whole(path / "config.toml", config)
        return folder

    def close(self) -> None:
        """Others may write here again."""
        if self._held is not None:
            os.close(self._held)
            self._held = None

    @classmethod
    def reopen(cls, path: Path, recipe: Recipe, splits: Sequence[ClientSplit]) -> "RunFolder":
        """The folder of a run that goes on: same recipe, same split."""
        config = path / "config.toml"
        if not config.is_file():
            raise UserError(f"{path} holds no run to resume; leave out --resume to start one there")
        try:
            before = settings_of(config.read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:
            raise UserError(f"{config} is damaged ({error}); the run cannot go on, start it anew elsewhere") from error
        now = settings_of(recipe.to_toml())
        for settings in (before, now):  # which files are imported is compared by what they hold
            settings.pop("imports", None)
        changed = [key for key in sorted(before.keys() | now.keys()) if before.get(key) != now.get(key)]
        if changed:
            said = "; ".join(f"{key} was {_said(before, key)}, is now {_said(now, key)}" for key in changed)
            raise UserError(f"{path} was started with another recipe: {said}; use the same, or another --out")
        split = path / "split.json"
        if not split.is_file() or split.read_bytes() != split_json(splits).encode():
            raise UserError(f"{split} differs from the split that this recipe gives today: the data has changed since")
        if (then := _comparable(read_origins(path))) != (today := _comparable(recipe.origins)):
            key = min(key for key in then.keys() | today.keys() if then.get(key) != today.get(key))
            ours = "fedmrl itself"
            raise UserError(
                f"{path} was started with another thing: {key} came from {then.get(key, ours)}, and comes from "
                f"{today.get(key, ours)} now; use the same, or another --out"
            )
        for key, before_it in read_inputs(path).items():
            if inputs(recipe).get(key) != before_it:
                raise UserError(
                    f"the file that {key} names has changed since {path} was started; use the same, or another --out"
                )
        return cls(path, recipe)

    def finished(self, tell: Callable[[str], None]) -> RunResult | None:
        """The result of a run that came to its end, if it did. One that is damaged is made anew, which is told."""
        path = self.path / "summary.json"
        if not path.is_file():
            return None
        try:
            plain = read_summary(path)
            if isinstance(plain, dict) and plain.get("status") == "diverged":
                return None
            result = checked(path, RunResult, plain)
            self._check_result(result)
            if "sha256" not in plain:
                tell(f"{path} was written by a version that kept no checksum; it is taken as it is")
        except UserError:
            tell(f"{path} is damaged; it is made anew, from the last checkpoint if there is one")
            return None
        if isinstance(files := plain.get("files"), dict):
            self._check_files(files, result.rounds)
        return result.of_run(self.path, self.recipe.to_toml(), read_text(self.path / "split.json"), self.records(result.rounds))

    def _check_result(self, result: RunResult) -> None:
        recipe, path = self.recipe, self.path / "summary.json"
        if (result.method, result.seed, result.rounds) != (recipe.method.name, recipe.seed, recipe.rounds):
            raise UserError(f"{path} is of another run")
        for view in recipe.views:
            recorded = [result.accuracy[whose].get(view) for whose in WHOSE]
            at_the_end = result.inference.get(view) or ()
            if any(set(recipe.recorded_modes) - set(found or ()) for found in recorded) or set(recipe.method.modes) - set(
                at_the_end
            ):
                raise UserError(f"{path} lacks accuracies")
        if len(result.clients) != recipe.clients:
            raise UserError(f"{path} is not of {recipe.clients} clients")

    def records(self, rounds: int) -> tuple[Record, ...]:
        """The first so many rounds. What comes after them may be cut off in the middle of a line."""
        path = self.path / "rounds.jsonl"
        lines = path.read_bytes().splitlines()[:rounds] if path.is_file() else []
        if len(lines) < rounds:
            raise UserError(f"{path} has lost rounds; the run cannot go on, start it anew in another folder")
        records = [checked(path, Record, parsed(path, line)) for line in lines]
        for number, record in enumerate(records, start=1):
            if record.round != number or not self._measured(record):
                raise UserError(f"{path} is damaged (line {number} is not that round); run it again into another folder")
        return tuple(records)

    def _measured(self, record: Record) -> bool:
        """Whether a record has every accuracy that the recipe asks for."""
        wanted: list[Whose] = ["participants"] if record.participants else []
        wanted += ["all"] if self.recipe.evaluates_all(record.round) else []
        means = [record.accuracy[whose] for whose in wanted]
        by_view = [found.get(view) for found in means if found for view in self.recipe.views]
        return None not in means and not any(set(self.recipe.recorded_modes) - set(modes or ()) for modes in by_view)

    def load(self, store: Store, tell: Callable[[str], None]) -> Snapshot | None:
        """The last whole round that was saved, with its records; the log is cut back to it.

        Every file that it reads must be as the run wrote it.
        """
        found = self.checkpoint.load(store)
        if found is None:
            if (self.path / "rounds.jsonl").stat().st_size:
                tell(f"{self.path} has rounds and no checkpoint of them; it starts again from round 1")
            write_whole(self.path / "rounds.jsonl", "")
            return None
        snapshot, written = found
        if written is None:
            tell(f"{self.path} was begun by a version that kept no checksums; its files are taken as they are")
        else:
            self._check_files(written, snapshot.rounds)
        snapshot = replace(snapshot, records=self.records(snapshot.rounds))
        self.write_records(snapshot)
        return snapshot

    def _check_files(self, written: Mapping[str, str], rounds: int) -> None:
        try:
            check_files(self.path, written, rounds)
        except UserError as error:
            raise UserError(f"{error}; the run cannot go on, start it anew in another folder") from error

    def _written(self) -> dict[str, str]:
        """The SHA-256 of each file beside the checkpoint that a resumed run reads."""
        names = ("config.toml", "split.json", "inputs.json", "origins.json")
        there = {name: self.path / name for name in names if (self.path / name).is_file()}
        return {**{name: sha256_of(path) for name, path in there.items()}, "rounds.jsonl": self._log.hexdigest()}

    def write_records(self, snapshot: Snapshot) -> None:
        """All rounds so far."""
        text = "".join(_line(record) for record in snapshot.records)
        write_whole(self.path / "rounds.jsonl", text)
        self._log = hashlib.sha256(text.encode())

    def append(self, snapshot: Snapshot) -> None:
        """The newest round; the checkpoint too, unless the last one is so fresh that it would cost more than it saves."""
        line = _line(snapshot.records[-1])
        with (self.path / "rounds.jsonl").open("a", encoding="utf-8") as file:
            file.write(line)
        self._log.update(line.encode())
        if time.monotonic() >= self._next_save:
            self.save(snapshot)

    def save(self, snapshot: Snapshot) -> None:
        """The checkpoint, now."""
        started = time.monotonic()
        self.checkpoint.save(snapshot, self._written())
        ended = time.monotonic()
        self._next_save = ended + (ended - started) * (1 + self.beside) / _OVERHEAD

    def save_last(self, snapshot: Snapshot) -> None:
        """The checkpoint after the last round, if it is kept."""
        if self.keeps:
            self.save(snapshot)

    def write_result(self, outcome: Outcome) -> None:
        """`clients.csv` and then `summary.json`, with which the run is over."""
        if isinstance(outcome, RunResult):
            self._write_clients(outcome.clients)
        write_whole(self.path / "summary.json", outcome.to_json(self._written()))
        if not self.keeps:
            self.checkpoint.drop()

    def _write_clients(self, clients: ClientResults) -> None:
        rows, text = clients.rows(), io.StringIO()
        writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        write_whole(self.path / "clients.csv", text.getvalue())


def _line(record: Record) -> str:
    return json.dumps(record.plain()) + "\n"


def inputs(recipe: Recipe) -> dict[str, str]:
    """A fingerprint of each file that the recipe names, by its key."""
    named: dict[str, Any] = {"participation": recipe.participation}
    named |= {f"data.{field}": getattr(recipe.data, field) for field in recipe.data.path_fields()}
    named |= {f"imports[{place}]": name for place, name in enumerate(recipe.imports) if is_file(name)}
    paths = {key: user_path(name, key) for key, name in named.items() if isinstance(name, str)}
    return {key: hashlib.sha256(path.read_bytes()).hexdigest() for key, path in paths.items() if path.is_file()}


def read_inputs(path: Path) -> dict[str, str]:
    """Of the run that was started there; a run of an older fedmrl has none."""
    file = path / "inputs.json"
    return checked(file, dict[str, str], parsed(file, read_text(file))) if file.exists() else {}


def _comparable(origins: Mapping[str, str]) -> dict[str, str]:
    """Origins without the folders that files lie in: a file may have moved, and what it holds is compared anyway."""
    return {key: Path(origin).name if is_file(origin) else origin for key, origin in origins.items()}


def _held(path: Path) -> int | None:
    """The folder, held until it is closed: two runs in one folder would write over each other's files."""
    if fcntl is None:
        return None
    folder = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(folder)
        raise UserError(f"{path} is being written by another fedmrl; wait until it is done, or name another --out") from error
    return folder


def refuse_used(path: Path) -> None:
    """Refuse a folder in which something would be overwritten."""
    if path.exists() and not path.is_dir():
        raise UserError(f"{path} is a file; --out must name a folder")
    if (path / "config.toml").exists():
        raise UserError(f"{path} already holds a run; name another --out, or go on with it by --resume")
    begun = {
        "split.json",
        "inputs.json",
        "origins.json",
        "rounds.jsonl",
    }  # what a run that was killed while its folder was made leaves
    if path.exists() and any(entry.name not in begun and entry.suffix != ".part" for entry in path.iterdir()):
        raise UserError(f"{path} is not empty; name a new folder with --out")


def new_folder(name: str, root: Path = Path("runs")) -> Path:
    """Make a folder under `runs/` that no run has yet: the name and the next free number.

    It is made here and now, so that of two runs that start together each gets one of its own.
    """
    stem = name.replace("/", "-")
    number = 1
    while True:
        path = root / f"{stem}-{number}"
        try:
            root.mkdir(parents=True, exist_ok=True)
            with suppress(FileNotFoundError):  # another run has just removed an empty root
                if not path.exists():
                    path.mkdir()
                    return path
                number += 1
        except FileExistsError:
            if not root.is_dir():
                raise UserError(f"{root} is a file; remove it, or name another folder with --out") from None
        except OSError as error:
            raise UserError(f"{path} cannot be written ({error.strerror}); name another folder with --out") from error


def drop_empty(*paths: Path) -> None:
    """Remove those of these folders that are empty."""
    for path in paths:
        with suppress(OSError):
            path.rmdir()


def _said(settings: Mapping[str, Any], key: str) -> str:
    return repr(settings[key]) if key in settings else "not set"
