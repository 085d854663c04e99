"""FedAvg by Flower's simulation on Ray, with its message API.

    python benchmarks/peers/flower_peer.py --folder FOLDER [--cpus-per-client 1] [--cores 2]    # one line of JSON; see run.py

`run_simulation` is the door to the simulation from Python; Flower calls it deprecated in favour of the command `flwr run`,
which ends in the very same runtime, in a process that a server of its own starts.
"""

import argparse
import os
import time
from collections.abc import Iterable
from importlib.metadata import version
from typing import TYPE_CHECKING

import common
import torch
import torch.nn.functional as F

if TYPE_CHECKING:
    from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp


def client_app(arguments: argparse.Namespace) -> "ClientApp":
    """What a client does: it says which one it is, and trains."""
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp

    folder, threads = arguments.folder, arguments.threads
    app = ClientApp()

    @app.query()
    def who(message: "Message", context: "Context") -> "Message":
        torch.set_num_threads(threads)
        common.read(folder)  # so that each worker has the data before the first round
        client = int(context.node_config["partition-id"])
        return Message(RecordDict({"metrics": MetricRecord({"client": client})}), reply_to=message)

    @app.train()
    def train(message: "Message", context: "Context") -> "Message":
        round_, client = int(message.content["config"]["server-round"]) - 1, int(context.node_config["partition-id"])
        net = common.net()
        net.load_state_dict(message.content["arrays"].to_torch_state_dict())
        optimiser = torch.optim.SGD(net.parameters(), lr=common.LR, fused=True)
        x, y = common.read(folder).samples(round_, client)
        for x_B, y_B in zip(x.split(common.BATCH), y.split(common.BATCH), strict=True):
            optimiser.zero_grad()
            F.cross_entropy(net(x_B), y_B).backward()
            optimiser.step()
        content = {"arrays": ArrayRecord(net.state_dict()), "metrics": MetricRecord({"num-examples": len(y)})}
        return Message(RecordDict(content), reply_to=message)

    return app


def server_app(arguments: argparse.Namespace) -> "ServerApp":
    """Flower's FedAvg, its participants as the common schedule says."""
    from flwr.app import ArrayRecord, Message, MessageType, MetricRecord, RecordDict
    from flwr.serverapp import ServerApp
    from flwr.serverapp.strategy import FedAvg

    schedule_RM = common.read(arguments.folder).schedule_RM
    app = ServerApp()

    class Scheduled(FedAvg):
        """Sends to the nodes of a schedule instead of drawing them."""

        def __init__(self, nodes: dict[int, int]) -> None:
            super().__init__(fraction_evaluate=0.0, train_metrics_aggr_fn=self.count)
            self.nodes = nodes
            self.samples: list[int] = []

        def configure_train(
            self, server_round: int, arrays: "ArrayRecord", config: "ConfigRecord", grid: "Grid"
        ) -> Iterable["Message"]:
            config["server-round"] = server_round
            content = RecordDict({"arrays": arrays, "config": config})
            return [
                Message(content=content, message_type=MessageType.TRAIN, dst_node_id=self.nodes[int(client)])
                for client in schedule_RM[server_round - 1]
            ]

        def count(self, replies: list["RecordDict"], weighted_by: str) -> "MetricRecord":
            self.samples.append(int(sum(reply["metrics"][weighted_by] for reply in replies)))
            return MetricRecord()

    @app.main()
    def main(grid: "Grid", context: "Context") -> None:
        # Every node is asked for its client's number, which also waits until Ray is up and the workers have their data.
        while len(nodes := list(grid.get_node_ids())) < common.CLIENTS:
            time.sleep(0.1)
        asked = [Message(content=RecordDict(), message_type=MessageType.QUERY, dst_node_id=node) for node in nodes]
        replies = grid.send_and_receive(asked)
        strategy = Scheduled({int(reply.content["metrics"]["client"]): reply.metadata.src_node_id for reply in replies})
        stamps: list[float] = []
        result = strategy.start(
            grid=grid,
            initial_arrays=ArrayRecord(common.CNN5().state_dict()),
            num_rounds=arguments.warm_up + arguments.rounds,
            evaluate_fn=lambda server_round, arrays: stamps.append(time.time()),
        )
        common.report(
            arguments,
            result.arrays.to_torch_state_dict(),
            stamps,
            strategy.samples,
            processes=arguments.cores // arguments.cpus_per_client,
            versions={name: version(name) for name in ("flwr", "ray")},
        )

    return app


def main() -> None:
    options = common.parser(__doc__)
    options.add_argument("--cpus-per-client", type=int, default=1, help="what a client reserves, and torch's threads in it")
    options.add_argument("--cores", type=int, default=2, help="cores that Ray may use")
    arguments = options.parse_args()
    arguments.threads = arguments.cpus_per_client
    # Read when the libraries are imported: nothing is sent to anyone, and nothing is left behind in the home folder.
    os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    os.environ["FLWR_HOME"] = str(arguments.folder / "flower")
    from flwr.simulation import run_simulation

    run_simulation(
        server_app=server_app(arguments),
        client_app=client_app(arguments),
        num_supernodes=common.CLIENTS,
        backend_config={
            "init_args": {"num_cpus": arguments.cores},
            "client_resources": {"num_cpus": arguments.cpus_per_client, "num_gpus": 0.0},
        },
    )


if __name__ == "__main__":
    main()
