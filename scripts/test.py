#!/usr/bin/env python3
"""Builds and runs every test, in legs, and ends with one line: `N passed, N failed, N skipped`.

    scripts/test.py                 all legs, what `make test` does
    scripts/test.py --quick         the legs release and checks
    scripts/test.py --leg asan      one leg; may be given several times
    scripts/test.py --leg python    what `make test-python` does; not one of all legs, for it downloads gigabytes
    scripts/test.py --only PATTERN  only programs, Python files and checks whose name contains PATTERN
    scripts/test.py --skips FILE    what is skipped and matches no line of FILE fails (.ci/skips)
    scripts/test.py --list          the legs, what they run, and stop
    ctest --test-dir build/tests --rerun-failed --output-on-failure     what failed, once more

A leg builds a folder and adds programs to one list, which ctest then runs, a few at a time and the longest first.
A C test is found by its name, tests/c/test_*.c, and runs in every leg but valgrind unless a table below says otherwise.
FLASHSAMPLING_TEST_SCALE tells long tests how much of themselves to do where everything is slow (sanitizers, emulation).
A skipped cmocka case gives its reason by printing `skip: why` before skip(); callers and checks skip with exit code 77,
the last line they print being the reason. Only the standard library is used here: this file must run before anything
is installed.
"""

import argparse
import json
import os
import platform
import re
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

import mpi
import python_leg
from outcomes import read_exit, read_junit, read_tap
from runner import BUILD, ROOT, RUN, Runner, say

OTHER = {"x86_64": "aarch64", "aarch64": "x86_64"}.get(platform.machine())

LEGS = {
    "release": "optimised build, warnings are errors: C tests, fuzzing, callers, ranks under every MPI, Python tests",
    "asan": "address, leak and undefined-behaviour sanitizers: C tests, fuzzing, callers, ranks",
    "tsan": "thread sanitizer: C tests, callers, ranks",
    "isa": "every instruction set this machine runs and does not choose, forced by FLASHSAMPLING_ISA: C tests",
    "cross": f"the other architecture ({OTHER}) under qemu-user: C tests, callers",
    "valgrind": "memcheck on the release build: the quick C tests, ranks",
    "gpu": "the CUDA backend on the GPU that is here: make test-gpu",
    "checks": "tests/checks: layering, exported symbols, flags, header, install, README, links",
    "python": "the wheel in an environment with torch and transformers from the package index: make test-python",
}
ALONE = ("python",)  # legs that run when they are named

# Seconds until a program is killed.
TIMEOUT = {"test": 400, "fuzz": 400, "caller": 120, "pytest": 900, "check": 1000, "gpu": 1800}
# How much of a long test a leg does, so that each leg takes about as long as the first.
SCALE = {"release": 1, "asan": 0.1, "tsan": 0.05, "isa": 0.3, "cross": 0.05, "valgrind": 0.02}
# Long even so under sanitizers and where everything is emulated: a third of that.
LONG = ("test_equal_rows", "test_screened", "test_nucleus", "test_parts", "fuzz_screens")
# These test the law of the draws; the other legs want the same bits, which test_agree and test_invariance compare.
RELEASE_ONLY = ("test_power", "test_screened_law", "test_statistics")
# What the first two look at needs AMX, which no emulator has; the third starts threads after a fork, which qemu 7.2
# cannot; the fourth runs programs, which an emulator does not run.
NOT_EMULATED = ("test_amx", "test_filter", "test_fork", "test_cli_device")
# Memcheck is 50 times slower than the machine. These reach all of the library; only undefined values are its business,
# the rest is the sanitizers'.
VALGRIND = ("test_agree", "test_errors", "test_threads", "test_npy", "test_vectors")
# What a forced row changes is logits and scans over them; test_kernels and test_scans look at every row by themselves.
FORCED = ("test_agree", "test_invariance", "test_memory", "test_nucleus", "test_ranks", "test_filter", "test_stored",
          "test_screened")
FORCED_UNDER_EMULATION = "test_agree"
# A check that compiles for minutes on one core: begun first.
LONG_CHECK = "cuda_report"
# The emulated CPU. Vectors of SVE have 128 bits: with longer ones qemu 7.2 takes up to five times as long, for whatever
# it does.
CPU = {"aarch64": "max,sve128=on", "x86_64": "max"}
# Rows of the dispatch table that a CPU must show, and no others: (CPU, rows).
CPU_ROWS = {"aarch64": (("cortex-a57", "neon scalar"), ("neoverse-n1", "neon scalar"), ("a64fx", "sve neon scalar"),
                        ("max", "svebf16 sve neonmmla neonbf16 neonf16 neon scalar"))}
# Where test_kernels and test_scans run once more, on another CPU: rows that use vectors as long as the machine has
# them, and that NEON needs no extension: (CPU, row).
ON_OTHER_CPUS = {"aarch64": (("max,sve256=on", "svebf16"), ("max,sve256=on", "sve"), ("max,sve512=on", "svebf16"),
                             ("max,sve512=on", "sve"), ("cortex-a57", "neon"))}


# -------------------------------------------------------------------------------------------------------- legs ----


def wants(name, leg):
    if leg in ("valgrind", "isa"):
        return name in (VALGRIND if leg == "valgrind" else FORCED)
    if leg == "tsan" and name.startswith("fuzz_"):
        return False  # one case after the other: there are no races to find
    return leg == "release" or name not in RELEASE_ONLY + (NOT_EMULATED if leg == "cross" else ())


def add_programs(runner, leg, folder, wrapper=(), env=None, kinds=("test", "fuzz", "caller"), suffix="", only=()):
    """The C programs of a build folder that run in this leg, as tests/CMakeLists.txt has listed them."""
    for line in (folder / "tests.txt").read_text().splitlines():
        kind, name, path = line.split("\t")
        if not wants(name, leg) or only and name not in only:
            continue
        if kind == "skipped" and "caller" in kinds:
            runner.skip(leg, name, path)
        elif kind in kinds:
            scale = SCALE[leg] / (3 if leg in ("asan", "tsan", "cross") and name in LONG else 1)
            every = {"CMOCKA_MESSAGE_OUTPUT": "TAP", "FLASHSAMPLING_TEST_SCALE": scale, **(env or {})}
            runner.add(leg, name + suffix, [*wrapper, path], read_tap if kind == "test" else read_exit, every,
                       TIMEOUT=TIMEOUT[kind], COST=int(name in RELEASE_ONLY))


# What ranks are asked (tests/ranks/ranks_test.c), and how many there are of them.
RANKS = {"release": (("same", 1), ("same", 2), ("same", 3), ("same", 4), ("same", 7), ("suite", 4), ("bytes", 3),
                     ("differ", 3), ("fail", 3)),
         "asan": (("same", 2), ("differ", 3), ("fail", 2)), "tsan": (("same", 2), ("fail", 2)),
         "valgrind": (("same", 2), ("differ", 3), ("fail", 2))}
# The same for every MPI but the first, where it is less.
RANKS_AGAIN = {"release": (("same", 1), ("same", 3), ("same", 7), ("bytes", 3), ("differ", 3), ("fail", 3))}


def add_ranks(runner, leg, folder, wrapper=(), env=None):
    """ranks_test under every MPI that is here."""
    for name in mpi.missing():
        runner.skip(leg, f"ranks [{name}]", f"mpirun.{name} is not installed")
    table = RANKS
    for name, launch in mpi.launchers().items():
        if not (folder / "lib" / f"libflashsampling_{name}.so").exists():
            runner.skip(leg, f"ranks [{name}]", f"the transport was not built: mpicc.{name} is not installed")
            continue
        for mode, count in table.get(leg, RANKS[leg]):
            # A sanitizer's dlopen does not look where the program says its libraries are.
            every = {**mpi.ENVIRONMENT, "FLASHSAMPLING_TEST_SCALE": 0.1 if mode == "suite" else SCALE[leg],
                     "LD_LIBRARY_PATH": f"{folder}/lib:{os.environ.get('LD_LIBRARY_PATH', '')}", **(env or {})}
            runner.add(leg, f"ranks_{mode} [{name}, {count}]",
                       [*launch(count), *wrapper, folder / "tests" / "ranks_test", mode], read_exit, every,
                       TIMEOUT=TIMEOUT["test"])
        table = RANKS_AGAIN


def add_pytest(runner, leg, name, command, report, env=None, **properties):
    report.parent.mkdir(parents=True, exist_ok=True)
    report.unlink(missing_ok=True)
    runner.add(leg, name, command, read_junit(report), env, **properties)


def add_python(runner, folder):
    picked = subprocess.run([ROOT / "scripts" / "pick-python.sh"], capture_output=True, text=True)
    env = {
        "FLASHSAMPLING_LIBRARY": folder / "lib" / "libflashsampling.so", "FLASHSAMPLE": folder / "bin" / "flashsample",
        "FS_BUILD": folder, "PYTHONPATH": ROOT / "python", "PYTHONDONTWRITEBYTECODE": "1",
        # One thread per process for numpy: the jobs already fill the machine.
        "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1",
    }
    files = [file for folder in ("py", "torch") for file in sorted((ROOT / "tests" / folder).glob("test_*.py"))]
    for file in files:
        name, python = f"{file.parent.name}/{file.stem}", picked.stdout.strip()
        if picked.returncode != 0:
            runner.skip("release", name, "no Python with numpy, scipy and pytest was found")
            continue
        if file.parent.name == "torch" and (missing := python_leg.missing_modules(python, file)):
            runner.skip("release", name, f"{python} has no {missing[0]} (make test-python installs it)")
            continue
        for way, more in python_leg.ways(file):
            report = RUN / f"{file.parent.name}-{file.stem}{way}.xml"
            command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", file]
            add_pytest(runner, "release", name + way, command, report, {**env, **more}, TIMEOUT=TIMEOUT["pytest"])


RELEASE = ["-DCMAKE_BUILD_TYPE=Release"]


def leg_release(runner):
    folder = BUILD / "release"
    if runner.build("release", folder, RELEASE):
        add_python(runner, folder)
        # Freed and fresh memory is filled with a pattern, so that reading it shows.
        add_programs(runner, "release", folder, env={"MALLOC_PERTURB_": "165"})
        add_ranks(runner, "release", folder)


def sanitizer_works(folder, flag, wrapper, env):
    """A program with nothing wrong must pass: kernels and containers exist on which a sanitizer cannot start."""
    folder.mkdir(parents=True, exist_ok=True)
    source, program = folder / "probe.c", folder / "probe"
    source.write_text("int main(void) { return 0; }\n")
    env = {**os.environ, **env}
    return all(subprocess.run(["timeout", "60", *command], capture_output=True, env=env).returncode == 0
               for command in (["gcc", f"-fsanitize={flag}", source, "-o", program], [*wrapper, program]))


def leg_asan(runner):
    folder = BUILD / "asan"
    asan = "detect_leaks=1:strict_string_checks=1:allocator_may_return_null=1"
    # What gcc 12 makes for aarch64 never gives a small frame back, and each call then searches all of them: hundreds of
    # times slower.
    asan += f":detect_stack_use_after_return={int(platform.machine() != 'aarch64')}"
    env = {"ASAN_OPTIONS": asan, "UBSAN_OPTIONS": "print_stacktrace=1"}
    if not sanitizer_works(folder, "address,undefined", (), env):
        env["ASAN_OPTIONS"] = env["ASAN_OPTIONS"].replace("detect_leaks=1", "detect_leaks=0")
        if not sanitizer_works(folder, "address,undefined", (), env):
            return runner.skip("asan", "leg", "gcc's address sanitizer does not run an empty program here")
        runner.skip("asan", "leaks", "the leak sanitizer cannot run here (it needs ptrace)")
    if runner.build("asan", folder, ["-DCMAKE_BUILD_TYPE=Debug", "-DFS_SANITIZE=address,undefined"]):
        add_programs(runner, "asan", folder, env=env)
        # MPI leaves memory behind; memcheck, which has suppressions, looks at ours.
        add_ranks(runner, "asan", folder, env={**env, "ASAN_OPTIONS": env["ASAN_OPTIONS"] + ":detect_leaks=0"})


def leg_tsan(runner):
    folder = BUILD / "tsan"
    env = {"TSAN_OPTIONS": "halt_on_error=1:second_deadlock_stack=1"}
    # gcc 12's runtime does not know the address-space randomisation of newer kernels; setarch -R turns it off.
    for wrapper in ((), ("setarch", platform.machine(), "-R")):
        if sanitizer_works(folder, "thread", wrapper, env):
            break
    else:
        return runner.skip("tsan", "leg", "gcc's thread sanitizer does not run an empty program here")
    if runner.build("tsan", folder, ["-DCMAKE_BUILD_TYPE=Debug", "-DFS_SANITIZE=thread"]):
        add_programs(runner, "tsan", folder, wrapper, env)
        env["TSAN_OPTIONS"] += f":suppressions={ROOT}/tests/ranks/tsan.supp"
        add_ranks(runner, "tsan", folder, wrapper, {**env, "FLASHSAMPLING_TEST_THREADS": "2"})


def other_isas(runner, leg, folder, wrapper=()):
    """The rows of the dispatch table that run here but are not chosen, from `flashsample info --json`."""
    command = [*wrapper, folder / "bin" / "flashsample", "info", "--json"]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if answer.returncode != 0:
        runner.count(f"{leg}: flashsample info", "failed", f"exit code {answer.returncode}: {answer.stderr.strip()}")
        return []
    info = json.loads(answer.stdout)
    chosen = next((name for name in info["isas"] if name not in info["experimental_isas"]), None)
    return [name for name in info["isas"] if name != chosen]


def leg_isa(runner):
    folder = BUILD / "release"
    if runner.build("isa", folder, RELEASE):
        for name in other_isas(runner, "isa", folder):
            add_programs(runner, "isa", folder, env={"FLASHSAMPLING_ISA": name}, kinds=("test",), suffix=f" [{name}]")


def leg_cross(runner):
    if OTHER is None:
        return runner.skip("cross", "leg", f"no other architecture is known for {platform.machine()}")
    compiler = f"{OTHER}-linux-gnu-gcc"
    qemu = shutil.which(f"qemu-{OTHER}") or shutil.which(f"qemu-{OTHER}-static")
    if shutil.which(compiler) is None:
        return runner.skip("cross", "leg", f"{compiler} is not installed")
    if qemu is None:
        return runner.skip("cross", "leg", f"qemu-{OTHER} is not installed")
    folder = BUILD / "cross"
    toolchain = f"-DCMAKE_TOOLCHAIN_FILE={ROOT}/cmake/toolchains/{OTHER}-linux-gnu.cmake"
    if not runner.build("cross", folder, [*RELEASE, toolchain, "-DFS_CMOCKA=bundled"]):
        return None

    def emulate(cpu):
        return (qemu, "-cpu", cpu, "-L", f"/usr/{OTHER}-linux-gnu")

    def forced(cpu, row, *names):
        suffix = f" [{row}{'' if cpu == CPU[OTHER] else ' on ' + cpu}]"
        add_programs(runner, "cross", folder, emulate(cpu), {"FLASHSAMPLING_ISA": row}, ("test",), suffix, names)

    add_programs(runner, "cross", folder, emulate(CPU[OTHER]))
    # The best row that is not experimental was chosen above; the others are forced.
    for row in other_isas(runner, "cross", folder, emulate(CPU[OTHER])):
        forced(CPU[OTHER], row, FORCED_UNDER_EMULATION)
    for cpu, row in ON_OTHER_CPUS.get(OTHER, ()):
        forced(cpu, row, "test_kernels", "test_scans")
    for cpu, rows in CPU_ROWS.get(OTHER, ()):
        compare = 'rows=$("$@" | xargs); echo "$rows"; test "$rows" = "$EXPECTED"'
        info = [*emulate(cpu), folder / "bin" / "flashsample", "info", "--isa-list"]
        runner.add("cross", f"rows [{cpu}]", ["sh", "-c", compare, "sh", *info], read_exit, {"EXPECTED": rows},
                   TIMEOUT=60)
    return None


def leg_valgrind(runner):
    folder = BUILD / "release"
    if shutil.which("valgrind") is None:
        return runner.skip("valgrind", "leg", "valgrind is not installed")
    if runner.build("valgrind", folder, RELEASE):
        wrapper = ("valgrind", "-q", "--error-exitcode=99", "--leak-check=full", "--errors-for-leak-kinds=definite")
        add_programs(runner, "valgrind", folder, wrapper, kinds=("test",))
        add_ranks(runner, "valgrind", folder, [*wrapper, *mpi.suppressions(ROOT)])
    return None


def leg_gpu(runner):
    python = os.environ.get("PYTHON", "python3")
    probe = "import pytest, torch; assert torch.cuda.is_available()"
    needs = ((["nvcc", "--version"], "nvcc is not on the PATH"), (["nvidia-smi", "-L"], "nvidia-smi lists no GPU"),
             ([python, "-c", probe], f"{python} has no pytest, or no torch that sees the GPU"))
    for command, why in needs:
        if not shutil.which(command[0]) or subprocess.run(command, capture_output=True).returncode != 0:
            return runner.skip("gpu", "leg", why)
    report = RUN / "gpu.xml"
    add_pytest(runner, "gpu", "test-gpu", ["make", "test-gpu", f"ARGS=--junitxml={report}"], report,
               TIMEOUT=TIMEOUT["gpu"], RUN_SERIAL=1)
    return None


def leg_checks(runner):
    if runner.build("checks", BUILD / "release", RELEASE):
        for file in sorted((ROOT / "tests" / "checks").iterdir()):
            if start := {".py": sys.executable, ".sh": "sh"}.get(file.suffix):
                runner.add("checks", file.stem, [start, file], read_exit,
                           {"FS_BUILD": BUILD / "release", "FS_NO_INSTALL": "1"}, TIMEOUT=TIMEOUT["check"],
                           COST=int(file.stem == LONG_CHECK))


def leg_python(runner):
    python_leg.add(runner, runner.newest)


def refuse_skips(runner, file):
    """What is skipped and matches no line of the file, as `leg: case: reason`, has failed."""
    allowed = [line for line in file.read_text().splitlines() if line and not line.startswith("#")]
    for name, why in runner.skipped:
        if not any(re.fullmatch(line, f"{name}: {why}") for line in allowed):
            runner.failed.append((name, f"was skipped, which no line of {file} allows: {why}"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="only the legs release and checks")
    parser.add_argument("--leg", action="append", choices=LEGS, help="only this leg (repeatable)")
    parser.add_argument("--only", metavar="PATTERN", help="only programs whose name contains PATTERN")
    parser.add_argument("--skips", metavar="FILE", type=Path, help="what may be skipped; other skips fail")
    parser.add_argument("--newest", action="store_true", help="leg python: the newest torch and transformers")
    parser.add_argument("--list", action="store_true", help="list the legs and stop")
    parser.add_argument("-j", "--jobs", type=int, default=len(os.sched_getaffinity(0)), help="programs at a time")
    options = parser.parse_args()
    if options.list:
        for leg, text in LEGS.items():
            say(f"{leg:<10} {text}")
        return 0

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash under test leaves no file behind
    legs = options.leg or (["release", "checks"] if options.quick else [leg for leg in LEGS if leg not in ALONE])
    runner = Runner(max(1, options.jobs), options.only)
    runner.newest = options.newest
    start = time.monotonic()
    for leg in legs:
        say(f"== {leg}: {LEGS[leg]}")
        globals()[f"leg_{leg}"](runner)
        if runner.built.get(BUILD / "release") is False:
            say("the release build fails: nothing is run")
            break
    else:
        runner.run()
    if options.skips:
        refuse_skips(runner, options.skips)
    for title, cases in (("skipped:", runner.skipped), ("failed:", runner.failed)):
        if cases:
            say("\n".join([title, *(f"  {name}{': ' if text else ''}{text}" for name, text in cases)]))
    say(f"{time.monotonic() - start:.0f} s in all; what they printed is in {RUN}/Testing/Temporary/LastTest.log")
    say(f"{runner.passed} passed, {len(runner.failed)} failed, {len(runner.skipped)} skipped")
    return 1 if runner.failed or not runner.passed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
