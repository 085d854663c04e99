"""Which fedmrl this is, and which numbers it gives."""

__version__ = "0.1.0"
NUMBERS = 3
"""Counted up whenever golden numbers move (0.1.0 had 1): what was measured under another count is measured again."""
