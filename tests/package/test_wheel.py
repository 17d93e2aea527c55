"""The wheel and the source distribution as users meet them: installed by pip into an environment that has nothing, far
from the repository."""
import email
import os
import re
import shutil
import zipfile
from pathlib import Path

import pytest

from environments import ROOT, WHEEL, header_version, installed, needs_wheel, run

PACKAGE = ROOT / "python" / "flashsampling"

pytestmark = needs_wheel

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


def metadata():
    with zipfile.ZipFile(WHEEL) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(archive.read(name))


def test_the_wheel_holds_the_package_and_nothing_else():
    modules = {str(p.relative_to(PACKAGE.parent)) for p in PACKAGE.rglob("*")
               if p.is_file() and "__pycache__" not in p.parts}
    with zipfile.ZipFile(WHEEL) as archive:
        names = {n for n in archive.namelist() if ".dist-info/" not in n and not n.endswith("/")}
    built = {"flashsampling/bin/flashsample", "flashsampling/lib/libflashsampling.so",
             "flashsampling/lib/libflashsampling_python.so"}
    headers = {"flashsampling/include/" + header.name for header in (ROOT / "include").glob("*.h")}
    assert modules | built | headers <= names
    assert names - modules - built - headers <= {"flashsampling/lib/libflashsampling_cuda.so"}
    assert "flashsampling/py.typed" in names


def test_the_wheel_is_for_every_python_and_for_glibc_2_17():
    assert re.fullmatch(r"flashsampling-%s-py3-none-(manylinux\w+\.)*manylinux_2_17_\w+\.whl"
                        % re.escape(header_version()), WHEEL.name)


def test_its_metadata():
    about = metadata()
    needs = [line for line in about.get_all("Requires-Dist") if "extra ==" not in line]
    assert needs == ["numpy"] and about["Requires-Python"] == ">=3.10"
    assert set(about.get_all("Provides-Extra")) >= {"torch", "transformers"}
    assert about["Version"] == header_version() and about["License-Expression"] == "Apache-2.0"
    assert about["Author"] == "flashsampling developers" and about["Description-Content-Type"] == "text/markdown"
    assert about.get_payload().strip() == (ROOT / "python" / "README.md").read_text().strip()


def test_it_draws_far_from_the_repository(python, tmp_path):
    file, drawn = run(python, "-c", DRAW, cwd=tmp_path).splitlines()
    assert Path(file).is_relative_to(python.parents[1]) and drawn.startswith(header_version())


def test_the_example_of_its_description_runs(python, tmp_path):
    example = re.search(r"^```python\n(.*?)^```", metadata().get_payload(), re.S | re.M)[1]
    assert len(re.findall(r"\d+", run(python, "-c", example, cwd=tmp_path))) == 3


def test_its_files_lie_in_its_folder_and_nothing_is_missing(python, tmp_path):
    code = "import importlib.metadata as m; print(*m.files('flashsampling'), sep='\\n')"
    files = run(python, "-c", code, cwd=tmp_path).splitlines()
    outside = [line for line in files if line.split("/")[0] not in ("flashsampling", "flashsampling-%s.dist-info"
                                                                    % header_version())]
    assert outside == ["../../../bin/flashsample"]
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


def test_the_source_distribution_holds_what_the_build_reads_alone(sdist):
    names = run("tar", "tzf", sdist).splitlines()
    tops = {name.split("/")[1] for name in names}
    assert tops == {"CMakeLists.txt", "LICENSE", "PKG-INFO", "bench", "cli", "cmake", "include", "pyproject.toml",
                    "python", "src"}
    assert not [name for name in names if "__pycache__" in name or "/src/dist/mpi/" in name]


def test_the_source_distribution_builds_with_a_compiler_alone_and_uninstalls(sdist, python, tmp_path):
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
    assert "noise id" in run(other.with_name("flashsample"), "info", cwd=tmp_path)
    run(other, "-m", "pip", "uninstall", "-q", "-y", "flashsampling", cwd=tmp_path)
    assert not list((tmp_path / "env").rglob("*flashsampl*"))
