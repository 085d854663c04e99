import pytest
import torch

import fedmrl
from fedmrl.federation.setup import prepare
from fedmrl.metrics.flops import FlopCounter
from fedmrl.models import CNNS


def forward(conv1, conv2, fc1, fc2, classes=10):
    """Multiply-adds of one sample in each layer of a CNN on 3×32×32."""
    return [28 * 28 * conv1 * 75, 10 * 10 * conv2 * 25 * conv1, 25 * conv2 * fc1, fc1 * fc2, fc2 * classes]


def training(layers):
    """Forward once, backward twice (weights and inputs), two operations each; the first layer's input needs no gradient."""
    return 2 * (3 * sum(layers) - layers[0])


def counter(method, **settings):
    changes = {"method.name": method, "training.epochs": 2, **settings}
    setting = prepare(fedmrl.load_recipe("quickstart", changes), torch.device("cpu"))
    return FlopCounter(setting), setting


@pytest.mark.parametrize("client", range(5))
def test_standalone_is_the_formula_of_its_network(client):
    flops, setting = counter("standalone")
    spec = CNNS[f"cnn-{client + 1}"]
    one = training(forward(spec.conv1, spec.conv2, spec.fc1, spec.fc2))
    assert flops.of_round(client, 0) == one * 2 * len(setting.members[client].train)


def test_fedmrl_adds_the_small_model_and_the_projector():
    flops, setting = counter("fedmrl", **{"method.d1": 100})
    local, small = forward(16, 32, 2000, 500), forward(16, 32, 500, 100)
    projector = 2 * 3 * 600 * 500
    assert flops.of_round(0, 0) == (training(local) + training(small) + projector) * 2 * len(setting.members[0].train)


def test_fedapens_balance_costs_forward_passes_over_its_own_set():
    flops, setting = counter("fedapen")
    cut = {name: len(own) for name, own in setting.subsets(0).items()}
    models = forward(16, 32, 2000, 500), forward(16, 32, 500, 500)
    train = sum(training(m) for m in models) * 2 * cut["train"]
    assert flops.of_round(0, 0) == train
    assert flops.of_round(0, 1) == train + sum(2 * sum(m) for m in models) * 10 * cut["adaptability"]
