"""What fewer bits cost in accuracy: the same recipe and seeds in each precision, against the first one named.

    python benchmarks/precision.py quickstart --precisions fp32,bf16 --seeds 0,1,2,3,4 --out results/precision.json

A seed starts from the same weights and sees the same batches in every precision, so runs are compared seed by seed. Rounding
makes them part all the same, as any other noise would: beside the mean difference stands its standard error over the seeds.
Results are written as they come.
"""

import argparse
import json
import math
import statistics
import time
from pathlib import Path
from typing import Any

import fedmrl

Accuracies = dict[str, list[float | None]]


def accuracies(recipe: fedmrl.Recipe, seeds: list[int], options: dict[str, Any]) -> tuple[dict[str, Any], Accuracies]:
    """What it ran on and how long it took; the last round's accuracy over all clients by view, a value for each seed."""
    begun = time.monotonic()
    runs = fedmrl.run_seeds(recipe, seeds, **options)
    found: Accuracies = {}
    facts: dict[str, Any] = {"seconds": time.monotonic() - begun}
    for number, run in enumerate(runs):
        if isinstance(run, fedmrl.DivergedRun):
            continue
        facts |= {key: getattr(run, key) for key in ("device", "engine", "versions")}
        for view, modes in run.accuracy.all.items():
            found.setdefault(view, [None] * len(seeds))[number] = modes[run.mode].last
    return facts, found


def against(values: list[float | None], base: list[float | None]) -> dict[str, Any]:
    """The differences by seed, their mean and its standard error, of the seeds that came to an end in both."""
    gaps = [value - other for value, other in zip(values, base, strict=True) if value is not None and other is not None]
    error = statistics.stdev(gaps) / math.sqrt(len(gaps)) if len(gaps) > 1 else None
    return {"by_seed": gaps, "mean": statistics.mean(gaps) if gaps else None, "standard_error": error}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--precisions", default="fp32,tf32,bf16")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    seeds = [int(seed) for seed in arguments.seeds.split(",")]
    options = {"engine": arguments.engine, "device": arguments.device}
    result: dict[str, Any] = {"recipe": arguments.recipe, "settings": arguments.set, "seeds": seeds, "precisions": {}}
    first: Accuracies | None = None
    for precision in arguments.precisions.split(","):
        recipe = fedmrl.load_recipe(arguments.recipe, [*arguments.set, f"training.precision={precision}"])
        facts, found = accuracies(recipe, seeds, options)
        first = found if first is None else first
        differences = {view: against(values, first.get(view, [None] * len(seeds))) for view, values in found.items()}
        result["precisions"][precision] = facts | {"last_accuracy": found, "difference": differences}
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")
        if not found:
            print(f"{precision}: diverged with every seed")
        for view, gap in differences.items():
            values = ", ".join("diverged" if value is None else f"{100 * value:.1f}" for value in found[view])
            print(f"{precision} {view}: {values}; difference {_points(gap['mean'])} ± {_points(gap['standard_error'])} points")


def _points(share: float | None) -> str:
    return "?" if share is None else f"{100 * share:.2f}"


if __name__ == "__main__":
    main()
