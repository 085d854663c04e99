import pytest
import torch

from fedmrl.errors import UserError
from fedmrl.models import CNN, CNNS


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("cnn-1", 2_621_558), ("cnn-2", 1_815_142), ("cnn-3", 1_320_558), ("cnn-4", 1_060_358), ("cnn-5", 670_058)],
)
def test_the_papers_networks_have_their_sizes(name, parameters):
    model = CNNS[name].build((3, 32, 32), classes=10)
    assert sum(p.numel() for p in model.parameters()) == parameters == CNNS[name].parameters((3, 32, 32), 10)
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


def test_the_representation_comes_after_its_relu():
    model = CNNS["cnn-5"].build((3, 32, 32), classes=10)
    representation = model.extractor(torch.randn(4, 3, 32, 32))
    assert representation.shape == (4, 500) and representation.min() == 0


@pytest.mark.parametrize("shape", [(1, 16, 16), (1, 28, 28), (3, 64, 48)])
def test_other_image_sizes_channels_and_class_counts(shape):
    assert CNNS["cnn-3"].build(shape, classes=7)(torch.zeros(2, *shape)).shape == (2, 7)


def test_the_small_model_differs_in_its_representation_only():
    small = CNNS["cnn-5"].with_dim(100).build((3, 32, 32), classes=10)
    expected = (3 * 25 + 1) * 16 + (16 * 25 + 1) * 32 + (800 + 1) * 500 + (500 + 1) * 100 + (100 + 1) * 10
    assert small.dim == 100 and sum(p.numel() for p in small.parameters()) == expected


@pytest.mark.parametrize("shape", [(3, 15, 32), (20,)])
def test_what_is_no_image_or_too_small_is_refused(shape):
    with pytest.raises(UserError, match="at least 16×16 pixels"):
        CNN().build(shape, classes=10)
