"""Whole federations in which something is killed, stopped or too slow, within a round and between two.

Each ends, loses no good round, and gives what a simulation gives in which exactly the left-out replies are missing.
"""

import json
import os
import signal
import time
import tomllib
from contextlib import contextmanager
from pathlib import Path

import pytest
import tomli_w
from in_process import same_numbers, simulated
from test_network import FAST
from tiny import ALL_METHODS, tiny_recipe

from fedmrl.flower.deal import deal
from fedmrl.flower.local import LocalFederation
from fedmrl.flower.server_folder import run_recipe
from fedmrl.results import RunResult, read_records

pytestmark = pytest.mark.federation
NAME = "run"
PATIENCE = 400


def small(method="fedmrl", **settings):
    return tiny_recipe(method, **{"rounds": 4, "clients": 3, "participation": 1.0, "evaluation__every": 100, **settings})


@contextmanager
def started(folder, recipe, **settings):
    """A federation of three clients, running."""
    paths = deal(recipe, folder / "clients")
    with LocalFederation(folder / "f", paths, {**FAST, "round_seconds": 40.0, "min_clients": 2, **settings}) as local:
        local.start()
        local.run_id = local.server.run(NAME, run_recipe(recipe, 3))
        yield local


def records(local):
    path = local.server.runs / NAME / "rounds.jsonl"
    return read_records(path) if path.exists() else []


def until(ready, what, seconds=PATIENCE):
    end = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < end, f"{what} took too long"
        time.sleep(0.05)


def until_round(local, number):
    until(lambda: len(records(local)) >= number, f"round {number}")


def kill(process):
    process.kill()
    process.wait()


def program(local, name):
    """The processes of one of Flower's programs."""
    found = []
    for pid in local.descendants():
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if any(word.endswith(name.encode()) for word in words[:2]):
            found.append(pid)
    return found


def ended(local, resume=False):
    """The result of the run, which is resumed as often as needed if `resume`."""
    run_id = local.run_id
    for _ in range(4):
        if local.wait(NAME, run_id, PATIENCE) == "completed":
            return RunResult.read(local.server.runs / NAME)
        assert resume, local.server.log(NAME)
        run_id = local.server.run(NAME)
    raise AssertionError(local.server.log(NAME))


def check(result, recipe, folder):
    """The result is that of a simulation with exactly these participants."""
    participation = folder / "participation.json"
    participation.write_text(json.dumps([record.participants for record in result.records]))
    reference = simulated(recipe.model_copy(update={"participation": str(participation)}))
    assert [record.loss for record in result.records] == [record.loss for record in reference.records]
    assert result.inference == reference.inference
    assert result.clients.rows() == reference.clients.rows()


def left_out(result):
    return {(record.round, one.client) for record in result.records for one in record.left_out}


def back(local, number):
    """Starts a killed SuperNode again: its key is refused until the server has noticed that it is gone."""

    def lives():
        if local.supernodes[number].poll() is not None:
            time.sleep(5)
            local.start_supernode(number)
        log = (local.folder / f"supernode-{number}.log").read_text(errors="replace")
        return log.count("SuperNode ID") >= 2

    until(lives, "the SuperNode's return", 120)


@pytest.mark.parametrize("when", ["within", "between"])
def test_a_killed_agent_is_left_out_and_comes_back(when, tmp_path):
    recipe = small(rounds=5)
    with started(tmp_path, recipe) as local:
        if when == "within":
            until_round(local, 1)
            local.agents[1].send_signal(signal.SIGSTOP)
            time.sleep(10)
            kill(local.agents[1])
        else:
            until_round(local, 1)
            kill(local.agents[1])
        until(lambda: any(one.left_out for one in records(local)), "leaving it out")
        local.start_agent(1)
        result = ended(local)
    assert left_out(result) and {client for _, client in left_out(result)} == {1}
    assert 1 in result.records[-1].participants
    check(result, recipe, tmp_path)


def test_a_killed_supernode_is_left_out_and_comes_back(tmp_path):
    recipe = small(rounds=8)
    with started(tmp_path, recipe, round_seconds=25.0) as local:
        until_round(local, 1)
        kill(local.supernodes[1])
        until(lambda: any(one.left_out for one in records(local)), "leaving it out")
        back(local, 1)
        result = ended(local)
    assert {client for _, client in left_out(result)} == {1}
    assert 1 in result.records[-1].participants
    check(result, recipe, tmp_path)


@pytest.mark.parametrize("when", ["within", "between"])
def test_a_killed_server_app_is_resumed_without_losing_a_round(when, tmp_path):
    recipe = small()
    with started(tmp_path, recipe) as local:
        until_round(local, 1)
        if when == "within":
            local.agents[2].send_signal(signal.SIGSTOP)
            time.sleep(8)
        before = records(local)
        for pid in program(local, "flwr-serverapp"):
            os.kill(pid, signal.SIGKILL)
        local.agents[2].send_signal(signal.SIGCONT)
        result = ended(local, resume=True)
    assert [one.plain() for one in result.records[: len(before)]] == [one.plain() for one in before]
    assert not left_out(result)
    check(result, recipe, tmp_path)


def test_a_killed_superlink_is_resumed_without_losing_a_round(tmp_path):
    recipe = small()
    with started(tmp_path, recipe) as local:
        until_round(local, 1)
        local.agents[2].send_signal(signal.SIGSTOP)
        time.sleep(8)
        before = records(local)
        kill(local.superlink)
        local.agents[2].send_signal(signal.SIGCONT)
        time.sleep(2)
        local.start_server()
        result = ended(local, resume=True)
    assert [one.plain() for one in result.records[: len(before)]] == [one.plain() for one in before]
    check(result, recipe, tmp_path)


def test_a_client_that_is_too_slow_is_left_out_and_takes_part_again(tmp_path):
    recipe = small()
    with started(tmp_path, recipe, round_seconds=20.0) as local:
        until_round(local, 1)
        local.agents[1].send_signal(signal.SIGSTOP)
        until(lambda: any(one.left_out for one in records(local)), "leaving it out")
        local.agents[1].send_signal(signal.SIGCONT)
        result = ended(local)
    assert {client for _, client in left_out(result)} == {1}
    check(result, recipe, tmp_path)


def test_two_server_apps_never_write_one_folder(tmp_path):
    recipe = small()
    with started(tmp_path, recipe) as local:
        until_round(local, 1)
        second = local.server.run(NAME)
        result = ended(local)
        assert local.wait(NAME, second, PATIENCE) == "failed"
        assert "is being written by another fedmrl" in local.server.log(NAME)
    check(result, recipe, tmp_path)


def test_all_methods_over_tls_give_the_reference_engines_numbers(tmp_path):
    paths = deal(small(), tmp_path / "clients")
    leaves = ["small.", "local.header.", "classes", "outputs", "prototypes", "counts"]
    for path in paths:
        file = path / "client.toml"
        plain = tomllib.loads(file.read_text())
        plain["bounds"] |= {"methods": list(ALL_METHODS), "leaves": leaves}
        file.write_text(tomli_w.dumps(plain))
    with LocalFederation(tmp_path / "f", paths, FAST) as local:
        local.start()
        for method in ALL_METHODS:
            recipe = small(method, rounds=2, evaluation__every=1)
            run_id = local.server.run(method, run_recipe(recipe, 3))
            assert local.wait(method, run_id, PATIENCE) == "completed", local.server.log(method)
            same_numbers(RunResult.read(local.server.runs / method), simulated(recipe))
