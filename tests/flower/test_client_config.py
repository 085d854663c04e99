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
TEXT = """
from torch import nn

class Text(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(9, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.embedding(x).mean(1))

def make():
    return Text()
"""
WITHIN = """
from torch import nn

class Within(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(48, 7), nn.Linear(7, 3)

    def forward(self, x):
        return {"logits": self.head(self.body(x.flatten(1))), "about": x}

def make():
    return Within()
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
    (tmp_path / "words.csv").write_text("age,site,label\n3,left,0\n4,right,1\n")
    (tmp_path / "names.csv").write_text("age,dose,label\n3,1,0\n4,2,odd\n")
    np.savez(tmp_path / "tokens.npz", x=np.arange(60).reshape(10, 6), y=np.arange(10) % 3)
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


def test_data_come_from_a_table_whose_labels_are_names_and_need_not_all_occur(client, tmp_path):
    (tmp_path / "own.csv").write_text("age,dose,state\n52,1.5,well\n,2,well\n40,1,well\n60,3,well\n")
    organisation = load_organisation(client(data="own.csv", label="state", classes=["ill", "well"], model={"hidden": [3]}))
    assert organisation.data.y.tolist() == [1, 1, 1, 1] and organisation.data.classes == ("ill", "well")
    data, member = organisation.member(0, 0)
    own = data.x[member.train][:, 0]
    there = [age for age in (52.0, 40.0, 60.0) if age in own]
    assert data.x[1, 0] == np.float32(np.mean(there)), "a missing number becomes the mean of the client's training samples"
    assert np.allclose(data.mean, data.x[member.train].mean(axis=0))
    assert data.preparation.kind == "table" and data.preparation.classes == ["ill", "well"]


def test_whole_numbers_as_labels_count_the_classes(client, tmp_path):
    (tmp_path / "own.csv").write_text("age,dose,state\n52,1.5,2\n40,1,0\n")
    for classes in (3, ["a", "b", "c"]):
        organisation = load_organisation(client(data="own.csv", label="state", classes=classes, model={"hidden": [3]}))
        assert organisation.data.y.tolist() == [2, 0] and len(organisation.data.classes) == 3


def test_data_come_from_a_folder_of_images_scaled_if_asked(client, tmp_path):
    from PIL import Image

    for name, grey in (("cat", 10), ("dog", 200)):
        (tmp_path / "images" / name).mkdir(parents=True)
        for number in range(3):
            Image.new("RGB", (8, 8), (grey, grey, number)).save(tmp_path / "images" / name / f"{number}.png")
    organisation = load_organisation(client(data="images", size=[4, 4], classes=["bird", "cat", "dog"]))
    assert organisation.data.x.shape == (6, 3, 4, 4) and organisation.data.x.dtype == np.uint8
    assert organisation.data.y.tolist() == [1, 1, 1, 2, 2, 2]


def test_rows_of_whole_numbers_of_64_bits_are_tokens_and_reach_the_model_as_they_are(client, tmp_path):
    (tmp_path / "text.py").write_text(TEXT)
    np.savez(tmp_path / "tokens.npz", x=np.arange(60).reshape(10, 6) % 9, y=np.arange(10) % 3)
    organisation = load_organisation(client(data="tokens.npz", model="text.py:make"))
    data, member = organisation.member(0, 0)
    assert data.vocabulary == 9 and data.x.dtype == np.int64 and data.std.tolist() == [1.0] * 6
    assert organisation.model.label == "own model" and len(member.train) == 8


def test_the_logits_may_be_within_what_the_model_returns(client, tmp_path):
    (tmp_path / "within.py").write_text(WITHIN)
    assert load_organisation(client(model="within.py:make", output="logits")).model.build((3, 4, 4), 3).dim == 7
    with pytest.raises(UserError, match="dict"):
        load_organisation(client(model="within.py:make"))


def test_the_servers_name_for_the_model_is_the_organisations(client):
    assert load_organisation(client(model_label="ours")).model.label == "ours"


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
    ({"data": "words.csv", "model": {"hidden": [3]}}, "column 'site' has words, which each client would number"),
    ({"data": "names.csv", "model": {"hidden": [3]}}, "has the label 'odd', and the classes are '0', '1', '2'"),
    ({"data": "names.csv", "label": "state"}, "there is no column 'state'"),
    ({"label": "state"}, "label is 'state', and .* has no columns"),
    ({"size": [4]}, "size"),
    ({"data": "tokens.npz", "standardise": {"mean": [0.0] * 6, "std": [1.0] * 6}}, "data has tokens, which are not"),
    ({"data": "tokens.npz", "model": "own.py:sized"}, "whole numbers of 64 bits are tokens"),
    ({"last": "body.none"}, "body.none"),
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
