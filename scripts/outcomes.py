"""How scripts/test.py reads what a program did: a list of (case, passed | failed | skipped, text) from ctest's word on
the program and its output."""

import re
import xml.etree.ElementTree


def read_tap(name, how, output):
    """cmocka's TAP. What the plan announced and never came is a failure: the program died on the way."""
    cases, planned, reason = [], 0, "no reason given"
    for line in output.splitlines():
        if match := re.match(r"1\.\.(\d+)$", line):
            planned += int(match[1])
        elif match := re.match(r"(?:not )?ok \d+ # SKIP (.+)", line):
            cases.append((f"{name}: {match[1]}", "skipped", reason))
            reason = "no reason given"
        elif match := re.match(r"(not )?ok \d+ - (.+)", line):
            cases.append((f"{name}: {match[2]}", "failed" if match[1] else "passed", ""))
        elif match := re.match(r"#?\s*skip: *(.*)", line):
            reason = match[1]
    if len(cases) < planned:
        cases.append((name, "failed", f"ended after {len(cases)} of {planned} cases"))
    return cases if agrees(how, cases) else cases + read_exit(name, how, output)


def read_exit(name, how, output):
    lines = [line for line in output.splitlines() if line.strip()]
    return [(name, how, (lines or ["no reason given"])[-1] if how == "skipped" else "")]


def read_junit(path):
    """pytest's report."""
    def read(name, how, output):
        cases = []
        for case in xml.etree.ElementTree.parse(path).getroot().iter("testcase") if path.exists() else ():
            title = f"{name}: {case.get('name')}"
            if (skip := case.find("skipped")) is not None:
                cases.append((title, "skipped", skip.get("message") or "no reason given"))
            else:
                bad = case.find("failure") is not None or case.find("error") is not None
                cases.append((title, "failed" if bad else "passed", ""))
        return cases if agrees(how, cases) else cases + read_exit(name, how, output)

    return read


def agrees(how, cases):
    """Whether the cases say all: there are some, and where the program failed, one of them did."""
    return cases and (how != "failed" or any(case[1] == "failed" for case in cases))
