"""Documents name members that the public structs have: `batch.rules` in a sentence, options.cuda_stream in a block of C.

First a text with one fault of each kind is looked at: a check that finds none of them finds nothing here either.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FILES = r"md|h|hpp|c|cu|cuh|cpp|py|json|svg"  # ranks.md is no member
PAST = ("CHANGELOG.md", "history.md")  # what earlier versions had
FAULTS = "```c\noptions.stream = s;\n```\nsays `batch.all.top_k`; a `result.tokens` and `ranks.md` are none\n"


def members(header):
    """The members of every struct fs_<name>, by name."""
    found = {}
    for name, body in re.findall(r"^typedef struct fs_(\w+) \{(.*?)^\} fs_\1;", header, flags=re.S | re.M):
        code = re.sub(r"/\*.*?\*/", "", body, flags=re.S)
        found[name] = {*re.findall(r"\w+(?=\s*[,;])", code), *re.findall(r"\(\*(\w+)\)\(", code)}
    return found


def unknown(text, structs):
    """What a document calls a member of a struct, and is none."""
    code = "\n".join(re.findall(r"^```c\b.*?^```|`[^`\n]+`", text, flags=re.S | re.M))
    named = re.findall(r"(?<![\w./>-])(%s)(?:\.|->)([a-z]\w*)\b(?!\()" % "|".join(structs), code)
    return [f"{name}.{member}" for name, member in named
            if member not in structs[name] and not re.fullmatch(FILES, member)]


structs = members("".join(file.read_text() for file in sorted((ROOT / "include").glob("*.h"))))
if len(structs) < 10 or unknown(FAULTS, structs) != ["options.stream", "batch.all"]:
    sys.exit(f"the check sees {unknown(FAULTS, structs)} of {sorted(structs)}")
faults = [f"{file.relative_to(ROOT)}: {name}" for file in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
          if file.name not in PAST for name in unknown(file.read_text(), structs)]
print("\n".join(faults) or f"members of {len(structs)} structs")
sys.exit(bool(faults))
