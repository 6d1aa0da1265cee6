"""Pre-training and meta-training, one run or many."""
