import pytest
import torch
from pydantic import ValidationError
from torch import nn

from fedmrl.models import MLP


@pytest.mark.parametrize("shape", [(5,), (1, 2, 3), (3, 32, 32)])
def test_data_of_any_shape_is_flattened(shape):
    model = MLP(hidden=(8, 6)).build(shape, classes=4)
    assert model(torch.zeros(2, *shape)).shape == (2, 4)


def test_it_is_linear_layers_with_relu_and_a_linear_header():
    torch.manual_seed(0)
    model, x = MLP(hidden=(8, 6)).build((5,), classes=4), torch.randn(7, 5)
    state = model.state_dict()
    rep = x
    for layer in ("fc1", "fc2"):
        rep = (rep @ state[f"extractor.{layer}.weight"].T + state[f"extractor.{layer}.bias"]).clamp(min=0)
    torch.testing.assert_close(model.extractor(x), rep)
    torch.testing.assert_close(model(x), rep @ state["header.weight"].T + state["header.bias"])
    assert isinstance(model.header, nn.Linear)


def test_the_last_hidden_width_is_the_representation_after_its_relu():
    model = MLP(hidden=(8, 6)).build((5,), classes=4)
    representation = model.extractor(torch.randn(50, 5))
    assert model.dim == 6 and representation.shape == (50, 6) and representation.min() == 0


@pytest.mark.parametrize("hidden", [(7,), (8, 6), (4, 5, 6)])
def test_its_parameters_are_those_of_the_network_it_builds(hidden):
    spec = MLP(hidden=hidden)
    assert spec.parameters((1, 3, 4), classes=5) == sum(p.numel() for p in spec.build((1, 3, 4), classes=5).parameters())


def test_another_dimension_replaces_the_last_width_only():
    assert MLP(hidden=(8, 6)).with_dim(3) == MLP(hidden=(8, 3)) and MLP(hidden=(8,)).with_dim(3) == MLP(hidden=(3,))


def test_equal_widths_are_one_key_and_nothing_changes_once_set():
    spec = MLP.model_validate({"hidden": [8, 6]})
    assert {spec: 1}[MLP(hidden=(8, 6))] == 1 and spec != MLP(hidden=(6, 8))
    with pytest.raises(ValidationError, match="frozen"):
        spec.hidden = (1,)


@pytest.mark.parametrize("hidden", [[], [0], [-1], [True], [1.5], ["8"], [100_001], 8])
def test_what_is_no_list_of_widths_is_refused(hidden):
    with pytest.raises(ValidationError):
        MLP.model_validate({"hidden": hidden})
