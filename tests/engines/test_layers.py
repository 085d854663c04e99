"""The operators of many clients compute what torch's layers compute for each."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, grad, vmap

from fedmrl.engines import layers

SHAPES = [(2, 3, 9, 8, 3, 5, 5, 4), (2, 5, 7, 7, 16, 3, 5, 32), (1, 2, 12, 12, 5, 5, 5, 17)]


def tensors(K, B, H, W, C, R, S, O, dtype=torch.float32):
    torch.manual_seed(0)
    x, w, b = torch.randn(K, B, H, W, C), torch.randn(K, R, S, C, O), torch.randn(K, O)
    return [t.to(dtype) for t in (x, w, b, torch.randn(K, B, H - R + 1, W - S + 1, O))]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_stacked_convolution_is_torchs_for_each_client(shape):
    x, w, b, g = tensors(*shape, dtype=torch.float64)
    images, filters = x.permute(0, 1, 4, 2, 3).requires_grad_(), w.permute(0, 4, 3, 1, 2).requires_grad_()
    y = torch.stack([F.conv2d(images[k], filters[k], b[k]) for k in range(shape[0])])
    y.backward(g.permute(0, 1, 4, 2, 3))
    of_w, of_b = layers.stacked_conv_of_weights(x, g)
    assert torch.allclose(layers.stacked_conv(x, w, b), y.permute(0, 1, 3, 4, 2))
    assert torch.allclose(of_w.sum(dim=1), filters.grad.permute(0, 3, 4, 2, 1))
    assert torch.allclose(of_b.sum(dim=1), g.sum(dim=(1, 2, 3)))
    assert torch.allclose(layers.stacked_conv_of_inputs(g, w), images.grad.permute(0, 1, 3, 4, 2))


@pytest.mark.parametrize("shape", SHAPES)
def test_the_gpu_kernels_compute_the_same(shape):
    kernels = pytest.importorskip("fedmrl.engines.kernels", reason="triton is not installed")
    x, w, b, g = tensors(*shape)
    assert torch.allclose(kernels.outputs(x, w, b), layers.stacked_conv(x, w, b), atol=1e-4)
    for mine, theirs in zip(kernels.of_weights(x, g), layers.stacked_conv_of_weights(x, g), strict=True):
        assert torch.allclose(mine.sum(dim=1), theirs.sum(dim=1), atol=1e-4)
    assert torch.allclose(kernels.of_inputs(g, w), layers.stacked_conv_of_inputs(g, w), atol=1e-4)


@pytest.mark.parametrize("shape", [(3, 6, 7, 5), (2, 9, 8, 4)])
@pytest.mark.parametrize("who", ["layers", "kernels"])
def test_pooling_is_torchs_with_ties_zeros_and_nan(shape, who):
    module = pytest.importorskip(f"fedmrl.engines.{who}", reason="triton is not installed")
    pooled, unpooled = (module.relu_pool, module.relu_unpool) if who == "layers" else (module.pooled, module.unpooled)
    torch.manual_seed(1)
    x = torch.randn(*shape)
    x[0, :2, :2], x[0, 2:4, 2:4], x[1, 0, 0, 0] = 0.5, 0.0, torch.nan
    images = x.permute(0, 3, 1, 2).clone().requires_grad_()
    y = F.max_pool2d(F.relu(images), 2)
    mine, where = pooled(x)
    upper = torch.randn_like(mine)
    y.backward(upper.permute(0, 3, 1, 2))
    assert torch.equal(mine.nan_to_num(-1), y.permute(0, 2, 3, 1).nan_to_num(-1))
    assert torch.equal(unpooled(upper, where, *shape[1:3]), images.grad.permute(0, 2, 3, 1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_pooling_before_relu_is_relu_before_pooling_to_the_last_bit(dtype):
    torch.manual_seed(2)
    x = torch.randn(3, 4, 8, 8).to(dtype)
    x[0, :2, :4], x[1, 0] = 0.0, -0.0
    x[2, 0] = x[2, 0].abs().round()  # ties
    upper, found = torch.randn(3, 4, 4, 4).to(dtype), []
    for order in ((F.relu, F.max_pool2d), (F.max_pool2d, F.relu)):
        images = x.clone().requires_grad_()
        y = images
        for layer in order:
            y = layer(y, 2) if layer is F.max_pool2d else layer(y)
        y.backward(upper)
        found.append((y.detach(), images.grad))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("pool_first", [False, True])
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_a_net_with_stackable_layers_has_the_same_gradients_under_vmap(pool_first):
    def both(pool):
        return (pool, nn.ReLU()) if pool_first else (nn.ReLU(), pool)

    def make():
        return nn.Sequential(
            nn.Conv2d(3, 4, 5), *both(nn.MaxPool2d(2)), nn.Conv2d(4, 5, 3, padding=1, bias=False), *both(nn.MaxPool2d(2, 2)),
            nn.Conv2d(5, 5, 2, stride=2), *both(nn.MaxPool2d(3, 1, padding=1)), nn.Flatten(), nn.Linear(5, 3),
        ).double()  # fmt: skip

    torch.manual_seed(0)
    plain, mine = make(), make()
    layers.stackable_layers(mine)
    kinds = " ".join(type(module).__name__ for module in mine)
    fused, left = ["Identity", "StackableReluPool"], ["ReLU", "MaxPool2d"]
    expected = [
        *("StackableConv2d", *fused[:: -1 if pool_first else 1]) * 2,
        *("Conv2d", *left[:: -1 if pool_first else 1], "Flatten", "Linear"),
    ]
    assert kinds == " ".join(expected)
    weights = {name: torch.randn(2, *p.shape).double() for name, p in plain.named_parameters()}
    x = torch.randn(2, 4, 3, 14, 14).double()
    one, two = (
        vmap(grad(lambda w, x, net=net: functional_call(net, w, (x,)).tanh().sum()))(weights, x) for net in (plain, mine)
    )
    for name in weights:
        assert torch.allclose(one[name], two[name], rtol=1e-9, atol=1e-11), name
