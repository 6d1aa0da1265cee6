"""From which odds on a label is doubted: the least limit that few right labels exceed in every cell of tuning data.

Odds depend on features and labels alone, not on a prior, so that no head is fitted.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from classifier_measure.episodes import Episode, episodes
from classifier_measure.tables import Table
from e3bm.fewshot.prior.head_arrays import unit_rows
from e3bm.fewshot.prior.shipped import PHOTOS, PIXELS
from e3bm.fewshot.trust import log_odds_against

FALSE_ALARMS = {PHOTOS: 0.03, PIXELS: 0.05}
"""The share of right labels that may be doubted in any cell; small pictures as they are look more alike."""
WAYS, SHOTS, SETS = (2, 5, 10, 20), (3, 5, 10), 200


def fit_limit(kind: str, tables: Sequence[Table], former: float) -> tuple[float, dict[str, Any]]:
    """The limit of a kind of features, and what it and the former one find in every cell of the tables."""
    odds = {cell: right_and_planted(*cell) for table in tables for cell in cells_of(table)}
    limit = max(float(np.quantile(right, 1 - FALSE_ALARMS[kind])) for right, _ in odds.values())
    rows = [
        {
            "data": table.about,
            "ways": ways,
            "shots": shots,
            "right_labels_pointed_out": shares(right, former, limit),
            "found_wrong_label": shares(planted, former, limit),
        }
        for (table, ways, shots), (right, planted) in odds.items()
    ]
    return limit, {"former": former, "limit": limit, "sets": SETS, "false_alarms": FALSE_ALARMS[kind], "cells": rows}


Cell = tuple[Table, int, int]


def cells_of(table: Table) -> Iterator[Cell]:
    """Numbers of ways and shots for which the table has enough classes."""
    for ways in WAYS:
        if ways <= len(np.unique(table.labels)):
            for shots in SHOTS:
                yield table, ways, shots


def right_and_planted(table: Table, ways: int, shots: int) -> tuple[np.ndarray, np.ndarray]:
    """The log odds against all labels of support sets without a wrong one, and against one that is made wrong."""
    right, wrong = [], []
    for number, episode in enumerate(episodes(table, ways, shots, SETS)):
        planted, place = episode.with_wrong_label(number)
        right.append(odds_of(table, episode))
        wrong.append(odds_of(table, planted)[place])
    return np.concatenate(right), np.array(wrong)


def odds_of(table: Table, episode: Episode) -> np.ndarray:
    """The log odds against the labels of a support set."""
    found: np.ndarray = log_odds_against(*placed(table, episode), int(episode.support_labels.max()) + 1)[0].numpy()
    return found


def placed(table: Table, episode: Episode) -> tuple[Tensor, Tensor]:
    """What labels are judged by; the support space of a fit has another origin and unit, which do not matter."""
    return torch.from_numpy(unit_rows(table.features[episode.support])), torch.from_numpy(episode.support_labels)


def shares(odds: np.ndarray, *limits: float) -> list[float]:
    """Per cent of the odds above each limit."""
    return [round(100 * float((odds > limit).mean()), 2) for limit in limits]
