"""Which images make up an episode or a minibatch, drawn by address, and their tensors."""
