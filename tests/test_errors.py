"""Lists of names in messages: the first of many, and how many more."""

import pytest

from e3bm.errors import some_of


@pytest.mark.parametrize(
    ("count", "between", "shown"),
    [
        (0, ", ", ""),
        (1, ", ", "n1"),
        (3, ", ", "n1, n2, n3"),
        (4, ", ", "n1, n2, n3 and 1 more"),
        (500, "; ", "n1; n2; n3 and 497 more"),
    ],
)
def test_of_many_names_some_are_shown_and_all_are_counted(count, between, shown):
    assert some_of([f"n{number}" for number in range(1, count + 1)], between=between) == shown
