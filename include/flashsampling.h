/* flashsampling.h - exact sampling fused into the LM-head matmul.
 *
 * The next token of a language model is drawn from softmax(transform(H W^T)) in one pass over W, without storing the
 * logits. This is the only header a user includes. It is C11 and C++11 clean and names no CUDA, MPI or NCCL type.
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
 * The total order of tokens is (y descending, id ascending). All arithmetic on x, y, l is in float; -inf is final: what a mask, a
 * ban or an overflow has made -inf is absent, whatever is added later. log Z is accurate to 1e-6 where the largest |l| is up to
 * 45,000 (CUDA, from weights: 2e-7 (1 + |l|)), to 2e-4 up to 362,000, and above that FS_ROW_FAR. Tokens do not depend on it: cuts
 * are exact at any l.
 *
 * Memory: every pointer belongs to the caller and is read or written only during the call (CPU) or until the stream
 * has run the call (CUDA). On the CPU all arrays are host memory; on CUDA they are device memory (mapped host memory
 * works and is read once per row). The library never prints, exits or aborts. Thread safety: contexts share nothing
 * mutable; one context serves one call at a time.
 *
 * Structs: the first member `size` is sizeof of the struct the caller was compiled with, which the fs_*_default()
 * functions set; later versions append members, up to 4,096 bytes, and a zero in an appended member keeps the old meaning. A library
 * takes the structs of earlier versions, and of later ones what it knows: a member it does not know must be zero.
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
    FS_ERR_MEMORY = -3,      /* an allocation failed, or the caller's memory is too small */
    FS_ERR_DEVICE = -4,      /* the device or its driver failed; the text has its words */
    FS_ERR_PEER = -5,        /* another rank failed, died, or was called with other arguments */
    FS_ERR_STATE = -6,       /* the object cannot do this now (communicator unusable after a peer error, ...) */
    FS_ERR_ENVIRONMENT = -7, /* an environment variable forces something unknown or not runnable here */
    FS_ERR_INTERNAL = -8     /* a bug of ours */
};

/* Status bits of one row, written to result.status. A row with a bit of FS_ROW_NO_TOKEN set has no drawn token: its tokens
 * are batch.fallback_token, its scores and logprobs NaN. */
enum {
    FS_ROW_OK = 0,
    FS_ROW_SKIPPED = 1u << 0,         /* slot -1 */
    FS_ROW_EMPTY = 1u << 1,           /* no l above -inf is left: the row has no distribution */
    FS_ROW_BAD_SLOT = 1u << 2,        /* slot < -1 or slot >= slots */
    FS_ROW_BAD_TEMPERATURE = 1u << 3, /* negative, NaN, infinite, or so small that 1/T overflows */
    FS_ROW_BAD_TOP_P = 1u << 4,       /* negative or NaN */
    FS_ROW_BAD_MIN_P = 1u << 5,       /* negative, above 1 or NaN */
    FS_ROW_BAD_PENALTY = 1u << 6,     /* repetition <= 0, or a penalty that is NaN or infinite */
    FS_ROW_BAD_TOKEN = 1u << 7,       /* score mode: the given token is negative, or not below the vocabulary size */
    FS_ROW_INCOMPLETE = 1u << 8,      /* merge or budget: the lists do not prove the cut; nothing is drawn */
    FS_ROW_PEER = 1u << 9,            /* ranks on CUDA: one failed, or was called with other arguments */
    FS_ROW_BAD_MASK = 1u << 10,       /* allow_index < -1, or not below batch.masks */
    FS_ROW_NO_TOKEN = 0x7ff,          /* mask of the bits above */
    FS_ROW_NAN = 1u << 16,            /* a logit that no mask removed was NaN; it was treated as -inf */
    FS_ROW_INF = 1u << 17,            /* an x or l was +inf: the lowest such id wins, its log Z is +inf, logprobs NaN */
    FS_ROW_FALLBACK = 1u << 18,       /* the row needed a second pass over W (exact all the same) */
    FS_ROW_RANK_BOUND = 1u << 19,     /* result.rank is a lower bound */
    FS_ROW_SHORT = 1u << 20,          /* without replacement: fewer tokens than samples; the rest are fallback_token */
    FS_ROW_FAR = 1u << 21             /* the largest x or l is too far from 0 for log Z: it and logprobs are NaN */
};

/* ------------------------------------------------------------------------------------------------------ head ---- */

typedef enum {
    FS_F32 = 0,
    FS_F16 = 1,
    FS_BF16 = 2,
    FS_I32 = 8, /* token ids only */
    FS_I64 = 9  /* token ids only */
    /* 16 and up: block-quantised weights, to come */
} fs_dtype;

enum {
    FS_HEAD_WEIGHTS = 0, /* data is W [V, D]: logits are computed in the call */
    FS_HEAD_LOGITS = 1   /* data is stored logits [B, V]: everything after the dot product is the same */
};

/* fs_head.flags: nothing earlier on the stream writes W or the bias, so a CUDA launch may start reading them before the
 * launches ahead of it have ended. */
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
    int64_t
        first_token;   /* global id of row 0, for a shard; bit-identical log Z over shards needs a multiple of 16, or on
                          * CUDA of 128 */
    int64_t vocab;     /* real size of the whole vocabulary; rows with ids at or above it are padding and never drawn.
                          * 0 = first_token + rows */
    const float *bias; /* [V] or NULL */
    int32_t round;     /* FS_F32: keep (default, finer); FS_BF16, FS_F16: round x as engines that store logits do */
    float scale;       /* before the soft-cap; default 1 */
    float softcap;     /* 0 = none */
    float post_scale;  /* after the soft-cap; default 1 */
    uint32_t flags;    /* FS_HEAD_CONSTANT */
    int32_t reserved;
} fs_head;

/* ----------------------------------------------------------------------------------------------------- batch ---- */

enum {
    FS_MODE_SAMPLE = 0,              /* n independent samples per row */
    FS_MODE_WITHOUT_REPLACEMENT = 1, /* n distinct tokens in Plackett-Luce order (Gumbel-top-n) */
    FS_MODE_GROUP_PARALLEL = 2,      /* the paper's B.2: exact in law, depends on group_size; no cuts, n = 1 */
    FS_MODE_GROUP_ONLINE = 3,        /* the paper's B.3, likewise */
    FS_MODE_SCORE = 4                /* nothing is drawn: batch.given are the tokens, their logits are the result */
};

enum {
    FS_NOISE_EXACT = 0, /* total variation error below 1e-6 for |l| up to 2,000 (1.5e-8 up to 32) */
    FS_NOISE_FAST = 1   /* the paper's appendix C: 32-bit uniform and two logs in float; biased in the tail */
};

enum {
    FS_KEEP_TIES = 1u << 0,   /* top-k and top-p keep every token whose y equals the last kept one */
    FS_JOINT_TOP_P = 1u << 1, /* top-p counts mass against the whole row, not against what min-p and top-k left */
    FS_EXACT_RANK = 1u << 2   /* pay a second pass rather than return a lower bound of the rank */
};

/* The values one slot has. In fs_batch, `all` holds what is used where the array of the same name is NULL. */
typedef struct fs_slot_values {
    float temperature; /* 0 = greedy; default 1 */
    int32_t top_k;     /* <= 0 or >= vocabulary: off; default 0 */
    float top_p;       /* >= 1: off; 0 keeps one token; default 1 */
    float min_p;       /* keeps l >= max l + log(min_p); 0: off; default 0 */
    uint64_t seed;     /* the scalar is spread: slot s draws with a seed derived from (seed, s), so rows differ */
    uint32_t stream;   /* a number, no CUDA stream: with seed, position and sample it names the noise, so that a caller
                        * can draw twice at one position; default 0 */
    float repetition;  /* y > 0 ? y / r : y * r for seen tokens; 1: off; default 1 */
    float frequency;   /* y -= frequency * count; default 0 */
    float presence;    /* y -= presence where count > 0; default 0 */
} fs_slot_values;

/* What is drawn. A row's token is a function of its hidden state, the head, its slot's values, its position and the
 * sample index, and of nothing else: not of B, the row's place, its neighbours, threads, blocks or ranks. */
typedef struct fs_batch {
    size_t size;
    int64_t rows;           /* B; 0 is valid and does nothing */
    const void *hidden;     /* [B, D]; ignored for stored logits */
    int32_t hidden_dtype;   /* FS_F32 (default), FS_F16 or FS_BF16; CUDA: that of the head */
    int32_t mode;           /* FS_MODE_... */
    int64_t hidden_stride;  /* bytes from one row to the next; 0 = packed */
    int32_t samples;        /* n: 1 .. 1024; default 1 */
    int32_t noise;          /* FS_NOISE_... */
    uint32_t flags;         /* FS_KEEP_TIES | ... */
    int32_t fallback_token; /* written where a row has no token; default -1 */
    int64_t group_size;     /* group modes: ids [k * group_size, (k+1) * group_size) form group k; CUDA: a multiple
                             * of 128 */

    /* Which slot a row is, and where it is in its sequence. */
    const int32_t *slot;      /* [B], -1 = skip the row; NULL = row b is slot b */
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

    /* Edits of row b: entries edit_offset[b] .. edit_offset[b+1]; several of one token add up, in their order. */
    const int64_t *edit_offset; /* [B + 1] or NULL = none */
    const int32_t *edit_token;
    const float *edit_bias; /* added to x; -inf bans the token */

    /* What each slot has produced so far. Repetition applies to tokens whose seen bit is set or whose count is
     * above 0; frequency and presence look at counts only. */
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

    /* Tokens whose logits are wanted, per row: entries watch_offset[b] .. watch_offset[b+1]. */
    const int64_t *watch_offset; /* [B + 1] or NULL */
    const int32_t *watch_token;

    /* Entries a candidate list holds at least, per row and part, in calls that have lists; 0 = chosen. A longer list proves wider cuts in
     * one pass. */
    int32_t list_capacity;
    int32_t reserved;

    int64_t masks; /* how many `allow` has: a row with another is FS_ROW_BAD_MASK; 0 = not said, then only below -1 */
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
    int32_t tokens_dtype; /* FS_I32 (default) or FS_I64 */
    int32_t logits;       /* FS_LOGITS_...: what the fields below refer to */
    uint32_t *status;     /* [B] FS_ROW_... bits */
    float *score;         /* [B, n] the token's own l + noise (y for greedy rows); NaN in score mode */
    float *max_logit;     /* [B] */
    float *log_z;         /* [B] log of the sum of exp over the whole row */
    float *logit;         /* [B, n] of the drawn or given token */
    float *logprob;       /* [B, n] logit - log_z */
    int32_t *rank;        /* [B, n] 1 + number of strictly larger x (raw) or y (of survivors, for FS_LOGITS_CUT) */
    int32_t top_count;    /* N: 0 .. 1024 */
    int32_t reserved;
    int32_t *top_token;   /* [B, N] in the total order; -1 where the row has fewer tokens */
    float *top_logit;     /* [B, N] */
    float *top_logprob;   /* [B, N] */
    float *watch_logit;   /* [entries of watch_token] */
    float *watch_logprob; /* likewise */

    /* Written by the call, host side (CUDA: what is known without synchronising). */
    /* Rows that needed a second pass over W. Which do may differ from run to run, as it depends on which thread had which tokens; so does, where
     * a budget or the caller's memory leaves no room for that pass, which are FS_ROW_INCOMPLETE. */
    int64_t fallback_rows;
    int64_t work_bytes; /* temporary memory of the call */
    int64_t wire_bytes; /* bytes this rank has put into parts or collectives */
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
    /* The caller's work memory, as in fs_context_set_work; then calls never allocate, but for what fs_sample_ranks exchanges. NULL = the
     * context's own. CUDA takes none: FS_ERR_UNSUPPORTED. */
    void *work;
    size_t work_bytes;
    /* Most memory the second pass of wide rows may allocate; default 64 MiB. With the caller's work memory the second pass takes
     * what the call has left of it. */
    size_t fallback_bytes;
    /* CUDA: the stream calls go to (a cudaStream_t). NULL = none yet: calls are FS_ERR_ARGUMENT until fs_context_set_stream gives
     * one, so that none goes to the default stream by accident; who wants that says cudaStreamLegacy or cudaStreamPerThread. CPU:
     * ignored. */
    void *stream;
} fs_options;

/* Version of the library at run time, (major << 16) | (minor << 8) | patch, and as text. */
FS_API uint32_t fs_version(void);
FS_API const char *fs_version_text(void);

/* Identifier of the noise mapping: which token a (seed, position) draws is API. Bit 31 set = draft, may still change. */
FS_API uint32_t fs_noise_id(void);

/* A short constant text for a status: "argument", "memory", ... Never NULL. */
FS_API const char *fs_status_text(fs_status status);

/* Creates a context. options may be NULL. On failure *out is NULL and fs_error_text(NULL) tells why (per thread). */
FS_API fs_status fs_context_create(const fs_options *options, fs_context **out);

/* Frees the context and what it allocated; NULL is allowed. On CUDA waits for work in flight. */
FS_API void fs_context_destroy(fs_context *context);

/* What the last failed call on this context said, with value and limit; "" if none failed. NULL context: the last failure
 * of a call without a context in this thread. Valid until the next call. */
FS_API const char *fs_error_text(const fs_context *context);

/* One line about the context: backend, instruction set, threads. Valid as long as the context. */
FS_API const char *fs_context_text(const fs_context *context);

/* Gives the context the caller's work memory (64-byte aligned, not shared with another context in use), or takes it back with NULL.
 * The memory must be there for every call that follows. Sizes: fs_work_size. CUDA: both are FS_ERR_UNSUPPORTED. */
FS_API fs_status fs_context_set_work(fs_context *context, void *memory, size_t bytes);

/* CUDA: sets the stream (a cudaStream_t) of the calls that follow. CPU: FS_ERR_UNSUPPORTED. */
FS_API fs_status fs_context_set_stream(fs_context *context, void *stream);

/* ------------------------------------------------------------------------------------------------- the calls ---- */

/* Draws (or, in score mode, scores) every row and writes the result. CPU: returns when done. CUDA: enqueues on the stream
 * and returns; no allocation after the first call of a shape, no synchronisation, capturable in a graph. */
FS_API fs_status fs_sample(fs_context *context, const fs_head *head, const fs_batch *batch, fs_result *result);

/* Bytes of work memory that are enough for fs_sample and fs_partial with these arguments, or with fewer rows, samples or results, for
 * fs_context_set_work. Nothing is computed. On the CPU it depends on the rules in the arrays: ask with the widest top_k, the most samples
 * and rows that will come. fs_merge, and so fs_sample_ranks, takes the lists of all parts at once: if that is more, FS_ERR_MEMORY says
 * how much. */
FS_API fs_status fs_work_size(fs_context *context, const fs_head *head, const fs_batch *batch, const fs_result *result,
                              size_t *bytes);

/* --- shards: partial here, the caller's own transport, merge there. Every rank makes the same call on its shard of W
 * and gets the same bytes-per-part, sends its part to whoever wants the result, and that one merges.
 *
 * A part is a header of 16 bytes, two bits per row, and per row 8 bytes per sample, 20 for each log Z, 12 for a candidate list and 8 per
 * entry, 8 per watched token, and 4 for each other logit that is needed: the drawn token's, the largest, and where tokens are edited the
 * raw ones beside them, a list's too. What the batch and the result ask for decides which are there (docs/ranks.md). Byte order is the
 * machine's. CUDA: parts are device memory, 8-byte aligned, and parts that do not belong together make every row FS_ROW_PEER. */

/* Bytes of one part for this batch and what this result asks for; the same on every rank. */
FS_API fs_status fs_partial_size(fs_context *context, const fs_head *head, const fs_batch *batch,
                                 const fs_result *result, size_t *bytes);

/* Runs the pass over this shard and writes its summary to part [bytes]. `result` only says what will be asked of merge;
 * nothing is written to its arrays. */
FS_API fs_status fs_partial(fs_context *context, const fs_head *head, const fs_batch *batch, const fs_result *result,
                            void *part, size_t bytes);

/* Merges `count` parts ([count] pointers) and writes the result. The largest key wins, so the token is the same for any number
 * and order of parts. With batch.mode FS_MODE_GROUP_PARALLEL (in fs_partial too) each part is one group instead, chosen by
 * its log-mass: the paper's B.4, exact in law, parts in rank order. Parts made with other arguments or by another version are
 * refused with FS_ERR_PEER. Rows whose lists do not prove their cut come back FS_ROW_INCOMPLETE: repeat the call (partial
 * too) with a larger batch.list_capacity. Neither head.data nor batch.hidden is read; of the head, what all shards have in common must
 * be there: vocab, kind, dim, round, scale, softcap, post_scale. */
FS_API fs_status fs_merge(fs_context *context, const fs_head *head, const fs_batch *batch, const void *const *parts,
                          int32_t count, fs_result *result);

/* --- ranks: vocabulary-parallel sampling in one call. Each rank holds rows of W (its head's first_token and rows;
 * shards may be unequal or empty, but together they are the vocabulary) and calls fs_sample_ranks with the same batch and what the
 * same result asks for; all of them get the whole result. The token is that of the unsharded call, for any number of ranks.
 * Per row and rank 8 bytes cross the wire for a token, 20 more for log Z, lists for cuts: docs/ranks.md.
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
    /* values [count] become their largest over ranks. A rank that has failed may come with 2 values alone: the first two are then
     * reduced all the same, or everyone gets FS_ERR_PEER. */
    fs_status (*all_max)(void *self, int64_t *values, int64_t count, void *stream);
    /* all [ranks, bytes] becomes every rank's mine [bytes], which does not overlap it. */
    fs_status (*all_gather)(void *self, const void *mine, void *all, size_t bytes, void *stream);
    /* What the last function that failed said; may be NULL. */
    const char *(*error_text)(void *self);
} fs_ranks;

/* fs_sample over ranks. Where a rank fails or the ranks' arguments differ, every rank gets an error that says so
 * (FS_ERR_PEER; on the rank itself its own) and the ranks stay in step; after an error of the transport itself they do
 * not, and the transport is not to be used again. Rows whose lists do not prove their cut take further rounds with
 * longer lists. What such a round exchanges stays within options.fallback_bytes, which all ranks must set alike; the lists of a
 * rank's own pass come on top, and its work memory keeps their size. Where a rank has no memory for a round, rows stay
 * FS_ROW_INCOMPLETE. Every mode but FS_MODE_GROUP_ONLINE; with FS_MODE_GROUP_PARALLEL each rank is one group, as in fs_merge.
 * CUDA: enqueues, needs a device transport, and is capturable in a graph; what goes wrong among ranks there is FS_ROW_PEER, and
 * a rank whose arguments are refused does not meet the others. */
FS_API fs_status fs_sample_ranks(fs_context *context, const fs_ranks *ranks, const fs_head *head, const fs_batch *batch,
                                 fs_result *result);

/* --- speculative decoding with shared noise: draft and target draw with the same (seed, position, stream), and the output
 * is bit for bit the one without a draft. Sample the target on all k+1 rows of a sequence, then count. Rows of one sequence share its
 * seed: give `seed` as an array, or `slot` so that they are one slot (a scalar seed alone is spread over rows). */

/* accepted[s] = how many leading tokens of draft [s, k] equal the target's tokens [s, k+1]; sequence s then continues with
 * target[s, accepted[s]]. A negative token never matches. Host arrays; needs no context. */
FS_API fs_status fs_accept(int64_t sequences, int64_t k, const int32_t *draft, const int32_t *target,
                           int32_t *accepted);

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
    o.fallback_bytes = (size_t)64 << 20;
    return o;
}

#ifdef __cplusplus
}
#endif
#endif
