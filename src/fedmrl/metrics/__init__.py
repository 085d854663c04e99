"""Metrics of a run, counted from its actual training."""
