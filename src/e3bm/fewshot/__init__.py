"""A few examples in, a classifier one can trust out: for photos and for features."""
