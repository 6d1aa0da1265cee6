"""The packed form of a data set on disk, and the cache of features."""
