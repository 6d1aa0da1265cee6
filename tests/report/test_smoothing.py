import pytest

from e3bm.report.training_figures import chosen_epochs, smooth, thin


def test_smoothing_is_a_weighted_mean_that_forgets_by_the_factor():
    assert smooth([1.0, 2.0, 4.0]) == pytest.approx(
        [1.0, (0.9 * 1 + 2) / 1.9, (0.81 * 1 + 0.9 * 2 + 4) / 2.71], abs=1e-12
    )


def test_a_constant_stays_what_it_is_from_the_first_value_on():
    assert smooth([7.0] * 30) == pytest.approx([7.0] * 30, abs=1e-12)
    assert smooth([]) == []


def test_thinning_keeps_the_last_point_and_the_order():
    points = [(float(step), 0.0) for step in range(1234)]
    thinned = thin(points, most=100)
    assert len(thinned) <= 100
    assert thinned[-1] == points[-1]
    assert thinned == sorted(thinned)
    assert thin(points[:5]) == points[:5]
    assert thin([]) == []


@pytest.mark.parametrize(
    ("epochs", "chosen"),
    [(100, [1, 25, 50, 75, 100]), (20, [1, 5, 10, 15, 20]), (3, [1, 2, 3]), (1, [1]), (6, [1, 2, 3, 4, 6])],
)
def test_chosen_epochs_are_the_papers_or_spread_alike(epochs: int, chosen: list[int]):
    assert chosen_epochs(epochs) == chosen
