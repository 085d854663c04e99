"""The same recipe on a GPU and on a CPU, in one figure: accuracy by round, a line for each seed.

fedmrl run quickstart --set rounds=20 --set evaluation.every=1 --seeds 0,1,2 --device cuda --out gpu
fedmrl run quickstart --set rounds=20 --set evaluation.every=1 --seeds 0,1,2 --device cpu --out cpu
python benchmarks/gpu_and_cpu.py gpu cpu --out results/gpu-and-cpu
"""

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("agg")
from matplotlib import pyplot as plt

COLOURS = ("#d55e00", "#0072b2")


def curves(folder: Path) -> dict[str, Any]:
    """Accuracy over all clients by round, of every seed, and what it ran on."""
    found: dict[str, Any] = {"seeds": {}}
    for run in sorted(folder.glob("seed-*")):
        summary = json.loads((run / "summary.json").read_text())
        view, mode = summary["view"], summary["mode"]
        records = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
        found |= {"device": summary["device"], "engine": summary["engine"], "torch": summary["versions"]["torch"]}
        found["seeds"][str(summary["seed"])] = [record["accuracy"]["all"][view][mode] for record in records]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs=2)
    parser.add_argument("--out", type=Path, required=True, help="without an ending: .json and .png are written")
    arguments = parser.parse_args()
    runs = [curves(folder) for folder in arguments.folders]
    figure, axes = plt.subplots(figsize=(6.4, 4.0), layout="constrained")
    for run, colour in zip(runs, COLOURS, strict=True):
        of_seeds = list(run["seeds"].values())
        means = [statistics.mean(values) for values in zip(*of_seeds, strict=True)]
        rounds = range(1, len(means) + 1)
        for curve in of_seeds:
            axes.plot(rounds, [100 * value for value in curve], color=colour, alpha=0.35, linewidth=1)
        label = f"{run['device']}, {run['engine']} engine: {100 * means[-1]:.1f}%"
        axes.plot(rounds, [100 * value for value in means], color=colour, linewidth=2.2, label=label)
    gaps = [[a - b for a, b in zip(*pair, strict=True)] for pair in zip(*(run["seeds"].values() for run in runs), strict=True)]
    axes.set(
        xlabel="round", ylabel="accuracy over all clients [%]", title="FedMRL on digits: thin lines are seeds, thick their mean"
    )
    axes.legend(frameon=False, loc="lower right")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    figure.savefig(arguments.out.with_suffix(".png"), dpi=160)
    last = [gap[-1] for gap in gaps]
    result = {"last_round_differences": last, "mean_difference": statistics.mean(last), "runs": runs}
    arguments.out.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n")
    print(f"last round: GPU minus CPU by seed {[round(100 * value, 1) for value in last]} points")


if __name__ == "__main__":
    main()
