"""`--keep FILE`: every change of the workspace, on disk before it is answered, and read again at the next start.

The file is a line that says what it is, and records behind one another. Each has its length, a check of that, and a
sha256 over the record before it and its own content. What is added is appended; where something is forgotten the whole
file is written anew and renamed over the old one, because nothing of it may be left. A record that was cut off at the
end of the file was never answered and is dropped; any other damage is refused.
"""

import contextlib
import json
import os
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from safetensors import SafetensorError

from e3bm.errors import CheckpointError, E3BMError, SettingsError
from e3bm.fewshot.few_shot_classifier import FewShotClassifier
from e3bm.fewshot.fitted_model import FittedModel
from e3bm.fewshot.model_file import model_bytes, parse_fit, read_model
from e3bm.fewshot.support_set import SupportSet, feature_shots
from e3bm.json_files import parse_json
from e3bm.serving.exchange import RequestError, Upload
from e3bm.serving.kept.workspace import Fit, KeptClass, KeptPhoto, Snapshot, Workspace
from e3bm.serving.work.models import open_model
from e3bm.storage import flush_folder, lock, release, write_whole

MAGIC = b"e3bm-workspace 1\n"
HEAD = struct.Struct("<QI")
DIGEST_BYTES = 32
LARGEST_RECORD = 1 << 32
ABOUT, CONTENT, FEATURES = "about", "content", "features"


@dataclass(frozen=True, eq=False)
class Entry:
    """One record: what happened, and the numbers that belong to it."""

    kind: str
    about: dict[str, Any]
    features: np.ndarray | None = None
    content: bytes = b""

    def packed(self) -> bytes:
        """The record as bytes."""
        arrays = {CONTENT: np.frombuffer(self.content, np.uint8)}
        if self.features is not None:
            arrays[FEATURES] = np.ascontiguousarray(self.features, np.float32)
        return safetensors.numpy.save(arrays, {ABOUT: json.dumps({"kind": self.kind, **self.about})})

    @classmethod
    def unpacked(cls, content: bytes) -> "Entry":
        """The record that bytes hold."""
        arrays = safetensors.numpy.load(content)
        header = parse_json(content[8 : 8 + int.from_bytes(content[:8], "little")])
        about = parse_json(header["__metadata__"][ABOUT])
        return cls(about.pop("kind"), about, arrays.get(FEATURES), arrays[CONTENT].tobytes())


class Journal:
    """The file of one workspace; no other process may have it at the same time."""

    def __init__(self, path: Path, *, pictures: bool = False) -> None:
        self.path, self._pictures = path, pictures
        self._lock = _locked(path)
        self._file = -1
        self._chain = b""
        self._broken = False

    def read(self) -> list[Entry]:
        """What is there, without a record at the end that was cut off; nothing where there is no file yet."""
        try:
            content = self.path.read_bytes() if self.path.exists() else b""
        except OSError as error:
            raise _cannot_be_kept(self.path, error) from None
        if not content:
            return []
        if not content.startswith(MAGIC):
            raise CheckpointError(f"{self.path} is not a file of `e3bm serve --keep`; give another name.")
        entries, whole, self._chain = [], len(MAGIC), b""
        for payload, end in _payloads(self.path, content):
            self._chain = _link(self._chain, payload)
            try:
                entries.append(Entry.unpacked(payload))
            except (SafetensorError, ValueError, KeyError, TypeError, RecursionError) as error:
                raise CheckpointError(f"{self.path} cannot be read: {error}.") from None
            whole = end
        self._open(whole)
        return entries

    def class_made(self, made: KeptClass) -> None:
        """Keep a new class."""
        self._append(_class_entry(made))

    def photos_added(self, number: int, photos: Sequence[KeptPhoto]) -> None:
        """Keep the features of new photos."""
        self._append(_photos_entry(number, photos, pictures=self._pictures))

    def fit_made(self, fit: Fit) -> None:
        """Keep a fit."""
        self._append(_fit_entry(fit))

    def replaced(self, now: Snapshot, token: str, last_number: int) -> None:
        """Keep a whole state, and nothing of what was there before."""
        chain, parts = b"", [MAGIC]
        for entry in _entries_of(now, token, last_number, pictures=self._pictures):
            framed, chain = _framed(chain, entry.packed())
            parts.append(framed)
        with self._told():
            write_whole(self.path, *parts)
            flush_folder(self.path.parent)
            self._chain, self._broken = chain, False
            self._open(self.path.stat().st_size)

    def close(self) -> None:
        """Let another process have the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        release(self._lock)

    def _open(self, size: int) -> None:
        if self._file >= 0:
            os.close(self._file)
        self._file = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        os.ftruncate(self._file, size)

    def _append(self, entry: Entry) -> None:
        framed, chain = _framed(self._chain, entry.packed())
        with self._told():
            if self._broken:
                raise OSError("an earlier record could not be undone")
            size = os.lseek(self._file, 0, os.SEEK_END)
            try:
                _write_all(self._file, framed)
                os.fsync(self._file)
            except BaseException:
                # Half a record would hide all that come after it.
                self._broken = True
                os.ftruncate(self._file, size)
                self._broken = False
                raise
        self._chain = chain

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            reason = error.strerror or str(error)
            raise RequestError(
                507, f"The change could not be written to {self.path.name} ({reason}); nothing changed."
            ) from None


@dataclass
class _Replay:
    """What the records say, one after another."""

    initial: FewShotClassifier
    path: Path
    snapshot: Snapshot = field(init=False)
    token: str = ""
    last_number: int = 0

    def begin(self, entry: Entry) -> None:
        about, unfitted = entry.about, self.initial
        opened = Upload(about["opened"], entry.content) if about["opened"] is not None else None
        if opened is not None:
            found = open_model(opened, self.initial.prior_path, self.initial.extractor)
            unfitted = found.classifier(self.initial.prior_path, self.initial.extractor).with_fit(None)
        if unfitted.extractor.origin.digest != about["backbone_digest"]:
            raise CheckpointError(
                f"{self.path} was kept by a server with the backbone '{about['backbone']}' and other weights than "
                "this one's; start with the model that it was kept with, or give another file."
            )
        views = about.get("views", unfitted.extractor.views)  # former files do not say it
        unfitted = unfitted if views == unfitted.extractor.views else unfitted.with_views(views)
        self.snapshot = Snapshot(unfitted, unchangeable=about["unchangeable"], version=about["version"], opened=opened)
        self.token, self.last_number = about["token"], about["last_number"]

    def class_made(self, entry: Entry) -> None:
        made = KeptClass(entry.about["number"], entry.about["name"])
        self.snapshot = replace(self.snapshot, classes=(*self.snapshot.classes, made))
        self.last_number = max(self.last_number, made.number)

    def photos_added(self, entry: Entry) -> None:
        one, numbers = self.snapshot.find(entry.about["class"]), entry.about["photos"]
        assert entry.features is not None
        # Copies: the features of a forgotten photo must not live on in an array that others share.
        lengths = entry.about.get("pictures") or [0] * len(numbers)
        ends = np.cumsum(lengths).tolist()
        pictures = [entry.content[end - length : end] for end, length in zip(ends, lengths, strict=True)]
        made = [
            KeptPhoto(number, row.copy(), picture)
            for number, row, picture in zip(numbers, entry.features, pictures, strict=True)
        ]
        changed = self.snapshot.with_class(replace(one, photos=(*one.photos, *made)))
        # A state that was written whole states its version; only what was appended counts up.
        version = changed.version if entry.about["counts"] else self.snapshot.version
        self.snapshot = replace(changed, version=version)
        self.last_number = max(self.last_number, *numbers)

    def fit_made(self, entry: Entry) -> None:
        photos = tuple((int(number), str(name)) for number, name in entry.about["photos"])
        fitted = self._with_support(parse_fit(self.path, *read_model(self.path, entry.content)), photos)
        self.snapshot = replace(
            self.snapshot, fit=Fit(self.snapshot.unfitted.with_fit(fitted), photos, entry.about["version"])
        )

    def _with_support(self, fitted: FittedModel, photos: tuple[tuple[int, str], ...]) -> FittedModel:
        if not photos:
            return fitted
        features = {photo.number: photo.features for one in self.snapshot.classes for photo in one.photos}
        by_class: dict[str, list[np.ndarray]] = {}
        for number, name in photos:
            by_class.setdefault(name, []).append(features[number])
        shots = {name: feature_shots(name, np.stack(rows)) for name, rows in by_class.items()}
        return replace(fitted, support=SupportSet.of(shots))


def keep_workspace(workspace: Workspace, path: Path) -> Journal:
    """Go on with the state that a file holds, or begin to keep this one in it."""
    journal = Journal(path, pictures=workspace.settings.pictures == "file")
    try:
        entries = journal.read()
        if not entries:
            workspace.record_with(journal)
            return journal
        replay = _Replay(workspace.initial, path)
        steps = {
            "begin": replay.begin,
            "class": replay.class_made,
            "photos": replay.photos_added,
            "fit": replay.fit_made,
        }
        for place, entry in enumerate(entries):
            if (place == 0) != (entry.kind == "begin"):
                raise KeyError("the state that it begins with")
            steps[entry.kind](entry)
        workspace.restore(replay.snapshot, replay.token, replay.last_number, journal)
    except (KeyError, TypeError, ValueError, AssertionError) as error:
        journal.close()
        raise CheckpointError(f"{path} cannot be used: something in it is missing or wrong ({error}).") from None
    except RequestError as error:
        journal.close()
        if error.status_code == 507:
            raise SettingsError(f"The state cannot be kept in {path}: {error.detail}") from None
        raise CheckpointError(f"{path} cannot be used: {error.detail}") from None
    except E3BMError:
        journal.close()
        raise
    return journal


def _entries_of(now: Snapshot, token: str, last_number: int, *, pictures: bool) -> Iterable[Entry]:
    """A whole state as records."""
    extractor = now.unfitted.extractor
    origin = extractor.origin
    about = {
        "token": token,
        "last_number": last_number,
        "version": now.version,
        "backbone": origin.name,
        "backbone_digest": origin.digest,
        "views": extractor.views,
        "unchangeable": now.unchangeable,
        "opened": None if now.opened is None else now.opened.name,
    }
    yield Entry("begin", about, content=b"" if now.opened is None else now.opened.content)
    for one in now.classes:
        yield _class_entry(one)
        if one.photos:
            yield _photos_entry(one.number, one.photos, counts=False, pictures=pictures)
    if now.fit is not None:
        yield _fit_entry(now.fit)


def _class_entry(made: KeptClass) -> Entry:
    return Entry("class", {"number": made.number, "name": made.name})


def _photos_entry(number: int, photos: Sequence[KeptPhoto], *, counts: bool = True, pictures: bool = False) -> Entry:
    about = {"class": number, "photos": [photo.number for photo in photos], "counts": counts}
    shown = [photo.picture for photo in photos] if pictures else []
    if any(shown):
        about["pictures"] = [len(one) for one in shown]
    return Entry("photos", about, np.stack([photo.features for photo in photos]), b"".join(shown))


def _fit_entry(fit: Fit) -> Entry:
    model = fit.classifier
    content = model_bytes(model.extractor, model.fitted, keep_support=False, keep_backbone=False)
    return Entry("fit", {"photos": fit.photos, "version": fit.version}, content=content)


def _framed(chain: bytes, payload: bytes) -> tuple[bytes, bytes]:
    """A record as it stands in the file, and what the next one's digest begins with."""
    length = len(payload).to_bytes(8, "little")
    link = _link(chain, payload)
    return length + zlib.crc32(length).to_bytes(4, "little") + link + payload, link


def _link(chain: bytes, payload: bytes) -> bytes:
    return sha256(chain + payload).digest()


def _payloads(path: Path, content: bytes) -> Iterator[tuple[bytes, int]]:
    """The records that are whole, and where each ends."""
    place, chain = len(MAGIC), b""
    while place + HEAD.size + DIGEST_BYTES <= len(content):
        length, check = HEAD.unpack_from(content, place)
        begin = place + HEAD.size + DIGEST_BYTES
        if zlib.crc32(content[place : place + 8]) != check or length > LARGEST_RECORD:
            raise _damaged(path, place)
        if begin + length > len(content):
            return
        payload = content[begin : begin + length]
        chain = _link(chain, payload)
        if chain != content[place + HEAD.size : begin]:
            raise _damaged(path, place)
        place = begin + length
        yield payload, place


def _damaged(path: Path, place: int) -> CheckpointError:
    return CheckpointError(f"{path} is damaged at byte {place:,}: it is not what was written; take it from a copy.")


def _write_all(file: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(file, view) :]


def _cannot_be_kept(path: Path, error: OSError) -> SettingsError:
    return SettingsError(f"The state cannot be kept in {path}: {error.strerror or error}; give --keep another file.")


def _locked(path: Path) -> int:
    """A lock beside the file, which is renamed over now and then."""
    if path.is_dir():
        raise SettingsError(f"{path} is a folder; give the name of a file to --keep, such as {path / 'workspace'}.")
    beside = path.with_name(f".{path.name}.lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.touch()
        found = lock(beside, wait=False)
    except OSError as error:
        raise _cannot_be_kept(path, error) from None
    if found is None:
        raise SettingsError(f"Another server keeps its state in {path}; give this one another file.")
    return found
