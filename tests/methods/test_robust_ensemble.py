"""Robust ensembles: limits of the losses, who learns when, what is drawn, and a small training."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from e3bm.backbones import build, commit_statistics, pop_statistics
from e3bm.backbones.encode import TaskEncoder
from e3bm.core.episode import TaskBatch
from e3bm.errors import DataError, SettingsError
from e3bm.methods import Parts, ReadyFeatures
from e3bm.methods.robust_ensemble import (
    RobustEnsemble,
    RobustEnsembleSettings,
    cooperation,
    distillation_loss,
    diversity,
    mean_prediction,
    other_classes,
    redrawn,
)

CLASSES, SIDE = 6, 16


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def close(found, expected, within=1e-12):
    torch.testing.assert_close(found, expected, rtol=within, atol=within)


def opinions(networks=3, examples=4, classes=CLASSES):
    logits = torch.randn(networks, examples, classes, dtype=torch.float64)
    return logits, torch.randint(classes, (examples,))


def model(networks=3, *, student=True, batchnorm="running", **options):
    make = lambda seed: TaskEncoder(redrawn(build("conv4", width=0.25, channels=1, image_size=SIDE), seed), batchnorm)
    students = make(100) if student else None
    return RobustEnsemble([make(seed) for seed in range(networks)], students, classes=CLASSES, **options).double()


def images(tasks=2, examples=6):
    pictures = torch.randn(tasks, examples, 1, SIDE, SIDE, dtype=torch.float64)
    return pictures, torch.randint(CLASSES, (tasks, examples))


def test_the_true_class_is_left_out():
    logits, labels = opinions(classes=3)
    for number, label in enumerate(labels):
        kept = [way for way in range(3) if way != label]
        close(other_classes(logits, labels)[:, number], logits[:, number, kept], within=0)


@pytest.mark.parametrize("relation", [cooperation, diversity])
def test_relations_do_not_know_the_true_class_nor_the_order_of_networks(relation):
    logits, labels = opinions()
    before = relation(logits, labels)
    close(relation(logits.flip(0), labels), before)
    moved = logits.clone()
    moved[:, torch.arange(4), labels] += 5.0
    close(relation(moved, labels), before, within=0)


@pytest.mark.parametrize("relation", [cooperation, diversity])
def test_one_network_has_no_relation(relation):
    logits, labels = opinions(networks=1)
    assert relation(logits.requires_grad_(), labels) == 0


def test_relations_of_networks_that_agree_and_of_networks_that_do_not():
    logits, labels = opinions(networks=1)
    same = logits.expand(3, -1, -1)
    assert cooperation(same, labels) == 0
    close(diversity(same, labels), torch.tensor(1.0, dtype=torch.float64))
    apart = torch.full((2, 1, 4), -1e4, dtype=torch.float64)
    apart[0, 0, 1] = apart[1, 0, 2] = 1e4
    assert diversity(apart, torch.tensor([0]), 1.0) < 1e-15
    assert cooperation(apart, torch.tensor([0])) > 1e4


@pytest.mark.parametrize("relation", [cooperation, diversity])
def test_relations_are_means_over_pairs_written_out(relation):
    logits, labels = opinions()
    values = []
    for one in range(3):
        for other in range(3):
            for example in range(4):
                if one == other:
                    continue
                p, q = ((other_classes(logits, labels)[network, example] / 2).softmax(-1) for network in (one, other))
                if relation is cooperation:
                    values.append(((p * (p / q).log()).sum() + (q * (q / p).log()).sum()) / 2)
                else:
                    values.append(functional.cosine_similarity(p, q, dim=0))
    close(relation(logits, labels, 2.0), torch.stack(values).mean(), within=1e-11)


@pytest.mark.parametrize("relation", [cooperation, diversity])
def test_derivatives_of_relations(relation):
    logits, labels = opinions(examples=2, classes=4)
    assert torch.autograd.gradcheck(lambda values: relation(values, labels), (logits.requires_grad_(),))


def test_limits_of_distillation():
    teachers, labels = opinions()
    student = torch.randn(4, CLASSES, dtype=torch.float64, requires_grad=True)
    close(distillation_loss(student, teachers, labels, share=0.0), functional.cross_entropy(student, labels))
    assert torch.autograd.gradcheck(lambda values: distillation_loss(values, teachers, labels), (student,))
    (gradient,) = torch.autograd.grad(distillation_loss(student, student[None].detach(), labels, share=1.0), student)
    assert gradient.abs().max() < 1e-14
    (gradient,) = torch.autograd.grad(distillation_loss(student, teachers, labels, share=1.0, temperature=1e5), student)
    centred = lambda logits: logits - logits.mean(-1, keepdim=True)
    expected = centred(student.detach()) - centred(teachers.mean(0))
    close(gradient, expected / CLASSES / 4, within=1e-4)  # what is left falls with 1/T


def test_the_mean_prediction_of_equal_networks_is_that_of_one():
    scores = torch.randn(2, 3, 4, dtype=torch.float64)
    close(mean_prediction(scores.expand(5, -1, -1, -1)), scores.log_softmax(-1))


def test_one_independent_network_is_plain_classification():
    ensemble = model(1, relation="independent")
    pictures, labels = images()
    network = ensemble.networks[0]
    expected = functional.cross_entropy(network.head(network.encoder(pictures)).flatten(0, 1), labels.flatten())
    assert torch.equal(ensemble.classification_loss(pictures, labels, 0.0), expected)


def test_the_ensemble_loss_is_the_mean_cross_entropy_and_the_relation():
    ensemble = model(3, relation="cooperation", coefficient=4.0, temperature=2.0)
    pictures, labels = images()
    logits = torch.stack([network(pictures) for network in ensemble.networks])
    each = torch.stack([functional.cross_entropy(one, labels.flatten()) for one in logits]).mean()
    expected = each + 4.0 * cooperation(logits, labels.flatten(), 2.0)
    close(ensemble.classification_loss(pictures, labels, 0.0), expected)


def test_first_the_networks_learn_and_then_the_student():
    ensemble = model(2, participation=1.0, distil_from=0.5)
    pictures, labels = images()
    for progress, learner, other in ((0.0, "networks.", "student."), (0.5, "student.", "networks.")):
        ensemble.zero_grad(set_to_none=True)
        ensemble.classification_loss(pictures, labels, progress).backward()
        for name, parameter in ensemble.named_parameters():
            assert (parameter.grad is not None) == name.startswith(learner), name
            assert name.startswith((learner, other))


def numbered(images_and_classes, mask=None):
    """Half of the images of each task as support, half as queries; ways do not matter to the loss."""
    pictures, classes = images_and_classes
    half = pictures.shape[1] // 2
    labels = torch.arange(half).expand(len(pictures), -1) % 2
    return TaskBatch(
        pictures[:, :half], labels, pictures[:, half:], labels, 2, mask, classes[:, :half], classes[:, half:]
    )


def test_it_trains_on_all_images_of_its_tasks_and_nothing_is_learned_from_the_scores():
    ensemble, drawn = model(2), images()
    batch = numbered(drawn)
    trace = ensemble(batch)
    assert not trace.scores.requires_grad
    for progress in (0.1, 0.9):
        found = ensemble.training_loss(trace, batch, progress)
        assert torch.equal(found, ensemble.classification_loss(*drawn, progress))


def test_with_uneven_shots_the_training_loss_is_the_mean_over_tasks():
    ensemble = model(2, participation=1.0)
    batch = numbered(images(), torch.tensor([[True, True, True], [True, True, False]]))
    for progress in (0.1, 0.9):
        parts = (batch.tasks(0, 1), batch.tasks(1, 2))
        alone = [ensemble.training_loss(ensemble(part), part, progress) for part in parts]
        close(ensemble.training_loss(ensemble(batch), batch, progress), torch.stack(alone).mean())


def test_whoever_rests_stays_as_it_is_whatever_the_optimiser_does():
    """Momentum and decay move parameters whose gradient is zero; those of resting networks have none."""
    ensemble, batch = model(2, participation=1.0), numbered(images())
    optimiser = torch.optim.Adam(ensemble.parameters(), 0.01, weight_decay=0.1)
    for progress, resting in ((0.0, ensemble.student), (0.25, ensemble.student), (0.5, ensemble.networks)):
        before = [parameter.clone() for parameter in resting.parameters()]
        ensemble.at(progress)
        optimiser.zero_grad(set_to_none=True)
        ensemble.training_loss(ensemble(batch), batch, progress).backward()
        for parameter in ensemble.parameters():
            if parameter.requires_grad and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        optimiser.step()
        for one, other in zip(before, resting.parameters(), strict=True):
            assert torch.equal(one, other)


def test_learning_rates_fall_in_each_stage():
    steps = model(1, annealing="step", distil_from=0.6)
    factors = [steps.outer_factor(progress) for progress in (0.0, 0.3, 0.5, 0.6, 0.8, 0.9)]
    assert factors == [1.0, 1.0, 0.1, 1.0, 1.0, 0.1]
    cosine = model(1, annealing="cosine", distil_from=0.6)
    assert [cosine.outer_factor(at) for at in (0.0, 0.3, 0.6, 0.8)] == pytest.approx([1.0, 0.5, 1.0, 0.5])
    alone = model(1, annealing="cosine", student=False)
    assert alone.outer_factor(0.5) == pytest.approx(0.5)
    assert model(1).outer_factor(0.9) == 1.0


def test_it_is_named_by_what_it_is_made_of():
    assert RobustEnsembleSettings().label == RobustEnsembleSettings.title == "Robust20-dist"
    assert RobustEnsembleSettings(networks=3).label == "Robust3-dist"
    assert RobustEnsembleSettings(networks=5, relation="diversity", distilled=False).label == "Diversity5"


def test_it_is_made_of_settings():
    """Networks differ from each other and from the student, which begins with the given weights."""
    given = build("conv4", width=0.25, channels=1, image_size=SIDE)
    parts = Parts(TaskEncoder(given, "batch_then_running"), given, given.feature_size, classes=CLASSES)
    make = lambda **options: RobustEnsemble.from_settings(RobustEnsembleSettings(networks=2, **options), parts)
    torch.manual_seed(3)
    ensemble = make()
    first = [network.encoder.backbone.blocks[0].conv.weight for network in ensemble.networks]
    assert not torch.equal(*first)
    assert ensemble.student.encoder.backbone is given
    torch.manual_seed(3)
    again = make()
    assert all(torch.equal(one, other) for one, other in zip(ensemble.parameters(), again.parameters(), strict=True))
    assert again.seed == ensemble.seed
    assert make(distilled=False).student is None
    assert {network.encoder.batchnorm for network in ensemble.networks} == {"batch_then_running"}


def test_networks_that_do_not_fit_into_memory_are_refused_before_any_is_made(monkeypatch):
    """Half of the machine's memory must hold them, their gradients and what the optimiser keeps of them."""
    given = build("conv4", width=0.25, channels=1, image_size=SIDE)
    parts = Parts(TaskEncoder(given, "batch_then_running"), given, given.feature_size, classes=CLASSES)
    each = sum(own.numel() for own in given.parameters()) + CLASSES * (given.feature_size + 1)
    make = lambda networks: RobustEnsemble.from_settings(RobustEnsembleSettings(networks=networks), parts)
    monkeypatch.setattr("os.sysconf", {"SC_PAGE_SIZE": 2 * 3 * 4 * each, "SC_PHYS_PAGES": 2}.get)
    assert len(make(2).networks) == 2
    words = (
        rf"^3 networks of {each:,} weights need .* GB with their gradients .* use fewer networks \(method\.networks\)"
    )
    with pytest.raises(SettingsError, match=words):
        make(3)
    monkeypatch.undo()
    with pytest.raises(SettingsError, match=r"^1000000000000 networks of .* need more than a million GB"):
        make(1_000_000_000_000)


def test_teachers_rest_while_the_student_learns():
    ensemble = model(2, batchnorm="batch_then_running").train()
    pictures, labels = images()
    ensemble.classification_loss(pictures, labels, 1.0)
    assert not any(len(layer) for layer in pop_statistics(ensemble.networks))
    assert {len(layer) for layer in pop_statistics(ensemble.student)} == {2}
    assert all(part.training for part in ensemble.modules())


def test_padding_is_not_learned_from():
    ensemble = model(2, participation=1.0)
    pictures, labels = images(tasks=1)
    real = torch.tensor([[True, True, False, True, True, False]])
    for progress in (0.0, 1.0):
        found = ensemble.classification_loss(pictures, labels, progress, real)
        close(found, ensemble.classification_loss(pictures[:, real[0]], labels[:, real[0]], progress))


def test_what_is_drawn_depends_on_the_seed_and_the_progress_only():
    pictures, labels = images()
    ensemble = model(4)
    losses = [ensemble.classification_loss(pictures, labels, progress) for progress in (0.1, 0.2, 0.1)]
    assert losses[0] == losses[2] != losses[1]
    torch.rand(3)
    other = model(4, seed=1)
    other.load_state_dict(ensemble.state_dict())
    assert other.classification_loss(pictures, labels, 0.1) != losses[0]


def test_about_the_asked_share_of_networks_takes_part_and_always_one():
    draw = torch.Generator().manual_seed(0)
    ensemble = model(5, participation=0.7)
    counts = [len(ensemble.participants(draw)) for _ in range(500)]
    assert min(counts) >= 1
    assert sum(counts) / 2500 == pytest.approx(0.7, abs=0.05)  # five standard errors are 0.046
    ensemble.participation = 1e-9
    chosen = [ensemble.participants(draw) for _ in range(50)]
    assert all(len(numbers) == 1 for numbers in chosen)
    assert len({numbers[0] for numbers in chosen}) > 1


def test_views_are_moved_and_mirrored_copies():
    ensemble, draw = model(1, moves=1), torch.Generator().manual_seed(0)
    pictures, _ = images(1, 1)
    inner = lambda picture: picture[..., 2:-2, 2:-2]
    known = [
        inner(side.roll((down, right), (-2, -1)))
        for side in (pictures, pictures.flip(-1))
        for down in (-1, 0, 1)
        for right in (-1, 0, 1)
    ]
    seen = set()
    for _ in range(200):
        view = inner(ensemble.view(pictures, draw))
        seen.add(next(number for number, expected in enumerate(known) if torch.equal(expected, view)))
    assert seen == set(range(18))


def test_networks_without_robustness_see_the_images_as_they_are():
    pictures, _ = images()
    assert model(1, relation="cooperation").view(pictures, torch.Generator()) is pictures


@pytest.mark.parametrize("student", [True, False])
def test_tasks_are_answered_by_the_nearest_mean(student):
    ensemble = model(3, student=student, scale=5.0)
    support, query = (torch.randn(2, count, 1, SIDE, SIDE, dtype=torch.float64) for count in (4, 3))
    labels = torch.tensor([[0, 1, 0, 1], [1, 1, 0, 0]])
    mask = torch.tensor([[True] * 4, [True, False, True, True]])
    found = ensemble.scores(TaskBatch(support, labels, query, None, 2, mask))

    def probabilities(network, task):
        known, asked = network.encoder(support)[task], network.encoder(query)[task]
        means = torch.stack([known[mask[task] & (labels[task] == way)].mean(0) for way in range(2)])
        return (5.0 * functional.cosine_similarity(asked[:, None], means[None], dim=-1)).softmax(-1)

    networks = [ensemble.student] if student else list(ensemble.networks)
    for task in range(2):
        expected = torch.stack([probabilities(network, task) for network in networks]).mean(0)
        close(found[task].softmax(-1), expected, within=1e-11)


def test_redrawn_networks_differ_and_are_as_wide():
    backbone = build("resnet12", width=0.25)
    first, second, again = redrawn(backbone, 1), redrawn(backbone, 2), redrawn(backbone, 1)
    for one, two, three, given in zip(*(net.modules() for net in (first, second, again, backbone)), strict=True):
        if isinstance(one, nn.Conv2d):
            assert torch.equal(one.weight, three.weight)
            assert not torch.equal(one.weight, two.weight)
            spread = 5 / (2 * one.weight.numel()) ** 0.5
            assert one.weight.std().item() == pytest.approx(given.weight.std().item(), rel=spread)


def test_a_small_ensemble_learns_and_its_student_learns_from_it():
    """Classes are patterns in noise; the student sees labels with no weight, so that all it knows its teachers told."""
    patterns = torch.randn(CLASSES, 1, SIDE, SIDE, dtype=torch.float64)

    def step(number):
        draw = torch.Generator().manual_seed(number)
        labels = torch.randint(CLASSES, (1, 24), generator=draw)
        noise = torch.randn(1, 24, 1, SIDE, SIDE, generator=draw, dtype=torch.float64)
        return patterns[labels] + 0.3 * noise, labels

    ensemble = model(
        3, batchnorm="batch_then_running", coefficient=1.0, moves=0, distillation_share=1.0, participation=0.9
    ).train()
    optimiser = torch.optim.Adam(ensemble.parameters(), 0.01)
    for number in range(80):
        loss = ensemble.classification_loss(*step(number), number / 80)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        commit_statistics(ensemble, pop_statistics(ensemble))
    pictures, labels = step(1000)
    ensemble.eval()
    with torch.no_grad():
        for network in (*ensemble.networks, ensemble.student):
            right = network(pictures).argmax(-1) == labels.flatten()
            assert right.double().mean() > 0.6  # chance is a sixth


def test_bad_input_is_refused():
    with pytest.raises(SettingsError, match="found 0 networks and 6 classes"):
        RobustEnsemble([], None, classes=6)
    with pytest.raises(SettingsError, match="found participation 0"):
        model(1, participation=0.0)
    ensemble, batch = model(1), numbered(images())
    bare = TaskBatch(batch.support, batch.support_labels, batch.query, batch.query_labels, 2)
    with pytest.raises(DataError, match="this batch does not say which they are; give its support_classes"):
        ensemble.training_loss(ensemble(bare), bare, 0.0)
    features = Parts(ReadyFeatures(4), None, 4, classes=9)
    with pytest.raises(SettingsError, match="Robust20-dist passes images through its network"):
        RobustEnsemble.from_settings(RobustEnsembleSettings(), features)
    pictures, labels = images(1)
    with pytest.raises(SettingsError, match="without a student"):
        model(1, student=False).student_loss(pictures, labels[0])
