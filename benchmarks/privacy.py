"""What differential privacy costs FedMRL on digits: accuracy against epsilon, and the same clients without privacy or alone.

    nice python benchmarks/privacy.py --seeds 0,1,2 --out results/privacy.json

The quickstart, where sharing the small model helps, with noise from too little to protect anyone to enough for an epsilon of
30. The clip is about the median norm of an update without privacy. The noise follows from the seed (`privacy.simulation`), so
that the figures can be had again. Results are written as they come, and the figure beside them at the end; a call goes on
with those that are there.
"""

import argparse
import json
import multiprocessing
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import fedmrl
from fedmrl.report.figures import new_figure
from fedmrl.report.tables import format_seeds

FEDMRL = {"method.name": "fedmrl", "method.weighting": "uniform"}
PRIVACY = {"privacy.mode": "central", "privacy.clip": 1.5, "privacy.delta": 0.01, "privacy.simulation": True}
NOISES = (0.001, 0.01, 0.03, 0.1, 1.0)
VARIANTS: dict[str, dict[str, Any]] = {
    "no privacy": FEDMRL,
    **{f"noise {noise:g}": {**FEDMRL, **PRIVACY, "privacy.noise": noise} for noise in NOISES},
    "alone": {"method.name": "standalone"},
}


def measure(task: tuple[str, int]) -> dict[str, Any]:
    """One run: accuracy of all clients at the end, and the epsilon that it spent."""
    variant, seed = task
    torch.set_num_threads(1)
    begun = time.process_time()
    result = fedmrl.run("quickstart", settings={**VARIANTS[variant], "seed": seed})
    return {
        "variant": variant,
        "seed": seed,
        "accuracy": result.headline(),
        "modes": {mode: share for _, modes in [*result.inference.items()][-1:] for mode, share in modes.items()},
        "epsilon": result.privacy.epsilon if result.privacy else None,
        "cpu_seconds": round(time.process_time() - begun, 1),
    }


def figure(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Accuracy against epsilon, each seed a dot and a line through their means."""
    of = {name: [row for row in rows if row["variant"] == name] for name in VARIANTS}
    private = [of[f"noise {noise:g}"] for noise in NOISES if of[f"noise {noise:g}"]]
    drawing = new_figure(6.4, 3.6)
    axes = drawing.subplots()
    for row in (row for own in private for row in own):
        axes.plot(row["epsilon"], 100 * row["accuracy"], "o", color="#0072B2", alpha=0.35, markersize=5)
    means = [(own[0]["epsilon"], 100 * statistics.mean(row["accuracy"] for row in own)) for own in private]
    axes.plot(*zip(*means, strict=True), "o-", color="#0072B2", linewidth=2)
    for name, colour, says in (("no privacy", "#cf4a00", "FedMRL without privacy"), ("alone", "#555555", "Standalone")):
        if of[name]:
            mean = 100 * statistics.mean(row["accuracy"] for row in of[name])
            axes.axhline(mean, color=colour, linestyle="--", linewidth=1.2)
            axes.annotate(says, (0.01, mean), xycoords=("axes fraction", "data"), color=colour, va="bottom", fontsize=9)
    axes.set_xscale("log")
    axes.set_xlabel(f"ε at δ = {PRIVACY['privacy.delta']}, central noise (smaller protects more)")
    axes.set_ylabel(f"accuracy of all clients (%), {format_seeds(row['seed'] for row in rows)}")
    axes.grid(visible=True, color="#dddddd", linewidth=0.5)
    axes.spines[["top", "right"]].set_visible(False)
    drawing.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    seeds = [int(seed) for seed in arguments.seeds.split(",")]
    tasks = [(variant, seed) for seed in seeds for variant in VARIANTS]
    result = {"recipe": "quickstart", "fedmrl": FEDMRL, "privacy": PRIVACY, "seeds": seeds}
    rows: list[dict[str, Any]] = []
    if arguments.out.is_file() and (before := json.loads(arguments.out.read_text())).get("privacy") == PRIVACY:
        rows = [row for row in before["runs"] if (row["variant"], row["seed"]) in tasks]  # a run that is there is not repeated
    tasks_left = [task for task in tasks if task not in {(row["variant"], row["seed"]) for row in rows}]
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        for row in pool.imap_unordered(measure, tasks_left):
            rows.append(row)
            print(f"{row['variant']:12s} seed {row['seed']}: {row['accuracy']:.1%}", flush=True)
            order = sorted(rows, key=lambda one: tasks.index((one["variant"], one["seed"])))
            arguments.out.write_text(json.dumps({**result, "runs": order}, indent=2) + "\n")
    figure(rows, arguments.out.with_suffix(".png"))


if __name__ == "__main__":
    main()
