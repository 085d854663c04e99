"""The batched engine gives what the reference engine gives: every parameter, every message, every recorded number."""

import pytest
import torch
from tiny import tiny_recipe
from torch import nn

from fedmrl import OwnModel
from fedmrl.federation.setup import prepare
from fedmrl.federation.simulation import Simulation

AUGMENTED = {"training__augment__flip": True, "training__augment__crop": 2, "training__augment__erase": 0.5}
WITH_ALL = {"training__momentum": 0.9, "training__weight_decay": 0.01, "training__clip": 0.5, **AUGMENTED}
RAGGED = {"partition__kind": "dirichlet", "partition__alpha": 0.5}
DIMENSIONS = {
    "models__local": [{"conv1": 2, "conv2": 3, "fc1": 8, "fc2": 6}, {"conv1": 3, "conv2": 2, "fc1": 5, "fc2": 9}],
}
METHODS = {
    "standalone": {},
    "lg-fedavg": {},
    "fd": {"method__gamma": 0.5},
    "fd-round": {"method__keep": "round"},
    "fedproto": {},
    "fedproto-class-mean": {"method__distance": "class-mean", "method__weighting": "uniform"},
    "fml": {},
    "fedkd": {},
    "fedapen": {},
    "fedapen-probabilities": {"method__ensemble": "probabilities", "method__balance_lr": 0.5},
    "fedmrl": {},
    "fedmrl-without-mrl": {"method__mrl": False},
    "fedmrl-shared-header": {"method__header": "shared"},
    "fedmrl-mlp": {"method__projector": "mlp", "method__m_small": 0.5},
    "fedmrl-rates": {"method__lr_projector": 0.02, "method__lr_small": 0.1, "method__lr_local": 0.03},
}
SETTINGS = {"plain": {"training__momentum": 0.0}, "all": WITH_ALL, "ragged": {**RAGGED, **WITH_ALL}}
SAME_DIMENSION = ("lg-fedavg", "fedproto")


def numbers(case, engine, precision, settings):
    """Every parameter, message and record of three rounds."""
    method = next(name for name in ("lg-fedavg", *METHODS) if case == name or case.startswith(f"{name}-"))
    recipe = tiny_recipe(method, clients=5, participation=0.6, training__precision=precision, **METHODS[case], **settings)
    federation = Simulation(recipe, prepare(recipe, torch.device("cpu")), engine)
    run = federation.run(lambda _: None)
    tensors = {f"server {name}": tensor for name, tensor in federation.now.server.items()}
    for client, state in federation.states().items():
        tensors |= {f"client {client} {name}": tensor for name, tensor in state.items()}
    records = [record.model_dump(exclude={"seconds"}, exclude_none=True) for record in run.records]
    return tensors, records, run.plain()["inference"], [row.accuracy for row in run.clients]


def assert_agree(case, precision, tolerance, settings):
    (one, *recorded), (two, *expected) = (numbers(case, engine, precision, settings) for engine in ("batched", "reference"))
    assert one.keys() == two.keys()
    for name, tensor in two.items():
        assert torch.allclose(one[name].double(), tensor.double(), rtol=tolerance, atol=tolerance), name
    assert flat(recorded) == pytest.approx(flat(expected), rel=tolerance, abs=tolerance)


def flat(value, path=""):
    if isinstance(value, dict):
        return {k: v for key, item in value.items() for k, v in flat(item, f"{path}/{key}").items()}
    if isinstance(value, list):
        return {k: v for number, item in enumerate(value) for k, v in flat(item, f"{path}/{number}").items()}
    return {path: value}


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("case", METHODS)
def test_three_rounds_agree_in_double_precision(case, settings):
    assert_agree(case, "fp64", 1e-9, SETTINGS[settings])


@pytest.mark.parametrize("case", METHODS)
def test_three_rounds_agree_in_single_precision(case):
    assert_agree(case, "fp32", 1e-4, {**RAGGED, **WITH_ALL})


@pytest.mark.parametrize("case", [case for case in METHODS if not case.startswith(SAME_DIMENSION)])
def test_three_rounds_agree_with_representations_of_different_dimensions(case):
    assert_agree(case, "fp64", 1e-9, {**DIMENSIONS, **WITH_ALL})


class Steep(nn.Module):
    """Its gradients are finite in 32 bits, and their squares are not."""

    def __init__(self):
        super().__init__()
        self.body, self.last = nn.Linear(256, 6), nn.Linear(6, 4)

    def forward(self, x):
        return self.last(self.body(x.flatten(1)) * 1e21)


def test_a_gradient_whose_squares_overflow_is_clipped_to_the_same_length_by_both():
    settings = {"training__precision": "fp32", "training__clip": 0.5, "training__momentum": 0.0, "training__epochs": 1}
    recipe = tiny_recipe("standalone", rounds=1, participation=1.0, training__batch_size=100, **settings)
    models = [OwnModel("steep", Steep, "last")] * recipe.clients
    setting = prepare(recipe, torch.device("cpu"), models)
    before = setting.fresh_net(0).state_dict()
    after = {}
    for engine in ("reference", "batched"):
        federation = Simulation(recipe, setting, engine)
        assert not getattr(federation.clients.engine, "loners", ())
        federation.run(lambda _: None)
        after[engine] = federation.states()[0]
        moved = sum((after[engine][name] - before[name]).double().square().sum() for name in before)
        assert moved.sqrt().item() == pytest.approx(0.5 * recipe.training.lr, rel=1e-3)
    for name, tensor in after["reference"].items():
        assert torch.allclose(after["batched"][name], tensor, rtol=1e-5, atol=1e-7), name
