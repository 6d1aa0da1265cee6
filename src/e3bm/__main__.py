"""`python -m e3bm` is `e3bm`."""

from e3bm.cli.main import entry

entry()
