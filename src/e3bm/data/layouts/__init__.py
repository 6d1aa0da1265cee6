"""The forms in which people have their data: one mechanism a file, shared by all data sets."""
