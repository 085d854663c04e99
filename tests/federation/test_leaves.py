"""What the sheet says leaves a client is what leaves it, and no more."""

import pytest
import torch
from tiny import ALL_METHODS, tiny_recipe

import fedmrl
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


def test_a_result_has_the_sheet_and_keeps_it_in_its_folder(tmp_path):
    result = fedmrl.run(tiny_recipe("fedproto"), out=tmp_path / "run")
    assert RunResult.read(tmp_path / "run").leaves == result.leaves
    assert [tensor.name for tensor in result.leaves.up] == ["classes", "prototypes", "counts"]
    assert result.leaves.up[1].shape == ["classes ≤ 4", 6]
    assert "prototypes  classes ≤ 4 × 6  float64" in str(result.leaves)
