"""The files of a run: whole or absent, readable by anyone, resumed bit for bit on the same machine."""
