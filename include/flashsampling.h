/* flashsampling.h - exact sampling fused into the LM-head matmul.
 *
 * The next token of a language model is drawn from softmax(transform(H W^T)) in one pass over W, without storing the
 * logits. This header is all a user includes, but for ranks over MPI or NCCL. It is C11 and C++11 clean and names no
 * type of CUDA, MPI or NCCL.
 *
 * Legend, used in every comment below and nowhere redefined:
 *   B rows of the batch, D hidden size, V rows of the head (the vocabulary, or one shard of it), n samples per row,
 *   S slots. A slot is a place for one sequence: its rules, its seed, what it has produced. Rows come and go, and
 *   batch.slot says which slot each row of a call belongs to. `[B, D]` is the shape of an array in row-major order. A
 *   token id is global: the row of the whole vocabulary, also where the head is a shard. A "cut" is any of top-k,
 *   top-p, min-p.
 *
 * The life of a logit, in this order (what an array or scalar is absent for is left out):
 *   x = dot(h, w) in float, or the stored logit
 *   x += head.bias; x is rounded to head.round; x *= head.scale; x = softcap * tanh(x / softcap); x *= head.post_scale
 *   x = -inf where the allow-bitmask says so, and for padding rows                  -> x is the RAW logit
 *   y = x + edits; repetition penalty; frequency and presence penalties            -> y orders tokens
 *   l = y * (1 / temperature), or y itself for a greedy row                        -> l is the PROCESSED logit
 *   min-p, then top-k, then top-p on what is left; a token is drawn from softmax(l) over the survivors (the CUT)
 * Flags of a batch change this order as engines differ in it (docs/engines.md): FS_EDITS_LAST, FS_MIN_P_LAST,
 * FS_CUT_BEFORE_TEMPERATURE.
 *
 * The total order of tokens is (y descending, id ascending). Every cut keeps a first part of it, at least one token:
 *   min-p   the tokens with l >= max l + log(min_p), the right side in double
 *   top-k   the first k
 *   top-p   a token stays while the mass strictly before it is below p times the mass of all that min-p and top-k left
 *           (with FS_JOINT_TOP_P: of the whole row), mass being the sum of exp(l)
 * All arithmetic on x, y, l is in float. -inf is final: a token that a mask, a ban or an overflow has made -inf is
 * absent, whatever is added later.
 *
 * log Z is within 1e-6 of the truth, then rounded to float, where the largest |l| is up to 45,000; within 2e-4 up to
 * 362,000; above that the row is FS_ROW_FAR. On CUDA, from weights, the sum of exp may add 2e-7 (1 + |l|), and logits
 * that tensor cores have summed are off by some 1e-9 D |x| (docs/exactness.md). Draws, top-k and min-p do not look
 * at it and are exact at any l; top-p may move its last token where the mass is within 3e-7 of p.
 *
 * Memory: every pointer belongs to the caller and is read or written only during the call (CPU) or until the stream
 * has run the call (CUDA). On the CPU all arrays are host memory; on CUDA they are device memory (mapped host memory
 * works and is read once per row). Pointers are aligned to their elements, strides are bytes: anything else is
 * FS_ERR_ARGUMENT. The library never prints, exits or aborts.
 *
 * Threads: contexts share nothing mutable; one context serves one call at a time. A call on the CPU leaves the AMX tile
 * configuration of its threads as it was, but not what is in the tiles. After fork() the child may destroy the contexts
 * it has inherited; any other call with one is FS_ERR_STATE. It creates its own.
 *
 * Structs: the first member `size` is sizeof of the struct the caller was compiled with, which the fs_*_default()
 * functions set. Later versions append members, up to 4,096 bytes, whose zero keeps the old meaning. A library takes
 * structs of earlier versions, and of later ones if what it does not know is zero. Members called reserved are zero.
 *
 * Zero means default: a struct that is zero but for its size, its data and their shape is a valid call. Temperature 0
 * is greedy, so a zeroed batch draws greedily; fs_batch_default() has temperature 1. These zeros stand for another
 * value:
 *
 *   member                                  zero means       the zero itself
 *   head.scale, head.post_scale             1                none: all tokens would be equal
 *   batch.samples, outline.samples          1                none
 *   batch.slot_dtype, result.tokens_dtype   FS_I32           FS_F32, which neither may be
 *   batch.all.top_p                         1: off           an array of 0, or 1e-30: one token stays
 *   batch.all.repetition                    1: off           none: it is no penalty
 *   batch.fallback_token                    -1               FS_FALLBACK_TOKEN_ZERO
 *   options.fallback_bytes                  320 MiB          FS_FALLBACK_NONE
 *   screen_options.format                   FS_SCREEN_INT8   none
 *
 * Arrays mean what they hold: top_p[s] = 0 keeps one token, and repetition[s] = 0 is FS_ROW_BAD_PENALTY.
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
#define FS_VERSION_MINOR 1
#define FS_VERSION_PATCH 0

#if defined(__GNUC__)
#define FS_API __attribute__((visibility("default")))
#else
#define FS_API
#endif

/* ---------------------------------------------------------------------------------------------------- status ---- */

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
    FS_ERR_INTERNAL = -8     /* a bug of ours */
};

/* Status bits of one row, written to result.status. A row with a bit of FS_ROW_NO_TOKEN set has no token: its tokens
 * are batch.fallback_token, its ranks and top tokens -1, its other results NaN. All bits that apply are set, but a
 * skipped row or one with a bad slot has no other, and where its rules (BAD_..., OVER_LIMIT) leave a row no token, its
 * logits are not looked at: no EMPTY, NAN, INF, ... */
enum {
    FS_ROW_OK = 0,
    FS_ROW_SKIPPED = 1u << 0,         /* slot -1 */
    FS_ROW_EMPTY = 1u << 1,           /* no l above -inf is left: the row has no distribution */
    FS_ROW_BAD_SLOT = 1u << 2,        /* slot < -1 or slot >= slots */
    FS_ROW_BAD_TEMPERATURE = 1u << 3, /* negative, NaN, infinite, or so small that 1/T overflows */
    FS_ROW_BAD_TOP_P = 1u << 4,       /* negative, above 1.00001 or NaN */
    FS_ROW_BAD_MIN_P = 1u << 5,       /* negative, above 1 or NaN */
    FS_ROW_BAD_PENALTY = 1u << 6,     /* repetition <= 0, or a penalty that is NaN or infinite */
    FS_ROW_BAD_TOKEN = 1u << 7,       /* an edited, counted, watched or given token is negative or not below vocab */
    FS_ROW_INCOMPLETE = 1u << 8,      /* merge or budget: the lists do not prove the cut; nothing is drawn */
    FS_ROW_PEER = 1u << 9,      /* parts or ranks on CUDA: one failed, is missing, or was called with other arguments */
    FS_ROW_BAD_MASK = 1u << 10, /* allow_index < -1, or not below batch.masks */
    FS_ROW_BAD_LIST = 1u << 11, /* edit_count is negative, or more than edit_stride has room for */
    FS_ROW_OVER_LIMIT = 1u << 12, /* the row uses a rule, or a larger top_k, than batch.limits said */
    FS_ROW_NO_TOKEN = 0xffff,     /* mask of the bits above, and of those to come in their place */
    FS_ROW_NAN = 1u << 16,        /* a logit that no mask removed was NaN; it was treated as -inf */
    FS_ROW_INF = 1u << 17,        /* an x or l was +inf: the lowest such id wins, its log Z is +inf, logprobs NaN */
    FS_ROW_FALLBACK = 1u << 18,   /* the row needed a second pass over W (exact all the same) */
    FS_ROW_RANK_BOUND = 1u << 19, /* CPU, or shards: result.rank is a lower bound, 257 or more */
    FS_ROW_SHORT = 1u << 20,      /* without replacement: fewer tokens than samples; the rest have none (see above) */
    FS_ROW_FAR = 1u << 21         /* the largest x or l is too far from 0 for log Z: it and logprobs are NaN */
};

/* ------------------------------------------------------------------------------------------------------ head ---- */

typedef enum {
    FS_F32 = 0,
    FS_F16 = 1,
    FS_BF16 = 2,
    FS_I32 = 8, /* token ids and slots only */
    FS_I64 = 9, /* token ids and slots only */
    /* Weights in fewer bits. No backend has them yet: FS_ERR_UNSUPPORTED. */
    FS_FP8_E4M3 = 16, /* scales per row, or per block of group_rows x group */
    FS_INT8 = 17,
    FS_INT4 = 18,  /* two in a byte, the first in its lower half */
    FS_NVFP4 = 19, /* E2M1, an E4M3 scale for 16 of them and one scale for all */
    FS_Q8_0 = 32,  /* GGUF: scales lie inside the blocks */
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
    int32_t kind;        /* FS_HEAD_WEIGHTS or FS_HEAD_LOGITS */
    int32_t dtype;       /* FS_F32 (default), FS_F16 or FS_BF16 */
    const void *data;    /* [V, D], or [B, V]; may be NULL if V or, for stored logits, B is 0 */
    int64_t rows;        /* V: rows of W, or logits per row; at most 2^24 - 1 */
    int64_t dim;         /* D; ignored for stored logits */
    int64_t stride;      /* bytes from one row of data to the next; 0 = packed */
    int64_t first_token; /* global id of row 0, for a shard; first_token + rows is at most 2^24 - 1. Bit-identical log Z
                          * over shards needs a multiple of 16, or on CUDA of 128 */
    int64_t vocab;       /* real size of the whole vocabulary; rows with ids at or above it are padding and never drawn.
                          * 0 = first_token + rows. A larger vocab makes the head a shard, which fs_sample refuses */
    const float *bias;   /* [V] or NULL */
    int32_t round;       /* FS_F32: keep (default, finer); FS_BF16, FS_F16: round x as engines that store logits do */
    float scale;         /* of logits, before the soft-cap; 0 = 1 */
    float softcap;       /* 0 = none */
    float post_scale;    /* after the soft-cap; 0 = 1 */
    uint32_t flags;      /* FS_HEAD_CONSTANT */

    /* Weights in fewer bits than 16: w = (q - zero) * weight_scale * weight_scale_all. One scale and one zero point for
     * group_rows x group weights, [ceil(V / group_rows), ceil(D / group)]. All zero or NULL for f32, f16 and bf16, and
     * where data has its scales inside. */
    int32_t weight_scale_dtype;
    const void *weight_scale;
    const void *weight_zero;     /* of weight_zero_dtype, or NULL = 0 */
    int64_t weight_scale_stride; /* bytes from one row of scales to the next, 0 = packed; zero points are packed */
    int32_t weight_zero_dtype;
    int32_t group;          /* columns; 0 = D */
    int32_t group_rows;     /* 0 = 1 */
    float weight_scale_all; /* 0 = 1 */

    /* A screen of this W (fs_screen_build), 64-byte aligned, or NULL. Tokens are the same with and without; calls whose
     * rows it can decide read it in place of W. Where W changes, its screen must be made anew.
     *
     * The first call of a context with this W and this screen checks them: the screen's header and all of its bytes,
     * and four weights of every row of W, at places that depend on the row. A screen that was changed, or is another
     * W's, is FS_ERR_ARGUMENT. On CUDA that call waits for the device, so it cannot be captured. The check misses a row
     * that changed only at other places: 1 row in 16 of those of which half changed, and nearly every single weight. It
     * also misses later writes to W. fs_screen_check looks at every weight. A context remembers 8 heads with screens;
     * with more in turn, every call repeats the check. */
    const void *screen;
    size_t screen_bytes; /* how many there are, at least fs_screen_size */
} fs_head;

/* ----------------------------------------------------------------------------------------------------- batch ---- */

enum {
    FS_MODE_SAMPLE = 0,              /* n independent samples per row */
    FS_MODE_WITHOUT_REPLACEMENT = 1, /* n distinct tokens in Plackett-Luce order (Gumbel-top-n) */
    /* The paper's B.2 and B.3: exact in law, depend on group_size; n = 1, no cuts, and on CUDA no arrays of them that
     * limits.absent does not name. For comparison with it: on CUDA groups of 4,096 take 1.04 to 3.3 times what
     * FS_MODE_SAMPLE does, because each has a winner of its own to find, and the best of few tokens keeps fewer others
     * out of the race. */
    FS_MODE_GROUP_PARALLEL = 2,
    FS_MODE_GROUP_ONLINE = 3,
    FS_MODE_SCORE = 4 /* nothing is drawn: batch.given are the tokens, their logits are the result */
};

enum {
    FS_NOISE_EXACT = 0, /* total variation error below 1e-6 for |l| up to 2,000 (1.5e-8 up to 32) */
    FS_NOISE_FAST = 1   /* the paper's appendix C: 32-bit uniform and two logs in float; biased in the tail */
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

/* What is known of the arrays of a batch without reading them. The CUDA backend cannot look into device memory before
 * it launches: what is not said is taken to be anything. A row that breaks a promise of `absent` or `top_k` is
 * FS_ROW_OVER_LIMIT, on every backend; lists that are longer together than was said are FS_ERR_ARGUMENT on the CPU, and
 * rows whose watched tokens a part of CUDA has no room for FS_ROW_OVER_LIMIT. */
typedef struct fs_limits {
    uint32_t absent; /* FS_RULE_...: rules that no row uses, although there is an array for them */
    int32_t top_k;   /* no top_k that is not off is above this; 0 = not said */
    int64_t edits;   /* entries of all rows' edits together, up to 2^40, 0 = not said; so for the next two */
    int64_t counts;  /* of all slots' sparse counts */
    int64_t watched; /* of all rows' watched tokens; parts of CUDA, whose results speak of them, need it */
} fs_limits;

/* The values one slot has. In fs_batch, `all` holds what is used where the array of the same name is NULL. */
typedef struct fs_slot_values {
    float temperature; /* 0 = greedy; default 1 */
    int32_t top_k;     /* <= 0 or >= vocabulary: off; default 0 */
    float top_p;       /* 1: off, and so is the scalar 0; 0 in an array keeps one token */
    float min_p;       /* keeps l >= max l + log(min_p); 0: off; default 0 */
    uint64_t seed;     /* the scalar is spread: slot s draws with a seed derived from (seed, s), so rows differ */
    uint32_t stream;   /* a number, no CUDA stream: with seed, position and sample it names the noise, so that a caller
                        * can draw twice at one position; default 0 */
    float repetition;  /* y > 0 ? y / r : y * r for seen tokens; 1: off, and so is the scalar 0 */
    float frequency;   /* y -= frequency * count; default 0 */
    float presence;    /* y -= presence where count > 0; default 0 */
} fs_slot_values;

/* What is drawn. A row's token is a function of its hidden state, the head, its slot's values, its position and the
 * sample index, and of nothing else: not of B, the row's place, its neighbours, threads, blocks or ranks. */
typedef struct fs_batch {
    size_t size;
    int64_t rows;           /* B, up to 2^20; 0 is valid and does nothing */
    const void *hidden;     /* [B, D]; ignored for stored logits */
    int32_t hidden_dtype;   /* FS_F32 (default), FS_F16 or FS_BF16; CUDA is fast where it is the head's, and not f32 */
    int32_t mode;           /* FS_MODE_... */
    int64_t hidden_stride;  /* bytes from one row to the next; 0 = packed */
    int32_t samples;        /* n: 1 .. 1024; 0 = 1 */
    int32_t noise;          /* FS_NOISE_... */
    uint32_t flags;         /* FS_KEEP_TIES | ... */
    int32_t fallback_token; /* written where a row has no token; 0 = -1, FS_FALLBACK_TOKEN_ZERO = token 0 */
    int64_t group_size;     /* group modes of fs_sample: ids [k * group_size, (k+1) * group_size) form group k; at least
                             * 1, on CUDA a multiple of 128 is faster; elsewhere ignored */
    int32_t list_capacity;  /* entries a candidate list holds at least, per row and part, in calls that have lists;
                             * 0 = chosen. A longer list proves wider cuts in one pass */

    /* Which slot a row is, and where it is in its sequence. */
    int32_t slot_dtype;       /* FS_I32 or FS_I64; 0 = FS_I32 */
    const void *slot;         /* [B] of slot_dtype, -1 = skip the row; NULL = row b is slot b */
    int64_t slots;            /* S, the length of per-slot arrays; 0 = B */
    const uint64_t *position; /* [B] or NULL = position_all */
    uint64_t position_all;    /* advance it (or position) with every token: equal positions draw with equal noise */

    /* Per slot, each [S] or NULL = the value of `all`. */
    fs_slot_values all;
    const float *temperature;
    const int32_t *top_k;
    const float *top_p;
    const float *min_p;
    const uint64_t *seed; /* used as they are, not spread: equal seeds at equal positions share their noise */
    const uint32_t *stream;
    const float *repetition;
    const float *frequency;
    const float *presence;

    /* Allowed tokens: bit (id % 32) of word (id / 32), 1 = allowed, global ids also on shards. */
    const uint32_t *allow;      /* [masks, ceil(vocab / 32)] or NULL = all */
    int64_t allow_stride;       /* bytes from one mask to the next; 0 = packed */
    const int32_t *allow_index; /* [B]: which mask row b uses, -1 = none; NULL = mask b */
    int64_t masks; /* how many `allow` has: a row with another is FS_ROW_BAD_MASK; 0 = not said, then only below -1 */

    /* Edits: entries edit_offset[b] .. edit_offset[b+1] - 1 for row b; or, with edit_count in place of edit_offset, the
     * first edit_count[s] of slot s's line, lines being edit_stride apart; what is behind them is not read. Several of
     * one token add up, in their order. Offsets begin at 0 or above and ascend. */
    const int64_t *edit_offset; /* [B + 1] or NULL */
    const int32_t *edit_count;  /* [S] or NULL */
    int64_t edit_stride;        /* bytes from one slot's line to the next, in both arrays below; 4 or more */
    const int32_t *edit_token;
    const float *edit_bias; /* added to the logit; -inf bans the token */

    /* What each slot has produced so far. Repetition applies to tokens whose seen bit is set or whose count is
     * above 0; frequency and presence look at counts only. A count below 0 is none. */
    const uint32_t *seen;        /* bits like `allow`, [S, ceil(vocab / 32)] or NULL */
    int64_t seen_stride;         /* bytes; 0 = packed */
    const int32_t *counts;       /* dense, [S, vocab], or NULL */
    int64_t counts_stride;       /* bytes; 0 = packed */
    const int64_t *count_offset; /* sparse, [S + 1], or NULL; several of one token add up, one by one, and stop at the
                                  * limits of int32; not together with dense */
    const int32_t *count_token;
    const int32_t *count_value;

    /* Score mode. */
    const int32_t *given; /* [B, n]; one bad token makes its row FS_ROW_BAD_TOKEN */

    /* Tokens whose logits are wanted, per row: entries watch_offset[b] .. watch_offset[b+1] - 1. */
    const int64_t *watch_offset; /* [B + 1] or NULL */
    const int32_t *watch_token;

    fs_limits limits;
} fs_batch;

/* ---------------------------------------------------------------------------------------------------- result ---- */

/* Which logits max_logit, log_z, logit, logprob, rank, top_* and watch_* speak of. */
enum {
    FS_LOGITS_RAW = 0,       /* x, as the model gave it (allow-bitmask applied) */
    FS_LOGITS_PROCESSED = 1, /* l, after edits, penalties and temperature */
    FS_LOGITS_CUT = 2        /* l, normalised over what the cuts left; -inf logprob for what they removed */
};

/* Where results go. Each pointer may be NULL, then it costs nothing, but tokens may be NULL only in score mode. */
typedef struct fs_result {
    size_t size;
    void *tokens;         /* [B, n] of tokens_dtype */
    int32_t tokens_dtype; /* FS_I32 or FS_I64; 0 = FS_I32 */
    int32_t logits;       /* FS_LOGITS_...: what the fields below refer to */
    uint32_t *status;     /* [B] FS_ROW_... bits */
    float *score;         /* [B, n] the token's own l + noise (y for greedy rows); NaN in score mode */
    float *max_logit;     /* [B] */
    float *log_z;         /* [B] log of the sum of exp (of survivors, for FS_LOGITS_CUT); not below max_logit, but by an
                           * error of the sum where CUDA stores no logits */
    float *logit;         /* [B, n] of the drawn or given token, also where a cut has removed it */
    float *logprob;       /* [B, n] logit - log_z; never above 0 */
    int32_t *rank;        /* [B, n] 1 + number of strictly larger x (raw) or y (of survivors, for FS_LOGITS_CUT);
                           * FS_RANK_OF_TIES: of other ones that are not smaller. Absent tokens are not counted */
    int32_t top_count;    /* N: 0 .. 1024 */
    int32_t reserved;
    int32_t *top_token;   /* [B, N] in the total order (raw: of x); -1 where the row has fewer tokens, and there */
    float *top_logit;     /* [B, N] NaN */
    float *top_logprob;   /* [B, N] NaN */
    float *watch_logit;   /* [entries of watch_token] */
    float *watch_logprob; /* likewise */

    /* Written by the call, host side (CUDA: what is known without synchronising). Which rows need a second pass may
     * differ from run to run, as it depends on which thread had which tokens; so does, where a budget or the caller's
     * memory leaves no room for that pass, which are FS_ROW_INCOMPLETE. */
    int64_t fallback_rows; /* rows that needed a second pass over W; CUDA: 0, their status says so */
    int64_t work_bytes;    /* temporary memory of the call */
    int64_t wire_bytes;    /* bytes this rank has put into parts or collectives */
    int64_t screened_rows; /* rows that head.screen has decided, without a pass over W; 0 over shards and ranks, and on
                            * CUDA, which knows later */
    int64_t screened_dots; /* logits that were computed from W for them; may differ from run to run */
} fs_result;

/* --------------------------------------------------------------------------------------------------- context ---- */

typedef struct fs_context fs_context;

typedef enum {
    FS_BACKEND_AUTO = 0, /* the best that is there; today the CPU */
    FS_BACKEND_CPU = 1,
    FS_BACKEND_CUDA = 2,
    FS_BACKEND_REFERENCE = 3 /* plain loops in double over stored logits: slow, simple, the oracle of our tests */
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
    int32_t threads; /* CPU: 0 = every core this process may run on */
    int32_t block;   /* CPU: tokens per block, rounded up to a multiple of 128; 0 = chosen. Never changes a token */
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
    /* Most memory that wide rows may allocate, for a second pass or for their logits, 4 bytes a token, which spare it;
     * 0 = 320 MiB, FS_FALLBACK_NONE = none. It is kept while calls need it. With the caller's work memory they take
     * what the call has left of it.
     * CUDA: most work memory for logits. Those of rows with rules may be stored, and so may those of calls with many
     * samples, ranks, top or watched tokens, FS_NOISE_FAST, a mode of their own, f32 weights, or hidden states of
     * another type than the head's: of as many rows at a time as this has room for, at least one, W being read anew.
     * Calls that need it for few rows, as top-k does, take 64 MiB at most. Lists of rows with top-p alone, ranks or top
     * tokens come on top, 64 KB each. */
    size_t fallback_bytes;
    /* CUDA: the stream calls go to, as in fs_context_set_stream. NULL = none yet: calls are FS_ERR_ARGUMENT until there
     * is one, so that none goes to the default stream by accident. CPU: ignored. */
    void *stream;
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

/* CUDA's default stream, said explicitly: cudaStreamLegacy, what CUDA and torch mean by a handle of 0; and
 * cudaStreamPerThread. */
#define FS_STREAM_DEFAULT ((void *)(uintptr_t)1)
#define FS_STREAM_PER_THREAD ((void *)(uintptr_t)2)

/* A handle from elsewhere, torch's current stream for one, for fs_context_set_stream: 0 is the default stream. */
static inline void *fs_stream(void *handle) {
    return handle ? handle : FS_STREAM_DEFAULT;
}

/* Version of the library at run time, (major << 16) | (minor << 8) | patch, and as text. */
FS_API uint32_t fs_version(void);
FS_API const char *fs_version_text(void);

/* Identifier of the noise mapping: which token a (seed, position) draws is API. Bit 31 set: a draft, may change. */
FS_API uint32_t fs_noise_id(void);

/* A short constant text for a status: "argument", "memory", ... Never NULL. */
FS_API const char *fs_status_text(fs_status status);

/* Creates a context. options may be NULL. On failure *out is NULL and fs_error_text(NULL) tells why (per thread). */
FS_API fs_status fs_context_create(const fs_options *options, fs_context **out);

/* Frees the context and what it allocated; NULL is allowed. On CUDA waits for the device, and needs none of the streams
 * that calls went to. */
FS_API void fs_context_destroy(fs_context *context);

/* What the last failed call on this context said, with value and limit; "" if none failed. NULL context: the last
 * failure of a call without a context in this thread. Valid until the next call. */
FS_API const char *fs_error_text(const fs_context *context);

/* One line about the context: backend, instruction set, threads. Valid as long as the context. */
FS_API const char *fs_context_text(const fs_context *context);

/* Gives the context the caller's work memory (64-byte aligned, not shared with another context in use), or takes it
 * back with NULL. The memory must be there for every call that follows. Sizes: fs_work_size; less is FS_ERR_MEMORY.
 * CUDA: device memory (256-byte aligned), which the stream may have used before. Each call that is captured in a graph
 * takes a piece of its own from it, as long as the graph lives, and when none is left that is FS_ERR_MEMORY: give
 * memory for as many calls as are captured, and for one that is not. */
FS_API fs_status fs_context_set_work(fs_context *context, void *memory, size_t bytes);

/* CUDA: sets the stream (a cudaStream_t, or fs_stream() of a handle) of the calls that follow; NULL is no stream. They
 * wait there for the calls that went to the stream before it, which must still exist: set NULL before it is destroyed.
 * A call that is captured in a graph waits for nobody, and nobody for it: it has work memory of its own, so that graphs
 * may be replayed at once (but not one that was instantiated twice). CPU: FS_ERR_UNSUPPORTED. */
FS_API fs_status fs_context_set_stream(fs_context *context, void *stream);

/* ------------------------------------------------------------------------------------------------- the calls ---- */

/* Draws (or, in score mode, scores) every row and writes the result. CPU: returns when done. CUDA: enqueues on the
 * stream and returns; no allocation after the first call of a shape, no synchronisation, capturable in a graph. */
FS_API fs_status fs_sample(fs_context *context, const fs_head *head, const fs_batch *batch, fs_result *result);

/* Bytes of work memory for fs_sample and fs_partial with these arguments, or with fewer rows, samples or results, for
 * fs_context_set_work. Nothing is computed. *bytes is enough for every call to run, and for the cuts of common rows;
 * *every also for the second pass of rows whose cut is as wide as the vocabulary, without which such a row is
 * FS_ROW_INCOMPLETE. Either may be NULL; on CUDA they are equal. On the CPU they depend on the rules in the arrays: ask
 * with the widest top_k, the most samples and rows that will come. fs_merge, and so fs_sample_ranks, takes the lists of
 * all parts at once: if that is more, FS_ERR_MEMORY says how much. */
FS_API fs_status fs_work_size(fs_context *context, const fs_head *head, const fs_batch *batch, const fs_result *result,
                              size_t *bytes, size_t *every);

/* --- screens: a copy of W in fewer bits, with proven bounds, that spares most calls the pass over W
 * (docs/screening.md). Made once, when a head is loaded. The bytes can be saved, and mapped on a machine of the same
 * byte order. */
enum {
    FS_SCREEN_INT8 = 1, /* about 0.52 of W's bytes, W being bf16; bounds that always hold */
    FS_SCREEN_INT4 = 2  /* 0.27; rounded at random: a bound may be passed with probability 2 eta a logit */
};

typedef struct fs_screen_options {
    size_t size;
    int32_t format; /* FS_SCREEN_...; 0 = FS_SCREEN_INT8 */
    int32_t group;  /* columns with one scale: 128; of FS_SCREEN_INT4 64 or 128. 0 = 128, and 64 */
    /* FS_SCREEN_INT4: what rounds. The bound speaks of hidden states that do not depend on it. 0 = one the system
     * draws; equal seeds give equal bytes. */
    uint64_t seed;
    double eta; /* FS_SCREEN_INT4; 0 = 1e-16 */
    /* Called now and then, on the caller's thread; may be NULL. */
    void (*progress)(void *user, int64_t rows_done, int64_t rows);
    void *user;
} fs_screen_options;

/* Bytes of a screen of this head; neither its data nor its screen are looked at. */
FS_API fs_status fs_screen_size(fs_context *context, const fs_head *head, const fs_screen_options *options,
                                size_t *bytes);

/* Writes the screen of a head of weights to screen [bytes], 64-byte aligned: host memory, on the context's threads, or
 * on CUDA the device's, and waits for it there. Either way the bytes are the same. A head whose first_token is a
 * multiple of 16 gets what fs_screen_slice cuts out of the whole vocabulary's. */
FS_API fs_status fs_screen_build(fs_context *context, const fs_head *head, const fs_screen_options *options,
                                 void *screen, size_t bytes);

/* Whether head.screen is whole and was made of this W: reads every byte of both, and waits for the device. FS_OK, or
 * FS_ERR_ARGUMENT with a text that names the rows that differ. For screens that were saved, and for W that may have
 * changed. On CUDA a call with this W and this screen can be captured after it. */
FS_API fs_status fs_screen_check(fs_context *context, const fs_head *head);

/* The screen of rows [first, first + rows) of the head that `whole` belongs to. `first` is a multiple of 16, and so is
 * `rows`, unless the slice ends with the head's last row. Writes to [bytes]; with to NULL it only sets *needed, which
 * may be NULL otherwise. */
FS_API fs_status fs_screen_slice(fs_context *context, const void *whole, size_t whole_bytes, int64_t first,
                                 int64_t rows, void *to, size_t bytes, size_t *needed);

/* --- what a backend can do. A call in outline, without its arrays: */
enum {
    FS_CALL_SAMPLE = 0,
    FS_CALL_PARTIAL = 1, /* and fs_merge */
    FS_CALL_RANKS = 2
};

/* What is asked for beside tokens and status; bits. */
enum {
    FS_RESULT_SCORE = 1u << 0,
    FS_RESULT_MAX_LOGIT = 1u << 1,
    FS_RESULT_LOG_Z = 1u << 2,
    FS_RESULT_LOGIT = 1u << 3,
    FS_RESULT_LOGPROB = 1u << 4,
    FS_RESULT_RANK = 1u << 5,
    FS_RESULT_TOP = 1u << 6,
    FS_RESULT_WATCH = 1u << 7
};

typedef struct fs_outline {
    size_t size;
    int32_t call;         /* FS_CALL_... */
    int32_t kind;         /* FS_HEAD_... */
    int32_t dtype;        /* of the head */
    int32_t hidden_dtype; /* of the batch; of no meaning for stored logits */
    int32_t mode;         /* FS_MODE_... */
    int32_t noise;        /* FS_NOISE_... */
    int32_t samples;      /* 0 = 1 */
    int32_t logits;       /* FS_LOGITS_... */
    uint32_t rules;       /* FS_RULE_... that rows may use */
    uint32_t results;     /* FS_RESULT_... */
    uint32_t flags;       /* of the batch */
    int32_t reserved;
    int64_t group_size; /* group modes */
} fs_outline;

/* Whether a backend (FS_BACKEND_..., not AUTO) does such calls: FS_OK, FS_ERR_UNSUPPORTED, or FS_ERR_ARGUMENT if nobody
 * could. why may be NULL; *why becomes a constant text, "" for FS_OK. A call that is refused as unsupported says the
 * same words. Needs no device and no context. */
FS_API fs_status fs_supports(int32_t backend, const fs_outline *outline, const char **why);

/* --- shards: partial here, the caller's own transport, merge there. Every rank makes the same call on its shard of W
 * and gets the same bytes-per-part, sends its part to whoever wants the result, and that one merges.
 *
 * A part is a header of 32 bytes, which says what ids the part speaks of and has a checksum, two bits per row, and per
 * row what the batch and the result ask for (docs/ranks.md): 8 bytes per sample, 20 for log Z and for each other sum,
 * 12 for a candidate list and 8 per entry, 8 per watched token, and 4 for each other logit that is needed: the drawn
 * token's, the largest (also for log Z), and where tokens are edited the raw ones beside them, a list's too. Its byte
 * order is the machine's. CPU: parts have any alignment. CUDA: they are device memory, 8-byte aligned, and what
 * fs_merge refuses on the CPU makes every row FS_ROW_PEER. */

/* Bytes of one part for this batch and what this result asks for; the same on every rank. */
FS_API fs_status fs_partial_size(fs_context *context, const fs_head *head, const fs_batch *batch,
                                 const fs_result *result, size_t *bytes);

/* Runs the pass over this shard and writes its summary to part [bytes], bytes being at least fs_partial_size. `result`
 * only says what will be asked of merge; nothing is written to its arrays. */
FS_API fs_status fs_partial(fs_context *context, const fs_head *head, const fs_batch *batch, const fs_result *result,
                            void *part, size_t bytes);

/* Merges `count` parts ([count] pointers, 1 to 65,536) and writes the result. The largest key wins, so the token is the
 * same for any number and order of parts. With batch.mode FS_MODE_GROUP_PARALLEL (in fs_partial too) each part is one
 * group instead, chosen by its log-mass: the paper's B.4, exact in law, parts in rank order. FS_ERR_PEER refuses parts
 * made with other arguments or by another version, parts that are not what fs_partial wrote, and parts that together
 * are not the whole vocabulary, each id once; parts of no ids do no harm. Rows whose lists do not prove their cut come
 * back FS_ROW_INCOMPLETE: repeat the call (partial too) with a larger batch.list_capacity. CUDA does not see the rows'
 * rules: its lists have 1,024 entries where a row may have top-p or min-p without top-k, else as many as top_k, a
 * scalar or limits.top_k, says. Neither head.data nor batch.hidden is read; of the head, what all shards have in common
 * must be there: vocab, kind, dim, round, scale, softcap, post_scale, and on CUDA its dtype and the batch's. */
FS_API fs_status fs_merge(fs_context *context, const fs_head *head, const fs_batch *batch, const void *const *parts,
                          int32_t count, fs_result *result);

/* --- ranks: vocabulary-parallel sampling in one call. Each rank holds rows of W (its head's first_token and rows;
 * shards may be unequal or empty, but together they are the vocabulary) and calls fs_sample_ranks with the same batch
 * and a result that asks for the same; all of them get the whole result. The token is that of the unsharded call, for
 * any number of ranks. Per row and rank 8 bytes cross the wire for a token, 24 more for log Z, lists for cuts:
 * docs/ranks.md.
 *
 * A transport is two collectives. flashsampling_mpi.h and flashsampling_nccl.h make one from a communicator; a caller
 * with a transport of its own fills the struct. Collectives are entered by all ranks in the same order and return on
 * each when its part is done. */
typedef struct fs_ranks {
    size_t size;
    int32_t rank, count; /* this rank, 0 .. count-1, and how many there are */
    int32_t device;      /* 0: arrays are host memory. 1: device memory, and the functions only enqueue on the stream */
    int32_t reserved;
    void *self; /* handed to the functions */
    /* values [count] become their largest over ranks. A rank that has failed may come with 2 values alone: the first
     * two are then reduced all the same, or everyone gets FS_ERR_PEER. */
    fs_status (*all_max)(void *self, int64_t *values, int64_t count, void *stream);
    /* all [ranks, bytes] becomes every rank's mine [bytes], which does not overlap it. */
    fs_status (*all_gather)(void *self, const void *mine, void *all, size_t bytes, void *stream);
    /* What the last function that failed said; may be NULL. */
    const char *(*error_text)(void *self);
} fs_ranks;

/* fs_sample over ranks. Where a rank fails or the ranks' arguments differ, every rank gets an error that says so
 * (FS_ERR_PEER; on the rank itself its own) and the ranks stay in step; after an error of the transport itself they do
 * not, and the transport is not to be used again. Rows whose lists do not prove their cut take further rounds with
 * longer lists. What such a round exchanges stays within options.fallback_bytes, which all ranks must set alike; the
 * lists of a rank's own pass come on top, and its work memory keeps their size. Where a rank has no memory for a round,
 * rows stay FS_ROW_INCOMPLETE. Every mode but FS_MODE_GROUP_ONLINE; with FS_MODE_GROUP_PARALLEL each rank is one group,
 * as in fs_merge. CUDA: enqueues, needs a device transport, and is capturable in a graph; there are no further rounds,
 * so that a row whose lists prove too short is FS_ROW_INCOMPLETE; what goes wrong among ranks is FS_ROW_PEER, and a
 * rank whose arguments are refused does not meet the others. */
FS_API fs_status fs_sample_ranks(fs_context *context, const fs_ranks *ranks, const fs_head *head, const fs_batch *batch,
                                 fs_result *result);

/* --- speculative decoding with shared noise: draft and target draw with the same (seed, position, stream), and the
 * output is bit for bit the one without a draft. Sample the target on all k+1 rows of a sequence, then count. Rows of
 * one sequence share its seed: give `seed` as an array, or `slot` so that they are one slot (a scalar seed alone is
 * spread over rows). */

/* accepted[s] = how many leading tokens of draft [sequences, k] equal those of target [sequences, k+1] in row s, both
 * of dtype FS_I32 or FS_I64; sequence s then continues with target[s, accepted[s]]. A negative token never matches.
 * draft may be NULL if k is 0. context NULL or of the CPU: host arrays; of CUDA: device arrays, and the call only
 * enqueues. */
FS_API fs_status fs_accept(fs_context *context, int32_t dtype, int64_t sequences, int64_t k, const void *draft,
                           const void *target, int32_t *accepted);

/* --- the noise itself, for tests and for other implementations: the Gumbel value of one token, in double. */
FS_API double fs_noise_gumbel(uint64_t seed, uint64_t position, uint32_t sample, uint32_t stream, uint32_t token);
/* The seed slot s draws with where the caller gave the scalar seed. */
FS_API uint64_t fs_seed_spread(uint64_t seed, uint64_t slot);

/* -------------------------------------------------------------------------------------------------- defaults ---- */

static inline fs_head fs_head_default(void) {
    fs_head h;
    memset(&h, 0, sizeof h);
    h.size = sizeof h;
    h.scale = 1.0f;
    h.post_scale = 1.0f;
    return h;
}

static inline fs_batch fs_batch_default(void) {
    fs_batch b;
    memset(&b, 0, sizeof b);
    b.size = sizeof b;
    b.samples = 1;
    b.fallback_token = -1;
    b.slot_dtype = FS_I32;
    b.all.temperature = 1.0f;
    b.all.top_p = 1.0f;
    b.all.repetition = 1.0f;
    return b;
}

static inline fs_result fs_result_default(void) {
    fs_result r;
    memset(&r, 0, sizeof r);
    r.size = sizeof r;
    r.tokens_dtype = FS_I32;
    return r;
}

static inline fs_outline fs_outline_default(void) {
    fs_outline o;
    memset(&o, 0, sizeof o);
    o.size = sizeof o;
    o.samples = 1;
    return o;
}

static inline fs_screen_options fs_screen_options_default(void) {
    fs_screen_options o;
    memset(&o, 0, sizeof o);
    o.size = sizeof o;
    o.format = FS_SCREEN_INT8;
    return o;
}

static inline fs_ranks fs_ranks_default(void) {
    fs_ranks r;
    memset(&r, 0, sizeof r);
    r.size = sizeof r;
    r.count = 1;
    return r;
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
