"""The wheel in an environment of its own, and the source distribution."""
import pytest

from environments import ROOT, TOOLS, WHEEL, installed, run


@pytest.fixture(scope="session")
def python(tmp_path_factory):
    return installed(tmp_path_factory.mktemp("wheel") / "env", WHEEL)


@pytest.fixture(scope="session")
def sdist(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sdist")
    run(TOOLS / "bin" / "python", "-m", "build", "--sdist", "--no-isolation", "-o", folder, ROOT)
    return next(folder.glob("*.tar.gz"))
