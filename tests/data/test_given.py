"""Data as people have it: each form gives the same samples, classes and preparation."""

import gc
import json
import weakref

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import TensorDataset

import fedmrl
from fedmrl import UserError
from fedmrl.data import Files, dataset_of
from fedmrl.data.partition import PartitionTable, partition
from fedmrl.data.sources import load
from fedmrl.federation import launch

X = np.arange(24, dtype=np.float32).reshape(8, 3)
WORDS = np.array(["cat", "dog"] * 4)
FRAME = pd.DataFrame(X, columns=["a", "b", "c"]).assign(kind=WORDS)


class Mapped(TorchDataset):
    """A torch Dataset whose items are mappings."""

    def __len__(self):
        return 8

    def __getitem__(self, i):
        if i >= 8:
            raise IndexError
        return {"features": torch.from_numpy(X[i]), "label": str(WORDS[i])}


class HuggingFace:
    """What a Hugging Face dataset has."""

    column_names = ("x", "label")

    def __getitem__(self, name):
        return {"x": X.tolist(), "label": WORDS.tolist()}[name]

    def __len__(self):
        return 8


FORMS = {
    "arrays": ((X, WORDS), None),
    "lists": ((X.tolist(), WORDS.tolist()), None),
    "tensors": ((torch.from_numpy(X), WORDS), None),
    "frame and series": ((FRAME[["a", "b", "c"]], FRAME["kind"]), None),
    "torch Dataset": ([(x, y) for x, y in zip(torch.from_numpy(X), WORDS, strict=True)], None),
    "torch Dataset of mappings": (Mapped(), None),
    "DataFrame": (FRAME, "kind"),
    "mapping of columns": ({"a": X[:, 0], "b": X[:, 1], "c": X[:, 2], "label": WORDS}, None),
    "mapping with one wide column": ({"numbers": X.tolist(), "label": WORDS.tolist()}, None),
    "mapping with x and y": ({"x": X, "y": WORDS}, None),
    "Hugging Face dataset": (HuggingFace(), None),
}


class Pairs(TorchDataset):
    """A torch Dataset of given pairs."""

    def __init__(self, pairs):
        self.pairs = pairs

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, i):
        return self.pairs[i]


FORMS["torch Dataset"] = (Pairs(FORMS["torch Dataset"][0]), None)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_samples_and_classes(form):
    given, label = FORMS[form]
    data = dataset_of(given, label)
    assert data.x.tolist() == X.tolist() and data.x.dtype == np.float32
    assert data.classes == ("cat", "dog") and data.y.tolist() == [0, 1] * 4
    np.testing.assert_allclose(data.mean, X.mean(axis=0))
    assert data.preparation.labels([1, 0]).tolist() == ["dog", "cat"]
    inputs = given[0] if isinstance(given, tuple) else given
    assert data.preparation.features(inputs).tolist() == X.tolist()


@pytest.mark.parametrize("form", FORMS)
def test_every_form_may_be_that_of_one_client(form):
    given, label = FORMS[form]
    data = dataset_of([given, given], label)
    assert [own.train.tolist() for own in data.owners] == [[*range(8)], [*range(8, 16)]]
    assert data.x.tolist() == [*X.tolist(), *X.tolist()]


def test_a_fedmrl_dataset_is_taken_as_it_is_or_as_that_of_a_client():
    one = dataset_of((X, WORDS))
    assert dataset_of(one) is one
    both = dataset_of([one, (X, WORDS)])
    assert both.classes == ("cat", "dog") and len(both.y) == 16


def test_a_torch_tensor_dataset_keeps_its_integer_labels():
    data = dataset_of(TensorDataset(torch.from_numpy(X), torch.arange(8) % 2 + 5))
    assert data.classes == ("5", "6") and data.preparation.classes == [5, 6]
    assert data.preparation.labels([0, 1]).dtype.kind == "i"


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        ([2, 1, 2, 1], [1, 2]),
        ([1.0, 0.0, 1.0, 0.0], [0, 1]),
        ([True, False, True, False], [False, True]),
        (np.array([3, 1, 3, 1], np.uint8), [1, 3]),
        (["b", "a", "b", "a"], ["a", "b"]),
        (pd.Series(["b", "a", "b", "a"], dtype="category"), ["a", "b"]),
        (pd.Series([1, 0, 1, 0], dtype="Int64"), [0, 1]),
        (torch.tensor([[1], [0], [1], [0]]), [0, 1]),
    ],
)
def test_labels_keep_their_form_and_are_sorted(labels, classes):
    data = dataset_of((X[:4], labels))
    assert data.preparation.classes == classes and [type(c) for c in data.preparation.classes] == [type(c) for c in classes]
    assert data.y.tolist() == [1, 0, 1, 0]


def test_classes_are_those_of_all_clients_together():
    data = dataset_of([(X[:4], ["b", "c", "b", "c"]), (X[:4], ["a", "b", "a", "b"])])
    assert data.classes == ("a", "b", "c") and data.y.tolist() == [1, 2, 1, 2, 0, 1, 0, 1]


def test_whole_numbers_of_64_bits_are_tokens_and_others_are_numbers():
    tokens = np.array([[1, 5, 0], [2, 2, 2], [4, 0, 1], [1, 1, 1]])
    data = dataset_of((tokens, [0, 1, 0, 1]))
    assert data.vocabulary == 6 and data.x.dtype == np.int64 and data.preparation.kind == "tokens"
    assert data.preparation.features(torch.tensor([[5, 5, 5]])).dtype == np.int64
    assert dataset_of((tokens.astype(np.float64), [0, 1, 0, 1])).vocabulary is None
    assert dataset_of((tokens.astype(np.int16), [0, 1, 0, 1])).x.dtype == np.float32
    lists = {"input_ids": tokens.tolist(), "label": [0, 1, 0, 1]}
    assert dataset_of(lists).vocabulary == 6


def test_images_keep_their_bytes_and_get_their_channels_first():
    grey = np.arange(4 * 5 * 6, dtype=np.uint8).reshape(4, 5, 6)
    assert dataset_of((grey, [0, 1, 0, 1])).x.shape == (4, 1, 5, 6)
    colour = np.stack([grey] * 3, axis=-1)
    data = dataset_of((colour, [0, 1, 0, 1]))
    assert data.x.shape == (4, 3, 5, 6) and data.x.dtype == np.uint8
    assert np.array_equal(data.preparation.features(colour), data.x)
    pictures = Pairs([(Image.fromarray(image), label) for image, label in zip(colour, [0, 1, 0, 1], strict=True)])
    assert np.array_equal(dataset_of(pictures).x, data.x)


def test_test_samples_may_be_given_for_each_client():
    data = dataset_of([(X, WORDS, X[:2], WORDS[:2]), {"train": (X, WORDS), "test": (X[2:4], WORDS[2:4])}, (X, WORDS)])
    assert data.official_train == 24
    splits = partition(PartitionTable(kind="own"), data, 3, seed=0)
    assert [len(own.test) for own in splits] == [2, 2, 2] and [len(own.train) for own in splits] == [8, 8, 6]
    assert data.x[splits[1].test].tolist() == X[2:4].tolist()


def test_a_mapping_of_splits_has_an_official_test_set():
    splits = {"train": {"x": X, "y": WORDS}, "test": {"x": X[:2], "y": WORDS[:2]}, "validation": {"x": X[:2], "y": WORDS[:2]}}
    data = dataset_of(splits)
    assert data.official_train == 8 and len(data.y) == 10
    assert data.notices == ("data['validation'] is not used, as 'test' is the test set",)


@pytest.mark.parametrize("form", [(X, WORDS, X[:4], WORDS[:4]), {"train": (X, WORDS), "test": (X[:4], WORDS[:4])}])
def test_a_test_set_that_is_given_is_the_clients_test_set(tmp_path, form):
    given = {"method": "standalone", "rounds": 1, "clients": 2, "participation": 1.0, "partition": {"kind": "iid"}}
    fedmrl.run("quickstart", data=form, models={"local": [{"hidden": [4]}]}, **given, out=tmp_path / "run")
    clients = json.loads((tmp_path / "run" / "split.json").read_text())["clients"]
    assert sorted(row for own in clients for row in own["test"]) == [8, 9, 10, 11]
    assert sorted(row for own in clients for row in own["train"]) == [*range(8)]


def test_the_test_samples_of_a_file_that_a_recipe_names_are_never_trained_on(tmp_path):
    np.savez(tmp_path / "a.npz", x=X, y=WORDS, x_test=X[:4], y_test=WORDS[:4])
    data = load(Files(files=[str(tmp_path / "a.npz")]))
    splits = partition(PartitionTable(kind="iid"), data, 2, seed=0)
    assert sorted(row for own in splits for row in own.train) == [*range(8)]
    assert sorted(row for own in splits for row in own.test) == [8, 9, 10, 11]


def test_a_split_file_decides_even_over_test_samples_that_were_given(tmp_path):
    (tmp_path / "split.json").write_text(json.dumps([{"train": [0, 9], "test": [8, 1]}]))
    data = dataset_of((X, WORDS, X[:4], WORDS[:4]))
    (own,) = partition(PartitionTable(kind="given", file=str(tmp_path / "split.json")), data, 1, seed=0)
    assert (own.train.tolist(), own.test.tolist()) == ([0, 9], [1, 8])


SHORT = {"method": "standalone", "rounds": 1, "clients": 2, "participation": 1.0, "partition": {"kind": "iid"}}
SHORT |= {"models": {"local": [{"hidden": [4]}]}}


@pytest.mark.parametrize("call", [fedmrl.run, lambda *a, **k: fedmrl.compare(*a, ["standalone"], **without("method", k))])
def test_a_mean_for_other_features_than_the_datas_is_refused(call):
    says = r"data.mean has 3 values; data has 5 features, so give 5"
    with pytest.raises(UserError, match=says):
        call("quickstart", data=(np.zeros((8, 5)), WORDS), settings={"data.mean": [1, 1, 1]}, **SHORT)


def without(key, given):
    return {name: value for name, value in given.items() if name != key}


def test_a_mean_that_is_given_standardises_data_from_python_and_holds_when_it_is_run_again(tmp_path):
    said, settings = [], {"data.mean": [5.0, 6.0, 7.0], "data.std": [2.0, 2.0, 2.0]}
    given = dataset_of((X, WORDS))
    first = fedmrl.run("quickstart", data=given, settings=settings, out=tmp_path / "run", on_notice=said.append, **SHORT)
    assert (first.preparation.mean, first.preparation.std) == ([5, 6, 7], [2, 2, 2])
    assert said[0] == "the data is standardised by data.mean and data.std of the recipe"
    assert first.states_sha256 != fedmrl.run("quickstart", data=given, **SHORT).states_sha256
    assert fedmrl.run(tmp_path / "run", data=(X, WORDS)).states_sha256 == first.states_sha256
    both = fedmrl.compare("quickstart", ["standalone"], data=given, settings=settings, **without("method", SHORT))
    assert both["standalone"][0].states_sha256 == first.states_sha256


def test_a_mean_that_is_given_stays_when_missing_numbers_are_filled():
    frame = FRAME.copy()
    frame.loc[0, "a"] = None
    run = fedmrl.run("quickstart", data=frame, label="kind", settings={"data.mean": [5.0, 6.0, 7.0]}, **SHORT)
    assert run.preparation.mean == [5, 6, 7]


def test_a_token_beyond_the_vocabulary_is_a_sentence():
    tokens = np.array([[1, 5, 0], [2, 2, 2], [4, 0, 1], [1, 1, 1]])
    with pytest.raises(UserError, match="the input has the token 6; this model knows those from 0 to 5"):
        dataset_of((tokens, [0, 1, 0, 1])).preparation.features([[6, 0, 0]])


@pytest.mark.parametrize(("sizes", "known"), [((8, 30), 8), ((9, 9), 9)])
def test_the_tokens_that_a_trained_model_takes_are_those_of_all_embeddings(sizes, known):
    tokens = np.tile([[1, 5, 0], [2, 2, 2], [4, 0, 1], [1, 1, 1]], (4, 1))
    local, small = ({"name": "text", "vocabulary": size, "embedding": 4, "hidden": [4]} for size in sizes)
    short = SHORT | {"method": fedmrl.FedMRL(d1=4), "models": {"local": [local], "small": small}}
    client = fedmrl.run("quickstart", data=(tokens, [0, 1, 0, 1] * 4), **short).client(0)
    assert len(client.predict([[known - 1, 0, 0]])) == 1
    with pytest.raises(UserError, match=f"the input has the token {known}; this model knows those from 0 to {known - 1}"):
        client.predict([[known, 0, 0]])


def test_bytes_for_a_model_trained_on_floats_between_0_and_1_are_refused():
    floats = np.random.default_rng(0).random((4, 3, 5, 6)).astype(np.float32)
    prepared = dataset_of((floats, [0, 1, 0, 1])).preparation
    with pytest.raises(UserError, match="the input is bytes, and this model was trained on floats; give floats in the units"):
        prepared.features((floats * 255).astype(np.uint8))
    whole = np.round(floats * 255).astype(np.float32)
    assert np.array_equal(dataset_of((whole, [0, 1, 0, 1])).preparation.features(whole.astype(np.uint8)), whole)


def test_seeds_with_numbers_of_their_own_run_one_after_another_which_is_told_and_holds_one_copy_at_a_time(monkeypatch):
    frame = pd.DataFrame({"a": np.arange(40.0), "b": np.arange(40.0) % 7, "y": np.arange(40) % 2})
    frame.loc[::5, "a"] = None
    prepare, copies, rounds, alive, said = launch.prepare, [], [], [], []

    def noted(*args, **keys):
        setting = prepare(*args, **keys)
        copies.append(weakref.ref(setting.data))
        return setting

    def on_round(record):
        gc.collect()
        rounds.append(record.round)
        alive.append(sum(copy() is not None for copy in copies[-1:]) + sum(copy() is not None for copy in copies[1:3]))

    monkeypatch.setattr(launch, "prepare", noted)
    fedmrl.run_seeds(
        "quickstart", [0, 1, 2], data=frame, label="y", on_round=on_round, on_notice=said.append, **SHORT | {"rounds": 2}
    )
    assert rounds == [1, 2] * 3
    line = "the seeds run one after another, as the samples have missing numbers filled by each one's own training samples"
    assert said.count(line) == 1
    assert set(alive) == {1}, "the copies that were made for checking are gone"


def test_a_list_sets_the_number_of_clients_and_takes_the_partitions_place(tmp_path):
    said = []
    local = {"local": [{"hidden": [4]}]}
    result = fedmrl.run(
        "quickstart", data=[(X, WORDS)] * 3, models=local, method=fedmrl.FedMRL(d1=2), rounds=1, training={"batch_size": 4},
        out=tmp_path / "run", on_notice=said.append,
    )  # fmt: skip
    assert (result.recipe.clients, result.recipe.partition.kind, result.recipe.participation) == (3, "own", 1.0)
    assert said[0] == "participation is 0.2, less than two of 3 clients; all take part in each round"
    again = fedmrl.run(tmp_path / "run", data=[(X, WORDS)] * 3)
    assert again.states_sha256 == result.states_sha256
    with pytest.raises(UserError, match="data is not what this recipe was run on"):
        fedmrl.run(tmp_path / "run", data=[(X, WORDS)] * 2)


def test_keywords_are_keys_of_the_recipe():
    result = fedmrl.run(
        "quickstart", data=(X, WORDS), clients=2, participation=1.0, rounds=1, partition={"kind": "iid"}, method="standalone",
        models={"local": [{"hidden": [4]}]}, training={"lr": 0.5, "epochs": 1}, seed=3,
    )  # fmt: skip
    recipe = result.recipe
    assert (recipe.training.lr, recipe.training.epochs, recipe.training.momentum, recipe.seed) == (0.5, 1, 0.9, 3)
    with pytest.raises(UserError, match=r"there is no key training.lrr; did you mean training.lr\?"):
        fedmrl.run("quickstart", training={"lrr": 1})
    with pytest.raises(UserError, match="clients is 5, and data has that of 2; leave clients out"):
        fedmrl.run("quickstart", data=[(X, WORDS)] * 2, clients=5)


def test_compare_takes_the_same(tmp_path):
    both = fedmrl.compare(
        "quickstart", ["standalone", fedmrl.FedMRL(d1=2)], data=[FRAME, FRAME], label="kind", rounds=1, seeds=[0, 1],
        models=[lambda: torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))],
    )  # fmt: skip
    assert len(both.results) == 4 and {len(run.clients) for run in both.results} == {2}


def test_standardisation_may_be_of_the_training_samples_only():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 2)).astype(np.float32), np.arange(60) % 2
    given = {"data": (x, y), "clients": 2, "partition": {"kind": "iid"}, "rounds": 1, "method": "standalone"}
    given |= {"participation": 1.0, "models": {"local": [{"hidden": [3]}]}, "settings": {"data.standardise_from": "training"}}
    both = fedmrl.run_seeds("quickstart", [0, 1], **given)
    for run, seed in zip(both, (0, 1), strict=True):
        data = dataset_of((x, y))
        splits = partition(PartitionTable(kind="iid"), data, 2, seed)
        train = np.concatenate([own.train for own in splits])
        np.testing.assert_allclose(run.preparation.mean, x[train].mean(axis=0), rtol=1e-5)
    assert both[0].preparation.mean != both[1].preparation.mean
    alone = fedmrl.run("quickstart", **given, seed=1)
    assert alone.states_sha256 == both[1].states_sha256


def test_labels_that_are_words_of_digits_stay_words():
    for labels in (["0", "1"] * 4, [0, 1] * 4):
        assert dataset_of((X, np.array(labels))).preparation.classes == labels[:2]
