"""Models from Python: the model that is shared beside them, and models that misbehave."""

import math
import sys
import threading
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import pytest
import torch
from pydantic import Field
from tiny import tiny_recipe
from torch import nn

import fedmrl
from fedmrl import Model, OwnModel, Split, UserError
from fedmrl.federation.setup import prepare
from fedmrl.methods import METHODS
from fedmrl.table import IS_PATH

CPU = torch.device("cpu")
SHARING = ["fedapen", "fedkd", "fedmrl", "fml"]


def mlp(inputs, hidden):
    return lambda: nn.Sequential(nn.Flatten(), nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, 4))


@pytest.fixture
def vectors(tmp_path):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "v.npz", x=rng.normal(size=(80, 20)), y=np.arange(80) % 4)
    return str(tmp_path / "v.npz")


def shared_of(recipe, models):
    return prepare(recipe, CPU, models).terms.common.small


def test_the_shared_model_is_no_larger_than_the_smallest_of_the_clients_own():
    small, large = OwnModel("small", mlp(256, 9), "3"), OwnModel("large", mlp(256, 200), "3")
    assert shared_of(tiny_recipe("fml"), [large] * 4).label == "CNN(4-8-125-125)"
    chosen = shared_of(tiny_recipe("fml"), [large, small] * 2)
    assert chosen.label == "CNN(1-2-31-31)" and chosen.parameters((1, 16, 16), 4) <= 2353


@pytest.mark.parametrize("method", SHARING)
def test_every_method_runs_with_models_of_ones_own_on_vectors(vectors, method):
    told = []
    models = [OwnModel("net", mlp(20, 12), "3")] * 4
    fedmrl.run(tiny_recipe(method, data__file=vectors, rounds=1), models=models, on_notice=told.append)
    dim = 3 if method == "fedmrl" else 8
    said = f"the model that all clients share is MLP({dim}) with {21 * dim + (dim + 1) * 4} parameters, chosen by the size"
    assert any(line.startswith(said) for line in told), told


@pytest.mark.parametrize("method", sorted(METHODS.keys() - set(SHARING)))
def test_where_no_model_is_shared_none_is_named(method):
    told = []
    fedmrl.run(tiny_recipe(method, rounds=1), models=[OwnModel("net", mlp(256, 6), "3")] * 4, on_notice=told.append)
    assert not any("share" in line for line in told)


def test_a_shared_model_that_the_recipe_names_is_taken_and_not_told(vectors):
    told, models = [], [OwnModel("net", mlp(20, 12), "3")] * 4
    recipe = tiny_recipe("fml", data__file=vectors, rounds=1, models__small={"hidden": [16]})
    assert shared_of(recipe, models).label == "MLP(16)"
    fedmrl.run(recipe, models=models, on_notice=told.append)
    assert not any("share" in line for line in told)


def test_a_d1_above_a_models_representation_is_refused_in_a_sentence_before_anything_is_written(tmp_path):
    models = [OwnModel("wide", mlp(256, 120), "3")] * 3 + [OwnModel("deep", mlp(256, 24), "3")]
    says = r"^method.d1 is 100, more than client 3's representation \(24, model 'deep'\); choose 1 to 24$"
    with pytest.raises(UserError, match=says):
        fedmrl.run(tiny_recipe(method__d1=100), models=models, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


class Net(nn.Module):
    """A linear layer, something between, and a linear layer."""

    def __init__(self):
        super().__init__()
        self.body, self.last = nn.Linear(256, 6), nn.Linear(6, 4)

    def between(self, h):
        return h

    def after(self, logits):
        return logits

    def forward(self, x):
        return self.after(self.last(self.between(self.body(x.flatten(1)))))


class WithLock(Net):
    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()


class WithGenerator(Net):
    def __init__(self):
        super().__init__()
        self.numbers = (number for number in range(3))


class WithFile(Net):
    def __init__(self):
        super().__init__()
        self.file = sys.__stderr__


class Sparse(Net):
    def after(self, logits):
        return logits.to_sparse()


class Pair(Net):
    def after(self, logits):
        return logits, logits


class Named(Net):
    def after(self, logits):
        return {"logits": logits}


class Labels(Net):
    def after(self, logits):
        return logits.argmax(dim=1)


class Complex(Net):
    def after(self, logits):
        return logits.to(torch.complex64)


class Exits(Net):
    def between(self, h):
        sys.exit()


class ExitsInTraining(Net):
    def between(self, h):
        return sys.exit(3) if self.training else h


class ExitsOnLargeBatches(Net):
    def between(self, h):
        return sys.exit() if len(h) > 2 else h


def exits():
    sys.exit("that is all")


def huge():
    return nn.Linear(10**6, 10**6)


MISBEHAVING = {
    "a lock": (WithLock, r"model 'odd': WithLock cannot be copied for each client \(TypeError: cannot pickle '_thread.lock'"),
    "a generator": (WithGenerator, "model 'odd': WithGenerator cannot be copied for each client"),
    "an open file": (WithFile, "model 'odd': WithFile cannot be copied for each client"),
    "sparse": (Sparse, r"model 'odd': Sparse does not run .*\(TypeError: it returns a tensor of layout sparse_coo"),
    "a tuple": (
        Pair,
        r"Pair does not run .*\(TypeError: it returns a tuple, not a tensor; name the logits as output\)",
    ),
    "a dict": (
        Named,
        r"Named does not run .*: it returns a dict with 'logits', not a tensor; name the logits as output\)",
    ),
    "labels": (Labels, "model 'odd': Labels cannot be split at 'last': "),
    "complex": (Complex, "model 'odd': Complex cannot be split at 'last': "),
    "exits when made": (exits, r"model 'odd' cannot be made \(SystemExit: that is all\)"),
    "exits": (Exits, r"model 'odd': Exits does not run on an input of shape .* \(SystemExit\)"),
    "exits in training": (ExitsInTraining, r"client 0's model \(odd\) cannot be trained \(SystemExit: 3\)"),
    "too large": (huge, r"model 'odd': it needs 3725.3 GiB of memory for one tensor, and .* are free; make it smaller"),
}


@pytest.mark.parametrize("kind", MISBEHAVING)
def test_a_model_that_misbehaves_is_told_in_a_sentence_before_anything_is_written(tmp_path, kind):
    make, says = MISBEHAVING[kind]
    with pytest.raises(UserError, match=says) as refusal:
        fedmrl.run(tiny_recipe("standalone"), models=[OwnModel("odd", make, "last")] * 4, out=tmp_path / "run")
    assert len(str(refusal.value).splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_a_model_that_leaves_no_room_to_train_it_is_refused(monkeypatch):
    monkeypatch.setattr(sys.modules["fedmrl.models.split"], "free_bytes", lambda device: 150 * 1024**2)
    says = "model 'wide': it has 97.7 MiB of weights, and training takes another 195.3 MiB, where 150.0 MiB are free"
    with pytest.raises(UserError, match=says):
        OwnModel("wide", mlp(256, 98_100), "3").build((1, 16, 16), 4)


def test_a_model_whose_sizes_follow_from_its_first_input_is_taken():
    lazy = OwnModel("lazy", lambda: nn.Sequential(nn.Flatten(), nn.LazyLinear(6), nn.ReLU(), nn.Linear(6, 4)), "3")
    assert lazy.build((1, 16, 16), 4).dim == 6


@pytest.mark.parametrize("engine", ["reference", "batched"])
def test_a_model_that_exits_in_the_middle_of_a_run_is_told_in_a_sentence(engine):
    models = [OwnModel("odd", ExitsOnLargeBatches, "last")] * 4
    with pytest.raises(UserError, match=r"odd fails as it (trains|predicts): SystemExit; fix the model$"):
        fedmrl.run(tiny_recipe("standalone", rounds=1), models=models, engine=engine)


@pytest.mark.parametrize("where", ["make", "forward"])
def test_ctrl_c_in_a_users_model_is_still_a_stop(where):
    def stop(*_):
        raise KeyboardInterrupt

    class Stopping(Net):
        between = stop

    with pytest.raises(KeyboardInterrupt):
        prepare(tiny_recipe("standalone"), CPU, [OwnModel("net", stop if where == "make" else Stopping, "last")] * 4)


def test_a_kind_of_model_of_ones_own_that_misbehaves_is_told_too():
    class Kind:
        label = "mine"

        def build(self, shape, classes):
            sys.exit()

    with pytest.raises(UserError, match="models: mine fails as it is made: SystemExit; fix the model"):
        prepare(tiny_recipe("standalone"), CPU, [Kind()] * 4)


@pytest.mark.parametrize(
    ("settings", "label"),
    [
        ({"models__local": [{"hidden": [100_000, 100_000]}]}, r"MLP\(100000-100000\), has 74.7 GiB"),
        ({"models__local": [{"fc1": 100_000, "fc2": 100_000}]}, r"CNN\(16-32-100000-100000\), has 74.5 GiB"),
        ({"models__small": {"hidden": [100_000, 100_000]}}, r"MLP\(100000-100000\), has 74.7 GiB"),
    ],
)
def test_a_recipes_models_that_do_not_fit_into_memory_are_refused_before_one_is_made(tmp_path, monkeypatch, settings, label):
    monkeypatch.setattr("fedmrl.federation.setup.free_bytes", lambda device: 64 * 1024**3)
    with pytest.raises(UserError, match=rf"the models need 22\d.\d GiB of memory \(the largest, {label}\), and 64.0 GiB are"):
        fedmrl.run(tiny_recipe("fml", **settings), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def layers(shape, classes, width=4):
    extractor = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), width), nn.ReLU())
    return Split(extractor, nn.Linear(width, classes), width)


class Fields(Model):
    """A kind of model whose fields are of every type that a recipe has."""

    name = "fields"

    widths: list[int] = Field([4])
    options: dict[str, list[int]] = Field({})
    file: Annotated[str, IS_PATH] = ""

    def build(self, shape, classes):
        return layers(shape, classes, self.widths[-1])


class Lazy(Model):
    """A kind of model whose sizes follow from its first input."""

    name = "lazy"

    def build(self, shape, classes):
        extractor = nn.Sequential(nn.LazyConv2d(2, 3), nn.LazyBatchNorm2d(), nn.Flatten(), nn.LazyLinear(4), nn.ReLU())
        return Split(extractor, nn.LazyLinear(classes), 4)


@pytest.mark.parametrize("method", ["standalone", "fml"])
def test_a_registered_models_fields_may_be_lists_and_tables(tmp_path, method):
    fedmrl.register(Fields)
    tables = [{"name": "fields", "widths": [3, 5], "options": {"a": [1]}}, {"name": "fields", "widths": [6]}]
    result = fedmrl.run(tiny_recipe(method, models__local=tables, models__small={"hidden": [2]}), out=tmp_path / "run")
    labels = ["fields (widths = [3, 5], options = {'a': [1]})", "fields (widths = [6])"]
    assert [client.model for client in result.clients] == labels * 2
    again = fedmrl.run(tmp_path / "run")
    assert again.states_sha256 == result.states_sha256


def test_equal_models_are_one_kind_whatever_their_fields():
    assert len({Fields(widths=[1], options={"a": [1]}), Fields(widths=[1], options={"a": [1]}), Fields(widths=[2])}) == 2


def test_a_registered_models_paths_are_relative_to_the_recipe_and_their_files_must_not_change(tmp_path):
    fedmrl.register(Fields)
    weights = tmp_path / "weights.txt"
    weights.write_text("1")
    text = tiny_recipe("standalone").to_toml()
    head, _, tail = text.partition("local = [")
    path = tmp_path / "mine.toml"
    path.write_text(f'{head}local = [{{name = "fields", file = "weights.txt"}}]{tail.partition("]")[2]}')
    recipe = fedmrl.load_recipe(path)
    assert recipe.models.kinds[0].file == str(weights)
    fedmrl.run(recipe, out=tmp_path / "run")
    (tmp_path / "run" / "summary.json").unlink()
    weights.write_text("2")
    with pytest.raises(UserError, match=r"the file that models fields 0.file names has changed"):
        fedmrl.run(tmp_path / "run", out=tmp_path / "run", resume=True)


@pytest.mark.parametrize("method", ["standalone", "fedmrl"])
def test_a_registered_model_whose_sizes_follow_from_its_first_input_is_taken(method):
    fedmrl.register(Lazy)
    recipe = tiny_recipe(method, models__local=[{"name": "lazy"}], models__small={"hidden": [2]})
    assert fedmrl.run(recipe).states_sha256 == fedmrl.run(recipe).states_sha256


def test_a_lazy_model_that_is_no_fedmrl_model_is_told_what_to_do():
    class Kind:
        label = "mine"

        def build(self, shape, classes):
            return Lazy().build.__wrapped__(self, shape, classes)

    with pytest.raises(UserError, match=r"mine fails as it is made: ValueError: .* has no shape yet; .* derive the model from"):
        fedmrl.run(tiny_recipe("standalone"), models=[Kind()] * 4)


def overriding(**members):
    def build(self, shape, classes):
        return layers(shape, classes)

    return type("Odd", (Model,), {"name": "odd", "__module__": __name__, "build": build, **members})


ODD_MODELS = {
    "a number as label": (overriding(label=property(lambda self: 3)), "model 'odd': label is 3; it must be a line of text"),
    "no label": (overriding(label=property(lambda self: None)), "model 'odd': label is None; it must be a line of text"),
    "two lines": (overriding(label=property(lambda self: "a\nb")), r"model 'odd': label is 'a\\nb'; it must be a line of text"),
    "a failing label": (overriding(label=property(lambda self: 1 / 0)), "model 'odd': label fails .ZeroDivisionError"),
    "nothing built": (overriding(build=lambda self, shape, classes: None), "model 'odd': build returns None; it must return a"),
    "a module": (
        overriding(build=lambda self, shape, classes: nn.Linear(1, 1)),
        "model 'odd': build returns a Linear; it must",
    ),
    "exits": (overriding(build=lambda self, shape, classes: sys.exit()), r"model 'odd': build fails \(SystemExit"),
    "wrong dim": (
        overriding(build=lambda self, shape, classes: Split(layers(shape, classes).extractor, nn.Linear(4, classes), 3)),
        r"its extractor returns shape \[4\] a sample; expected \[3\]",
    ),
    "wrong classes": (
        overriding(build=lambda self, shape, classes: layers(shape, classes + 1)),
        r"its header returns shape \[5\] a sample; expected \[4\]",
    ),
    "a callable field": (overriding(f=print, __annotations__={"f": Any}), "the recipe cannot be written as TOML"),
    "NaN in a field": (overriding(f=[math.nan], __annotations__={"f": Any}), "the recipe cannot be written as TOML"),
}


@pytest.mark.parametrize("case", ODD_MODELS)
def test_a_registered_model_that_is_wrong_is_a_sentence_and_nothing_is_written(tmp_path, case):
    kind, says = ODD_MODELS[case]
    fedmrl.register(kind)
    with pytest.raises(UserError, match=says) as refusal:
        fedmrl.run(tiny_recipe("standalone", models__local=[{"name": "odd"}]), out=tmp_path / "run")
    assert len(str(refusal.value).splitlines()) == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("member", "says"),
    [
        (lambda self, dim: None, "model 'odd': with_dim returns None; it must return a model"),
        (lambda self, dim: self, "the model 'odd' has a representation of 4, and its with_dim was asked for 3; mend it"),
    ],
)
def test_a_models_with_dim_must_give_that_dimension(tmp_path, member, says):
    fedmrl.register(overriding(with_dim=member))
    with pytest.raises(UserError, match=says):
        fedmrl.run(tiny_recipe("fedmrl", models__small={"name": "odd"}), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_kind_of_model_that_cannot_be_a_dictionarys_key_is_a_sentence():
    @dataclass
    class Kind:
        label: str = "mine"

        def build(self, shape, classes):
            return layers(shape, classes)

    with pytest.raises(UserError, match=r"client 0's model \(Kind\) cannot be used \(TypeError: unhashable type: 'Kind'\)"):
        fedmrl.run(tiny_recipe("standalone"), models=[Kind()] * 4)
