"""Classifiers that threads share while they are fitted anew, and processes forked from one that has computed."""

import subprocess
import sys
import threading

import numpy as np
import pytest
from torch import nn

from e3bm import E3BMClassifier, FewShotClassifier

ROUNDS = 6


def blobs(classes: int, features: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), 3)
    return random.normal(size=(classes, features))[labels] + 0.1 * random.normal(size=(len(labels), features)), labels


def predict_while(refit, ask) -> list[BaseException]:
    """Ask on two threads while this one fits again and again; gives what went wrong."""
    problems: list[BaseException] = []
    stop = threading.Event()

    def keep_asking() -> None:
        while not stop.is_set():
            try:
                ask()
            except BaseException as error:
                problems.append(error)
                return

    threads = [threading.Thread(target=keep_asking) for _ in range(2)]
    for thread in threads:
        thread.start()
    for number in range(ROUNDS):
        refit(number)
    stop.set()
    for thread in threads:
        thread.join()
    return problems


def test_an_estimator_never_shows_two_fits_at_once():
    small, large = blobs(3, 8, 0), blobs(7, 8, 1)
    model = E3BMClassifier().fit(*small)

    def ask() -> None:
        found = model.details(small[0])
        assert set(found["label"]) <= set(range(found["probabilities"].shape[1]))
        model.predict(small[0])
        model.predict_proba(small[0])

    assert predict_while(lambda number: model.fit(*(large if number % 2 else small)), ask) == []


def test_an_estimator_refuses_rows_of_another_width_and_mixes_nothing():
    narrow, wide = blobs(3, 4, 0), blobs(3, 9, 1)
    model = E3BMClassifier().fit(*narrow)

    def ask() -> None:
        try:
            model.predict_proba(narrow[0])
        except ValueError as error:
            assert "X has 4 features, but E3BMClassifier is expecting 9 features" in str(error)  # noqa: PT017

    assert predict_while(lambda number: model.fit(*(wide if number % 2 else narrow)), ask) == []


def test_a_fit_that_fails_leaves_the_estimator_as_it_was():
    rows, labels = blobs(3, 4, 0)
    model = E3BMClassifier().fit(rows, labels)
    before = model.predict_proba(rows)
    with pytest.raises(ValueError, match="at least 2 classes"):
        model.fit(rows[:, :2], np.zeros(len(rows)))
    np.testing.assert_array_equal(model.predict_proba(rows), before)


def test_a_classifier_of_photos_never_shows_two_fits_at_once():
    model = FewShotClassifier(nn.Sequential(nn.AvgPool2d(4), nn.Flatten()), pipeline="resize 8, normalise none")
    random = np.random.default_rng(0)
    photos = {str(name): [random.integers(0, 256, (8, 8, 3), dtype=np.uint8) for _ in range(2)] for name in range(6)}
    few = {name: photos[name] for name in ("0", "1")}
    model.fit(few)
    asked = [some[0] for some in photos.values()]

    def ask() -> None:
        assert model.predict_proba(asked).shape[1] in (2, 6)
        assert len(model.counts) in (2, 6)

    assert predict_while(lambda number: model.fit(few if number % 2 else photos), ask) == []


FORKED = """
import os, sys
import numpy as np, torch
torch.set_num_threads(2)
from e3bm import E3BMClassifier
random = np.random.default_rng(0)
rows, labels = random.normal(size=(60, 900)), np.arange(60) % 6
model = E3BMClassifier().fit(rows, labels)
large = torch.randn(1500, 1500)
(large @ large).sum()
expected = model.predict_proba(rows)
child = os.fork()
if child == 0:
    (large @ large).sum()
    again = E3BMClassifier().fit(rows, labels)
    close = all(np.allclose(one.predict_proba(rows), expected, atol=1e-8) for one in (model, again))
    os._exit(0 if close and torch.get_num_threads() == 1 else 3)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no fork")
def test_a_process_forked_after_use_on_two_threads_works():
    # A process of its own: this one's threads are not to be touched. A child that hangs ends with the test's patience.
    done = subprocess.run(
        [sys.executable, "-c", FORKED], capture_output=True, text=True, check=False, timeout=300, start_new_session=True
    )
    assert done.returncode == 0, done.stderr
