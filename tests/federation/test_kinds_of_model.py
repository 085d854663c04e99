"""Models of any kind in one federation: each with another representation, on both engines, with equal numbers."""

import numpy as np
import pytest
import torch
from kinds_of_model import CNN3, ConvText, Frozen, MeanText, ResNet8, ViT, mlp, texts
from tiny import tiny_recipe
from torch import nn

import fedmrl
from fedmrl import OwnModel, UserError
from fedmrl.data import dataset_of

METHODS = ["fedmrl", "standalone", "fd", "fml"]


def numbers(result):
    found = [record.loss for record in result.records]
    return found, result.inference.model_dump(), [client.accuracy for client in result.clients]


def both_engines(recipe, **given):
    runs = [fedmrl.run(recipe, engine=engine, **given) for engine in ("reference", "batched")]
    (losses, *accuracies), (others, *of_others) = map(numbers, runs)
    np.testing.assert_allclose(losses, others, rtol=1e-9)
    assert accuracies == of_others
    return runs[0]


@pytest.mark.parametrize("method", METHODS)
def test_models_of_five_kinds_train_together_with_equal_numbers_on_both_engines(method):
    recipe = tiny_recipe(method, clients=5, participation=1.0, rounds=2, **({"method__d1": 8} if method == "fedmrl" else {}))
    result = both_engines(recipe, models=[ResNet8, ViT, CNN3, mlp, Frozen])
    assert [client.model for client in result.clients] == ["ResNet8", "ViT", "CNN(2-3-9-8)", "mlp", "Frozen"]


@pytest.mark.parametrize("method", METHODS)
def test_texts_as_tokens_train_together_with_equal_numbers_on_both_engines(method):
    recipe = tiny_recipe(method, rounds=2, **({"method__d1": 6} if method == "fedmrl" else {}))
    result = both_engines(recipe, data=texts(), models=[MeanText, ConvText])
    assert result.preparation.kind == "tokens" and result.preparation.classes == ["bad", "good", "odd"]


def test_tokens_reach_the_net_as_they_are():
    seen = []

    class Sees(MeanText):
        def forward(self, x):
            seen.append((x.dtype, int(x.max())))
            return super().forward(x)

    fedmrl.run(tiny_recipe("standalone", rounds=1), data=texts(), models=[Sees])
    assert {dtype for dtype, _ in seen} == {torch.int64} and max(largest for _, largest in seen) == 29


def test_what_is_frozen_stays_as_it_was_and_the_header_learns(tmp_path):
    torch.manual_seed(0)
    pretrained = Frozen()
    before = pretrained.body[1].weight.detach().double().clone()
    built = []
    fedmrl.run(tiny_recipe("standalone", rounds=1), models=[pretrained], out=tmp_path / "run", on_round=built.append)
    from safetensors.torch import load_file

    states = [load_file(path) for path in sorted((tmp_path / "run" / "checkpoint").rglob("*.safetensors"))]
    states = [state for state in states if "local.extractor.body.1.weight" in state]
    assert states and all(torch.equal(state["local.extractor.body.1.weight"], before) for state in states)
    assert all(not torch.equal(state["local.header.weight"], pretrained.head.weight.double()) for state in states)


def test_models_are_dealt_in_turn_and_the_same_model_is_one_kind():
    result = fedmrl.run(tiny_recipe("standalone", rounds=1), models=[mlp, Frozen])
    assert [client.model for client in result.clients] == ["mlp", "Frozen"] * 2
    one = fedmrl.run(tiny_recipe("standalone", rounds=1), models=mlp())
    assert [client.model for client in one.clients] == ["Sequential"] * 4


def test_models_without_a_name_are_numbered():
    result = fedmrl.run(tiny_recipe("standalone", rounds=1), models=[lambda: mlp(), lambda: Frozen()])  # noqa: PLW0108
    assert [client.model for client in result.clients] == ["model 1", "model 2"] * 2


def test_the_shared_model_may_be_ones_own():
    def small():
        return nn.Sequential(nn.Flatten(), nn.Linear(256, 5), nn.Tanh(), nn.Linear(5, 4))

    both_engines(tiny_recipe("fedmrl", rounds=1, method__d1=5), models=[mlp], small=small)
    both_engines(tiny_recipe("fml", rounds=1), models=[mlp], small=small)
    says = r"^the shared model 'small' has a representation of 5, and the method asks for 3; set method.d1 = 5$"
    with pytest.raises(UserError, match=says):
        fedmrl.run(tiny_recipe("fedmrl", rounds=1), models=[mlp], small=small)


def test_a_shared_model_of_ones_own_is_needed_again(tmp_path):
    def small():
        return nn.Sequential(nn.Flatten(), nn.Linear(256, 3), nn.Tanh(), nn.Linear(3, 4))

    first = fedmrl.run(tiny_recipe("fedmrl", rounds=1), small=small, out=tmp_path / "run")
    with pytest.raises(UserError, match=r"shared model was given from Python \(small\)"):
        fedmrl.run(tmp_path / "run")
    assert fedmrl.run(tmp_path / "run", small=small).states_sha256 == first.states_sha256


def test_a_dict_of_outputs_and_one_logit_are_taken_in_a_federation():
    class Many(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 1))

        def forward(self, x):
            return {"logits": self.net(x).squeeze(1), "about": x}

    x = np.random.default_rng(0).normal(size=(80, 6)).astype(np.float32)
    model = OwnModel("many", Many, output="logits")
    recipe = tiny_recipe("fedmrl", rounds=12, participation=1.0, method__d1=5, partition__kind="iid")
    done = both_engines(recipe, data=(x, x[:, 0] > 0), models=[model])
    assert done.preparation.classes == [False, True] and done.headline() > 0.7


def test_fedmrls_own_models_say_what_takes_tokens():
    with pytest.raises(UserError, match=r"and data has tokens, .* {name = 'text', vocabulary = 30}, or give x as floats"):
        fedmrl.run(tiny_recipe("standalone"), data=texts())
    local = [{"name": "text", "vocabulary": 30, "hidden": [8]}, {"name": "text", "vocabulary": 30, "hidden": [6]}]
    done = both_engines(tiny_recipe("fedmrl", rounds=2), data=texts(), models={"local": local})
    assert [client.model for client in done.clients][:2] == ["Text(32-8)", "Text(32-6)"]


def test_the_shared_model_beside_text_models_takes_tokens():
    from fedmrl.federation.setup import prepare

    models = [OwnModel("text", MeanText)] * 4
    setting = prepare(tiny_recipe("fml"), torch.device("cpu"), models, dataset_of(texts()))
    assert setting.terms.common.small.label.startswith("Text(")
