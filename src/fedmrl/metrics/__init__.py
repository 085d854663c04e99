"""What is measured of a run, from what really happened in it."""
