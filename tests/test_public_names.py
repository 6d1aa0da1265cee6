"""What `from e3bm import ...` offers is there, and asking for the package costs nothing."""

import subprocess
import sys
from importlib.metadata import version

import pytest

import e3bm


@pytest.mark.parametrize("name", e3bm.__all__)
def test_every_public_name_is_there(name):
    assert getattr(e3bm, name) is not None


def test_the_version_is_that_of_the_package():
    assert e3bm.__version__ == version("e3bm")


def test_an_unknown_name_is_refused():
    with pytest.raises(AttributeError, match="no name 'nothing'"):
        e3bm.nothing  # noqa: B018


def test_importing_the_package_does_not_import_torch():
    code = "import sys, e3bm; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
