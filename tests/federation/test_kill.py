"""A run that is killed without warning, again and again, ends as if nothing had happened."""

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tiny import tiny_recipe

import fedmrl
from fedmrl.results import RunResult, ended

KILLS = int(os.environ.get("FEDMRL_TEST_KILLS", "4"))
ROUNDS = 150


@pytest.mark.parametrize("store", ["device", "disk"])
def test_kills_at_random_moments_do_not_change_what_comes_out(tmp_path, store):
    recipe = tiny_recipe("fedmrl", rounds=ROUNDS)
    whole = fedmrl.run(recipe, store=store)
    (tmp_path / "recipe.toml").write_text(recipe.to_toml())
    folder = tmp_path / "run"
    rng, reached = random.Random(store), []
    for _ in range(KILLS):
        kill_after(rng.uniform(0.0, 0.4), tmp_path / "recipe.toml", folder, store)
        reached.append(rounds_in(folder))
        if ended(folder):
            break
    assert reached[0] > 0, "it was killed in the middle"
    result = fedmrl.run(recipe, out=folder, resume=True, store=store)
    assert result.states_sha256 == whole.states_sha256
    assert [record.accuracy for record in result.records] == [record.accuracy for record in whole.records]
    assert RunResult.read(folder).records == result.records


def rounds_in(folder: Path) -> int:
    log = folder / "rounds.jsonl"
    return len(log.read_bytes().splitlines()) if log.exists() else 0


def kill_after(seconds: float, recipe: Path, folder: Path, store: str) -> None:
    """Starts the run, or goes on with it, and kills it so long after its first new round."""
    resume = ["--resume"] if (folder / "config.toml").exists() else []
    command = [sys.executable, "-m", "fedmrl", "run", str(recipe), "--out", str(folder), "--store", store, *resume]
    before = rounds_in(folder)
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        until = time.monotonic() + 120
        # A resumed run first cuts its log back to the last checkpoint; then it writes on.
        while rounds_in(folder) in (0, before) and process.poll() is None and time.monotonic() < until:
            time.sleep(0.01)
        time.sleep(seconds)
        process.kill()
