"""The command `weft`: each of its commands is a call of Python that `--show-code` prints."""

from weft.cli.main import main

__all__ = ["main"]
