"""Data sets: read in any public form, packed once, and served as episodes or minibatches."""
