"""The result of a run: returned by `run`, stored in `summary.json`, and shown in pages and tables."""

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, InstanceOf, RootModel, model_validator

from fedmrl.config import Recipe, recipe_of_run, settings_of
from fedmrl.data import Preparation
from fedmrl.errors import DivergedError, UserError
from fedmrl.export import FinalNets, InRunFolder, TrainedClient, nets_in_folder
from fedmrl.files import check_sha256, output_path, sha256_of_bytes, sha256_of_json, sha256_of_text
from fedmrl.results.accuracy import Accuracy, ByMode, ByView, LastAndBest, Whose
from fedmrl.results.costs import Target
from fedmrl.results.leaves import Leaves
from fedmrl.results.protocols import PROTOCOLS, Protocol, counted
from fedmrl.results.record import Record, Traffic, curve, read_records
from fedmrl.schema import Part, checked, parsed, read_text

if TYPE_CHECKING:
    import pandas


class ClientResult(Part):
    """One client at the end: its model, data and accuracy, also by view and mode (`own_mix-large`)."""

    model_config = ConfigDict(extra="allow")

    client: int
    model: str
    classes: str
    """The class labels in its training data."""
    train_samples: int
    test_samples: int
    rounds: int
    """The number of rounds in which it took part."""
    accuracy: float

    @model_validator(mode="after")
    def _accuracies(self) -> Self:
        for name, value in (self.model_extra or {}).items():
            if not isinstance(value, float | int):
                raise ValueError(f"{name} is not a number")
        return self

    def accuracy_by(self, view: str, mode: str) -> float:
        """The client's accuracy in a view and mode."""
        return float((self.model_extra or {}).get(f"{view}_{mode}", self.accuracy))


class ClientResults(RootModel[list[ClientResult]]):
    """All clients at the end, one row each."""

    model_config = ConfigDict(frozen=True, strict=True, allow_inf_nan=False)

    def __getitem__(self, place: int) -> ClientResult:
        return self.root[place]

    def __iter__(self) -> Iterator[ClientResult]:  # type: ignore[override]
        return iter(self.root)

    def __len__(self) -> int:
        return len(self.root)

    def rows(self) -> list[dict[str, Any]]:
        """The rows as plain data, as in `clients.csv`."""
        return [client.model_dump(mode="json") for client in self.root]

    def to_pandas(self) -> "pandas.DataFrame":
        """The rows as a data frame, if pandas is installed."""
        try:
            import pandas
        except ImportError as error:
            raise UserError("to_pandas needs the package pandas; install it with: pip install pandas") from error
        return pandas.DataFrame(self.rows())


class Communication(Part):
    """Total traffic of all clients, up and down."""

    up: Traffic
    down: Traffic


class PrivacySpent(Part):
    """The differential privacy that a run has spent, and how it was made."""

    mode: Literal["central", "local"]
    clip: float
    noise: float
    delta: float
    budget: float | None = None
    simulation: bool
    """Whether the noise follows from the seed, so that it protects nobody."""
    epsilon: float
    """At `delta`; in central mode towards those who do not know who took part in which round."""
    epsilon_if_known: float
    """Towards those who know it: that of the client that was asked most often."""
    stopped: bool
    """Whether the run ended early because one more round would have exceeded `budget`."""


class _RunFacts(Part):
    """The fields of finished and diverged runs alike."""

    method: str
    title: str = ""
    """The method's title; empty in runs of version 0.1."""
    colour: Annotated[str, Field(pattern="^#[0-9a-fA-F]{6}$")] | None = None
    """The method's colour, if it defines one."""
    seed: int
    rounds: int
    mode: str
    """The headline's mode of prediction."""
    view: Literal["own", "aggregated"]
    """The headline's view."""
    engine: str = "not recorded"
    device: str
    versions: dict[str, str]
    together: int = 1
    """The number of seeds that ran together; `seconds` are those of all of them."""
    store: str | None = None
    class_names: list[str] | None = None
    """The classes' names; also of older runs and over a network, which have no preparation."""
    preparation: Preparation | None = None
    """What turned raw inputs into what the nets got; None in older runs and over a network."""
    small_model: str | dict[str, Any] | None = None
    """The model that clients share, as in a recipe; None in older runs and if it was given from Python."""
    wall_seconds: float = 0
    """Time of the whole run without interruptions; 0 in runs of version 0.1."""
    cpu_seconds: float = 0
    """CPU time of all cores."""
    privacy: PrivacySpent | None = None
    """None without differential privacy."""

    config: str = Field("", exclude=True, repr=False)
    """The recipe as TOML, as in `config.toml`."""
    ran: Recipe | None = Field(None, exclude=True, repr=False)
    """The recipe with its objects, of a run in this process."""
    folder: Path | None = Field(None, exclude=True)
    """The run's folder, if it was written."""

    @property
    def recipe(self) -> Recipe:
        """The recipe that was run; of a result that was read, its custom classes must be imported first."""
        if self.ran is not None:
            return self.ran
        if self.folder is None or not self.config:
            raise UserError("this result has no recipe: it was read from text alone; read it from its folder")
        return recipe_of_run(self.config, self.folder)

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Every key of the recipe by its path, but the seed, and where things of one's own are imported from."""
        return {key: value for key, value in settings_of(self.config).items() if key not in ("seed", "imports")}

    def to_json(self, files: Mapping[str, str] | None = None) -> str:
        """The text of `summary.json`: the plain data, the SHA-256 of `files` by name, and the SHA-256 of all of this."""
        plain = self.plain() | ({"files": dict(files)} if files else {})
        return json.dumps({**plain, "sha256": sha256_of_json(plain)}, indent=2) + "\n"

    def plain(self) -> dict[str, Any]:
        """The result as plain data."""
        plain = self.model_dump(mode="json", exclude_none=True)
        return {"status": plain.pop("status"), **plain}


class Divergence(Part):
    """Where a run became NaN or infinite."""

    client: int
    round: int
    """Counted from 1."""
    reason: str


class DivergedRun(_RunFacts):
    """A run that stopped without a result because a client's loss or weights became NaN or infinite."""

    status: Literal["diverged"]
    diverged: Divergence

    def error(self) -> DivergedError:
        """The divergence as an exception."""
        return DivergedError(self.diverged.client, self.diverged.round, self.diverged.reason)


class RunResult(_RunFacts):
    """The result of a finished run.

    >>> import fedmrl
    >>> short = {"rounds": 1, "models.local": [{"conv1": 2, "conv2": 2, "fc1": 8, "fc2": 8}], "method.d1": 4}
    >>> result = fedmrl.run("quickstart", settings=short)
    >>> result.accuracy.all.aggregated.last == result.headline(), len(result.clients)
    (True, 50)
    """

    status: Literal["finished"]
    accuracy: Accuracy
    """The mean over clients, by clients, view and mode, at the last and the best round; `accuracy.all.own.last`."""
    inference: ByView[ByMode[float]]
    """The final mean over all clients, by view and every mode of the method."""
    communication: Communication
    flops: int
    """FLOPs of all clients' training."""
    targets: list[Target]
    seconds: dict[str, float]
    """Time by stage."""
    clients: ClientResults
    split: list[dict[Annotated[int, Field(strict=False)], int]] | None = None
    """Each client's training samples by class; None in runs of version 0.1."""
    not_evaluated: list[int] | None = None
    """The clients that gave no counts at the end, so that no mean has them; None if there are none."""
    leaves: Leaves | None = None
    """What leaves a client and what stays; None in older runs and for methods that do not declare it."""
    states_sha256: str | None = None
    """SHA-256 of the server's and every client's final state."""

    records: tuple[Record, ...] = Field((), exclude=True, repr=False)
    """The records of all rounds, as in `rounds.jsonl`."""
    nets: InstanceOf[FinalNets] | None = Field(None, exclude=True, repr=False)
    """What builds clients' final nets, of a run in this process."""
    split_sha256: str = Field("", exclude=True, repr=False)
    """SHA-256 of the split, equal for runs whose clients have the same samples."""

    @model_validator(mode="after")
    def _whole(self) -> Self:
        """Checks that the summary has every value that reports read."""
        required: list[tuple[Whose, str]] = [("all", self.view), ("all", "own"), ("participants", "own")]
        for whose, view in required:
            if self.mode not in (self.accuracy[whose].get(view) or ()):
                raise ValueError(f"there is no accuracy.{whose}.{view}.{self.mode}")
        modes = {view: set(by_mode) for view, by_mode in self.inference.items()}
        if self.mode not in modes.get(self.view, ()) or any(of_view != modes[self.view] for of_view in modes.values()):
            raise ValueError("inference does not have every mode in every view")
        if not len(self.clients) or self.together < 1:
            raise ValueError("clients is empty or together is below 1")
        if self.split is not None and (len(self.split) != len(self.clients) or self.class_names is None):
            raise ValueError("split does not match clients")
        return self

    @classmethod
    def read(cls, folder: str | Path) -> "RunResult":
        """Reads a finished run from its folder, without executing any code that the folder names."""
        path = output_path(folder, "folder")
        if not ended(path):
            raise UserError(f"{path} holds no finished run; name a finished run's folder")
        outcome = read_outcome(path)
        if isinstance(outcome, DivergedRun):
            raise UserError(f"{path} diverged, so it has no result: {outcome.diverged.reason}")
        return outcome

    def of_run(self, folder: Path | None, config: str, split: str, records: Sequence[Record]) -> "RunResult":
        """The result with the other contents of its folder: recipe, split and records."""
        digest = split_digest(split, len(self.clients))
        return self.model_copy(update={"folder": folder, "config": config, "split_sha256": digest, "records": tuple(records)})

    def headline(self, protocol: Protocol = "fair") -> float:
        """The run's accuracy under a protocol."""
        whose, view, which = counted(protocol, self.view)
        found = self.accuracy[whose][view][self.mode]
        return found.best if which == "best" else found.last

    def client(self, number: int, model: Any = None, small: Any = None) -> TrainedClient:
        """A client's trained model, which predicts and can be exported.

        If this result was read from a folder, models that were given from Python are needed again: `model` is the client's,
        `small` the one that all share.

        >>> import fedmrl, numpy as np
        >>> short = {"rounds": 1, "models.local": [{"conv1": 2, "conv2": 2, "fc1": 8, "fc2": 8}], "method.d1": 4}
        >>> result = fedmrl.run("quickstart", settings=short)
        >>> result.client(3).predict(np.zeros((2, 3, 32, 32), np.uint8)).shape
        (2,)
        """
        row = next((row for row in self.clients if row.client == number and number is not True), None)
        if row is None:
            raise UserError(
                f"there is no client {number!r:.80} in the results; they are numbered from 0 to {len(self.clients) - 1}"
            )
        nets = self.nets if self.nets is not None else self._nets_again(number, model, small)
        accuracies = {mode: row.accuracy_by(self.view, mode) for mode in nets.terms.method.modes}
        return TrainedClient(nets, number, self.mode, accuracies)

    def _nets_again(self, number: int, model: Any, small: Any) -> FinalNets:
        """What builds a client's final net from the run's folder, once it is known to have all that this needs."""
        if self.folder is None:
            raise UserError(
                "this run's final models were not kept: it has no folder, and they were not asked for or did not fit into "
                "memory; run it with out="
            )
        states = InRunFolder(self.folder, self.rounds)
        states.of(number)  # first, as it knows best why there are none
        if self.preparation is None or self.split is None:
            raise UserError(
                f"{self.folder} was written by a version that did not record the samples' form; run it again into another "
                "folder"
            )
        held = [*self.split[[row.client for row in self.clients].index(number)]]
        return nets_in_folder(states, self.recipe, self.preparation, self.small_model, number, held, model, small)

    def report(self, path: str | Path) -> Path:
        """Writes the run's page, one self-contained HTML file."""
        from fedmrl.report.page import write_results

        return write_results([self], path)

    @property
    def best(self) -> LastAndBest:
        """The accuracy that the protocol `paper` counts, with its round."""
        return self.accuracy.participants.own[self.mode]

    def of_clients(self, protocol: Protocol = "fair") -> list[float]:
        """Each client's final accuracy; `paper`, which has none, gets the headline's."""
        whose, view, _ = counted(protocol, self.view)
        view = view if whose == "all" else self.view
        return [client.accuracy_by(view, self.mode) for client in self.clients]

    @property
    def worst_client(self) -> float:
        """The lowest headline accuracy of all clients, including those that never took part."""
        return min(client.accuracy for client in self.clients)

    def curve(self, protocol: Protocol = "fair") -> list[tuple[int, float]]:
        """Round and accuracy under a protocol."""
        whose, view, _ = counted(protocol, self.view)
        return list(curve(self.records, whose, view, self.mode))

    @property
    def idle(self) -> int:
        """The number of clients that never took part."""
        return sum(not client.rounds for client in self.clients)

    @property
    def ways(self) -> dict[str, list[str]]:
        """The modes evaluated at the end, by view."""
        return {view: sorted(modes) for view, modes in self.inference.items()}

    @property
    def seconds_of_seed(self) -> float:
        """The run's equal share of the time of all seeds that ran together."""
        return sum(self.seconds.values()) / self.together


Outcome = RunResult | DivergedRun


def ended(folder: Path) -> bool:
    """Whether the run in a folder has ended."""
    return (folder / "summary.json").is_file()


def read_summary(path: Path) -> Any:
    """Reads a `summary.json` after checking its SHA-256, which older versions lack."""
    plain = parsed(path, read_text(path))
    if isinstance(plain, dict) and "sha256" in plain:
        rest = {key: value for key, value in plain.items() if key != "sha256"}
        if plain["sha256"] != sha256_of_json(rest):
            raise UserError(f"{path} is damaged or was changed: its SHA-256 does not match; run it again into another folder")
    return plain


def check_files(folder: Path, written: Mapping[str, str], rounds: int) -> None:
    """Refuse a run's file that is not as it was written; `written` has the SHA-256 of each, by name."""
    for name, digest in written.items():
        path = folder / name
        content = path.read_bytes() if path.is_file() else b""
        if name == "rounds.jsonl":  # what comes after these rounds is not read
            content = b"".join(content.splitlines(keepends=True)[:rounds])
        check_sha256(path, sha256_of_bytes(content), digest)


def read_outcome(folder: Path) -> Outcome:
    """Reads the outcome of the run in a folder."""
    path = folder / "summary.json"
    plain = read_summary(path)
    if isinstance(plain, dict) and plain.get("status") == "diverged":
        text = read_text(folder / "config.toml") if (folder / "config.toml").is_file() else ""
        return checked(path, DivergedRun, plain).model_copy(update={"folder": folder, "config": text})
    config, split = read_text(folder / "config.toml"), read_text(folder / "split.json")
    try:
        tomllib.loads(config)
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        raise UserError(f"{folder / 'config.toml'} is damaged ({error}); run it again into another folder") from error
    result = checked(path, RunResult, plain)
    if isinstance(files := plain.get("files"), dict):
        check_files(folder, files, result.rounds)
    result = result.of_run(folder, config, split, read_records(folder / "rounds.jsonl"))
    _check_curves(result)
    return result


def split_digest(split: str, clients: int) -> str:
    """SHA-256 of a split, from the text of `split.json`."""
    return sha256_of_text(f"{clients} {split}")


def _check_curves(result: RunResult) -> None:
    """Raises `UserError` if the records lack an accuracy that the summary has."""
    for protocol in PROTOCOLS:
        view = counted(protocol, result.view).view
        try:
            found = result.curve(protocol)
        except KeyError:
            found = []
        if not found:
            raise UserError(f"{result.folder} lacks the accuracy of {view!r}; run it again into another folder")


def last_and_best(records: Sequence[Record], whose: Any, view: str, mode: str) -> LastAndBest:
    """Accuracy at the last and at the best round, the first if several are best."""
    points = list(curve(records, whose, view, mode))
    if not points:
        raise UserError("no client has ever replied, so there is no accuracy to sum up; see that clients take part")
    best_round, best = max(points, key=lambda point: (point[1], -point[0]))
    return LastAndBest(last=points[-1][1], best=best, best_round=best_round)
