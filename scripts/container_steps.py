"""The steps of the Dockerfile without Docker: what it copies, its pip step in an empty environment, and its server.

A step for the container's own users (useradd, USER, VOLUME) is named and left out. The server listens on loopback.
"""

import json
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PATIENCE = 120  # seconds for the server to answer
LEFT_OUT = ("useradd", "apt-get")


def steps(text: str) -> list[tuple[str, str]]:
    """Instruction and argument of each line; a comment is none."""
    joined = text.replace("\\\n", " ")
    lines = [line.strip() for line in joined.splitlines() if line.strip() and not line.startswith("#")]
    return [(line.split(maxsplit=1)[0], line.split(maxsplit=1)[1]) for line in lines]


def copied(argument: str, place: Path) -> None:
    """COPY, from the repository into the build folder."""
    *sources, target = argument.split()
    for source in sources:
        found = ROOT / source
        if found.is_dir():
            shutil.copytree(found, place / target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(found, place / target)


def run(argument: str, place: Path, venv: Path) -> None:
    """RUN, with the pip of an empty environment."""
    words = shlex.split(argument)
    if words[0] in LEFT_OUT:
        print("left out:", argument)
        return
    subprocess.run([str(venv / "bin" / words[0]), *words[1:]], cwd=place, check=True)


def serves(command: list[str], place: Path, venv: Path) -> None:
    """ENTRYPOINT and CMD answer the health check, and turn away who has no token."""
    words = [{"0.0.0.0": "127.0.0.2", "8000": "0"}.get(word, word) for word in command[1:]]
    words = [str(place / Path(word).name) if word.startswith("/models/") else word for word in words]
    server = subprocess.Popen(
        [str(venv / "bin" / command[0]), *words], cwd=place, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        assert server.stdout is not None
        address, seen = None, ""
        for line in server.stdout:
            seen += line
            if found := re.search(r"http://[\d.]+:\d+", line):
                address = found[0]
                break
        if address is None:
            raise SystemExit(f"the server did not say where it listens:\n{seen}")
        health = _answer(f"{address}/health")
        print("health:", health)
    finally:
        server.terminate()
        server.wait(timeout=PATIENCE)


def _answer(address: str) -> object:
    until = time.monotonic() + PATIENCE
    while True:
        try:
            with urllib.request.urlopen(address, timeout=5) as answer:
                return json.load(answer)
        except urllib.error.URLError:
            if time.monotonic() > until:
                raise
            time.sleep(0.2)


def main() -> None:
    """All steps, in a folder that is removed afterwards."""
    entry: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        place, venv = Path(folder, "build"), Path(folder, "venv")
        place.mkdir()
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
        for instruction, argument in steps((ROOT / "Dockerfile").read_text(encoding="utf-8")):
            if instruction == "COPY":
                copied(argument, place)
            elif instruction == "RUN":
                run(argument, place, venv)
            elif instruction in ("ENTRYPOINT", "CMD"):
                entry += json.loads(argument)
        serves(entry, Path(folder), venv)
    print("the Dockerfile's steps work")


if __name__ == "__main__":
    main()
