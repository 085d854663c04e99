"""Models from Python: the model that is shared beside them, and models that misbehave."""

import sys
import threading

import numpy as np
import pytest
import torch
from tiny import tiny_recipe
from torch import nn

import fedmrl
from fedmrl import OwnModel, UserError
from fedmrl.federation.setup import prepare
from fedmrl.methods import METHODS

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
    "a tuple": (Pair, r"model 'odd': Pair does not run .*\(TypeError: it returns a tuple, not a tensor\)"),
    "a dict": (Named, r"model 'odd': Named does not run .*\(TypeError: it returns a dict, not a tensor\)"),
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
