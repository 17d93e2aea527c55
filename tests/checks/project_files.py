"""The workflow of continuous integration runs what .ci/run runs and nothing that is not run here; CITATION.cff has the
header's version; every test preset is a leg or hidden; every label that a leg asks for is given to a test."""

import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PREPARE = re.compile(r"apt-get update && apt-get install -y --no-install-recommends [\w\- ]+")
bad = []

workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
commands = re.findall(r"^ *(?:- )?run: *(.+)$", workflow, re.M)
wanted = ["make test", re.search(r"^exec (.+)$", (ROOT / ".ci" / "run").read_text(), re.M)[1]]
makes = [command for command in commands if not PREPARE.fullmatch(command)]
if makes != wanted or workflow.count("run:") != len(commands):
    bad.append(f".github/workflows/ci.yml runs {makes}, not {wanted}")

header = (ROOT / "include" / "flashsampling.h").read_text()
version = ".".join(re.search(rf"^#define FS_VERSION_{part} (\d+)$", header, re.M)[1]
                   for part in ("MAJOR", "MINOR", "PATCH"))
if f"\nversion: {version}\n" not in (ROOT / "CITATION.cff").read_text():
    bad.append(f"CITATION.cff: the version is not {version}, the header's")

presets = json.loads((ROOT / "CMakePresets.json").read_text())
labels = (ROOT / "tests" / "register.cmake").read_text() + (ROOT / "tests" / "rows.cmake.in").read_text()
for preset in presets["testPresets"]:
    if not preset.get("hidden") and "tier" not in preset.get("vendor", {}).get("flashsampling", {}):
        bad.append(f"CMakePresets.json: the test preset {preset['name']} is in no tier")
    for label in re.findall(r"\w+", preset.get("filter", {}).get("include", {}).get("label", "")):
        if not re.search(rf"\b{label}\b", labels):
            bad.append(f"CMakePresets.json: no test has the label {label}")

for line in bad:
    print(line)
print(f"{len(commands)} commands, {len(presets['testPresets'])} test presets")
sys.exit(1 if bad else 0)
