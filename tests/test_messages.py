import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedmrl.messages import Upload
from fedmrl.methods import FD, FML, FedKD, FedMRL, FedProto, Round
from fedmrl.methods.fedkd import factor


def small(value, samples, client=0):
    return Upload(client, samples, {"small.weight": torch.tensor([value])})


def test_average_is_of_all_uploads_not_of_the_last_one():
    assert FedMRL().aggregate({}, [small(1.0, 10), small(4.0, 20, client=1)], Round(0, 1))["small.weight"].item() == 3.0


def test_uniform_average_is_the_plain_mean():
    mean = FML(weighting="uniform").aggregate({}, [small(1.0, 10), small(4.0, 20, client=1)], Round(0, 1))
    assert mean["small.weight"].item() == 2.5


uploads = st.lists(
    st.tuples(st.integers(1, 500), st.lists(st.floats(-1e3, 1e3, width=32), min_size=4, max_size=4)), min_size=1, max_size=8
)


@given(uploads, st.randoms())
def test_the_order_of_uploads_does_not_matter_to_the_last_bit(values, random):
    sent = [Upload(k, n, {"small.weight": torch.tensor(v)}) for k, (n, v) in enumerate(values)]
    mixed = random.sample(sent, len(sent))
    one, two = (FedMRL().aggregate({}, list_, Round(0, 1))["small.weight"] for list_ in (sent, mixed))
    assert torch.equal(one, two)
    weights = np.array([n for n, _ in values], float)
    expected = (weights[:, None] * np.float32([v for _, v in values]).astype(float)).sum(axis=0) / weights.sum()
    np.testing.assert_allclose(one.numpy(), expected, rtol=1e-6, atol=1e-4)


vectors = st.lists(st.floats(-9, 9, width=32), min_size=4, max_size=4)


def by_class(what, values, client):
    rows = torch.tensor([values, values[::-1]])
    return Upload(client, 5, {"classes": torch.tensor([0, client % 3 + 1]), what: rows, "counts": torch.tensor([2.0, 3.0])})


@pytest.mark.parametrize("method", [FedProto(), FD(), FedKD()])
@given(
    values=st.lists(st.lists(st.floats(-9, 9, width=32), min_size=4, max_size=4), min_size=2, max_size=5), random=st.randoms()
)
def test_nor_for_the_methods_that_do_not_average_weights(method, values, random):
    if isinstance(method, FedKD):
        sent = [Upload(k, k + 1, factor({"small.w": torch.tensor([v, v])}, 0.95)) for k, v in enumerate(values)]
        start = {"small.w": torch.zeros(2, 4), "answers-since": torch.tensor(0)}
    else:
        sent = [by_class("outputs" if isinstance(method, FD) else "prototypes", v, k) for k, v in enumerate(values)]
        start = {}
    mixed = random.sample(sent, len(sent))
    one, two = (method.answer(method.aggregate(start, list_, Round(0, 1)), 0, None) for list_ in (sent, mixed))
    assert one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)
