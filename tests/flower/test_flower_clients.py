"""The server's side of a federation: joining, rounds, and what is left out."""

import re

import numpy as np
import pytest
from in_process import CONFIG, in_process, same_numbers, simulated
from tiny import ALL_METHODS, tiny_recipe

from fedmrl.errors import UserError
from fedmrl.federation.server import run_in_step
from fedmrl.flower.certificates import make_node_key
from fedmrl.flower.client_config import Bounds
from fedmrl.flower.flower_clients import TooFewReplies
from fedmrl.flower.frame import Frame, decode, encode
from fedmrl.flower.server_config import ServerConfig


def small(method="fedmrl", **settings):
    return tiny_recipe(method, **{"rounds": 2, "clients": 3, "participation": 1.0, "evaluation__every": 1, **settings})


@pytest.mark.parametrize("method", ALL_METHODS)
def test_every_method_gives_the_reference_engines_numbers(method, tmp_path, monkeypatch):
    recipe = small(method)
    with in_process(tmp_path, recipe, monkeypatch) as made:
        same_numbers(made.run(), simulated(recipe))


def test_sampled_rounds_are_those_of_a_simulation(tmp_path, monkeypatch):
    recipe = small(clients=4, participation=0.5, rounds=3)
    with in_process(tmp_path, recipe, monkeypatch) as made:
        same_numbers(made.run(), simulated(recipe))


def changed(message=None, arrays=None):
    """A change of a reply's message, or of its arrays."""

    def change(frame):
        found = decode(frame)
        return encode(Frame({**found.message, **(message or {})}, (arrays or (lambda a: a))(dict(found.arrays))))

    return change


def one_array(function):
    def change(arrays):
        name = "small.header.weight" if "small.header.weight" in arrays else max(arrays, key=lambda n: arrays[n].size)
        return {**arrays, name: function(arrays[name].copy())}

    return changed(arrays=change)


BAD = {
    "NaN": (one_array(lambda a: a * np.nan), "NaN or infinite"),
    "infinite": (one_array(lambda a: a + np.inf), "NaN or infinite"),
    "a wrong shape": (one_array(lambda a: a[:-1]), "does not fit: it has .* of shape"),
    "a wrong type": (one_array(lambda a: a.astype(np.float32)), "expected float64"),
    "huge values": (one_array(lambda a: a + 1e9), "norm"),
    "a tensor more": (changed(arrays=lambda a: {**a, "local.fc.weight": np.ones(3)}), "local.fc.weight"),
    "a tensor less": (changed(arrays=lambda a: dict(list(a.items())[1:])), "it lacks"),
    "nothing": (changed(arrays=lambda a: {}), "it lacks"),
    "truncated": (lambda frame: frame[:-7], "cannot be read"),
    "more bytes": (lambda frame: frame + b"x", "cannot be read"),
    "noise": (lambda frame: bytes(200), "cannot be read"),
    "too large": (lambda frame: bytes(70_000_000), "70,000,000 bytes"),
    "another round": (changed({"round": 7}), "round 8"),
    "another message's id": (changed({"id": "0" * 32}), "another message"),
    "counts above its test samples": (changed({"correct": {"mix-large": 9999}}), "more correct predictions"),
    "no counts": (changed({"correct": {}}), "lacks counts"),
    "diverged": (changed({"loss": None}), "NaN or infinite"),
    "weights not finite": (changed({"finite": False}), "NaN or infinite"),
    "another kind of reply": (
        lambda frame: encode(Frame({"type": "evaluate-ok", "id": decode(frame).message["id"], "correct": {}})),
        "no reply to this",
    ),
    "an unknown kind": (changed({"type": "run-this"}), "cannot be read"),
    "a field more": (changed({"code": "import os"}), "cannot be read"),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_a_bad_reply_is_left_out_with_its_reason_and_the_others_count(what, tmp_path, monkeypatch):
    change, words = BAD[what]
    recipe = small()
    with in_process(tmp_path, recipe, monkeypatch) as made:
        made.grid.change = lambda client, kind, group, frame: (
            change(frame) if (client, kind, group) == (1, "train", "1") else frame
        )
        made.clients.gather(3, 5)
        federation = made.federation()
        snapshot = federation.next_round()
    record = snapshot.records[0]
    assert record.participants == [0, 2]
    assert record.asked == [0, 1, 2]
    ((client, reason),) = [(one.client, one.reason) for one in record.left_out]
    assert client == 1
    assert re.search(words, reason), reason
    assert 1 not in snapshot.last_round


@pytest.mark.parametrize("what", ["NaN", "a wrong shape", "huge values", "truncated", "another message's id"])
def test_a_round_with_a_bad_reply_equals_one_in_which_its_client_takes_no_part(what, tmp_path, monkeypatch):
    participation = tmp_path / "rounds.json"
    participation.write_text("[[0, 1, 2], [0, 2], [0, 1, 2]]")
    recipe = small(rounds=3)
    with in_process(tmp_path, recipe, monkeypatch) as made:
        made.grid.change = lambda client, kind, group, frame: (
            BAD[what][0](frame) if (client, kind, group) == (1, "train", "2") else frame
        )
        network = made.run()
    reference = simulated(recipe.model_copy(update={"participation": str(participation)}))
    assert network.inference == reference.inference
    assert network.clients.rows() == reference.clients.rows()
    assert [one.participants for one in network.records] == [[0, 1, 2], [0, 2], [0, 1, 2]]
    assert [one.loss for one in network.records] == [one.loss for one in reference.records]


def test_a_client_that_joins_later_equals_one_that_took_no_part_before(tmp_path, monkeypatch):
    participation = tmp_path / "rounds.json"
    participation.write_text("[[0, 1], [0, 1, 2], [0, 1, 2]]")
    recipe = small(rounds=3, evaluation__every=3)
    with in_process(tmp_path, recipe, monkeypatch, connected=[0, 1]) as made:
        made.clients.gather(2, 0)
        federation = made.federation()
        federation.commit(federation.next_round())
        made.connect(2)
        assert made.clients.admit() == [2]
        network = federation.run()
    reference = simulated(recipe.model_copy(update={"participation": str(participation)}))
    assert [one.participants for one in network.records] == [[0, 1], [0, 1, 2], [0, 1, 2]]
    assert network.inference == reference.inference
    assert network.clients.rows() == reference.clients.rows()


def test_someone_elses_name_does_not_join(tmp_path, monkeypatch):
    with in_process(tmp_path, small(), monkeypatch) as made:
        made.grid.change = lambda client, kind, group, frame: changed({"name": "client-0"})(frame) if client == 2 else frame
        made.clients.gather(2, 0)
        assert list(made.clients.roster()) == [0, 1]
    assert "client-2 calls itself 'client-0', and its key is registered as client-2" in "\n".join(made.said)


CLASSES = {
    "a label too long to be a number": ({"9" * 5000: 1}, "names classes that the recipe does not have"),
    "a class that the recipe does not have": ({"0": 1, "4": 1}, "names classes that the recipe does not have"),
    "a label written in another way": ({"00": 1}, "names classes that the recipe does not have"),
    "counts that are not those of its samples": ({"0": 3}, "counts 3 training samples by class, and has"),
}


@pytest.mark.parametrize("what", CLASSES)
def test_a_client_whose_class_counts_cannot_be_does_not_join(what, tmp_path, monkeypatch):
    classes, words = CLASSES[what]
    with in_process(tmp_path, small(), monkeypatch) as made:
        lie = changed({"classes": classes})
        made.grid.change = lambda client, kind, group, frame: lie(frame) if client == 1 else frame
        made.clients.gather(2, 0)
        assert list(made.clients.roster()) == [0, 2]
    assert f"client-1 {words}" in "\n".join(made.said)


HELLOS = {
    "more training samples than are taken": ({"train": 2**53 - 1}, "has 9,007,199,254,740,991 training samples"),
    "more test samples than are taken": ({"test": 2**53 - 1}, "test samples, and at most"),
    "a model of two lines": ({"model": "a\nround 1 of 2: 3 of 3 clients"}, "calls its model something that is no short line"),
    "a model that moves the cursor": ({"model": "a\x1b[2J"}, "calls its model something that is no short line"),
    "a model of many letters": ({"model": "a" * 201}, "calls its model something that is no short line"),
}


@pytest.mark.parametrize("what", HELLOS)
def test_a_client_that_says_what_cannot_be_does_not_join(what, tmp_path, monkeypatch):
    message, words = HELLOS[what]
    with in_process(tmp_path, small(), monkeypatch) as made:
        lie = changed({"classes": None, **message})
        made.grid.change = lambda client, kind, group, frame: lie(frame) if client == 1 else frame
        made.clients.gather(2, 0)
        assert list(made.clients.roster()) == [0, 2]
    assert words in "\n".join(made.said)
    assert all(line.isprintable() for line in made.said)


def test_nothing_that_a_client_writes_disturbs_the_log(tmp_path, monkeypatch):
    with in_process(tmp_path, small(), monkeypatch) as made:
        made.clients.gather(3, 5)
        escape = changed({"\x1b[2Jfield": 1})
        made.grid.change = lambda client, kind, group, frame: escape(frame) if (client, kind) == (1, "train") else frame
        ((_, reason),) = [(one.client, one.reason) for one in made.federation().next_round().records[0].left_out]
    assert "[2Jfield" in reason and reason.isprintable()


def asked_of(made, client, kind):
    """The messages of a kind that a client was sent."""
    nodes = [m.metadata.dst_node_id for m in made.grid.asked if m.metadata.message_type == kind]
    return sum(made.grid.sockets[node][0] == client for node in nodes)


def resumed_with_other_data(made):
    """A server that goes on with a run in which client 1 had other data when it joined."""
    made.clients.gather(3, 5)
    members = made.clients.members
    other = members.clients[1].model_copy(update={"train": 5})
    made.clients = made.server(members.model_copy(update={"clients": {**members.clients, 1: other}}))


def test_a_client_that_is_refused_is_not_asked_to_train(tmp_path, monkeypatch):
    with in_process(tmp_path, small(), monkeypatch) as made:
        resumed_with_other_data(made)
        made.clients.gather(2, 0)
        record = made.federation().next_round().records[0]
        assert asked_of(made, 1, "train") == 0
    assert record.participants == [0, 2]
    assert [(one.client, one.reason) for one in record.left_out] == [
        (1, "has other data or another model than when it joined this run")
    ]


def test_a_client_that_is_refused_is_not_asked_to_be_evaluated(tmp_path, monkeypatch):
    with in_process(tmp_path, small(), monkeypatch) as made:
        resumed_with_other_data(made)
        made.clients.gather(2, 0)
        made.federation().next_round()
        assert asked_of(made, 1, "evaluate") == 0


def test_a_member_that_comes_back_is_greeted_before_it_is_asked(tmp_path, monkeypatch):
    with in_process(tmp_path, small(), monkeypatch) as made:
        made.clients.gather(3, 5)
        again = made.clients = made.server(made.clients.members)
        record = made.federation().next_round().records[0]
    assert record.participants == [0, 1, 2]
    assert again._greeted == {0, 1, 2}


def test_a_resumed_run_waits_for_its_clients_again(tmp_path, monkeypatch):
    with in_process(tmp_path, small(), monkeypatch) as made:
        made.clients.gather(3, 5)
        nodes = dict(made.grid.nodes)
        made.grid.nodes.clear()
        again = made.server(made.clients.members)
        with pytest.raises(UserError, match="0 of 3 registered clients have joined within 0 seconds"):
            again.gather(2, 0)
        monkeypatch.setattr("fedmrl.flower.flower_clients.sleep", lambda seconds: made.grid.nodes.update(nodes))
        again.gather(2, 30)
    assert again._greeted == {0, 1, 2}


def test_a_round_that_asks_fewer_clients_than_min_clients_needs_only_those(tmp_path, monkeypatch):
    recipe = small(participation=0.67)
    with in_process(tmp_path, recipe, monkeypatch, connected=[0, 1]) as made:
        made.clients.gather(2, 0)
        record = made.federation().next_round().records[0]
    assert len(record.asked) == 1 and record.participants == record.asked


def test_a_round_in_which_nobody_has_joined_passes(tmp_path, monkeypatch):
    with in_process(tmp_path, small(), monkeypatch, connected=[0, 1]) as made:
        made.clients.gather(2, 0)
        federation = made.federation()
        federation.who = [[2], [0, 1]]
        snapshot = federation.next_round()
    assert (snapshot.records[0].asked, snapshot.records[0].participants) == ([], [])


def test_a_round_with_too_few_replies_for_the_rule_is_tried_again_and_then_stops(tmp_path, monkeypatch):
    recipe = small(aggregation={"rule": "krum", "byzantine": 0})
    with in_process(tmp_path, recipe, monkeypatch, config=replace_config(attempts=2)) as made:
        made.clients.gather(3, 5)
        made.grid.change = lambda client, kind, group, frame: frame[:-1] if (client, kind) == (1, "train") else frame
        words = r"round 1 has 2 good replies, too few for its rule .*krum needs at least 3 .*after 2 attempts"
        with pytest.raises(TooFewReplies, match=words):
            made.federation().next_round()
        assert asked_of(made, 1, "train") == 2
        made.grid.change = lambda client, kind, group, frame: frame
        assert made.federation().next_round().records[0].participants == [0, 1, 2]


def test_the_clients_that_could_not_be_evaluated_are_recorded(tmp_path, monkeypatch):
    recipe = small(rounds=3)
    with in_process(tmp_path, recipe, monkeypatch) as made:
        evaluations = []

        def change(client, kind, group, frame):
            if group == "evaluation" and client == 1:
                evaluations.append(frame)
                return frame if len(evaluations) == 1 else frame[:-1]
            return frame

        made.grid.change = change
        result = made.run()
    assert [record.not_evaluated for record in result.records] == [None, [1], [1]]
    assert result.not_evaluated == [1] and result.plain()["not_evaluated"] == [1]
    assert [row["client"] for row in result.clients.rows()] == [0, 2]


def test_a_simulation_records_no_client_that_could_not_be_evaluated():
    result = simulated(small())
    assert result.not_evaluated is None and "not_evaluated" not in result.plain()
    assert not any("not_evaluated" in record.plain() for record in result.records)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [(lambda t: t * 1e9, "norm .*, and max_norm is 1e\\+04"), (lambda t: t * np.nan, "it has norm nan")],
    ids=["large", "NaN"],
)
def test_a_round_whose_state_clients_would_refuse_is_not_kept(spoil, words, tmp_path, monkeypatch):
    with in_process(tmp_path, small(), monkeypatch) as made:
        made.clients.gather(3, 5)
        federation = made.federation()
        federation.commit(federation.next_round())
        before, aggregate = federation.now, federation.aggregate
        federation.aggregate = lambda *given: {name: spoil(tensor) for name, tensor in aggregate(*given).items()}
        with pytest.raises(UserError, match=f"round 2 gives a state that clients would refuse .*{words}"):
            run_in_step(made.clients, [federation])
        assert federation.now is before


def test_the_servers_largest_norm_is_one_that_clients_take():
    assert ServerConfig(hosts=["a"]).max_norm <= Bounds().max_received_norm


def test_a_hung_client_is_greeted_less_and_less_often(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("fedmrl.flower.flower_clients.monotonic", lambda: now[0])
    with in_process(tmp_path, small(), monkeypatch) as made:
        made.grid.change = lambda client, kind, group, frame: frame[:-1] if client == 1 else frame
        made.clients.gather(2, 0)
        for later, greeted in ((29, 1), (31, 2), (90, 2), (92, 3), (211, 3), (213, 4)):
            now[0] = later
            made.clients.admit()
            assert greetings(made, 1) == greeted, later


def test_between_rounds_a_hung_client_delays_the_others_only_a_little(tmp_path, monkeypatch):
    with in_process(tmp_path, small(), monkeypatch, connected=[0, 1]) as made:
        made.clients.gather(2, 0)
        made.connect(2)
        waited = []
        monkeypatch.setattr(made.clients._post, "exchange", lambda frames, kind, group, seconds: waited.append(seconds) or {})
        made.clients.admit()
    assert waited == [20]


def greetings(made, client):
    """How often a client was sent a hello."""
    found = [m.metadata for m in made.grid.asked if m.metadata.group_id == "hello"]
    return sum(made.grid.sockets[one.dst_node_id][0] == client for one in found)


def test_a_node_whose_key_is_not_registered_is_nobody(tmp_path, monkeypatch):
    with in_process(tmp_path, small(), monkeypatch, connected=[0, 1]) as made:
        make_node_key(tmp_path / "stranger")
        made.grid.add(2, tmp_path / "stranger.pub", made.paths[2] / "agent.sock")
        made.clients.gather(2, 0)
        assert list(made.clients.roster()) == [0, 1]


def test_a_client_with_other_data_than_when_it_joined_is_left_out(tmp_path, monkeypatch):
    with in_process(tmp_path, small(), monkeypatch) as made:
        made.clients.gather(3, 5)
        members = made.clients.members
        other = members.clients[1].model_copy(update={"train": 5})
        again = made.server(members.model_copy(update={"clients": {**members.clients, 1: other}}))
        again.admit()
    assert "client-1 has other data or another model than when it joined this run" in "\n".join(made.said)


def test_a_round_with_too_few_replies_is_tried_again_and_good_replies_are_kept(tmp_path, monkeypatch):
    recipe, bad = small(rounds=1), [1, 2]
    with in_process(tmp_path, recipe, monkeypatch) as made:

        def change(client, kind, group, frame):
            if kind == "train" and client in bad:
                bad.remove(client)
                return frame[:-1]
            return frame

        made.grid.change = change
        network = made.run()
        asked = [made.grid.sockets[m.metadata.dst_node_id][0] for m in made.grid.asked if m.metadata.message_type == "train"]
    assert sorted(asked[:3]) == [0, 1, 2] and sorted(asked[3:]) == [1, 2]
    same_numbers(network, simulated(recipe))


def test_after_its_attempts_a_round_stops_the_run_and_says_how_to_go_on(tmp_path, monkeypatch):
    with in_process(tmp_path, small(), monkeypatch, config=replace_config(attempts=2)) as made:
        made.grid.change = lambda client, kind, group, frame: frame[:-1] if kind == "train" and client else frame
        with pytest.raises(TooFewReplies, match="round 1 has 1 good replies and needs 2, after 2 attempts"):
            made.run()


def test_a_slow_client_is_left_out_at_the_deadline(tmp_path, monkeypatch):
    with in_process(tmp_path, small(), monkeypatch, config=replace_config(round_seconds=2.0)) as made:
        made.grid.change = lambda client, kind, group, frame: None if (client, kind) == (1, "train") else frame
        made.clients.gather(3, 5)
        record = made.federation().next_round().records[0]
    assert [(one.client, one.reason) for one in record.left_out] == [(1, "did not reply within 2 seconds")]


def test_an_agent_that_started_again_is_greeted_and_goes_on(tmp_path, monkeypatch):
    recipe = small()
    with in_process(tmp_path, recipe, monkeypatch) as made:
        made.clients.gather(3, 5)
        federation = made.federation()
        federation.commit(federation.next_round())
        for agent in made.agents:
            agent._run = None  # what a new process knows
        network = federation.run()
    same_numbers(network, simulated(recipe))


def test_too_few_clients_do_not_begin_a_run(tmp_path, monkeypatch):
    words = "1 of 3 registered clients have joined within 0 seconds, and a round needs 2"
    with in_process(tmp_path, small(), monkeypatch, connected=[0]) as made, pytest.raises(UserError, match=words):
        made.clients.gather(2, 0)


def replace_config(**changes):
    return CONFIG.model_copy(update=changes)
