"""What README.md tells people to type works, and prints what README.md says it prints.

A fenced block is run when its first line says so, as in ```sh run, ```c run or ```python run: shell blocks with
bash -e in the repository root, C blocks compiled against the public header and the built library, Python blocks with
the binding on the path. A shell block that calls `make test` is refused: it would run itself. A plain block that
follows at once is all it prints. Of a block ```text of COMMAND the rows of numbers (tokens, logprobs) are lines of what
the command prints; the rest is about a machine. Exit 77 skips.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ["FS_BUILD"])
README = ROOT / "README.md"


def run(command, env):
    """Runs a command, shows what it prints, returns its exit code and what it printed to stdout."""
    print("$", " ".join(str(c) for c in command)[:200], flush=True)
    done = subprocess.run(command, cwd=ROOT, env=env, timeout=300, stdout=subprocess.PIPE, text=True)
    print(done.stdout, flush=True)
    return done.returncode, done.stdout


def missing_rows(body, printed):
    """The rows of numbers in a block that were not printed; all of it if there are none."""
    rows = [line for line in body.splitlines() if re.fullmatch(r"[-\d.,\s]*\d[-\d.,\s]*", line)]
    return [row for row in rows if row not in printed.splitlines()] if rows else body.splitlines()


def main():
    if not README.exists():
        print("there is no README.md yet")
        return 77
    text = README.read_text()
    blocks = re.findall(r"^```(sh|c|python) run\n(.*?)^```\n(?:\n```\n(.*?)^```\n)?", text, flags=re.S | re.M)
    shown = re.findall(r"^```text of (.*?)\n(.*?)^```", text, flags=re.S | re.M)
    if not blocks:
        print("README.md marks no block with `run`")
        return 77
    env = {**os.environ, "PYTHONPATH": str(ROOT / "python"), "PYTHONDONTWRITEBYTECODE": "1",
           "FLASHSAMPLING_LIBRARY": str(BUILD / "lib" / "libflashsampling.so"),
           "LD_LIBRARY_PATH": str(BUILD / "lib"), "PATH": f"{BUILD / 'bin'}:{os.environ['PATH']}"}
    failures = 0
    with tempfile.TemporaryDirectory() as work:
        for number, (language, body, prints) in enumerate(blocks, 1):
            print(f"-- block {number}, {language}", flush=True)
            printed = ""
            if language == "sh":
                if re.search(r"\bmake (.* )?test\b|\.ci/run", body):
                    print("this block runs the tests, and the tests run it")
                    code = 1
                else:
                    code, printed = run(["bash", "-euo", "pipefail", "-c", body], env)
            elif language == "c":
                source, program = Path(work) / f"block{number}.c", Path(work) / f"block{number}"
                source.write_text(body)
                code, _ = run(["gcc", "-std=c11", "-Wall", "-Wextra", "-Werror", source, f"-I{ROOT / 'include'}", "-o",
                               program, f"-L{BUILD / 'lib'}", "-lflashsampling", "-lm"], env)
                if code == 0:
                    code, printed = run([program], env)
            else:
                picked = subprocess.run([ROOT / "scripts" / "pick-python.sh"], capture_output=True, text=True)
                if picked.returncode != 0:
                    print("note: no Python with numpy; this block was not run")
                    continue
                code, printed = run([picked.stdout.strip(), "-c", body], env)
            if code != 0:
                print(f"block {number} failed with exit code {code}:\n{body}")
                failures += 1
            elif prints and printed != prints:
                print(f"block {number} does not print what README.md says:\n{prints}")
                failures += 1
    for command, body in shown:
        code, printed = run(["bash", "-euo", "pipefail", "-c", command], env)
        missing = missing_rows(body, printed)
        if code != 0 or missing:
            print("\n".join([f"exit code {code}; README.md says, but the command does not:", *missing]))
            failures += 1
    return 1 if failures else 0


sys.exit(main())
