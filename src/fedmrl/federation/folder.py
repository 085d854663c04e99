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

import torch

from fedmrl.config import Recipe, read_origins, settings_of
from fedmrl.data import ClientSplit
from fedmrl.data.images import files_read
from fedmrl.data.partition import split_json
from fedmrl.errors import UserError
from fedmrl.federation.checkpoint import Checkpoint, Restore, SaveStates, Snapshot
from fedmrl.files import sha256_of, user_path, write_whole
from fedmrl.registry import is_file
from fedmrl.results import WHOSE, ClientResults, Outcome, Record, RunResult, Whose, check_files, read_summary
from fedmrl.schema import Part, checked, parsed, read_text

try:
    import fcntl
except ImportError:  # not a Unix: no locks there
    fcntl = None  # type: ignore[assignment]

_OVERHEAD = 0.02  # the share of the run time that checkpoints may take
_CODE_FAILED = "code-failed"
"""An empty file in the folder of a run that users' code ended."""


class Spent(Part):
    """A round that spends privacy, a line of `privacy.jsonl`; one that was lost and run again is there twice."""

    round: int
    """Counted from 1."""
    clients: int
    """The number from whom those asked were drawn."""
    asked: list[int]


class RunFolder:
    """The folder of a run, from `create` or `reopen`, which raise `UserError` rather than overwrite another run."""

    def __init__(self, path: Path, recipe: Recipe) -> None:
        self.path, self.recipe = path, recipe
        self._lock = _locked(path)
        self.concurrent_runs = 0
        """Other runs that write checkpoints alongside this one."""
        self.keeps = True
        """Whether to keep clients' states after the run; during it they are always kept, for resuming."""
        self.checkpoint = Checkpoint(path / "checkpoint")
        self.saves_every_round = False
        """Whether to save a checkpoint after every round, whatever time it takes."""
        self._log = hashlib.sha256()  # of `rounds.jsonl` so far
        self._next_save = 0.0

    @classmethod
    def create(cls, path: Path, recipe: Recipe, splits: Sequence[ClientSplit]) -> "RunFolder":
        """Creates the folder of a new run; an existing one must be empty."""
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
            raise UserError(f"{path} cannot be written ({error.strerror}); choose another output folder") from error
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
        """Unlocks the folder."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    @classmethod
    def reopen(cls, path: Path, recipe: Recipe, splits: Sequence[ClientSplit]) -> "RunFolder":
        """Opens the folder of a run to resume it; recipe and split must be the same."""
        config = path / "config.toml"
        if not config.is_file():
            raise UserError(f"{path} holds no run to resume; start one there without resume")
        try:
            before = settings_of(config.read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:
            raise UserError(f"{config} is damaged ({error}); the run cannot be resumed, start it again elsewhere") from error
        now = settings_of(recipe.to_toml())
        for settings in (before, now):  # which files are imported is compared by what they hold
            settings.pop("imports", None)
        changed = [key for key in sorted(before.keys() | now.keys()) if before.get(key) != now.get(key)]
        if changed:
            changes = "; ".join(f"{key} was {_shown(before, key)}, is now {_shown(now, key)}" for key in changed)
            raise UserError(f"{path} was started with another recipe: {changes}; use the same, or another output folder")
        split = path / "split.json"
        if not split.is_file():
            raise UserError(f"{split} is missing, by which a run sees that its data has not changed; start it again elsewhere")
        if split.read_bytes() != split_json(splits).encode():
            raise UserError(f"{split} differs from the split that this recipe now gives: the data has changed since")
        if (then := _comparable(read_origins(path))) != (today := _comparable(recipe.origins)):
            key = min(key for key in then.keys() | today.keys() if then.get(key) != today.get(key))
            ours = "fedmrl itself"
            raise UserError(
                f"{path} was started with another thing: {key} came from {then.get(key, ours)}, and comes from "
                f"{today.get(key, ours)} now; use the same, or another output folder"
            )
        mended = (path / _CODE_FAILED).exists()
        for key, before_it in read_inputs(path).items():
            if mended and key.startswith("imports["):
                continue
            if inputs(recipe).get(key) != before_it:
                raise UserError(
                    f"the file that {key} names has changed since {path} was started; use the same, or another output folder"
                )
        return cls(path, recipe)

    def finished(self, tell: Callable[[str], None]) -> RunResult | None:
        """The result of a finished run, else None; a damaged one is reported to `tell`, and the run repeats what it lacks."""
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
                tell(f"{path} was written by a version without checksums; it is used unchecked")
        except UserError:
            tell(f"{path} is damaged; the run resumes from the last checkpoint, or starts again")
            return None
        if isinstance(files := plain.get("files"), dict):
            self._check_files(files, result.rounds)
        result = result.model_copy(update={"ran": self.recipe})
        return result.of_run(self.path, self.recipe.to_toml(), read_text(self.path / "split.json"), self.records(result.rounds))

    def _check_result(self, result: RunResult) -> None:
        recipe, path = self.recipe, self.path / "summary.json"
        rounds = result.rounds if result.privacy and result.privacy.stopped else recipe.rounds
        if (result.method, result.seed, result.rounds) != (recipe.method.name, recipe.seed, rounds):
            raise UserError(f"{path} belongs to another run")
        for view in recipe.views:
            unrecorded = any(set(recipe.recorded_modes) - set(result.accuracy[whose].get(view) or ()) for whose in WHOSE)
            if unrecorded or set(recipe.method.modes) - set(result.inference.get(view) or ()):
                raise UserError(f"{path} lacks accuracies")
        if len(result.clients) != recipe.clients:
            raise UserError(f"{path} does not have {recipe.clients} clients")

    def records(self, rounds: int) -> tuple[Record, ...]:
        """The records of the first `rounds` rounds; the lines after them may be incomplete."""
        path = self.path / "rounds.jsonl"
        lines = path.read_bytes().splitlines()[:rounds] if path.is_file() else []
        if len(lines) < rounds:
            raise UserError(f"{path} has lost rounds; the run cannot be resumed, start it again in another folder")
        records = [checked(path, Record, parsed(path, line)) for line in lines]
        for number, record in enumerate(records, start=1):
            if record.round != number or not self._measured(record):
                raise UserError(f"{path} is damaged (line {number} is not that round); run it again into another folder")
        return tuple(records)

    def _measured(self, record: Record) -> bool:
        """Whether a record has every accuracy that the recipe requires."""
        expected: list[Whose] = ["participants"] if record.participants else []
        expected += ["all"] if self.recipe.evaluates_all(record.round) else []
        means = {whose: record.accuracy[whose] for whose in expected}
        # Clients over a network count their correct predictions right after training, before the server has aggregated.
        views = {"participants": ("own",), "all": self.recipe.views}
        by_view = [found.get(view) for whose, found in means.items() if found for view in views[whose]]
        return None not in means.values() and not any(set(self.recipe.recorded_modes) - set(modes or ()) for modes in by_view)

    def load(self, device: torch.device, restore: Restore, tell: Callable[[str], None]) -> Snapshot | None:
        """Loads the last checkpoint with its records, and truncates the log to it; every file's SHA-256 must match.

        `restore` hands the clients their states.
        """
        found = self.checkpoint.load(device)
        if found is None:
            if (self.path / "rounds.jsonl").stat().st_size:
                tell(f"{self.path} has rounds and no checkpoint of them; it starts again from round 1")
            write_whole(self.path / "rounds.jsonl", "")
            return None
        snapshot, files, written = found
        if written is None:
            tell(f"{self.path} was started by a version without checksums; its files are used unchecked")
        else:
            self._check_files(written, snapshot.rounds)
        with self.checkpoint.damage_told():
            restore(snapshot.last_round, files)
        snapshot = replace(snapshot, records=self.records(snapshot.rounds))
        self.write_records(snapshot)
        return snapshot

    def _check_files(self, written: Mapping[str, str], rounds: int) -> None:
        try:
            check_files(self.path, written, rounds)
        except UserError as error:
            raise UserError(f"{error}; the run cannot be resumed, start it again in another folder") from error

    def _checksums(self) -> dict[str, str]:
        """The SHA-256 of each file outside the checkpoint that resuming reads."""
        names = ("config.toml", "split.json", "inputs.json", "origins.json")
        there = {name: self.path / name for name in names if (self.path / name).is_file()}
        return {**{name: sha256_of(path) for name, path in there.items()}, "rounds.jsonl": self._log.hexdigest()}

    def write_spent(self, spent: Spent) -> None:
        """Writes down for good that a round spends privacy, before it begins."""
        with (self.path / "privacy.jsonl").open("a", encoding="utf-8") as file:
            file.write(spent.model_dump_json() + "\n")
            file.flush()
            os.fsync(file.fileno())

    def read_spent(self, rounds: int) -> list[Spent]:
        """All rounds that spent privacy, of which at least the first `rounds` must be there."""
        path = self.path / "privacy.jsonl"
        text = read_text(path) if path.is_file() else ""
        if not text.endswith("\n"):  # cut off while it was written, so its round never began
            text = text[: text.rfind("\n") + 1]
            write_whole(path, text)
        found = [checked(path, Spent, parsed(path, line)) for line in text.splitlines()]
        if not {*range(1, rounds + 1)} <= {spent.round for spent in found}:
            raise UserError(f"{path} has lost rounds; the run cannot be resumed, start it again in another folder")
        return found

    def write_records(self, snapshot: Snapshot) -> None:
        """Writes the records of all rounds so far."""
        text = "".join(_line(record) for record in snapshot.records)
        write_whole(self.path / "rounds.jsonl", text)
        self._log = hashlib.sha256(text.encode())

    def append(self, snapshot: Snapshot, states: SaveStates) -> None:
        """Appends the latest round's record, and saves a checkpoint if one is due."""
        line = _line(snapshot.records[-1])
        with (self.path / "rounds.jsonl").open("a", encoding="utf-8") as file:
            file.write(line)
        self._log.update(line.encode())
        if self.saves_every_round or time.monotonic() >= self._next_save:
            self.save(snapshot, states)

    def save(self, snapshot: Snapshot, states: SaveStates) -> None:
        """Saves a checkpoint now."""
        started = time.monotonic()
        self.checkpoint.save(snapshot, states, self._checksums())
        ended = time.monotonic()
        self._next_save = ended + (ended - started) * (1 + self.concurrent_runs) / _OVERHEAD

    def allow_changed_code(self) -> None:
        """Lets a resumed run import changed files, as users' code that failed has to be mended."""
        write_whole(self.path / _CODE_FAILED, "")  # a file of its own: no other one, nor the checkpoint, has to change with it

    def save_last(self, snapshot: Snapshot, states: SaveStates) -> None:
        """Saves the checkpoint after the last round, if states are kept."""
        if self.keeps:
            self.save(snapshot, states)

    def write_result(self, outcome: Outcome) -> None:
        """Writes `clients.csv`, then `summary.json`, which marks the run as ended."""
        if isinstance(outcome, RunResult):
            self._write_clients(outcome.clients)
        write_whole(self.path / "summary.json", outcome.to_json(self._checksums()))
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
    """The SHA-256 of each file and folder that the recipe names, by its key."""
    named: dict[str, Any] = {"participation": recipe.participation}
    for field in recipe.data.path_fields():
        value = getattr(recipe.data, field)
        listed = enumerate(value) if isinstance(value, list) else []
        named |= {f"data.{field}[{place}]": one for place, one in listed} or {f"data.{field}": value}
    for place, model in enumerate(recipe.models.named):
        named |= {f"models {model.name} {place}.{field}": getattr(model, field) for field in model.path_fields()}
    named |= {f"imports[{place}]": name for place, name in enumerate(recipe.imports) if is_file(name)}
    paths = {key: user_path(name, key) for key, name in named.items() if isinstance(name, str)}
    found = {key: sha256_of(path) for key, path in paths.items() if path.is_file()}
    return found | {
        key: _sha256_of_folder(path) for key, path in paths.items() if key.startswith("data.files") and path.is_dir()
    }


def _sha256_of_folder(folder: Path) -> str:
    """The SHA-256 of the images that are read in a folder, with their names."""
    digest = hashlib.sha256()
    for path in files_read(folder):
        digest.update(f"{path.relative_to(folder)} {sha256_of(path)}\n".encode())
    return digest.hexdigest()


def read_inputs(path: Path) -> dict[str, str]:
    """The `inputs` of the run in a folder; runs of older versions have none."""
    file = path / "inputs.json"
    return checked(file, dict[str, str], parsed(file, read_text(file))) if file.exists() else {}


def _comparable(origins: Mapping[str, str]) -> dict[str, str]:
    """Origins without folders: a file may have moved, and its content is compared by its SHA-256."""
    return {key: Path(origin).name if is_file(origin) else origin for key, origin in origins.items()}


def _locked(path: Path) -> int | None:
    """Locks a folder until the descriptor is closed: two runs in it would overwrite each other's files."""
    if fcntl is None:
        return None
    folder = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(folder)
        raise UserError(f"{path} is being written by another fedmrl; wait for it, or choose another folder") from error
    return folder


def refuse_used(path: Path) -> None:
    """Raises `UserError` for a folder in which files would be overwritten."""
    if path.exists() and not path.is_dir():
        raise UserError(f"{path} is a file; name a folder as out")
    if (path / "config.toml").exists():
        raise UserError(f"{path} already holds a run; name another folder as out, or resume the run")
    # A run that was killed while its folder was made leaves only these.
    leftovers = {"split.json", "inputs.json", "origins.json", "rounds.jsonl"}
    if path.exists() and any(entry.name not in leftovers and entry.suffix != ".part" for entry in path.iterdir()):
        raise UserError(f"{path} is not empty; name a new folder as out, or delete this one")


def new_folder(name: str, root: Path = Path("runs")) -> Path:
    """Creates a folder for a run under `runs/`, from its name and the next free number.

    Creating it at once gives two runs that start at the same time different folders.
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
                raise UserError(f"{root} is a file; remove it, or choose another output folder") from None
        except OSError as error:
            raise UserError(f"{path} cannot be written ({error.strerror}); choose another output folder") from error


def drop_empty(*paths: Path) -> None:
    """Removes the folders that are empty."""
    for path in paths:
        with suppress(OSError):
            path.rmdir()


def _shown(settings: Mapping[str, Any], key: str) -> str:
    return repr(settings[key]) if key in settings else "not set"
