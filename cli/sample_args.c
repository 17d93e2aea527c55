/* sample_args.c - the options of `flashsample sample` and its help. */
#include "options.h"
#include "sample.h"
#include "synth.h"

#include <float.h>

static const char *const mode_names[] = {"sample", "without-replacement", "group-parallel", "group-online", "score",
                                         NULL};
static const char *const noise_names[] = {"exact", "fast", NULL};
static const char *const tie_names[] = {"none", "top-k", "top-p", "both", NULL}; /* the bits of FS_KEEP_TIES */
static const char *const logprob_names[] = {"none", "raw", "processed", "cut", NULL};

static const command about = {
    .name = "sample",
    .usage = "(--head W.npy --hidden H.npy | --logits L.npy | --synthetic V,D,B[,SEED]) [options]",
    .about =
        "Draws tokens from softmax(transform(H W^T)) in one pass over W, or from stored logits, and prints them. Every "
        "rule, mode and result of the C header is an option.",
    .details =
        "VALUES is one number for all, or a list 0.7,1.0,0 or @file.npy with one element per slot; --position, --slot "
        "and --allow-index take one per row, --score-tokens [B, N]. Without --slot, row b is slot b.\n"
        "Files: .npy, little-endian, C order. W, H and logits are f4 or f2; bf16 is V2 (as ml_dtypes saves it) or u2 "
        "with "
        "--bf16. Masks are bool or u1 [ROWS, V], nonzero = set, or u4 words [ROWS, ceil(V/32)], bit (id % 32) of word "
        "(id / 32); one row serves all.\n"
        "A screen gives every logit within a proven bound; the few tokens that can win are computed from W "
        "(docs/explain/screens.md). The last line says how many rows it decided: the others read W, as do all rows of "
        "calls it does not serve, --logprobs among them. The rounding of 4 bits is derived from --seed where that is "
        "one "
        "number.\n"
        "A row without a token prints the fallback token and says why. Where it was skipped, or no finite logit is "
        "left, that is the answer (exit code 0); a value the library refused for it ends with 2, a cut that "
        "--fallback-mib left unproven with 3.\n"
        "With --backend cuda all arrays are copied to the device, and the results back.\n"
        "\n"
        "Examples\n"
        "  flashsample sample --synthetic 151936,1024,4 --temperature 0.8 --top-p 0.95 --logprobs raw --top 5\n"
        "  flashsample sample --head W.npy --bf16 --hidden H.npy --seed 7 --position @positions.npy --json\n"
        "  flashsample sample --synthetic 151936,1024,4 --backend cuda --screen 8\n"
        "  flashsample sample --logits L.npy --edits 11:-2.5,3/42:ban --mode without-replacement --samples 4\n",
};

static sample_args defaults(void) {
    sample_args a = {.dtype = -1, .scale = 1, .post_scale = 1, .samples = 1, .fallback_token = -1, .shards = 1};
    a.context = context_args_default();
    return a;
}

sample_args parse_sample(int argc, char **argv) {
    sample_args a = defaults();
    const opt options[] = {
        OPT_HEAD("Where the logits come from"),
        OPT_TEXT_TO("head", "FILE", "W [V, D], used as it lies", &a.head),
        OPT_TEXT_TO("hidden", "FILE", "H [B, D], with --head", &a.hidden),
        OPT_TEXT_TO("logits", "FILE", "stored logits [B, V] in place of head and hidden states", &a.logits),
        OPT_TEXT_TO("synthetic", "V,D,B[,SEED]", "language-like weights and hidden states made on the spot",
                    &a.synthetic),
        OPT_CHOICE_TO("dtype", "of synthetic weights (default bf16)", &a.dtype, dtype_names),
        OPT_FLAG_TO("bf16", "u2 files of head, hidden states and logits hold bf16", &a.bf16),
        SCREEN_OPTION("draw by a screen of W in 8, 4 or 4 and 8 bits, made first: the same tokens from fewer bytes "
                      "(default none)",
                      &a.screen),
        OPT_TEXT_TO("bias", "FILE", "added to the logits, [V]", &a.bias),
        OPT_CHOICE_TO("round-to", "round logits as engines that store them do; f32 = keep (default)", &a.round_to,
                      dtype_names),
        OPT_REAL_TO("scale", "X", "of the logits, before the soft-cap (default 1)", &a.scale, -FLT_MAX, FLT_MAX),
        OPT_REAL_TO("softcap", "X", "x = softcap * tanh(x / softcap); 0 = none (default)", &a.softcap, 0, FLT_MAX),
        OPT_REAL_TO("post-scale", "X", "of the logits, after the soft-cap (default 1)", &a.post_scale, -FLT_MAX,
                    FLT_MAX),
        OPT_INT_TO("first-token", "N", "global id of row 0, for a shard (default 0)", &a.first_token, 0, (1 << 24) - 1),
        OPT_INT_TO("vocab", "N", "real vocabulary size; ids from it on are padding (default: all rows)", &a.vocab, 0,
                   (1 << 24) - 1),

        OPT_HEAD("Rules, each VALUES"),
        OPT_RULES_TO(&a.rules),
        OPT_CHOICE_TO("keep-ties", "who keeps every token that ties with the last kept one (default none)",
                      &a.keep_ties, tie_names),
        OPT_FLAG_TO("joint-top-p", "top-p counts mass against the whole distribution", &a.joint_top_p),
        OPT_FLAG_TO("min-p-last", "min-p after top-k and top-p, for which what it removes still counts", &a.min_p_last),
        OPT_FLAG_TO("cut-before-temperature", "top-k, top-p and min-p look at logits before temperature",
                    &a.cut_before_temperature),
        OPT_FLAG_TO("edits-last", "penalties of the model's logits, then edits", &a.edits_last),

        OPT_HEAD("Which noise: the token is a function of these"),
        OPT_TEXT_TO("seed", "VALUES", "one number is spread over slots, a list is used as it is (default 0)", &a.seed),
        OPT_TEXT_TO("position", "VALUES", "of each row in its sequence (default 0)", &a.position),
        OPT_TEXT_TO("substream", "VALUES", "an extra word, for two draws at one position (default 0)", &a.substream),
        OPT_CHOICE_TO("noise", "exact, or the paper's fast-math noise, biased in the tail (default exact)", &a.noise,
                      noise_names),

        OPT_HEAD("What is drawn"),
        OPT_CHOICE_TO("mode", "(default sample)", &a.mode, mode_names),
        OPT_INT_TO("samples", "N", "per row, 1 .. 1024 (default 1)", &a.samples, 1, 1024),
        OPT_TEXT_TO("score-tokens", "VALUES", "score mode: the tokens [B, N]", &a.score_tokens),
        OPT_INT_TO("group-size", "N", "group modes: ids per group", &a.group_size, 0, (1 << 24) - 1),
        OPT_TEXT_TO("slot", "VALUES", "which slot each row is, -1 = skip the row", &a.slot),
        OPT_TEXT_TO("allow", "FILE", "mask of allowed tokens", &a.allow),
        OPT_TEXT_TO("allow-index", "VALUES", "which mask each row uses, -1 = none", &a.allow_index),
        OPT_TEXT_TO("edits", "LIST", "[ROW/]TOKEN:BIAS,... added to logits; ban as BIAS bans the token", &a.edits),
        OPT_TEXT_TO("seen", "FILE", "mask of seen tokens per slot, for --repetition", &a.seen),
        OPT_TEXT_TO("counts", "FILE", "integers [S, V]: how often each slot produced each token", &a.counts),
        OPT_TEXT_TO("count-list", "LIST", "the same as [SLOT/]TOKEN:COUNT,...", &a.count_list),
        OPT_INT_TO("fallback-token", "N", "printed where a row has no token (default -1)", &a.fallback_token,
                   -2147483647.0, 2147483647.0),
        OPT_INT_TO("list-capacity", "N", "entries of a candidate list; 0 = chosen (default)", &a.list_capacity, 0,
                   (1 << 24) - 1),

        OPT_HEAD("Output"),
        OPT_CHOICE_TO("logprobs", "logit, logprob, rank, max and log Z of these logits (default none)", &a.logprobs,
                      logprob_names),
        OPT_INT_TO("top", "N", "the N largest logits of each row, up to 1024 (default 0)", &a.top, 0, 1024),
        OPT_TEXT_TO("watch", "LIST", "[ROW/]TOKEN,...: logits of these tokens", &a.watch),
        OPT_FLAG_TO("exact-rank", "pay a second pass rather than print a lower bound of the rank", &a.exact_rank),
        OPT_FLAG_TO("rank-of-ties", "the rank counts tokens that tie, too", &a.rank_of_ties),
        OPT_FLAG_TO("json", "one JSON object on stdout", &a.json),
        OPT_TEXT_TO("out", "FILE", "write the tokens [B, N] as .npy as well", &a.out),
        OPT_FLAG_TO("i64", "tokens as 64-bit integers in --out", &a.i64),
        OPT_FLAG_TO("quiet", "no progress", &a.quiet),

        OPT_HEAD("Shards"),
        OPT_INT_TO("shards", "N",
                   "make N partial calls on slices of the vocabulary and merge them: the same tokens, or with --mode "
                   "group-parallel the paper's B.4 (default 1: one call)",
                   &a.shards, 1, 256),
        CONTEXT_OPTIONS(a.context),
    };
    PARSE_OPTIONS(&about, options, argc, argv);
    return a;
}
