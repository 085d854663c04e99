"""Comparisons of several methods with the same split and seeds."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch

from fedmrl.config import Recipe, Settings, load_named, settings_of
from fedmrl.config.settings import pairs
from fedmrl.data import Dataset, sources
from fedmrl.engines import EngineChoice, check_engine
from fedmrl.errors import UserError
from fedmrl.federation.folder import refuse_used
from fedmrl.federation.launch import (
    OnNotice,
    OwnModels,
    check_callbacks,
    check_flags,
    check_seeds,
    given_for,
    log,
    run_seeds,
    with_data,
    with_keys,
    with_models,
)
from fedmrl.federation.server import OnRound
from fedmrl.federation.setup import prepare
from fedmrl.federation.store import check_store
from fedmrl.federation.tasks import WholeRun, check_tasks, run_elsewhere
from fedmrl.files import output_path, write_whole
from fedmrl.guard import described, is_line
from fedmrl.methods import METHODS, Method
from fedmrl.registry import is_name
from fedmrl.report.charts import LineChart, accuracy_chart
from fedmrl.report.figures import accuracy_figure, column_figure
from fedmrl.report.grid import comparison_grid, to_latex
from fedmrl.report.page import write_results
from fedmrl.report.runs import make_series, names_apart, run_folder
from fedmrl.report.styles import StyleKey, choose_styles
from fedmrl.report.tables import (
    COLUMN_NOTES,
    COMPARISON_COLUMNS,
    comparison_rows,
    finished_results,
    format_seeds,
    markdown,
    worst_notes,
)
from fedmrl.results import PROTOCOLS, DivergedRun, Outcome, Record, RunResult


@dataclass(frozen=True)
class Comparison:
    """The outcomes of several methods' runs: one per method and seed, in the order of `seeds`."""

    title: str
    recipes: Mapping[str, Recipe]
    seeds: Sequence[int]
    outcomes: Mapping[str, Sequence[Outcome]]
    folder: Path | None = None

    def __getitem__(self, name: str) -> Sequence[Outcome]:
        return self.outcomes[name]

    @property
    def results(self) -> list[RunResult]:
        """All runs that finished."""
        return [run for runs in self.outcomes.values() for run in runs if isinstance(run, RunResult)]

    @property
    def diverged(self) -> list[str]:
        """A sentence for each run that diverged."""
        return [
            f"{name}, seed {run.seed}: {run.diverged.reason}"
            for name, runs in self.outcomes.items()
            for run in runs
            if isinstance(run, DivergedRun)
        ]

    @property
    def titles(self) -> dict[str, str]:
        """Each method's title in tables; variants of one method show the settings in which they differ."""
        recipes = [*self.recipes.values()]
        settings = [settings_of(recipe.to_toml()) for recipe in recipes]
        names = names_apart([recipe.method.title for recipe in recipes], settings, [*self.recipes])
        return dict(zip(self.recipes, names, strict=True))

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """The table's rows as text, the most accurate method first; see `fedmrl.report.tables.COMPARISON_COLUMNS`."""
        return comparison_rows(self.titles, self.outcomes)

    def table(self) -> str:
        """The table, as Markdown."""
        return "\n".join([markdown(COMPARISON_COLUMNS, self.rows), *(f"- {note}" for note in self.notes), ""])

    @property
    def notes(self) -> list[str]:
        """Sentences that explain the table."""
        return [*COLUMN_NOTES, *worst_notes(self.titles, self.outcomes)]

    def __str__(self) -> str:
        return f"{self.title}\n\n{self.table()}"

    def report(self, path: str | Path) -> Path:
        """Writes the report of these runs as one self-contained HTML file."""
        if not self.results:
            raise UserError("every run diverged, so there is nothing to report")
        return write_results(self.results, path, self.diverged)

    def plain(self) -> dict[str, Any]:
        """Plain data, as in `comparison.json`."""
        methods = {name: [_short(run) for run in self.outcomes.get(name, ())] for name in self.recipes}
        return {"title": self.title, "seeds": list(self.seeds), "methods": methods}

    def to_json(self) -> str:
        """The text of `comparison.json`."""
        return json.dumps(self.plain(), indent=2) + "\n"

    def write(self, folder: Path) -> None:
        """Writes the table, the figure and the page into the folder."""
        write_whole(folder / "table.md", self.table())
        write_whole(folder / "comparison.json", self.to_json())
        write_whole(folder / "table.tex", self.latex())
        for suffix in ("png", "svg", "pdf"):
            self.figure(folder / f"accuracy.{suffix}")
        if self.results:
            self.report(folder / "report.html")

    def planned(self, on_round: OnRound | None) -> OnRound | None:
        """The callback, which first writes an empty `comparison.json`, by which a report finds what is missing.

        This waits for the first round, since a mistake that ends the comparison before it must leave nothing behind.
        """
        folder, written = self.folder, False
        if folder is None or not (on_round is None or callable(on_round)):
            return on_round

        def on_first_round(record: Record) -> None:
            nonlocal written
            if not written:
                write_whole(folder / "comparison.json", self.to_json())
            written = True
            if on_round:
                on_round(record)

        return on_first_round

    def latex(self) -> str:
        """The table as LaTeX, with the best of each accuracy in bold, as `table.tex` has it."""
        caption = f"Methods compared on {self.title}: {self._setting}"
        return to_latex(caption, "comparison", [comparison_grid(self.titles, self.outcomes, caption)])

    @property
    def chart(self) -> LineChart:
        """Accuracy by round of the methods that finished with every seed: one that diverged has a dash in the table."""
        series = make_series(run for runs in self.outcomes.values() for run in finished_results(runs))
        styles = choose_styles([StyleKey(one.first.method, one.name, one.first.colour) for one in series])
        lines = [(one.name, style, one.runs) for one, style in zip(series, styles, strict=True)]
        return accuracy_chart(sorted(lines, key=lambda line: -_mean_of(line[2])), "fair")

    @property
    def _setting(self) -> str:
        recipe = next(iter(self.recipes.values()))
        share = recipe.participation if isinstance(recipe.participation, str) else f"{recipe.participation:.0%} a round"
        return f"{recipe.data.title}, {recipe.clients} clients, {share}, {format_seeds(self.seeds)}"

    def figure(self, path: str | Path) -> Path:
        """Writes the accuracy over rounds as a figure: .png or .svg, or .pdf for a column of a paper."""
        target = output_path(path, "path")
        if target.suffix not in (".png", ".svg", ".pdf"):
            raise UserError(f"path is {str(path)!r}; name a .png, .svg or .pdf file")
        if target.suffix == ".pdf":
            column_figure(self.chart, target)
        else:
            band = " (line: mean, band: range)" if len(self.seeds) > 1 else ""
            accuracy_figure(self.chart, f"Who gains from federating: {self.title}", f"{self._setting}{band}", target)
        return target


def compare(
    recipe: str | Path | Recipe | Mapping[str, Recipe],
    methods: Iterable[str | Method] | Mapping[str, Method] | None = None,
    *,
    seeds: Sequence[int] | None = None,
    settings: Settings = (),
    models: OwnModels = None,
    small: Any = None,
    data: Any = None,
    label: str | None = None,
    out: str | Path | None = None,
    title: str | None = None,
    device: str = "auto",
    engine: EngineChoice = "auto",
    store: str = "auto",
    resume: bool = False,
    ray: bool = False,
    keep: bool = True,
    watch: Callable[[str], AbstractContextManager[OnRound]] | None = None,
    on_notice: OnNotice | None = None,
    **keys: Any,
) -> Comparison:
    """Runs several methods with the same split, models and seeds, and writes them to the folder `out` if given.

    `recipe` is a recipe (an object, name or file), or several recipes by name, one for each row of the table. `methods` are
    names or objects, or objects by name (default: all methods). With `resume`, finished runs are kept and interrupted ones
    continue. With `ray`, each method runs on a CPU of a Ray cluster. Unless `keep`, final models are deleted. Data, models and
    other keywords are as in `run`.

    >>> import fedmrl
    >>> short = {"rounds": 1, "models.local": [{"conv1": 2, "conv2": 2, "fc1": 8, "fc2": 8}]}
    >>> both = fedmrl.compare("quickstart", [fedmrl.FedMRL(d1=4), "standalone"], settings=short)
    >>> [run.status for run in both["fedmrl"]], sorted(row[0] for row in both.rows)
    (['finished'], ['FedMRL', 'Standalone'])
    """
    check_callbacks(watch=watch, on_notice=on_notice)
    check_flags(resume=resume, ray=ray, keep=keep)
    if title is not None and not is_line(title):
        raise UserError(f"title is {title!r:.80}; it must be a line of text")
    changes, models, small = with_keys(settings, keys, models, small)
    own = given_for(changes, data, label)
    name, recipes = _recipes(recipe, methods, changes)
    check_seeds([next(iter(recipes.values())).seed] if seeds is None else seeds)
    seeds = list(seeds) if seeds is not None else [next(iter(recipes.values())).seed]
    folder = None if out is None else output_path(out, "out")
    if resume and folder is None:
        raise UserError("resume needs the comparison's folder; name it as out")
    comparison = Comparison(title or name, recipes, seeds, {}, folder)
    folders = _folders(comparison)
    if folder is not None and not resume:
        refuse_used(folder)
    elif resume and not any((path / "config.toml").exists() for paths in folders.values() for path in paths or ()):
        raise UserError(f"{folder} holds no such comparison to resume; start one in a new folder without resume")
    check_engine(engine)
    check_store(store)
    notices: set[str] = set()

    def tell(line: str) -> None:
        """Passes on a notice, once for all methods."""
        if line not in notices:
            notices.add(line)
            (on_notice or log)(line)

    if own is not None:
        recipes = {name: with_data(of_method, own, tell) for name, of_method in recipes.items()}
    shared = own or _shared_data(recipes)
    for of_method, seed in product(recipes.values(), seeds):  # check all runs before starting any
        whole, specs, spec = with_models(of_method, models, small)
        prepare(whole.model_copy(update={"seed": seed}), torch.device("cpu"), specs, shared, spec)
    if ray:
        check_tasks(engine, device)
        runs = {name: WholeRun(recipes[name], seeds, own) for name, own in folders.items() if own}
        if not runs:
            raise UserError("ray needs the comparison's folder; name it as out")
        run_elsewhere(runs, models=models, small=small, data=shared, keep=keep, tell=tell)
    outcomes: dict[str, Sequence[Outcome]] = {}
    for method, of_method in recipes.items():
        outs = folders[method]
        resumes = (resume or ray) and outs is not None and any((path / "config.toml").exists() for path in outs)
        watching = watch(method) if watch else nullcontext()
        if not isinstance(watching, AbstractContextManager):
            raise UserError(f"watch returns {described(watching)}; it must return a context with a function for each round")
        with watching as on_round:
            outcomes[method] = run_seeds(
                of_method, seeds, outs=outs, resume=resumes, device=device, engine=engine, store=store, models=models,
                small=small, data=shared, keep=keep, on_round=comparison.planned(on_round), on_notice=tell,
            )  # fmt: skip
    comparison = Comparison(comparison.title, recipes, seeds, outcomes, folder)
    if folder is not None:
        comparison.write(folder)
    return comparison


def _recipes(
    recipe: str | Path | Recipe | Mapping[str, Recipe],
    methods: Iterable[str | Method] | Mapping[str, Method] | None,
    settings: Settings,
) -> tuple[str, dict[str, Recipe]]:
    """The comparison's name, and a recipe for each method."""
    if isinstance(recipe, Mapping):
        if settings:
            raise UserError(f"recipe is a mapping, whose recipes are complete; leave {min(dict(pairs(settings)))} out")
        if methods is not None or not recipe or not all(isinstance(value, Recipe) for value in recipe.values()):
            raise UserError("recipe is a mapping; its values must be fedmrl.Recipe objects, and methods must be left out")
        return "comparison", dict(recipe)
    named = load_named(recipe, settings)
    name, setting = named.name, named.recipe
    asked = METHODS if methods is None else methods
    if isinstance(asked, str | bytes) or not isinstance(asked, Iterable) or not getattr(asked, "shape", True):
        raise UserError(f"methods is {methods!r}; give a list of names or of methods, as in ['fedmrl', fedmrl.FedProto()]")
    named_here = methods.items() if isinstance(methods, Mapping) else ((None, method) for method in asked)
    recipes: dict[str, Recipe] = {}
    for given, one in named_here:
        if not isinstance(one, str | Method):
            raise UserError(f"methods has {one!r}; give names, or methods as fedmrl.FedMRL(d1=100)")
        made = setting.with_method(one)
        if given is not None and not is_name(given):
            raise UserError(f"methods names {given!r}; use small letters, digits and hyphens, as folders are named so")
        recipes[_free(given or made.method.name, recipes)] = made
    if not recipes:
        raise UserError("methods is empty; name at least one")
    return name, recipes


def _free(name: str, taken: Mapping[str, Recipe]) -> str:
    number, free = 1, name
    while free in taken:
        number += 1
        free = f"{name}-{number}"
    return free


def _folders(comparison: Comparison) -> dict[str, list[Path] | None]:
    """The folders of each method's runs, or None to write nothing."""
    folder, seeds = comparison.folder, comparison.seeds
    if folder is None:
        return dict.fromkeys(comparison.recipes)
    return {name: [folder / run_folder(name, seed, seeds) for seed in seeds] for name in comparison.recipes}


def _shared_data(recipes: Mapping[str, Recipe]) -> Dataset | None:
    """The data of all recipes, loaded once; None if they differ."""
    tables = [recipe.data for recipe in recipes.values()]
    return sources.load(tables[0]) if all(table == tables[0] for table in tables) else None


def _short(run: Outcome) -> dict[str, Any]:
    if isinstance(run, DivergedRun):
        return {"seed": run.seed, "status": run.status, **run.diverged.model_dump()}
    plain = run.plain()
    kept = ("seed", "status", "view", "mode", "accuracy", "communication", "flops", "seconds", "device", "versions", "privacy")
    counts: dict[str, Any] = {protocol: run.headline(protocol) for protocol in PROTOCOLS}
    return {**counts, "worst_client": run.worst_client, **{key: plain[key] for key in kept if key in plain}}


def _mean_of(runs: Sequence[RunResult]) -> float:
    return sum(run.headline() for run in runs) / len(runs)
