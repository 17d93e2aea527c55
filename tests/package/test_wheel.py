"""The wheel as users meet it: installed by pip into an environment that has nothing, far from the repository.

`make test-python` runs this with FS_WHEEL, the wheel, and FS_TOOLS, the environment with the build tools. numpy, and
what builds the source distribution, come from the package index.
"""
import email
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WHEEL = Path(os.environ.get("FS_WHEEL", ""))
TOOLS = Path(os.environ.get("FS_TOOLS", ROOT / "build" / "python" / "tools"))
PACKAGE = ROOT / "python" / "flashsampling"

pytestmark = pytest.mark.skipif(WHEEL.suffix != ".whl", reason="FS_WHEEL names no wheel: run make test-python")

DRAW = """
import sys, numpy as np, flashsampling as fs
weights = np.random.default_rng(1).standard_normal((1000, 16), np.float32)
hidden = np.random.default_rng(2).standard_normal((4, 16), np.float32)
context = fs.Context()
greedy = context.sample(fs.Head(weights), hidden, temperature=0).tokens
assert (greedy[:, 0] == (hidden.astype("f8") @ weights.T.astype("f8")).argmax(1)).all()
assert not {"torch", "transformers"} & set(sys.modules)
print(fs.__file__)
print(fs.version(), context.sample(fs.Head(weights), hidden, seed=1, position=2).tokens[:, 0].tolist())
"""


def run(*command, **keywords):
    """Output of a command outside the repository, with nothing of ours in its environment."""
    drop = ("PYTHONPATH", "FLASHSAMPLING_", "FS_", "VIRTUAL_ENV", "PYTHONHOME")
    env = {k: v for k, v in os.environ.items() if not k.startswith(drop)}
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=1200,
                          env={**env, **keywords.pop("env", {})}, **keywords)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def installed(folder, what, *options, env={}):
    """The Python of a new environment with numpy and this file of ours in it."""
    run(sys.executable, "-m", "venv", folder)
    python = folder / "bin" / "python"
    run(python, "-m", "pip", "install", "-q", "--disable-pip-version-check", what, *options, env=env, cwd=folder)
    return python


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    return installed(tmp_path_factory.mktemp("wheel") / "env", WHEEL)


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sdist")
    run(TOOLS / "bin" / "python", "-m", "build", "--sdist", "--no-isolation", "-o", folder, ROOT)
    return next(folder.glob("*.tar.gz"))


def header_version():
    text = (ROOT / "include" / "flashsampling.h").read_text()
    return ".".join(re.search(r"FS_VERSION_%s (\d+)" % part, text)[1] for part in ("MAJOR", "MINOR", "PATCH"))


def metadata():
    with zipfile.ZipFile(WHEEL) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(archive.read(name))


def test_the_wheel_holds_the_package_and_nothing_else():
    modules = {str(p.relative_to(PACKAGE.parent)) for p in PACKAGE.rglob("*")
               if p.is_file() and "__pycache__" not in p.parts}
    with zipfile.ZipFile(WHEEL) as archive:
        names = {n for n in archive.namelist() if ".dist-info/" not in n and not n.endswith("/")}
    libraries = {"flashsampling/lib/libflashsampling.so", "flashsampling/lib/libflashsampling_python.so"}
    assert modules | libraries <= names
    assert names - modules - libraries <= {"flashsampling/lib/libflashsampling_cuda.so"}
    assert "flashsampling/py.typed" in names


def test_the_wheel_is_for_every_python_and_says_its_libc():
    assert re.fullmatch(r"flashsampling-%s-py3-none-(manylinux\w+\.)*manylinux_\d+_\d+_\w+\.whl"
                        % re.escape(header_version()), WHEEL.name)


def test_its_metadata():
    about = metadata()
    needs = [line for line in about.get_all("Requires-Dist") if "extra ==" not in line]
    assert needs == ["numpy"] and about["Requires-Python"] == ">=3.10"
    assert set(about.get_all("Provides-Extra")) >= {"torch", "transformers"}
    assert about["Version"] == header_version() and about["License-Expression"] == "Apache-2.0"


def test_it_draws_far_from_the_repository(python, tmp_path):
    file, drawn = run(python, "-c", DRAW, cwd=tmp_path).splitlines()
    assert Path(file).is_relative_to(python.parents[1]) and drawn.startswith(header_version())


def test_its_files_lie_in_its_folder_and_nothing_is_missing(python, tmp_path):
    code = "import importlib.metadata as m; print(*m.files('flashsampling'), sep='\\n')"
    tops = {line.split("/")[0] for line in run(python, "-c", code, cwd=tmp_path).splitlines()}
    assert tops == {"flashsampling", "flashsampling-%s.dist-info" % header_version()}
    run(python, "-m", "pip", "check", cwd=tmp_path)


def test_a_cuda_library_in_it_is_loaded_when_it_is_asked_for(python, tmp_path):
    """And answers, also where there is neither driver nor device: then a context is refused, and nothing dies."""
    with zipfile.ZipFile(WHEEL) as archive:
        if "flashsampling/lib/libflashsampling_cuda.so" not in archive.namelist():
            pytest.skip("the wheel has no CUDA library; WHEEL=file tests one that has")
    code = """
import flashsampling as fs
fs.Context("cpu")
assert "_cuda.so" not in open("/proc/self/maps").read()
assert fs.supports("cuda", dtype="bf16") == (True, "")
assert "_cuda.so" in open("/proc/self/maps").read()
try:
    fs.Context("cuda")
except fs.Error as error:
    assert error.name == "device", error
"""
    run(python, "-c", code, cwd=tmp_path)


def test_its_command_line_starts_without_torch(python, tmp_path):
    assert run(python, "-m", "flashsampling", "--version", cwd=tmp_path).strip() == header_version()
    found = run(python, "-m", "flashsampling", "info", cwd=tmp_path)
    assert "\ntorch         not here: No module named 'torch'\n" in found


def test_the_source_distribution_holds_what_the_build_reads_alone(sdist):
    names = run("tar", "tzf", sdist).splitlines()
    tops = {name.split("/")[1] for name in names}
    assert tops == {"CMakeLists.txt", "LICENSE", "PKG-INFO", "README.md", "cmake", "include", "pyproject.toml",
                    "python", "src"}
    assert not [name for name in names if "__pycache__" in name or "/src/io/" in name]


def test_the_source_distribution_builds_with_a_compiler_alone(sdist, python, tmp_path):
    """Without cmake, ninja and make, which the build then takes from the package index; and it draws the same."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for folder in reversed(os.environ["PATH"].split(os.pathsep)):
        for file in Path(folder).iterdir() if Path(folder).is_dir() else ():
            if not re.match(r"cmake|ctest|cpack|ninja|g?make|nvcc|pip|python", file.name):
                (tools / file.name).unlink(missing_ok=True)
                (tools / file.name).symlink_to(file)
    assert shutil.which("cmake", path=str(tools)) is None
    other = installed(tmp_path / "env", sdist, env={"PATH": str(tools)})
    assert run(other, "-c", DRAW, cwd=tmp_path).splitlines()[1] == run(python, "-c", DRAW, cwd=tmp_path).splitlines()[1]
    assert not list((tmp_path / "env").rglob("libflashsampling_cuda.so"))
