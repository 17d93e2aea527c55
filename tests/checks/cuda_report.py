#!/usr/bin/env python3
"""Compiles the CUDA kernels with nvcc, where there is one, and reads the assembler's report: no instantiation may spill a register
or have its tensor instructions serialised. Also checks that the generated wrappers are what their script writes."""
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
    with tempfile.TemporaryDirectory() as folder:
        command = [nvcc, "-std=c++17", "-O3", "-gencode=arch=compute_90a,code=sm_90a", "-Xptxas", "-v", "-I" + os.path.join(ROOT, "src"),
                   "-I" + os.path.join(ROOT, "include"), "-c", os.path.join(ROOT, "src", "cuda", "cuda_tile_sm90.cu"), "-o",
                   os.path.join(folder, "kernel.o")]
        run = subprocess.run(command, capture_output=True, text=True)
    report = run.stdout + run.stderr
    if run.returncode:
        print(report)
        return 1
    kernels = len(re.findall(r"Compiling entry function", report))
    spills = [line for line in report.splitlines() if re.search(r"[1-9]\d* bytes spill", line)]
    serialised = [line for line in report.splitlines() if re.search(r"\(C75\d\d\)", line)]
    for line in spills + serialised:
        print(line)
    print(f"{kernels} kernels, {len(spills)} with spills, {len(serialised)} warnings about serialised tensor instructions")
    return 1 if spills or serialised or kernels == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
