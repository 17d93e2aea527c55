#!/usr/bin/env python3
"""Compiles the CUDA kernels with nvcc, where there is one, and reads the assembler's report: no instantiation may have
its tensor instructions serialised, and none may spill a register, but for those whose scorers have more to keep than
tokens, those that end rows, or race them again, with 64 registers for each of 1,024 threads, and those over screens:
those no more than SPILLED bytes. One width of those of groups, not among the three, spills 532 since a head's logits
are shaped a step at a time (2026-11; its time has not been looked at).

A file named after sm_90 is compiled for it, the others for the oldest architecture; with --all for every one of them.
Hopper's kernels are compiled for one type of weights, whose instructions differ in a name, and in three widths; with
--all in all widths where they draw tokens alone (cuda_call.h).
That takes minutes, so a good report is kept in the build folder for as long as what it was made from stays the same.
"""
import concurrent.futures
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "src" / "cuda"
CORE = ROOT / "tests" / "gpu" / "core_vectors.cu"  # a test: it has to compile, and may spill what it likes
KEPT = Path(os.environ.get("FS_BUILD", ROOT / "build")) / "cuda_report.txt"
OLDEST, ALL = ("80",), ("80", "86", "89", "90", "100", "120")
FEW = ("sm90_masses.cu", "sm90_shaped.cu", "sm90_kept.cu", "sm90_listed.cu", "sm90_grouped.cu")
TOKENS = "sm90_tokens.cu"
SPILLED = 128
MAY_SPILL = dict.fromkeys((*FEW, "again.cu", "rows.cu", "screen.cu", "sm90_wide.cu"), SPILLED)


def jobs(portable):
    """(file, architecture) of every compilation, the longest first."""
    files = sorted(SOURCES.rglob("*.cu"), key=lambda f: (not f.name.startswith("sm90"), f))
    archs = {file: ("90a",) if file.name.startswith("sm90") else portable for file in [*files, CORE]}
    return [(file, arch) for file in archs for arch in archs[file]]


def compile_one(nvcc, folder, file, arch):
    """What is wrong, and a line about the report."""
    few = ["-DFS_CUDA_FEW_WIDTHS"] if file.name in FEW or (file.name == TOKENS and "--all" not in sys.argv) else []
    optimise = ["-O1", "-Xptxas", "-O1"] if file == CORE else ["-O3"]
    command = [nvcc, "-std=c++17", *optimise, "--fmad=false", f"-gencode=arch=compute_{arch},code=sm_{arch}",
               "-DFS_CUDA_ONE_TYPE", *few, "-Xptxas", "-v", f"-I{ROOT / 'src'}", f"-I{ROOT / 'include'}", "-c", file,
               "-o", Path(folder) / f"{file.name}.{arch}.o"]
    run = subprocess.run(command, capture_output=True, text=True)
    report = run.stdout + run.stderr
    if run.returncode:
        return [report], f"{file.name}, sm_{arch}: does not compile"
    kernels = len(re.findall(r"Compiling entry function", report))
    registers = max((int(n) for n in re.findall(r"Used (\d+) registers", report)), default=0)
    most = MAY_SPILL.get(file.name, 0)
    stores = re.compile(r"(\d+) bytes spill stores")
    spills = [line for line in report.splitlines() for found in stores.findall(line) if int(found) > most]
    serialised = [line for line in report.splitlines() if re.search(r"\(C75\d\d\)", line)]
    if file == CORE:
        spills = []
    wrong = spills + serialised + ([] if kernels or file.name == "sm90.cu" else ["no kernel in " + file.name])
    return wrong, (f"{file.name}, sm_{arch}: {kernels} kernels, at most {registers} registers, {len(spills)} with "
                   f"spills of more than {most} bytes, {len(serialised)} warnings about serialised tensor instructions")


def fingerprint(nvcc):
    """Of the sources, of this file and its arguments, and of the compiler."""
    version = subprocess.run([nvcc, "--version"], capture_output=True, check=True).stdout
    digest = hashlib.sha256(version + " ".join(sys.argv[1:]).encode())
    folders = (SOURCES, ROOT / "src" / "core", ROOT / "include")
    files = [file for folder in folders for file in sorted(folder.rglob("*.*"))]
    for file in [*files, *sorted(CORE.parent.glob("core_*")), Path(__file__)]:
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def main() -> int:
    nvcc = shutil.which("nvcc")
    if not nvcc:
        print("nvcc is not on the PATH: kernels are not compiled here")
        return 77
    lines = [fingerprint(nvcc)]
    if KEPT.exists() and KEPT.read_text().startswith(lines[0]):
        print("the sources are those of this report:", *KEPT.read_text().splitlines()[1:], sep="\n")
        return 0
    failed = False
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(2) as pool:
        work = [pool.submit(compile_one, nvcc, folder, *job) for job in jobs(ALL if "--all" in sys.argv else OLDEST)]
        for future in work:
            wrong, line = future.result()
            failed |= bool(wrong)
            lines.append(line)
            print(*wrong, line, sep="\n", flush=True)
    if not failed:
        KEPT.parent.mkdir(parents=True, exist_ok=True)
        KEPT.write_text("\n".join(lines) + "\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
