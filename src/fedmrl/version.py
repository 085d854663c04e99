"""Which fedmrl this is, and which numbers it gives."""

VERSION = "0.1.0"
NUMBERS = 2
"""Counts how often the golden numbers have moved: what was measured under another count is measured again."""
