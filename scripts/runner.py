"""How scripts/test.py builds, has ctest run what the legs collected, and counts what happened."""

import subprocess
import time
import xml.etree.ElementTree
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"
RUN = BUILD / "tests"  # where ctest finds its list, and leaves its log
BUILD_TIMEOUT = 900  # seconds until a build is killed


def say(text=""):
    print(text, flush=True)


class Runner:
    def __init__(self, jobs, only):
        self.jobs, self.only = jobs, only
        self.passed, self.failed, self.skipped = 0, [], []
        self.built = {}  # folder -> whether it built in this run
        self.tests = {}  # title -> (lines of ctest's list, read)

    def count(self, title, how, text):
        if how == "passed":
            self.passed += 1
        else:
            {"failed": self.failed, "skipped": self.skipped}[how].append((title, text))

    def skip(self, leg, name, why):
        say(f"  skip  {name}: {why}")
        self.count(f"{leg}: {name}", "skipped", why)

    def build(self, leg, folder, options):
        """Configures and builds, once in a run; a build that fails is one failed test."""
        if folder in self.built:
            return self.built[folder]
        folder.mkdir(parents=True, exist_ok=True)
        log_path, start = folder / "build.log", time.monotonic()
        configure = ["cmake", "-S", ROOT, "-B", folder, "-G", "Ninja", "-DFS_WERROR=ON", "-DFS_TESTS=ON", *options]
        with open(log_path, "wb") as log:
            # timeout ends the compilers too.
            good = all(subprocess.run(["timeout", str(BUILD_TIMEOUT), *command], stdout=log, stderr=log).returncode == 0
                       for command in (configure, ["cmake", "--build", folder, "-j", str(self.jobs)]))
        self.built[folder] = good
        if good:
            say(f"  ok    build  {time.monotonic() - start:.1f} s")
        else:
            say("\n".join(["  FAIL  build", *log_path.read_text(errors="replace").splitlines()[-60:]]))
            self.count(f"{leg}: build", "failed", "does not build; its tests did not run")
        return good

    def add(self, leg, name, command, read, env=None, **properties):
        """A program that run() will run; `read` makes cases of its end. Properties are those of ctest."""
        if self.only and self.only not in name:
            return
        title = f"{leg}: {name}"
        properties = {"SKIP_RETURN_CODE": 77, "WORKING_DIRECTORY": ROOT, **properties,
                      "ENVIRONMENT": ";".join(f"{key}={value}" for key, value in (env or {}).items())}
        words = [f"[==[{word}]==]" for word in (title, *command)]
        pairs = [f"{key} [==[{value}]==]" for key, value in properties.items()]
        self.tests[title] = (f"add_test({' '.join(words)})\n"
                             f"set_tests_properties({words[0]} PROPERTIES {' '.join(pairs)})\n", read)

    def run(self):
        """Has ctest run all that was added, and counts the cases."""
        RUN.mkdir(parents=True, exist_ok=True)
        (RUN / "CTestTestfile.cmake").write_text("".join(lines for lines, _ in self.tests.values()))
        report = RUN / "report.xml"
        report.unlink(missing_ok=True)
        # Outputs are read here, so none is cut.
        subprocess.run(["ctest", "--test-dir", RUN, "-j", str(self.jobs), "--output-on-failure",
                        "--output-junit", report, "--test-output-size-passed", "100000000",
                        "--test-output-size-failed", "100000000"], stdin=subprocess.DEVNULL)
        for test in xml.etree.ElementTree.parse(report).getroot().iter("testcase"):
            title, skip, output = test.get("name"), test.find("skipped"), test.findtext("system-out") or ""
            how = "passed" if test.get("status") == "run" else "failed"
            if skip is not None and skip.get("message").startswith("SKIP_RETURN_CODE"):
                how = "skipped"
            for case in self.tests[title][1](title, how, output):
                self.count(*case)
            for line in output.splitlines() if how == "passed" else ():
                if line.startswith("note: "):
                    say(f"{title}: {line}")
