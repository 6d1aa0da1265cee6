"""Labels from files: CSV and Label Studio's JSON give the fit that folders give, and a sentence where they cannot."""

import json
from pathlib import Path

import pytest

from e3bm.errors import DataError
from e3bm.fewshot.learning.label_files import read_label_file
from photo_models import same_fit, unfitted, write_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("listed") / "photos")


def listed(folder):
    return [(path.relative_to(folder).as_posix(), path.parent.name) for path in sorted(folder.rglob("*.png"))]


@pytest.mark.parametrize("header", ["path,label\n", "Label;Filename\n", "", "path\tlabel\n", "id,path,note,label\n"])
def test_a_table_gives_the_fit_of_its_folders(folder, header):
    rows = {
        "path,label\n": "{0},{1}\n", "Label;Filename\n": "{1};{0}\n", "": "{0},{1}\n",
        "path\tlabel\n": "{0}\t{1}\n", "id,path,note,label\n": '7,"{0}",,{1}\n',
    }  # fmt: skip
    table = folder / "labels.csv"
    table.write_text(header + "".join(rows[header].format(*one) for one in listed(folder)), encoding="utf-8-sig")
    assert same_fit(unfitted().fit(table), unfitted().fit(folder))


def task(address, *choices, **more):
    results = [{"type": "choices", "value": {"choices": list(chosen)}} for chosen in choices]
    return {"data": {"image": address}, "annotations": [{"result": [one]} for one in results], **more}


@pytest.mark.parametrize("address", ["{}", "/data/local-files/?d={}", "/data/local-files/?d=%2F{}"])
def test_label_studio_gives_the_fit_of_its_folders(folder, address):
    export = folder / "export.json"
    export.write_text(json.dumps([task(address.format(path), [label]) for path, label in listed(folder)]))
    assert same_fit(unfitted().fit(export), unfitted().fit(folder))
    export.write_text(json.dumps([{"image": path, "choice": label, "id": 3} for path, label in listed(folder)]))
    assert same_fit(unfitted().fit(export), unfitted().fit(folder))


def test_uploads_of_label_studio_are_found_by_name(tmp_path):
    (tmp_path / "crow.jpg").write_bytes(b"a")
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "12ab-owl.jpg").write_bytes(b"b")
    export = tmp_path / "export.json"
    addresses = ["/data/upload/1/12ab-crow.jpg", "http://label.studio/data/upload/1/12ab-owl.jpg"]
    export.write_text(json.dumps([task(one, [f"class {place}"]) for place, one in enumerate(addresses)]))
    found = read_label_file(export)
    assert [path.name for path in found.paths] == ["crow.jpg", "12ab-owl.jpg"]


def test_tasks_without_one_label_are_named(tmp_path):
    for name in "abcd":
        (tmp_path / f"{name}.jpg").write_bytes(b"x")
    export = tmp_path / "export.json"
    tasks = [
        task("a.jpg", ["crow"], ["crow"]),
        task("b.jpg", ["crow"], ["owl"]),
        task("c.jpg", ["crow", "owl"]),
        task("d.jpg"),
    ]
    tasks[1]["annotations"].append({"was_cancelled": True, "result": tasks[0]["annotations"][0]["result"]})
    export.write_text(json.dumps(tasks))
    found = read_label_file(export)
    assert [path.name for path in found.paths] == ["a.jpg"]
    assert {one.path: one.reason for one in found.unused} == {
        "b.jpg": "its annotators disagree",
        "c.jpg": "more than one choice",
        "d.jpg": "not labelled yet",
    }


@pytest.mark.parametrize("kind", ["csv", "json"])
def test_missing_photos_are_named_and_left_out_where_that_is_asked_for(folder, kind):
    entries = [*listed(folder), ("sky/gone.png", "sky")]
    table = folder / f"with_missing.{kind}"
    rows = "path,label\n" + "".join(f"{path},{label}\n" for path, label in entries)
    table.write_text(rows if kind == "csv" else json.dumps([task(path, [label]) for path, label in entries]))
    with pytest.raises(DataError, match=r"names photos that are not there: sky/gone.png.*--skip-unreadable"):
        unfitted().fit(table)
    found = unfitted().fit(table, skip_unreadable=True)
    assert same_fit(found, unfitted().fit(folder))
    (note,) = [note for note in found.notes if "gone.png" in note]
    assert note == f"{folder / 'sky' / 'gone.png'} cannot be used: there is no such file."
    told = found.evaluate(table, skip_unreadable=True)
    assert len(told.labels) == len(entries) - 1
    assert note in told.notes


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.csv", "", "is empty"),
        ("a.csv", "path,label\nnot_there.jpg,crow\n", "names photos that are not there: not_there.jpg"),
        ("a.csv", "path,size\nx.jpg,3\n", "has the columns path, size; expected path and label"),
        (
            "a.csv",
            "path,label\nx.jpg\ny.jpg,b\n,c\n",
            "has rows without a path and a label, or with other cells: 2, 4;",
        ),
        ("a.csv", "x.jpg,crow,3,4\n", "with other cells: 1; each line must be `path,label`, or the first line must"),
        ("a.csv", 'path,label\n"x.jpg,crow\n', "is not a readable table"),
        ("a.csv", "path,label\nx.jpg,\n", "has no photo with a label"),
        ("a.json", "{", "is not readable JSON"),
        ("a.json", "{}", "expected a list of tasks"),
        ("a.json", "[]", "has no photo with a label; each task needs an image and one choice."),
        ("a.json", '[{"data": {"text": "x"}}]', "Task 1 of"),
        ("a.json", '[{"data": []}]', "Task 1 of"),
        ("a.json", '[{"data": {"image": "x.jpg"}, "annotations": [3]}]', "Task 1 of"),
    ],
)
def test_what_cannot_be_used_is_a_sentence(tmp_path, name, text, words):
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError) as caught:
        read_label_file(tmp_path / name)
    assert words in str(caught.value)
    assert str(tmp_path / name) in str(caught.value)


@pytest.mark.parametrize("name", ["labels.xlsx", "labels.txt", "Labels.ODS"])
def test_a_list_of_another_kind_is_to_be_saved_as_csv(tmp_path, name):
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(DataError, match=r"is a list of a kind that is not read \(\..*\); save it as a CSV file"):
        unfitted().fit(tmp_path / name)


@pytest.mark.parametrize("form", [str, Path])
def test_an_address_on_the_web_is_to_be_downloaded(form):
    with pytest.raises(DataError, match=r"https://photos.invalid/mine is an address on the web, .* download it first"):
        unfitted().fit(form("https://photos.invalid/mine"))


def test_the_folder_of_missing_photos_is_named_in_full(tmp_path, monkeypatch):
    (tmp_path / "inside").mkdir()
    (tmp_path / "a.csv").write_text("path,label\nnot_there.jpg,crow\n")
    monkeypatch.chdir(tmp_path / "inside")
    with pytest.raises(DataError) as caught:
        read_label_file(Path("../a.csv"))
    assert str(caught.value).endswith(f"paths are relative to its folder, {tmp_path.resolve()}.")


def test_bytes_that_are_no_text_are_a_sentence(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"\xff\xfe\x00x")
    with pytest.raises(DataError, match="UTF-8"):
        read_label_file(tmp_path / "a.csv")
