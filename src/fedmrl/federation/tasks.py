"""Whole runs as tasks of a Ray cluster, each on one CPU of any node."""

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Generic, NamedTuple, TypeVar

from fedmrl.config import Recipe
from fedmrl.data import Dataset
from fedmrl.engines import EngineChoice
from fedmrl.errors import InterruptedRun, UserError, cause
from fedmrl.federation.hosts import About, Ref, connect, own_errors, ray_library
from fedmrl.federation.launch import OnNotice, run_seeds
from fedmrl.files import replacing

T = TypeVar("T")
_LOOK = 1.0  # seconds between two looks at the clock


@dataclass(frozen=True)
class Done(Generic[T]):
    """A task that has ended: its name, and its value or why there is none."""

    name: str
    value: T | None
    failure: str = ""


def run_tasks(
    work: Callable[..., T], arguments: Mapping[str, Sequence[Any]], until: float = inf, imports: Sequence[str] = ()
) -> Generator[Done[T], None, None]:
    """Calls `work` on the cluster with each of these arguments, and yields each as it ends.

    At `until`, by the monotonic clock, or when nobody listens any more, those that run are ended. Ray starts a task again whose
    node is lost. A `UserError` ends them all.
    """
    ray, _ = connect()
    here = About.here(imports)
    task = ray.remote(_with_about).options(num_cpus=1)
    values = {id(value): value for of_task in arguments.values() for value in of_task}
    refs = {key: ray.put(value) for key, value in values.items()}  # what several tasks share is sent to a node once
    running = {task.remote(work, imports, [refs[id(value)] for value in of_task]): name for name, of_task in arguments.items()}
    try:
        while running and time.monotonic() < until:
            ended, _ = ray.wait(list(running), num_returns=1, timeout=min(_LOOK, max(0.0, until - time.monotonic())))
            for ref in ended:
                name = running.pop(ref)
                try:
                    with own_errors(ray):
                        about, value = ray.get(ref)
                except UserError:
                    raise
                except Exception as error:
                    yield Done(name, None, cause(getattr(error, "cause", None) or error))
                else:
                    here.check("that ran " + name, about)
                    yield Done(name, value)
    finally:
        for ref in running:
            with suppress(Exception):
                ray.cancel(ref, force=True)


def _with_about(work: Callable[..., T], imports: Sequence[str], values: Sequence[Ref]) -> tuple[About, T]:
    about = About.here(imports)  # before the values are read, which may be of imported classes
    return about, work(*ray_library().get(list(values)))


class WholeRun(NamedTuple):
    """A run of some seeds, with the folder of each."""

    recipe: Recipe
    seeds: Sequence[int]
    folders: Sequence[Path]


def run_elsewhere(
    runs: Mapping[str, WholeRun], *, models: Any, small: Any, data: Dataset | None, keep: bool, tell: OnNotice
) -> None:
    """Runs each on a CPU of the cluster and writes its folders here, as if it had run here.

    Left out is what has begun here, and what fails.
    """
    runs = {name: run for name, run in runs.items() if not any((path / "config.toml").exists() for path in run.folders)}
    imports = list(dict.fromkeys(name for run in runs.values() for name in run.recipe.imports))
    arguments = {name: (run.recipe, run.seeds, models, small, data, keep) for name, run in runs.items()}
    try:
        with closing(run_tasks(_folders_of, arguments, imports=imports)) as ends:
            for done in ends:
                for folder, files in zip(runs[done.name].folders, done.value or (), strict=False):
                    for name, content in files.items():
                        (folder / name).parent.mkdir(parents=True, exist_ok=True)
                        with replacing(folder / name) as part:
                            part.write_bytes(content)
                tell(
                    f"{done.name}: done" if done.value else f"{done.name} failed on the cluster ({done.failure}); it runs here"
                )
    except KeyboardInterrupt:
        raise InterruptedRun(0, 0, None) from None


def check_tasks(engine: EngineChoice, device: str) -> None:
    """Raises `UserError` for what tasks cannot have: each is a run on one CPU."""
    if device == "cuda" or engine not in ("auto", "reference"):
        raise UserError("ray runs each on a CPU by the reference engine; leave out engine and device")


def _folders_of(
    recipe: Recipe, seeds: Sequence[int], models: Any, small: Any, data: Dataset | None, keep: bool
) -> list[dict[str, bytes]]:
    """The files of each seed's folder, `summary.json` last."""
    with TemporaryDirectory(prefix="fedmrl-") as root:
        outs = [Path(root) / str(seed) for seed in seeds]
        run_seeds(recipe, seeds, outs=outs, device="cpu", models=models, small=small, data=data, keep=keep)
        return [_files(out) for out in outs]


def _files(folder: Path) -> dict[str, bytes]:
    paths = sorted((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.name == "summary.json")
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}
