"""Tiny random models of the main families, and what transformers itself would draw from."""
import torch
import transformers

VOCAB = 331  # of no other dimension, so that a tensor of logits is known by its shape
_SIZES = dict(vocab_size=VOCAB, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
              num_key_value_heads=2, max_position_embeddings=512, initializer_range=0.25, bos_token_id=1,
              eos_token_id=None, pad_token_id=0)
FAMILIES = {
    "llama": ("Llama", {}),
    "qwen3-tied": ("Qwen3", dict(head_dim=16, tie_word_embeddings=True)),
    "gemma2-softcap": ("Gemma2", dict(head_dim=16, final_logit_softcapping=3.0, tie_word_embeddings=False)),
    "gemma3-softcap": ("Gemma3", dict(head_dim=16, final_logit_softcapping=5.0, tie_word_embeddings=False)),
    "cohere-scale": ("Cohere", dict(logit_scale=0.3)),
    "granite-scale": ("Granite", dict(logits_scaling=6.0)),
    "phi-bias": ("Phi", {}),
    "gptj-bias": ("GPTJ", dict(n_embd=64, n_layer=2, n_head=4, n_inner=96, rotary_dim=8, n_positions=512)),
    "gpt2-tied": ("GPT2", dict(n_embd=64, n_layer=2, n_head=4, n_positions=512)),
}


def make(family="llama", dtype=torch.float32, seed=0, **more):
    """A model with random weights, the same for the same arguments."""
    name, values = FAMILIES[family]
    kind = name + ("LMHeadModel" if name == "GPT2" else "ForCausalLM")
    prefix = name + ("Text" if name == "Gemma3" else "")
    sizes = {**_SIZES, **values, **more}
    if "n_embd" in values:
        sizes = {k: v for k, v in sizes.items() if not k.startswith(("hidden", "inter", "num_", "max_"))}
    config = getattr(transformers, prefix + "Config")(**sizes)
    torch.manual_seed(seed)
    model = getattr(transformers, kind)(config).eval()
    bias = getattr(model.get_output_embeddings(), "bias", None)
    if bias is not None:
        torch.nn.init.normal_(bias, std=2.0)
    return model.to(dtype)


def prompts(rows=3, length=7, seed=1):
    """Token ids [rows, length] and their attention mask; the first row is padded on the left."""
    ids = torch.randint(3, VOCAB, (rows, length), generator=torch.Generator().manual_seed(seed))
    mask = torch.ones_like(ids)
    if rows > 1:
        ids[0, :2], mask[0, :2] = 0, 0
    return dict(input_ids=ids, attention_mask=mask)


def prepared(model, **arguments):
    """The logits processors that generate() makes of these arguments, and the prompt it gives them."""
    found = {}

    def capture(model, input_ids, logits_processor, stopping_criteria, generation_config, **_):
        found.update(processors=logits_processor, ids=input_ids)
        return input_ids

    model.generate(**arguments, custom_generate=capture)
    return found["processors"], found["ids"]


@torch.no_grad()
def first_token(model, inputs, **arguments):
    """The distribution of the first new token of a prompt of one row, in double, by transformers' own processors."""
    processors, ids = prepared(model, **inputs, **arguments)
    logits = model(**inputs).logits[:, -1].float().double()
    return torch.softmax(processors(ids[:1], logits), -1)[0]
