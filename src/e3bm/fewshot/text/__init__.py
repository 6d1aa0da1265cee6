"""Sentences instead of photos: an encoder that pip brings with its weights, and TextClassifier."""
