"""What is drawn for one purpose is the same whatever else is drawn, before, after or meanwhile."""

import threading

import pytest
import torch
from torch import nn

from fedmrl.randomness import host_seeded


class Odd(nn.Module):
    """Draws in every way that a user's model might."""

    def __init__(self):
        super().__init__()
        self.linear, self.embedding = nn.Linear(4, 3), nn.Embedding(5, 2)
        self.a = nn.Parameter(torch.randn(3))
        self.b = nn.Parameter(torch.rand_like(self.a))
        self.c = nn.Parameter(torch.randint(3, 9, (4,)).float() + torch.randint(5, (4,)))
        self.d = nn.Parameter(torch.randperm(6).float())
        self.e = nn.Parameter(nn.init.orthogonal_(torch.empty(4, 4)))
        self.f = nn.Parameter(nn.init.trunc_normal_(torch.empty(4)))
        self.g = nn.Parameter(torch.normal(0.0, 1.0, (3,)) + torch.bernoulli(torch.full((3,), 0.5)))
        self.h = nn.Parameter(torch.nn.functional.dropout(torch.ones(20), 0.5))


def drawn(key=0):
    with host_seeded(0, "weights", key):
        return Odd().state_dict()


def same(one, two):
    return all(torch.equal(one[name], two[name]) for name in one)


def test_a_key_draws_the_same_again_and_another_draws_otherwise():
    torch.manual_seed(1)
    first = drawn()
    torch.manual_seed(2)
    assert same(first, drawn())
    other = drawn(1)
    assert not any(torch.equal(first[name], other[name]) for name in first)


def test_torchs_own_state_is_left_alone():
    before = torch.get_rng_state()
    drawn()
    assert torch.equal(torch.get_rng_state(), before)


def test_a_generator_that_was_given_is_the_one_that_draws():
    alone = torch.rand(3, generator=torch.Generator().manual_seed(7))
    with host_seeded(0, "weights"):
        assert torch.equal(torch.rand(3, generator=torch.Generator().manual_seed(7)), alone)


@pytest.mark.parametrize("disturb", [lambda: torch.manual_seed(3), lambda: torch.rand(1)], ids=["set back", "drawn from"])
def test_another_thread_may_do_as_it_likes_with_torchs_own_generator(disturb):
    def plain(key):
        with host_seeded(0, "weights", key):
            return nn.Sequential(nn.Conv2d(3, 8, 5), nn.Linear(50, 50), nn.Embedding(9, 9)).state_dict()

    expected, over = [plain(key) for key in range(40)], threading.Event()

    def others():
        while not over.is_set():
            disturb()

    thread = threading.Thread(target=others)
    thread.start()
    try:
        assert all(same(expected[key], plain(key)) for key in range(40))
    finally:
        over.set()
        thread.join()
