"""E3BM: few-shot classification by an ensemble of epoch-wise empirical Bayes models."""
