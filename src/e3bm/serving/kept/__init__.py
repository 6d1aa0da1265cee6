"""The one workspace of a server, and the file that keeps it."""
