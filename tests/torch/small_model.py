"""A language of a few words, and a small model trained on it by examples/train_small_model.py."""
import os
import random
import subprocess
import sys
from pathlib import Path

SCRIPT = str(Path(__file__).resolve().parents[2] / "examples" / "train_small_model.py")
WORDS = ("alder birch cedar dogwood elder fir gum hazel iris juniper kauri larch maple nutmeg oak pine quince rowan "
         "spruce teak upas viburnum willow yew acacia balsa cherry date ebony fig").split()
SMALL = ["--vocab", "500", "--layers", "2", "--hidden", "64", "--heads", "2", "--context", "64", "--batch", "8",
         "--device", "cpu"]


def environment():
    """For a subprocess: modules from where this process has them, one thread."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1",
            "PYTHONDONTWRITEBYTECODE": "1"}


def write_text(folder, documents=60, words=240):
    """Text in which each word is followed by one of three: their entropy is far below that of single words."""
    pick = random.Random(1)
    follow = {word: pick.sample(WORDS, 3) for word in WORDS}
    folder.mkdir()
    for number in range(documents):
        line = [pick.choice(WORDS)]
        while len(line) < words:
            line.append(pick.choice(follow[line[-1]]))
        (folder / ("%d.txt" % number)).write_text(" ".join(line))
    return folder


def train(*arguments):
    """Runs the script and returns what it printed."""
    done = subprocess.run([sys.executable, SCRIPT, *map(str, arguments)], capture_output=True, text=True,
                          env=environment(), timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout
