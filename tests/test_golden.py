"""Numbers that a later change must not move: each method's run on the tiny federation, in double precision.

`python tests/test_golden.py` writes them anew, for a change that is meant to move them.
"""

import hashlib
import json
from pathlib import Path

import pytest
import torch
from tiny import tiny_recipe

from fedmrl.federation.setup import prepare
from fedmrl.federation.simulation import Simulation
from fedmrl.methods import METHODS
from fedmrl.version import NUMBERS

FOLDER = Path(__file__).parent / "golden"
CASES = {
    "standalone": {},
    "lg-fedavg": {},
    "fd": {"method__gamma": 0.5},
    "fedproto": {},
    "fml": {},
    "fedkd": {},
    "fedapen": {},
    "fedmrl": {},
    "fedmrl-without-mrl": {"method__mrl": False},
    "fedmrl-shared-header": {"method__header": "shared"},
    "fedmrl-mlp": {"method__projector": "mlp", "method__lr_projector": 0.02, "method__m_small": 0.5},
    "fedmrl-augmented": {"training__augment__flip": True, "training__augment__crop": 2, "training__augment__erase": 0.5},
    "fedmrl-dirichlet": {"partition__kind": "dirichlet", "training__weight_decay": 0.01, "training__clip": 0.5},
}


def numbers(case: str) -> dict[str, object]:
    """What a run came to, in a few numbers that depend on all of it."""
    method = next(name for name in sorted(METHODS, key=len, reverse=True) if case.startswith(name))
    torch.set_num_threads(1)
    recipe = tiny_recipe(method, rounds=4, clients=5, participation=0.6, **CASES[case])
    federation = Simulation(recipe, prepare(recipe, torch.device("cpu")), "reference")
    run = federation.run(lambda _: None)
    return {
        "norm_of_server": norms(federation.now.server),
        "norm_of_client_1": norms(federation.states()[1]),
        "loss": [record.loss for record in run.records],
        "participants": [record.participants for record in run.records],
        "accuracy": [record.plain()["accuracy"] for record in run.records],
        "sent": [[record.up.parameters, record.down.parameters] for record in run.records],
        "flops": [record.flops for record in run.records],
        "inference": run.plain()["inference"],
        "clients": [row.accuracy for row in run.clients],
    }


def norms(state):
    # Factors of a singular value decomposition may change sign, and their order where values tie; norms do not.
    return {name: float(torch.linalg.vector_norm(tensor.double())) for name, tensor in state.items()}


def flat(value, path=""):
    if isinstance(value, dict):
        return {k: v for key in value for k, v in flat(value[key], f"{path}.{key}").items()}
    if isinstance(value, list):
        return {k: v for i, item in enumerate(value) for k, v in flat(item, f"{path}[{i}]").items()}
    return {path: value}


@pytest.mark.parametrize("case", CASES)
def test_a_run_gives_the_numbers_it_always_gave(case):
    golden, now = (flat(v) for v in (json.loads((FOLDER / f"{case}.json").read_text()), numbers(case)))
    assert now == pytest.approx(golden, rel=1e-9, abs=1e-12)


DIGESTS = {2: "b1f0c37f89f69ac7", 3: "3013033354592348"}
"""Of the golden files, by `fedmrl.version.NUMBERS`. Numbers that have moved get a new one, so that what was measured before is
measured again; a case that is only added goes under the one there is.
"""


def test_numbers_that_move_are_counted():
    files = b"".join((FOLDER / f"{case}.json").read_bytes() for case in sorted(CASES))
    assert DIGESTS[NUMBERS] == hashlib.sha256(files).hexdigest()[:16], "count them in fedmrl/version.py, and add a digest here"
    assert max(DIGESTS) == NUMBERS
    assert len(set(DIGESTS.values())) == len(DIGESTS)


if __name__ == "__main__":
    for name in CASES:
        (FOLDER / f"{name}.json").write_text(json.dumps(numbers(name), indent=1) + "\n")
