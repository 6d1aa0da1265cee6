"""The forms in which data sets are handed round, shared by all sources."""
