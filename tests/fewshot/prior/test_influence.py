"""Which labelled photos mattered: the parts add up to the score, exactly."""

import pytest

from photo_models import CLASSES, picture, support, unfitted


@pytest.fixture(scope="module")
def model():
    return unfitted().fit(support())


@pytest.mark.parametrize("name", CLASSES)
def test_parts_add_up_to_the_score_of_the_label(model, name):
    photo = picture(name, 30)
    found = model.influences(photo)
    assert len(found) == sum(model.counts.values())
    fitted = model.fitted.head
    head, temperature = fitted.ensemble, fitted.temperature
    features = model.features(photo)
    scores = (head.scores(head.space(features)) / temperature)[0]
    best = int(scores.argmax())
    constant = (head.bias[best] - head.bias.mean()) / temperature
    total = sum(one.amount for one in found) + float(constant)
    assert total == pytest.approx(float(scores[best] - scores.mean()), rel=1e-9)


def test_a_photo_of_a_class_rests_on_photos_of_that_class(model):
    for name in CLASSES:
        found = model.influences(picture(name, 30))
        assert model.predict(picture(name, 30)).label == name
        assert (found[0].label, found[0].name) == (name, f"{name} #{found[0].number + 1}")
        own = sum(one.amount for one in found if one.label == name)
        assert own > 0
        assert own > max(sum(one.amount for one in found if one.label == other) for other in CLASSES if other != name)


def test_amounts_are_sorted_by_size(model):
    sizes = [abs(one.amount) for one in model.influences(picture("sky", 40))]
    assert sizes == sorted(sizes, reverse=True)
