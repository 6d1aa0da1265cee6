"""From a trained model and a list of episodes to a result."""
