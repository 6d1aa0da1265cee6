"""Values for rivals with one shot, where nothing can be left out: the best on the prior's validation classes.

`python scripts/measure_one_shot.py` prints them; ONE_SHOT in rivals.py holds what it printed.
"""

from typing import Any

import numpy as np
from scipy.special import log_softmax

from classifier_measure.rivals import (
    ONE_SHOT,
    PRIOR_VOTES,
    SCALINGS,
    STRENGTHS,
    SVM_STRENGTHS,
    TEMPERATURES,
    _log_probabilities,
    _margins,
    _path,
    _similarities,
    _votes,
    likelihood,
    placed,
    unit,
)
from e3bm.fewshot.meta.pools import FeaturePool

WAYS, QUERIES = 10, 10


def best_values(pools: list[FeaturePool], tasks: int) -> dict[str, Any]:
    """For each rival the values with the smallest mean loss over tasks, in units of log W."""
    random = np.random.default_rng(5)
    losses: dict[str, dict[Any, list[float]]] = {}
    note = lambda rival, value, logs, truth: (
        losses.setdefault(rival, {}).setdefault(value, []).append(likelihood(logs, truth))
    )
    for pool in pools:
        for _ in range(tasks):
            chosen = random.choice(len(pool.members), WAYS, replace=False)
            drawn = [random.permutation(pool.members[label])[: 1 + QUERIES] for label in chosen]
            support = pool.features[[rows[0] for rows in drawn]].astype(np.float64)
            query = pool.features[np.concatenate([rows[1:] for rows in drawn])].astype(np.float64)
            labels, truth = np.arange(WAYS), np.repeat(np.arange(WAYS), QUERIES)
            for scaling in SCALINGS:
                inside, outside = placed(scaling, support, query)
                for strength, model in _path(inside, labels):
                    note("logistic", (scaling, strength), _log_probabilities(model, outside), truth)
                for strength in SVM_STRENGTHS:
                    margins = _margins(inside, labels, outside, strength)
                    for heat in TEMPERATURES[::3]:
                        note("svm", (scaling, strength, float(heat)), log_softmax(margins / heat, 1), truth)
            for kind in ONE_SHOT["mean"]:
                alike = _similarities(kind, support, labels, query)
                for heat in TEMPERATURES:
                    note(f"mean {kind}", float(heat), log_softmax(alike / heat, 1), truth)
            votes = _votes(unit(query) @ unit(support).T, labels, 1, WAYS)
            for start in PRIOR_VOTES:
                note("neighbours", start, np.log((votes + start) / (votes + start).sum(1, keepdims=True)), truth)
    assert len(losses["logistic"]) == len(SCALINGS) * len(STRENGTHS)
    return {rival: min(found, key=lambda value: np.mean(found[value])) for rival, found in losses.items()}
