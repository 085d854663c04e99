"""Whole federations in which something is killed, stopped, full or lying, within a round and between two.

Each ends, loses no good round, and gives what a simulation gives in which exactly the left-out replies are missing. One
federation serves all tests, each with a run of its own.
"""

import json
import os
import signal
import subprocess
from contextlib import contextmanager

import numpy as np
import pytest
from in_process import same_numbers, simulated
from organisations import serving
from tiny import ALL_METHODS
from whole import PATIENCE, Whole, check, kill, small, until

from fedmrl.flower.frame import Frame, decode, encode

pytestmark = pytest.mark.federation
FULL = 16  # MiB of the disk that is filled


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    """A federation of two clients, to which a third may be added."""
    with Whole(tmp_path_factory.mktemp("whole")) as whole:
        state = whole.clients[1].path / "state"
        state.mkdir()
        words = ["mount", "-t", "tmpfs", "-o", f"size={FULL}m,mode=700", "tmpfs", str(state)]
        try:
            mounted = subprocess.run(words, capture_output=True, check=False).returncode == 0
        except FileNotFoundError:
            mounted = False
        whole.disk = state if mounted else None
        try:
            whole.start()
            yield whole
        finally:
            whole.stop()
            if mounted:
                subprocess.run(["umount", "--lazy", str(state)], check=True)


@pytest.fixture
def whole(started):
    """A federation of three clients, all of which are connected."""
    started.mend()
    return started


def test_a_client_that_is_added_in_round_3_equals_one_that_took_no_part_before(started, tmp_path):
    if 2 in started.agents:
        pytest.skip("the third client is there already; this test has to be the first")
    recipe = small()
    started.begin("joining", recipe, clients=2)
    started.until_round(1)
    with started.held():  # in round 2
        started.until_trained(1)
        started.add(2)
        started.until_connected(0, 1, 2)
    result = started.result()
    assert [record.participants for record in result.records] == [[0, 1], [0, 1], [0, 1, 2], [0, 1, 2]]
    check(result, recipe, tmp_path)


@pytest.mark.parametrize("method", ALL_METHODS)
def test_every_method_over_tls_gives_the_reference_engines_numbers(method, whole):
    recipe = small(method, rounds=2, evaluation__every=1)
    whole.begin(method, recipe)
    same_numbers(whole.result(), simulated(recipe))


def test_an_agent_killed_within_a_round_and_one_between_two_are_left_out_and_come_back(whole, tmp_path):
    recipe = small(rounds=5)
    whole.begin("agents", recipe, min_clients=1)
    whole.until_round(1)
    with whole.within_a_round(1):
        kill(whole.agents[1])
    whole.until_left_out(1)
    kill(whole.agents[2])
    whole.until_left_out(2)
    with whole.held():
        whole.start_agent(1)
        whole.start_agent(2)
    result = whole.result()
    assert whole.left_out() == {1, 2} and result.records[-1].participants == [0, 1, 2]
    check(result, recipe, tmp_path)


def test_a_supernode_killed_within_a_round_and_one_between_two_are_left_out_and_come_back(whole, tmp_path):
    # Client 2 is not asked in round 2, so its SuperNode is killed between two of its rounds.
    participation = tmp_path / "given.json"
    participation.write_text(json.dumps([[0, 1, 2], [0, 1], *[[0, 1, 2]] * 3]))
    recipe = small(rounds=5)
    whole.begin("supernodes", recipe.model_copy(update={"participation": str(participation)}), min_clients=1)
    whole.until_round(1)
    with whole.held(1):
        whole.until_trained(0)
        kill(whole.supernodes[1])
        kill(whole.supernodes[2])
    whole.until_round(3)
    with whole.held():
        whole.until_connected(0, 1, 2)
    result = whole.result()
    assert whole.left_out() == {1, 2} and result.records[-1].participants == [0, 1, 2]
    check(result, recipe, tmp_path)


def kept(result, before):
    """Whether rounds that were complete are as they were, but for their seconds, as the last may have had no checkpoint yet."""

    def numbers(record):
        return {key: value for key, value in record.plain().items() if key != "seconds"}

    return [numbers(one) for one in result.records[: len(before)]] == [numbers(one) for one in before]


def test_a_server_app_killed_between_two_rounds_and_within_one_is_resumed_without_losing_a_round(whole, tmp_path):
    recipe = small()
    whole.begin("server-app", recipe)
    running = until(lambda: whole.program("flwr-serverapp"), "the ServerApp")
    whole.until_round(1)
    for pid in running:
        os.kill(pid, signal.SIGKILL)
    first = whole.records()
    whole.resume()
    whole.until_round(2)
    with whole.within_a_round(2):
        before = whole.records()
        for pid in whole.program("flwr-serverapp"):
            os.kill(pid, signal.SIGKILL)
    result = whole.result(resume=True)
    assert kept(result, first) and kept(result, before) and not whole.left_out()
    check(result, recipe, tmp_path)


def restart(whole):
    """Starts the server again, when the ServerApp of the one that was killed has gone as well."""
    kill(whole.superlink)
    until(lambda: not whole.program("flwr-serverapp"), "the end of the ServerApp")
    whole.start_server()
    whole.until_connected(0, 1, 2)
    whole.resume()


def test_a_superlink_killed_between_two_rounds_and_within_one_is_resumed_without_losing_a_round(whole, tmp_path):
    recipe = small()
    whole.begin("superlink", recipe)
    whole.until_round(1)
    first = whole.records()
    restart(whole)
    whole.until_round(2)
    with whole.within_a_round(2):
        before = whole.records()
        kill(whole.superlink)
    restart(whole)
    result = whole.result(resume=True)
    assert kept(result, first) and kept(result, before)
    check(result, recipe, tmp_path)


def test_a_client_that_is_too_slow_is_left_out_and_takes_part_again(whole, tmp_path):
    recipe = small()
    whole.begin("slow", recipe, round_seconds=40.0)
    whole.until_round(1)
    with whole.held(1):
        whole.until_left_out(1)
    result = whole.result()
    late = [one for record in result.records for one in record.left_out if one.client == 1]
    assert late[0].reason == "did not reply within 40 seconds" and 1 in result.records[-1].participants
    check(result, recipe, tmp_path)


def test_two_server_apps_never_write_one_folder(whole, tmp_path):
    recipe = small(rounds=2)
    whole.begin("twice", recipe)
    whole.until_round(1)
    with whole.held():
        second = whole.server.run(whole.name)
        assert whole.wait(whole.name, second, PATIENCE) == "failed"
        assert "is being written by another fedmrl" in whole.server.log(whole.name)
    check(whole.result(), recipe, tmp_path)


def test_a_client_whose_disk_is_full_is_left_out_until_there_is_room_again(whole, tmp_path):
    if whole.disk is None:
        pytest.skip("no file system can be mounted here, which only root can")
    recipe = small()
    whole.begin("full", recipe)
    whole.until_round(1)
    filling = whole.disk / "filling"
    with pytest.raises(OSError, match="No space left"), filling.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    whole.until_left_out(1)
    with whole.held():
        filling.unlink()
    result = whole.result()
    assert "No space left on device" in (whole.folder / "agent-1.log").read_text()
    assert whole.left_out() == {1} and result.records[-1].participants == [0, 1, 2]
    check(result, recipe, tmp_path)


@contextmanager
def lying(whole, client, lie):
    """In the place of a client's agent, one whose reply `lie(message, arrays, frame)` may replace by other bytes."""
    whole.agents[client].terminate()
    whole.agents[client].wait()
    with serving(whole.clients[client].config_file) as agent:
        honest = agent.listener.handle

        def handle(data, uid):
            frame = honest(data, uid)
            reply = decode(frame)
            return lie(dict(reply.message), dict(reply.arrays), frame)

        agent.listener.handle = handle
        yield
    whole.start_agent(client)


def each(function):
    """A lie in all arrays of an upload."""
    return lambda message, arrays, frame: encode(Frame(message, {name: function(array) for name, array in arrays.items()}))


LIES = {
    1: (each(lambda a: a * np.nan), "NaN or infinite"),
    2: (each(lambda a: a[:-1]), "does not fit"),
    3: (each(lambda a: a + 1e9), "and at most 1e+04 is taken"),
    4: (lambda message, arrays, frame: frame[:-7], "no whole reply"),
}


def test_a_client_that_sends_bad_uploads_is_left_out_of_those_rounds(whole, tmp_path):
    recipe = small(rounds=6)

    def lie(message, arrays, frame):
        known = LIES.get(message.get("round")) if message["type"] == "train-ok" else None
        return known[0](message, arrays, frame) if known else frame

    with lying(whole, 1, lie):
        whole.begin("uploads", recipe)
        result = whole.result()
    assert [record.participants for record in result.records] == [[0, 1, 2], *[[0, 2]] * 4, [0, 1, 2]]
    for round_, (_, words) in LIES.items():
        (one,) = result.records[round_].left_out
        assert words in one.reason
    check(result, recipe, tmp_path)


def test_a_client_under_someone_elses_name_takes_no_part(whole, tmp_path):
    recipe = small(rounds=2)

    def lie(message, arrays, frame):
        return encode(Frame({**message, "name": "client-0"}, arrays)) if message["type"] == "hello-ok" else frame

    with lying(whole, 2, lie):
        whole.begin("names", recipe, wait_seconds=5.0)
        result = whole.result()
    assert "client-2 calls itself 'client-0', and its key is registered as client-2" in whole.server.log(whole.name)
    assert [row["client"] for row in result.clients.rows()] == [0, 1]
    check(result, recipe, tmp_path)
