"""Commands run side by side, are told of as they end, and stop when they are asked to."""

import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from fedmrl.reproduce import processes
from fedmrl.reproduce.processes import run_parallel

STAND_IN = """
import signal, sys, time
signal.signal(signal.SIGTERM, signal.default_int_handler)  # as fedmrl has it
folder, name, seconds, code = sys.argv[1:]
open(f"{folder}/{name}.started", "w").close()
try:
    time.sleep(float(seconds))
except KeyboardInterrupt:
    open(f"{folder}/{name}.stopped", "w").close()
    sys.exit(130)
print(f"fedmrl: {name} is over", file=sys.stderr)
sys.exit(int(code))
"""


@pytest.fixture
def command(tmp_path, monkeypatch):
    """Makes the words of a command that takes so long and ends with this code."""
    monkeypatch.setattr(processes, "_PROGRAM", (sys.executable, "-c", STAND_IN))
    return lambda name, seconds=0.0, code=0: [str(tmp_path), name, str(seconds), str(code)]


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def wait_for(path: Path) -> None:
    until = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < until, f"{path.name} never came"
        time.sleep(0.01)


def test_each_is_told_of_with_its_code_and_last_word(command):
    ends = run_parallel({"good": command("good"), "bad": command("bad", code=2)}, jobs=1)
    assert [(ended.name, ended.code, ended.said) for ended in ends] == [("good", 0, "good is over"), ("bad", 2, "bad is over")]


def test_no_more_run_at_once_than_asked_for(command, tmp_path):
    commands = {name: command(name, seconds) for name, seconds in (("a", 0.0), ("b", 600), ("c", 600))}
    with closing(run_parallel(commands, jobs=2)) as ends:
        assert next(ends).name == "a"
        wait_for(tmp_path / "b.started")
        assert "c.started" not in files(tmp_path)


def test_when_nobody_listens_any_more_they_stop_and_no_other_starts(command, tmp_path):
    commands = {name: command(name, seconds) for name, seconds in (("a", 0.0), ("b", 600), ("c", 600))}
    ends = run_parallel(commands, jobs=2)
    next(ends)
    wait_for(tmp_path / "b.started")
    ends.close()
    assert files(tmp_path) == {"a.started", "b.started", "b.stopped"}


def test_when_the_time_is_up_they_stop(command, tmp_path):
    begun = time.monotonic()
    assert not list(run_parallel({"a": command("a", 600), "b": command("b", 600)}, jobs=1, until=begun + 3))
    assert time.monotonic() - begun < 60
    assert "b.started" not in files(tmp_path)


def test_the_program_is_fedmrl():
    assert [ended.code for ended in run_parallel({"wrong": ["reproduce", "nothing"]}, jobs=1)] == [2]


def test_one_that_was_killed_says_so(monkeypatch):
    monkeypatch.setattr(processes, "_PROGRAM", (sys.executable,))
    ends = run_parallel({"a": ["-c", "import os; os.kill(os.getpid(), 9)"]}, jobs=1)
    assert [ended.said for ended in ends] == ["ended by SIGKILL"]
