"""Which typefaces there are: a pinned list of packages, one family each, and how to fetch exactly these."""

import hashlib
import json
import re
import subprocess
import sys
import urllib.request
import zipfile
from dataclasses import asdict, dataclass
from pathlib import Path

PREFIX = "fontpkg-"
DOWNLOAD = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:"]


@dataclass(frozen=True)
class Typeface:
    """One family as a package offers it; the file is its upright regular (or variable) face."""

    package: str
    version: str
    wheel_sha256: str
    family: str
    licence: str
    copyright: str
    file: str
    variable: bool


def read_list(path: Path) -> list[Typeface]:
    """The pinned list, in its own order: the position in it is the typeface's number."""
    return [Typeface(**row) for row in json.loads(path.read_text("utf-8"))]


def write_list(typefaces: list[Typeface], path: Path) -> None:
    """One typeface a line, so that a change of one version is a change of one line."""
    rows = [json.dumps(asdict(typeface), ensure_ascii=False) for typeface in typefaces]
    path.write_text("[\n" + ",\n".join(rows) + "\n]\n", "utf-8")


def discover(index: str, folder: Path) -> list[Typeface]:
    """Every package of the family prefix that the package index offers, newest version, fetched into a folder."""
    with urllib.request.urlopen(index) as answer:
        listing = answer.read().decode("utf-8", "replace")  # a page of links; only the names matter
    names = sorted(set(re.findall(rf"\b{PREFIX}[a-z0-9-]*[a-z0-9]", listing)))
    for name in names:
        # Some names are announced without any file to fetch; pip says so and the name is passed over.
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "-q",
            "--no-deps",
            "--only-binary=:all:",
            "-d",
            folder,
            name,
        ]
        if subprocess.run(command, check=False, capture_output=True).returncode:
            print(f"{name}: nothing to fetch, passed over")
    return [describe(wheel) for wheel in sorted(folder.glob("*.whl"))]


def describe(wheel: Path) -> Typeface:
    """What a fetched package says about its family."""
    _, version, *_ = wheel.name.split("-")
    with zipfile.ZipFile(wheel) as archive:
        (entry,) = (name for name in archive.namelist() if name.endswith("/metadata.json"))
        about = json.loads(archive.read(entry))
        licence_text = archive.read(entry.replace("metadata.json", "LICENSE")).decode("utf-8-sig")
    upright = [row for row in about["files"] if row["style"] == "normal" and (row["variable"] or row["weight"] == 400)]
    if len(upright) != 1:
        raise SystemExit(f"{wheel.name} has {len(upright)} upright regular faces where exactly one was expected.")
    return Typeface(
        package=PREFIX + about["slug"],
        version=version,
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        family=about["family"],
        licence=about["license"],
        copyright=copyright_line(licence_text) or about["copyright"],
        file=entry.replace("metadata.json", upright[0]["path"]),
        variable=upright[0]["variable"],
    )


def copyright_line(licence_text: str) -> str:
    """The licence file's own copyright paragraph, which also names reserved font names; empty where it has none."""
    paragraph = re.split(r"\n\s*\n|\nThis Font Software", licence_text.strip().replace("\r", ""), maxsplit=1)[0]
    return " ".join(paragraph.split()) if paragraph.startswith("Copyright") else ""


def fetch(typefaces: list[Typeface], folder: Path) -> None:
    """The pinned packages, checked against their hashes and unpacked into a folder; nothing is installed."""
    requirements = folder / "requirements.txt"
    lines = [f"{face.package}=={face.version} --hash=sha256:{face.wheel_sha256}" for face in typefaces]
    requirements.write_text("\n".join(lines) + "\n")
    subprocess.run([*DOWNLOAD, "--require-hashes", "-d", folder, "-r", requirements], check=True)
    for wheel in sorted(folder.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)
