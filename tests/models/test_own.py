"""Finding a model's last layer, outputs that are dicts or tuples, and one logit for two classes."""

import pytest
import torch
from torch import nn

from fedmrl import OwnModel, UserError, split

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


class Branches(nn.Module):
    """A model whose last layer by name is not the one that computes its output."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(5, 2)
        self.body = nn.Linear(4, 5)
        self.auxiliary = nn.Linear(5, 2)

    def forward(self, x):
        h = self.body(x).relu()
        self.unused = self.auxiliary(h)
        return self.head(h)


class Returning(Branches):
    """A model that returns what `shape` makes of its logits."""

    def __init__(self, form):
        super().__init__()
        self.form = form

    def forward(self, x):
        return self.form(super().forward(x))


def test_the_last_layer_is_the_one_whose_output_leaves():
    made = split(Branches(), None, X)
    assert made.header.in_features == 5 and torch.equal(made(X), Branches.forward(whole_of(made), X))


def whole_of(made):
    model = Branches()
    model.body.load_state_dict(made.extractor.body.state_dict())
    model.head.load_state_dict(made.header.state_dict())
    return model


@pytest.mark.parametrize(
    ("form", "output"),
    [
        (lambda z: {"logits": z, "n": 3}, "logits"),
        (lambda z: (None, z), 1),
        (lambda z: [z], 0),
        (lambda z: {"a": {"b": z}}, lambda whole: whole["a"]["b"]),
    ],
    ids=["dict", "tuple", "list", "function"],
)
@pytest.mark.parametrize("last", [None, "head"])
def test_the_logits_may_be_within_a_dict_or_a_tuple(form, output, last):
    made = split(Returning(form), last, X, output)
    assert made(X).shape == (3, 2) and made.dim == 5


@pytest.mark.parametrize("form", [lambda z: z, lambda z: z.squeeze(1)], ids=["column", "squeezed"])
@pytest.mark.parametrize("bias", [True, False])
def test_one_logit_means_the_same_as_two(form, bias):
    class One(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.fc = nn.Linear(4, 3), nn.Linear(3, 1, bias=bias)

        def forward(self, x):
            return form(self.fc(self.body(x)))

    model = One()
    made = split(model, None, X, classes=2)
    torch.testing.assert_close(made(X).softmax(dim=1)[:, 1], model(X).flatten().sigmoid())
    assert OwnModel("one", One).build((4,), 2).header.out_features == 2


def test_a_linear_layer_alone_is_a_model_whose_representation_is_its_input():
    made = split(nn.Linear(4, 2), None, X)
    assert made.dim == 4 and made(X).shape == (3, 2)


WRONG = {
    "a softmax": (
        lambda: nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2), nn.Softmax(1)),
        {},
        r"Sequential: no nn.Linear computes its output; after '1', its last one, other layers come, such as a softmax",
    ),
    "no linear layer": (lambda: nn.Sequential(nn.Identity()), {}, "Sequential has no linear layer, and the last one is the"),
    "a sigmoid": (lambda: nn.Sequential(nn.Linear(4, 1), nn.Sigmoid()), {}, "no nn.Linear computes its output; after '0'"),
    "a dict": (
        lambda: Returning(lambda z: {"out": z}),
        {},
        "a dict with 'out', not a tensor; name the logits as output",
    ),
    "no such key": (
        lambda: Returning(lambda z: {"out": z}),
        {"output": "logits"},
        "output is 'logits', and the model returns a",
    ),
    "no such place": (lambda: Returning(lambda z: (z,)), {"output": 3}, "output is 3, and the model returns a tuple of 1"),
    "a tensor": (Branches, {"output": "logits"}, "output is 'logits', and the model returns a Tensor"),
    "a failing function": (Branches, {"output": lambda z: 1 / 0}, "ZeroDivisionError"),
    "too many outputs": (lambda: nn.Linear(4, 5), {}, "gives 5 outputs, and the data has 2 classes"),
    "one logit for three": (lambda: nn.Linear(4, 1), {"classes": 3}, "gives 1 outputs, and the data has 3 classes"),
    "wrong features": (lambda: nn.Linear(7, 2), {}, r"Sequential does not run|Linear does not run"),
    "wrong name": (
        lambda: Returning(lambda z: {"out": z}),
        {"output": "out", "last": "haed"},
        "no layer 'haed'; did you mean",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_model_that_cannot_be_split_is_told_in_a_sentence(case):
    make, given, says = WRONG[case]
    classes = given.pop("classes", 2) if "classes" in given else 2
    with pytest.raises(UserError, match=says) as refusal:
        OwnModel("mine", make, given.get("last"), given.get("output")).build((4,), classes)
    assert len(str(refusal.value).splitlines()) == 1


def test_an_embedding_that_is_too_small_for_the_tokens_is_told():
    def make():
        return nn.Sequential(nn.Embedding(5, 3), nn.Flatten(), nn.Linear(12, 2))

    assert OwnModel("text", make, vocabulary=5).build((4,), 2).dim == 12
    with pytest.raises(UserError, match="its embedding must have 50 rows, as there are tokens up to 49"):
        OwnModel("text", make, vocabulary=50).build((4,), 2)


def test_whole_numbers_for_a_model_of_numbers_are_told_to_be_tokens():
    with pytest.raises(UserError, match="whole numbers of 64 bits are tokens: if these are measurements, give them as floats"):
        OwnModel("mlp", lambda: nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)), vocabulary=5).build((4,), 2)
