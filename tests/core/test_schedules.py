"""Schedules, mixing rules and the constraint mode."""

import pytest
import torch

from e3bm.core.context import Basis, ClassMean, Context, Flat, Rms, Stats
from e3bm.core.hyperprior import FcGenerator, Hyperprior, LstmGenerator
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

EPOCHS, TASKS, FRACTION, WAYS = 4, 3, 0.01, 2
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
    low, high = 1e-6, 1 - 1e-6
    close = {"rtol": 1e-2, "atol": 1e-7}  # the margin itself, in float32: 1 - 1e-6 has an error of 6e-8
    torch.testing.assert_close(rates[0], torch.tensor([low, low, 0.5, high]), **close)
    torch.testing.assert_close(weights[0], torch.tensor([low, low, low, high]), **close)
    assert float((1 - rates[0, 3]).detach()) == pytest.approx(1e-6, rel=0.1)
    assert float(rates[0, 0].detach()) == pytest.approx(1e-6, rel=0.1)  # -0.3 and back costs some digits
    (rates.sum() + weights.sum()).backward()
    assert torch.equal(hyperprior.rate.values.grad, torch.full((EPOCHS,), float(TASKS)))
    assert torch.equal(hyperprior.weight.values.grad, torch.full((EPOCHS,), float(TASKS)))


def test_constraint_mode_applies_to_generated_values_and_leaves_fixed_ones():
    psi = FcGenerator(Context(Stats()), EPOCHS, 1, zero_start=True)
    hyperprior = Hyperprior(Generated([3.0] * EPOCHS), LastOnly(), psi, constrained=True)
    rates, weights = values(hyperprior)
    torch.testing.assert_close(rates, torch.full((TASKS, EPOCHS), 1 - 1e-6))
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


def test_fc_starts_with_kaimings_range_over_its_inputs():
    """A standard deviation of sqrt(2 / inputs), biases at zero: 20,000 numbers tell it to a few percent."""
    for inputs in (200, 800):
        torch.manual_seed(0)
        psi = FcGenerator(Context(ClassMean(inputs)), 20_000 // inputs, 1)
        assert float(psi.weight[0].detach().std()) == pytest.approx((2 / inputs) ** 0.5, rel=0.05)
        assert abs(float(psi.weight[0].detach().mean())) < 0.05 * (2 / inputs) ** 0.5
        assert not psi.bias[0].detach().any()


@pytest.mark.parametrize(("inputs", "hidden"), [(100, 25), (25, 100)])
def test_an_lstm_starts_within_one_over_the_root_of_what_it_reads(inputs, hidden):
    """Uniform numbers reach nearly to their bounds; the read-out and the biases start at zero."""
    torch.manual_seed(0)
    psi = LstmGenerator(Context(ClassMean(inputs)), 2, hidden=hidden, separate=True)
    for part, size in ((psi.input_weight, inputs), (psi.hidden_weight, hidden)):
        for cell in part:
            bound = size**-0.5
            assert 0.98 * bound < float(cell.detach().max()) <= bound
            assert -bound <= float(cell.detach().min()) < -0.98 * bound
            assert float(cell.detach().std()) == pytest.approx(bound / 3**0.5, rel=0.05)
    for part in (psi.input_bias, psi.hidden_bias, psi.readout):
        assert not any(cell.detach().any() for cell in part)


class Features:
    """An epoch all of whose numbers depend on the features of a task."""

    def __init__(self, features):
        self.features = features

    def coefficients(self):
        return self.features[..., :WAYS].square()

    def squared_norm(self):
        return self.features.square().sum((1, 2))

    def loss(self):
        return self.features.square().mean((1, 2))

    def query_scores(self):
        return self.features[..., :WAYS]


SUMMARIES = {"stats": Stats(True), "class mean": ClassMean(5), "flat": Flat(5, WAYS), "rms": Rms(5)}


@pytest.mark.parametrize("detach", [False, True])
@pytest.mark.parametrize("embedding", [0, 5])
@pytest.mark.parametrize("summary", SUMMARIES)
def test_with_detach_no_gradient_reaches_the_features_by_any_way(summary, embedding, detach):
    """By embeddings, by what is fixed for a task and by what changes with its epochs; the rows learn all the same."""
    features = torch.rand(TASKS, 2, 5, requires_grad=True)
    seen = Basis(lambda: features, lambda: features, lambda: features, torch.ones(TASKS, 2, dtype=torch.bool))
    context = Context(SUMMARIES[summary], embedding, transductive=True, detach=detach)
    rows = torch.ones(1, 1, context.size, requires_grad=True)
    reading = context.bind(seen, rows, torch.zeros(1, 1))
    value = reading.value(0, reading.see(Features(features))).sum()
    found, learned = torch.autograd.grad(value, [features, rows], allow_unused=True)
    assert (found is None or not found.any()) is detach
    assert learned.abs().max() > 0


@pytest.mark.parametrize("summary", SUMMARIES)
def test_a_summary_alone_keeps_gradients_from_what_it_shows_of_the_gradient(summary):
    """Its own promise, whoever binds it: the vectors of the task are the basis's to cut."""
    features = torch.rand(TASKS, 2, 5, requires_grad=True)
    constant = features.detach
    shown = Basis(constant, lambda: features, lambda: features, torch.ones(TASKS, 2, dtype=torch.bool))
    for detach in (False, True):
        rows = torch.ones(1, 1, SUMMARIES[summary].size)
        reading = SUMMARIES[summary].bind(shown, rows, torch.zeros(1, TASKS, 1), detach)
        assert reading.value(0, reading.see(Features(features))).requires_grad is not detach


def test_stats_cuts_what_is_fixed_for_a_task():
    features = torch.rand(TASKS, 2, 5, requires_grad=True)
    embeddings = lambda: features
    seen = Basis(None, embeddings, embeddings, torch.ones(TASKS, 2, dtype=torch.bool))
    for detach in (False, True):
        reading = Stats().bind(seen, torch.ones(1, 1, 4), torch.zeros(1, TASKS, 1), detach)
        assert reading.value(0, reading.see(Features(features.detach()))).requires_grad is not detach
