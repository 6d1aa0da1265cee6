"""Schedules, mixing rules and the constraint mode."""

import pytest
import torch

from e3bm.core.context import Basis, Context, Stats
from e3bm.core.hyperprior import CONSTRAINT_MARGIN, FcGenerator, Hyperprior, LstmGenerator
from e3bm.core.schedules import (
    MIXINGS,
    Constant,
    Equal,
    Frozen,
    Generated,
    LastOnly,
    Learned,
    Schedule,
    equal_values,
    last_values,
)
from e3bm.errors import SettingsError

EPOCHS, TASKS, FRACTION = 4, 3, 0.01
SCHEDULES = {
    "constant": (lambda: Constant(0.5), [0.5] * 4, False),
    "equal": (Equal, [0.25] * 4, False),
    "last": (LastOnly, [0.0, 0.0, 0.0, 1.0], False),
    "learned": (lambda: Learned([1.0, 2.0, 3.0, 4.0]), [1.0, 2.0, 3.0, 4.0], True),
    "frozen": (lambda: Frozen([1.0, 2.0, 3.0, 4.0]), [1.0, 2.0, 3.0, 4.0], False),
    "generated": (lambda: Generated([1.0, 2.0, 3.0, 4.0]), [1.0, 2.0, 3.0, 4.0], True),
}


class Unseen:
    """An epoch of which nothing is looked at but the numbers of `stats`."""

    def coefficients(self):
        raise AssertionError

    def squared_norm(self):
        return torch.ones(TASKS)

    def loss(self):
        return torch.ones(TASKS)

    def query_scores(self):
        raise AssertionError


def basis():
    embeddings = torch.ones(TASKS, 2, 5)
    return Basis(lambda: embeddings, lambda: embeddings, lambda: embeddings, torch.ones(TASKS, 2, dtype=torch.bool))


def values(hyperprior, epochs=EPOCHS):
    """Rates and weights [T, M] as the loop would see them."""
    psi, memory, rates, weights = hyperprior.bind(basis(), epochs), None, [], []
    for epoch in range(epochs):
        rate, weight, memory = psi(epoch, psi.see(Unseen()), memory)
        rates.append(rate)
        weights.append(torch.zeros(TASKS) if weight is None else weight)
    return torch.stack(rates, 1), torch.stack(weights, 1)


@pytest.mark.parametrize("name", SCHEDULES)
def test_base_values(name):
    build, expected, trained = SCHEDULES[name]
    schedule = build()
    assert isinstance(schedule, Schedule)
    assert schedule.base(EPOCHS).tolist() == expected
    assert schedule.trained is trained
    assert bool(list(schedule.parameters())) is trained
    assert schedule.generated is (name == "generated")


@pytest.mark.parametrize("name", SCHEDULES)
def test_silence_is_only_where_a_zero_can_never_change(name):
    build, expected, trained = SCHEDULES[name]
    for value, silent in zip(expected, build().silent(EPOCHS), strict=True):
        assert silent is (value == 0.0 and not trained)


def test_a_learned_zero_still_votes():
    assert Learned(last_values(3)).silent(3) == (False, False, False)
    assert Frozen(last_values(3)).silent(3) == (True, True, False)
    assert Constant(0.0).silent(2) == (True, True)


def test_starts():
    assert last_values(3) == [0.0, 0.0, 1.0]
    assert equal_values(4) == [0.25] * 4


@pytest.mark.parametrize("build", [Learned, Frozen, Generated])
def test_a_schedule_of_another_length_is_refused(build):
    with pytest.raises(SettingsError, match="values for 3 epochs but 5 were asked for"):
        build([1.0, 2.0, 3.0]).base(5)
    with pytest.raises(SettingsError, match="at least one epoch"):
        build([])


@pytest.mark.parametrize("kind", ["fc", "lstm"])
@pytest.mark.parametrize("mixing", MIXINGS)
def test_mixing_when_delta_is_zero(mixing, kind):
    psi = (
        FcGenerator(Context(Stats()), EPOCHS, 2, zero_start=True)
        if kind == "fc"
        else LstmGenerator(Context(Stats()), 2)
    )
    hyperprior = Hyperprior(
        Generated([0.1, 0.2, 0.3, 0.4]),
        Generated(last_values(EPOCHS)),
        psi,
        mixing=mixing,
        fractions=(FRACTION, FRACTION),
    )
    of_base = {"residual": 1.0, "scaled": 1.0, "shifted": 1.0, "convex": 1 - FRACTION, "literal": FRACTION}[mixing]
    rates, weights = values(hyperprior)
    torch.testing.assert_close(rates, of_base * hyperprior.rate.values.expand(TASKS, -1))
    torch.testing.assert_close(weights, of_base * hyperprior.weight.values.expand(TASKS, -1))
    if of_base == 1.0:  # exactly, not only nearly
        assert torch.equal(rates, hyperprior.rate.values.expand(TASKS, -1))
        assert torch.equal(weights, hyperprior.weight.values.expand(TASKS, -1))


@pytest.mark.parametrize(
    ("mixing", "rate", "weight"),
    [
        ("residual", 0.1 + FRACTION * 0.5, 0.25 + FRACTION * 0.5),
        ("convex", (1 - FRACTION) * 0.1 + FRACTION * 0.5, (1 - FRACTION) * 0.25 + FRACTION * 0.5),
        ("literal", FRACTION * 0.1 + (1 - FRACTION) * 0.5, FRACTION * 0.25 + (1 - FRACTION) * 0.5),
        ("scaled", 0.1 * 1.6487212707001282, 0.25 * 1.5),
        ("shifted", 0.1 * 1.6487212707001282, 0.25 + 0.5),
    ],
)
def test_mixing_of_a_known_delta(mixing, rate, weight):
    psi = FcGenerator(Context(Stats()), EPOCHS, 2, zero_start=True)
    with torch.no_grad():
        for bias in psi.bias:
            bias.fill_(0.5)
    hyperprior = Hyperprior(
        Generated([0.1] * EPOCHS), Generated([0.25] * EPOCHS), psi, mixing=mixing, fractions=(FRACTION, FRACTION)
    )
    rates, weights = values(hyperprior)
    torch.testing.assert_close(rates, torch.full((TASKS, EPOCHS), rate))
    torch.testing.assert_close(weights, torch.full((TASKS, EPOCHS), weight))


@pytest.mark.parametrize("which", ["rate", "weight"])
def test_one_generated_schedule_leaves_the_other_alone(which):
    psi = FcGenerator(Context(Stats()), EPOCHS, 1)
    generated, fixed = Generated([0.5] * EPOCHS), Constant(0.5)
    hyperprior = Hyperprior(*((generated, fixed) if which == "rate" else (fixed, generated)), psi, mixing="residual")
    rates, weights = values(hyperprior)
    moved, still = (rates, weights) if which == "rate" else (weights, rates)
    assert torch.equal(still, torch.full((TASKS, EPOCHS), 0.5))
    assert float((moved - 0.5).detach().abs().max()) > 0


def test_constraint_mode_clamps_the_value_and_not_its_gradient():
    hyperprior = Hyperprior(Learned([-0.3, 0.0, 0.5, 2.0]), Learned([0.0, 0.0, 0.0, 1.0]), constrained=True)
    rates, weights = values(hyperprior)
    low, high = CONSTRAINT_MARGIN, 1 - CONSTRAINT_MARGIN
    torch.testing.assert_close(rates[0], torch.tensor([low, low, 0.5, high]))
    torch.testing.assert_close(weights[0], torch.tensor([low, low, low, high]))
    (rates.sum() + weights.sum()).backward()
    assert torch.equal(hyperprior.rate.values.grad, torch.full((EPOCHS,), float(TASKS)))
    assert torch.equal(hyperprior.weight.values.grad, torch.full((EPOCHS,), float(TASKS)))


def test_constraint_mode_applies_to_generated_values_and_leaves_fixed_ones():
    psi = FcGenerator(Context(Stats()), EPOCHS, 1, zero_start=True)
    hyperprior = Hyperprior(Generated([3.0] * EPOCHS), LastOnly(), psi, constrained=True)
    rates, weights = values(hyperprior)
    torch.testing.assert_close(rates, torch.full((TASKS, EPOCHS), 1 - CONSTRAINT_MARGIN))
    assert weights[0].tolist() == [0.0, 0.0, 0.0, 1.0]


def test_constraint_mode_is_off_by_default():
    rates, _ = values(Hyperprior(Learned([-1.0, 0.0, 1.0, 2.0]), Equal()))
    assert rates[0].tolist() == [-1.0, 0.0, 1.0, 2.0]


def test_contradictions_are_refused():
    psi = FcGenerator(Context(Stats()), EPOCHS, 1)
    with pytest.raises(SettingsError, match="A generator is needed exactly when"):
        Hyperprior(Generated([0.1]), LastOnly())
    with pytest.raises(SettingsError, match="A generator is needed exactly when"):
        Hyperprior(Constant(0.1), LastOnly(), psi)
    with pytest.raises(SettingsError, match="no mixing rule 'mixed'; known: residual, convex, literal, scaled"):
        Hyperprior(Generated([0.1]), LastOnly(), psi, mixing="mixed")
    with pytest.raises(SettingsError, match="layers for 4 epochs but 2 were asked for"):
        Hyperprior(Generated([0.1, 0.1]), LastOnly(), psi).bind(basis(), 2)
    with pytest.raises(SettingsError, match=r"1 cell\(s\) of size 8 cannot give 2 values; use hidden=2 or a read-out"):
        LstmGenerator(Context(Stats()), 2, readout=False)
