#!/usr/bin/env python3
"""Builds and runs the legs of CMakePresets.json, and ends with one line: `N passed, N failed, N skipped`.

    make test                       C, command line, Python with numpy, documents, sanitizers on the core
    make test ARGS=--ci             every leg that needs Debian's packages alone; skips .ci/skips does not allow fail
    make test ARGS=--all            also torch, transformers, engines, CUDA
    make test ARGS="--leg asan"     one leg; may be given several times; ARGS=--list lists them
    make test ARGS="--only vectors" programs, Python files and checks whose name contains a word

A leg is a test preset: a build folder, labels (tests/register.cmake) and a scale. Every case of cmocka and pytest counts.
"""

import argparse
import functools
import json
import os
import platform
import re
import resource
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PRESETS = json.loads((ROOT / "CMakePresets.json").read_text())
LEGS = {leg["name"]: {**leg, **leg["vendor"]["flashsampling"]} for leg in PRESETS["testPresets"] if "vendor" in leg}
BUILDS = {preset["name"] for preset in PRESETS["buildPresets"]}
TIERS = {"default": ("always", "default"), "ci": ("always", "ci"), "all": ("always", "ci", "all")}
BUILD_LIMIT = 1800  # seconds until a build is killed
EVERY = 5  # seconds between two lines of progress where there is no terminal

passed, failed, skipped = 0, [], []


say = functools.partial(print, flush=True)


def count(title, how, text=""):
    global passed
    passed += how == "passed"
    {"passed": [], "failed": failed, "skipped": skipped}[how].append((title, text))


def cases_of_tap(name, output):
    """cmocka's cases. Announced cases that never came are a failure: the program died on the way."""
    cases, planned, reason = [], 0, "no reason given"
    for line in output.splitlines():
        if match := re.match(r"1\.\.(\d+)$", line):
            planned += int(match[1])
        elif match := re.match(r"(?:not )?ok \d+ # SKIP (.+)", line):
            cases.append((f"{name}: {match[1]}", "skipped", reason))
            reason = "no reason given"
        elif planned and (match := re.match(r"(not )?ok \d+ - (.+)", line)):
            cases.append((f"{name}: {match[2]}", "failed" if match[1] else "passed", ""))
        elif match := re.match(r"#?\s*skip: *(.*)", line):
            reason = match[1]
    if len(cases) < planned:
        cases.append((name, "failed", f"ended after {len(cases)} of {planned} cases"))
    return cases


def cases_of_pytest(name, report):
    cases = []
    for case in xml.etree.ElementTree.parse(report).iter("testcase"):
        skip, bad = case.find("skipped"), case.find("failure") is not None or case.find("error") is not None
        how = "failed" if bad else "passed" if skip is None else "skipped"
        cases.append((f"{name}: {case.get('name')}", how, "" if skip is None else skip.get("message") or "no reason"))
    return cases


def read_test(leg, folder, test):
    """Counts the cases of one program from ctest's report."""
    name, output, skip = test.get("name"), test.findtext("system-out") or "", test.find("skipped")
    title, how = f"{leg}: {name}", "passed" if test.get("status") == "run" else "failed"
    if skip is not None and skip.get("message").startswith("SKIP_RETURN_CODE"):
        how = "skipped"
    report = folder / "junit" / f"{name.replace('/', '-')}.xml"
    cases = cases_of_pytest(title, report) if report.exists() else cases_of_tap(title, output)
    if not cases or how == "failed" and not any(case[1] == "failed" for case in cases):
        last = [line for line in output.splitlines() if line.strip()] or ["no reason given"]
        cases.append((title, how, last[-1] if how == "skipped" else ""))
    for case in cases:
        count(*case)
    if how == "passed":
        for line in re.findall(r"^note: .*", output, re.M):
            say(f"{title}: {line}")


def run_build(log, command):
    """Runs one step of a build into the log, and shows how far it is. True if it succeeds."""
    shown = time.monotonic()
    process = subprocess.Popen(["timeout", str(BUILD_LIMIT), *command], cwd=ROOT, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True, errors="replace")
    for line in process.stdout:
        log.write(line)
        step = re.match(r"\[(\d+)/(\d+)\]", line)
        if step and (sys.stdout.isatty() or time.monotonic() > shown + EVERY):
            shown = time.monotonic()
            say(f"\r  build {step[1]} of {step[2]}", end="" if sys.stdout.isatty() else "\n")
    return process.wait() == 0


def build(leg, folder, configure, jobs):
    """A build that fails is one failed test."""
    start, path, preset = time.monotonic(), folder / "build.log", leg if leg in BUILDS else configure
    folder.mkdir(parents=True, exist_ok=True)
    say(f"  configure {folder.relative_to(ROOT)}")
    with open(path, "w") as log:
        good = all(run_build(log, command) for command in
                   (["cmake", "--preset", configure], ["cmake", "--build", "--preset", preset, "-j", str(jobs)]))
    say(f"\r  built in {time.monotonic() - start:.0f} s" if good else "\r  FAIL  build")
    if not good:
        say("\n".join(path.read_text(errors="replace").splitlines()[-60:]))
        count(f"{leg}: build", "failed", f"does not build, see {path}; its tests did not run")
    return good


def run(name, options):
    """One leg. False if nothing can come after it."""
    leg, start = LEGS[name], time.monotonic()
    say(f"== {name}: {leg['description']}")
    if missing := [program for program in leg.get("needs", ()) if not shutil.which(program)]:
        say(f"  skip: {missing[0]} is not installed")
        count(f"{name}: leg", "skipped", f"{missing[0]} is not installed")
        return True
    folder = ROOT / "build" / leg["configurePreset"]
    report = folder / f"{name}.xml"
    if not build(name, folder, leg["configurePreset"], options.jobs):
        return leg["configurePreset"] != "release"
    shutil.rmtree(folder / "junit", ignore_errors=True)
    report.unlink(missing_ok=True)
    # Outputs are read here, so none is cut.
    command = ["ctest", "--preset", name, "-j", str(options.jobs), "--output-junit", str(report),
               "--test-output-size-passed", "100000000", "--test-output-size-failed", "100000000"]
    subprocess.run(command + (["-R", re.escape(options.only)] if options.only else []), cwd=ROOT,
                   stdin=subprocess.DEVNULL)
    if report.exists():
        for test in xml.etree.ElementTree.parse(report).iter("testcase"):
            read_test(name, folder, test)
    elif not options.only:
        count(f"{name}: leg", "failed", "ctest wrote no report")
    leg["seconds"] = time.monotonic() - start
    return True


def refuse_skips():
    """What is skipped and matches no line of .ci/skips, as `leg: case: reason`, has failed."""
    lines = [line for line in (ROOT / ".ci" / "skips").read_text().splitlines() if line and not line.startswith("#")]
    bad = [(name, why) for name, why in skipped if not any(re.fullmatch(line, f"{name}: {why}") for line in lines)]
    failed.extend((name, f"was skipped, which no line of .ci/skips allows: {why}") for name, why in bad)
    say(f"skips: {len(skipped) - len(bad)} that .ci/skips allows, {len(bad)} that it does not")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    tier = parser.add_mutually_exclusive_group()
    tier.add_argument("--ci", action="store_true", help="what continuous integration runs")
    tier.add_argument("--all", action="store_true", help="everything, with torch and CUDA")
    tier.add_argument("--quick", action="store_true", help="only the leg release")
    tier.add_argument("--leg", action="append", choices=LEGS, help="only this leg (repeatable)")
    parser.add_argument("--only", metavar="PATTERN", help="only programs whose name contains PATTERN")
    parser.add_argument("--list", action="store_true", help="list the legs and stop")
    parser.add_argument("-j", "--jobs", type=int, default=len(os.sched_getaffinity(0)), help="programs at a time")
    options = parser.parse_args()
    here = {name: leg for name, leg in LEGS.items() if leg.get("host", platform.machine()) == platform.machine()}
    if options.list:
        say("\n".join(f"{name:<10} {leg['tier']:<8} {leg['description']}" for name, leg in here.items()))
        return 0

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash under test leaves no file behind
    tiers = TIERS["ci" if options.ci else "all" if options.all else "default"]
    legs = options.leg or (["release"] if options.quick else [n for n, leg in here.items() if leg["tier"] in tiers])
    start = time.monotonic()
    for name in legs:
        if not run(name, options):
            say("the release build fails: nothing else is run")
            break
    if options.ci:
        refuse_skips()
    for title, cases in (("skipped:", skipped), ("failed:", failed)):
        if cases:
            say("\n".join([title, *(f"  {name}{': ' if text else ''}{text}" for name, text in cases)]))
    for name in legs:
        say(f"{name:<10} {LEGS[name]['seconds']:5.0f} s" if "seconds" in LEGS[name] else f"{name:<10} did not run")
    for tier, hint in () if options.leg else (("ci", "--ci"), ("all", "--all")):
        if rest := [name for name, leg in here.items() if leg["tier"] == tier and name not in legs]:
            say(f"not asked for: {', '.join(rest)} (make test ARGS={hint})")
    say(f"{time.monotonic() - start:.0f} s in all; what programs printed is in build/*/Testing/Temporary")
    say(f"{passed} passed, {len(failed)} failed, {len(skipped)} skipped")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
