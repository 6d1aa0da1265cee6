import pytest

import small_runs
from e3bm.errors import SettingsError
from e3bm.paper.ablate import ablate, one_per_arm, study_jobs
from e3bm.runs.folder.run_folder import RunFolder
from e3bm.runs.settings import TestSettings

TEST = TestSettings(episodes=12, split="val")


def base(small_data, **changes):
    return small_runs.settings(small_data, "mtl+e3bm", optimiser__steps=10, **changes)


def test_the_weight_study_of_two_seeds_and_its_report(small_data, tmp_path):
    found = ablate("weight", base(small_data), tmp_path, seeds=(0, 1), test=TEST)
    titles = ["MTL (v1) E3BM", "MTL (v2) learnable", "MTL (v3) optimal", "MTL (v4) equal", "MTL (a4, v5)"]
    summary = one_per_arm(found.results)
    assert [row.method for row in summary] == titles
    assert all(row.seeds == (0, 1) for row in summary)
    assert len({row.episodes_hash for row in found.results}) == 1
    assert {row.paired_with for row in summary[:-1]} == {"MTL (a4, v5)"}
    assert {row.split for row in found.results} == {"val"}
    page = found.page.read_text(encoding="utf-8")
    assert found.page == tmp_path / "report-weight" / "index.html"
    assert all(title in page for title in titles)
    assert "smoothed at 0.9" in page
    assert page.count("(2 seeds)") >= len(titles)
    # (v3) has exactly what (v2) ended with, seed by seed.
    for seed in (0, 1):
        learned = list(RunFolder(tmp_path / f"v2-s{seed}").lines("schedules"))[-1]["base_weights"]
        frozen = next(RunFolder(tmp_path / f"v3-s{seed}").lines("schedules"))["weights"]
        assert frozen == pytest.approx(learned, rel=1e-6)
        assert learned != pytest.approx([1 / 3] * 3, rel=1e-6)


def test_studies_in_one_folder_share_the_method_alone(small_data, tmp_path):
    folders = {study: {job.folder.name for job in study_jobs(study, base(small_data), tmp_path, (0,))} for study in
               ("rate", "weight", "hyperprior")}  # fmt: skip
    assert folders["rate"] & folders["weight"] & folders["hyperprior"] == {"plain-s0"}
    plain = {str(job.settings) for study in folders for job in study_jobs(study, base(small_data), tmp_path, (0,))
             if job.folder.name == "plain-s0"}  # fmt: skip
    assert len(plain) == 1


def test_a_study_without_time_says_so(small_data, tmp_path):
    with pytest.raises(SettingsError, match="give the study more time"):
        ablate("rate", base(small_data), tmp_path, seconds=0.0)


def test_a_frozen_backbone_must_be_named(small_data, tmp_path):
    with pytest.raises(SettingsError, match=r"is frozen and must have been trained: set --backbone\.pretrained"):
        ablate("rate", base(small_data, backbone__pretrained=None), tmp_path)
