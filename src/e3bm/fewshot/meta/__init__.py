"""How the prior of few-shot classifiers is meta-trained: `e3bm train-prior`."""
