"""How scripts/test.py builds and runs: programs a few at a time, a line for each as it ends, and what happened over all legs."""

import concurrent.futures
import contextlib
import os
import signal
import subprocess
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HEARTBEAT = 15  # seconds between lines about what still runs
BUILD_TIMEOUT = 900  # seconds until a build is killed


class Results:
    """What happened, over all legs."""

    def __init__(self):
        self.passed, self.failed, self.skipped = 0, [], []

    def add(self, leg, cases):
        for name, how, text in cases:
            if how == "passed":
                self.passed += 1
            elif how == "failed":
                self.failed.append((f"{leg}: {name}", text))
            else:
                self.skipped.append((f"{leg}: {name}", text))


class Job:
    """One program to run and how to read its outcome as (case, passed | failed | skipped, text)."""

    def __init__(self, name, command, read, timeout, env=None, log=None):
        self.name, self.command, self.read, self.timeout = name, [str(c) for c in command], read, timeout
        self.env, self.log = env or {}, log
        self.start = None

    def run(self):
        self.start = time.monotonic()
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with open(self.log, "wb") as log:
            code = call(self.command, log, self.timeout, self.env)
        self.seconds = time.monotonic() - self.start
        self.output = self.log.read_text(errors="replace")
        if code is None:
            return [(self.name, "failed", f"killed after {self.timeout} s")]
        return self.read(self.name, code, self.output)


LIVE = set()  # process groups that run


def end_all():
    for group in list(LIVE):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)


def call(command, log, timeout, env):
    """Runs a command in its own process group. Returns its exit code, or None if it had to be killed."""
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, cwd=ROOT,
                               env={**os.environ, **env}, start_new_session=True)
    LIVE.add(process.pid)
    try:
        return process.wait(timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return None
    finally:
        LIVE.discard(process.pid)


def say(text=""):
    print(text, flush=True)


def tail(text, lines=60):
    rows = text.rstrip().splitlines()
    dropped = [f"... {len(rows) - lines} lines above"] if len(rows) > lines else []
    return "\n".join("      | " + row for row in dropped + rows[-lines:])


class Heartbeat:
    """Says every few seconds what is still running."""

    def __init__(self, what):
        self.what, self.stop = what, threading.Event()

    def __enter__(self):
        threading.Thread(target=self.loop, daemon=True).start()

    def __exit__(self, *_):
        self.stop.set()

    def loop(self):
        while not self.stop.wait(HEARTBEAT):
            if text := self.what():
                say(f"  ...   {text}")


class Runner:
    def __init__(self, jobs, only):
        self.jobs, self.only, self.results = jobs, only, Results()
        self.built = {}  # folder -> whether it built in this run
        self.running, self.begun = set(), {}  # jobs; name -> future of one that was begun early
        self.background = concurrent.futures.ThreadPoolExecutor(1)

    def skip(self, leg, what, why):
        say(f"  skip  {what}: {why}")
        self.results.add(leg, [(what, "skipped", why)])

    def fail(self, leg, what, why):
        say(f"  FAIL  {what}: {why}")
        self.results.add(leg, [(what, "failed", why)])

    def build(self, leg, folder, options):
        """Configures and builds, once in a run; a build that fails is one failed test."""
        if folder not in self.built:
            self.built[folder] = self.build_now(leg, folder, options)
        return self.built[folder]

    def build_now(self, leg, folder, options):
        folder.mkdir(parents=True, exist_ok=True)
        log_path = folder / "build.log"
        configure = ["cmake", "-S", str(ROOT), "-B", str(folder), "-G", "Ninja", "-DFS_WERROR=ON", "-DFS_TESTS=ON"]
        compile_ = ["cmake", "--build", str(folder), "-j", str(self.jobs)]
        start = time.monotonic()

        def last_line():
            rows = log_path.read_text(errors="replace").splitlines()
            return f"building, {time.monotonic() - start:.0f} s: {rows[-1]}" if rows else ""

        with Heartbeat(last_line), open(log_path, "wb") as log:
            code = call([*configure, *options], log, BUILD_TIMEOUT, {})
            if code == 0:
                code = call(compile_, log, BUILD_TIMEOUT, {})
        if code == 0:
            say(f"  ok    build  {time.monotonic() - start:.1f} s")
            return True
        say(f"  FAIL  build\n{tail(log_path.read_text(errors='replace'), 60)}")
        self.results.add(leg, [("build", "failed", "does not build; its tests did not run")])
        return False

    def one(self, job):
        self.running.add(job)
        try:
            return job, job.run()
        finally:
            self.running.discard(job)

    def begin(self, job):
        """Starts a long job that waits for nothing, behind all others; run() takes it up when its turn comes."""
        if not self.only or self.only in job.name:
            job.command = ["nice", *job.command]
            self.begun[job.name] = self.background.submit(self.one, job)

    def run(self, leg, jobs):
        """Runs jobs, a few at a time, and prints a line for each as it ends."""
        jobs = [job for job in jobs if not self.only or self.only in job.name]

        def what():
            return ", ".join(f"{j.name} ({time.monotonic() - j.start:.0f} s)" for j in list(self.running) if j.start)

        with Heartbeat(what), concurrent.futures.ThreadPoolExecutor(self.jobs) as pool:
            futures = [self.begun.pop(job.name, None) or pool.submit(self.one, job) for job in jobs]
            for future in concurrent.futures.as_completed(futures):
                job, cases = future.result()
                self.results.add(leg, cases)
                self.report(job, cases)

    def report(self, job, cases):
        bad = [(name, text) for name, how, text in cases if how == "failed"]
        skips = [(name, text) for name, how, text in cases if how == "skipped"]
        mark = "FAIL" if bad else "skip" if len(skips) == len(cases) and cases else "ok  "
        parts = [f"{len(cases)} case{'s' * (len(cases) != 1)}"]
        parts += [f"{len(bad)} failed"] * bool(bad) + [f"{len(skips)} skipped"] * bool(skips)
        say(f"  {mark}  {job.name:<40} {', '.join(parts)}, {job.seconds:.1f} s")
        if bad:
            for name, text in bad:
                say(f"      failed: {name}{': ' if text else ''}{text}")
            say(tail(job.output))
        else:
            for line in job.output.splitlines():
                if line.startswith("note: "):
                    say(f"      {line}")
