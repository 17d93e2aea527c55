/* flashsampling.h - exact sampling fused into the LM-head matmul.
 *
 *   #include <flashsampling.h>
 *   #include <stdio.h>
 *
 *   static float weight[1000][64];                     // the LM head, [V, D]
 *   static float hidden[2][64] = {{1.0f}, {2.0f}};     // the last hidden state of two sequences, [B, D]
 *
 *   int main(void) {
 *       fs_context *context;
 *       if (fs_context_create(NULL, &context) != FS_OK) return puts(fs_error_text(NULL)), 1;
 *
 *       fs_head head = fs_head_default();
 *       head.data = weight, head.dtype = FS_F32, head.rows = 1000, head.dim = 64;
 *       fs_rules rules = fs_rules_default();
 *       rules.temperature.value = 0.8f, rules.top_p.value = 0.95f;
 *       fs_batch batch = fs_batch_default();
 *       batch.hidden = hidden, batch.hidden_dtype = FS_F32, batch.rows = 2, batch.rules = &rules, batch.seed_all = 42;
 *       int32_t token[2];
 *       fs_result result = fs_result_default();
 *       result.tokens = token;
 *
 *       for (int step = 0; step < 3; step++) {
 *           batch.position_all = (uint64_t)step;       // a new position is new noise
 *           if (fs_sample(context, &head, &batch, &result) != FS_OK) return puts(fs_error_text(context)), 1;
 *           printf("%d %d\n", token[0], token[1]);     // -1: the row has no token, result.status says why
 *       }
 *       fs_context_destroy(context);
 *   }
 *
 * fs_sample draws the next token of each row from softmax(rules(H W^T)) in one pass over W, without storing the logits:
 * H is `hidden`, W is head.data. (This W is zero, so every token is as likely.)
 * Compile with `cc program.c $(pkg-config --cflags --libs flashsampling)`.
 *
 * The interface has four tiers:
 *   1. what every caller needs       status, head, rules, batch, result, context, fs_sample
 *   2. what engines need             slots, limits, masks, edits, penalties, CUDA streams, work memory, drafts
 *   3. headers of their own          flashsampling_screens.h: W in fewer bits; flashsampling_ranks.h: shards and ranks,
 *                                    with flashsampling_mpi.h and flashsampling_nccl.h
 *   4. experimental, may change      group modes, FS_NOISE_FAST
 * The members of a struct stand in the same order: a caller of tier 1 reads no further than the line `Engines`.
 *
 * Legend, used in every comment and nowhere redefined:
 *   B rows of the batch, D hidden size, V rows of the head (the vocabulary, or one shard of it), n samples per row,
 *   S slots, N top tokens. `[B, D]` is the shape of an array in row-major order. x is a raw logit, y an edited one, l a
 *   processed one, Z the sum of exp(l): fs_rules defines them. A token id is global: the row of the whole vocabulary,
 *   also where the head is a shard. A "cut" is any of top-k, top-p, min-p. A "context" is an object of this library; a
 *   CUDA stream is always called `cuda_stream`.
 *
 * Structs: the first member `size` is sizeof of the struct the caller was compiled with, which the fs_*_default()
 * functions set. Later versions append members, up to 4,096 bytes, whose zero keeps the old meaning. A library takes
 * structs of earlier versions, and of later ones if what it does not know is zero. Members called reserved are zero.
 *
 * Zero means default: a struct that is zero but for its size, its data and their shape is a valid call. These zeros
 * stand for another value:
 *
 *   member                                   zero means       the zero itself
 *   head.scale, head.post_scale              1                none: all tokens would be equal
 *   rules.top_p.value                        1: off           per_slot of 0, or 1e-30: one token stays
 *   rules.repetition.value                   1: off           none: it is no penalty
 *   batch.samples, call_desc.samples         1                none
 *   batch.slot_dtype, result.tokens_dtype,
 *   drafts.tokens_dtype                      FS_I32           FS_F32, which none may be
 *   batch.fallback_token                     -1               FS_FALLBACK_TOKEN_ZERO
 *   options.fallback_bytes                   320 MiB          FS_FALLBACK_NONE
 *   screen_options.format                    FS_SCREEN_INT8   none
 *
 * Temperature 0 is greedy, so zeroed rules draw greedily; fs_rules_default() has temperature 1, as has a batch whose
 * rules are NULL.
 *
 * Arrays that go together are given together. One without its partner is FS_ERR_ARGUMENT: allow_index without allow;
 * edit_token without edit_bias, or without edit_offset or edit_count; edit_count without edit_stride; count_token
 * without count_offset; extra_token without extra_offset; watch_token or watched results without watch_offset. Two are
 * ignored: score_token outside FS_MODE_SCORE, and top_token where top_count is 0.
 *
 * Memory: every pointer belongs to the caller and is read or written only during the call (CPU) or until the stream
 * has run the call (CUDA). The structs themselves, rules and limits among them, are host memory and read during the
 * call. On the CPU all arrays are host memory. On CUDA they are device memory; mapped host memory works too, more
 * slowly. Pointers are aligned to their elements, strides are bytes: anything else is FS_ERR_ARGUMENT. The
 * library never prints, exits or aborts.
 *
 * Threads: contexts share nothing mutable; one context serves one call at a time. A call on the CPU leaves the AMX tile
 * configuration of its threads as it was, but not what is in the tiles. After fork() the child may destroy the contexts
 * it has inherited; any other call with one is FS_ERR_STATE. It creates its own.
 */
#ifndef FLASHSAMPLING_H
#define FLASHSAMPLING_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FS_VERSION_MAJOR 0
#define FS_VERSION_MINOR 2
#define FS_VERSION_PATCH 0

#if defined(__GNUC__)
#define FS_API __attribute__((visibility("default")))
#else
#define FS_API
#endif

/* ------------------------------------------------------------------------- 1. what every caller needs: status ---- */

/* What a function returns. Values are pinned. The text of the last failure, with the offending value and the limit, is
 * fs_error_text(context). */
typedef int32_t fs_status;
enum {
    FS_OK = 0,
    FS_ERR_ARGUMENT = -1,    /* a host argument is wrong; nothing was written */
    FS_ERR_UNSUPPORTED = -2, /* valid, but this backend or build does not do it (yet); nothing was written */
    FS_ERR_MEMORY = -3,      /* an allocation failed, or the caller's work memory is too small */
    FS_ERR_DEVICE = -4,      /* the device or its driver failed; the text has its words */
    FS_ERR_PEER = -5,        /* another rank failed, died, or was called with other arguments */
    FS_ERR_STATE = -6,       /* the object cannot do this now (communicator unusable after a peer error, ...) */
    FS_ERR_ENVIRONMENT = -7, /* an environment variable forces something unknown or not runnable here */
    FS_ERR_INTERNAL = -8,    /* a bug of ours */
    FS_ERR_CANCELLED = -9    /* the caller's progress function stopped the call */
};

/* Status bits of one row, written to result.status. A row with a bit of FS_ROW_NO_TOKEN set has no token: its tokens
 * are batch.fallback_token, its ranks and top tokens -1, its other results NaN. Without result.status that token shows
 * that a row has none, but not why; with FS_FALLBACK_TOKEN_ZERO it shows nothing, as 0 may be drawn. All bits that
 * apply are set, with two exceptions: a skipped row or one with a bad slot has no other bit, and the logits of a row
 * whose rules leave it no token (BAD_..., OVER_LIMIT) are not looked at, so it has no EMPTY, NAN, INF, ... */
enum {
    FS_ROW_OK = 0,
    FS_ROW_SKIPPED = 1u << 0,         /* slot -1 */
    FS_ROW_EMPTY = 1u << 1,           /* no l above -inf is left: the row has no distribution */
    FS_ROW_BAD_SLOT = 1u << 2,        /* slot < -1 or slot >= slots */
    FS_ROW_BAD_TEMPERATURE = 1u << 3, /* negative, NaN, infinite, or so small that 1/T overflows */
    FS_ROW_BAD_TOP_P = 1u << 4,       /* negative, above 1.00001 or NaN */
    FS_ROW_BAD_MIN_P = 1u << 5,       /* negative, above 1 or NaN */
    FS_ROW_BAD_PENALTY = 1u << 6,     /* repetition <= 0, or a penalty that is NaN or infinite */
    FS_ROW_BAD_TOKEN = 1u << 7,       /* an edited, counted, watched or scored token is negative or not below vocab */
    FS_ROW_INCOMPLETE = 1u << 8,      /* merge or budget: the lists do not prove the cut; nothing is drawn */
    FS_ROW_PEER = 1u << 9,      /* parts or ranks on CUDA: one failed, is missing, or was called with other arguments */
    FS_ROW_BAD_MASK = 1u << 10, /* allow_index < -1, or not below batch.allow_count */
    FS_ROW_BAD_LIST = 1u << 11, /* edit_count is negative, or more than edit_stride has room for */
    FS_ROW_OVER_LIMIT = 1u << 12, /* the row uses a rule, or a larger top_k, than batch.limits said */
    FS_ROW_NO_TOKEN = 0xffff,     /* mask of the bits above, and of those to come in their place */
    FS_ROW_NAN = 1u << 16,        /* a logit that no mask removed was NaN; it was treated as -inf */
    FS_ROW_INF = 1u << 17,        /* an x or l was +inf. Without a cut the lowest id whose l is +inf wins. Where the
                                   * logits of logits_mode hold a +inf, log Z is +inf and logprobs are NaN */
    FS_ROW_FALLBACK = 1u << 18,   /* the row needed a second pass over W (exact all the same) */
    FS_ROW_RANK_BOUND = 1u << 19, /* CPU, or shards: result.rank is a lower bound, 257 or more */
    FS_ROW_SHORT = 1u << 20,      /* without replacement: fewer tokens than samples; the rest have none (see above) */
    FS_ROW_FAR = 1u << 21 /* log Z or an entropy was asked for, and the largest logit is too far from 0: they, and
                                   * logprobs, are NaN */
};

/* ------------------------------------------------------------------------------------------------------ head ---- */

typedef enum {
    FS_F32 = 0,
    FS_F16 = 1,
    FS_BF16 = 2,
    FS_I32 = 8, /* token ids and slots only */
    FS_I64 = 9, /* token ids and slots only */
    /* GGUF blocks, scales inside. No backend has them yet: FS_ERR_UNSUPPORTED. */
    FS_Q8_0 = 32,
    FS_Q5_K = 33,
    FS_Q6_K = 34
} fs_dtype;

enum {
    FS_HEAD_WEIGHTS = 0, /* data is W [V, D]: logits are computed in the call */
    FS_HEAD_LOGITS = 1   /* data is stored logits [B, V]: everything after the dot product is the same */
};

/* fs_head.flags: nothing earlier on the stream writes W, the bias or the screen, so a CUDA launch may start reading
 * them before the launches ahead of it have ended. */
#define FS_HEAD_CONSTANT (1u << 0)

/* What the logits come from. W is used as it lies: no copy is made and nothing is written to it. */
typedef struct fs_head {
    size_t size;
    int32_t kind;     /* FS_HEAD_WEIGHTS or FS_HEAD_LOGITS */
    int32_t dtype;    /* FS_F32 (default), FS_F16 or FS_BF16 */
    const void *data; /* [V, D], or [B, V]; may be NULL if V or, for stored logits, B is 0 */
    int64_t rows;     /* V: rows of W, or logits per row; at most 2^24 - 1 */
    int64_t dim;      /* D; ignored for stored logits */
    int64_t stride;   /* bytes from one row of data to the next; 0 = packed */

    /* Engines: what the model does to its logits. */
    const float *bias; /* [V] or NULL */
    int32_t round_to;  /* x is rounded to this type, as engines that store logits do; FS_F32 (default): not rounded */
    float scale;       /* of logits, before the soft-cap; 0 = 1 */
    float softcap;     /* 0 = none */
    float post_scale;  /* after the soft-cap; 0 = 1 */
    int64_t vocab;     /* real size of the whole vocabulary; rows with ids at or above it are padding and never drawn.
                        * 0 = first_token + rows. A larger vocab makes the head a shard, which fs_sample refuses */
    uint32_t flags;    /* FS_HEAD_CONSTANT */
    int32_t reserved;

    /* flashsampling_screens.h: a screen of this W, 64-byte aligned, or NULL. Tokens are the same with and without. */
    const void *screen;
    size_t screen_bytes; /* how many there are, at least fs_screen_size */

    /* flashsampling_ranks.h: the global id of row 0 of a shard; first_token + rows is at most 2^24 - 1. Bit-identical
     * log Z over shards needs a multiple of 16, or on CUDA of 128. */
    int64_t first_token;
} fs_head;

/* ----------------------------------------------------------------------------------------------------- rules ---- */

/* A rule's values: per_slot [S] has one for each slot; NULL: all slots have `value`. Without batch.slot and
 * batch.slots, slot b is row b, and S is B. Elements of per_slot mean what they hold: top_p 0 keeps one token, and
 * repetition 0 is FS_ROW_BAD_PENALTY. A value out of its range makes its row FS_ROW_BAD_... */
typedef struct fs_float_rule {
    const float *per_slot;
    float value;
} fs_float_rule;

typedef struct fs_int_rule {
    const int32_t *per_slot;
    int32_t value;
} fs_int_rule;

/* The rules by which a row's distribution is made of its logits.
 *
 * The life of a logit, in this order; an array or value that is absent leaves its step out:
 *   x = dot(h, w) in float, or the stored logit
 *   x += head.bias; x is rounded to head.round_to; x *= head.scale; x = softcap * tanh(x / softcap);
 *   x *= head.post_scale
 *   x = -inf where the allow-bitmask says so, and for padding rows                  -> x is the RAW logit
 *   y = x + edits; repetition penalty; frequency and presence penalties            -> y orders tokens
 *   l = y * (1 / temperature), or y itself for a greedy row                        -> l is the PROCESSED logit
 *   min-p, then top-k, then top-p on what is left; a token is drawn from softmax(l) over the survivors (the CUT)
 * Flags of a batch change this order as engines differ in it (docs/reference/rules.md): FS_EDITS_LAST, FS_MIN_P_LAST,
 * FS_CUT_BEFORE_TEMPERATURE.
 *
 * The total order of tokens is (y descending, id ascending). Every cut keeps a first part of it, at least one token:
 *   min-p   the tokens with l >= max l + log(min_p), the right side in double
 *   top-k   the first k
 *   top-p   a token stays while the mass strictly before it is below p times the mass of all that min-p and top-k left
 *           (with FS_JOINT_TOP_P: of the whole row), mass being the sum of exp(l)
 * All arithmetic on x, y, l is in float; edits of one token are added one by one. -inf is final: a token that a mask, a
 * ban or an overflow has made -inf is absent, whatever is added later. Where the largest l is +inf, top-p keeps the
 * first token of the order alone, and min-p the tokens whose l is +inf. An x of +inf sets FS_ROW_INF also where an edit
 * bans its token, which then does not win; an edit of +inf makes l +inf, and so sets it too.
 *
 * The three penalties look at what a slot has produced: without seen, counts or count_offset (or extra_offset) in the
 * batch they do nothing. The prompt belongs into `seen`. */
typedef struct fs_rules {
    size_t size;
    fs_float_rule temperature; /* 0 = greedy; default 1 */
    fs_int_rule top_k;         /* <= 0 or >= vocabulary: off; default 0 */
    fs_float_rule top_p;       /* 1 (default): off, and so is `value` 0 */
    fs_float_rule min_p;       /* keeps l >= max l + log(min_p); 0 (default): off */
    fs_float_rule repetition;  /* y > 0 ? y / r : y * r for seen tokens; 1 (default): off, and so is `value` 0 */
    fs_float_rule frequency;   /* y -= frequency * count, the product rounded to float; 0 (default): off */
    fs_float_rule presence;    /* y -= presence where count > 0; 0 (default): off */
} fs_rules;

/* A rule as programs see it that read the rules from the library, such as bindings and command lines. */
typedef struct fs_rule_info {
    const char *name;   /* of its member in fs_rules */
    const char *about;  /* its meaning, in one line */
    int32_t dtype;      /* FS_F32: the member is an fs_float_rule; FS_I32: an fs_int_rule */
    uint32_t rule;      /* its bit of FS_RULE_...; 0: it has none */
    size_t offset;      /* of its member in fs_rules */
    double off;         /* the default, with which the rule does nothing */
    double least, most; /* other values make their row... */
    uint32_t status;    /* ... have this bit of FS_ROW_... */
    int32_t reserved;
} fs_rule_info;

/* The rule with this index, in the order of fs_rules; NULL behind the last. */
FS_API const fs_rule_info *fs_rule(int32_t index);

/* ----------------------------------------------------------------------------------------------------- batch ---- */

enum {
    FS_MODE_SAMPLE = 0,              /* n independent samples per row */
    FS_MODE_WITHOUT_REPLACEMENT = 1, /* n distinct tokens in Plackett-Luce order (Gumbel-top-n) */
    FS_MODE_GROUP_PARALLEL = 2,      /* experimental: see tier 4 */
    FS_MODE_GROUP_ONLINE = 3,        /* experimental */
    FS_MODE_SCORE = 4                /* nothing is drawn: the logits of batch.score_token are the result */
};

enum {
    FS_KEEP_TIES_TOP_K = 1u << 0, /* top-k keeps every token whose y equals that of the last kept one */
    FS_KEEP_TIES_TOP_P = 1u << 1, /* likewise top-p, of what top-k and min-p have left */
    FS_KEEP_TIES = 3u,            /* both */
    FS_JOINT_TOP_P = 1u << 2,     /* top-p counts mass against the whole row, not against what min-p and top-k left */
    FS_MIN_P_LAST = 1u << 3,      /* top-k, then top-p, then min-p: what min-p removes still counts as mass for top-p */
    FS_CUT_BEFORE_TEMPERATURE = 1u << 4, /* cuts look at y in place of l; the draw is from softmax(l) all the same */
    FS_EDITS_LAST = 1u << 5,             /* penalties of x, then edits */
    FS_EXACT_RANK = 1u << 6,             /* CPU: pay a second pass rather than return a lower bound of the rank */
    FS_RANK_OF_TIES = 1u << 7 /* result.rank counts logits that are not smaller, the token's own among them */
};

/* fs_batch.hidden_stride: `hidden` is [D], and every row has it. */
#define FS_STRIDE_BROADCAST ((int64_t)-1)

/* fs_batch.fallback_token: token 0, for engines that use every token as an index. */
#define FS_FALLBACK_TOKEN_ZERO INT32_MIN

/* What can be done to a row's logits; bits. */
enum {
    FS_RULE_TOP_K = 1u << 0,
    FS_RULE_TOP_P = 1u << 1,
    FS_RULE_MIN_P = 1u << 2,
    FS_RULE_ALLOW = 1u << 3,
    FS_RULE_EDITS = 1u << 4,
    FS_RULE_PENALTIES = 1u << 5 /* repetition, frequency, presence */
};

/* Engines: what is known of the arrays of a batch without reading them. The CUDA backend cannot look into device memory
 * before it launches: what is not said is taken to be anything. A row that breaks a promise of `absent` or `top_k` is
 * FS_ROW_OVER_LIMIT, on every backend; lists that are longer together than was said are FS_ERR_ARGUMENT on the CPU. In
 * a part of CUDA, a row whose watched tokens find no room is FS_ROW_OVER_LIMIT.
 *
 * A row uses FS_RULE_TOP_K, TOP_P or MIN_P if its value is neither off nor out of range; FS_RULE_ALLOW if it has a
 * mask; FS_RULE_EDITS if its list is not empty; FS_RULE_PENALTIES if the batch has `seen`, `counts`, `count_offset` or
 * `extra_offset` and one of the row's three penalties is neither off nor out of range, whatever the counts are. */
typedef struct fs_limits {
    size_t size;
    uint32_t absent; /* FS_RULE_...: rules that no row of this call uses, as defined above */
    int32_t top_k;   /* no top_k that is not off is above this; 0 = not said */
    int64_t edits;   /* entries of all rows' edits together, up to 2^40, 0 = not said; so for the next two. An edit of a
                      * slot counts for each of its rows */
    int64_t counts;  /* of all slots' sparse counts, idle slots too */
    int64_t watched; /* of all rows' watched tokens; parts of CUDA, whose results speak of them, need it */
} fs_limits;

/* The rows to draw. A row's token depends on the head, the batch's mode and flags, and the inputs of its own row and
 * slot: hidden state, rules, lists, masks, seed, position, substream, sample index. It does not depend on B, the row's
 * place, other rows, the results that are asked for, threads, blocks or ranks. Results are asked for per call, not per
 * row: if one request wants logprobs, ask for all rows and ignore the rest. */
typedef struct fs_batch {
    size_t size;
    int64_t rows;          /* B, up to 2^20; 0 is valid and does nothing */
    const void *hidden;    /* [B, D]; ignored for stored logits */
    int32_t hidden_dtype;  /* FS_F32 (default), FS_F16 or FS_BF16; CUDA is fast where it is the head's, and not f32 */
    int32_t samples;       /* n: 1 .. 1024; 0 = 1 */
    int64_t hidden_stride; /* bytes from one row to the next; 0 = packed; FS_STRIDE_BROADCAST */
    const fs_rules *rules; /* NULL = fs_rules_default(): temperature 1, nothing else */
    const uint64_t *seed;  /* [S] or NULL = seed_all. Used as they are: equal seeds at equal positions share noise */
    uint64_t seed_all;     /* spread: slot s draws with a seed derived from (seed_all, s), so that rows differ */
    const uint64_t *position; /* [B] or NULL = position_all */
    uint64_t position_all;    /* add 1 for each token: equal seeds and positions repeat the same noise */

    /* Engines. A slot is a place for one sequence: its rules, its seed, its counts. Rows come and go with every step,
     * and `slot` says which slot each row of this call belongs to. */
    const void *slot;          /* [B] of slot_dtype, -1 = skip the row; NULL = row b is slot b */
    int64_t slots;             /* S, the length of per-slot arrays; 0 = B. Give it whenever you give `slot` */
    int32_t slot_dtype;        /* FS_I32 or FS_I64; 0 = FS_I32 */
    int32_t mode;              /* FS_MODE_... */
    uint32_t flags;            /* FS_KEEP_TIES_TOP_K | ... */
    int32_t fallback_token;    /* written where a row has no token; 0 = -1, FS_FALLBACK_TOKEN_ZERO = token 0 */
    const uint32_t *substream; /* [S] or NULL = substream_all */
    uint32_t substream_all;    /* names the noise beside seed, position and sample, as cuRAND's subsequence does: for
                                  * a second, independent draw at the same position; default 0 */
    /* Makes candidate lists longer, never shorter: entries that a list holds at least, per row and part, up to 2^24 -
     * 1; 0 = chosen, 1,024 for top-p or min-p alone, else top_k. A longer list proves wider cuts in one pass. On the
     * CPU an entry takes 16 bytes per row and thread, and a list never more than 8 V bytes per row and thread. */
    int32_t list_capacity;
    const fs_limits *limits; /* NULL = nothing is known */
    void *cuda_stream;       /* CUDA: the stream of this call (a cudaStream_t, or fs_stream() of a handle); NULL =
                                  * the context's. Other backends: NULL */

    /* Allowed tokens: bit (id % 32) of word (id / 32), 1 = allowed, global ids also on shards. */
    const uint32_t *allow;      /* [allow_count, ceil(vocab / 32)] or NULL = all */
    int64_t allow_stride;       /* bytes from one mask to the next; 0 = packed */
    const int32_t *allow_index; /* [B]: the mask of row b, -1 = none; NULL = mask b. One mask for all: zeros. One for
                                 * each slot: the slots */
    int64_t allow_count;        /* how many masks there are: a row whose mask is not below it is FS_ROW_BAD_MASK; 0: not
                                 * checked. An index below -1 is FS_ROW_BAD_MASK either way */

    /* Edits, as a logit bias: entries edit_offset[b] .. edit_offset[b+1] - 1 for row b; or, with edit_count in place of
     * edit_offset, the first edit_count[s] of slot s's line, lines being edit_stride apart; what is behind them is not
     * read. Several of one token add up, in their order. Offsets begin at 0 or above, ascend and stay below 2^31. */
    const int64_t *edit_offset; /* [B + 1] or NULL */
    const int32_t *edit_count;  /* [S] or NULL */
    int64_t edit_stride;        /* bytes from one slot's line to the next, in both arrays below; 4 or more */
    const int32_t *edit_token;
    const float *edit_bias; /* added to the logit; -inf bans the token */

    /* Tokens that each slot has produced so far, for penalties: the caller adds each token, the library only reads.
     * Repetition applies to tokens whose seen bit is set or whose count is above 0; frequency and presence look at
     * counts only. A count below 0 is none. */
    const uint32_t *seen;        /* bits like `allow`, [S, ceil(vocab / 32)] or NULL */
    int64_t seen_stride;         /* bytes; 0 = packed */
    const int32_t *counts;       /* dense, [S, vocab], or NULL */
    int64_t counts_stride;       /* bytes; 0 = packed */
    const int64_t *count_offset; /* sparse, [S + 1], or NULL; several of one token add up, one by one, and stop at the
                                  * limits of int32; not together with dense */
    const int32_t *count_token;
    const int32_t *count_value;
    /* Tokens that count once more each, for one row alone: the drafts before it, for example. Entries extra_offset[b]
     * .. extra_offset[b+1] - 1 for row b are added to what its slot has, dense, sparse or none, and stop at the same
     * limits. */
    const int64_t *extra_offset; /* [B + 1] or NULL */
    const int32_t *extra_token;

    /* FS_MODE_SCORE: the tokens that are scored. An id that is another shard's, or below first_token of a whole head,
     * is valid: it has no logit here (NaN, rank -1). */
    const int32_t *score_token; /* [B, n]; one bad token makes its row FS_ROW_BAD_TOKEN */

    /* Tokens whose logits are wanted, per row: entries watch_offset[b] .. watch_offset[b+1] - 1. */
    const int64_t *watch_offset; /* [B + 1] or NULL */
    const int32_t *watch_token;

    /* Experimental: tier 4. */
    int32_t noise; /* FS_NOISE_... */
    int32_t reserved;
    int64_t group_size; /* group modes of fs_sample: ids [k * group_size, (k+1) * group_size) form group k; at least
                         * 1, on CUDA a multiple of 128 is faster; elsewhere ignored */
} fs_batch;

/* ---------------------------------------------------------------------------------------------------- result ---- */

/* Which logits max_logit, log_z, logit, logprob, rank, top_* and watch_* speak of. */
enum {
    FS_LOGITS_RAW = 0,       /* x, as the model gave it (allow-bitmask applied) */
    FS_LOGITS_PROCESSED = 1, /* l, after edits, penalties and temperature */
    FS_LOGITS_CUT = 2        /* l, normalised over what the cuts left; -inf logprob for what they removed */
};

/* Where results go. Each pointer may be NULL, then it costs nothing, but tokens may be NULL only in score mode.
 *
 * log Z is within 1e-6 of the truth, then rounded to float, where the largest |logit| is up to 45,000; within 2e-4 up
 * to 362,000; above that the row is FS_ROW_FAR (a log Z of FS_LOGITS_CUT has no such limit). On CUDA, from weights, the
 * sum of exp may add 2e-7 (1 + |l|), and logits that tensor cores have summed are off by some 1e-9 D |x|
 * (docs/explain/exactness.md). Draws, top-k and min-p do not look at it and are exact at any l; top-p may move its last
 * token where the mass is within 3e-7 of p. */
typedef struct fs_result {
    size_t size;
    void *tokens;         /* [B, n] of tokens_dtype */
    int32_t tokens_dtype; /* FS_I32 or FS_I64; 0 = FS_I32 */
    int32_t logits_mode;  /* FS_LOGITS_...: which logits the members below speak of; default FS_LOGITS_RAW */
    uint32_t *status;     /* [B] FS_ROW_... bits */
    float *logprob;       /* [B, n] logit - log_z; never above 0 */

    /* Engines. */
    float *logit;       /* [B, n] of the drawn or scored token, also where a cut has removed it */
    float *noisy_logit; /* [B, n] the token's own l + noise (y for greedy rows), whose maximum won; NaN in score mode */
    float *max_logit;   /* [B] */
    float *log_z;       /* [B] log of the sum of exp (of survivors, for FS_LOGITS_CUT); not below max_logit, but by an
                         * error of the sum where CUDA stores no logits */
    int32_t *rank;      /* [B, n] 1 + number of strictly larger x (raw) or y (of survivors, for FS_LOGITS_CUT);
                         * FS_RANK_OF_TIES: of other ones that are not smaller. Absent tokens are not counted, and an
                         * absent token ranks behind all that are */
    int32_t top_count;  /* N: 0 .. 1024 */
    int32_t survivor_limit; /* 1 to 2^20 with survivor_token */
    /* The N best tokens in the total order (raw: of x). A row with fewer tokens, or for FS_LOGITS_CUT fewer survivors,
     * ends with token -1 and NaN. */
    int32_t *top_token;   /* [B, N] */
    float *top_logit;     /* [B, N] */
    float *top_logprob;   /* [B, N] */
    float *watch_logit;   /* [entries of watch_token] */
    float *watch_logprob; /* likewise */

    /* Refused by name (FS_ERR_UNSUPPORTED) on CUDA, over shards and over ranks. */
    float *entropy;          /* [B] -sum p log p in nats, p being softmax of the logits of logits_mode; never below 0.
                              * Within 1e-6 of the truth, then rounded to float, where the largest |l| is up to 45,000;
                              * within 1e-3 up to 362,000; NaN where log_z is +inf or NaN */
    int32_t *survivor_token; /* [B, survivor_limit] the tokens that the row's cuts left, in the total order: the first
                              * ones if there are more; -1 behind the last */
    int32_t *survivor_count; /* [B] how many tokens the cuts left, also where they are more than survivor_limit; 0 where
                              * the row has no token; -1 where it uses no cut: then every token that is not -inf
                              * survives, and survivor_token is -1 */
} fs_result;

/* --------------------------------------------------------------------------------------------------- context ---- */

typedef struct fs_context fs_context;

typedef enum {
    FS_BACKEND_AUTO = 0, /* today always the CPU */
    FS_BACKEND_CPU = 1,
    FS_BACKEND_CUDA = 2,
    FS_BACKEND_REFERENCE = 3 /* plain loops in double over all logits: slow, simple, the oracle of our tests */
} fs_backend_kind;

/* Runs task(arg, i) for i = 0 .. count-1, in any order, on any threads, and returns when all are done. */
typedef void (*fs_parallel_for)(void *user, int32_t count, void (*task)(void *arg, int32_t i), void *arg);
/* Gets one line without a newline: what was chosen and why. */
typedef void (*fs_log)(void *user, const char *line);
/* Like aligned_alloc and free; alloc returns NULL when it cannot. */
typedef void *(*fs_alloc)(void *user, size_t alignment, size_t bytes);
typedef void (*fs_free)(void *user, void *memory);

typedef struct fs_options {
    size_t size;
    int32_t backend; /* FS_BACKEND_...; the environment variable FLASHSAMPLING_BACKEND overrides it */
    int32_t device;  /* CUDA device ordinal */
    int32_t threads; /* CPU: up to 4,096; 0 = every core this process may run on */
    int32_t block;   /* CPU: tokens per block, rounded up to a multiple of 128; 0 = chosen. Never changes a token */

    /* Engines. */
    fs_parallel_for parallel_for; /* CPU: the caller's threads instead of ours; `threads` is then the number of tasks */
    void *parallel_user;
    fs_log log;
    void *log_user;
    fs_alloc alloc; /* for every allocation of the context in host memory; NULL = the C library's */
    fs_free free;
    void *alloc_user;
    /* The caller's work memory, as in fs_context_set_work; then calls never allocate, but for what fs_sample_ranks
     * exchanges on the CPU. NULL = the context's own. */
    void *work;
    size_t work_bytes;
    /* Upper limit of memory for rows whose cut does not fit their list. Such a row stores its logits, 4 bytes a token,
     * or reads W a second time. 0 = 320 MiB, FS_FALLBACK_NONE = none. The memory is kept while calls need it. With the
     * caller's work memory these rows take what the call has left of it.
     * CUDA: most work memory for logits. Those of rows with rules may be stored, and so may those of calls with many
     * samples, ranks, top or watched tokens, FS_NOISE_FAST, a mode of their own, f32 weights, or hidden states of
     * another type than the head's: of as many rows at a time as this has room for, at least one, W being read anew.
     * Calls that need it for few rows, as top-k does, take 64 MiB at most. Lists of rows with top-p alone, ranks or top
     * tokens come on top, 64 KB each. */
    size_t fallback_bytes;
    /* CUDA: the stream of calls whose batch names none, as in fs_context_set_stream. NULL = none yet: such a call is
     * FS_ERR_ARGUMENT, so that none goes to the default stream by accident. CPU: ignored. */
    void *cuda_stream;
    uint32_t flags; /* FS_CHECK_POINTERS */
    int32_t reserved;
} fs_options;

/* fs_options.fallback_bytes: no memory, as a single byte is too little for any row. */
#define FS_FALLBACK_NONE ((size_t)1)

/* fs_options.flags. CUDA: asks the driver about every pointer of every call, and refuses with FS_ERR_ARGUMENT what is
 * neither memory of the device nor mapped; without it such a pointer is a fault of the device, which ends the process's
 * use of it. Some microseconds a call: for development. FLASHSAMPLING_CHECK_POINTERS=1 in the environment does the
 * same. CPU: ignored. */
#define FS_CHECK_POINTERS (1u << 0)

/* Creates a context. options may be NULL. On failure *out is NULL and fs_error_text(NULL) tells why (per thread). */
FS_API fs_status fs_context_create(const fs_options *options, fs_context **out);

/* Frees the context and what it allocated; NULL is allowed. On CUDA waits for the device, and needs none of the streams
 * that calls went to. */
FS_API void fs_context_destroy(fs_context *context);

/* The text of the last failed call on this context, with value and limit; "" if none failed. NULL context: the last
 * failure of a call without a context in this thread. Valid until the next call. */
FS_API const char *fs_error_text(const fs_context *context);

/* Draws (or, in score mode, scores) every row and writes the result. CPU: returns when done. CUDA: enqueues on the
 * stream and returns; no allocation after the first call of a shape, no synchronisation, capturable in a graph. A graph
 * keeps the numbers in these structs (rows, position_all, every `value`) and the addresses: what changes from replay to
 * replay is in arrays (position, slot, per_slot), and rows that are not in use have slot -1. */
FS_API fs_status fs_sample(fs_context *context, const fs_head *head, const fs_batch *batch, const fs_result *result);

/* Version of the library at run time, (major << 16) | (minor << 8) | patch, and as text. */
FS_API uint32_t fs_version(void);
FS_API const char *fs_version_text(void);

/* A short constant text for a status: "argument", "memory", ... Never NULL. */
FS_API const char *fs_status_text(fs_status status);

/* ------------------------------------------------------------------------------------ 2. what engines need ---- */

/* One line about the context: backend, instruction set, threads. Valid as long as the context. */
FS_API const char *fs_context_text(const fs_context *context);

/* What the last call of the context that drew, scored, merged or made a part took; all 0 before. On CUDA, what is known
 * without synchronising. Which rows need a second pass may differ from run to run, as it depends on which thread had
 * which tokens. If there is no room for that pass, the set of FS_ROW_INCOMPLETE rows may differ too. */
typedef struct fs_counters {
    size_t size;
    int64_t fallback_rows; /* rows that needed a second pass over W; CUDA: 0, their status says so */
    int64_t work_bytes;    /* temporary memory of the call */
    int64_t wire_bytes;    /* bytes this rank has put into parts or collectives */
    int64_t screened_rows; /* rows that head.screen has decided, without a pass over W; 0 over shards and ranks, and on
                            * CUDA, which knows later */
    int64_t screened_dots; /* logits that were computed from W for them; may differ from run to run */
} fs_counters;

FS_API fs_status fs_context_counters(fs_context *context, fs_counters *counters);

/* Gives the context the caller's work memory (64-byte aligned, not shared with another context in use), or takes it
 * back with NULL. The memory must be there for every call that follows. Sizes: fs_work_size; less is FS_ERR_MEMORY.
 * CUDA: device memory (256-byte aligned), which the stream may have used before. Each call that is captured in a graph
 * takes a piece of its own and keeps it as long as the graph lives. For k captured calls give (k + 1) times the bytes
 * of fs_work_size, each rounded up to 256; with less, a capture is FS_ERR_MEMORY. */
FS_API fs_status fs_context_set_work(fs_context *context, void *memory, size_t bytes);

/* Bytes of work memory for fs_sample and fs_partial with these arguments, or with fewer rows, samples or results, for
 * fs_context_set_work. Nothing is computed, and what data and hidden point to is not read. Either size may be NULL; on
 * CUDA they are equal.
 *   *max_bytes  enough for every call. Engines give this.
 *   *min_bytes  enough for every call to run; a row whose cut needs a second pass over W may then be FS_ROW_INCOMPLETE.
 * On the CPU both depend on the values in the arrays. Plan with the largest call: every row in use, top-p without
 * top-k, the most samples, and every result. Give each row its longest edits and extra tokens, and each slot one
 * penalty that is on. The contents of seen, counts and allow do not matter. Smaller calls then fit; an empty list of
 * edits does not plan for a longer one. fs_merge, and so fs_sample_ranks, takes the lists of all parts at once: if that
 * is more, FS_ERR_MEMORY says so. */
FS_API fs_status fs_work_size(fs_context *context, const fs_head *head, const fs_batch *batch, const fs_result *result,
                              size_t *min_bytes, size_t *max_bytes);

/* CUDA: sets the stream (a cudaStream_t, or fs_stream() of a handle) of calls whose batch names none; NULL is no
 * stream. If a call uses another stream than the previous call, its stream first waits for the previous call. The
 * previous stream must therefore still exist then: call fs_context_set_stream(context, NULL) before you destroy a
 * stream that calls used, batch.cuda_stream included. A call that is captured in a graph waits for no other call, and
 * no other call waits for it: it has work memory of its own, so that two graphs may be replayed at once (but not two
 * instances of one graph). CPU: FS_ERR_UNSUPPORTED. */
FS_API fs_status fs_context_set_stream(fs_context *context, void *cuda_stream);

/* CUDA's default stream, said explicitly: cudaStreamLegacy, what CUDA and torch mean by a handle of 0; and
 * cudaStreamPerThread. */
#define FS_STREAM_DEFAULT ((void *)(uintptr_t)1)
#define FS_STREAM_PER_THREAD ((void *)(uintptr_t)2)

/* A handle from elsewhere, torch's current stream for one, as a stream of this library: 0 is the default stream. */
static inline void *fs_stream(void *handle) {
    return handle ? handle : FS_STREAM_DEFAULT;
}

/* --- what a backend can do. A call without its arrays: */
enum {
    FS_CALL_SAMPLE = 0,
    FS_CALL_PARTIAL = 1, /* and fs_merge */
    FS_CALL_RANKS = 2
};

/* What is asked for beside tokens and status; bits. */
enum {
    FS_RESULT_NOISY_LOGIT = 1u << 0,
    FS_RESULT_MAX_LOGIT = 1u << 1,
    FS_RESULT_LOG_Z = 1u << 2,
    FS_RESULT_LOGIT = 1u << 3,
    FS_RESULT_LOGPROB = 1u << 4,
    FS_RESULT_RANK = 1u << 5,
    FS_RESULT_TOP = 1u << 6,
    FS_RESULT_WATCH = 1u << 7,
    FS_RESULT_ENTROPY = 1u << 8,
    FS_RESULT_SURVIVORS = 1u << 9
};

/* Inputs of a batch that not every backend takes; bits. */
enum {
    FS_INPUT_BROADCAST = 1u << 0,   /* hidden_stride is FS_STRIDE_BROADCAST; of no meaning for stored logits */
    FS_INPUT_EXTRA_TOKENS = 1u << 1 /* extra_offset is given */
};

typedef struct fs_call_desc {
    size_t size;
    int32_t call;         /* FS_CALL_... */
    int32_t kind;         /* FS_HEAD_... */
    int32_t dtype;        /* of the head */
    int32_t hidden_dtype; /* of the batch; of no meaning for stored logits */
    int32_t mode;         /* FS_MODE_... */
    int32_t noise;        /* FS_NOISE_... */
    int32_t samples;      /* 0 = 1 */
    int32_t logits_mode;  /* FS_LOGITS_... */
    uint32_t rules;       /* FS_RULE_... that rows may use */
    uint32_t results;     /* FS_RESULT_... */
    uint32_t flags;       /* of the batch */
    uint32_t inputs;      /* FS_INPUT_... */
    int64_t group_size;   /* group modes */
} fs_call_desc;

/* Whether a backend (FS_BACKEND_..., not AUTO) does such calls: FS_OK, FS_ERR_UNSUPPORTED, or FS_ERR_ARGUMENT if nobody
 * could. why may be NULL; *why becomes a constant text, "" for FS_OK. A call that is refused as unsupported says the
 * same words. Needs no device and no context. */
FS_API fs_status fs_supports(int32_t backend, const fs_call_desc *call, const char **why);

/* --- speculative decoding with shared noise: draft and target draw with the same (seed, position, substream), and the
 * output is bit for bit the one without a draft, given equal hidden states. Sample the target on all k + 1 rows of a
 * sequence, then count. Row j of a sequence has position p + j and the hidden state behind drafts 0 .. j - 1. Its rows
 * share one slot, and so its seed and rules. With penalties, extra_token of row j lists drafts 0 .. j - 1; row 0 has
 * none. */

typedef struct fs_drafts {
    size_t size;
    int32_t tokens_dtype; /* of draft, target and tokens: FS_I32 or FS_I64; 0 = FS_I32 */
    int32_t reserved;
    int64_t sequences;            /* R */
    int64_t draft_length;         /* k: where target_offset is NULL, each sequence has k drafts and k + 1 targets */
    const int64_t *target_offset; /* [R + 1] or NULL: sequence s has targets target_offset[s] .. target_offset[s+1] - 1,
                                   * and one draft fewer; an empty sequence has neither */
    const int64_t *draft_offset;  /* [R]: where its first draft is, not read if it has none; NULL: the drafts of all
                                   * sequences lie one behind another, and empty ones take no room */
    const void *draft;            /* a negative draft equals no target; may be NULL where there is none */
    const void *target;    /* the rows of a sequence in order; a row without a token has batch.fallback_token here */
    int32_t *accepted;     /* [R], required: leading drafts that equal their targets; 0 for an empty sequence */
    void *tokens;          /* what each sequence emits: its first accepted + 1 targets; or NULL. Room for all targets */
    int64_t tokens_width;  /* 0: the tokens of all sequences lie one behind another. Else tokens is
                            * [R, tokens_width], each line filled up with -1; no sequence has more targets */
    int64_t *token_offset; /* [R + 1] or NULL: how many tokens the sequences before s emit, which is where its tokens
                            * begin if they are packed; the last is how many there are */
    void *cuda_stream;     /* CUDA: the stream of this call; NULL = the context's. Other backends: NULL */
} fs_drafts;

/* Accepts the drafts of each sequence while they equal what the target drew at their place. context NULL or of the CPU:
 * host arrays; of CUDA: device arrays, the call only enqueues, and today takes draft_length and `accepted` alone. */
FS_API fs_status fs_accept_drafts(fs_context *context, const fs_drafts *drafts);

/* --- the noise itself, for tests and for other implementations. */

/* Identifier of the noise mapping: which token a (seed, position) draws is API. Bit 31 set: a draft, may change. */
FS_API uint32_t fs_noise_id(void);
/* The Gumbel value of one token, in double. */
FS_API double fs_noise_gumbel(uint64_t seed, uint64_t position, uint32_t sample, uint32_t substream, uint32_t token);
/* The seed slot s draws with where the caller gave seed_all. */
FS_API uint64_t fs_seed_spread(uint64_t seed, uint64_t slot);

/* ------------------------------------------------------------------------------- 4. experimental, may change ---- */

/* FS_MODE_GROUP_PARALLEL and FS_MODE_GROUP_ONLINE are the paper's B.2 and B.3: exact in law, depend on group_size;
 * n = 1, no cuts, and on CUDA no arrays of them that limits.absent does not name. For comparison with it: on CUDA
 * groups of 4,096 take 1.04 to 3.3 times what FS_MODE_SAMPLE does, because each has a winner of its own to find. */

enum {
    FS_NOISE_EXACT = 0, /* total variation error below 1e-6 for |l| up to 2,000 (1.5e-8 up to 32) */
    FS_NOISE_FAST = 1   /* the paper's appendix C: 32-bit uniform and two logs in float; biased in the tail */
};

/* -------------------------------------------------------------------------------------------------- defaults ---- */

static inline fs_head fs_head_default(void) {
    fs_head h;
    memset(&h, 0, sizeof h);
    h.size = sizeof h;
    h.scale = 1.0f;
    h.post_scale = 1.0f;
    return h;
}

static inline fs_rules fs_rules_default(void) {
    fs_rules r;
    memset(&r, 0, sizeof r);
    r.size = sizeof r;
    r.temperature.value = 1.0f;
    r.top_p.value = 1.0f;
    r.repetition.value = 1.0f;
    return r;
}

static inline fs_limits fs_limits_default(void) {
    fs_limits l;
    memset(&l, 0, sizeof l);
    l.size = sizeof l;
    return l;
}

static inline fs_batch fs_batch_default(void) {
    fs_batch b;
    memset(&b, 0, sizeof b);
    b.size = sizeof b;
    b.samples = 1;
    b.fallback_token = -1;
    b.slot_dtype = FS_I32;
    return b;
}

static inline fs_result fs_result_default(void) {
    fs_result r;
    memset(&r, 0, sizeof r);
    r.size = sizeof r;
    r.tokens_dtype = FS_I32;
    return r;
}

static inline fs_counters fs_counters_default(void) {
    fs_counters c;
    memset(&c, 0, sizeof c);
    c.size = sizeof c;
    return c;
}

static inline fs_call_desc fs_call_desc_default(void) {
    fs_call_desc c;
    memset(&c, 0, sizeof c);
    c.size = sizeof c;
    c.samples = 1;
    return c;
}

static inline fs_drafts fs_drafts_default(void) {
    fs_drafts d;
    memset(&d, 0, sizeof d);
    d.size = sizeof d;
    d.tokens_dtype = FS_I32;
    return d;
}

static inline fs_options fs_options_default(void) {
    fs_options o;
    memset(&o, 0, sizeof o);
    o.size = sizeof o;
    o.fallback_bytes = (size_t)320 << 20;
    return o;
}

#ifdef __cplusplus
}
#endif
#endif
