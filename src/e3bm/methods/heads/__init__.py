"""The mathematics of heads that several methods share: plain tensors, no settings."""
