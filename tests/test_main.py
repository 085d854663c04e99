"""The program as it is started: by its name or as a module, and what stops it while it still loads."""

import signal
import subprocess
import sys
import time
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

SCRIPT = tomllib.loads(Path(__file__).parents[1].joinpath("pyproject.toml").read_text())["project"]["scripts"]["fedmrl"]


def started(folder, *arguments):
    """The program, as soon as it has begun to load, and with Ctrl-C heeded even where tests are run in the background."""
    heed = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    program = [sys.executable, "-c", f"{heed}; import runpy; runpy.run_module('fedmrl', run_name='__main__')", *arguments]
    process = subprocess.Popen(program, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + 30
    while time.monotonic() < until and not _catches(process.pid, signal.SIGTERM):
        time.sleep(0.002)
    return process


def _catches(pid, number):
    status = Path(f"/proc/{pid}/status")
    if not status.exists():  # not Linux
        time.sleep(0.5)
        return True
    caught = next((line for line in status.read_text().splitlines() if line.startswith("SigCgt")), "SigCgt: 0")
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("seconds", [0.0, 0.05, 0.2, 0.5, 1.0, 1.5, 2.5])
def test_what_is_stopped_while_it_loads_says_so_and_shows_no_traceback(tmp_path, how, seconds):
    process = started(tmp_path, "run", "quickstart", "--set", "rounds=100000")
    time.sleep(seconds)
    process.send_signal(how)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130 and out == ""
    assert "Traceback" not in err and err.splitlines()[-1].startswith("fedmrl: stopped "), err
    if seconds < 0.4:
        assert err == "fedmrl: stopped before training began\n" and not list(tmp_path.iterdir())


def test_a_program_that_is_started_to_ignore_ctrl_c_does(tmp_path):
    command = f"trap '' INT; exec {sys.executable} -m fedmrl --version"
    process = subprocess.Popen(command, shell=True, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "") and out.startswith("fedmrl ")


def test_the_program_and_the_module_are_one_and_the_same(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["fedmrl", "--version"])
    before = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)]
    try:
        with pytest.raises(SystemExit) as end:
            EntryPoint("fedmrl", SCRIPT, "console_scripts").load()()
    finally:
        for one, handler in zip((signal.SIGINT, signal.SIGTERM), before, strict=True):
            signal.signal(one, handler)
    assert not end.value.code
    by_module = subprocess.run([sys.executable, "-m", "fedmrl", "--version"], capture_output=True, text=True, check=False)
    assert capsys.readouterr().out == by_module.stdout
