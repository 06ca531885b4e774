"""Outlast: AI-agent tasks that survive crashes, restarts and lost answers."""

__all__: list[str] = []
