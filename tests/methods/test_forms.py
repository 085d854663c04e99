"""Every message of a run has the form that its method declares."""

from dataclasses import replace

import pytest
import torch
from tiny import ALL_METHODS, tiny_recipe

from fedmrl import UserError
from fedmrl.federation.setup import prepare
from fedmrl.federation.simulation import Simulation
from fedmrl.messages import TensorForm, UpTo, check_form
from fedmrl.methods import METHODS

FLOAT = torch.float32


class Watched:
    """Notes all that a federation's clients are sent and send."""

    def __init__(self, recipe):
        self.setting = prepare(recipe, torch.device("cpu"))
        self.fed = Simulation(recipe, self.setting)
        self.down, self.up = [], []
        train, evaluate = self.fed.clients.train, self.fed.clients.evaluate

        def training(round_, requests, upcoming=()):
            self.down += [request.content for request in requests]
            replies = train(round_, requests, upcoming)
            self.up += [reply.upload for reply in replies]
            return replies

        def evaluating(requests, modes):
            self.down += [request.content for request in requests if request.content is not None]
            return evaluate(requests, modes)

        self.fed.clients.train, self.fed.clients.evaluate = training, evaluating

    @property
    def forms(self):
        terms = self.setting.terms
        known = terms.common, self.setting.server_start(), terms.dtype
        return terms.method.answer_form(*known), terms.method.upload_form(*known)


VARIANTS = [
    *((name, {}) for name in ALL_METHODS),
    ("fedmrl", {"method__header": "shared"}), ("fedmrl", {"method__mrl": False}),
    ("fedproto", {"method__weighting": "uniform"}),
    ("fedkd", {"training__precision": "fp32", "participation": 0.3, "rounds": 6}), ("fd", {"method__keep": "round"}),
]  # fmt: skip


@pytest.mark.parametrize(("method", "settings"), VARIANTS, ids=[f"{m} {' '.join(s)}".strip() for m, s in VARIANTS])
def test_every_message_of_a_run_has_the_form_that_the_method_declares(method, settings):
    watched = Watched(tiny_recipe(method, **settings))
    watched.fed.run()
    answer, upload = watched.forms
    assert watched.down and watched.up
    for content in watched.down:
        check_form(content, answer)
    for content in watched.up:
        check_form(content, upload)


@pytest.mark.parametrize("method", [name for name in ALL_METHODS if name != "standalone"])
def test_a_message_with_a_tensor_more_or_less_or_of_another_shape_or_type_does_not_have_the_form(method):
    watched = Watched(tiny_recipe(method, rounds=2))
    watched.fed.run()
    answer, upload = watched.forms
    for contents, form in ((watched.down, answer), (watched.up, upload)):
        content = max(contents, key=len)
        name = "small.header.bias" if "small.header.bias" in content else max(content)
        tensor = content[name]
        wrong = [
            {**content, "private": torch.zeros(1)},
            {**content, name: torch.cat([tensor, tensor])},
            {**content, name: tensor[None]},
            {**content, name: tensor.to(torch.float16)},
            {key: value for key, value in content.items() if key != name},
        ]
        for bad in wrong:
            with pytest.raises(UserError, match=r"^it (has|lacks) "):
                check_form(bad, form)


def test_a_method_that_declares_nothing_sends_nothing():
    class Silent(METHODS["standalone"]):
        pass

    check_form({}, Silent().upload_form(None, {}, FLOAT))
    with pytest.raises(UserError, match="no part of this method's messages"):
        check_form({"w": torch.zeros(1)}, Silent().answer_form(None, {}, FLOAT))


ROWS = UpTo("rows", 3)
FORM = [[{"classes": TensorForm((ROWS,), torch.int64, below=3), "out": TensorForm((ROWS, 2), FLOAT)}, {}]]


@pytest.mark.parametrize(
    ("classes", "rows", "says"),
    [
        ([0, 2], 2, None), ([], 0, "classes of shape"), ([0, 1], 3, "out of shape"), ([0, 1, 2, 2], 4, "classes of shape"),
        ([1, 1], 2, "each once"), ([0, 3], 2, "from 0 to 2"), ([-1], 1, "from 0 to 2"),
    ],
)  # fmt: skip
def test_rows_go_with_distinct_labels_of_classes_that_exist(classes, rows, says):
    content = {"classes": torch.tensor(classes, dtype=torch.int64), "out": torch.zeros(rows, 2)}
    if says is None:
        check_form(content, FORM)
    else:
        with pytest.raises(UserError, match=says):
            check_form(content, FORM)


@pytest.mark.parametrize("count", [-3.0, 0.0, 0.5, 1e30, float("nan"), float("inf")])
def test_fedproto_takes_no_counts_but_whole_numbers_from_1(count):
    _, upload = Watched(tiny_recipe("fedproto")).forms
    _, width = upload[0][0]["prototypes"].shape
    dtype = upload[0][0]["counts"].dtype
    rows = torch.zeros(1, width, dtype=dtype)
    content = {"classes": torch.tensor([0]), "prototypes": rows, "counts": torch.tensor([7], dtype=dtype)}
    check_form(content, upload)
    with pytest.raises(UserError, match="counts with values that are not whole numbers from 1 to"):
        check_form(content | {"counts": torch.tensor([count], dtype=dtype)}, upload)


def test_factors_are_taken_only_where_they_are_smaller():
    watched = Watched(tiny_recipe("fedkd"))
    _, upload = watched.forms
    group = next(group for group in upload if any("small.header.weight" in choice for choice in group))
    rows, columns = group[1]["small.header.weight"].shape
    most = group[2]["small.header.weight:s"].shape[0].most if len(group) > 2 else 0
    assert most * (rows + columns + 1) < rows * columns <= (most + 1) * (rows + columns + 1)


def test_answers_of_a_round_go_together():
    form = [[{"a/*/w": TensorForm((1,), FLOAT), "a/*/b": TensorForm((1,), FLOAT)}]]
    one = {"a/3/w": torch.zeros(1), "a/3/b": torch.zeros(1)}
    check_form(one | {"a/10/w": torch.zeros(1), "a/10/b": torch.zeros(1)}, form)
    with pytest.raises(UserError, match="lacks a/10/b"):
        check_form(one | {"a/10/w": torch.zeros(1)}, form)
    for index in ("03", "x", "-1", "1/2"):
        with pytest.raises(UserError, match="no part"):
            check_form({f"a/{index}/w": torch.zeros(1)}, form)


def test_a_form_follows_from_what_both_sides_know():
    recipe = tiny_recipe("fedmrl")
    setting = prepare(recipe, torch.device("cpu"))
    terms = replace(setting.terms, seed=99)
    forms = [t.method.upload_form(t.common, t.server_start(setting.device), t.dtype) for t in (setting.terms, terms)]
    assert forms[0] == forms[1]
