"""The agent gives what a simulation gives, bit for bit, and keeps its states by round."""

import logging
import re
import resource
import shutil
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress

import numpy as np
import pytest
import torch
from organisations import CPU, Peer, federation, files, serving, small_quickstart, write_client

from fedmrl.data.sources import AtClients
from fedmrl.federation.setup import prepare
from fedmrl.federation.simulation import Simulation
from fedmrl.flower.frame import FrameError
from fedmrl.flower.protocol import Failure, HelloOk, TrainOk
from fedmrl.flower.states import RunStates
from fedmrl.messages import Upload
from fedmrl.methods import METHODS, Round


def simulated(recipe, setting):
    """A federation run to its end, with the uploads of each round."""
    fed, uploads = Simulation(recipe, setting), []
    train = fed.clients.train

    def training(round_, requests, upcoming=()):
        replies = train(round_, requests, upcoming)
        uploads.append({reply.client: reply for reply in replies})
        return replies

    fed.clients.train = training
    result = fed.run()
    return fed, uploads, result


def equal(one, other):
    return one.keys() == other.keys() and all(
        one[name].dtype == other[name].dtype and torch.equal(one[name], other[name]) for name in one
    )


@pytest.mark.parametrize("method", sorted(METHODS))
def test_three_agents_give_the_uploads_states_and_counts_of_a_simulation_bit_for_bit(method, tmp_path):
    recipe = small_quickstart(method, evaluation__every=1)
    with federation(tmp_path, recipe) as (setting, peers):
        fed, expected, _ = simulated(recipe, setting)
        hellos = [peer.hello() for peer in peers]
        assert [hello.train for hello in hellos] == [len(member.train) for member in setting.members.values()]
        assert [hello.model for hello in hellos] == [member.model.label for member in setting.members.values()]
        server, since = setting.server_start(), None
        for r in range(recipe.rounds):
            uploads = []
            for k, peer in enumerate(peers):
                reply, upload = peer.train(r, since, setting.method.answer(server, k, since))
                assert isinstance(reply, TrainOk) and reply.finite
                told = expected[r][k]
                assert equal(upload, told.upload)
                assert (reply.loss, reply.flops) == (told.told[0].item(), told.flops)
                uploads.append(Upload(k, hellos[k].train, upload))
            server, since = setting.method.aggregate(server, uploads, Round(r, recipe.rounds), recipe.aggregation), r
            accuracy = fed.now.records[r].accuracy.all
            for view in recipe.views:
                for mode in recipe.recorded_modes:
                    shares = []
                    for k, peer in enumerate(peers):
                        content = setting.method.answer(server, k, None) if setting.method.hears_server else None
                        correct = peer.evaluate(since, content).correct
                        shares.append(correct[view][mode] / hellos[k].test)
                    assert np.mean(shares) == pytest.approx(accuracy[view][mode], abs=1e-12)
        for k, peer in enumerate(peers):
            assert equal(peer.agent._run.state(1), fed.states()[k])
        assert equal(server, fed.now.server)


@pytest.mark.parametrize("simulation", [True, False])
def test_with_local_privacy_only_a_clipped_update_with_noise_leaves_an_agent(simulation, tmp_path):
    privacy = {"mode": "local", "clip": 0.5, "noise": 2.0, "delta": 0.01, "simulation": simulation}
    recipe = small_quickstart(method__weighting="uniform", privacy=privacy)
    with federation(tmp_path, recipe) as (setting, peers):
        _, expected, _ = simulated(recipe, setting)
        server = setting.server_start()
        for k, peer in enumerate(peers):
            peer.hello()
            _, upload = peer.train(0, None, server)
            assert equal(upload, expected[0][k].upload) is simulation, "the system's noise is never the same"
            change = torch.cat([(upload[name] - server[name]).double().flatten() for name in server])
            # The update itself has a norm of at most 0.5.
            assert change.std().item() == pytest.approx(2.0 * 0.5, rel=0.15)
            sent_again = peer.train(0, None, server)[1]
            assert equal(upload, sent_again), "a repeated request gets no second draw of the noise"


@pytest.fixture
def one(tmp_path):
    recipe = small_quickstart(rounds=20)
    setting = prepare(recipe, CPU)
    path = write_client(tmp_path / "client", setting, 0)
    with serving(path) as agent:
        peer = Peer(agent, recipe)
        peer.setting, peer.path, peer.content = setting, path, setting.server_start()
        peer.state = tmp_path / "client" / "state"
        assert isinstance(peer.hello(), HelloOk)
        yield peer


NAMES = [f"digit {label}" for label in range(10)]
OTHER_DATA = {
    "another shape": (NAMES, {"shape": [28, 28, 1]}, r"samples of shape \(28, 28, 1\), and this client's have another"),
    "other names": (NAMES, {"classes": NAMES[::-1]}, "this client's are not the same"),
    "more classes": (NAMES, {"classes": [*NAMES, "none"]}, "for 11 classes, and this client's are not the same"),
    "more classes than their number": (10, {"classes": [*NAMES, "none"]}, "for 11 classes"),
}


@pytest.mark.parametrize("what", OTHER_DATA)
def test_a_recipe_for_other_data_than_the_clients_is_refused(what, tmp_path):
    classes, change, words = OTHER_DATA[what]
    recipe = small_quickstart()
    setting = prepare(recipe, CPU)
    own = {"shape": list(setting.data.shape), "classes": NAMES}
    with serving(write_client(tmp_path / "client", setting, 0, classes=classes)) as agent:
        peer = Peer(agent, recipe.model_copy(update={"data": AtClients(**{**own, **change})}))
        refused = peer.hello()
        assert isinstance(refused, Failure) and re.search(words, refused.sentence), refused
        assert not list((tmp_path / "client" / "state" / "runs").glob("*"))
        peer.recipe = recipe.model_copy(update={"data": AtClients(**own)})
        assert isinstance(peer.hello(), HelloOk)


def test_a_hello_says_who_the_client_is_and_nothing_else(one):
    hello = one.hello()
    assert hello.model_dump(exclude={"id", "type"}) == {
        "name": "organisation 0",
        "model": one.setting.members[0].model.label,
        "train": len(one.setting.members[0].train),
        "test": len(one.setting.members[0].test),
        "classes": None,
    }
    assert not (one.state / "runs").exists(), "nothing is written before the first training"


def test_the_counts_after_a_training_are_those_of_an_evaluation_without_content(one):
    reply, _ = one.train(0, None, one.content)
    assert one.evaluate(0, None).correct == {"own": reply.correct}
    assert one.evaluate(0, one.content).correct.keys() == {"own", "aggregated"}


def test_an_equal_request_gets_the_cached_reply_also_after_a_restart(one, tmp_path):
    reply, upload = one.train(0, None, one.content)
    states = files(one.state / "runs")
    again, same = one.train(0, None, one.content)
    assert again.model_copy(update={"id": ""}) == reply.model_copy(update={"id": ""}) and again.id != reply.id
    assert equal(upload, same) and files(one.state / "runs") == states
    one.agent.close()
    with serving(one.path) as agent:
        after = Peer(agent, one.recipe)
        assert after.train(0, None, one.content)[0].reason == "hello-first"
        assert after.held() == [None, 0]
        assert equal(upload, after.train(0, None, one.content)[1])


def test_a_training_counts_when_a_later_one_continues_from_it_and_until_then_either_state_may(one):
    one.train(0, None, one.content)
    first = one.train(1, 0, one.content)
    assert one.held() == [0, 1]
    assert one.train(2, None, one.content)[0].reason == "refused", "the initial state is over"
    second = one.train(2, 0, one.content)  # the server lost round 1
    assert one.held() == [0, 2] and second[0].loss != first[0].loss
    assert one.train(3, 1, one.content, earlier=2)[0].reason == "refused"
    assert isinstance(one.train(3, 2, one.content, earlier=2)[0], TrainOk)
    assert one.held() == [2, 3]


def test_a_restarted_agent_goes_on_bit_for_bit(one):
    one.train(0, None, one.content)
    one.agent.close()
    with serving(one.path) as agent:
        peer = Peer(agent, one.recipe)
        peer.hello()
        stopped = peer.train(1, 0, one.content)[1]
    other = write_client(one.path.parent.parent / "other", one.setting, 0)
    with serving(other) as agent:
        peer = Peer(agent, one.recipe)
        peer.hello()
        peer.train(0, None, one.content)
        assert equal(peer.train(1, 0, one.content)[1], stopped)


def test_two_runs_do_not_mix_their_states(one):
    one.train(0, None, one.content)
    first = files(one.state / "runs" / "r")
    other = Peer(one.agent, small_quickstart(rounds=20, seed=1), run="other")
    assert other.train(0, None, one.content)[0].reason == "hello-first"
    assert other.held() == [None]
    assert one.train(1, 0, one.content)[0].reason == "hello-first"
    assert isinstance(other.train(0, None, other.recipe and one.content)[0], TrainOk)
    assert files(one.state / "runs" / "r") == first
    assert one.held() == [None, 0]
    assert isinstance(one.train(1, 0, one.content)[0], TrainOk)


def test_another_recipe_for_a_run_that_was_named_and_never_trained_is_refused(one):
    other = small_quickstart(rounds=20, seed=1)
    assert isinstance(Peer(one.agent, one.recipe, run="other").hello(), HelloOk)
    assert isinstance(one.hello(), HelloOk)
    assert Peer(one.agent, other, run="other").hello().sentence == "run other began with another recipe"


@pytest.fixture
def for_one_run(tmp_path):
    """Makes a peer that names a run, of an agent that takes part in one run."""
    recipe = small_quickstart()
    setting = prepare(recipe, CPU)
    with serving(write_client(tmp_path / "client", setting, 0, bounds={"max_runs": 1})) as agent:
        yield lambda run: Peer(agent, recipe, run=run), tmp_path / "client" / "state" / "runs", setting.server_start()


def test_a_run_counts_when_it_has_a_folder(for_one_run):
    peer, runs, content = for_one_run
    for name in ("a", "b", "c"):
        assert isinstance(peer(name).hello(), HelloOk)
    assert isinstance(peer("c").train(0, None, content)[0], TrainOk)
    assert "at most 1 runs" in peer("a").hello().sentence
    assert "at most 1 runs" in peer("d").hello().sentence
    assert isinstance(peer("c").hello(), HelloOk) and [path.name for path in runs.iterdir()] == ["c"]


def test_a_run_that_was_only_evaluated_counts_too(for_one_run):
    peer, _, content = for_one_run
    peer("a").hello()
    peer("a").evaluate(None, content)
    assert "at most 1 runs" in peer("b").hello().sentence


def test_deleting_the_folder_of_a_run_makes_room_without_a_restart(for_one_run):
    peer, runs, content = for_one_run
    peer("a").hello()
    peer("a").train(0, None, content)
    assert "at most 1 runs" in peer("b").hello().sentence
    shutil.rmtree(runs / "a")
    assert peer("a").held() == [None], "nothing is left of it"
    assert isinstance(peer("b").hello(), HelloOk)


def test_a_killed_agent_starts_again_and_goes_on_bit_for_bit(one, tmp_path):
    code = """if True:
        import sys, torch
        from pathlib import Path
        from fedmrl.flower.agent import Agent
        from fedmrl.flower.client_config import load_organisation
        torch.set_num_threads(1)
        with Agent(load_organisation(Path(sys.argv[1]))) as agent:
            print("ready", flush=True)
            agent.serve()
    """
    path = write_client(tmp_path / "killed", one.setting, 0)
    contents = [one.content, {name: tensor / 2 for name, tensor in one.content.items()}]

    def started():
        process = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True)
        assert process.stdout.readline() == "ready\n"
        process.stdout.close()
        peer = Peer(one.agent, one.recipe)
        peer.socket = path.with_name("agent.sock")
        return process, peer

    process, peer = started()
    peer.hello()
    peer.train(0, None, contents[0])

    def cut_off():
        with suppress(FrameError, OSError):
            peer.train(1, 0, contents[1])

    thread = threading.Thread(target=cut_off)
    thread.start()
    time.sleep(0.02)  # the training takes longer
    process.kill()
    process.wait()
    thread.join()
    process, peer = started()
    try:
        assert isinstance(peer.hello(), HelloOk)
        held = RunStates.open(path.with_name("state") / "runs" / peer.run).index.held
        assert set(held) in ({None, 0}, {0, 1})
        _, upload = peer.train(1, 0, contents[1])
    finally:
        process.terminate()
        process.wait()
    one.train(0, None, contents[0])
    assert equal(one.train(1, 0, contents[1])[1], upload)


def test_a_training_that_diverges_is_told_and_changes_no_state(tmp_path):
    recipe = small_quickstart(rounds=20, training__lr=1e30, training__clip=1e30)
    setting = prepare(recipe, CPU)
    with serving(write_client(tmp_path / "client", setting, 0)) as agent:
        peer = Peer(agent, recipe)
        peer.hello()
        reply, upload = peer.train(0, None, setting.server_start())
        assert (reply.loss, upload, reply.correct) == (None, {}, {})
        assert peer.held() == [None]
        assert peer.train(0, None, setting.server_start(), rounds=20)[0].loss is None, "an equal request gets the cached reply"


def test_test_samples_of_their_own_are_used_as_such(tmp_path):
    recipe = small_quickstart()
    setting = prepare(recipe, CPU)
    path = write_client(tmp_path / "client", setting, 0)
    x, y = setting.data.x, setting.data.y
    np.savez(tmp_path / "client" / "data.npz", x=x[:50], y=y[:50], test_x=x[50:57], test_y=y[50:57])
    with serving(path) as agent:
        hello = Peer(agent, recipe).hello()
        assert (hello.train, hello.test) == (50, 7)


def test_the_organisation_chooses_the_number_of_threads(tmp_path):
    setting = prepare(small_quickstart(), CPU)
    try:
        with serving(write_client(tmp_path / "client", setting, 0, threads=2)) as agent:
            assert agent._worker.submit(torch.get_num_threads).result() == 2
    finally:
        torch.set_num_threads(1)  # which later threads inherit


def test_class_counts_leave_only_if_the_organisation_says_so(tmp_path):
    recipe = small_quickstart()
    setting = prepare(recipe, CPU)
    path = write_client(tmp_path / "client", setting, 0, bounds={"class_counts": True})
    with serving(path) as agent:
        hello = Peer(agent, recipe).hello()
        assert sum(hello.classes.values()) == hello.train


def test_a_failure_of_the_clients_own_is_told_without_anything_private(one, caplog):
    one.train(0, None, one.content)
    path = next((one.state / "runs" / "r").glob("*.safetensors"))
    path.write_bytes(b"damaged")
    before = files(one.state / "runs")
    with caplog.at_level(logging.ERROR):
        reply, _ = one.train(1, 0, one.content)
    assert (reply.reason, reply.sentence) == ("failed", "the client could not carry this out; its own log says why")
    assert path.name in caplog.text and files(one.state / "runs") == before
    assert isinstance(one.train(1, None, one.content)[0], TrainOk), "the initial state is still good"


@contextmanager
def files_of_at_most(size):
    """No file may grow beyond this size."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_on_a_full_disk_a_training_is_answered_with_an_error_and_the_earlier_state_is_still_good(one):
    _, upload = one.train(0, None, one.content)
    before = files(one.state / "runs")
    largest = max(len(content) for name, content in before.items() if name.endswith("safetensors"))
    with files_of_at_most(largest - 100):
        reply, content = one.train(1, 0, one.content)
    assert (reply.reason, content) == ("failed", {}) and str(one.state) not in reply.sentence
    assert files(one.state / "runs") == before
    assert equal(one.train(0, None, one.content)[1], upload)
    assert isinstance(one.train(1, 0, one.content)[0], TrainOk)


def test_what_cannot_be_written_to_the_audit_log_does_not_leave_not_even_an_error(one, monkeypatch):
    _, upload = one.train(0, None, one.content)
    before = files(one.state)
    monkeypatch.setattr(one.agent.audit, "path", one.state)  # a folder, which cannot be written to
    for ask in (lambda: one.train(1, 0, one.content), lambda: one.train(7, 0, {}), lambda: one.ask_bytes(b"noise" * 9)):
        with pytest.raises(FrameError, match="ended after 0 bytes"):
            ask()
    monkeypatch.undo()
    assert files(one.state) == before
    assert equal(one.train(0, None, one.content)[1], upload)
    assert isinstance(one.train(1, 0, one.content)[0], TrainOk)


def test_a_training_that_a_crash_cut_off_before_its_commit_is_done_again_with_the_same_result(one, monkeypatch):
    one.train(0, None, one.content)
    monkeypatch.setattr(RunStates, "commit", lambda *given: (_ for _ in ()).throw(SystemExit))
    assert one.train(1, 0, one.content)[0].reason == "failed"
    assert len(list((one.state / "runs" / "r").iterdir())) == 5, "the new files are there, and not in the index"
    monkeypatch.undo()
    one.agent.close()
    with serving(one.path) as agent:
        peer = Peer(agent, one.recipe)
        assert peer.held() == [None, 0]
        again = peer.train(1, 0, one.content)[1]
    with serving(write_client(one.path.parent.parent / "other", one.setting, 0)) as agent:
        peer = Peer(agent, one.recipe)
        peer.hello()
        peer.train(0, None, one.content)
        assert equal(peer.train(1, 0, one.content)[1], again)


def test_an_agent_holds_its_state_folder_and_socket_for_itself(one):
    from fedmrl import UserError
    from fedmrl.flower.agent import Agent
    from fedmrl.flower.client_config import load_organisation

    with pytest.raises(UserError, match="another agent uses"):
        Agent(load_organisation(one.path))
    other = one.path.with_name("other.toml")
    other.write_text(one.path.read_text().replace("[bounds]", "", 1) and f'state = "elsewhere"\n{one.path.read_text()}')
    with pytest.raises(UserError, match="another agent listens"):
        Agent(load_organisation(other))
    assert not isinstance(one.hello(), Failure)
