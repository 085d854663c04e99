"""What a training step's time goes into on a GPU, kernel by kernel.

    python benchmarks/step_profile.py [RECIPE] [--set key=value ...] [--out results/h200/step-profile.json]

The recipe's first round is trained by the batched engine, compiled and captured; then its steps are replayed under torch's
profiler. `idle` is the time in which no kernel runs. Kernels are sorted into kinds by their names.
"""

import argparse
import json
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from fedmrl.bench import first_turns, noise
from fedmrl.config import load_named
from fedmrl.engines import BatchedEngine
from fedmrl.federation.launch import pick_device
from fedmrl.federation.setup import prepare
from fedmrl.federation.summary import device_name
from fedmrl.methods import Round

KINDS = (
    ("convolution", r"_outputs_kernel|_weights_kernel|_inputs_kernel|conv"),
    ("pooling", r"_pool_kernel|_unpool_kernel|pool"),
    ("matrix product", r"gemm|nvjet|cutlass|matmul|bmm|_mm\b|addmm"),
    ("update", r"triton_.*(copy_|where|clamp).*|_foreach"),
    ("copy", r"[Mm]emcpy|[Mm]emset"),
)
"""By a kernel's name, the first that fits; else it is `other`: what lies between layers, and the loss."""


@dataclass(frozen=True)
class Kernel:
    """One launch: when it ran, in microseconds."""

    name: str
    start: float
    end: float


def kind(name: str) -> str:
    """What a kernel is for, by its name.

    >>> kind("_outputs_kernel"), kind("nvjet_hsh_64x128"), kind("triton_poi_fused_relu")
    ('convolution', 'matrix product', 'other')
    """
    return next((kind for kind, pattern in KINDS if re.search(pattern, name)), "other")


def summed(kernels: Iterable[Kernel], steps: int) -> dict[str, Any]:
    """Microseconds a step, by kind and by kernel, and those in which nothing ran.

    >>> found = summed([Kernel("gemm", 0, 3), Kernel("gemm", 5, 8), Kernel("relu", 8, 10)], steps=2)
    >>> found["microseconds_of_step"], found["by_kind"]
    (5.0, {'matrix product': 3.0, 'other': 1.0, 'idle': 1.0})
    """
    ordered = sorted(kernels, key=lambda kernel: kernel.start)
    by_kind: dict[str, float] = defaultdict(float)
    by_name: dict[str, list[float]] = defaultdict(list)
    idle, until = 0.0, ordered[0].start
    for kernel in ordered:
        by_kind[kind(kernel.name)] += kernel.end - kernel.start
        by_name[kernel.name].append(kernel.end - kernel.start)
        idle += max(0.0, kernel.start - until)
        until = max(until, kernel.end)
    by_kind["idle"] = idle
    largest = sorted(by_name.items(), key=lambda item: -sum(item[1]))
    return {
        "microseconds_of_step": (until - ordered[0].start) / steps,
        "kernels_of_step": len(ordered) / steps,
        "by_kind": {name: value / steps for name, value in sorted(by_kind.items(), key=lambda item: -item[1])},
        "by_kernel": [
            {"name": name, "kind": kind(name), "launches": len(each) / steps, "microseconds": sum(each) / steps}
            for name, each in largest
        ],
    }


def profiled(engine: BatchedEngine, steps: int) -> list[Kernel]:
    """The kernels of so many steps of the program that trained last."""
    trainer = engine.trainers[-1]
    on_gpu = engine.setting.device.type == "cuda"
    trainer.steps = steps
    trainer.again()
    with profile(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]) as found:
        trainer.again()
        if on_gpu:
            torch.cuda.synchronize()
    events = [event for event in found.events() or [] if on_gpu or event.cpu_parent is None]
    return [Kernel(event.name, event.time_range.start, event.time_range.end) for event in events if _ran(event, on_gpu)]


def _ran(event: Any, on_gpu: bool) -> bool:
    return not on_gpu or event.device_type.name == "CUDA"


def main() -> None:
    arguments = _arguments()
    recipe = load_named(arguments.recipe, arguments.set).recipe
    place = pick_device("auto")
    setting = prepare(recipe, place, data=noise(recipe))
    turns = first_turns(recipe, [setting])
    engine = BatchedEngine(setting, way="compiled" if place.type == "cuda" else "eager")
    engine.train(Round(0, recipe.rounds), turns)
    found = {
        "command": "python benchmarks/step_profile.py " + " ".join([arguments.recipe, *(f"--set {s}" for s in arguments.set)]),
        "device": device_name(place),
        "torch": torch.__version__,
        "precision": recipe.training.precision,
        "clients": len(turns),
        "batch_size": recipe.training.batch_size,
        **summed(profiled(engine, arguments.steps), arguments.steps),
    }
    for name, value in found["by_kind"].items():
        print(f"{name:15} {value:8.1f} µs  {value / found['microseconds_of_step']:6.1%}")
    if arguments.out:
        arguments.out.write_text(json.dumps(found, indent=1) + "\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", nargs="?", default="paper/cifar10-n10")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
