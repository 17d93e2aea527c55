/* cuda_judge.cuh - which tokens of a tile can win, and their exact scores.
 *
 *   consumers (tensor cores)                      judges (three warps beside the producer)
 *   tile of logits in registers
 *   compare with threshold[row]   <------------   threshold = best score of the row - largest noise of the tile's ids
 *   survivors -> queue            ------------>   exact score in double, best of the row, RED.MAX to global memory
 *
 * The compare is one max per logit: which ids of a block have large noise is known beforehand (core/noise.h: marks), so the largest
 * noise a (row, block) can bring is one number, made by about 1.5 Philox calls per 128 logits and off the consumers' path.
 * A threshold from an older best is lower: slower, never wrong. */
#ifndef FS_CUDA_JUDGE_CUH
#define FS_CUDA_JUDGE_CUH

#include "cuda_call.h"
#include "cuda_ptx.cuh"

#include "core/noise.h"
#include "core/rules.h"

#define FS_JUDGES 3
#define FS_QUEUE 960 /* survivors in flight; a multiple of 32 * FS_JUDGES, so that a slot always belongs to one judge */

/* A row's part of the call, in shared memory. */
typedef struct fs_judged_row {
    fs_noise noise;
    float inverse, temperature;
    uint32_t status;
    int32_t greedy;
} fs_judged_row;

/* Shared memory of consumers and judges, for N rows. */
template <int N>
struct fs_court {
    float threshold[N];  /* a logit at or below this cannot win */
    float reach[N];      /* first tile: the largest noise */
    uint32_t best[N];    /* ordered float, rounded down, of the best score known here; 0: none */
    uint32_t crest[N];   /* first tile: its largest logit, ordered, 25 bits, and 127 - its place */
    fs_judged_row row[N];
    float4 stash[8][2][32];             /* per consumer warp and lane: eight of its accumulators, for code that cannot index registers */
    unsigned long long queue[FS_QUEUE]; /* low word the logit, high word 1 + (token << 8 | row) ; 0: free */
    uint32_t tail;                      /* slots given out */
    uint32_t head[FS_JUDGES];           /* first chunk of 32 slots this judge has not finished */
    int32_t last;
};

/* A judge's place in the queue: the same in all lanes. */
typedef struct fs_docket {
    uint32_t chunk, taken;
} fs_docket;

template <int N>
FS_DEVICE void court_open(fs_court<N> *court, const fs_cuda_args &args, int32_t thread, int32_t threads) {
    for (int32_t b = thread; b < N; b += threads) {
        fs_judged_row row;
        memset(&row, 0, sizeof row);
        row.status = FS_ROW_SKIPPED;
        if (b < args.rows) {
            fs_rules rules = rules_of_row(&args.batch, args.vocab, args.first_row + b);
            row.noise = noise_row(rules.seed, rules.position, 0, rules.stream);
            row.inverse = rules.inverse_temperature;
            row.temperature = 1.0f / rules.inverse_temperature;
            row.status = rules.status;
            row.greedy = rules.greedy;
        }
        court->row[b] = row;
        court->threshold[b] = INFINITY; /* stays so for rows without a token, and past the batch */
        court->best[b] = court->crest[b] = 0;
    }
    for (int32_t i = thread; i < FS_QUEUE; i += threads) court->queue[i] = 0;
    if (thread < FS_JUDGES) court->head[thread] = thread;
    if (thread == 0) court->tail = 0;
}

/* ------------------------------------------------------------------------------------------------- consumers ---- */

/* Queues the lanes' logits that pass. All 32 lanes call it. */
template <int N>
FS_DEVICE void court_push(fs_court<N> *court, bool pass, float x, int32_t token, int32_t row) {
    const uint32_t lanes = __ballot_sync(~0u, pass);
    if (!lanes) return;
    const int32_t lane = threadIdx.x & 31, first = __ffs(lanes) - 1;
    uint32_t slot = 0;
    if (lane == first) slot = atomicAdd(&court->tail, __popc(lanes));
    slot = __shfl_sync(~0u, slot, first) + __popc(lanes & ((1u << lane) - 1));
    if (!pass) return;
    const uint32_t chunk = slot / 32;
    /* The slot's last use must have been judged. */
    while (chunk - *(volatile uint32_t *)&court->head[chunk % FS_JUDGES] >= FS_QUEUE / 32) {
    }
    const unsigned long long entry = (unsigned long long)(((uint32_t)token << 8 | row) + 1) << 32 | __float_as_uint(x);
    *(volatile unsigned long long *)&court->queue[slot % FS_QUEUE] = entry;
}

/* ---------------------------------------------------------------------------------------------------- judges ---- */

/* The noise of a token in float, from below: within 1e-3 where it matters, and never above. */
FS_DEVICE float noise_from_below(fs_noise noise, uint32_t token, int marked) {
    const fs_words r = noise_words(noise, token, FS_DOMAIN_EXTENSION);
    const float w = __fmaf_ru(__uint2float_ru(r.w[1]), 0x1p-32f, 0x1p-32f); /* w from above: E from above */
    const float e = marked ? -log1pf(-(float)FS_NOISE_Q * w) : (float)FS_NOISE_C - log1pf(-fminf(w, 1.0f));
    return -logf(e) - 2e-4f;
}

/* One survivor: a score in float first, in double only if it may be the row's best. Out of line: it is large and rare. With
 * `rehearse` everything is computed and nothing kept: cold instructions come from L2 at some hundred cycles a line, so the judges
 * run through them once while they have nothing else to do. */
template <int N>
static __device__ __noinline__ void judge_one(fs_court<N> *court, fs_cuda_work *work, float x, uint32_t id, bool rehearse) {
    const int32_t b = (int32_t)(id & 255);
    const uint32_t token = id >> 8;
    const fs_judged_row row = court->row[b];
    fs_cuda_line *line = &work->line[b];
    const float l = x * row.inverse;
    if (x != x) atomicOr(&line->flags, FS_ROW_NAN);
    if (!(l > -INFINITY)) return;
    if (l == INFINITY) atomicOr(&line->flags, FS_ROW_INF);
    const uint32_t known = rehearse ? 0 : *(volatile uint32_t *)&court->best[b];
    const float best = known ? float_of_ordered(known) : -INFINITY;
    double score = (double)x;
    if (!row.greedy) {
        const int marked = noise_is_marked(noise_marks(row.noise, token / FS_NOISE_BLOCK), token);
        /* The tile's threshold allowed for its largest noise; this token's own may be out of reach. */
        if (!marked && l < best - (float)FS_NOISE_G - 1e-3f) return;
        if (l + noise_from_below(row.noise, token, marked) < best - 2e-2f) return;
        score = (double)l + noise_gumbel_marked(row.noise, token, marked);
    }
    const uint32_t mine = ordered_float(__double2float_rd(score));
    if (rehearse) {
        if (mine == 1) court->best[b] = 0; /* no score is: keeps the compiler from dropping the rest */
        return;
    }
    const uint32_t before = atomicMax(&court->best[b], mine);
    /* A score clearly below a known one need not travel; 40 bits of a key are finer than a float. */
    if (before && float_of_ordered(mine) < float_of_ordered(before) - 1e-3f) return;
    atomicMax(&line->key, (unsigned long long)score_key(score, token));
    atomicMax(&line->hint, mine);
}

/* Judges what is in the queue for this judge; returns when there is nothing more. */
template <int N>
FS_DEVICE void judge_queue(fs_court<N> *court, fs_cuda_work *work, fs_docket *docket) {
    const uint32_t lane = threadIdx.x & 31;
    for (;;) {
        uint32_t tail = 0;
        if (lane == 0) tail = *(volatile uint32_t *)&court->tail;
        tail = __shfl_sync(~0u, tail, 0);
        const int32_t waiting = (int32_t)(tail - docket->chunk * 32);
        const uint32_t ready = waiting < 0 ? 0 : waiting < 32 ? waiting : 32;
        if (ready <= docket->taken) return;
        if (lane >= docket->taken && lane < ready) {
            volatile unsigned long long *slot = &court->queue[(docket->chunk * 32 + lane) % FS_QUEUE];
            unsigned long long entry;
            do entry = *slot;
            while (!entry); /* given out, about to be written */
            *slot = 0;
            judge_one(court, work, __uint_as_float((uint32_t)entry), (uint32_t)(entry >> 32) - 1, false);
        }
        __syncwarp();
        docket->taken = ready;
        if (ready == 32) {
            docket->chunk += FS_JUDGES;
            docket->taken = 0;
            __threadfence_block(); /* freed slots before the head that frees them */
            if (lane == 0) *(volatile uint32_t *)&court->head[docket->chunk % FS_JUDGES] = docket->chunk;
        }
    }
}

/* The largest noise any id in [first, first + count) has in this row, or more: a bound that needs no logarithm of high accuracy. */
FS_DEVICE float judge_reach(const fs_judged_row &row, int32_t first, int32_t count) {
    float least = (float)FS_NOISE_C; /* of the exponential variables E; unmarked ones are not below C */
    for (int32_t block = first / FS_NOISE_BLOCK; block * FS_NOISE_BLOCK < first + count; block++) {
        const fs_marks marks = noise_marks(row.noise, block);
        for (int32_t word = 0; word < 2; word++)
            for (uint64_t bits = marks.bit[word]; bits; bits &= bits - 1) {
                const int32_t id = block * FS_NOISE_BLOCK + word * 64 + __ffsll((long long)bits) - 1;
                if (id < first || id >= first + count) continue;
                /* E >= q w, and w is not below its upper 32 bits, nor below 2^-53. */
                const uint32_t upper = noise_words(row.noise, id, FS_DOMAIN_EXTENSION).w[1];
                const float w = upper ? __uint2float_rd(upper) * 0x1p-32f : 0x1p-53f;
                least = fminf(least, (float)FS_NOISE_Q * w);
            }
    }
    return -logf(least) + 1e-4f;
}

/* Takes over what other CTAs know of row b, and makes its threshold for a tile whose largest noise is `reach`. */
template <int N>
static __device__ __noinline__ void set_threshold(fs_court<N> *court, const fs_cuda_work *work, int32_t b, float reach) {
    const uint32_t hint = load_relaxed(&work->line[b].hint);
    const uint32_t known = max(atomicMax(&court->best[b], hint), hint);
    float threshold = -INFINITY;
    if (known) {
        const float best = float_of_ordered(known);
        /* Slack for the float products on both sides of the compare. */
        threshold = (best - reach - 1e-5f - 1e-6f * (fabsf(best) + reach)) * court->row[b].temperature;
        if (best == INFINITY) threshold = 3.4e38f; /* another +inf with a lower id still wins */
    }
    court->threshold[b] = threshold;
}

/* First tile: the largest logit of row b is a token; its score from below is the row's first hint. */
template <int N>
static __device__ __noinline__ void seed_row(fs_court<N> *court, fs_cuda_work *work, int32_t b, int32_t first, bool rehearse) {
    const fs_judged_row row = court->row[b];
    const uint32_t crest = rehearse ? 0x80000000u : court->crest[b];
    if (!crest) return;
    const float x = float_of_ordered(crest & ~127u);
    float score = x * row.inverse;
    score -= 1e-6f * fabsf(score);
    if (!row.greedy) {
        const uint32_t token = first + 127 - (crest & 127);
        score += noise_from_below(row.noise, token, noise_is_marked(noise_marks(row.noise, token / FS_NOISE_BLOCK), token));
    }
    if (!(score > -INFINITY) || rehearse) return;
    atomicMax(&court->best[b], ordered_float(score));
    atomicMax(&work->line[b].hint, ordered_float(score));
}

/* ---------------------------------------------------------------------------------------------------- finish ---- */

/* The last CTA writes the results and leaves the work memory zero. */
template <int N>
FS_DEVICE void court_close(const fs_court<N> *court, const fs_cuda_args &args, int32_t thread, int32_t threads) {
    const fs_result &result = args.result;
    for (int32_t b = thread; b < args.rows; b += threads) {
        fs_cuda_line *line = &args.work->line[b];
        const fs_judged_row &row = court->row[b];
        const uint64_t key = __ldcg(&line->key);
        uint32_t status = row.status | __ldcg(&line->flags);
        if (!key && !(status & FS_ROW_NO_TOKEN)) status |= FS_ROW_EMPTY;
        const bool drawn = !(status & FS_ROW_NO_TOKEN);
        const int64_t at = args.first_row + b;
        const int32_t token = drawn ? (int32_t)score_key_token(key) : args.batch.fallback_token;
        if (result.tokens_dtype == FS_I64) ((int64_t *)result.tokens)[at] = token;
        else ((int32_t *)result.tokens)[at] = token;
        if (result.status) result.status[at] = status;
        const double score = drawn ? score_key_value(key) : (double)NAN;
        if (result.score) result.score[at] = (float)score;
        if (result.logit) {
            /* The key holds l + noise to 2^-24 or better, and the noise is known: what is left is l. */
            const double l = drawn && !row.greedy ? score - noise_gumbel(row.noise, (uint32_t)token) : score;
            result.logit[at] = (float)(result.logits == FS_LOGITS_RAW ? l * (double)row.temperature : l);
        }
        line->key = 0;
        line->hint = line->flags = 0;
    }
    if (thread == 0) args.work->done = args.work->seeded = 0;
}

#endif
