#!/usr/bin/env python3
"""pyproject.toml is right: its version is the header's and the binding's, every file it names is there, the text for
the package index has no relative links, and `import flashsampling` takes nothing but Python's own modules: numpy and
torch are imported when they are needed."""

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "python" / "flashsampling"
bad = []

text = (ROOT / "pyproject.toml").read_text()
header = (ROOT / "include" / "flashsampling.h").read_text()
version = [re.search(rf"^#define FS_VERSION_{part} (\d+)$", header, re.M)[1] for part in ("MAJOR", "MINOR", "PATCH")]

pattern = re.search(r"^regex = '''(.*)'''$", text, re.M)[1]
found = re.search(pattern, header, re.M)
if not found or list(found.groups()) != version:
    bad.append(f"pyproject.toml: the regex of the version finds {found and found.groups()}, the header says {version}")
binding = re.search(r"^VERSION = \((\d+), (\d+)\)", (PACKAGE / "_c.py").read_text(), re.M)
if not binding or list(binding.groups()) != version[:2]:
    bad.append(f"python/flashsampling/_c.py: VERSION is not {version[:2]}, the header's")
if not (PACKAGE / "py.typed").exists():
    bad.append("python/flashsampling/py.typed is missing: the package says that it is typed")

# The package index shows the text, and has none of the files around it.
about = re.search(r'^readme = "(.*?)"', text, re.M)[1]
LINK = re.compile(r"""\]\(\s*(?!https?://|\#)([^)\s]*)
                      | (?:src|href)=["'](?!https?://|\#)([^"']*)
                      | ^\[[^]]+\]:\s*(?!https?://)(\S+)""", re.M | re.X)
planted = "[a](../a.md) ![p](p.svg) <img src='q.png'> [w](https://e.org/x) [h](#h)\n[r]: ../r.md\n"
if len(LINK.findall(planted)) != 4:
    bad.append(f"of four planted relative links these were found: {LINK.findall(planted)}")
for found in LINK.findall((ROOT / about).read_text()):
    bad.append(f"{about}: {''.join(found)} is a relative link, and the package index has no such file")

# The lists of the source distribution: what CMake includes must be among them, and each must match something.
included = re.search(r"^include = \[(.*?)\]", text, re.M | re.S)[1]
excluded = re.search(r"^exclude = \[(.*?)\]", text, re.M | re.S)[1]
for name in re.findall(r'"/([^"]+)"', included + excluded):
    if not list(ROOT.glob(name.replace("**", "**/*"))):
        bad.append(f"pyproject.toml: the source distribution names {name}, which is not there")
for name in re.findall(r"^\s*include\((cmake/\w+\.cmake)\)", (ROOT / "cmake" / "python.cmake").read_text(), re.M):
    if f'"/{name}"' in excluded:
        bad.append(f"pyproject.toml: {name} is left out of the source distribution, cmake/python.cmake includes it")


def top_imports(file):
    """(folder's own modules, others) that a module imports whenever it is imported."""
    own, others = set(), set()
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.Import):
            others |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            others.add(node.module.split(".")[0])
        elif isinstance(node, ast.ImportFrom):
            own |= {node.module} if node.module else {alias.name for alias in node.names}
    return own, others


# What `import flashsampling` and `python -m flashsampling` reach.
reached, left = set(), ["__init__", "__main__"]
while left:
    name = left.pop()
    file = PACKAGE / f"{name}.py"
    if name in reached or not file.exists():
        continue
    reached.add(name)
    own, others = top_imports(file)
    left += own
    for other in sorted(others - set(sys.stdlib_module_names)):
        bad.append(f"{file.relative_to(ROOT)}: imports {other} at its top, and comes with import flashsampling")

print("\n".join(bad) or "pyproject.toml is right")
sys.exit(1 if bad else 0)
