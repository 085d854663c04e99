"""An organisation's TOML: defaults are safe and written out, and a mistake names the file and the key."""

import tomllib

import numpy as np
import pytest
import tomli_w
import torch

from fedmrl import UserError
from fedmrl.flower.client_config import Bounds, ClientConfig, load_organisation, read_config, template
from fedmrl.flower.server_config import ServerConfig
from fedmrl.flower.server_folder import ServerFolder
from fedmrl.models import CNN, OwnModel

MODELS = """
from torch import nn

class Private(nn.Module):
    def __init__(self, features=48, classes=3):
        super().__init__()
        self.body, self.act, self.head = nn.Linear(features, 7), nn.ReLU(), nn.Linear(7, classes)

    def forward(self, x):
        return self.head(self.act(self.body(x.flatten(1))))

def plain():
    return Private()

def sized(shape, classes):
    import math
    return Private(math.prod(shape), classes)

def wrong():
    return 3

def headless():
    return nn.Flatten()

def three(a, b, c):
    return Private()

def fails():
    raise RuntimeError("no licence")

NUMBER = 3
"""
DATA = """
import numpy as np

def load():
    return np.zeros((20, 3, 4, 4), np.uint8), np.arange(20) % 3

def tested():
    return (*load(), *load())

def one():
    return np.zeros(3)

def listed():
    return [[0.0]], [0]
"""


@pytest.fixture
def client(tmp_path):
    (tmp_path / "own.py").write_text(MODELS)
    (tmp_path / "source.py").write_text(DATA)
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "data.npz", x=rng.integers(0, 256, (20, 3, 4, 4)).astype(np.uint8), y=np.arange(20) % 2)

    def write(**changes):
        plain = {"name": "a", "model": "own.py:plain", "data": "data.npz", "classes": 3, **changes}
        path = tmp_path / "client.toml"
        path.write_text(tomli_w.dumps({key: value for key, value in plain.items() if value is not None}))
        return path

    return write


def test_the_template_has_every_key_with_its_default(tmp_path):
    path = tmp_path / "client.toml"
    path.write_text(template())
    plain = tomllib.loads(template())
    config = ClientConfig.model_validate(plain)
    required = {key: plain[key] for key in ("name", "model", "data", "classes")}
    assert config == ClientConfig(**required)
    optional = {"label", "size", "last", "output", "standardise", "socket_group", "threads"}
    assert plain.keys() | optional == set(ClientConfig.model_fields) and plain["bounds"].keys() == set(Bounds.model_fields)
    assert read_config(path).bounds == Bounds()


def test_defaults_let_only_the_shared_small_model_leave():
    bounds = Bounds()
    assert (bounds.methods, bounds.leaves, bounds.class_counts) == (["fedmrl"], ["small."], False)
    assert bounds.recipe_imports == bounds.recipe_paths == []


def test_paths_are_relative_to_the_files_folder(client, tmp_path):
    config = read_config(client(imports=["own.py", "json"]))
    assert config.socket == str(tmp_path / "agent.sock") and config.state == str(tmp_path / "state")
    assert config.data == str(tmp_path / "data.npz") and config.model == f"{tmp_path / 'own.py'}:plain"
    assert config.imports == [str(tmp_path / "own.py"), "json"]


@pytest.mark.parametrize(("changes", "last"), [({}, None), ({"model": "own.py:sized"}, None), ({"last": "head"}, "head")])
def test_a_models_function_is_called_and_its_header_found(client, changes, last):
    organisation = load_organisation(client(**changes))
    assert isinstance(organisation.model, OwnModel) and organisation.model.label == "own model"
    assert organisation.model.last == last
    assert organisation.model.build((3, 4, 4), 3).dim == 7


@pytest.mark.parametrize(("model", "kind"), [("cnn-3", CNN), ({"hidden": [5]}, None), ({"conv1": 2, "conv2": 3}, CNN)])
def test_a_model_of_the_library_is_taken_by_name_or_widths(client, model, kind):
    found = load_organisation(client(model=model)).model
    assert kind is None or isinstance(found, kind)


def test_data_come_from_a_file_or_a_function(client):
    assert load_organisation(client()).data.official_train == 20
    assert load_organisation(client(data="source.py:load")).data.x.shape == (20, 3, 4, 4)
    tested = load_organisation(client(data="source.py:tested"))
    assert (len(tested.data.y), tested.data.official_train) == (40, 20)
    data, member = tested.member(seed=0, client=3)
    assert member.train.tolist() == list(range(20)) and data.classes == ("0", "1", "2")


def test_data_are_standardised_by_the_training_samples_or_by_given_numbers(client):
    organisation = load_organisation(client())
    data, member = organisation.member(seed=0, client=3)
    assert (len(member.train), len(member.test)) == (16, 4)
    assert np.allclose(data.mean, organisation.data.x[member.train].mean(axis=(0, 2, 3)))
    given = {"mean": [1.0, 2.0, 3.0], "std": [4.0, 5.0, 6.0]}
    assert load_organisation(client(standardise=given)).member(0, 3)[0].std.tolist() == [4.0, 5.0, 6.0]


def test_the_split_into_training_and_test_samples_follows_from_the_recipes_seed_and_the_number(client):
    organisation = load_organisation(client())
    one, same, other = (organisation.member(*key)[1].test.tolist() for key in ((0, 3), (0, 3), (1, 3)))
    assert one == same != other


WRONG = [
    ({"name": None}, "name is missing"),
    ({"name": ""}, "name is ''"),
    ({"model": None}, "model is missing"),
    ({"colour": 3}, "there is no key colour"),
    ({"bounds": {"max_round": 3}}, r"there is no key bounds\.max_round"),
    ({"bounds": {"max_rounds": 0}}, r"bounds\.max_rounds is 0"),
    ({"bounds": {"max_rounds": "many"}}, r"bounds\.max_rounds is 'many'"),
    ({"bounds": {"max_rounds": True}}, "max_rounds is true"),
    ({"bounds": {"min_batch_size": 9, "max_batch_size": 8}}, "min_batch_size is 9, above"),
    ({"bounds": {"leaves": [""]}}, r"bounds\.leaves\[0\] is ''"),
    ({"test_share": 1.0}, "test_share is 1.0"),
    ({"standardise": {"mean": [0.0]}}, r"standardise\.std is missing"),
    ({"standardise": {"mean": [0.0], "std": [1.0]}}, "must have 3 values"),
    ({"standardise": "whole"}, "standardise"),
    ({"classes": 1}, "has the label 1, and the classes are 1"),
    ({"classes": []}, "classes"),
    ({"data": "nowhere.npz"}, "does not exist"),
    ({"data": "source.py:missing"}, "no function 'missing'"),
    ({"data": "source.py:one"}, "must return x and y"),
    ({"data": "data.csv"}, "does not exist"),
    ({"data": "own.py"}, "no kind of file that is known"),
    ({"model": "cnn-9"}, "no such model"),
    ({"model": "nowhere.py:plain"}, "does not exist"),
    ({"model": "own.py:NUMBER"}, "no function 'NUMBER'"),
    ({"model": "no.such.package:make"}, "there is no module no"),
    ({"model": "own.py:wrong"}, "must return an nn.Module"),
    ({"model": "own.py:headless"}, "no linear layer"),
    ({"model": "own.py:three"}, "must take nothing, or"),
    ({"model": "own.py:fails"}, "RuntimeError: no licence"),
    ({"imports": ["nowhere.py"]}, "does not exist"),
]


@pytest.mark.parametrize("key", ["state", "socket", "data"])
def test_a_path_with_a_null_character_is_refused_by_its_key(client, key):
    with pytest.raises(UserError, match=f"{key} is 'a.*null character"):
        read_config(client(**{key: "a\0b"}))


@pytest.mark.parametrize(("changes", "says"), WRONG, ids=[says for _, says in WRONG])
def test_a_mistake_is_told_in_one_sentence_that_names_file_and_key(client, changes, says, tmp_path):
    with pytest.raises(UserError, match=says) as refused:
        load_organisation(client(**changes))
    assert str(tmp_path) in str(refused.value) or "no.such" in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize("text", ["name = ", "\x00", "a = [" * 3000])
def test_what_is_no_toml_is_refused_by_its_name(tmp_path, text):
    path = tmp_path / "client.toml"
    path.write_text(text)
    with pytest.raises(UserError, match=r"client\.toml is not TOML"):
        read_config(path)
    with pytest.raises(UserError, match=r"nowhere\.toml cannot be read"):
        read_config(tmp_path / "nowhere.toml")


def test_an_own_model_has_the_weights_of_the_run_whatever_was_drawn_before(client):
    model = load_organisation(client()).model
    torch.rand(3)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        first = model.build((3, 4, 4), 3).state_dict()
        torch.manual_seed(3)
        second = model.build((3, 4, 4), 3).state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_no_upload_that_the_server_takes_is_too_large_for_the_clients_by_default(tmp_path):
    server = ServerFolder.create(tmp_path / "s", ["localhost"]).config()
    assert server.max_norm == ServerConfig(hosts=["localhost"]).max_norm <= Bounds().max_received_norm
