"""How long whole runs take, from the command to the summary, with a warm cache of compiled programs and with a cold one.

    python benchmarks/whole_runs.py paper/cifar10-n100 --set training.momentum=0.9 \\
        --run fedmrl --run "fedmrl --seeds 0,1,2" --run standalone --cold fedmrl --out results/h200/whole-runs.json

A `--run` is a method and further options of `fedmrl run`. Before any is timed, all of them are started side by side and
stopped after their first round, which fills the cache; then each runs by itself, from its first round to its summary. A
`--cold` one is started with an empty cache and stopped after its first round: what that took beyond the same with a warm cache
is what compiling costs. Results are written as they come.
"""

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")


@dataclass(frozen=True)
class Command:
    """`fedmrl run` with these words."""

    words: tuple[str, ...]

    @classmethod
    def of(cls, recipe: str, settings: Sequence[str], run: str) -> "Command":
        method, *more = shlex.split(run)
        chosen = [word for setting in settings for word in ("--set", setting)]
        return cls(("run", recipe, "--set", f"method.name={method}", *chosen, *more))

    def __str__(self) -> str:
        return shlex.join(["fedmrl", *self.words])

    def started(self, out: Path, cache: Path) -> "subprocess.Popen[bytes]":
        """The program, writing into this folder, with this cache."""
        environment = {**os.environ, **{name: str(cache / name) for name in CACHES}}
        asked = [sys.executable, "-m", "fedmrl", *self.words, "--out", str(out)]
        return subprocess.Popen(asked, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def first_round(command: Command, cache: Path) -> float:
    """Seconds until the first round is over; then the run is stopped."""
    with tempfile.TemporaryDirectory() as folder:
        started = time.monotonic()
        program = command.started(Path(folder) / "run", cache)
        seconds = _when_first_round_is_over(program, Path(folder) / "run", started)
        if program.poll() is None:
            program.terminate()
        _, said = program.communicate()
        if seconds is None:
            raise SystemExit(f"{command} ended before its first round: {said.decode().strip()}")
        return seconds


def whole(command: Command, cache: Path) -> dict[str, Any]:
    """What a whole run took, and what it came to."""
    with tempfile.TemporaryDirectory() as folder:
        out, started = Path(folder) / "run", time.monotonic()
        program = command.started(out, cache)
        first = _when_first_round_is_over(program, out, started)
        _, said = program.communicate()
        seconds = time.monotonic() - started
        summaries = [json.loads(path.read_text()) for path in sorted(out.glob("**/summary.json"))]
        if not summaries:
            raise SystemExit(f"{command} came to no summary: {said.decode().strip()}")
        found = {"command": str(command), "seconds": seconds, "first_round_after": first, "ended": program.returncode}
        return found | _came_to(summaries)


def _came_to(summaries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    first, good = summaries[0], [summary for summary in summaries if summary["status"] == "finished"]
    last = {
        f"{whose}, {view}": [summary["accuracy"][whose][view][summary["mode"]]["last"] for summary in good]
        for whose in ("all", "participants")
        for view in (good[0]["accuracy"][whose] if good else ())
    }
    return {
        "device": first["device"],
        "engine": first["engine"],
        "versions": first["versions"],
        "seeds": [summary["seed"] for summary in summaries],
        "diverged": [summary["diverged"] for summary in summaries if summary["status"] != "finished"],
        "last_accuracy": last,
        "mean_last_accuracy": {name: statistics.mean(values) for name, values in last.items()},
        "seconds_in_rounds": good[0]["seconds"] if good else None,
    }


def _when_first_round_is_over(program: "subprocess.Popen[bytes]", out: Path, started: float) -> float | None:
    """Seconds from the start until then; None if the program ends before."""
    while True:
        if any(path.stat().st_size for path in out.glob("**/rounds.jsonl")):
            return time.monotonic() - started
        if program.poll() is not None:
            return None
        time.sleep(0.02)


def main() -> None:
    arguments = _arguments()
    runs = {run: Command.of(arguments.recipe, arguments.set, run) for run in arguments.run}
    found: dict[str, Any] = {"runs": {}, "first_round_with_a_cold_cache": {}}

    def write() -> None:
        arguments.out.write_text(json.dumps(found, indent=1) + "\n")

    with tempfile.TemporaryDirectory() as folder:
        warm = arguments.cache or Path(folder) / "warm"
        for run in arguments.cold:
            with tempfile.TemporaryDirectory() as empty:
                seconds = first_round(Command.of(arguments.recipe, arguments.set, run), Path(empty))
            found["first_round_with_a_cold_cache"][run] = seconds
            print(f"{run}: {seconds:.1f} s to the end of its first round with a cold cache", flush=True)
            write()
        started = time.monotonic()
        with ThreadPoolExecutor(max(1, len(runs))) as pool:
            list(pool.map(lambda command: first_round(command, warm), runs.values()))
        print(f"all caches warm after {time.monotonic() - started:.1f} s", flush=True)
        for run, command in runs.items():
            row = found["runs"][run] = whole(command, warm)
            accuracies = ", ".join(f"{name} {value:.1%}" for name, value in row["mean_last_accuracy"].items())
            print(
                f"{run}: {row['seconds']:.1f} s, first round after {row['first_round_after']:.1f} s; {accuracies}", flush=True
            )
            write()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--run", action="append", default=[], metavar="'METHOD [OPTIONS]'")
    parser.add_argument("--cold", action="append", default=[], metavar="'METHOD [OPTIONS]'")
    parser.add_argument("--cache", type=Path, help="a folder to keep compiled programs in; else one that is deleted")
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    main()
