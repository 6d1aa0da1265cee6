"""Names and what they stand for."""

import pytest

from e3bm.errors import SettingsError
from e3bm.registry import Registry


@pytest.fixture
def letters():
    found = Registry("letters")
    found.register("alpha")(1)
    found.register("beta")(2)
    return found


def test_entries_are_found_by_name(letters):
    assert letters["alpha"] == 1
    assert "beta" in letters
    assert "gamma" not in letters
    assert list(letters) == ["alpha", "beta"]


def test_register_gives_back_what_it_was_given():
    def made():
        return 3

    assert Registry("letters").register("gamma")(made) is made


def test_an_unknown_name_is_answered_with_the_known_ones(letters):
    with pytest.raises(SettingsError, match=r"letter named 'omega'; known: alpha, beta\.$"):
        letters["omega"]


def test_a_slip_of_the_hand_is_answered_with_a_guess(letters):
    with pytest.raises(SettingsError, match=r"Did you mean 'alpha'\?"):
        letters["alhpa"]


def test_a_name_is_given_once(letters):
    with pytest.raises(SettingsError, match="letter 'alpha' is registered twice; choose another name"):
        letters.register("alpha")(3)


class Point:
    """An entry point of another package."""

    def __init__(self, name, entry):
        self.name, self.entry, self.loads = name, entry, 0

    def load(self):
        self.loads += 1
        return self.entry


def test_other_packages_extend_it(monkeypatch, letters):
    points = {"e3bm.letters": [Point("delta", 4), Point("alpha", 99)]}
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: points[group])
    assert letters["delta"] == 4
    assert letters["alpha"] == 1  # our own names cannot be taken over
    assert list(letters) == ["alpha", "beta", "delta"]
    assert points["e3bm.letters"][0].loads == 1  # and nobody is asked twice


def test_methods_are_registered_by_importing_them():
    from e3bm.methods import METHODS, Maml, Mtl, Sib

    assert (METHODS["maml"], METHODS["mtl"], METHODS["sib"]) == (Maml, Mtl, Sib)
    with pytest.raises(SettingsError, match=r"Did you mean 'maml'\?"):
        METHODS["mamal"]
