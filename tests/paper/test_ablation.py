from pathlib import Path

import pytest

from e3bm.paper.ablate import STUDIES, arm_of, study_arms
from e3bm.paper.presets import ABLATIONS, find_preset
from e3bm.runs.system import baseline_system_of, kind_of, system_of

BASE = find_preset("paper-mtl-resnet25-fc100-1shot-lstm-inductive").train
FROM = Path("learned")


def settings_of(study):
    return {arm.name: arm.settings(BASE, FROM) for arm in study_arms(study)}


def test_the_arms_are_the_paper_s():
    assert [arm.name for arm in study_arms("rate")] == ["a1", "a2", "a3", "plain"]
    assert [arm.name for arm in study_arms("weight")] == ["v1", "v2", "v3", "v4", "plain"]
    assert [arm.name for arm in study_arms("hyperprior")] == [
        "plain", "fc-inductive", "fc-transductive", "lstm-inductive", "lstm-transductive",
    ]  # fmt: skip


def test_the_alpha_arms_have_the_last_epoch_s_vote_and_the_v_arms_a_fixed_alpha():
    assert {settings.hyperprior.weight for settings in settings_of("rate").values()} == {"last"}
    assert {settings.hyperprior.rate for settings in settings_of("weight").values()} == {"constant"}


@pytest.mark.parametrize("study", ["rate", "weight", "hyperprior"])
def test_arms_differ_in_their_hyperprior_only(study):
    plain = settings_of(study)["plain"]
    for settings in settings_of(study).values():
        assert settings.but(hyperprior=plain.hyperprior) == plain


@pytest.mark.parametrize("study", STUDIES)
@pytest.mark.parametrize("method", ["mtl", "sib", "maml"])
def test_every_arm_has_the_method_alone_beside_it(study, method):
    base = find_preset(f"small-{method}-fc100-1shot-lstm-inductive").train
    arms = {arm.name: arm.settings(base, FROM) for arm in study_arms(study, method)}
    assert len(arms) == len(study_arms(study, method))
    alone = {system_of(settings) for settings in arms.values() if kind_of(settings) == "plain"}
    assert {baseline_system_of(settings) for settings in arms.values()} == alone


def test_choices_change_one_thing_at_a_time():
    base = find_preset("small-mtl-fc100-1shot-lstm-inductive").train
    arms = {arm.name: arm.settings(base, None) for arm in study_arms("choices")}
    assert arms["chosen"] == base
    assert arms["speed-1e-06"].optimiser.base_weight == 1e-6
    assert arms["hidden-1"] == base.but(hyperprior__hidden=1)
    assert arms["epochs-10"] == base.but(method__epochs=10)
    assert (arms["paper"].hyperprior.mixing, arms["paper"].hyperprior.summary) == ("residual", "flat")


def test_only_the_optimal_arms_take_learned_values():
    for study, optimal, learned in (("rate", "a3", "a2"), ("weight", "v3", "v2")):
        for arm in study_arms(study):
            used = arm.settings(BASE, FROM).hyperprior.frozen_from
            assert (used, arm.learned_by) == ((FROM, learned) if arm.name == optimal else (None, None))


def test_an_arm_is_recognised_by_its_schedules():
    for name in ABLATIONS:
        preset = find_preset(f"paper-mtl-resnet25-fc100-1shot-{name}").train
        assert arm_of(preset) == ("plain" if name in ("a4", "v5") else name)
    assert arm_of(BASE) is None
