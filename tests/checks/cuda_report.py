#!/usr/bin/env python3
"""Compiles the CUDA kernels with nvcc, where there is one, and reads the assembler's report: no instantiation may spill a register
or have its tensor instructions serialised. Also checks that the generated wrappers are what their script writes."""
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def main() -> int:
    script = os.path.join(ROOT, "scripts", "make_wgmma.py")
    generated = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True).stdout
    with open(os.path.join(ROOT, "src", "cuda", "cuda_wgmma.cuh"), encoding="utf-8") as file:
        if file.read() != generated:
            print("src/cuda/cuda_wgmma.cuh is not what scripts/make_wgmma.py writes")
            return 1
    nvcc = shutil.which("nvcc")
    if not nvcc:
        print("nvcc is not on the PATH: kernels are not compiled here")
        return 77
    failed = 0
    for source in sorted(glob.glob(os.path.join(ROOT, "src", "cuda", "*.cu"))):
        name = os.path.basename(source)
        for arch in ("90a",) if "sm90" in name else ("80", "90a"):
            failed |= report(nvcc, source, name, arch)
    return failed


def report(nvcc: str, source: str, name: str, arch: str) -> int:
    with tempfile.TemporaryDirectory() as folder:
        command = [nvcc, "-std=c++17", "-O3", f"-gencode=arch=compute_{arch},code=sm_{arch}", "-Xptxas", "-v", "-I" + os.path.join(ROOT, "src"),
                   "-I" + os.path.join(ROOT, "include"), "-c", source, "-o", os.path.join(folder, "kernel.o")]
        run = subprocess.run(command, capture_output=True, text=True)
    text = run.stdout + run.stderr
    if run.returncode:
        print(text)
        return 1
    kernels = len(re.findall(r"Compiling entry function", text))
    spills = [line for line in text.splitlines() if re.search(r"[1-9]\d* bytes spill", line)]
    serialised = [line for line in text.splitlines() if re.search(r"\(C75\d\d\)", line)]
    for line in spills + serialised:
        print(line)
    print(f"{name} for sm_{arch}: {kernels} kernels, {len(spills)} with spills, {len(serialised)} warnings about serialised tensor "
          "instructions")
    return 1 if spills or serialised or kernels == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
