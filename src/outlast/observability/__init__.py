"""Subscribers of the telemetry catalogue; nothing below this room imports their libraries."""
