"""First weights that are drawn ahead are those that would be drawn when they are asked for."""

import threading

import pytest
import torch
from tiny import tiny_recipe

from fedmrl.federation import initial_weights
from fedmrl.federation.initial_weights import InitialNets
from fedmrl.federation.setup import prepare
from fedmrl.messages import size


@pytest.fixture
def setting():
    return prepare(tiny_recipe("fedmrl"), torch.device("cpu"))


@pytest.mark.parametrize("room", [1, 2, 100])
@pytest.mark.parametrize("asked", [[0, 1, 2, 3], [3, 1, 0, 2]], ids=["in-order", "otherwise"])
def test_each_client_gets_its_own(setting, room, asked, monkeypatch):
    monkeypatch.setattr(initial_weights, "_WAITING", room * size(setting.fresh_net(0).state_dict()).bytes)
    nets = InitialNets(setting, range(4), ahead=True)
    for client in asked:
        expected = setting.fresh_net(client).state_dict()
        found = nets.take(client).state_dict()
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], expected[name]) for name in expected)
        assert len(nets._drawn) <= room
    assert not nets._drawn
    nets.close()


def test_others_draws_are_left_alone(setting):
    nets = InitialNets(setting, range(4), ahead=True)
    torch.manual_seed(5)
    expected = torch.rand(1000)
    torch.manual_seed(5)
    nets.take(0)
    nets._pool.shutdown()  # all are drawn
    assert torch.equal(torch.rand(1000), expected)


def test_when_it_is_closed_nothing_goes_on(setting):
    nets = InitialNets(setting, range(4), ahead=True)
    nets.take(0)
    nets.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("first-weights")]


def test_an_error_of_a_model_is_told_when_it_is_asked_for(setting, monkeypatch):
    nets, fresh_net = InitialNets(setting, range(4), ahead=True), type(setting).fresh_net
    monkeypatch.setattr(type(setting), "fresh_net", lambda self, client: fresh_net(self, client) if client != 2 else 1 / 0)
    nets.take(0)
    nets.take(1)
    with pytest.raises(ZeroDivisionError):
        nets.take(2)
    nets.take(3)
    nets.close()


def test_without_looking_ahead_there_is_no_thread(setting):
    nets = InitialNets(setting, range(4), ahead=False)
    expected = setting.fresh_net(3).state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in nets.take(3).state_dict().items())
    assert nets._pool is None
