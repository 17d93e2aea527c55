"""Every message of docs/guide/troubleshooting.md is real: each stands in a list below, with what provokes it, and each
list entry stands on the page. IN_SOURCES has messages that need a GPU or an engine: their fixed texts are in the
sources. A quotation mark ' on the page may be a backquote in the message, which Markdown cannot show."""
import ctypes.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import flashsampling as fs

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "guide" / "troubleshooting.md").read_text()
# The first column of each table whose heading says that it has messages.
MESSAGES = [cell for table in re.findall(r"^\| (?:message|log line) \|.*?(?=\n\n)", PAGE, re.S | re.M)
            for cell in re.findall(r"^\| `(.*?)` \|", table, re.M)]
MESSAGES.append("FLASHSAMPLING_TYPO=1 (unknown: nothing reads it)")

W, H = np.ones((1000, 64), np.float32), np.ones((2, 64), np.float32)
NAN = np.array([[1] * 64, [np.nan] * 64], np.float32)


def sample(hidden=H, weight=W, **rules):
    return lambda: fs.sample(hidden, weight, **rules)


def negative_dim():
    head = fs.Head(W)
    head.struct.dim = -1
    fs.Context("cpu").sample(head, H)


def stream_on_the_cpu():
    batch = fs.Batch(fs.Head(W), H)
    batch.struct.cuda_stream = 1
    fs.Context("cpu").sample(fs.Head(W), batch)


def two_threads():
    """As if another thread were in a call: the lock it would hold is held."""
    context, head = fs.Context("cpu"), fs.Head(W)
    with context._busy:
        context.sample(head, H)


def after_fork():
    context = fs.Context("cpu")
    read, write = os.pipe()
    if os.fork() == 0:
        try:
            context.sample(fs.Head(W), H)
        except fs.Error as error:
            os.write(write, str(error).encode())
        os._exit(0)
    os.wait()
    os.close(write)
    raise RuntimeError(os.read(read, 1000).decode())


IN_PROCESS = {
    "1 of 2 rows lack a token: row 1: EMPTY NAN": sample(NAN),
    "2 of 2 rows lack a token: row 0: EMPTY; row 1: EMPTY": sample(allow=np.zeros((2, 1000), bool)),
    "1 of 2 rows lack a token: row 1: BAD_TOP_P": sample(top_p=[0.9, 95]),
    "1 of 2 rows lack a token: row 1: BAD_TEMPERATURE": sample(temperature=[1, -1]),
    "1 of 2 rows lack a token: row 0: BAD_TOKEN": sample(edits=[{1000: 1.0}, {}]),
    "1 of 2 rows lack a token: row 1: BAD_SLOT": sample(slot=np.array([0, 9]), temperature=np.ones(4, np.float32)),
    "2 of 2 rows lack a token: row 0: SHORT; row 1: SHORT": sample(samples=3, mode="without_replacement", top_k=2),
    "1 of 1 rows lack a token: row 0: OVER_LIMIT": sample(H[:1], top_k=[5], limits={"absent": fs.Rule.TOP_K}),
    "hidden: array of type float64, ...": sample(H.astype(np.float64)),
    "weights: elements of a row are 256 bytes apart, ...": sample(weight=W.T),
    "hidden: 60 columns, the head has 64": sample(H[:, :60]),
    "unknown rule: n; it is called samples here": sample(n=3),
    "repetition: 1.1, but of which tokens: ...": sample(repetition=1.1),
    "head.dim is -1, must be 1 to 2147483647": negative_dim,
    "batch.cuda_stream is ...": stream_on_the_cpu,
    "state: the context is from before a fork(): here it can only be destroyed": after_fork,
    "the context is in a call of another thread: use one context per thread": two_threads,
}
PYTHON = f"{sys.executable} -c 'import flashsampling as fs; fs.Context(\"cpu\")'"
CUDA = f"{sys.executable} -c 'import flashsampling as fs; fs.Context(\"cuda\")'"
SAMPLE = "$FLASHSAMPLE sample --synthetic 5000,64,3"
WITH_BUILD = {  # shell commands, in a folder with the program app, linked with the library
    "error while loading shared libraries: libflashsampling.so...": "LD_LIBRARY_PATH= ./app",
    "Package flashsampling was not found in the pkg-config search path.": "pkg-config --libs flashsampling",
    'By not providing "Findflashsampling.cmake" in CMAKE_MODULE_PATH':
        "cmake -S . -B build -DCMAKE_FIND_USE_CMAKE_SYSTEM_PATH=OFF",
    "fatal error: flashsampling.h: No such file or directory":
        f"gcc -nostdinc -I{ROOT}/cmake {ROOT}/examples/minimal.c",
    "libflashsampling.so was not found: ...": f"FLASHSAMPLING_LIBRARY= PYTHONPATH=. {PYTHON}",
    "/nowhere.so: cannot open shared object file: No such file or directory":
        f"FLASHSAMPLING_LIBRARY=/nowhere.so {PYTHON}",
    "the cuda backend is not in this build: ...": CUDA,
    "--backend cuda: the cuda backend is not in this build; ...": f"{SAMPLE} --backend cuda",
    "FLASHSAMPLING_BACKEND=cuda: that backend is not in this build": f"FLASHSAMPLING_BACKEND=cuda {PYTHON}",
    "FLASHSAMPLING_BACKEND=gpu is unknown; known are cuda, cpu, reference": f"FLASHSAMPLING_BACKEND=gpu {PYTHON}",
    "FLASHSAMPLING_ISA=avx1024 is unknown or does not run here; these do: ...": f"FLASHSAMPLING_ISA=avx1024 {PYTHON}",
    "FLASHSAMPLING_CALLS=x: expected one of native, ctypes": f"FLASHSAMPLING_CALLS=x {PYTHON}",
    "FLASHSAMPLING_MPI=x is unknown; ...": f"FLASHSAMPLING_MPI=x {SAMPLE}",
    "FLASHSAMPLING_TYPO=1 (unknown: nothing reads it)": "FLASHSAMPLING_TYPO=1 $FLASHSAMPLE info",
}
IN_SOURCES = ("the cuda backend needs a CUDA device, but", "bytes of device memory for this call:",
              "draws inside the LM head:", "'s own sampler draws every step:", "draws steps itself that have this:")


def is_in(message, text):
    """Whether the text has this message of the page; `...` is any text."""
    pattern = re.escape(message.replace("`", "'")).replace(r"\.\.\.", ".*")
    return re.search(pattern, text.replace("`", "'"), re.S)


def on_page(key):
    """The message of the page that this key of a list begins."""
    found = [message for message in MESSAGES if is_in(key, message)]
    assert len(found) == 1, f"{key!r} is {len(found)} times on the page"
    return found[0]


@pytest.mark.parametrize("key", IN_PROCESS)
def test_a_call_raises_the_message(key):
    with pytest.raises(Exception) as error:
        IN_PROCESS[key]()
    assert is_in(on_page(key), str(error.value)), error.value


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A program, a CMake project that looks for the library, and the package without its library."""
    folder, build = tmp_path_factory.mktemp("user"), Path(os.environ["FS_BUILD"])
    subprocess.run(["gcc", ROOT / "examples" / "minimal.c", f"-I{ROOT}/include", f"-L{build}/lib", "-lflashsampling",
                    "-o", folder / "app"], check=True)
    (folder / "CMakeLists.txt").write_text("cmake_minimum_required(VERSION 3.25)\nproject(app C)\n"
                                           "find_package(flashsampling REQUIRED)\n")
    shutil.copytree(ROOT / "python" / "flashsampling", folder / "flashsampling",
                    ignore=lambda _, names: [name for name in names if name in ("lib", "__pycache__")])
    return folder


@pytest.mark.skipif("FS_BUILD" not in os.environ, reason="FS_BUILD names no build")
@pytest.mark.parametrize("key", WITH_BUILD)
def test_a_command_prints_the_message(key, folder):
    done = subprocess.run(["sh", "-c", WITH_BUILD[key]], cwd=folder, capture_output=True, text=True,
                          env={**os.environ, "PKG_CONFIG_PATH": "", "PKG_CONFIG_LIBDIR": "/", "LC_ALL": "C"})
    if "libflashsampling.so" in key and ctypes.util.find_library("flashsampling"):
        pytest.skip("a library is installed where the loader looks")
    assert is_in(on_page(key), done.stdout + done.stderr), done.stdout + done.stderr


@pytest.mark.parametrize("key", IN_SOURCES)
def test_a_message_of_gpus_and_engines_is_in_the_sources(key):
    sources = [*(ROOT / "src").rglob("*.c"), *(ROOT / "cli").glob("*.c"), *(ROOT / "python").rglob("*.py")]
    assert any(key in file.read_text() for file in sources)
    assert any(is_in(key, message) for message in MESSAGES)


def test_every_message_of_the_page_is_in_a_list():
    known = [*IN_PROCESS, *WITH_BUILD, *IN_SOURCES]
    assert len(MESSAGES) > 30
    assert not [message for message in MESSAGES if not any(is_in(key, message) for key in known)]


def test_every_environment_variable_is_in_the_reference():
    page = (ROOT / "docs" / "reference" / "environment.md").read_text()
    files = [file for folder in ("src", "cli", "python") for file in (ROOT / folder).rglob("*.[chp]*")]
    used = {name for file in files if file.suffix in (".c", ".h", ".py")
            for name in re.findall(r"""["']?(FLASHSAMPLING_[A-Z_]*[A-Z])(?=["'=:\s])""", file.read_text())}
    assert used - {"FLASHSAMPLING_H"} == set(re.findall(r"FLASHSAMPLING_[A-Z_]+[A-Z]", page)) - {
        "FLASHSAMPLING_TEST_SCALE", "FLASHSAMPLING_TEST_STANDIN"} and len(used) > 15
