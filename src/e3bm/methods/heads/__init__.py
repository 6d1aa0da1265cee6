"""Heads that methods share: trained by gradient descent in Gram form, solved in their dual, or moved in rounds."""
