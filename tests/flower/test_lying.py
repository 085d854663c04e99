"""What a lying or flooding peer can do through the socket: nothing to states and files, and nothing to an honest training."""

import shutil
import socket
import struct
import threading
import time
from contextlib import ExitStack

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from organisations import CPU, Peer, files, serving, small_quickstart, write_client

from fedmrl.federation.setup import prepare
from fedmrl.flower.audit import read_audit
from fedmrl.flower.frame import Frame, FrameError, encode, exchange
from fedmrl.flower.protocol import Evaluate, EvaluateOk, Failure, Hello, HelloOk, Train, TrainOk, read_reply, to_bytes

ROUNDS = 200


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    """A client that has trained in rounds 0 and 1."""
    folder = tmp_path_factory.mktemp("lying")
    recipe = small_quickstart(rounds=ROUNDS)
    setting = prepare(recipe, CPU)
    bounds = {"max_message_bytes": 1_000_000, "max_received_norm": 1000.0, "max_runs": 2}
    with serving(write_client(folder / "client", setting, 0, seconds=1, bounds=bounds)) as agent:
        peer = Peer(agent, recipe)
        peer.state, peer.content, peer.setting = folder / "client" / "state", setting.server_start(), setting
        assert isinstance(peer.hello(), HelloOk)
        for round_ in (0, 1):
            assert isinstance(peer.train(round_, round_ - 1 if round_ else None, peer.content)[0], TrainOk)
        peer.next, peer.since, peer.earlier = 2, 1, 2
        yield peer


@pytest.fixture
def unchanged(one):
    """Checks after the test that no file has changed, and that an honest training still works."""
    before = files(one.state / "runs")
    yield
    assert files(one.state / "runs") == before
    hello = one.hello()
    assert isinstance(hello, HelloOk) and one.since in one.held()
    begun = time.monotonic()
    reply, upload = one.train(one.next, one.since, one.content, earlier=one.earlier)
    assert isinstance(reply, TrainOk) and reply.finite and upload.keys() == one.content.keys()
    assert time.monotonic() - begun < 10
    one.next, one.since, one.earlier = one.next + 1, one.next, one.earlier + 1


@pytest.fixture
def only_refused(one, unchanged):
    """Checks that the audit log has a refusal more and nothing else."""
    before = len(read_audit(one.state))
    yield
    (line,) = read_audit(one.state)[before:]
    assert (line["direction"], line["type"]) == ("out", "error") and line["told"].keys() == {"reason", "sentence"}


def changed(content, **tensors):
    return {**content, **{name.replace("__", "."): tensor for name, tensor in tensors.items()}}


NAME = "small.header.bias"
LIES = {
    "a round that is over": lambda p: p.train(0, None, p.content),
    "a round that is over, from its own state": lambda p: p.train(1, 0, p.content, earlier=1),
    "the newest round with other content": lambda p: p.train(
        p.since, p.since, changed(p.content, **{NAME: p.content[NAME] + 1})
    ),
    "round 1000": lambda p: p.train(1000, p.since, p.content, earlier=p.earlier),
    "the round after the last": lambda p: p.train(ROUNDS, p.since, p.content, earlier=p.earlier),
    "round 1000 of 2000": lambda p: p.train(1000, p.since, p.content, earlier=p.earlier, rounds=2000),
    "another number of rounds": lambda p: p.train(p.next, p.since, p.content, earlier=p.earlier, rounds=ROUNDS + 1),
    "a state that was never there": lambda p: p.train(p.next, p.next, p.content, earlier=p.earlier),
    "a state that was pruned": lambda p: p.train(p.next, None, p.content),
    "another number of earlier rounds": lambda p: p.train(p.next, p.since, p.content, earlier=p.earlier + 1),
    "an unknown run": lambda p: p.train(p.next, p.since, p.content, earlier=p.earlier, run="other"),
    "an unknown run to be evaluated": lambda p: p.evaluate(p.since, p.content, run="other"),
    "another recipe": lambda p: p.hello(recipe=small_quickstart(rounds=ROUNDS, training__lr=0.5).to_toml()),
    "a comment in the recipe": lambda p: p.hello(recipe=p.recipe.to_toml() + "# more\n"),
    "someone else's number": lambda p: p.hello(client=1),
    "NaN": lambda p: p.train(p.next, p.since, changed(p.content, **{NAME: p.content[NAME] * float("nan")}), earlier=p.earlier),
    "infinity": lambda p: p.evaluate(p.since, changed(p.content, **{NAME: p.content[NAME] + float("inf")})),
    "huge values": lambda p: p.train(p.next, p.since, {n: t + 1e30 for n, t in p.content.items()}, earlier=p.earlier),
    "large values": lambda p: p.train(p.next, p.since, {n: t + 100 for n, t in p.content.items()}, earlier=p.earlier),
    "wrong shapes": lambda p: p.train(p.next, p.since, {n: t[None] for n, t in p.content.items()}, earlier=p.earlier),
    "a shape that would broadcast": lambda p: p.train(
        p.next, p.since, changed(p.content, **{NAME: torch.zeros(1)}), earlier=p.earlier
    ),
    "wrong types": lambda p: p.train(p.next, p.since, {n: t.double() for n, t in p.content.items()}, earlier=p.earlier),
    "a tensor too few": lambda p: p.train(p.next, p.since, {NAME: p.content[NAME]}, earlier=p.earlier),
    "no tensors": lambda p: p.train(p.next, p.since, {}, earlier=p.earlier),
    "a private tensor": lambda p: p.train(
        p.next, p.since, {**p.content, "local.header.bias": torch.zeros(10)}, earlier=p.earlier
    ),
    "a private attribute": lambda p: p.evaluate(p.since, {**p.content, "local.extractor.__class__": torch.zeros(1)}),
    "an unknown mode": lambda p: p.evaluate(p.since, p.content, modes=["local"]),
    "a mode that is a path": lambda p: p.evaluate(p.since, p.content, modes=["../../etc/passwd"]),
    "arrays in a message that declares none": lambda p: p.ask(
        Evaluate(run=p.run, since=p.since, content=False, modes=["mix-large"]), p.content
    ),
    "a hello with arrays": lambda p: p.ask(Hello(run="r", client=0, recipe=p.recipe.to_toml()), p.content),
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_is_refused(one, only_refused, lie):
    found = LIES[lie](one)
    reply = found[0] if isinstance(found, tuple) else found
    assert isinstance(reply, Failure) and reply.reason in ("refused", "hello-first"), reply
    assert str(one.state.parent) not in reply.sentence and "Traceback" not in reply.sentence
    assert len(reply.sentence.splitlines()) == 1 and len(reply.sentence) < 400


RECIPES = {
    "rounds": {"rounds": 501},
    "passes over the data": {"training.epochs": 21},
    "training.batch_size": {"training.batch_size": 7},
    "is 1025": {"training.batch_size": 1025},
    "numbers": {"models.small": {"conv1": 64, "conv2": 64, "fc1": 4000, "fc2": 500}},
    "participation is a path": {"participation": "/etc/passwd"},
    "data.file is a path": {"data.name": "arrays", "data.file": "/etc/passwd"},
}


@pytest.mark.parametrize("says", RECIPES)
def test_a_recipe_out_of_bounds_is_refused(one, only_refused, says):
    from fedmrl import load_recipe

    recipe = load_recipe(one.recipe, RECIPES[says])
    reply = one.hello(run="new", recipe=recipe.to_toml())
    assert isinstance(reply, Failure) and reply.reason == "refused" and says in reply.sentence, reply


@pytest.mark.parametrize(
    "text",
    [
        "rounds = ", "rounds = 3\n[x]", "a = " + "[" * 5000, "extends = 'quickstart'", "imports = ['os']", "imports = 3",
        "imports = ['/tmp/evil.py']", "[method]\nname = 'nothing'", "[method]\nname = ['x']", "method = 3",
        "[models]\nlocal = [{name = 'x'}]", "clients = 0", "partition = []", "[data]\nname = 'given'",
    ],
)  # fmt: skip
def test_what_is_no_recipe_is_refused(one, only_refused, text):
    reply = one.hello(run="new", recipe=text)
    assert isinstance(reply, Failure) and reply.reason == "refused", reply


def test_a_recipe_that_does_not_fit_the_clients_model_is_refused_without_saying_what_model_it_has(one, unchanged):
    reply = one.hello(run="new", recipe=small_quickstart(method__d1=100).to_toml())
    assert reply.sentence == "this client's model or data does not fit the recipe; its own log says why"


def test_a_recipe_imports_nothing(one, unchanged, tmp_path):
    evil = tmp_path / "evil.py"
    evil.write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()")
    text = f"imports = [{str(evil)!r}]\n{one.recipe.to_toml()}"
    assert "imports" in one.hello(run="new", recipe=text).sentence
    assert not (tmp_path / "ran").exists()


def test_new_runs_take_no_more_room_than_the_organisation_gives_them(one, unchanged):
    second = Peer(one.agent, one.recipe, run="second")
    assert isinstance(second.hello(), HelloOk)
    assert isinstance(second.train(0, None, one.content)[0], TrainOk)
    assert "at most 2 runs" in Peer(one.agent, one.recipe, run="third").hello().sentence
    assert isinstance(second.hello(), HelloOk)
    shutil.rmtree(one.state / "runs" / "second")


def test_evaluations_are_counted_by_what_they_ask(tmp_path):
    recipe = small_quickstart()
    setting = prepare(recipe, CPU)
    with serving(write_client(tmp_path / "c", setting, 0, bounds={"max_evaluations": 2})) as agent:
        peer, content = Peer(agent, recipe), setting.server_start()
        peer.hello()
        first = peer.evaluate(None, content)
        assert peer.evaluate(None, content).correct == first.correct
        assert isinstance(peer.evaluate(None, None), EvaluateOk)
        other = {name: tensor + 1 for name, tensor in content.items()}
        assert "no more" in peer.evaluate(None, other).sentence
        peer.hello()
        assert "no more" in peer.evaluate(None, other).sentence
        assert peer.evaluate(None, content).correct == first.correct


def test_a_restart_allows_no_further_evaluations(tmp_path):
    recipe = small_quickstart()
    setting = prepare(recipe, CPU)
    path, content = write_client(tmp_path / "c", setting, 0, bounds={"max_evaluations": 1}), setting.server_start()
    with serving(path) as agent:
        peer = Peer(agent, recipe)
        peer.hello()
        first = peer.evaluate(None, content)
    with serving(path) as agent:
        peer = Peer(agent, recipe)
        peer.hello()
        assert "no more" in peer.evaluate(None, None).sentence
        assert peer.evaluate(None, content).correct == first.correct
        peer.train(0, None, content)
        assert "no more" in peer.evaluate(0, None).sentence


@given(st.integers(0, 10**6), st.binary(min_size=1, max_size=3), st.booleans())
def test_no_changed_message_breaks_an_agent_or_changes_a_file(one, place, noise, hello):
    request = (
        Hello(run="r", client=0, recipe=one.recipe.to_toml())
        if hello
        else Evaluate(run="r", since=one.since, content=True, modes=["mix-large"])
    )
    data = bytearray(to_bytes(request, {} if hello else one.content))
    length = 20 + struct.unpack("<4sIIQ", data[:20])[2]
    start = place % length
    data[start : start + len(noise)] = noise
    before = files(one.state / "runs")
    reply, _ = read_reply(one.agent.handle(data, 0))
    assert isinstance(reply, Failure | HelloOk | EvaluateOk)
    # That an evaluation was answered is written down, and nothing else.
    assert isinstance(reply, EvaluateOk) or files(one.state / "runs") == before
    assert not isinstance(reply, Failure) or reply.reason != "failed"


def raw(one, data, half_close=True):
    """Sends bytes and gives the reply."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(10)
        connection.connect(one.agent.config.socket)
        try:
            connection.sendall(data)
            if half_close:
                connection.shutdown(socket.SHUT_WR)
        except (BrokenPipeError, ConnectionResetError):
            pass
        received = bytearray()
        try:
            while more := connection.recv(65536):
                received += more
        except ConnectionResetError:
            pass
        return read_reply(received)[0]


def honest(one):
    return to_bytes(
        Train(run="r", round=one.next, rounds=ROUNDS, since=one.since, earlier=one.earlier), one.content
    )  # fmt: skip


BYTES = {
    "half a frame": lambda p: raw(p, honest(p)[:1000]),
    "half a frame that stays open": lambda p: raw(p, honest(p)[:1000], half_close=False),
    "a whole frame that stays open": lambda p: raw(p, honest(p), half_close=False),
    "trailing bytes": lambda p: raw(p, honest(p) + b"x"),
    "two frames": lambda p: raw(p, honest(p) * 2),
    "noise": lambda p: raw(p, np.random.default_rng(0).bytes(5000)),
    "a header that is too long": lambda p: raw(p, struct.pack("<4sIIQ", b"fmrl", 1, 2**31, 0)),
    "a body that is too long": lambda p: raw(p, struct.pack("<4sIIQ", b"fmrl", 1, 10, 2**40)),
    "a large message": lambda p: raw(p, encode(Frame({"type": "train"}, {"x": np.zeros(200_000)}))),
    "deep nesting": lambda p: raw(p, struct.pack("<4sIIQ", b"fmrl", 1, 100_000, 0) + b"[" * 100_000),
    "a message of another kind": lambda p: raw(p, encode(Frame({"type": "confirm", "run": "r"}))),
    "a run that is a path": lambda p: raw(
        p, encode(Frame({**Hello(run="r", client=0, recipe="").model_dump(), "run": "../../../tmp"}))
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", BYTES)
def test_bytes_that_are_no_message_are_refused(one, only_refused, what):
    reply = BYTES[what](one)
    assert isinstance(reply, Failure) and reply.reason == "bad-message", reply


def test_who_only_looks_whether_an_agent_listens_gets_no_reply_and_no_line(one, unchanged):
    before = (one.state / "audit.jsonl").read_bytes()
    with pytest.raises(FrameError, match="0 bytes"):
        raw(one, b"")
    assert (one.state / "audit.jsonl").read_bytes() == before


def test_100_idle_connections_keep_nobody_out(one, unchanged):
    with ExitStack() as stack:
        for number in range(100):
            idle = stack.enter_context(socket.socket(socket.AF_UNIX))
            idle.connect(one.agent.config.socket)
            if number % 2:
                idle.sendall(honest(one)[:number])
        begun = time.monotonic()
        assert isinstance(one.hello(), HelloOk)
        assert time.monotonic() - begun < 5
    deadline = time.monotonic() + 5
    while one.agent.listener._open and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not one.agent.listener._open


def test_peers_that_do_not_read_their_reply_keep_nobody_out(one, unchanged):
    with ExitStack() as stack:
        for _ in range(6):
            deaf = stack.enter_context(socket.socket(socket.AF_UNIX))
            deaf.connect(one.agent.config.socket)
            deaf.sendall(to_bytes(Hello(run="r", client=1, recipe=one.recipe.to_toml())))
            deaf.shutdown(socket.SHUT_WR)
        assert isinstance(one.hello(), HelloOk)


def test_of_two_equal_trainings_at_once_one_is_carried_out(one):
    replies = []
    data = honest(one)
    threads = [threading.Thread(target=lambda: replies.append(exchange(one.agent.config.socket, data, 60))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert replies[0] == replies[1] and isinstance(read_reply(replies[0])[0], TrainOk)
    one.next, one.since, one.earlier = one.next + 1, one.next, one.earlier + 1


@pytest.mark.parametrize(
    ("what", "says"),
    [("a header that is too long", "header has 2147483648 bytes"), ("a body that is too long", "at most 1000000 are taken")],
)
def test_what_is_too_long_is_refused_before_it_is_read(one, what, says):
    assert says in BYTES[what](one).sentence


def test_values_that_are_not_finite_are_named(one):
    assert f"{NAME} with values that are not finite" in LIES["infinity"](one).sentence


def test_users_who_are_not_listed_may_not_connect(tmp_path):
    import os

    recipe = small_quickstart()
    setting = prepare(recipe, CPU)
    for name, uid, kind in (("other", os.getuid() + 1, Failure), ("own", os.getuid(), HelloOk)):
        with serving(write_client(tmp_path / name, setting, 0, uids=[uid])) as agent:
            assert isinstance(Peer(agent, recipe).hello(), kind)
            assert (tmp_path / name / "agent.sock").stat().st_mode & 0o777 == 0o660
            # A refused user must not be able to fill the disk.
            assert len(read_audit(tmp_path / name / "state")) == (0 if kind is Failure else 2)
        assert not (tmp_path / name / "agent.sock").exists()


def test_only_recipes_that_are_pinned_are_run(tmp_path):
    from fedmrl.files import sha256_of_text

    recipe = small_quickstart()
    setting = prepare(recipe, CPU)
    bounds = {"recipe_sha256": [sha256_of_text(recipe.to_toml())]}
    with serving(write_client(tmp_path / "c", setting, 0, bounds=bounds)) as agent:
        assert "not one that this client approved" in Peer(agent, small_quickstart(seed=1), run="s").hello().sentence
        assert isinstance(Peer(agent, recipe).hello(), HelloOk)


@pytest.mark.parametrize(
    ("method", "bounds", "says"),
    [
        ("fml", {"methods": ["fedmrl"]}, "this client takes fedmrl"),
        ("lg-fedavg", {"leaves": ["small."]}, "local.header.weight, and this client lets only small. leave"),
        ("fedproto", {"leaves": ["small."]}, "an upload has"),
        ("fedmrl", {"max_parameters": 10}, "sends at most 10"),
        ("fedapen", {"max_epochs": 10}, "passes over the data 11 times"),
    ],
)
def test_a_method_that_sends_more_than_may_leave_is_refused_at_the_hello(method, bounds, says, tmp_path):
    recipe = small_quickstart(method)
    setting = prepare(recipe, CPU)
    with serving(write_client(tmp_path / "c", setting, 0, bounds=bounds)) as agent:
        assert says in Peer(agent, recipe).hello().sentence


def test_a_run_of_too_many_clients_is_refused_before_memory_is_taken_for_them(tmp_path):
    recipe = small_quickstart()
    with serving(write_client(tmp_path / "c", prepare(recipe, CPU), 0)) as agent:
        peer = Peer(agent, recipe.model_copy(update={"clients": 10_001}))
        assert "runs of at most 10000" in peer.hello().sentence


def test_an_upload_above_its_bound_does_not_leave_and_changes_nothing(tmp_path):
    recipe = small_quickstart()
    setting = prepare(recipe, CPU)
    with serving(write_client(tmp_path / "c", setting, 0, bounds={"max_upload_norm": 0.01})) as agent:
        peer = Peer(agent, recipe)
        peer.hello()
        before = all_but_the_audit_log(tmp_path / "c")
        reply, upload = peer.train(0, None, setting.server_start())
        assert reply.sentence == "the upload has a norm above 0.01, the most that this client takes" and not upload
        assert all_but_the_audit_log(tmp_path / "c") == before


def all_but_the_audit_log(folder):
    """All files of a client but its audit log."""
    return {name: content for name, content in files(folder).items() if not name.startswith("state/audit")}


METHOD = """
import fedmrl

@fedmrl.register
class OurOwn(fedmrl.FML):
    '''A method that this organisation knows.'''
    name = "our-own"
"""


def test_a_method_of_others_is_run_only_if_the_organisation_imports_it_itself(tmp_path):
    (tmp_path / "ours.py").write_text(METHOD)
    setting = prepare(recipe := small_quickstart("fml"), CPU)
    text = recipe.to_toml().replace('name = "fml"', 'name = "our-own"')
    named = f'imports = ["server/ours.py"]\n{text}'
    bounds = {"methods": ["our-own"], "recipe_imports": ["server/ours.py"]}
    with serving(write_client(tmp_path / "without", setting, 0, bounds=bounds)) as agent:
        assert "'our-own', which is not a known method" in Peer(agent, recipe).hello(recipe=named).sentence
    path = write_client(tmp_path / "with", setting, 0, bounds=bounds, imports=[str(tmp_path / "ours.py")])
    with serving(path) as agent:
        peer = Peer(agent, recipe)
        assert isinstance(peer.hello(recipe=named), HelloOk)
        assert isinstance(peer.train(0, None, setting.server_start())[0], TrainOk)
        assert "imports" in peer.hello(run="s", recipe=f'imports = ["other.py"]\n{text}').sentence
