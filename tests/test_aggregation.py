"""Each rule against values worked out by hand, and against what it is there for: a client that lies."""

import math
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny import tiny_recipe

from fedmrl import UserError, register, run
from fedmrl.aggregation import RULES, Krum, Mean, Median, TrimmedMean, krum_order, weighted_mean
from fedmrl.messages import Upload
from fedmrl.methods import METHODS, FedMRL, Round


def uploads(*rows):
    return [{"w": torch.tensor(row)} for row in rows]


FIVE = uploads([1.0, 10.0], [2.0, 40.0], [3.0, 20.0], [4.0, 50.0], [100.0, -900.0])


def combined(rule, contents=FIVE, weights=(1, 1, 1, 1, 1)):
    return rule.combine(contents, weights)["w"].tolist()


def test_the_mean_is_weighted():
    assert combined(Mean(), uploads([1.0, 2.0], [4.0, 8.0]), [10, 20]) == [3.0, 6.0]


def test_the_mean_does_not_change_what_it_is_made_of():
    content = {"w": torch.tensor([1.0, 2.0])}
    weighted_mean([content, content], [1, 2])["w"].zero_()
    assert content["w"].tolist() == [1.0, 2.0]


def test_the_median_is_the_middle_of_each_number():
    assert combined(Median()) == [3.0, 20.0]
    assert combined(Median(), FIVE[:4], [1] * 4) == [2.5, 30.0]
    assert combined(Median(), FIVE[:1], [1]) == [1.0, 10.0]


def test_the_trimmed_mean_leaves_out_the_outermost_at_each_end():
    assert combined(TrimmedMean(trim=0.2)) == [3.0, pytest.approx(70 / 3)]
    assert combined(TrimmedMean(trim=0.3)) == [3.0, 20.0], "0.3 of 5 is rounded up to 2"
    ten = uploads(*([float(value)] for value in range(9)), [1000.0])
    assert combined(TrimmedMean(trim=0.1), ten, [1] * 10) == [4.5], "0.1 of 10 is 1, not 2"
    assert combined(TrimmedMean(trim=0.1), FIVE[:2], [1, 1]) == [1.5, 25.0], "of two clients none can be left out"


def test_krum_takes_the_client_whose_two_nearest_others_are_nearest():
    # Squared distances to the nearest two of five, one of whom may lie (5 - 1 - 2 = 2):
    # 0: 1 + 9 = 10, 1: 1 + 4 = 5, 3: 4 + 9 = 13, 7: 16 + 36 = 52, 100: 93² + 97².
    five = uploads([0.0], [1.0], [3.0], [7.0], [100.0])
    assert krum_order(five, byzantine=1) == [1, 0, 2, 3, 4]
    assert combined(Krum(), five) == [1.0]
    assert combined(Krum(keep=3), five) == [pytest.approx(4 / 3)]


def test_krum_looks_at_all_shared_tensors_together():
    contents = [{"a": torch.tensor(0.0), "b": torch.tensor([float(far)])} for far in (0, 9, 0, 0, 0)]
    assert krum_order(contents, byzantine=1)[-1] == 1


@pytest.mark.parametrize("rule", [Median(), TrimmedMean(trim=0.2), Krum(), Krum(keep=2)])
def test_a_liar_moves_the_mean_and_not_a_robust_rule(rule):
    honest = uploads(*([value, value] for value in (0.9, 1.0, 1.1, 1.2)))
    liar = uploads([-1e6, 1e6])
    assert abs(combined(Mean(), honest + liar)[0]) > 1e5
    assert all(0.9 <= value <= 1.2 for value in combined(rule, honest + liar))


@given(st.permutations(range(5)), st.sampled_from([Mean(), Median(), TrimmedMean(trim=0.2), Krum(), Krum(keep=2)]))
def test_the_order_in_which_uploads_arrive_does_not_matter(order, rule):
    sent = [Upload(client, 10, content) for client, content in enumerate(FIVE)]
    one = FedMRL().aggregate({}, sent, Round(0, 1), rule)
    other = FedMRL().aggregate({}, [sent[place] for place in order], Round(0, 1), rule)
    assert torch.equal(one["w"], other["w"])


@pytest.mark.parametrize("rule", [kind() for kind in RULES.values()], ids=lambda rule: rule.name)
def test_of_equal_uploads_every_rule_makes_that_upload_in_its_dtype(rule):
    same = [{"w": torch.tensor([1.5, -2.0], dtype=torch.float32), "steps": torch.tensor(7)}] * 5
    made = rule.combine(same, [1, 2, 3, 4, 5])
    assert made["w"].tolist() == [1.5, -2.0] and made["w"].dtype == torch.float32
    assert made["steps"].item() == 7 and made["steps"].dtype == torch.int64


def test_krum_refuses_too_few_clients_a_round():
    with pytest.raises(UserError, match=r"aggregation.byzantine is 1, for which krum needs at least 5 clients a round"):
        run(tiny_recipe("fedmrl", aggregation__rule="krum"))
    with pytest.raises(UserError, match="1 of 5 clients a round may be Byzantine; choose at most 4"):
        Krum(keep=5).check(5)


def test_krums_old_key_is_refused_with_its_new_name():
    with pytest.raises(UserError, match=r"there is no key aggregation.liars; it is now called aggregation.byzantine"):
        tiny_recipe("fedmrl", aggregation__rule="krum", aggregation__liars=1)


@pytest.mark.parametrize("method", [name for name in sorted(METHODS) if not METHODS[name].averages])
def test_a_rule_is_refused_where_there_are_no_weights_to_combine(method):
    with pytest.raises(UserError, match=f"aggregation.rule is 'median', and {method} does not average clients' weights"):
        tiny_recipe(method, aggregation__rule="median")


@pytest.mark.parametrize("method", [name for name in sorted(METHODS) if METHODS[name].averages])
def test_a_rule_changes_what_a_federation_learns(method):
    settings = {"clients": 3, "participation": 1.0, "rounds": 2}
    mean = run(tiny_recipe(method, **settings))
    again = run(tiny_recipe(method, **settings, aggregation__rule="mean"))
    median = run(tiny_recipe(method, **settings, aggregation__rule="median"))
    assert mean.states_sha256 == again.states_sha256 != median.states_sha256


class Bad(Mean):
    """Gives what `made` says."""

    name = "bad"
    made: object = None

    def combine(self, contents, weights):
        return self.made(contents[0]) if callable(self.made) else self.made


@pytest.mark.parametrize(
    ("made", "says"),
    [
        ({}, "gives other names, shapes or types than clients send"),
        (lambda content: {name: tensor[:1] for name, tensor in content.items()}, "gives other names, shapes or types"),
        (
            lambda content: {name: tensor.float().half() for name, tensor in content.items()},
            "gives other names, shapes or types",
        ),
        (None, "aggregation.rule 'bad': combine returns None; it must return a dict of tensors by name"),
        (lambda content: 1 / 0, r"aggregation.rule 'bad' fails \(ZeroDivisionError: division by zero\)"),
    ],
)
def test_what_a_users_rule_makes_must_be_of_the_form_of_what_came(made, says):
    with pytest.raises(UserError, match=says):
        FedMRL().aggregate({}, [Upload(0, 1, FIVE[0]), Upload(1, 1, FIVE[1])], Round(0, 1), Bad(made=made))


def test_krum_asks_for_enough_clients_in_each_round():
    with pytest.raises(UserError, match="krum needs at least 5 clients"):
        FedMRL().aggregate({}, [Upload(client, 1, FIVE[client]) for client in range(4)], Round(0, 1), Krum())


def each(change):
    return lambda self, contents, weights: {name: change(tensor) for name, tensor in contents[0].items()}


ODD_RULES = {
    "exits": ({"combine": lambda self, contents, weights: sys.exit()}, r"aggregation.rule 'odd' fails \(SystemExit\); mend it"),
    "a list": (
        {"combine": lambda self, contents, weights: list(contents)},
        "'odd': combine returns a list; it must return a dict",
    ),
    "arrays": ({"combine": each(lambda tensor: tensor.numpy())}, "'odd': combine returns a ndarray under 'small"),
    "sparse": ({"combine": each(torch.Tensor.to_sparse)}, "'odd': combine returns a sparse or empty tensor under 'small"),
    "a graph": (
        {"combine": each(lambda tensor: tensor.clone().requires_grad_())},
        "combine returns a tensor that requires grad",
    ),
    "NaN": ({"combine": each(lambda tensor: tensor * math.nan)}, "'odd': combine returns NaN for uploads that are finite"),
    "too few arguments": ({"combine": lambda self, contents: contents[0]}, r"'odd' fails \(TypeError: .* takes 2 positional"),
    "check raises": ({"check": lambda self, clients: 1 / 0}, r"aggregation rule 'odd': check fails \(ZeroDivisionError"),
    "check exits": ({"check": lambda self, clients: sys.exit(0)}, r"aggregation rule 'odd': check fails \(SystemExit: 0"),
}


@pytest.mark.parametrize("case", ODD_RULES)
def test_a_users_rule_that_is_wrong_is_a_sentence_and_nothing_is_written(tmp_path, case):
    members, says = ODD_RULES[case]
    register(type("Odd", (Mean,), {"name": "odd", "__module__": __name__, **members}))
    with pytest.raises(UserError, match=says) as refusal:
        run(tiny_recipe("fml", aggregation__rule="odd"), out=tmp_path / "run")
    assert len(str(refusal.value).splitlines()) == 1
    assert not (tmp_path / "run").exists()
