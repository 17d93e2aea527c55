#!/usr/bin/env python3
"""Trains a small language model on the documentation that is installed on this machine, in minutes.

    python3 examples/train_small_model.py --out build/model --minutes 5
    python3 -m flashsampling generate --model build/model --prompt "The function returns"

The text is what lies here anyway: docstrings of the Python library and of installed packages, Markdown,
reStructuredText and plain text beside them and under /usr/share/doc, man pages; or what --text names. It keeps its
authors' licences: the model is for trying things out on this machine, and so is whatever it writes.

DIR becomes a checkpoint like others: Llama's layout in safetensors, with a byte-level BPE tokenizer. Needs torch and
transformers. With --steps and the same text a seed gives the same model on the CPU; --minutes ends by the clock.
"""
import argparse
import ast
import gzip
import hashlib
import json
import math
import os
import random
import re
import sys
import sysconfig
import time
from pathlib import Path

try:
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, logging
except ImportError as error:
    sys.exit("%s: pip install torch transformers" % error)

END = "<|endoftext|>"  # between documents; the only token that is not text
TEXT = {".md", ".rst", ".txt"}
MAN_PAGE = re.compile(r"\.[1-8]$")
SKIPPED = {"test", "tests", "testing", "node_modules", "__pycache__"}  # folders: text for programs, not for people
# What minutes suffice for, on a CPU and on a GPU. On one slow core the smaller shape learned more in the same time.
DEFAULTS = (dict(layers=3, hidden=128, heads=2, context=128, batch=4, dtype="float32", megabytes=16),
            dict(layers=6, hidden=256, heads=4, context=512, batch=64, dtype="bfloat16", megabytes=100))

# ---------------------------------------------------------------------------------------------------------- text ----


def installed_folders():
    """Where documentation lies: of Python, its packages and the system."""
    paths = sysconfig.get_paths()
    folders = [paths["stdlib"], paths["purelib"], paths["platlib"], "/usr/share/doc", "/usr/share/man"]
    return [Path(folder) for folder in dict.fromkeys(folders) if os.path.isdir(folder)]


def files_of(folders):
    """Every file that may hold prose, once."""
    found = {}
    for top in folders:
        for folder, below, names in os.walk(top):
            # /usr/share/man/de and its like are translations; English lies in man1 to man8.
            below[:] = [name for name in below if name not in SKIPPED and (top.name != "man" or name.startswith("man"))]
            for name in names:
                plain = name.removesuffix(".gz")
                if Path(plain).suffix in TEXT or plain.endswith(".py") or MAN_PAGE.search(plain):
                    path = Path(folder, name)
                    found.setdefault(path.resolve(), path)
    return sorted(found.values())


def docstrings(source):
    """What a Python file says about itself, its classes and functions."""
    try:
        nodes = [ast.parse(source)]
    except (SyntaxError, ValueError, RecursionError):
        return ""
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in nodes:  # grows as definitions are found inside definitions
        nodes += [inner for inner in node.body if isinstance(inner, kinds)]
    return "\n\n".join(filter(None, map(ast.get_docstring, nodes)))


def man_page(source):
    """A man page without its markup; good enough to read, not a formatter."""
    source = re.sub(r'^\.\\".*$', "", source, flags=re.M)
    source = re.sub(r"^\.(?:PP|P|LP|TP|IP|SH|SS)\b ?", "\n", source, flags=re.M)
    source = re.sub(r"^[.'][a-zA-Z]\w* ?", "", source, flags=re.M)
    source = re.sub(r"\\f(?:\(..|\[\w*\]|.)|\\[&|%]", "", source)
    return re.sub(r"\\\((?:aq|cq)", "'", source).replace("\\-", "-").replace("\\e", "\\")


def prose(path, seen):
    """The paragraphs of a file that read like language and that no earlier file had."""
    try:
        data = path.read_bytes()
        source = (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
    except (OSError, EOFError, UnicodeDecodeError):
        return ""
    plain = path.name.removesuffix(".gz")
    if plain.endswith(".py"):
        source = docstrings(source)
    elif MAN_PAGE.search(plain):
        source = man_page(source)
    kept = []
    for paragraph in re.split(r"\n\s*\n", source.replace("\r\n", "\n")):
        words = re.sub(r"\s+", " ", paragraph)
        key = hashlib.blake2b(words.encode(), digest_size=8).digest()
        letters = len(re.sub(r"[^A-Za-z ]", "", words))
        if key not in seen and letters >= 0.75 * len(words):
            seen.add(key)
            kept.append(paragraph.rstrip())
    text = "\n\n".join(kept).strip("\n")
    return text if len(text) >= 200 else ""


def gather(folders, megabytes, seed):
    """Documents for training and for the held-out loss, `megabytes` of text at most, a mixture of all folders."""
    files = files_of(folders)
    random.Random(seed).shuffle(files)
    seen, train, held_out, size = set(), [], [], 0
    for path in files:
        text = prose(path, seen)
        if text:
            size += len(text.encode())
            (train if (len(train) + len(held_out)) % 25 else held_out).append(text)
        if size > megabytes * 1e6:
            break
    return train, held_out, size


# --------------------------------------------------------------------------------------------- tokens and model ----


def train_tokenizer(texts, vocabulary, context):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocabulary, special_tokens=[END], show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=END, eos_token=END, pad_token=END,
                                   model_max_length=context)


def pack(tokenizer, texts):
    """All documents as one row of tokens, each with END behind it."""
    parts = []
    for first in range(0, len(texts), 256):
        for encoding in tokenizer.backend_tokenizer.encode_batch_fast(texts[first: first + 256]):
            parts.append(torch.tensor(encoding.ids + [tokenizer.eos_token_id], dtype=torch.int32))
    return torch.cat(parts)


def make_model(o, tokenizer):
    end = tokenizer.eos_token_id
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=o.hidden, num_hidden_layers=o.layers, num_attention_heads=o.heads,
        num_key_value_heads=o.heads, intermediate_size=-(-o.hidden // 6) * 16, tie_word_embeddings=True,
        max_position_embeddings=o.context, bos_token_id=end, eos_token_id=end, pad_token_id=end))


def save(model, tokenizer, folder):
    """A directory that transformers and vLLM load, with rules to draw by where nobody gives others."""
    end = tokenizer.eos_token_id
    model.generation_config = GenerationConfig(do_sample=True, temperature=0.8, top_k=0, top_p=0.95, bos_token_id=end,
                                               eos_token_id=end, pad_token_id=end)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    file = Path(folder, "tokenizer_config.json")
    # The name that versions before 5 know it by, too.
    config = {**json.loads(file.read_text()), "tokenizer_class": "PreTrainedTokenizerFast"}
    file.write_text(json.dumps(config, indent=2) + "\n")


def loss_of(model, rows, o):
    """Mean negative log-probability of each token given those before it in its row [B, context]."""
    rows = rows.to(o.device, torch.int64)
    with torch.autocast(o.device.type, o.dtype, enabled=o.dtype != torch.float32):
        return model(input_ids=rows, labels=rows).loss


def spread(tokens, context, most=256):
    """Rows [n, context] from all over the text, `most` of them at most."""
    rows = tokens[: len(tokens) // context * context].view(-1, context)
    return rows[:: -(-len(rows) // most)]


@torch.no_grad()
def held_out_loss(model, rows, o):
    return sum(loss_of(model, part, o).item() * len(part) for part in rows.split(o.batch)) / len(rows)


def unigram_loss(tokens, rows, vocabulary):
    """The same for a model that knows how often each token occurs, and nothing else."""
    counts = torch.bincount(tokens.long(), minlength=vocabulary).double() + 1
    return -(counts / counts.sum()).log()[rows[:, 1:].long()].mean().item()


def train(model, tokens, o):
    """AdamW with a short warm-up and a cosine, over windows from everywhere in the text. Returns steps done."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=o.rate, betas=(0.9, 0.95), weight_decay=0.1)
    picks, begin, shown, step, losses = torch.Generator().manual_seed(o.seed), time.monotonic(), 0, 0, []

    def progress():
        by_time = step / o.steps if o.steps else (time.monotonic() - begin) / (60 * o.minutes)
        return max(by_time, 0 if o.steps else step * o.batch * o.context / (o.epochs * len(tokens)))

    while (done := progress()) < 1:
        cosine = 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * done))
        optimizer.param_groups[0]["lr"] = o.rate * cosine * min(1, (done + 1e-3) / 0.05)
        starts = torch.randint(len(tokens) - o.context + 1, (o.batch, 1), generator=picks)
        loss = loss_of(model, tokens[starts + torch.arange(o.context)], o)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
        step += 1
        passed, done = time.monotonic() - begin, min(1, progress())
        if passed - shown >= o.every or step == 1:
            shown, mean, losses = passed, torch.stack(losses).mean().item(), []
            print("step %6d  loss %.3f  %8.0f tokens/s  %4d s left"
                  % (step, mean, step * o.batch * o.context / passed, passed * (1 / done - 1)), flush=True)
    return step


# --------------------------------------------------------------------------------------------------------- main ----


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--out", type=Path, required=True, metavar="DIR", help="where the checkpoint goes")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--minutes", type=float, default=5, help="of training, after the tokenizer (5)")
    length.add_argument("--steps", type=int, help="in place of --minutes; repeatable")
    add("--text", type=Path, nargs="+", metavar="DIR", help="folders with text, in place of installed documentation")
    add("--megabytes", type=float, help="of text to read at most (16, on a GPU 100)")
    add("--epochs", type=float, default=10, help="how often the text is read at most; --minutes may end earlier (10)")
    add("--vocab", type=int, default=16384, help="tokens, fewer where the text has too few words (16384)")
    add("--layers", type=int, help="(3, on a GPU 6)")
    add("--hidden", type=int, help="hidden size, a multiple of 16 (128, on a GPU 256)")
    add("--heads", type=int, help="of attention (2, on a GPU 4)")
    add("--context", type=int, help="tokens of a row (128, on a GPU 512)")
    add("--batch", type=int, help="rows of a step (4, on a GPU 64)")
    add("--rate", type=float, default=2e-3, help="the largest learning rate (2e-3)")
    add("--seed", type=int, default=0, help="(0)")
    add("--device", help="cpu, cuda, cuda:1, ... (cuda where torch sees a GPU)")
    add("--dtype", choices=("float32", "bfloat16"), help="of matmuls and stored weights (float32, on a GPU bfloat16)")
    add("--every", type=float, default=5, help="seconds between lines of progress (5)")
    o = parser.parse_args()
    o.device = torch.device(o.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    for name, value in DEFAULTS[o.device.type == "cuda"].items():
        setattr(o, name, value if getattr(o, name) is None else getattr(o, name))
    o.dtype = getattr(torch, o.dtype)
    for name in ("minutes", "megabytes", "epochs", "layers", "hidden", "heads", "batch", "rate", "steps"):
        if getattr(o, name) is not None and getattr(o, name) <= 0:
            parser.error("--%s %s: must be above 0" % (name, getattr(o, name)))
    if o.hidden % 16 or o.hidden % (2 * o.heads):
        parser.error("--hidden %d: must be a multiple of 16 and of twice the %d heads" % (o.hidden, o.heads))
    if o.vocab < 300 or o.context < 8:
        parser.error("--vocab %d, --context %d: must be at least 300 and 8" % (o.vocab, o.context))
    for folder in o.text or ():
        folder.is_dir() or parser.error("--text %s: no such folder" % folder)
    return parser, o


def main():
    parser, o = arguments()
    torch.manual_seed(o.seed)
    torch.use_deterministic_algorithms(o.device.type == "cpu")
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    begin = time.monotonic()
    texts, held_out_texts, size = gather(o.text or installed_folders(), o.megabytes, o.seed)
    if not texts:
        parser.error("fewer than two documents in %s" % ", ".join(map(str, o.text or installed_folders())))
    tokenizer = train_tokenizer(texts, o.vocab, o.context)
    tokens, held_out = pack(tokenizer, texts), pack(tokenizer, held_out_texts)
    if min(len(tokens), len(held_out)) < o.context:
        parser.error("the text has %d tokens and %d held out, a row has %d" % (len(tokens), len(held_out), o.context))
    model = make_model(o, tokenizer).to(o.device)
    total, embedding = sum(p.numel() for p in model.parameters()), model.get_input_embeddings().weight.numel()
    print("text     %.1f MB, %d documents: %d tokens, and %d held out; made in %.0f s"
          % (size / 1e6, len(texts) + len(held_out_texts), len(tokens), len(held_out), time.monotonic() - begin))
    print("model    %.2f million parameters, and %d x %d of the vocabulary; %s on %s, %d x %d tokens a step"
          % ((total - embedding) / 1e6, len(tokenizer), o.hidden, str(o.dtype)[6:], o.device, o.batch, o.context))
    begin = time.monotonic()
    steps, spent = train(model.train(), tokens, o), time.monotonic() - begin
    rows = spread(held_out, o.context)
    loss, unigram = held_out_loss(model.eval(), rows, o), unigram_loss(tokens, rows, len(tokenizer))
    print("trained  %d steps, %.2f million tokens in %.0f s" % (steps, steps * o.batch * o.context / 1e6, spent))
    print("held out loss %.3f per token, perplexity %.0f; by the tokens' frequencies alone %.3f, by chance %.3f"
          % (loss, math.exp(loss), unigram, math.log(len(tokenizer))))
    save(model.to(o.dtype), tokenizer, o.out)
    print('wrote    %s; try: python3 -m flashsampling generate --model %s --prompt "The function"' % (o.out, o.out))


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
