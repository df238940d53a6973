"""Measurements against peers, as ratios within one run."""
