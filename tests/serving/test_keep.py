"""`--keep FILE`: what was answered is there after the next start, whatever ended the server.

E3BM_KILLS asks for more kills than the suite makes, E3BM_TEST_SEED for others.
"""

import contextlib
import os
import resource
import signal
import sys
import threading
import time
from pathlib import Path
from random import Random

import httpx
import numpy as np
import pytest

from e3bm.errors import CheckpointError, SettingsError
from e3bm.fewshot.few_shot_classifier import FewShotClassifier
from e3bm.serving.exchange import RequestError
from e3bm.serving.kept.journal import MAGIC, Journal, keep_workspace
from e3bm.serving.kept.workspace import Workspace
from e3bm.serving.settings import ServeSettings
from e3bm.serving.work.process import CONTEXT, load_before_forking
from keeping_process import change_for_ever, serve_for_ever, small_classifier, state

KILLS = int(os.environ.get("E3BM_KILLS", "2"))
KILLS_WITHOUT_HTTP = int(os.environ.get("E3BM_KILLS", "15"))
SEED = 1000 * int(os.environ.get("E3BM_TEST_SEED", "0"))
WIDTH = 6


def opened(path: Path, classifier) -> tuple[Workspace, Journal]:
    """A workspace that goes on with what the file has."""
    workspace = Workspace(classifier, ServeSettings(keep=path))
    return workspace, keep_workspace(workspace, path)


def contents(workspace: Workspace):
    """Everything that a client can see, and the features."""
    now = workspace.snapshot
    classes = [
        (one.number, one.name, [(photo.number, photo.features.tolist()) for photo in one.photos]) for one in now.classes
    ]
    asked = np.linspace(-1, 1, WIDTH)[None]
    said = None if now.fit is None else (now.fit.photos, now.fit.version, now.fit.classifier.predict_features(asked))
    return classes, said, now.version, now.unchangeable, workspace.token


def add(workspace: Workspace, name: str, photos: int, seed: int) -> int:
    number = workspace.create_class(name).number
    rows = np.random.default_rng(seed).normal(size=(photos, WIDTH)).astype(np.float32)
    workspace.add_photos(number, list(rows), workspace.snapshot)
    return number


def fit(workspace: Workspace) -> None:
    plan = workspace.plan_fit()
    made = workspace.initial.with_fit(None).fit_features(plan.features)
    workspace.accept_fit(plan, made.fitted)


def test_every_change_is_there_after_a_start(tmp_path, quick) -> None:
    def forget_first(now: Workspace) -> None:
        now.forget_class(now.snapshot.classes[0].number)

    def remove_first_photo_of_second(now: Workspace) -> None:
        one = now.snapshot.classes[1]
        now.remove_photo(one.number, one.photos[0].number)

    workspace, journal = opened(tmp_path / "state", quick())
    for step in (
        lambda now: None,
        lambda now: now.create_class("empty"),
        lambda now: add(now, "one", 3, 1),
        lambda now: add(now, "two", 2, 2),
        fit,
        lambda now: now.rename_class(now.snapshot.classes[-1].number, "a second one"),
        lambda now: add(now, "three", 2, 3),
        remove_first_photo_of_second,
        fit,
        forget_first,
        forget_first,
        fit,
        Workspace.clear,
        lambda now: add(now, "four", 1, 4),
    ):
        step(workspace)
        expected = contents(workspace)
        journal.close()
        workspace, journal = opened(tmp_path / "state", quick())
        assert contents(workspace) == expected
    journal.close()
    # Numbers are never given twice, or a page would mistake one photo for another.
    assert workspace.snapshot.classes[0].number > 10


def test_nothing_of_what_was_forgotten_is_in_the_file(tmp_path, quick) -> None:
    path = tmp_path / "state"
    workspace, journal = opened(path, quick())
    add(workspace, "stays", 2, 1)
    rows = np.random.default_rng(2).normal(size=(2, WIDTH)).astype(np.float32)
    number = workspace.create_class("secret-name").number
    workspace.add_photos(number, list(rows), workspace.snapshot)
    fit(workspace)
    assert rows[0].tobytes() in path.read_bytes()
    workspace.forget_class(number)
    left = path.read_bytes()
    assert rows[0].tobytes() not in left
    assert b"secret-name" not in left
    journal.close()


def test_a_model_that_was_opened_is_kept_with_its_backbone(tmp_path, quick, pretrained_run, glyph_png, serve_with):
    made = FewShotClassifier(pretrained_run).fit(
        {name: [glyph_png(name, place) for place in range(3)] for name in "g&"}
    )
    kept = {"keep": tmp_path / "state"}
    with serve_with(**kept) as visitor:
        assert visitor.put("/model", files={"model": ("m.e3bm", made.to_bytes())}).status_code == 200
        before = visitor.photos("/predict", glyph_png("g", 7)).json()
        state = visitor.get("/workspace").json()
    with serve_with(**kept) as visitor:
        assert visitor.get("/workspace").json() == state
        assert visitor.photos("/predict", glyph_png("g", 7)).json() == before
        visitor.teach("Ж")
        assert visitor.fit()["classes"] == ["&", "g", "Ж"]
        state = visitor.get("/workspace").json()
        assert visitor.delete("/workspace").status_code == 204
        assert visitor.get("/workspace").json()["backbone"] != state["backbone"]


def test_a_model_that_only_predicts_is_kept_too(tmp_path, quick, serve_with, glyph_png) -> None:
    made = quick().fit({name: [glyph_png(name, place) for place in range(3)] for name in "g&"})
    with serve_with(keep=tmp_path / "state") as visitor:
        content = made.to_bytes(keep_support=False)
        assert visitor.put("/model", files={"model": ("m.e3bm", content)}).status_code == 200
        before = visitor.photos("/predict", glyph_png("g", 7)).json()
    with serve_with(keep=tmp_path / "state") as visitor:
        assert visitor.photos("/predict", glyph_png("g", 7)).json() == before
        assert visitor.post("/classes", json={"name": "new"}).status_code == 409


def test_a_record_that_was_cut_off_is_dropped_and_anything_else_refused(tmp_path, quick) -> None:
    path, classifier = tmp_path / "state", quick()
    workspace, journal = opened(path, classifier)
    sizes = [path.stat().st_size]
    for number in range(3):
        workspace.create_class(f"class {number}")
        sizes.append(path.stat().st_size)
    journal.close()
    whole = path.read_bytes()
    for size in range(sizes[0], len(whole)):
        path.write_bytes(whole[:size])
        workspace, journal = opened(path, classifier)
        assert len(workspace.snapshot.classes) == sum(end <= size for end in sizes[1:])
        workspace.create_class("another")  # what was cut off is not in its way
        journal.close()
        workspace, journal = opened(path, classifier)
        assert workspace.snapshot.classes[-1].name == "another"
        journal.close()
    random = Random(0)
    for _ in range(200):
        place = random.randrange(len(MAGIC), len(whole))
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << random.randrange(8)]) + whole[place + 1 :])
        with pytest.raises(CheckpointError, match="damaged"):
            opened(path, classifier)
    # Records of other files, or in another order.
    path.write_bytes(whole[: sizes[0]] + whole[sizes[1] : sizes[2]] + whole[sizes[0] : sizes[1]])
    with pytest.raises(CheckpointError, match="damaged"):
        opened(path, classifier)
    path.write_bytes(b"something else")
    with pytest.raises(CheckpointError, match="is not a file of"):
        opened(path, classifier)
    assert path.read_bytes() == b"something else"


def test_another_backbone_and_a_second_server_are_refused(tmp_path, quick) -> None:
    path = tmp_path / "state"
    _, journal = opened(path, quick())
    with pytest.raises(SettingsError, match="Another server keeps its state"):
        opened(path, quick())
    journal.close()
    from torch import nn

    other = FewShotClassifier(nn.Sequential(nn.Conv2d(3, 2, 1), nn.Flatten()), pipeline="resize 8, normalise none")
    with pytest.raises(CheckpointError, match="other weights"):
        opened(path, other)
    with pytest.raises(SettingsError, match="cannot be kept"):
        opened(tmp_path / "state" / "inside", quick())


def test_a_folder_is_no_file_to_keep_the_state_in(tmp_path, quick) -> None:
    (tmp_path / "photos").mkdir()
    with pytest.raises(SettingsError, match=r"photos is a folder; give the name of a file to --keep, such as .*photos"):
        opened(tmp_path / "photos", quick())
    assert [found.name for found in tmp_path.iterdir()] == ["photos"]


def test_a_file_that_cannot_be_read_is_refused_with_the_reason(tmp_path, quick, monkeypatch) -> None:
    path = tmp_path / "state"
    opened(path, quick())[1].close()

    def refuse(_: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(SettingsError, match=r"cannot be kept in .*state: Permission denied; give --keep another file"):
        opened(path, quick())


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no limit on the size of files")
def test_a_change_that_cannot_be_written_does_not_happen(tmp_path, quick) -> None:
    path = tmp_path / "state"
    workspace, journal = opened(path, quick())
    add(workspace, "one", 2, 1)
    expected, size = contents(workspace), path.stat().st_size
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 50, before[1]))
        with pytest.raises(RequestError, match="nothing changed") as error:
            workspace.create_class("two")
        assert error.value.status_code == 507
        assert contents(workspace) == expected
        resource.setrlimit(resource.RLIMIT_FSIZE, (50, before[1]))
        for change in (workspace.clear, lambda: workspace.forget_class(workspace.snapshot.classes[0].number)):
            with pytest.raises(RequestError, match="nothing changed"):
                change()
            assert contents(workspace) == expected
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    workspace.create_class("two")
    expected = contents(workspace)
    journal.close()
    workspace, journal = opened(path, quick())
    assert contents(workspace) == expected
    journal.close()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")
def test_a_kill_at_any_moment_leaves_the_last_change_or_the_one_that_was_being_made(tmp_path) -> None:
    path, random = tmp_path / "state", Random(SEED + 3)
    load_before_forking()
    seen = 0
    for kill in range(KILLS_WITHOUT_HTTP):
        ours, theirs = CONTEXT.Pipe()
        process = CONTEXT.Process(target=change_for_ever, args=(path, SEED + kill, theirs), daemon=True)
        process.start()
        theirs.close()
        told = [ours.recv() for _ in range(random.randrange(1, 6))]
        time.sleep(0.02 * random.random())
        process.kill()
        process.join()
        with contextlib.suppress(EOFError, OSError):  # nothing more, or a message that the kill cut short
            while True:
                told.append(ours.recv())
        workspace, journal = opened(path, small_classifier())
        journal.close()
        found = state(workspace)
        seen += found != told[-1]
        if found != told[-1]:
            # One change was written and not yet told: it is the last of these with a single step more.
            assert _one_change_apart(dict(told[-1]), dict(found))
    print(f"{KILLS_WITHOUT_HTTP} kills, in {seen} of them a change was on disk and not yet answered")


def _one_change_apart(before: dict, after: dict) -> bool:
    """Whether one class or some photos of one class were added, or a class forgotten, or all of them."""
    if not after:
        return True
    new, old = set(after) - set(before), set(before) - set(after)
    changed = [number for number in set(before) & set(after) if before[number] != after[number]]
    grown = all(after[number][: len(before[number])] == before[number] for number in changed)
    return len(new) + len(old) + len(changed) == 1 and grown and not any(after[number] for number in new)


class Writer(threading.Thread):
    """Makes classes and adds photos until the server is gone, and remembers what it was told."""

    def __init__(self, address: str, glyph, seed: int) -> None:
        super().__init__()
        self._address, self._glyph, self._random = address, glyph, Random(seed)
        self.there: dict[int, set[int]] = {}
        self.gone: set[int] = set()
        self.asked_to_go: set[int] = set()
        self.changes = threading.Semaphore(0)

    def run(self) -> None:
        try:
            with httpx.Client(base_url=self._address, timeout=60) as client:
                while True:
                    self._change(client)
                    self.changes.release()
        except httpx.HTTPError:
            pass

    def _change(self, client: httpx.Client) -> None:
        names = [number for number in self.there if number not in self.asked_to_go]
        if len(names) < 3 or self._random.random() < 0.2:
            made = client.post("/classes", json={"name": f"class {self._random.random()}"})
            if made.status_code == 201:
                self.there[made.json()["id"]] = set()
        elif self._random.random() < 0.15:
            number = self._random.choice(names)
            self.asked_to_go.add(number)
            assert client.delete(f"/classes/{number}").status_code == 204
            self.gone.add(number)
        else:
            number = self._random.choice(names)
            files = [("photos", ("a.png", self._glyph("g", self._random.randrange(20))))]
            answer = client.post(f"/classes/{number}/photos", files=files)
            if answer.status_code == 201:
                self.there[number] |= set(answer.json()["photos"])


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")
@pytest.mark.timeout(600 + 60 * KILLS)
def test_kills_lose_nothing_that_was_answered(tmp_path, glyph_png) -> None:
    path, random = tmp_path / "state", Random(SEED + 17)
    load_before_forking()
    there: dict[int, set[int]] = {}
    gone: set[int] = set()
    changes = 0
    for kill in range(KILLS + 1):
        ours, theirs = CONTEXT.Pipe()
        server = CONTEXT.Process(target=serve_for_ever, args=(path, theirs))
        server.start()
        theirs.close()
        try:
            address = ours.recv().rstrip("/")
            state = httpx.get(f"{address}/workspace", timeout=60).json()
            found = {one["id"]: set(one["photos"]) for one in state["classes"]}
            for number, photos in there.items():
                assert photos <= found[number]
            assert not gone & set(found)
            if kill == KILLS:
                break
            writer = Writer(address, glyph_png, SEED + kill)
            # It knows what is there already, and goes on with it.
            writer.there = {number: set(photos) for number, photos in found.items()}
            writer.start()
            # A server that does nothing loses nothing.
            for _ in range(random.randrange(5, 30)):
                assert writer.changes.acquire(timeout=120)
                changes += 1
            time.sleep(0.05 * random.random())
            server.kill()
            writer.join()
        finally:
            server.kill()
            server.join()
        assert writer.there
        print(f"kill {kill + 1}: {len(found)} classes and {sum(map(len, found.values()))} photos were there before")
        gone |= writer.gone
        there = {number: photos for number, photos in writer.there.items() if number not in writer.asked_to_go}
    print(f"{KILLS} kills of the server, {changes} changes before them, {path.stat().st_size:,} bytes kept")
