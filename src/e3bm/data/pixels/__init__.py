"""What is done to pixels between the packed bytes and the model: augmentation and normalisation."""
