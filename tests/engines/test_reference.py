import torch
from contract import EngineContract
from tiny import tiny_recipe
from torch import nn

from fedmrl import OwnModel
from fedmrl.engines import ReferenceEngine, Turn
from fedmrl.federation.setup import prepare
from fedmrl.messages import copy
from fedmrl.methods import Round


class TestReferenceEngine(EngineContract):
    engine = ReferenceEngine


def dropout_model():
    return nn.Sequential(nn.Flatten(), nn.Linear(256, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 4))


def test_dropout_draws_from_the_clients_own_key_and_batch_norm_is_kept_with_the_client():
    recipe = tiny_recipe("standalone", training__batch_size=6)
    setting = prepare(recipe, torch.device("cpu"), [OwnModel("own", dropout_model, "5")] * 4)
    engine = ReferenceEngine(setting)
    state = copy(setting.fresh_net(1).state_dict())
    torch.manual_seed(1)
    one = engine.train(Round(0, 2), [Turn(1, state, {})])[0]
    torch.manual_seed(2)
    two = engine.train(Round(0, 2), [Turn(1, state, {})])[0]
    assert all(torch.equal(one.state[name], two.state[name]) for name in state)
    assert one.state["local.extractor.2.num_batches_tracked"] > 0
    later = engine.train(Round(1, 2), [Turn(1, one.state, {})])[0]
    assert later.state["local.extractor.2.num_batches_tracked"] == 2 * one.state["local.extractor.2.num_batches_tracked"]


def test_torchs_global_state_is_left_alone():
    recipe = tiny_recipe("fedmrl")
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    setting = prepare(recipe, torch.device("cpu"))
    state = copy(setting.fresh_net(0).state_dict())
    engine = ReferenceEngine(setting)
    engine.train(Round(0, 1), [Turn(0, state, None)])
    assert torch.equal(torch.random.get_rng_state(), before)
