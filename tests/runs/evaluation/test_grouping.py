from pathlib import Path

from e3bm.paper.presets import KINDS, find_preset
from e3bm.runs.evaluation.comparison import baseline_group_of, group_of, kind_of
from e3bm.runs.settings import PretrainSettings

PLAIN = find_preset("small-mtl-fc100-1shot-plain").train
E3BM = find_preset("small-mtl-fc100-1shot-lstm-inductive").train


def test_seed_name_and_place_do_not_matter():
    changed = PLAIN.but(
        seed=3, name="mine", backbone__pretrained=Path("a"), data__folder=Path("b"), machine__threads=2,
        checkpoint_every=7,
    )  # fmt: skip
    assert group_of(changed) == group_of(PLAIN)
    frozen = PLAIN.but(hyperprior=PLAIN.hyperprior.but(weight="frozen", frozen_from=Path("seed0")))
    other = PLAIN.but(hyperprior=PLAIN.hyperprior.but(weight="frozen", frozen_from=Path("seed1")))
    assert group_of(frozen) == group_of(other) != group_of(PLAIN)
    assert group_of(PretrainSettings(seed=1, machine={"threads": 2})) == group_of(PretrainSettings())


def test_what_changes_the_numbers_matters():
    for change in ({"optimiser__steps": 1}, {"episode__shots": 5}, {"machine__precision": "float64"}):
        assert group_of(PLAIN.but(**change)) != group_of(PLAIN)


def test_every_kind_has_the_method_alone_as_its_baseline():
    for kind in KINDS:
        settings = find_preset(f"small-mtl-fc100-1shot-{kind}").train
        assert baseline_group_of(settings) == group_of(PLAIN)
        assert kind_of(settings) == kind
    for arm in ("v1", "v2", "v3", "v4", "a1", "a2", "a3"):
        settings = find_preset(f"small-mtl-fc100-1shot-{arm}").train
        assert baseline_group_of(settings) == group_of(PLAIN)
        assert kind_of(settings) is None
    assert baseline_group_of(E3BM) != group_of(E3BM)
