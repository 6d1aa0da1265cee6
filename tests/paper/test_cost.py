import pytest
import torch

from e3bm.errors import SettingsError
from e3bm.paper.cost import cost
from e3bm.paper.presets import find_preset
from e3bm.paper.printed import timed_table
from e3bm.paper.timed_cost import UNTRAINED, kept_bytes, preset_cost, random_task
from e3bm.runs.assembly import build_backbone, build_learner

COUNTS = {"parameters", "e3bm_parameters", "percent", "system", "backbone", "note"}


def tiny(name):
    """A preset of that name that is timed in an instant."""
    from dataclasses import replace

    found = find_preset(name)
    train = found.train.but(
        data__image_size=16, backbone__width=0.125, method__epochs=3, episode__queries=2, episode__ways=3
    )
    return replace(found, train=train)


def test_printed_counts_are_met():
    counts = {(row.system, row.backbone): row.parameters for row in reversed(cost())}
    assert counts["MTL", "resnet25"] == 4_321_440
    assert counts["SIB", "wrn28_10_sib"] == 36_475_671
    assert counts["ResNet-12", "resnet12"] == 12_424_320
    assert counts["ResNet-25", "resnet25"] == 36_579_360
    assert counts["WRN-28-10", "wrn28_10"] == 36_482_880
    assert counts["4CONV(32) + head, 84 px", "conv4"] == 32_901
    assert counts["MTL+E3BM (lstm-inductive)", "resnet25"] == 4_321_440 + 30_944
    assert counts["SIB+E3BM (lstm-transductive)", "wrn28_10_sib"] == 36_475_671 + 15_390


@pytest.mark.parametrize("method", ["mtl", "mtl-scaled", "sib", "maml"])
def test_a_preset_is_timed_beside_its_method_alone_and_two_heads(method):
    rows = preset_cost(tiny(f"small-{method}-fc100-1shot-lstm-inductive"), repeats=1)
    name = method.split("-", maxsplit=1)[0].upper()
    assert [row.system for row in rows] == [name, f"{name}+E3BM", "ProtoNets", "MatchNets"]
    plain, with_psi, prototypes, attention = rows
    assert all(vars(row).keys() >= COUNTS for row in rows)
    assert with_psi.parameters - plain.parameters == with_psi.e3bm_parameters > 0
    assert plain.time_percent is None
    assert with_psi.memory_bytes > plain.memory_bytes > 0
    assert with_psi.encode_seconds == plain.encode_seconds
    assert prototypes.parameters == attention.parameters
    assert prototypes.seconds_per_100_epochs == prototypes.encode_seconds + prototypes.adapt_seconds
    assert ("every epoch" in with_psi.note) == (method == "maml")
    assert f"{name}+E3BM" in timed_table(rows).text()


def test_a_plain_preset_has_nothing_to_compare():
    rows = preset_cost(tiny("small-sib-fc100-1shot-plain"), repeats=1, training=False)
    assert [row.system for row in rows] == ["SIB", "ProtoNets", "MatchNets"]
    assert rows[0].memory_bytes is rows[0].train_seconds is None


def test_what_is_kept_for_the_backward_pass_grows_with_the_epochs():
    settings = tiny("small-mtl-fc100-1shot-lstm-inductive").train.but(backbone__pretrained=UNTRAINED)
    backbone = build_backbone(settings.backbone.but(pretrained=None), 3, 16)
    batch = random_task(settings.episode, (backbone.feature_size,))
    kept = [kept_bytes(build_learner(settings.but(method__epochs=epochs), backbone), batch) for epochs in (10, 20, 30)]
    assert kept[2] - kept[1] == pytest.approx(kept[1] - kept[0], rel=0.1)
    assert kept[0] < kept[1]
    assert torch.is_grad_enabled()


def test_an_unknown_preset_is_one_sentence():
    with pytest.raises(SettingsError, match="There is no preset 'small-mlt'"):
        preset_cost(find_preset("small-mlt"))
