import torch
from contract import EngineContract
from tiny import CNNS, tiny_recipe
from torch import nn

from fedmrl import OwnModel, load_recipe
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


def test_what_the_server_sent_is_seen_in_the_second_view_and_not_in_the_first():
    # An extractor's outputs are remembered from view to view: one that the server's answer changed must look again.
    recipe = tiny_recipe("fedmrl")
    setting = prepare(recipe, torch.device("cpu"))
    state = copy(setting.fresh_net(0).state_dict())
    received = {name: torch.zeros_like(tensor) for name, tensor in state.items() if name.startswith("small.")}
    modes = list(setting.method.modes)
    both = ReferenceEngine(setting).evaluate([Turn(0, state, received)], modes)[0]
    own = ReferenceEngine(setting).evaluate([Turn(0, state, None)], modes)[0]["own"]
    changed = ReferenceEngine(setting).evaluate([Turn(0, {**state, **received}, None)], modes)[0]["own"]
    assert both == {"own": own, "aggregated": changed}
    assert own != changed


def test_clients_side_by_side_give_bit_for_bit_what_they_give_one_after_another():
    recipe = tiny_recipe("fedmrl", training__precision="fp32")
    setting = prepare(recipe, torch.device("cpu"))
    turns = [Turn(k, copy(setting.fresh_net(k).state_dict()), None) for k in range(4)]
    outcomes = []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            engine = ReferenceEngine(setting)
            assert engine._threads == threads
            outcomes.append((engine.train(Round(0, 2), turns), engine.evaluate(turns, setting.method.modes)))
    finally:
        torch.set_num_threads(1)
    (one, right_one), (two, right_two) = outcomes
    assert right_one == right_two
    for a, b in zip(one, two, strict=True):
        assert a.loss == b.loss
        assert all(torch.equal(a.state[name], b.state[name]) for name in a.state)


def test_models_that_draw_random_numbers_are_trained_one_after_another():
    torch.set_num_threads(2)
    try:
        recipe = tiny_recipe("standalone", training__batch_size=6)
        engine = ReferenceEngine(prepare(recipe, torch.device("cpu"), [OwnModel("own", dropout_model, "5")] * 4))
    finally:
        torch.set_num_threads(1)
    assert engine._threads == 1


def of_three_channels():
    changes = {"clients": 4, "models.local": [CNNS[0]], "training.epochs": 1, "training.augment.crop": 2}
    return load_recipe("quickstart", {"method.name": "standalone", **changes})


def test_a_clients_numbers_do_not_depend_on_what_models_others_have():
    # In 32 bits, where another layout in memory rounds differently; on three channels, where there is another.
    recipe = of_three_channels()
    spec = recipe.models.of_clients(1)[0]

    def own():
        return nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 6), nn.ReLU(), nn.Linear(6, 10))

    states = []
    for others in ([spec] * 3, [OwnModel("own", own, "3")] * 3):
        setting = prepare(recipe, torch.device("cpu"), [spec, *others])
        turn = Turn(0, setting.fresh_net(0).state_dict(), None)
        states.append(ReferenceEngine(setting).train(Round(0, 1), [turn])[0].state)
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_a_users_model_gets_images_that_are_laid_out_as_usual():
    seen = []

    class Looks(nn.Module):
        def __init__(self):
            super().__init__()
            self.last = nn.Linear(3 * 32 * 32, 10)

        def forward(self, x):
            seen.append(x.is_contiguous())
            return self.last(x.view(len(x), -1))

    recipe = of_three_channels()
    specs = [recipe.models.of_clients(1)[0], OwnModel("looks", Looks, "last")] * 2
    setting = prepare(recipe, torch.device("cpu"), specs)
    engine = ReferenceEngine(setting)
    turns = [Turn(client, setting.fresh_net(client).state_dict(), None) for client in range(4)]
    engine.train(Round(0, 1), turns)
    engine.evaluate(turns, ["local"])
    assert seen and all(seen)
