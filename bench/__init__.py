"""Measure Outlast beside the raw baseline of the same machine in the same run: ``python -m bench``."""
