"""The console script: a reader that goes away, and an interruption."""

import errno
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import e3bm
from e3bm.cli.commands import predict, prepare
from e3bm.cli.complaints import EXAMPLES
from e3bm.cli.console import parse, show
from e3bm.cli.main import COMMANDS, CONTINUING, main
from e3bm.cli.plain_help import plain_value
from e3bm.errors import CheckpointError
from photo_models import CLASSES, write_folder


@pytest.mark.parametrize("words", [["--help"], ["fit", "--help"], ["--version"]])
def test_a_reader_that_has_gone_is_no_error(words):
    command = [sys.executable, "-m", "e3bm", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as started:
        started.stdout.close()  # before anything is written: every write breaks the pipe
        complaints = started.stderr.read()
        assert (complaints, started.wait()) == (b"", 0)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no device that is always full")
@pytest.mark.parametrize("words", [["--help"], ["fit", "--help"], ["presets"]])
def test_output_that_cannot_be_written_is_one_sentence(words):
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "e3bm", *words]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert re.fullmatch(r"e3bm: .*(cannot be written|no space left).*\n", done.stderr)


def test_only_commands_that_continue_promise_it(monkeypatch, capsys):
    def interrupted(words):
        raise KeyboardInterrupt

    assert set(CONTINUING) <= set(COMMANDS)
    monkeypatch.setattr(predict, "run", interrupted)
    assert main(["predict", "model.e3bm", "photo.png"]) == 130
    assert capsys.readouterr().err == "e3bm: interrupted; nothing was saved.\n"
    monkeypatch.setattr(prepare, "run", interrupted)
    assert main(["prepare", "cub"]) == 130
    assert capsys.readouterr().err == "e3bm: interrupted; run the same command again to continue.\n"


WAITS_AT_AN_IMPORT = """
import sys
from importlib.abc import MetaPathFinder


class Waiting(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == module:
            print("here", flush=True)
            sys.stdin.read()


module = sys.argv.pop(1)
sys.meta_path.insert(0, Waiting())
from e3bm.cli.main import entry
entry()
"""


@pytest.mark.parametrize(
    ("module", "words", "after"),
    [
        ("e3bm.cli.console", "predict m.e3bm new", "nothing was saved."),
        ("tyro", "prepare cub", "run the same command again to continue."),
        ("e3bm.cli.commands.fit", "fit photos --out m.e3bm", "nothing was saved."),
        ("e3bm.fewshot.few_shot_classifier", "fit photos --out m.e3bm", "nothing was saved."),
    ],
)
def test_an_interrupt_while_a_command_is_being_imported_ends_it_politely(module, words, after):
    """The process waits in the import until its input ends, which is after the signal was sent."""
    command = [sys.executable, "-c", WAITS_AT_AN_IMPORT, module, *words.split()]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as started:
        assert started.stdout.readline() == "here\n"
        started.send_signal(signal.SIGINT)
        _, told = started.communicate()
        assert (started.returncode, told) == (130, f"e3bm: interrupted; {after}\n")


def test_little_is_imported_before_the_command_line_can_be_interrupted():
    """Nothing of ours but the entry itself."""
    code = "import sys; own = set(sys.modules); import e3bm.cli.main; print(*sorted(set(sys.modules) - own))"
    place = str(Path(e3bm.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], capture_output=True, env={"PYTHONPATH": place}, check=True
    )
    loaded = done.stdout.decode().split()
    assert [name for name in loaded if name.startswith("e3bm")] == ["e3bm", "e3bm.cli", "e3bm.cli.main"]


def raising(error):
    def run(words):
        raise error

    return run


@pytest.mark.parametrize(
    ("error", "world", "words"),
    [
        (MemoryError(), 1, "not enough memory"),
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes."),
            1,
            "memory",
        ),
        (RuntimeError("CUDA out of memory. Tried to allocate 20.00 MiB"), 1, "not enough memory"),
        (RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:1"), 2, "is gone"),
        (OSError(errno.ENOSPC, "No space left on device"), 1, "there is no space left where this was to be written"),
        (OSError(errno.ENAMETOOLONG, "File name too long", "y" * 300), 1, "is too long for a file; give a shorter one"),
        (ConnectionResetError(104, "Connection reset by peer"), 2, "is gone"),
    ],
)
def test_what_happens_to_a_process_is_no_defect(monkeypatch, capsys, error, world, words):
    monkeypatch.setenv("WORLD_SIZE", str(world))
    monkeypatch.setattr(prepare, "run", raising(error))
    assert main(["prepare", "cub"]) == 2
    told = capsys.readouterr().err
    assert words in told
    assert "defect" not in told
    assert "Traceback" not in told
    assert told.count("\n") == 1


def test_a_defect_stays_one(monkeypatch, capsys):
    monkeypatch.setattr(prepare, "run", raising(RuntimeError("mat1 and mat2 shapes cannot be multiplied")))
    assert main(["prepare", "cub"]) == 1
    assert "this is a defect of e3bm" in capsys.readouterr().err


def test_names_cannot_steer_a_terminal(monkeypatch, capsys):
    name = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202egpj.exe\rline"
    show(f"class {name}\tand\nmore")
    monkeypatch.setattr(predict, "run", raising(CheckpointError(f"its backbone '{name}' is not known")))
    assert main(["predict", "m.e3bm", "photo.png"]) == 2
    told = capsys.readouterr()
    assert told.out == "class \\x1b]0;owned\\x07\\x1b[2J\\x9b31m\\u202egpj.exe\\x0dline\tand\nmore\n"
    assert not set(told.err) & set("\x1b\x07\x9b\r\u202e")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            "fit",
            "Something is missing after `e3bm fit`: a folder (or zip or tar file) with a subfolder for each "
            "class, a CSV file with path and label, or Label Studio's JSON; and --out (the model file to write, such "
            "as birds.e3bm). For example: e3bm fit photos/ --out birds.e3bm",
        ),
        ("demo --size huge", "--size cannot be 'huge'; choose one of 'tiny', 'small', 'full'."),
        (
            "train --run r --method.name egnn --method.test-epochs 5",
            "--method.test-epochs cannot be '5'; it can only be 'None' here, so leave it out.",
        ),
        ("demo --siz tiny", "e3bm demo has no option --siz. Did you mean --size {tiny,small,full}?"),
        (
            "demo --nothing-like-it 3",
            "e3bm demo has no option --nothing-like-it. `e3bm demo --help` lists the options.",
        ),
        ("demo --workers two", "--workers takes a whole number, found 'two'."),
        ("demo --workers", "--workers needs a value after it."),
        ("compare --shots x", "--shots cannot be 'x'; `e3bm compare --help` says what it takes."),
        ("train --run r --episode.shots x", "--episode.shots cannot be 'x'; `e3bm train --help` says what it takes."),
        ("reproduce T1 --shot 1.5", "--shot takes a whole number, found '1.5'."),
        ("serve --port abc", "--port takes a whole number, found 'abc'."),
        ("predict m.e3bm new --coverage abc", "--coverage takes a number, found 'abc'."),
        ("predict m.e3bm new --coverag 1", "e3bm predict has no option --coverag. Did you mean --coverage NUMBER?"),
        ("evaluate m.e3bm new other", "e3bm evaluate cannot use other. `e3bm evaluate --help` says what it takes."),
        (
            "fit photos --output x.e3bm",
            "e3bm fit has no option --output. Did you mean --out? For example: e3bm fit photos/ --out birds.e3bm",
        ),
        (
            "fit photos --nothing-like-it",
            "e3bm fit has no option --nothing-like-it, and something is missing: --out (the model file to write, such "
            "as birds.e3bm). For example: e3bm fit photos/ --out birds.e3bm",
        ),
    ],
)
def test_a_wrong_command_line_is_one_sentence_of_ours(words, sentence, capsys):
    assert main(words.split()) == 2
    assert capsys.readouterr().err == f"e3bm: {sentence}\n"


TYPE_SPELLINGS = r"None|\b(STR|INT|FLOAT|BOOL)\b|\[\[|\.\.\.\]|\{fixed\}|\(default: (|''|False|True)\)"


@pytest.mark.parametrize("command", COMMANDS)
def test_help_is_in_words_that_a_person_reads(command, capsys):
    with pytest.raises(SystemExit) as stop:
        main([command, "--help"])
    assert not stop.value.code
    shown = capsys.readouterr().out
    assert shown.startswith(f"usage: e3bm {command} [-h]")
    assert not re.search(TYPE_SPELLINGS, shown), shown


@pytest.mark.parametrize(
    ("spelling", "plain"),
    [
        ("{None}|PATH", "PATH"),
        ("{None}|INT|{INT INT}", "NUMBER or NUMBER NUMBER"),
        ("[FLOAT [FLOAT ...]]", "NUMBER ..."),
        ("{None,a,b}", "{a,b}"),
        ("{a,None}", "{a}"),
        ("{none,None_at_all,STR}", "{none,None_at_all,STR}"),
    ],
)
def test_values_of_options_in_words(spelling, plain):
    assert plain_value(spelling) == plain


METHOD_SETTINGS = ("train", "ablate")
"""Commands whose help shows the settings of a method, which are in the method's file and torch with it."""
WITHOUT_TORCH = """
import sys
from e3bm.cli.main import COMMANDS, main
folder, *shown = sys.argv[1:]
for words in (["datasets", "--folder", folder], ["doctor", folder + "/photos"],
              ["prepare", "mine", "--source", folder + "/photos", "--folder", folder + "/prepared"]):
    assert main(words) == 0, words
    assert "torch" not in sys.modules, words
for name in shown:
    try:
        main([name, "--help"])
    except SystemExit as stop:
        assert not stop.code
    assert "torch" not in sys.modules, name
"""


def test_torch_is_not_imported_where_nothing_is_computed(tmp_path):
    for name in CLASSES:  # twice, since three classes cannot be divided into train, val and test
        shutil.copytree(write_folder(tmp_path / "photos", 2, (name,)) / name, tmp_path / "photos" / f"{name} again")
    words = [name for name in COMMANDS if name not in METHOD_SETTINGS]
    command = [sys.executable, "-c", WITHOUT_TORCH, str(tmp_path), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_positional_arguments_have_names_and_options_still_take_none(capsys):
    with pytest.raises(SystemExit):
        main(["predict", "--help"])
    assert "MODEL [PATHS]" in capsys.readouterr().out.splitlines()[0]
    options = parse(predict.Options, ["m.e3bm", "a.png", "b.png", "--recall", "None"], "predict", "")
    assert (options.paths, options.recall) == (("a.png", "b.png"), None)
    assert main(["train", "--run", "r", "--data.normalisation", "x"]) == 2
    told = capsys.readouterr().err
    assert "--data.normalisation cannot be 'x'; choose one of '" in told
    assert "None" not in told


def test_every_example_names_a_command_and_can_be_read_by_it(capsys):
    for command, example in EXAMPLES.items():
        assert example.split()[0] == command in COMMANDS
        main([*example.split(), "--help-is-no-such-option"])
        assert "has no option --help-is-no-such-option" in capsys.readouterr().err, example
