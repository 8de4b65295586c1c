"""The command line: one function per verb, thin over what it calls."""

from syncline.cli.main import main

__all__ = ["main"]
