"""Every loss can be stacked: under `vmap(grad)`, with a padded batch, each client's gradient is the one it has alone."""

import pytest
import torch
from tiny import ALL_METHODS, CNNS, tiny_recipe
from torch import nn
from torch.func import functional_call, grad, vmap

from fedmrl.federation.setup import prepare
from fedmrl.methods import Batch

CASES = [(method, {}) for method in ALL_METHODS]
CASES += [
    ("fedmrl", {"method__header": "shared"}),
    ("fedmrl", {"method__mrl": False}),
    ("fedmrl", {"method__projector": "mlp"}),
]
CASES += [("fedproto", {"method__distance": "class-mean"}), ("fedapen", {"method__ensemble": "probabilities"})]


class Loss(nn.Module):
    """A loss as a module's forward pass, which is what torch can call with other parameters."""

    def __init__(self, net, loss):
        super().__init__()
        self.net, self.loss = net, loss

    def forward(self, x, y_B, mask_B):
        outcome = self.loss(self.net, Batch(x, y_B, mask_B))
        return outcome if isinstance(outcome, tuple) else (outcome, {})


def stacked(tensors):
    return {f"net.{name}": torch.stack([one[name] for one in tensors]) for name in tensors[0]}


@pytest.mark.parametrize(("method", "settings"), CASES)
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_a_stacked_and_padded_client_has_the_gradient_and_sums_it_has_alone(method, settings):
    setting = prepare(tiny_recipe(method, models__local=CNNS[:1], **settings), torch.device("cpu"))
    nets = [setting.fresh_net(k) for k in range(3)]
    for net in nets:
        for table in ("prototypes_CD", "targets_CC"):
            if hasattr(net, table):
                getattr(net, table).uniform_()
                net.known_C[1:] = True
    torch.manual_seed(0)
    x, y_KB, mask_KB = torch.randn(3, 5, 1, 16, 16).double(), torch.randint(0, 4, (3, 5)), torch.ones(3, 5).double()
    mask_KB[1, 3:] = 0
    for phase in setting.method.phases(setting.training, earlier=1):
        loss = Loss(nets[0], phase.loss)

        def of_one(parameters, buffers, *batch, loss=loss):
            return functional_call(loss, {**parameters, **buffers}, batch)

        weights = stacked([{n: p.detach() for n, p in net.named_parameters()} for net in nets])
        buffers = stacked([dict(net.named_buffers()) for net in nets])
        gradients, sums = vmap(grad(of_one, has_aux=True))(weights, buffers, x, y_KB, mask_KB)
        outcome = phase.loss(nets[1], Batch(x[1, :3], y_KB[1, :3]))
        value, alone = outcome if isinstance(outcome, tuple) else (outcome, {})
        nets[1].zero_grad()
        value.backward()
        for name, parameter in nets[1].named_parameters():
            expected = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            assert torch.allclose(gradients[f"net.{name}"][1], expected, atol=1e-12), name
        assert all(torch.allclose(sums[name][1], alone[name]) for name in alone)
