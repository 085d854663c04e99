import json
import operator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmrl.data import Dataset
from fedmrl.data.partition import PartitionTable, class_holders, deal, partition, split_json, train_test
from fedmrl.errors import UserError
from fedmrl.randomness import generator


def dataset(counts, test=0):
    y = np.repeat(np.arange(len(counts)), counts)
    y = generator(0, "test").permutation(y)
    if test:
        y = np.concatenate([y, np.arange(test) % len(counts)])
    x = np.zeros((len(y), 1), np.uint8)
    return Dataset("made", x, y, tuple(map(str, range(len(counts)))), len(y) - test, np.zeros(1), np.ones(1))


def assert_dealt_once(splits, data):
    everything = np.concatenate([part for own in splits for part in (own.train, own.test)])
    assert sorted(everything) == list(range(len(data.y)))


@st.composite
def class_splits(draw):
    classes = draw(st.integers(2, 12))
    each = draw(st.integers(1, classes))
    clients = draw(st.integers(-(-classes // each), 25))
    return classes, each, clients, draw(st.integers(0, 1000))


@given(class_splits())
def test_class_split_deals_every_sample_once_and_c_distinct_classes_to_each_client(case):
    classes, each, clients, seed = case
    data = dataset([3 * clients] * classes)
    splits = partition(PartitionTable(classes_per_client=each), data, clients, seed)
    assert_dealt_once(splits, data)
    for own in splits:
        assert len(set(data.y[np.concatenate([own.train, own.test])])) == each
        assert len(set(data.y[own.train])) == each, "a class is never tested without being trained on"


@given(class_splits(), st.floats(0.1, 1.0), st.floats(1.0, 3.0))
def test_shares_of_a_class_follow_the_given_bounds(case, low, ratio):
    classes, each, clients, seed = case
    data = dataset([200 * clients] * classes)
    table = PartitionTable(classes_per_client=each, shares=(low, low * ratio))
    splits = partition(table, data, clients, seed)
    counts = np.array([np.bincount(data.y[np.concatenate([o.train, o.test])], minlength=classes) for o in splits])
    for label in range(classes):
        held = counts[:, label][counts[:, label] > 0]
        assert held.max() - 1 <= ratio * (held.min() + 1) * (1 + 1e-9)


@given(class_splits())
def test_no_class_has_two_more_holders_than_another_while_there_is_a_choice(case):
    classes, each, clients, seed = case
    holders = class_holders(classes, clients, each, generator(seed, "t")).sum(axis=1)
    assert holders.sum() == each * clients and holders.max() - holders.min() <= 1


@given(st.integers(1, 12), st.floats(0.3, 5.0), st.integers(0, 100))
def test_dirichlet_deals_every_sample_once_and_enough_to_each_client(clients, alpha, seed):
    data = dataset([120] * 4)
    splits = partition(PartitionTable(kind="dirichlet", alpha=alpha, tries=2000), data, clients, seed)
    assert_dealt_once(splits, data)
    assert min(len(o.train) + len(o.test) for o in splits) >= 10


@given(st.integers(1, 15), st.integers(0, 100), st.lists(st.integers(30, 50), min_size=2, max_size=6))
def test_iid_gives_every_client_the_same_within_a_sample_of_each_class(clients, seed, counts):
    data = dataset(counts)
    splits = partition(PartitionTable(kind="iid"), data, clients, seed)
    assert_dealt_once(splits, data)
    dealt = np.array([np.bincount(data.y[np.concatenate([o.train, o.test])], minlength=len(counts)) for o in splits])
    assert (dealt.max(axis=0) - dealt.min(axis=0)).max() <= 1
    assert dealt.sum(axis=1).max() - dealt.sum(axis=1).min() <= 1


@given(class_splits())
def test_holders_are_drawn_as_if_counted_anew_each_time(case):
    classes, each, clients, seed = case
    rng, naive = generator(seed, "t"), np.zeros((classes, clients), dtype=bool)
    for client in range(clients):
        for _ in range(each):
            free = np.flatnonzero(~naive[:, client])
            holders = naive[free].sum(axis=1)
            naive[rng.choice(free[holders == holders.min()]), client] = True
    assert np.array_equal(class_holders(classes, clients, each, generator(seed, "t")), naive)


@given(st.lists(st.integers(0, 40), min_size=1, max_size=5), st.integers(1, 12), st.integers(0, 100))
def test_dealing_cuts_each_class_at_the_rounded_cumulative_shares(counts, clients, seed):
    y = generator(seed, "labels").permutation(np.repeat(np.arange(len(counts)), counts))
    shares = generator(seed, "shares").dirichlet(np.full(clients, 0.5), size=len(counts))
    rng, naive = generator(seed, "deal"), [[] for _ in range(clients)]
    for label, row in enumerate(shares):
        members = rng.permutation(np.flatnonzero(y == label))
        ends = np.round(np.cumsum(row) * len(members)).astype(int)
        for client, part in enumerate(np.split(members, ends[:-1])):
            naive[client].extend(part)
    dealt = deal(y, shares, generator(seed, "deal"))
    assert [own.tolist() for own in dealt] == [sorted(own) for own in naive]


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.floats(0.01, 0.99), st.integers(0, 100))
def test_test_samples_go_one_by_one_to_the_class_that_lacks_most_of_its_quota(counts, share, seed):
    y = np.repeat(np.arange(len(counts)), counts)
    sizes = np.array(counts)
    naive = np.minimum(np.floor(share * sizes), sizes - 1)
    while naive.sum() < max(1, round(share * len(y))) and (naive < sizes - 1).any():
        naive[np.argmax(np.where(naive < sizes - 1, share * sizes - naive, -np.inf))] += 1
    own = train_test(np.arange(len(y)), y, share, seed, 0)
    tested = np.bincount(y[own.test], minlength=len(counts))
    # Which of those that lack the same is drawn: what is then lacking is the same whoever it was.
    lacking = (sorted((share * sizes - of_class).round(9).tolist()) for of_class in (tested, naive))
    assert operator.eq(*lacking) or (max(counts) == 1 and tested.sum() == (len(y) > 1))


@pytest.mark.parametrize("table", [{"kind": "iid"}, {"kind": "class"}, {"kind": "dirichlet", "alpha": 5.0, "min_samples": 2}])
def test_ten_thousand_clients_are_dealt_every_sample_once(table):
    data = dataset([20_000] * 5)
    splits = partition(PartitionTable(**table), data, 10_000, 0)
    assert len(splits) == 10_000
    assert_dealt_once(splits, data)


def test_each_client_is_cut_8_to_2_class_by_class():
    data = dataset([100, 200])
    for own in partition(PartitionTable(classes_per_client=2), data, 3, 0):
        for label in (0, 1):
            train, test = ((data.y[part] == label).sum() for part in (own.train, own.test))
            assert abs(test - 0.2 * (train + test)) <= 1


def test_the_official_test_set_is_dealt_by_the_same_classes_and_shares():
    data = dataset([500, 500, 500, 500], test=400)
    splits = partition(PartitionTable(classes_per_client=2, test="official"), data, 4, 0)
    assert_dealt_once(splits, data)
    for own in splits:
        assert own.test.min() >= 2000 > own.train.max()
        train, test = (np.bincount(data.y[part], minlength=4) for part in (own.train, own.test))
        assert set(np.flatnonzero(train)) == set(np.flatnonzero(test))
        np.testing.assert_allclose(test / 100, train / 500, atol=0.02)


@pytest.mark.parametrize("test", ["official", "split"])
def test_what_is_set_aside_goes_to_nobody_and_is_drawn_over_all_classes(test):
    data = dataset([500, 500, 500, 500], test=400)
    splits = partition(PartitionTable(classes_per_client=2, test=test, set_aside=800), data, 4, 0)
    dealt = np.concatenate([np.concatenate([own.train, own.test]) for own in splits])
    assert len(dealt) == len(set(dealt.tolist())) == 1600
    aside = np.setdiff1d(np.arange(2400), dealt)
    assert test == "split" or aside.max() < 2000, "official test samples are all dealt"
    assert (np.bincount(data.y[aside], minlength=4) > 140).all()


def test_nothing_set_aside_is_the_split_as_it_was():
    data = dataset([50, 50])
    assert split_json(partition(PartitionTable(set_aside=0), data, 3, 5)) == split_json(partition(PartitionTable(), data, 3, 5))


def test_a_given_split_takes_nothing_aside():
    with pytest.raises(UserError, match="leave set_aside out"):
        PartitionTable(kind="given", file="split.json", set_aside=3)


def test_a_split_can_be_saved_and_given_to_another_run(tmp_path):
    data = dataset([50, 50])
    first = partition(PartitionTable(), data, 3, seed=5)
    path = tmp_path / "split.json"
    path.write_text(split_json(first))
    second = partition(PartitionTable(kind="given", file=str(path)), data, 3, seed=99)
    assert split_json(first) == split_json(second)


def test_given_lists_are_cut_8_to_2(tmp_path):
    path = tmp_path / "lists.json"
    path.write_text(json.dumps([list(range(10)), list(range(10, 30))]))
    splits = partition(PartitionTable(kind="given", file=str(path)), dataset([15, 15]), 2, 0)
    assert [(len(o.train), len(o.test)) for o in splits] == [(8, 2), (16, 4)]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[[0, 1]]", "for each of the 2 clients; it holds 1 clients"),
        ("{}", "it holds no list"),
        ("not json", "is not JSON"),
        ("[[0, 1], [2, 99]]", "client 1's entry must be a list of sample numbers from 0 to 9"),
        ('[[0, 1], [2, "3"]]', "client 1's entry must be a list"),
        ("[[0, 1, 2], [2, 3, 4]]", "sample 2 more than once"),
        ("[[0, 1], [2]]", "client 1 has 1 training and 0 test samples"),
        ("[[0, 1], []]", "client 1 has 0 training and 0 test samples"),
    ],
)
def test_a_given_split_that_cannot_be_is_refused(tmp_path, text, sentence):
    path = tmp_path / "given.json"
    path.write_text(text)
    with pytest.raises(UserError) as refusal:
        partition(PartitionTable(kind="given", file=str(path)), dataset([5, 5]), 2, 0)
    assert sentence in str(refusal.value)


@pytest.mark.parametrize(
    ("table", "clients", "sentence"),
    [
        ({"classes_per_client": 3}, 4, "classes_per_client is 3, and made has 2 classes; choose 1 to 2"),
        ({"classes_per_client": 1}, 1, "1 × 1 = 1, less than the 2 classes of made"),
        ({"classes_per_client": 2}, 18, "class '0' has 10 samples for 18 clients, too few"),
        ({}, 21, "clients is 21, more than the 20 samples of made; choose fewer"),
        ({"kind": "iid"}, 20, "client 0 has 1 training and 0 test samples"),
        ({"kind": "dirichlet"}, 3, "min_samples × clients is 10 × 3 = 30, more than the 20 samples"),
        ({"kind": "dirichlet", "alpha": 0.001, "min_samples": 6}, 3, "raise"),
        ({"test": "official"}, 2, "made has no official test set"),
        ({"set_aside": 20}, 2, "partition.set_aside is 20, all of the 20 samples of made; choose fewer"),
        ({"set_aside": 18}, 3, "clients is 3, more than the 2 samples of made that partition.set_aside leaves; choose fewer"),
    ],
)
def test_a_split_that_cannot_be_met_is_refused_in_a_sentence(table, clients, sentence):
    with pytest.raises(UserError) as refusal:
        partition(PartitionTable(**table), dataset([10, 10]), clients, 0)
    assert sentence in str(refusal.value)


def test_cifar_is_dealt_whole(cifar_dir):
    from fedmrl.data import Cifar10
    from fedmrl.data.sources import load

    data = load(Cifar10(dir=str(cifar_dir)))
    splits = partition(PartitionTable(), data, 100, 0)
    assert_dealt_once(splits, data)
    assert len(data.y) == 60_000


def test_clients_of_few_samples_are_not_all_tested_on_the_same_classes():
    y = np.repeat(np.arange(10), 2)
    tested = [y[train_test(np.arange(20), y, 0.2, seed=0, client=client).test] for client in range(300)]
    assert {len(labels) for labels in tested} == {4}
    counts = np.bincount(np.concatenate(tested), minlength=10)
    assert counts.min() > 80, "120 each, were it exactly even"
    assert counts.max() < 160


def test_the_authors_recipes_train_on_40_000_images_and_test_on_10_000(cifar_dir):
    from fedmrl import load_recipe
    from fedmrl.data import Cifar10
    from fedmrl.data.sources import load

    data = load(Cifar10(dir=str(cifar_dir)))
    splits = partition(load_recipe("authors-code/cifar10-n100").partition, data, 100, 0)
    assert (sum(len(own.train) for own in splits), sum(len(own.test) for own in splits)) == (40_000, 10_000)
