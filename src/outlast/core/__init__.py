"""Pure rules of Outlast: no I/O, no clock, no randomness, no asyncio, no logging."""
