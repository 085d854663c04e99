"""Several methods in one setting: the same split, the same seeds, side by side."""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fedmrl.config import Recipe
from fedmrl.data import sources
from fedmrl.engines import check_engine
from fedmrl.errors import DivergedError, UserError
from fedmrl.federation.folder import refuse_used
from fedmrl.federation.launch import OnNotice, run_seeds
from fedmrl.federation.server import OnRound
from fedmrl.federation.setup import prepare
from fedmrl.federation.store import check_store
from fedmrl.federation.summary import curve
from fedmrl.files import write_whole
from fedmrl.protocols import PROTOCOLS
from fedmrl.report.figures import Curve, accuracy_figure
from fedmrl.report.looks import looks_of
from fedmrl.report.tables import COLUMNS, MEANING, comparison_rows, finished, headline, markdown, worst_client


@dataclass(frozen=True)
class Comparison:
    """What came out: each method's summaries and curves, one for each seed, and the rows of the table."""

    summaries: dict[str, list[dict[str, Any]]]
    curves: dict[str, list[Curve]]
    rows: list[tuple[str, ...]]
    folder: Path

    @property
    def diverged(self) -> list[str]:
        """A sentence for each run that diverged."""
        return [
            f"{name}, seed {summary['seed']}: {summary['diverged']['reason']}"
            for name, summaries in self.summaries.items()
            for summary in summaries
            if summary["status"] == "diverged"
        ]


def compare(
    recipes: Mapping[str, Recipe],
    seeds: Sequence[int],
    out: Path,
    *,
    title: str,
    device: str = "auto",
    engine: str = "auto",
    store: str = "auto",
    resume: bool = False,
    watch: Callable[[str], AbstractContextManager[OnRound]] | None = None,
    on_notice: OnNotice | None = None,
) -> Comparison:
    """Run each of the recipes (the same setting, by method) with each seed; write a table and a figure beside the runs.

    All seeds of a method are run as one. With `resume`, runs that finished are kept as they are, and those that were cut
    short go on.
    """
    folders = {(name, seed): out / (name if len(seeds) == 1 else f"{name}-seed-{seed}") for seed in seeds for name in recipes}
    if not resume:
        refuse_used(out)
    elif not any((folder / "config.toml").exists() for folder in folders.values()):
        raise UserError(f"{out} holds no such comparison to resume; leave out --resume to start one in a new folder")
    check_engine(engine)
    check_store(store)
    data = sources.load(next(iter(recipes.values())).data)
    seeded = {(name, seed): recipes[name].model_copy(update={"seed": seed}) for name, seed in folders}
    for recipe in seeded.values():  # what cannot be run is refused before any of it is run
        prepare(recipe, torch.device("cpu"), data=data)
    summaries: dict[str, list[dict[str, Any]]] = {name: [] for name in recipes}
    curves: dict[str, list[Curve]] = {name: [] for name in recipes}
    said: set[str] = set()

    def tell(line: str) -> None:
        """What is the same for several methods is said once."""
        if on_notice and line not in said:
            said.add(line)
            on_notice(line)

    for name in recipes:
        own = [folders[name, seed] for seed in seeds]
        goes_on = resume and any((folder / "config.toml").exists() for folder in own)
        with watch(name) if watch else nullcontext() as on_round:
            done = run_seeds(
                recipes[name], seeds, outs=own, resume=goes_on, device=device, engine=engine, store=store, data=data,
                keep=False, on_round=on_round, on_notice=tell,  # states are large, and a comparison has no use for them
            )  # fmt: skip
        for folder, one in zip(own, done, strict=True):
            if isinstance(one, DivergedError):
                summaries[name].append(json.loads((folder / "summary.json").read_text()))
            else:
                summaries[name].append(one.summary)
                curves[name].append(list(curve(one.records, "all", one.summary["view"], one.summary["mode"])))
    titles = {name: recipe.method.title for name, recipe in recipes.items()}
    comparison = Comparison(summaries, curves, comparison_rows(titles, summaries), out)
    _write(comparison, recipes, title, seeds)
    return comparison


def _write(comparison: Comparison, recipes: Mapping[str, Recipe], title: str, seeds: Sequence[int]) -> None:
    out, recipe = comparison.folder, next(iter(recipes.values()))
    share = recipe.participation if isinstance(recipe.participation, str) else f"{recipe.participation:.0%} a round"
    subtitle = f"{recipe.data.name}, {recipe.clients} clients, {share}, {_seeds_said(seeds)}"
    write_whole(out / "table.md", f"{markdown(COLUMNS, comparison.rows)}\n{MEANING}\n")
    results = {name: [_result(s) for s in summaries] for name, summaries in comparison.summaries.items()}
    write_whole(
        out / "comparison.json", json.dumps({"title": title, "seeds": list(seeds), "methods": results}, indent=2) + "\n"
    )
    # A method that diverged with any seed has a dash in the table, and so no line in the figure.
    methods = {name: recipe.method for name, recipe in recipes.items()}
    named = {methods[name].title: c if finished(comparison.summaries[name]) else [] for name, c in comparison.curves.items()}
    looks = dict(zip(named, looks_of([(method.name, method.title) for method in methods.values()]), strict=True))
    for suffix in ("png", "svg"):
        accuracy_figure(named, looks, f"Who gains from federating: {title}", subtitle, out / f"accuracy.{suffix}")


def _result(summary: Mapping[str, Any]) -> dict[str, Any]:
    if summary["status"] != "finished":
        return {"seed": summary["seed"], "status": summary["status"], **summary["diverged"]}
    kept = ("seed", "status", "view", "mode", "accuracy", "communication", "flops", "seconds", "device", "versions")
    counts: dict[str, Any] = {protocol: headline(summary, protocol) for protocol in PROTOCOLS}
    return {**counts, "worst_client": worst_client(summary), **{key: summary[key] for key in kept}}


def _seeds_said(seeds: Sequence[int]) -> str:
    return f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {', '.join(map(str, seeds))} (line: mean, band: range)"
