"""The command line: ``outlast``, one file a command group."""
