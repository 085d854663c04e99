"""A federated run: server, clients, rounds, checkpoints and the run's folder."""

from fedmrl.federation.launch import run, run_seeds

__all__ = ["run", "run_seeds"]
