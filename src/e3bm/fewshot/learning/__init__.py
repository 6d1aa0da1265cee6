"""How a classifier is measured and learns on: label files, evaluations and their page, what to label next."""
