"""Heads trained by gradient descent in Gram form: nothing of feature size is touched inside the loop."""
