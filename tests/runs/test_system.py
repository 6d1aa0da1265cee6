"""Which runs are one system, and whose baseline is whose: one rule for tests, tables and reports."""

from pathlib import Path

from e3bm.paper.presets import KINDS, find_preset
from e3bm.runs.settings import MachineSettings, PretrainSettings
from e3bm.runs.system import baseline_of, baseline_system_of, kind_of, system_of
from result_records import result_of

PLAIN = find_preset("small-mtl-fc100-1shot-plain").train
E3BM = find_preset("small-mtl-fc100-1shot-lstm-inductive").train


def test_seed_name_and_place_do_not_matter():
    changed = PLAIN.but(
        seed=3, name="mine", backbone__pretrained=Path("a"), data__folder=Path("b"), machine__threads=2,
        checkpoint_every=7,
    )  # fmt: skip
    assert system_of(changed) == system_of(PLAIN)
    frozen = PLAIN.but(hyperprior=PLAIN.hyperprior.but(weight="frozen", frozen_from=Path("seed0")))
    other = PLAIN.but(hyperprior=PLAIN.hyperprior.but(weight="frozen", frozen_from=Path("seed1")))
    assert system_of(frozen) == system_of(other) != system_of(PLAIN)
    assert system_of(PretrainSettings(seed=1, machine={"threads": 2})) == system_of(PretrainSettings())


def test_settings_with_nothing_to_leave_out_are_their_own_system():
    """Kept results and other people's carry these digests: they may not change."""
    whole = E3BM.but(seed=0, name="", checkpoint_every=1, backbone__pretrained=None, data__folder=None)
    whole = whole.but(machine=MachineSettings())
    assert system_of(whole) == whole.digest() == system_of(E3BM)
    whole = PretrainSettings(checkpoint_every=1)
    assert system_of(whole) == whole.digest() == system_of(PretrainSettings(seed=4))


def test_what_changes_the_numbers_matters():
    for change in ({"optimiser__steps": 1}, {"episode__shots": 5}, {"machine__precision": "float64"}):
        assert system_of(PLAIN.but(**change)) != system_of(PLAIN)


def test_every_kind_has_the_method_alone_as_its_baseline():
    for kind in KINDS:
        settings = find_preset(f"small-mtl-fc100-1shot-{kind}").train
        assert baseline_system_of(settings) == system_of(PLAIN)
        assert kind_of(settings) == kind
    for arm in ("v1", "v2", "v3", "v4", "a1", "a2", "a3"):
        settings = find_preset(f"small-mtl-fc100-1shot-{arm}").train
        assert baseline_system_of(settings) == system_of(PLAIN)
        assert kind_of(settings) is None
    assert baseline_system_of(E3BM) != system_of(E3BM)


def test_the_baseline_of_a_result_answered_the_same_episodes_with_the_same_seed():
    plain = [result_of(f"p{seed}", "MTL", seed=seed, system="p", baseline="p") for seed in (0, 1)]
    mean = result_of("p0, p1", "MTL", seed="mean", seeds=(0, 1), system="p", baseline="p")
    other = result_of("else", "MTL", system="p", baseline="p", episodes_hash="other")
    better = [result_of(f"e{seed}", "MTL+E3BM", seed=seed, system="e", baseline="p") for seed in (0, 1, 2)]
    among = [other, *plain, mean, *better]
    assert baseline_of(better[1], among) is plain[1]
    assert baseline_of(better[2], among) is plain[0]  # no such seed: the first
    assert baseline_of(better[0].but(seed="mean", seeds=(0, 1)), among) is mean
    assert baseline_of(plain[0], among) is None
    assert baseline_of(better[0], [other]) is None
