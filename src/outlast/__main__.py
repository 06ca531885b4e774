"""``python -m outlast``: the command line."""

from outlast.cli.main import main

main()
