"""A federation: who takes part, what they send, what is averaged, measured and kept."""

from fedmrl.federation.loop import Run, run, run_seeds

__all__ = ["Run", "run", "run_seeds"]
