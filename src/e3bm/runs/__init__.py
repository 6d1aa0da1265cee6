"""One run, from settings to numbers."""
