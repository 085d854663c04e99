import pytest
import torch
from torch import nn

from fedmrl.errors import UserError
from fedmrl.models import OwnModel, split


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.5), nn.ReLU())
        self.head = nn.Linear(6, 3)
        self.unused = nn.Linear(2, 2)
        self.scale = nn.Linear(3, 3)

    def forward(self, x):
        return self.head(self.body(x))


class WithSoftmax(Net):
    def forward(self, x):
        return super().forward(x).softmax(-1)


def test_a_split_model_computes_what_the_whole_one_does():
    model, x = Net().eval(), torch.randn(5, 4)
    cut = split(model, "head", x)
    assert cut.dim == 6
    assert torch.equal(cut(x), model(x))
    assert torch.equal(cut.header(cut.extractor(x)), model(x))


def test_the_users_model_is_left_as_it_was():
    model = Net()
    split(model, "head", torch.zeros(2, 4))
    assert isinstance(model.head, nn.Linear) and model.training


@pytest.mark.parametrize(
    ("model", "last", "sentence"),
    [
        (Net(), "haed", "Net has no layer 'haed'; did you mean 'head'?"),
        (Net(), "body.1", "it is a Dropout, and a header must be an nn.Linear"),
        (Net(), "unused", "expected [2]"),
        (WithSoftmax(), "head", "other layers come after it or run in parallel"),
        (Net(), "body.0", "without that layer it does not run"),
        (nn.Sequential(nn.Linear(4, 3, bias=False), nn.Linear(3, 3, bias=False), nn.Tanh()), "1", "other layers come after it"),
        (nn.Sequential(nn.Linear(5, 3)), "0", "Sequential does not run on an input of shape [2, 4]"),
        (nn.Identity(), "fc", "it has no layers at all"),
    ],
)
def test_what_cannot_be_split_is_refused_in_a_sentence(model, last, sentence):
    with pytest.raises(UserError) as refusal:
        split(model, last, torch.ones(2, 4))
    assert sentence in str(refusal.value) and "\n" not in str(refusal.value)


def test_an_own_model_with_the_wrong_number_of_outputs_is_refused():
    with pytest.raises(UserError, match="gives 3 outputs, and the data has 5 classes"):
        OwnModel("net", Net, "head").build((4,), classes=5)
