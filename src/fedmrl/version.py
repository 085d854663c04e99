"""The version of fedmrl, and of its numerical results."""

__version__ = "0.1.0"
NUMBERS = 3
"""Increased whenever golden numbers change (0.1.0 had 1); `fedmrl reproduce` repeats results of other values."""
