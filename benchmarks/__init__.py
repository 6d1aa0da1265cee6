"""Measured ratios: each row is a plain reference against this package, both timed in the same run."""
