import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedmrl.data import Digits
from fedmrl.data.plan import Samples, augmented, plan, shown
from fedmrl.data.sources import load
from fedmrl.training import Augmentation, Phase, Training


def phase(**settings) -> Phase:
    return Training(**settings).phase(lambda net, batch: batch.x, ("local",))


@given(st.integers(1, 40), st.integers(1, 4), st.integers(0, 5))
def test_every_epoch_shows_every_sample_once(samples, epochs, client):
    own = np.arange(100, 100 + samples)
    order = plan(0, 3, client, own, phase(epochs=epochs)).order_EN
    assert order.shape == (epochs, samples) and all(sorted(row) == own.tolist() for row in order)


def test_orders_differ_by_epoch_round_client_and_seed_and_repeat_for_the_same_key():
    own, two = np.arange(50), phase(epochs=2)
    orders = {key: plan(*key, own, two).order_EN for key in [(0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0)]}
    rows = [tuple(row) for order in orders.values() for row in order]
    assert len(set(rows)) == len(rows)
    assert (plan(0, 0, 0, own, two).order_EN == orders[0, 0, 0]).all()


def test_a_batch_is_standardised_when_it_is_taken_and_the_data_stay_bytes():
    data = load(Digits())
    samples = Samples(data, torch.device("cpu"), torch.float64)
    x, y = samples.take(np.arange(1797))
    assert samples.x.dtype == torch.uint8
    assert torch.allclose(x.mean(dim=(0, 2, 3)), torch.zeros(3, dtype=torch.float64), atol=1e-9)
    assert torch.allclose(x.std(dim=(0, 2, 3), unbiased=False), torch.ones(3, dtype=torch.float64))
    assert (y.numpy() == data.y).all()


def images(count=3):
    return torch.arange(count * 2 * 8 * 8, dtype=torch.uint8).reshape(count, 2, 8, 8)


def augment(raw, draws, **settings):
    return augmented(raw, torch.tensor(-1.0).double(), torch.tensor(1.0), torch.tensor(draws), Augmentation(**settings))


def test_flip_mirrors_left_to_right_where_the_draw_says():
    x = augment(images(2), [[0.1] + [0.0] * 7, [0.9] + [0.0] * 7], flip=True)
    assert torch.equal(x[0], images(2)[0].flip(-1).double() + 1) and torch.equal(x[1], images(2)[1].double() + 1)


def test_crop_shifts_within_a_border_that_is_zero_after_standardising():
    x = augment(images(1), [[0.0, 0.0, 0.99, 0, 0, 0, 0, 0]], crop=2)
    expected = torch.nn.functional.pad(images(1).double() + 1, [2, 2, 2, 2])[0, :, 0:8, 4:12]
    assert torch.equal(x[0], expected)


def test_standardise_flip_erase_crop_in_this_order():
    # By hand, an 8×8 image, nothing but slices: the rectangle lies in the flipped image, and the crop moves it along.
    # Area (0.04 + 0.16 × 0.75) × 64 = 10.24, ratio 0.5 × 4^0.5 = 1: a square of 3.
    # Its top is floor(0.5 × 6) = 3, its left edge floor(0.9 × 6) = 5.
    draws = [[0.1, 0.0, 0.99, 0.2, 0.75, 0.5, 0.5, 0.9]]
    by_hand = (images(1).double() + 1).flip(-1)
    by_hand[:, :, 3:6, 5:8] = 0
    by_hand = torch.nn.functional.pad(by_hand, [2, 2, 2, 2])[:, :, 0:8, 4:12]
    assert torch.equal(augment(images(1), draws, flip=True, crop=2, erase=0.5), by_hand)


def test_images_that_lie_channels_last_are_augmented_and_standardised_to_the_same_bits():
    raw, draws = torch.randint(0, 256, (5, 3, 9, 7), dtype=torch.uint8), torch.rand(5, 8)
    mean, std = (torch.tensor(of).reshape(3, 1, 1) for of in ([120.0, 99.7, 3.3], [61.1, 60.3, 7.7]))
    settings, last = Augmentation(flip=True, crop=2, erase=0.5), raw.contiguous(memory_format=torch.channels_last)
    assert torch.equal(augmented(raw, mean, std, draws, settings), augmented(last, mean, std, draws, settings))
    assert torch.equal(shown(raw, mean, std), shown(last, mean, std))
    assert shown(last, mean, std).is_contiguous(memory_format=torch.channels_last)


def test_the_middle_offset_of_a_crop_changes_nothing():
    assert torch.equal(augment(images(1), [[0.0, 0.5, 0.5, 0, 0, 0, 0, 0]], crop=3), images(1).double() + 1)


def test_erasing_blanks_one_rectangle_in_as_many_images_as_the_chance_says():
    rng = np.random.default_rng(0)
    draws = rng.random((2000, 8), dtype=np.float32)
    x = augmented(
        torch.ones(2000, 1, 32, 32), torch.tensor(0.0), torch.tensor(1.0), torch.tensor(draws), Augmentation(erase=0.3)
    )
    blank = (x == 0)[:, 0]
    erased = blank.any(dim=(1, 2))
    assert abs(erased.double().mean() - 0.3) < 0.03
    area = blank[erased].double().mean(dim=(1, 2))
    assert 0.035 < area.min() < 0.05 and 0.19 < area.max() < 0.215, "4 to 20% of the image, sides rounded"
    rows, columns = blank.any(dim=2).sum(dim=1), blank.any(dim=1).sum(dim=1)
    ratio = rows[erased] / columns[erased]
    assert 0.45 < ratio.min() < 0.55 and 1.8 < ratio.max() < 2.2, "sides in a ratio of 1:2 to 2:1"
    assert torch.equal(rows * columns, blank.sum(dim=(1, 2))), "a rectangle is as large as its sides say"


def test_augmentation_numbers_come_from_the_key():
    settings = phase(augment=Augmentation(flip=True))
    one, two = plan(0, 1, 2, np.arange(9), settings), plan(0, 1, 2, np.arange(9), settings)
    assert (one.draws_EN8 == two.draws_EN8).all() and one.draws_EN8.shape == (1, 9, 8)
    assert (plan(0, 1, 3, np.arange(9), settings).draws_EN8 != one.draws_EN8).any()
