/* cuda_judge.cuh - which tokens of a tile can win, and their exact scores.
 *
 *   consumers (tensor cores)                      judges (three warps beside the producer)
 *   tile of logits in registers
 *   compare with threshold[row]   <------------   threshold = best score of the row - largest noise of the tile's ids
 *   survivors -> queue            ------------>   exact score in double, best of the row, RED.MAX to global memory
 *
 * The compare is one max per logit: which ids of a block have large noise is known beforehand (core/noise.h: marks and their
 * prefixes), so the largest noise a (row, block) can bring is one number, made by one Philox call per 128 logits off the consumers'
 * path. A threshold from an older best is lower: slower, never wrong. */
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
template <int N> struct fs_court {
    float threshold[N]; /* a logit at or below this cannot win */
    float reach[N];     /* the tile's largest noise */
    uint32_t best[N];   /* ordered float, rounded down, of the best score known here; 0: none */
    uint32_t crest[N];  /* first tile: its largest logit, ordered, 25 bits, and 127 - its place */
    fs_judged_row row[N];
    /* Per consumer warp and lane: eight of its accumulators, for code that cannot index registers. */
    float4 stash[8][2][32];
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

/* Queues one logit. Lanes call it on their own: there are few, and seldom two at once. */
template <int N> FS_DEVICE void court_push(fs_court<N> *court, float x, int32_t token, int32_t row) {
    const uint32_t slot = atomicAdd(&court->tail, 1u), chunk = slot / 32;
    /* The slot's last use must have been judged. */
    while (chunk - *(volatile uint32_t *)&court->head[chunk % FS_JUDGES] >= FS_QUEUE / 32) {
    }
    const unsigned long long entry = (unsigned long long)(((uint32_t)token << 8 | row) + 1) << 32 | __float_as_uint(x);
    *(volatile unsigned long long *)&court->queue[slot % FS_QUEUE] = entry;
}

/* ---------------------------------------------------------------------------------------------------- judges ---- */

/* The noise of a token in float, from below: within 1e-3 where it matters, and never above. prefix < 0: unmarked. */
static __device__ __noinline__ float noise_from_below(fs_noise noise, uint32_t token, int32_t prefix) {
    float e;
    if (prefix >= 0)
        e = -log1pf(-(float)FS_NOISE_Q * ((float)(prefix + 1) * 0x1p-16f)); /* w from above: E from above */
    else {
        const uint32_t upper = noise_words(noise, token, FS_DOMAIN_EXTENSION).w[1];
        e = (float)FS_NOISE_C - log1pf(-fminf(__fmaf_ru(__uint2float_ru(upper), 0x1p-32f, 0x1p-32f), 1.0f));
    }
    return -logf(e) - 2e-4f;
}

/* The prefix of a token's mark, or -1. */
FS_DEVICE int32_t mark_of(fs_noise noise, uint32_t token) {
    fs_walk walk = noise_walk(noise, token / FS_NOISE_BLOCK);
    int32_t prefix = -1;
    while (noise_next(&walk))
        if (walk.token == token) prefix = (int32_t)walk.prefix;
    return prefix;
}

/* One survivor: bounds in float first, its score in double only if it may be the row's best. Out of line: it is large and rare. With
 * `rehearse` everything is computed and nothing kept: cold instructions come from L2 at some hundred cycles a line, so the judges
 * run through them once while they have nothing else to do. */
template <int N>
static __device__ __noinline__ void judge_one(fs_court<N> *court, fs_cuda_work *work, float x, uint32_t id,
                                              bool rehearse) {
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
        const int32_t prefix = mark_of(row.noise, token);
        /* The tile's threshold allowed for its largest noise; this token's own may be out of reach. */
        const float ceiling = prefix < 0 ? (float)FS_NOISE_G + 1e-5f : noise_ceiling((uint32_t)prefix);
        if (l + ceiling < best - 1e-3f) return;
        /* Unmarked noise is anything below that: a look in float spares most of them the double. Its error is below 1e-2 there. */
        if (prefix < 0 && l + noise_from_below(row.noise, token, prefix) < best - 2e-2f && !rehearse) return;
        score = (double)l + (prefix < 0 ? noise_gumbel_unmarked(row.noise, token)
                                        : noise_gumbel_marked(row.noise, token, (uint32_t)prefix));
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
template <int N> FS_DEVICE void judge_queue(fs_court<N> *court, fs_cuda_work *work, fs_docket *docket) {
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

/* The largest noise any id in [first, first + count) has in this row, or a little more. The smallest prefix decides. */
FS_DEVICE float judge_reach(const fs_judged_row &row, int32_t first, int32_t count) {
    uint32_t least = 65536;
    for (int32_t block = first / FS_NOISE_BLOCK; block * FS_NOISE_BLOCK < first + count; block++) {
        fs_walk walk = noise_walk(row.noise, (uint32_t)block);
        while (noise_next(&walk))
            if ((int32_t)walk.token >= first && (int32_t)walk.token < first + count) least = min(least, walk.prefix);
    }
    return least < 65536 ? fmaxf(noise_ceiling(least), (float)FS_NOISE_G + 1e-4f) : (float)FS_NOISE_G + 1e-4f;
}

/* Takes over what other CTAs know of row b, and makes its threshold for a tile whose largest noise is `reach`. */
template <int N> FS_DEVICE void set_threshold(fs_court<N> *court, const fs_cuda_work *work, int32_t b, float reach) {
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
FS_DEVICE void seed_row(fs_court<N> *court, fs_cuda_work *work, int32_t b, int32_t first, bool rehearse) {
    const fs_judged_row row = court->row[b];
    const uint32_t crest = rehearse ? 0x80000000u : court->crest[b];
    if (!crest) return;
    const float x = float_of_ordered(crest & ~127u);
    float score = x * row.inverse;
    score -= 1e-6f * fabsf(score);
    if (!row.greedy) {
        const uint32_t token = first + 127 - (crest & 127);
        score += noise_from_below(row.noise, token, mark_of(row.noise, token));
    }
    if (!(score > -INFINITY) || rehearse) return;
    atomicMax(&court->best[b], ordered_float(score));
    atomicMax(&work->line[b].hint, ordered_float(score));
}

/* ---------------------------------------------------------------------------------------------------- finish ---- */

/* The results of row b, and its line of the work memory back to zero. */
template <int N>
static __device__ __noinline__ void close_row(const fs_court<N> *court, const fs_cuda_args *args, int32_t b,
                                              bool rehearse) {
    const fs_result &result = args->result;
    fs_cuda_line *line = &args->work->line[b];
    const fs_judged_row &row = court->row[b];
    const uint64_t key = __ldcg(&line->key);
    uint32_t status = row.status | __ldcg(&line->flags);
    if (!key && !(status & FS_ROW_NO_TOKEN)) status |= FS_ROW_EMPTY;
    const bool drawn = !(status & FS_ROW_NO_TOKEN);
    const int64_t at = args->first_row + b;
    const int32_t token = drawn ? (int32_t)score_key_token(key) : args->batch.fallback_token;
    const double score = drawn ? score_key_value(key) : (double)NAN;
    if (rehearse) return;
    if (result.tokens_dtype == FS_I64) ((int64_t *)result.tokens)[at] = token;
    else ((int32_t *)result.tokens)[at] = token;
    if (result.status) result.status[at] = status;
    if (result.score) result.score[at] = (float)score;
    if (result.logit) {
        /* The key holds l + noise to 2^-24 or better, and the noise is known: what is left is l. */
        const double l = drawn && !row.greedy ? score - noise_gumbel(row.noise, (uint32_t)token) : score;
        result.logit[at] = (float)(result.logits == FS_LOGITS_RAW ? l * (double)row.temperature : l);
    }
    line->key = 0;
    line->hint = line->flags = 0;
}

#endif
