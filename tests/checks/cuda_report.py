#!/usr/bin/env python3
"""Compiles the CUDA kernels with nvcc, where there is one, and reads the assembler's report: no instantiation may spill a register
or have its tensor instructions serialised. Also checks that the generated wrappers are what their script writes.

A tile file named after sm_90 is compiled for it, the others for the oldest architecture; with --all for every one of them.
"""
import concurrent.futures
import os
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SOURCES = os.path.join(ROOT, "src", "cuda")
OLDEST, ALL = ("80",), ("80", "86", "89", "90", "100", "120")


def jobs(portable):
    """(file, architecture) of every compilation, the longest first."""
    files = sorted((f for f in os.listdir(SOURCES) if f.endswith(".cu")), key=lambda f: (not f.endswith("_sm90.cu"), f))
    return [(file, arch) for file in files for arch in (("90a",) if file.endswith("_sm90.cu") else portable)]


def compile_one(nvcc, folder, file, arch):
    """What is wrong, and a line about the report."""
    out = os.path.join(folder, "%s.%s.o" % (file, arch))
    command = [nvcc, "-std=c++17", "-O3", "-gencode=arch=compute_%s,code=sm_%s" % (arch, arch), "-Xptxas", "-v",
               "-I" + os.path.join(ROOT, "src"), "-I" + os.path.join(ROOT, "include"), "-c", os.path.join(SOURCES, file),
               "-o", out]
    run = subprocess.run(command, capture_output=True, text=True)
    report = run.stdout + run.stderr
    if run.returncode:
        return [report], "%s, sm_%s: does not compile" % (file, arch)
    kernels = len(re.findall(r"Compiling entry function", report))
    registers = max((int(n) for n in re.findall(r"Used (\d+) registers", report)), default=0)
    spills = [line for line in report.splitlines() if re.search(r"[1-9]\d* bytes spill", line)]
    serialised = [line for line in report.splitlines() if re.search(r"\(C75\d\d\)", line)]
    wrong = spills + serialised + ([] if kernels else ["no kernel in " + file])
    return wrong, ("%s, sm_%s: %d kernels, at most %d registers, %d with spills, %d warnings about serialised tensor instructions"
                   % (file, arch, kernels, registers, len(spills), len(serialised)))


def main() -> int:
    script = os.path.join(ROOT, "scripts", "make_wgmma.py")
    generated = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True).stdout
    with open(os.path.join(SOURCES, "cuda_wgmma.cuh"), encoding="utf-8") as file:
        if file.read() != generated:
            print("src/cuda/cuda_wgmma.cuh is not what scripts/make_wgmma.py writes")
            return 1
    nvcc = shutil.which("nvcc")
    if not nvcc:
        print("nvcc is not on the PATH: kernels are not compiled here")
        return 77
    failed = 0
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(2) as pool:
        work = [pool.submit(compile_one, nvcc, folder, *job) for job in jobs(ALL if "--all" in sys.argv else OLDEST)]
        for future in work:
            wrong, line = future.result()
            failed |= bool(wrong)
            print("\n".join(wrong + [line]), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
