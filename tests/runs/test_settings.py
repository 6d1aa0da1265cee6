"""Settings: every one explained, frozen, refused with a reason when unknown or contradictory."""

import json
import subprocess
import sys

import pytest
from pydantic import BaseModel

from e3bm.errors import SettingsError
from e3bm.runs import settings as module
from e3bm.runs.settings import HyperpriorSettings, PretrainSettings, TestSettings, TrainSettings
from e3bm.settings import Settings, read_settings

GROUPS = [kind for kind in vars(module).values() if isinstance(kind, type) and issubclass(kind, Settings)]


@pytest.mark.parametrize("kind", GROUPS, ids=lambda kind: kind.__name__)
def test_every_setting_has_a_sentence(kind):
    assert kind.__doc__
    for name, field in kind.model_fields.items():
        if isinstance(field.default, BaseModel):
            continue  # a group: its own class explains it
        assert field.description, f"{kind.__name__}.{name}"
        assert field.description.strip()[-1] in ".)", f"{kind.__name__}.{name}"


def test_settings_do_not_change():
    with pytest.raises(Exception, match="frozen"):
        TrainSettings().seed = 3


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"sed": 1}, "Setting sed: there is no such setting"),
        ({"method": {"epoch": 1}}, "MTL has no option 'epoch'; it has epochs, test_epochs, rate"),
        ({"method": {"epochs": 0}}, r"Setting method\.epochs: .*greater than or equal to 1 \(found 0\)"),
        ({"method": {"order": "third"}}, r"Setting method\.order: it must be 'first' or 'second'"),
        ({"hyperprior": {"weight": "frozen"}}, "needs frozen_from"),
        ({"hyperprior": {"embedding": True}}, "'stats' summary replaces the embedding"),
        ({"hyperprior": {"weight": "generated", "weight_start": "last"}}, "a zero cannot be scaled"),
        ({"method": {"test_epochs": 7}, "hyperprior": {"weight": "equal"}}, "test_epochs is for plain methods"),
        (
            {"backbone": {"batchnorm": "per_step"}},
            "MTL does not work with backbone.batchnorm 'per_step'; set backbone.batchnorm",
        ),
        ({"method": {"name": "sib"}, "backbone": {"adapt": "full"}}, "SIB trains on frozen features"),
        ({"method": {"name": "maml"}}, "MAML adapts the whole network"),
        ({"backbone": {"batchnorm": "batch"}}, "a frozen backbone has running statistics"),
        ({"data": {"augment": True}}, "features of a frozen backbone are computed once"),
        (
            {"method": {"name": "maml"}, "backbone": {"adapt": "full"}, "machine": {"precision": "bfloat16"}},
            "MAML's second derivatives need float32 or float64",
        ),
    ],
)
def test_unknown_and_contradictory_settings_are_refused_with_the_reason(values, reason):
    with pytest.raises(SettingsError, match=reason):
        read_settings(TrainSettings, values)


def test_a_copy_with_changes_is_validated():
    changed = TrainSettings().but(seed=4, method__epochs=7, hyperprior=HyperpriorSettings(weight="equal"))
    assert (changed.seed, changed.method.epochs, changed.hyperprior.weight) == (4, 7, "equal")
    with pytest.raises(SettingsError, match=r"There is no setting 'method\.epoch'"):
        TrainSettings().but(method__epoch=7)
    with pytest.raises(SettingsError, match=r"Setting seed"):
        TrainSettings().but(seed=-1)


def test_a_group_given_in_part_keeps_the_rest_of_its_own_default():
    """Pretraining validates every epoch and augments, also when something else of these groups is set."""
    found = read_settings(PretrainSettings, {"validation": {"episodes": 7}, "data": {"dataset": "fc100"}})
    assert (found.validation.every, found.validation.episodes) == (1, 7)
    assert found.data.augment
    assert found.backbone.adapt == "full"


def test_a_digest_names_exactly_these_settings():
    assert TrainSettings().digest() == TrainSettings().digest()
    assert TrainSettings().digest() != TrainSettings(seed=1).digest()
    assert len({TestSettings(shots=shots).digest() for shots in (1, 5, (1, 5))}) == 3


def test_titles():
    assert TrainSettings().title == "MTL"
    assert TrainSettings().but(hyperprior__weight="generated").title == "MTL+E3BM"
    values = {"method": {"name": "maml_plus_plus"}, "backbone": {"adapt": "full", "batchnorm": "batch"}}
    better = read_settings(TrainSettings, values)
    assert (better.title, better.but(hyperprior__weight="generated").title) == ("MAML++", "MAML++ + E3BM")
    assert TrainSettings(name="mine").title == "mine"


LOADED = "import sys, json; {work}; print(json.dumps(sorted(sys.modules)))"


@pytest.mark.parametrize(
    "work",
    [
        "from e3bm.cli.main import main; main(['--help'])",
        # `train --help` shows the options of a method, whose file imports torch.
        "from e3bm.cli.main import main; main(['pretrain', '--help'])",
        "from e3bm.cli.main import main; main(['test', '--help'])",
        "from e3bm.cli.main import main; main(['fit', '--help'])",
        "from e3bm.cli.main import main; main(['predict', '--help'])",
        "from e3bm.cli.main import main; main(['serve', '--help'])",
        "from e3bm.cli.main import main; main(['trian'])",
    ],
)
def test_help_does_not_import_torch(work):
    work = f"exec({f'try:{chr(10)} {work}{chr(10)}except SystemExit: pass'!r})"
    done = subprocess.run([sys.executable, "-c", LOADED.format(work=work)], capture_output=True, text=True, check=True)
    loaded = set(json.loads(done.stdout.splitlines()[-1]))
    assert not loaded & {"torch", "matplotlib", "sklearn", "PIL"}
    assert "e3bm.cli.main" in loaded
    if "['--help']" in work:
        assert not loaded & {"tyro", "rich", "numpy", "pydantic"}
