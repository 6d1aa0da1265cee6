"""Few labels in scikit-learn: E3BMClassifier in a Pipeline, beside logistic regression, on ten digits."""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from e3bm import E3BMClassifier

SHOTS, REPEATS = 5, 10


def draw(labels: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Five examples of every digit to learn from, all others to ask about."""
    random = np.random.default_rng(seed)
    chosen = np.concatenate([random.permutation(np.flatnonzero(labels == digit))[:SHOTS] for digit in range(10)])
    return chosen, np.setdiff1d(np.arange(len(labels)), chosen)


def main() -> None:
    features, labels = load_digits(return_X_y=True)
    models = {
        "E3BMClassifier": make_pipeline(StandardScaler(), E3BMClassifier()),
        "logistic regression": make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)),
    }
    for name, model in models.items():
        accuracies, losses = [], []
        for seed in range(REPEATS):
            seen, new = draw(labels, seed)
            model.fit(features[seen], labels[seen])
            accuracies.append(100 * model.score(features[new], labels[new]))
            losses.append(log_loss(labels[new], model.predict_proba(features[new])))
        print(f"{name}: {np.mean(accuracies):.1f} % of new digits right, log loss {np.mean(losses):.2f}")

    seen, _ = draw(labels, 0)
    classifier = models["E3BMClassifier"].fit(features[seen], labels[seen])[-1]
    print("votes of the epochs:", " ".join(f"{vote:.2f}" for vote in classifier.votes_))


if __name__ == "__main__":
    main()
