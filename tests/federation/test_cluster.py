"""Clients on a Ray cluster: two nodes on this machine, of one CPU each."""

import importlib.util
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tiny import ALL_METHODS, tiny_recipe
from torch import nn

import fedmrl
from fedmrl.errors import InterruptedRun, UserError
from fedmrl.federation.cluster import ClusterClients
from fedmrl.federation.hosts import Hosts
from fedmrl.federation.server import Federation
from fedmrl.federation.setup import prepare, schedule
from fedmrl.messages import size

pytestmark = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed; make test-ray does it")
SMALL_STORE = 80 * 1024**2
CPU = torch.device("cpu")
EXAMPLE = Path(__file__).parents[2] / "examples" / "own.toml"


@pytest.fixture(scope="module")
def cluster() -> Iterator[object]:
    import ray
    from ray.cluster_utils import Cluster

    ray.shutdown()  # another module's
    nodes = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": SMALL_STORE, "include_dashboard": False}
    )
    nodes.add_node(num_cpus=1, object_store_memory=SMALL_STORE)
    os.environ["RAY_ADDRESS"] = nodes.address
    yield nodes
    del os.environ["RAY_ADDRESS"]
    ray.shutdown()
    nodes.shutdown()


class OnCluster:
    """A run on the cluster whose processes a test can kill."""

    def __init__(self, recipe, store="auto"):
        setting = prepare(recipe, CPU)
        self.notices = []
        self.hosts = Hosts([setting], [], store, self.notices.append)
        self.hosts.hold([0])
        self.clients = ClusterClients([setting], self.hosts, [None])
        self.run = Federation(recipe, setting.terms, self.clients, schedule(recipe))

    def kill_one(self):
        import ray

        ray.kill(self.hosts.alive()[0].actor)

    def kill_one_in_the_next_call(self):
        """After the work was sent, and before its answer is fetched."""
        answer, first = self.hosts.answer, [True]

        def killing(host, ref):
            if first.pop() if first else False:
                import ray

                ray.kill(host.actor)
            return answer(host, ref)

        self.hosts.answer = killing

    def close(self):
        self.clients.close()
        self.hosts.close()


@pytest.fixture
def on_cluster(cluster):
    made = []

    def make(recipe, **options):
        made.append(OnCluster(recipe, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def numbers(result):
    """Everything of a result but times and places."""
    records = [record.model_dump(exclude={"seconds"}) for record in result.records]
    return records, result.states_sha256, result.accuracy, result.inference, result.flops, result.communication


def stop_after(rounds):
    def on_round(record):
        if record.round == rounds:
            raise KeyboardInterrupt

    return on_round


@pytest.mark.parametrize("method", ALL_METHODS)
def test_numbers_equal_the_reference_engines(cluster, method):
    recipe, notices = tiny_recipe(method, rounds=2, training__precision="fp32"), []
    ours = fedmrl.run(recipe, engine="ray", on_notice=notices.append)
    assert numbers(ours) == numbers(fedmrl.run(recipe, engine="reference"))
    assert ours.engine == "ray" and "2 processes of Ray on 2 nodes" in ours.device
    assert notices[0].startswith("Ray: 2 processes on 2 nodes (1 on ")


def test_several_seeds_on_a_cluster_have_the_numbers_of_the_reference_engine(cluster):
    recipe = tiny_recipe(rounds=2)
    ours, reference = (fedmrl.run_seeds(recipe, [0, 5], engine=engine) for engine in ("ray", "reference"))
    assert [numbers(one) for one in ours] == [numbers(one) for one in reference]


@pytest.mark.parametrize("engines", [("ray", "reference"), ("reference", "ray")])
def test_a_run_goes_on_with_the_other_engine(cluster, tmp_path, engines):
    recipe = tiny_recipe(rounds=3)
    with pytest.raises(InterruptedRun):
        fedmrl.run(recipe, out=tmp_path / "run", engine=engines[0], on_round=stop_after(2))
    ended = fedmrl.run(recipe, out=tmp_path / "run", engine=engines[1], resume=True)
    assert numbers(ended) == numbers(fedmrl.run(recipe, engine="reference"))
    assert ended.engine == ", then ".join(engines)


def test_states_do_not_travel_and_a_message_to_all_is_sent_once(on_cluster):
    fed = on_cluster(tiny_recipe("fedmrl", rounds=3))
    for _ in range(3):
        fed.run.commit(fed.run.next_round())
    assert fed.clients.moved["states"] == 0
    assert fed.clients.moved["contents"] == 4 * size(fed.run.now.server).bytes  # the first one, and after each round
    assert fed.clients.moved["uploads"] == sum(record.up.bytes for record in fed.run.now.records)


@pytest.mark.parametrize("when", ["between rounds", "in a round"])
def test_a_lost_process_does_not_change_the_end(on_cluster, when):
    recipe = tiny_recipe("fedmrl", rounds=4, participation=1.0)
    fed = on_cluster(recipe)
    for _ in range(2):
        fed.run.commit(fed.run.next_round())
    fed.kill_one() if when == "between rounds" else fed.kill_one_in_the_next_call()
    assert numbers(fed.run.run()) == numbers(fedmrl.run(recipe, engine="reference"))
    (notice,) = fed.notices
    assert "is lost" in notice and "its 2 clients go on in others" in notice


def test_a_lost_process_goes_on_from_the_checkpoint_and_the_turns_since(on_cluster, tmp_path):
    recipe = tiny_recipe("fedproto", rounds=4, participation=1.0)
    fed = on_cluster(recipe)
    for number in range(3):
        fed.run.commit(fed.run.next_round())
        if number == 0:
            fed.clients.save(0, fed.run.now.last_round, tmp_path)
    before = dict(fed.clients.moved)
    fed.kill_one()
    assert numbers(fed.run.run()) == numbers(fedmrl.run(recipe, engine="reference"))
    assert fed.clients.moved["states"] > before["states"]


def test_a_recipe_with_imports_and_models_from_python_run_on_the_cluster(cluster):
    recipe = fedmrl.load_recipe(EXAMPLE, {"rounds": 1, "clients": 4, "participation": 0.5, "training.epochs": 1})
    assert numbers(fedmrl.run(recipe, engine="ray")) == numbers(fedmrl.run(recipe, engine="reference"))
    own = [own_model("with-dropout")] * 4
    ours, reference = (fedmrl.run(tiny_recipe(rounds=1), models=own, engine=engine) for engine in ("ray", "reference"))
    assert numbers(ours) == numbers(reference)


def own_model(name, kept=None):
    """Its function is a local one, so that nodes need not have this file."""

    def build():
        assert kept is None or kept.locked() is False
        return nn.Sequential(nn.Flatten(), nn.Linear(256, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 4))

    return fedmrl.OwnModel(name, build, last="4")


def test_what_cannot_be_sent_to_other_processes_is_refused_before_anything_is_written(cluster, tmp_path):
    own = [own_model("locked", threading.Lock())] * 4
    with pytest.raises(
        UserError, match=r"cannot be sent to other processes \(TypeError: cannot pickle '_thread.lock' object\)"
    ):
        fedmrl.run(tiny_recipe(), models=own, engine="ray", out=tmp_path / "run")
    assert not list(tmp_path.iterdir())


# ---- slow: whole nodes, drivers, threads ----


@pytest.mark.slow_ray
@pytest.mark.parametrize("method", ["fedmrl", "fedkd", "fd"])
def test_a_lost_node_does_not_change_the_end(cluster, on_cluster, method):
    recipe = tiny_recipe(method, rounds=6, participation=1.0, training__epochs=10)
    fed = on_cluster(recipe)
    node = cluster.worker_nodes.copy().pop()
    try:
        fed.run.commit(fed.run.next_round())
        killing = threading.Timer(0.2, cluster.remove_node, [node], {"allow_graceful": False})
        killing.start()
        result = fed.run.run()
        killing.join()
    finally:
        cluster.add_node(num_cpus=1, object_store_memory=SMALL_STORE)
    assert fed.notices and "is lost" in fed.notices[0]
    assert numbers(result) == numbers(fedmrl.run(recipe, engine="reference"))


@pytest.mark.slow_ray
def test_a_killed_driver_is_resumed(cluster, tmp_path):
    recipe = tiny_recipe(rounds=60)
    (tmp_path / "recipe.toml").write_text(recipe.to_toml())
    folder = tmp_path / "run"
    command = [sys.executable, "-m", "fedmrl", "run", str(tmp_path / "recipe.toml"), "--out", str(folder), "--engine", "ray"]
    log = folder / "rounds.jsonl"
    import ray

    ray.shutdown()  # its processes hold the CPUs
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        until = time.monotonic() + 180
        while not (log.exists() and log.read_bytes().count(b"\n") >= 3) and time.monotonic() < until:
            assert process.poll() is None
            time.sleep(0.02)
        process.kill()
    assert not (folder / "summary.json").exists(), "it was killed in the middle"
    ended = fedmrl.run(recipe, out=folder, engine="ray", resume=True)
    assert numbers(ended) == numbers(fedmrl.run(recipe, engine="reference"))


@pytest.mark.slow_ray
def test_a_stopped_command_keeps_its_round(cluster, tmp_path):
    (tmp_path / "recipe.toml").write_text(tiny_recipe(rounds=500).to_toml())
    folder = tmp_path / "run"
    command = [sys.executable, "-m", "fedmrl", "run", str(tmp_path / "recipe.toml"), "--out", str(folder), "--engine", "ray"]
    import ray

    ray.shutdown()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        log, until = folder / "rounds.jsonl", time.monotonic() + 180
        while not (log.exists() and log.stat().st_size) and time.monotonic() < until:
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=120)
    assert process.returncode == 130 and "which is kept; go on with" in said and "--engine ray" in said


@pytest.mark.slow_ray
def test_a_client_alone_in_its_round_has_the_threads_that_the_reference_engine_gives_it(cluster):
    """Its numbers depend on them, with the paper's CNNs."""
    settings = {"rounds": 1, "clients": 10, "participation": 0.1, "training.epochs": 1, "method.d1": 100}
    recipe = fedmrl.load_recipe("quickstart", settings)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        ours, reference = (fedmrl.run(recipe, engine=engine) for engine in ("ray", "reference"))
        torch.set_num_threads(1)
        assert fedmrl.run(recipe, engine="reference").states_sha256 != reference.states_sha256
    finally:
        torch.set_num_threads(threads)
    assert numbers(ours) == numbers(reference)


@pytest.mark.slow_ray
def test_states_on_nodes_disks_give_the_same_numbers(cluster, tmp_path: Path):
    recipe = tiny_recipe(rounds=2)
    ours = fedmrl.run(recipe, out=tmp_path / "run", engine="ray", store="disk")
    assert ours.store == "disk"
    assert numbers(ours) == numbers(fedmrl.run(recipe, engine="reference"))
