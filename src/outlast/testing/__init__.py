"""The kit for testing agents, tools and stores built on Outlast."""

from outlast.testing.recorder import Call, Recorder, RecorderError, Rule

__all__ = ["Call", "Recorder", "RecorderError", "Rule"]
