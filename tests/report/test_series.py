from e3bm.report.series import arms_of, first_of_each_arm, result_series
from e3bm.runs.folder.run import read_what_is_there


def test_runs_that_differ_in_seed_only_are_one_arm(make_run):
    runs = [read_what_is_there(make_run(f"s{seed}", seed=seed)) for seed in range(3)] + [
        read_what_is_there(make_run("other", epochs=6))
    ]
    arms = arms_of(runs)
    assert [[run.name for run in arm.runs] for arm in arms] == [["s0", "s1", "s2"], ["other"]]
    assert [arm.label for arm in arms] == ["MTL, M=5", "MTL, M=6"]
    rows = [row for run in runs for row in run.results]
    assert [result.run for result in first_of_each_arm(rows, arms)] == ["s0", "other"]


def test_labels_say_what_tells_runs_apart(make_run):
    five = {"episode": {"ways": 5, "shots": 5, "queries": 15}}
    runs = [
        read_what_is_there(make_run("a")),
        read_what_is_there(make_run("b", **five)),
        read_what_is_there(make_run("c", "sib")),
    ]
    assert [arm.label for arm in arms_of(runs)] == ["MTL, 5-way 1-shot", "MTL, 5-way 5-shot", "SIB"]


def test_runs_without_settings_go_by_their_folder(make_run):
    paths = [make_run("a"), make_run("b")]
    for path in paths:
        (path / "config.json").unlink()
    assert [arm.label for arm in arms_of([read_what_is_there(path) for path in paths])] == ["a", "b"]


def test_a_method_and_its_e3bm_version_share_a_colour(make_run):
    names = [("maml", False), ("maml", True), ("mtl", False), ("mtl", True)]
    arms = arms_of([read_what_is_there(make_run(f"{method}{e3bm}", method, e3bm=e3bm)) for method, e3bm in names])
    looks = [arm.look for arm in arms]
    assert looks[0].colour == looks[1].colour != looks[2].colour == looks[3].colour
    assert [look.dash for look in looks] == ["--", "-", "--", "-"]


def test_arms_of_one_method_have_a_colour_each(make_run):
    arms = arms_of(
        [read_what_is_there(make_run(f"run{epochs}", e3bm=epochs > 2, epochs=epochs)) for epochs in range(2, 12)]
    )
    assert len({(arm.look.colour, arm.look.dash) for arm in arms}) == 10
    assert len({arm.look.colour for arm in arms[:8]}) == 8


def test_rows_of_one_arm_are_told_apart(make_run):
    runs = [read_what_is_there(make_run(f"s{seed}", seed=seed)) for seed in range(2)]
    rows = [row.but(seed=seed) for seed, run in enumerate(runs) for row in run.results]
    assert [label for label, _, _ in result_series([*rows, rows[1]], arms_of(runs))] == [
        "MTL",
        "MTL, seed 1",
        "MTL, seed 1, row 3",
    ]
