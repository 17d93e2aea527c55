"""How scripts/test.py reads what a program did: a list of (case, passed | failed | skipped, text) from its exit code
and output. Python gives a negative exit code for a signal."""

import re
import signal
import xml.etree.ElementTree


def exit_text(code):
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"exit code {code}"


def read_tap(name, code, output):
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
        cases.append((name, "failed", f"ended after {len(cases)} of {planned} cases, {exit_text(code)}"))
    elif not cases:
        return read_exit(name, code, output)
    elif code != 0 and not any(how == "failed" for _, how, _ in cases):
        cases.append((name, "failed", exit_text(code)))
    return cases


def read_exit(name, code, output):
    lines = [line for line in output.splitlines() if line.strip()]
    if code == 0:
        return [(name, "passed", "")]
    if code == 77:
        return [(name, "skipped", lines[-1] if lines else "no reason given")]
    return [(name, "failed", exit_text(code))]


def read_junit(path):
    def read(name, code, output):
        try:
            root = xml.etree.ElementTree.parse(path).getroot()
        except (OSError, xml.etree.ElementTree.ParseError):
            return [(name, "failed", f"pytest wrote no report, {exit_text(code)}")]
        cases = []
        for case in root.iter("testcase"):
            title = f"{name}: {case.get('name')}"
            if (skip := case.find("skipped")) is not None:
                cases.append((title, "skipped", skip.get("message") or "no reason given"))
            elif case.find("failure") is not None or case.find("error") is not None:
                cases.append((title, "failed", ""))
            else:
                cases.append((title, "passed", ""))
        if code != 0 and not any(how == "failed" for _, how, _ in cases):
            cases.append((name, "failed", f"pytest: {exit_text(code)}"))
        return cases

    return read
