"""A network as a function of its parameters: what methods that adapt a whole network for each task are made of."""
