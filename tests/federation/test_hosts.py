"""The processes of a Ray cluster: what is chosen, and mistakes in a sentence. A stand-in for Ray needs no cluster."""

import socket
import sys
from types import SimpleNamespace

import pytest
import torch
from tiny import tiny_recipe

import fedmrl
from fedmrl.errors import UserError
from fedmrl.federation import hosts
from fedmrl.federation.hosts import About, _room


@pytest.fixture
def no_ray(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)


def fake_ray(monkeypatch, **init):
    """Ray that is not connected and whose `init` fails with this error."""

    def fails(**_):
        raise init["error"]

    monkeypatch.setattr(hosts, "_check_listens", lambda address: None)
    monkeypatch.setattr(hosts, "ray_library", lambda: SimpleNamespace(is_initialized=lambda: False, init=fails))


def test_without_ray_a_sentence_says_what_to_install_and_nothing_is_written(no_ray, tmp_path):
    with pytest.raises(UserError, match=r"Ray is not installed; install it with: pip install 'fedmrl\[ray\]'"):
        fedmrl.run(tiny_recipe(), engine="ray", out=tmp_path / "run")
    assert not list(tmp_path.iterdir())


def test_the_command_ends_with_the_sentence_and_exit_code_2(no_ray, fedmrl, tmp_path):
    (tmp_path / "recipe.toml").write_text(tiny_recipe().to_toml())
    code, _, said = fedmrl("run", tmp_path / "recipe.toml", "--engine", "ray")
    assert code == 2 and "Ray is not installed" in said and not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (
            ConnectionError("no"),
            "no Ray cluster answers at RAY_ADDRESS .192.0.2.1:6379, ConnectionError: no.; start one with 'ray start --head'",
        ),
        (RuntimeError("Version mismatch: 1"), "has another version of Ray or Python than this machine; install the same"),
    ],
)
def test_a_cluster_that_cannot_be_reached_is_named(monkeypatch, error, sentence):
    monkeypatch.setenv("RAY_ADDRESS", "192.0.2.1:6379")
    fake_ray(monkeypatch, error=error)
    with pytest.raises(UserError, match=sentence):
        fedmrl.run(tiny_recipe(), engine="ray")


def test_an_address_where_nothing_listens_is_refused_at_once(monkeypatch):
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{nobody.getsockname()[1]}")
        connected = SimpleNamespace(is_initialized=lambda: False, init=lambda **_: pytest.fail("Ray would try for minutes"))
        monkeypatch.setattr(hosts, "ray_library", lambda: connected)
        with pytest.raises(UserError, match="no Ray cluster answers at RAY_ADDRESS"):
            fedmrl.run(tiny_recipe(), engine="ray")


def test_a_clients_address_is_refused(monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "ray://head:10001")
    fake_ray(monkeypatch, error=AssertionError)
    with pytest.raises(UserError, match="RAY_ADDRESS is 'ray://head:10001', a client's address; start fedmrl on a machine"):
        fedmrl.run(tiny_recipe(), engine="ray")


def test_a_node_with_other_versions_is_named():
    here = About.here([])
    there = About({**here.same, "torch": "1.0"}, here.cpu)
    with pytest.raises(UserError, match=rf"node b has torch 1.0, and this machine {torch.__version__.split('+')[0]}"):
        here.check("b", there)
    here.check("b", About.here([]))


def test_a_node_with_another_file_that_the_recipe_imports_is_named(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("x = 1")
    here = About.here([str(file)])
    file.write_text("x = 2")
    with pytest.raises(UserError, match=r"node b has another .*mine.py; install the same on all nodes"):
        here.check("b", About.here([str(file)]))


@pytest.mark.parametrize(("cpus", "memory", "room"), [(4, 100, 4), (4, 40, 2), (0, 100, 0), (4, 15, 0)])
def test_a_node_has_room_by_its_cpus_and_what_of_its_memory_is_not_for_states(cpus, memory, room):
    assert _room({"Resources": {"CPU": cpus, "memory": memory}}, 10) == room


def test_a_cluster_and_a_gpu_are_refused_together(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(UserError, match="device is cuda and engine is 'ray', which trains on CPUs; leave out one of them"):
        fedmrl.run(tiny_recipe(), engine="ray", device="cuda")
