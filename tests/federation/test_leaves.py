"""What the sheet says leaves a client is what leaves it, and no more."""

from dataclasses import replace

import pytest
import torch
from tiny import ALL_METHODS, tiny_recipe

import fedmrl
from fedmrl.aggregation import MEAN
from fedmrl.federation.leaves import leaves
from fedmrl.federation.setup import prepare
from fedmrl.federation.simulation import Simulation
from fedmrl.messages import size
from fedmrl.methods import Round
from fedmrl.results import RunResult

CPU = torch.device("cpu")


@pytest.mark.parametrize("method", ALL_METHODS)
def test_every_tensor_that_is_sent_is_on_the_sheet_and_no_message_is_larger_than_it_says(method):
    recipe = tiny_recipe(method, participation=1.0)
    fed = Simulation(recipe, setting := prepare(recipe, CPU))
    sheet = leaves(setting.terms)
    up, down = ({tensor.name: tensor for tensor in tensors} for tensors in (sheet.up, sheet.down))
    for index in range(3):
        round_ = Round(index, 3)
        requests = fed.requests(round_)
        for request in requests:
            assert size(request.content).bytes <= sheet.down_bytes
            assert {name.replace(f"answer/{index - 1}/", "answer/*/") for name in request.content} <= down.keys()
        for reply in fed.clients.train(round_, requests):
            assert size(reply.upload).bytes <= sheet.up_bytes
            assert reply.upload.keys() <= up.keys()
            assert {name for name, tensor in up.items() if tensor.always} <= reply.upload.keys()
            assert all(tensor.nbytes <= up[name].bytes for name, tensor in reply.upload.items())
        fed.commit(fed.next_round())


def test_fedmrl_sends_the_small_model_and_keeps_the_local_model_and_the_projector():
    recipe = tiny_recipe("fedmrl", training__precision="fp32")
    sheet = leaves(prepare(recipe, CPU).terms)
    # CNN(3-2-5-3) on 1×16×16 images of four classes, by hand: 3·26 + 2·(75+1) + 5·(2+1) + 3·(5+1) + 4·(3+1) numbers.
    assert sheet.up_bytes == sheet.down_bytes == 4 * (78 + 152 + 15 + 18 + 16)
    assert all(tensor.name.startswith("small.") and tensor.always for tensor in (*sheet.up, *sheet.down))
    assert sheet.stays == ["all samples and labels", "the local model's weights", "the projector's weights"]


def test_standalone_sends_nothing():
    sheet = leaves(prepare(tiny_recipe("standalone"), CPU).terms)
    assert (sheet.up, sheet.down, sheet.up_bytes, sheet.down_bytes) == ([], [], 0, 0)


def test_a_method_that_sends_but_does_not_declare_what_has_no_sheet():
    class Silent(fedmrl.methods.Method):
        """Sends a number."""

        name = "silent"

        def loss(self, net, batch):
            return batch.mean(torch.nn.functional.cross_entropy(net.local(batch.x), batch.y_B, reduction="none"))

        def upload(self, net, sums, round_):
            return {"bias": net.local.header.bias.detach().clone()}

    terms = prepare(tiny_recipe("standalone").with_method(Silent()), CPU).terms
    assert leaves(terms) is None


class Whole(fedmrl.FedMRL):
    """Sends all that the client has."""

    name = "whole"

    def upload(self, net, sums, round_):
        return {**super().upload(net, sums, round_), "projector.weight": net.projector.weight.detach().clone()}

    def aggregate(self, server, uploads, round_, rule=MEAN):
        kept = [replace(u, content={n: t for n, t in u.content.items() if n in server}) for u in uploads]
        return super().aggregate(server, kept, round_, rule)


class Declared(Whole):
    """Says what it sends, and forgets the projector."""

    name = "declared"

    def upload_form(self, common, start, dtype):
        return super().upload_form(common, start, dtype)


class Quiet(fedmrl.methods.Method):
    """Sends nothing, like the class that it is made from."""

    name = "quiet"

    def loss(self, net, batch):
        return batch.mean(torch.nn.functional.cross_entropy(net.local(batch.x), batch.y_B, reduction="none"))


def test_a_sheet_never_claims_less_than_a_method_of_the_users_sends():
    recipe = tiny_recipe("fedmrl").with_method(Whole(d1=3))
    assert leaves(prepare(recipe, CPU).terms) is None, "its upload is its own, and its form is not"
    with pytest.raises(fedmrl.UserError, match=r"upload_form does not declare what .*: it has 'projector\.weight'"):
        prepare(tiny_recipe("fedmrl").with_method(Declared(d1=3)), CPU)


def test_a_users_method_that_sends_nothing_has_an_empty_sheet():
    sheet = leaves(prepare(tiny_recipe("standalone").with_method(Quiet()), CPU).terms)
    assert (sheet.up, sheet.down) == ([], [])


def test_a_form_that_fails_is_told_before_anything_is_written(tmp_path):
    class Failing(fedmrl.FedMRL):
        """Fails as it declares."""

        name = "failing"

        def upload_form(self, common, start, dtype):
            return [[{"no such tensor": start["no such tensor"]}]]

    with pytest.raises(fedmrl.UserError, match=r"_form fails \(KeyError"):
        fedmrl.run(tiny_recipe("fedmrl").with_method(Failing(d1=3)), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_result_has_the_sheet_and_keeps_it_in_its_folder(tmp_path):
    result = fedmrl.run(tiny_recipe("fedproto"), out=tmp_path / "run")
    assert RunResult.read(tmp_path / "run").leaves == result.leaves
    assert [tensor.name for tensor in result.leaves.up] == ["classes", "prototypes", "counts"]
    assert result.leaves.up[1].shape == ["classes ≤ 4", 6]
    assert "prototypes  classes ≤ 4 × 6  float64" in str(result.leaves)
