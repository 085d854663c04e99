"""What every engine must do, whatever the method. A new engine plugs in by naming itself in a subclass."""

import math
from typing import ClassVar

import pytest
import torch
from tiny import ALL_METHODS, tiny_recipe

from fedmrl.engines import Engine, Turn
from fedmrl.errors import UserError
from fedmrl.federation.setup import prepare
from fedmrl.messages import Upload, copy
from fedmrl.methods import METHODS, Round, WeightSharing

CPU = torch.device("cpu")
SHARING = [name for name in ALL_METHODS if issubclass(METHODS[name], WeightSharing)]
# Written out here, not asked of the method: a method that shares too much must not be the judge of it.
LEAVES = {"lg-fedavg": "local.header.", "fml": "small.", "fedkd": "small.", "fedapen": "small.", "fedmrl": "small."}
LEAVES |= {"standalone": "nothing", "fd": ("classes", "outputs"), "fedproto": ("classes", "prototypes", "counts")}
FEDMRL = [{}, {"method__mrl": False}, {"method__header": "shared"}, {"method__projector": "mlp"}, {"method__lr_projector": 0.1}]


class EngineContract:
    """Subclass it, and set `engine`."""

    engine: ClassVar[type[Engine]]
    exact: ClassVar[bool] = True
    """Whether a client alone must give bit for bit what it gives among others."""

    def start(self, method, **settings):
        setting = prepare(tiny_recipe(method, **settings), CPU)
        states = {k: copy(setting.fresh_net(k).state_dict()) for k in range(4)}
        server = setting.server_start()
        return self.engine(setting), setting, states, server

    def turns(self, setting, states, server, clients, earlier=0):
        return [Turn(k, states[k], setting.method.answer(server, k, None), earlier) for k in clients]

    @pytest.mark.parametrize("method", ALL_METHODS)
    def test_a_clients_result_does_not_depend_on_who_trained_before_it(self, method):
        # Catches momentum, running state or weights that leak from client to client. 0 and 2 have the same model.
        engine, setting, states, server = self.start(method, training__momentum=0.9)
        for round_, earlier in ((Round(0, 3), 0), (Round(1, 3), 1)):
            together = engine.train(round_, self.turns(setting, states, server, [0, 1, 2], earlier))
            alone = self.engine(setting).train(round_, self.turns(setting, states, server, [2], earlier))[0]
            assert_same(together[2].state, alone.state, self.exact)
            assert_same(together[2].upload, alone.upload, self.exact)
            assert together[2].loss == (alone.loss if self.exact else pytest.approx(alone.loss, rel=1e-12))

    @pytest.mark.parametrize("method", ALL_METHODS)
    def test_training_starts_from_every_part_of_the_state_that_is_given(self, method):
        # The other public implementation throws each trained projector away and starts from a fresh one.
        engine, _, states, _ = self.start(method, training__lr=1e-12)
        state = {name: t + 0.5 if t.is_floating_point() else t for name, t in states[1].items()}
        after = engine.train(Round(1, 3), [Turn(1, state, None)])[0].state
        for name, tensor in state.items():
            assert torch.allclose(after[name], tensor, atol=1e-2), name

    @pytest.mark.parametrize("method", ALL_METHODS)
    def test_training_twice_gives_the_same(self, method):
        engine, setting, states, server = self.start(method)
        one, two = (engine.train(Round(0, 3), self.turns(setting, states, server, [1]))[0] for _ in range(2))
        assert_same(one.state, two.state)

    @pytest.mark.parametrize("method", ALL_METHODS)
    def test_what_goes_in_is_not_changed(self, method):
        engine, setting, states, server = self.start(method)
        before, sent = {k: copy(s) for k, s in states.items()}, copy(server)
        turns = self.turns(setting, states, server, [0, 1, 2, 3], earlier=1)
        received = [copy(turn.received) for turn in turns]
        outcomes = engine.train(Round(1, 3), turns)
        again = [Turn(o.client, o.state, turn.received) for o, turn in zip(outcomes, turns, strict=True)]
        engine.evaluate(again, setting.method.modes)
        for k in states:
            assert_same(states[k], before[k])
        assert_same(server, sent)
        for turn, content in zip(turns, received, strict=True):
            assert_same(turn.received, content)

    @pytest.mark.parametrize("method", ALL_METHODS)
    def test_no_two_tensors_that_come_out_share_memory(self, method):
        # The authors' code uploads one tensor from every client: the last one's weights replace the average.
        engine, setting, states, server = self.start(method)
        outcomes = engine.train(Round(0, 3), self.turns(setting, states, server, [0, 2]))
        again = engine.train(Round(1, 3), [Turn(o.client, o.state, None, 1) for o in outcomes])
        tensors = [t for o in outcomes + again for part in (o.state, o.upload) for t in part.values() if t.numel()]
        memory = [t.untyped_storage().data_ptr() for t in tensors]
        assert len(set(memory)) == len(memory)

    @pytest.mark.parametrize("method", SHARING)
    def test_uploads_stay_as_they_were_when_their_client_trains_on(self, method):
        engine, setting, states, server = self.start(method)
        first = engine.train(Round(0, 3), self.turns(setting, states, server, [0]))[0]
        sent = copy(first.upload)
        engine.train(Round(1, 3), [Turn(0, first.state, None, 1), *self.turns(setting, states, server, [2])])
        assert_same(first.upload, sent)

    @pytest.mark.parametrize("method", ALL_METHODS)
    def test_nothing_private_is_in_an_upload(self, method):
        engine, setting, states, server = self.start(method)
        outcome = engine.train(Round(0, 3), self.turns(setting, states, server, [0]))[0]
        for name in outcome.upload:
            assert name.startswith(LEAVES[method]), name

    @pytest.mark.parametrize("settings", FEDMRL)
    def test_fedmrls_variants_train_all_their_parts(self, settings):
        engine, setting, states, server = self.start("fedmrl", **settings)
        outcome = engine.train(Round(0, 3), self.turns(setting, states, server, [1]))[0]
        received = {**states[1], **server}
        for part in ("local.extractor", "local.header", "small.extractor", "projector"):
            names = [name for name in received if name.startswith(part)]
            assert names and all(not torch.equal(outcome.state[name], received[name]) for name in names), part

    @pytest.mark.parametrize("method", ALL_METHODS)
    def test_evaluation_counts_every_test_sample_exactly(self, method):
        engine, setting, states, server = self.start(method)
        outcome = engine.train(Round(0, 3), self.turns(setting, states, server, [0]))[0]
        uploads = [Upload(0, 10, outcome.upload)]
        server = setting.method.aggregate(server, uploads, Round(0, 3))
        received = setting.method.answer(server, 0, None)
        counted = engine.evaluate([Turn(0, outcome.state, received)], setting.method.modes)[0]["aggregated"]
        net = setting.fresh_net(0)
        net.load_state_dict(outcome.state)
        setting.method.receive(net, received)
        net.eval()
        data, right = setting.data, dict.fromkeys(setting.method.modes, 0)
        for index in setting.members[0].test:
            x = (torch.from_numpy(data.x[index : index + 1]).double() - data.mean.item()) / data.std.item()
            for mode in right:
                scores = setting.method.predict(net, x, mode)[0]
                right[mode] += int(scores.argmax() == data.y[index] and scores.max() > -math.inf)
        assert counted == right

    def test_augmentation_changes_training_and_is_the_same_again(self):
        settings = {"training__augment__flip": True, "training__augment__crop": 2, "training__augment__erase": 0.5}
        engine, setting, states, server = self.start("fedmrl", **settings)
        one, two = (engine.train(Round(0, 3), self.turns(setting, states, server, [0]))[0] for _ in range(2))
        plain_engine, plain, _, _ = self.start("fedmrl")
        three = plain_engine.train(Round(0, 3), self.turns(plain, states, server, [0]))[0]
        assert_same(one.state, two.state)
        assert one.loss != three.loss

    def test_a_mode_that_is_not_there_is_refused_in_a_sentence(self):
        engine, _, states, _ = self.start("fedmrl", method__mrl=False)
        with pytest.raises(UserError, match="with these settings has no mode 'single-small'; it has mix-large, single-large"):
            engine.evaluate([Turn(0, states[0], None)], ["mix-large", "single-small"])

    def test_a_loss_that_becomes_nan_is_told_of_its_client_alone(self):
        engine, setting, states, server = self.start("standalone")
        states[2]["local.header.bias"][0] = math.nan
        whole, broken = engine.train(Round(1, 3), self.turns(setting, states, server, [0, 2]))
        assert (whole.broken, broken.broken) == (None, "loss")
        assert math.isnan(broken.loss)


def assert_same(one, two, exact=True):
    assert one.keys() == two.keys()
    for name in one:
        same = torch.equal(one[name], two[name]) if exact else torch.allclose(one[name], two[name], rtol=1e-12, atol=1e-14)
        assert same, name
