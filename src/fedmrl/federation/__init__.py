"""A federation: who takes part, what they send, what is averaged, measured and kept."""

from fedmrl.federation.launch import run, run_seeds

__all__ = ["run", "run_seeds"]
