"""The meta-trained prior of few-shot classifiers, and how it adapts to one support set."""
