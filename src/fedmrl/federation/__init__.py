"""A federation: who takes part, what they send, what is averaged, measured and kept."""

from fedmrl.federation.launch import run, run_seeds
from fedmrl.federation.summary import Run

__all__ = ["Run", "run", "run_seeds"]
