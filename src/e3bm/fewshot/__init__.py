"""The product: a classifier from a few examples, for photos (FewShotClassifier) and features (E3BMClassifier)."""
