"""``python -m outlast``: the command line, where the script is not on the path."""

from outlast.cli.main import main

if __name__ == "__main__":
    main()
