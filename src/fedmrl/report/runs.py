"""Finished runs, read from folders and grouped into series: one method in one setting, over its seeds."""

import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedmrl.errors import UserError
from fedmrl.methods import METHODS
from fedmrl.report.tables import format_seeds, join_words
from fedmrl.results import DivergedRun, RunResult, ended, read_outcome


@dataclass(frozen=True)
class Series:
    """Runs that differ only in their seed, ordered by it."""

    name: str
    runs: Sequence[RunResult]

    @property
    def first(self) -> RunResult:
        """The first run, for whatever does not depend on the seed."""
        return self.runs[0]

    @property
    def seeds(self) -> list[int]:
        """The seeds of the runs."""
        return [run.seed for run in self.runs]


def find_runs(paths: Sequence[Path]) -> tuple[list[RunResult], list[str]]:
    """Reads the finished runs in these folders and their subfolders; the second list explains each run that is left out."""
    runs: dict[Path, RunResult] = {}
    left_out: list[str] = []
    for path in paths:
        below = _folders(path)
        several = below != [path]
        for folder in below:
            outcome = read_outcome(folder) if ended(folder) else None
            if isinstance(outcome, RunResult):
                runs[folder.resolve()] = outcome
                continue
            sentence = _without_result(folder, outcome)
            if not several:
                raise UserError(sentence)
            left_out.append(sentence)
        left_out += _not_begun(path)
        if several and not any(folder.resolve() in runs for folder in below):
            raise UserError(f"{path}: none of its runs is finished; {left_out[-1]}")
    return list(runs.values()), left_out


def _folders(path: Path) -> list[Path]:
    if not path.is_dir():
        is_what = "is a file" if path.exists() else "does not exist"
        raise UserError(f"{path} {is_what}; name a folder that 'fedmrl run' or 'fedmrl compare' wrote")
    if (path / "config.toml").is_file():
        return [path]
    below = sorted((child for child in path.iterdir() if (child / "config.toml").is_file()), key=lambda child: child.name)
    if not below:
        raise UserError(f"{path} holds no run (a folder with config.toml and summary.json); name one that 'fedmrl run' wrote")
    return below


def _without_result(folder: Path, outcome: DivergedRun | None) -> str:
    if outcome is not None:
        return f"{folder} diverged, so it has no result: {outcome.diverged.reason}"
    return f"{folder} is not finished; resume it with 'fedmrl run {shlex.quote(str(folder))} --resume'"


def run_folder(method: str, seed: int, seeds: Sequence[int]) -> str:
    """The name of a run's folder in that of its comparison."""
    return method if len(seeds) == 1 else f"{method}-seed-{seed}"


def _not_begun(path: Path) -> list[str]:
    """A sentence on the runs of an interrupted comparison that have not begun, if there are any."""
    try:
        plan = json.loads((path / "comparison.json").read_text(encoding="utf-8"))
        planned = [run_folder(method, seed, plan["seeds"]) for method in plan["methods"] for seed in plan["seeds"]]
    except (OSError, ValueError, LookupError, TypeError):  # no comparison, or one whose file was changed by hand
        return []
    missing = [name for name in planned if not (path / name / "config.toml").is_file()]
    if not missing:
        return []
    return [
        f"{join_words(missing)} {'has' if len(missing) == 1 else 'have'} not begun; repeat the command of the comparison with "
        f"--out {shlex.quote(str(path))} --resume"
    ]


def title_of(run: RunResult) -> str:
    """The method's title."""
    return run.title or (METHODS[run.method].title if run.method in METHODS else run.method)


def make_series(runs: Iterable[RunResult]) -> list[Series]:
    """Groups runs that differ only in their seed; a repeated seed starts another series."""
    groups: list[list[RunResult]] = []
    for run in runs:
        for group in groups:
            # Rounds differ between seeds of one recipe if a privacy budget ended them.
            same = (group[0].settings, group[0].ways, group[0].rounds) == (run.settings, run.ways, run.rounds)
            if same and run.seed not in [other.seed for other in group]:
                group.append(run)
                break
        else:
            groups.append([run])
    ordered = [sorted(group, key=lambda run: run.seed) for group in groups]
    return [Series(name, group) for name, group in zip(_names([group[0] for group in ordered]), ordered, strict=True)]


def _names(firsts: Sequence[RunResult]) -> list[str]:
    unnamed = [re.sub(r"-seed-\d+$", "", run.folder.name) if run.folder else format_seeds([run.seed]) for run in firsts]
    return names_apart([title_of(run) for run in firsts], [run.settings for run in firsts], unnamed)


def names_apart(titles: Sequence[str], settings: Sequence[Mapping[str, Any]], otherwise: Sequence[str]) -> list[str]:
    """A name for each series: its title, and if several share it, the settings in which they differ.

    If the settings are the same or more than three differ, the name has the text from `otherwise` instead.

    >>> names_apart(["A", "B", "B"], [{}, {"method.d1": 4}, {"method.d1": 8}], ["", "", ""])
    ['A', 'B (d1 = 4)', 'B (d1 = 8)']
    """
    return [
        _name([other for other, its in enumerate(titles) if its == title], place, title, settings, otherwise[place])
        for place, title in enumerate(titles)
    ]


def _name(alike: Sequence[int], place: int, title: str, settings: Sequence[Mapping[str, Any]], otherwise: str) -> str:
    if len(alike) == 1:
        return title
    differs = differing([settings[other] for other in alike])
    same = [other for other in alike if settings[other] == settings[place]]
    if len(same) > 1 or len(differs) > 3:
        return f"{title} ({otherwise})"
    said = ", ".join(f"{key.removeprefix('method.')} = {_setting(settings[place], key)}" for key in differs)
    return f"{title} ({said})"


def _setting(settings: Mapping[str, Any], key: str) -> Any:
    """A setting's value; absolute paths are cut to the file's name, which keeps local paths out of a shared page."""
    value = settings.get(key, "not set")
    return Path(value).name if isinstance(value, str) and Path(value).is_absolute() else value


def differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """The keys whose values differ."""
    keys = sorted({key for one in settings for key in one})
    return [key for key in keys if len({repr(one.get(key)) for one in settings}) > 1]
