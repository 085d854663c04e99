"""Plain NumPy in double precision: a two-layer model with its gradients written out, and a federation of two clients on it."""

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import nn

from fedmrl.data import ClientSplit, Dataset
from fedmrl.engines import Member, ReferenceEngine, Setting, Terms, Turn
from fedmrl.messages import Upload
from fedmrl.methods import Common, Header, Method, Round
from fedmrl.models import Split
from fedmrl.training import Training

INPUTS, CLASSES = 4, 3
LR = 0.1


def softmax(z):
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def onehot(y):
    return np.eye(CLASSES)[y]


def ce(z, y):
    """The mean cross-entropy."""
    return -np.log(softmax(z)[np.arange(len(y)), y]).mean()


def kl(p, q):
    """The mean divergence of two tables of probabilities."""
    return (p * np.log(p / q)).sum(axis=1).mean()


class HandModel:
    """r = relu(W x + b), z = V r + c."""

    def __init__(self, state, part):
        names = ("extractor.0.weight", "extractor.0.bias", "header.weight", "header.bias")
        self.W, self.b, self.V, self.c = (state[f"{part}.{name}"].numpy().copy() for name in names)
        self.names = [f"{part}.{name}" for name in names]

    def forward(self, x):
        self.x, self.a = x, x @ self.W.T + self.b
        self.r = np.maximum(self.a, 0)
        self.z = self.r @ self.V.T + self.c
        return self.r, self.z

    def gradients(self, dz=None, dr=None, header_input=None):
        """Of all parameters, from the gradient of the logits and a further one of the representation."""
        read = self.r if header_input is None else header_input
        through = np.zeros_like(self.r) if dr is None else dr
        dV, dc = np.zeros_like(self.V), np.zeros_like(self.c)
        if dz is not None:
            dV, dc = dz.T @ read, dz.sum(axis=0)
            if header_input is None:
                through = through + dz @ self.V
        da = through * (self.a > 0)
        return dict(zip(self.names, (da.T @ self.x, da.sum(axis=0), dV, dc), strict=True))


@dataclass(frozen=True)
class TinySpec:
    """A local or a small model of two layers."""

    dim: int
    label: str = "tiny"

    def build(self, shape, classes):
        return Split(nn.Sequential(nn.Linear(INPUTS, self.dim), nn.ReLU()), nn.Linear(self.dim, classes), self.dim)

    def with_dim(self, dim):
        return TinySpec(dim)


@dataclass
class World:
    """Two clients of 5 and 7 training samples; everything fits into one batch, so a round is one step."""

    method: Method
    dims: tuple = (3, 3)
    training: dict = field(default_factory=dict)

    def __post_init__(self):
        rng = np.random.default_rng(3)
        x = rng.normal(size=(14, INPUTS))
        y = np.array([0, 1, 0, 1, 1, 0, 1, 2, 1, 2, 2, 1, 0, 2])
        data = Dataset("hand", x, y, ("a", "b", "c"), 14, np.zeros(INPUTS), np.ones(INPUTS))
        splits = [ClientSplit(np.arange(5), np.array([12])), ClientSplit(np.arange(5, 12), np.array([13]))]
        training = Training(lr=LR, batch_size=64, precision="fp64", **self.training)
        specs = [TinySpec(dim) for dim in self.dims]
        members = {k: Member(own.train, own.test, specs[k]) for k, own in enumerate(splits)}
        header = Header(self.dims[0], bias=True)
        common = Common((INPUTS,), 3, TinySpec(2), header)
        terms = Terms(self.method, training, common, seed=0, rounds=1)
        self.setting = Setting(terms, data, members, torch.device("cpu"))
        self.engine = ReferenceEngine(self.setting)
        self.server = self.setting.server_start()
        self.states = [self.fresh(k) for k in range(2)]

    def fresh(self, client):
        return {name: tensor.clone() for name, tensor in self.setting.fresh_net(client).state_dict().items()}

    def samples(self, client, subset="train"):
        own = self.setting.subsets(client)[subset]
        return self.setting.data.x[own], self.setting.data.y[own]

    def train(self, client, state=None, received=None, earlier=0, round_=None):
        turn = Turn(client, state or self.states[client], received, earlier)
        return self.engine.train(round_ or Round(0, 1), [turn])[0]

    def upload(self, client, content):
        return Upload(client, len(self.setting.members[client].train), content)


def assert_step(outcome, before, gradients, lr=LR):
    """Every trained parameter moved by -lr times its gradient; every other tensor did not move at all."""
    for name, after in outcome.state.items():
        expected = before[name].numpy() - (lr * gradients[name] if name in gradients else 0)
        np.testing.assert_allclose(after.numpy(), expected, rtol=1e-10, atol=1e-12, err_msg=name)
    assert set(gradients) <= set(outcome.state)


def equal(tensor, expected):
    np.testing.assert_allclose(tensor.numpy(), expected, rtol=1e-10, atol=1e-12)
