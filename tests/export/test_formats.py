"""Exported files give the trained model's numbers where fedmrl cannot be imported, without pickle, and hold nothing else."""

import io
import json
import subprocess
import sys
import zipfile

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from tiny import ALL_METHODS, data_file, tiny_recipe
from torch import nn

import fedmrl
from fedmrl import UserError

X = np.load(data_file())["x"][:7]
WITHOUT_FEDMRL = """
import sys
sys.modules["fedmrl"] = None
import json, numpy as np, onnxruntime, torch
from pathlib import Path
folder, x = Path(sys.argv[1]), np.load(sys.argv[1] + "/x.npy")
for path in sorted(folder.glob("*.onnx")):
    session = onnxruntime.InferenceSession(path)
    about = session.get_modelmeta().custom_metadata_map
    np.savez(path.with_suffix(".onnx.npz"), p=session.run(["probabilities"], {"x": x})[0], classes=json.loads(about["classes"]))
for path in sorted(folder.glob("*.pt2")):
    extra = {"metadata.json": ""}
    module = torch.export.load(path, extra_files=extra).module()
    p, classes = module(torch.from_numpy(x)).numpy(), json.loads(extra["metadata.json"])["classes"]
    assert module(torch.from_numpy(x[:1])).shape == (1, len(classes))
    np.savez(path.with_suffix(".pt2.npz"), p=p, classes=classes)
try:
    import fedmrl
except ImportError:
    print("read without fedmrl")
"""


def trained(net, method, x, mean, std, mode):
    """The probabilities that the method gives itself."""
    shape = (1, -1, 1, 1)
    fed = (torch.from_numpy(x).double() - torch.tensor(mean).reshape(shape)) / torch.tensor(std).reshape(shape)
    with torch.no_grad():
        return torch.softmax(method.predict(net, fed, mode), dim=-1).numpy()


@pytest.mark.parametrize("method", ALL_METHODS)
def test_onnx_and_pt2_give_the_trained_models_probabilities_without_fedmrl(tmp_path, method):
    result = fedmrl.run(tiny_recipe(method, rounds=2, participation=1.0))
    client, net = result.client(1), result.nets.net(1)
    modes = client.modes if method == "fedmrl" else client.modes[:1]
    np.save(tmp_path / "x.npy", X)
    for mode in modes:
        client.export(tmp_path / f"{mode}.onnx", mode)
        client.export(tmp_path / f"{mode}.pt2", mode)
    run = subprocess.run([sys.executable, "-c", WITHOUT_FEDMRL, str(tmp_path)], capture_output=True, text=True, check=False)
    assert run.stdout.endswith("read without fedmrl\n"), run.stderr
    about = result.preparation
    for mode in modes:
        expected = trained(net, result.recipe.method, X, about.mean, about.std, mode)
        assert np.ptp(expected[:, 0]) > 1e-4, "the samples differ"
        for suffix in ("onnx", "pt2"):
            found = np.load(tmp_path / f"{mode}.{suffix}.npz")
            assert np.abs(found["p"] - expected).max() < 1e-5 and found["classes"].tolist() == about.classes


def body() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(256, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 4))


class Answers(nn.Module):
    """A module that returns a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = body()

    def forward(self, x):
        return {"logits": self.layers(x), "other": x}


@pytest.fixture(scope="module")
def own_run():
    models = [body, fedmrl.OwnModel("answers", Answers, output="logits")]
    return fedmrl.run(tiny_recipe("fedmrl", rounds=1, participation=1.0, training__batch_size=8), models=models)


@pytest.mark.parametrize(("client", "make", "logits"), [(0, body, lambda y: y), (1, Answers, lambda y: y["logits"])])
def test_safetensors_load_into_the_users_own_module(tmp_path, own_run, client, make, logits):
    own = own_run.client(client)
    path = own.export(tmp_path / "model.safetensors", "single-large")
    module = make().eval()
    module.load_state_dict(load_file(path))
    with safe_open(path, "pt") as file:
        about = {name: json.loads(value) for name, value in file.metadata().items()}
    x = (torch.from_numpy(X).float() - about["mean"][0]) / about["std"][0]
    assert torch.softmax(logits(module(x)), dim=-1).detach().numpy() == pytest.approx(own.scores(X, "single-large"), abs=1e-6)
    assert about["classes"] == [0, 1, 2, 3] and about["mode"] == "single-large"


def test_one_logit_is_exported_as_one(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 5)).astype(np.float32)
    settings = {"clients": 2, "rounds": 1, "partition.classes_per_client": 2}
    result = fedmrl.run(
        "quickstart", data=(x, x[:, 0] > 0), models=lambda: nn.Linear(5, 1), method="standalone", settings=settings
    )
    module = nn.Linear(5, 1)
    module.load_state_dict(load_file(result.client(0).export(tmp_path / "m.safetensors")))
    about = result.preparation
    fed = (torch.from_numpy(x) - torch.tensor(about.mean).float()) / torch.tensor(about.std).float()
    assert torch.sigmoid(module(fed))[:, 0].tolist() == pytest.approx(result.client(0).scores(x)[:, 1], abs=1e-6)


def test_parts_of_a_fused_mode_keep_their_names(tmp_path, own_run):
    names = set(load_file(own_run.client(0).export(tmp_path / "mix.safetensors")))
    assert {"local.1.weight", "local.2.running_mean", "local.4.bias", "projector.weight"} <= names
    assert {name.partition(".")[0] for name in names} == {"local", "small", "projector"}


USED = {
    "mix-large": {"local.extractor", "local.header", "projector"},
    "mix-small": {"local.extractor", "projector"},
    "single-small": set(),
    "single-large": {"local.extractor", "local.header"},
}
"""What each mode of FedMRL uses of the client's own."""


@pytest.mark.parametrize("suffix", [".onnx", ".pt2", ".safetensors"])
@pytest.mark.parametrize("mode", USED)
def test_a_file_has_no_private_tensor_that_its_mode_does_not_use(tmp_path, own_run, mode, suffix):
    own, net = own_run.client(0), own_run.nets.net(0)
    content = own.export(tmp_path / f"model{suffix}", mode).read_bytes()
    private = {
        name: tensor.float().numpy().tobytes()
        for name, tensor in net.state_dict().items()
        if name.startswith(("local.", "projector.")) and tensor.numel() >= 4
    }
    assert {
        "local.extractor.1.weight",
        "local.extractor.2.running_var",
        "local.header.bias",
        "projector.bias",
    } <= private.keys()
    found = {name for name, tensor in private.items() if tensor in content}
    allowed = {name for name in private if name.startswith(tuple(USED[mode]))}
    assert found <= allowed
    assert {name for name in allowed if name.endswith("header.weight") or name == "projector.weight"} <= found


@pytest.mark.parametrize("mode", USED)
def test_the_client_and_its_model_are_named_only_where_the_model_is_inside(tmp_path, own_run, mode):
    with safe_open(own_run.client(1).export(tmp_path / "model.safetensors", mode), "pt") as file:
        about = file.metadata()
    assert json.loads(about["mode"]) == mode
    assert {"client", "model"} & about.keys() == (set() if mode == "single-small" else {"client", "model"})


def test_a_pt2_file_has_no_pickle_and_no_source_code(tmp_path, own_run):
    content = own_run.client(0).export(tmp_path / "model.pt2").read_bytes()
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        inside = {name: archive.read(name) for name in archive.namelist()}
    assert not any(b".pkl" in body or body.startswith(b"\x80\x02") for body in inside.values())
    assert not any(b"test_formats" in body or b"site-packages" in body for body in inside.values())


def test_an_onnx_file_has_no_source_code(tmp_path, own_run):
    content = own_run.client(0).export(tmp_path / "model.onnx").read_bytes()
    assert b"test_formats" not in content and b".py" not in content


class Branches(nn.Module):
    """A model whose path depends on its input, which no graph has."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(256, 4)

    def forward(self, x):
        flat = x.flatten(1)
        return self.fc(flat if flat.sum() > 0 else -flat)


@pytest.mark.parametrize("suffix", [".onnx", ".pt2"])
def test_a_model_without_a_graph_is_told_and_its_weights_can_be_written(tmp_path, suffix):
    client = fedmrl.run(tiny_recipe("standalone", rounds=1), models=Branches).client(0)
    with pytest.raises(UserError, match=r"mode 'local' cannot be exported: torch.export does not support .*write .safetensors"):
        client.export(tmp_path / f"m{suffix}")
    assert list(tmp_path.iterdir()) == []
    assert set(load_file(client.export(tmp_path / "m.safetensors"))) == {"fc.weight", "fc.bias"}


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("model.pkl", r"model.pkl cannot be written: end its name in .onnx, .pt2 or .safetensors"),
        ("model", "end its name in"),
        ("nowhere/model.pt2", "name a file in an existing folder"),
        ("", "path is ''"),
        (3, "path is 3"),
    ],
)
def test_a_file_that_cannot_be_written_is_told(tmp_path, monkeypatch, own_run, name, says):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=says):
        own_run.client(0).export(name)
    assert list(tmp_path.iterdir()) == []


def test_onnx_without_its_packages_says_what_to_install(tmp_path, monkeypatch, own_run):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(UserError, match=r"a .onnx file needs the package onnxscript; .* pip install 'fedmrl\[export\]'"):
        own_run.client(0).export(tmp_path / "m.onnx")
