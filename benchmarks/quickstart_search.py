"""Where does federating matter on digits? The search behind the `quickstart` recipe.

    python benchmarks/quickstart_search.py grid OUT.jsonl [--device cuda --workers 12]
    python benchmarks/quickstart_search.py best OUT.jsonl
    python benchmarks/quickstart_search.py table GRID.jsonl BEST.jsonl > results/quickstart-search.md

`grid` varies clients, classes, participation, epochs and rate, alike for all methods, for one seed and a fixed number of
passes over all data; `best` takes the settings named below to three seeds and all three methods.
"""

import argparse
import itertools
import json
import multiprocessing
import random
import time
from pathlib import Path
from typing import Any

import torch

import fedmrl

PASSES = 27  # over all training data: what `make run` can afford on two cores in two minutes

Point = dict[str, Any]


def point(seed: int, clients: int, classes: int, epochs: int, share: float, lr: float, momentum: float) -> Point:
    """A setting; whatever it is, all methods train alike in it."""
    return {
        "seed": seed,
        "clients": clients,
        "participation": share,
        "rounds": max(1, round(PASSES / (epochs * share))),
        "partition.classes_per_client": classes,
        "training.epochs": epochs,
        "training.lr": lr,
        "training.momentum": momentum,
        "training.batch_size": 10,
    }


def grid() -> list[Point]:
    """One seed; FedMRL at two d1 against Standalone."""
    settings = itertools.product((20, 50, 100), (3, 6, 10), ((5, 0.2), (1, 1.0)), ((0.01, 0.9), (0.03, 0.9), (0.1, 0.0)))
    return [
        {**point(0, clients, classes, *pace, *rate), **method}
        for clients, classes, pace, rate in settings
        for method in ({"method.name": "standalone"}, *fedmrl_with(50, 250))
    ]


def best() -> list[Point]:
    """The pace and rate that came out well, three seeds, three methods."""
    return [
        {**point(seed, clients, classes, 5, 0.2, 0.01, 0.9), **method}
        for clients, classes in ((20, 6), (20, 10), (30, 5), (50, 3), (50, 5), (100, 3))
        for seed in range(3)
        for method in ({"method.name": "standalone"}, {"method.name": "fedproto"}, *fedmrl_with(100, 250))
    ]


def pace() -> list[Point]:
    """The setting that came out best, at larger steps that cost less time."""
    return [
        {**point(seed, 50, 5, epochs, 0.2, lr, 0.9), "training.batch_size": batch, **method}
        for epochs, lr, batch in ((5, 0.015, 15), (5, 0.02, 15), (10, 0.015, 15))
        for seed in range(3)
        for method in ({"method.name": "standalone"}, {"method.name": "fedproto"}, *fedmrl_with(250))
    ]


def fedmrl_with(*dimensions: int) -> list[Point]:
    return [{"method.name": "fedmrl", "method.d1": d1} for d1 in dimensions]


def measure(job: tuple[Point, str]) -> Point:
    """One run of one point."""
    point, device = job
    torch.set_num_threads(1)
    settings = {"method.name": point["method.name"], "evaluation.every": 10_000, **point}
    started = time.perf_counter()
    try:
        summary = fedmrl.run(fedmrl.load_recipe("quickstart", settings), device=device).summary
    except (fedmrl.UserError, fedmrl.DivergedError) as error:
        return {**point, "failed": str(error)}
    accuracy = summary["accuracy"]["all"]
    return {
        **point,
        **{f"accuracy_{view}": next(iter(modes.values()))["last"] for view, modes in accuracy.items()},
        "device": summary["device"],
        "seconds": round(time.perf_counter() - started, 1),
    }


STAGES = {"grid": grid, "best": best, "pace": pace}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=list(STAGES))
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    jobs = [(job, arguments.device) for job in STAGES[arguments.what]()]
    random.Random(0).shuffle(jobs)  # so that a search cut short has seen a bit of everything
    with multiprocessing.get_context("spawn").Pool(arguments.workers) as pool, arguments.out.open("w") as file:
        for number, row in enumerate(pool.imap_unordered(measure, jobs), start=1):
            file.write(json.dumps(row) + "\n")
            file.flush()
            print(f"{number}/{len(jobs)}", row, flush=True)


if __name__ == "__main__":
    main()
