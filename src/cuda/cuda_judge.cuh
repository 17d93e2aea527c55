/* cuda_judge.cuh - which tokens of a tile can win, and their exact scores.
 *
 *   consumers (tensor cores)                      judges (the warps beside the producers)
 *   tile of logits in registers
 *   compare with threshold[strip][row]  <------   threshold = best score of the row - largest noise of the strip's ids
 *   survivors -> queue                  ------>   exact score in double, best of the row, RED.MAX to global memory
 *
 * The compare is one max per logit: which ids of a block of 128 have large noise is known beforehand (core/noise.h: marks and their
 * prefixes), so the largest noise in a strip, the 16 tokens of one warp, is one number, and one Philox call off the consumers' path
 * gives a row's eight of a tile. A threshold from an older best is lower: slower, never wrong. */
#ifndef FS_CUDA_JUDGE_CUH
#define FS_CUDA_JUDGE_CUH

#include "cuda_finish.cuh"

#define FS_QUEUE                                                                                                       \
    384 /* survivors in flight; a multiple of 32 times any number of judges, so that a slot always belongs to one */
#define FS_STRIPS 8 /* consumer warps, each with 16 tokens of a tile */

/* Shared memory of consumers and J judges, for N rows. */
template <int N, int J> struct fs_court {
    static_assert(FS_QUEUE % (32 * J) == 0, "a slot belongs to one judge");
    float threshold[FS_STRIPS][N]; /* a logit at or below this cannot win */
    float rate[N];                 /* of the row's masses (cuda_mass.cuh) */
    uint32_t peak[N];              /* largest x, ordered; 0: none */
    uint32_t best[N];              /* ordered float, rounded down, of the best score known here; 0: none */
    uint32_t crest[N]; /* first tile: its largest logit, ordered, with the place in its last 7 bits; 0: none */
    fs_judged_row row[N];
    /* Per consumer warp and lane: eight of its accumulators, for code that cannot index registers; then its rows' masses. Between two
     * tiles it is the judges': the marks of the next one (marks_of). */
    float4 stash[FS_STRIPS][2][32];
    unsigned long long queue[FS_QUEUE]; /* low word the logit, high word 1 + (token << 8 | row) ; 0: free */
    uint32_t tail;                      /* slots given out */
    uint32_t head[J];                   /* first chunk of 32 slots this judge has not finished */
    uint32_t lock;                      /* of the parts' masses */
    int32_t last;
};

/* Judges are the last J of the first four warps; this thread's place among their threads. */
template <int J> FS_DEVICE int32_t judge_thread() {
    return (int32_t)threadIdx.x - 32 * (4 - J);
}

/* A judge's place in the queue: the same in all lanes. */
typedef struct fs_docket {
    uint32_t chunk, taken;
} fs_docket;

template <int N, int J>
FS_DEVICE void court_open(fs_court<N, J> *court, const fs_cuda_args &args, int32_t thread, int32_t threads) {
    for (int32_t b = thread; b < N; b += threads) {
        fs_judged_row row;
        memset(&row, 0, sizeof row);
        row.status = FS_ROW_SKIPPED;
        if (b < args.rows) row = judged_row(args, b);
        court->row[b] = row;
        for (int32_t strip = 0; strip < FS_STRIPS; strip++)
            court->threshold[strip][b] = INFINITY; /* stays so for rows without a token, and past the batch */
        court->rate[b] = 0.0f;
        court->peak[b] = court->best[b] = court->crest[b] = 0;
    }
    for (int32_t i = thread; i < FS_QUEUE; i += threads) court->queue[i] = 0;
    if (thread < J) court->head[thread] = thread;
    if (thread == 0) court->tail = court->lock = 0;
}

/* ------------------------------------------------------------------------------------------------- consumers ---- */

/* Queues one logit. Lanes call it on their own: there are few, and seldom two at once. */
template <int N, int J>
FS_DEVICE void court_push(fs_court<N, J> *court, float x, int32_t token, int32_t row, bool rehearse) {
    const uint32_t slot = atomicAdd(&court->tail, rehearse ? 0u : 1u), chunk = slot / 32;
    /* The slot's last use must have been judged. */
    while (chunk - *(volatile uint32_t *)&court->head[chunk % J] >= FS_QUEUE / 32) {
    }
    const unsigned long long entry = (unsigned long long)(((uint32_t)token << 8 | row) + 1) << 32 | __float_as_uint(x);
    if (!rehearse) *(volatile unsigned long long *)&court->queue[slot % FS_QUEUE] = entry;
}

/* ---------------------------------------------------------------------------------------------------- judges ---- */

/* The marks of one row in one tile: up to four pairs as they are drawn, places seven bits each. */
typedef struct fs_tile_marks {
    int32_t count; /* -1: more than a call holds, or a place twice: walk */
    uint32_t places, prefixes[2];
} fs_tile_marks;

FS_DEVICE fs_tile_marks tile_marks(fs_noise noise, uint32_t block) {
    const fs_words r = noise_mark_words(noise, block, 0);
    const uint32_t u = r.w[0], places = r.w[1];
    /* Upper halves of the thresholds of core/noise.h; where they do not decide, or above four, the walk does. */
    int32_t count = (u > 0x9B1EB169u) + (u > 0xE8FBE753u) + (u > 0xFC5FA9F6u) + (u > 0xFF913974u);
    if (u == 0x9B1EB169u || u == 0xE8FBE753u || u == 0xFC5FA9F6u || u == 0xFF913974u || u >= 0xFFF56A69u) count = -1;
    const uint32_t p0 = places & 127, p1 = places >> 7 & 127, p2 = places >> 14 & 127, p3 = places >> 21 & 127;
    if ((count > 1 && p0 == p1) || (count > 2 && (p0 == p2 || p1 == p2)) ||
        (count > 3 && (p0 == p3 || p1 == p3 || p2 == p3)))
        count = -1;
    return {count, places, {r.w[2], r.w[3]}};
}

FS_DEVICE uint32_t mark_place(const fs_tile_marks &marks, int i) {
    return marks.places >> (7 * i) & 127;
}

FS_DEVICE uint32_t mark_prefix(const fs_tile_marks &marks, int i) {
    return marks.prefixes[i / 2] >> (16 * (i & 1)) & 0xFFFF;
}

/* The prefix of a token's mark, or -1. */
FS_DEVICE int32_t mark_of(fs_noise noise, uint32_t token) {
    const fs_tile_marks marks = tile_marks(noise, token / FS_NOISE_BLOCK);
    int32_t prefix = -1;
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (i < marks.count && mark_place(marks, i) == token % FS_NOISE_BLOCK) prefix = (int32_t)mark_prefix(marks, i);
    if (marks.count >= 0) return prefix;
    fs_walk walk = noise_walk(noise, token / FS_NOISE_BLOCK);
    while (noise_next(&walk))
        if (walk.token == token) prefix = (int32_t)walk.prefix;
    return prefix;
}

/* The noise of a token in float, from below: within 1e-3 where it matters, and never above. prefix < 0: unmarked, and `upper` is word 1
 * of its extension. */
FS_DEVICE float noise_from_below(int32_t prefix, uint32_t upper) {
    const float w = fminf(__fmaf_ru(__uint2float_ru(upper), 0x1p-32f, 0x1p-32f), 1.0f); /* from above: E from above */
    const float e = prefix >= 0 ? -log1pf(-(float)FS_NOISE_Q * ((float)(prefix + 1) * 0x1p-16f))
                                : (float)FS_NOISE_C - log1pf(-w);
    return -logf(e) - 2e-4f;
}

/* One survivor: bounds in float first, its score in double only if it may be the row's best; the key goes to *key. Out of line: it is
 * large and rare. With `rehearse` everything is computed and nothing kept: cold instructions come from L2 at some hundred cycles a
 * line, so the judges run through them once while they have nothing else to do. */
static __device__ __noinline__ void judge_one(const fs_judged_row &row, uint32_t *best, fs_cuda_line *line,
                                              unsigned long long *key, uint32_t *hint, float x, uint32_t token,
                                              bool rehearse) {
    const float l = x * row.inverse;
    if (x != x) atomicOr(&line->flags, FS_ROW_NAN);
    if (!(l > -INFINITY)) return;
    if (l == INFINITY) atomicOr(&line->flags, FS_ROW_INF | (x == INFINITY ? FS_CUDA_X_INF : 0u));
    const uint32_t known = rehearse ? 0 : *(volatile uint32_t *)best;
    const float bar = known ? float_of_ordered(known) : -INFINITY;
    double score = (double)x;
    if (!row.greedy) {
        const int32_t prefix = mark_of(row.noise, token);
        const uint32_t upper = noise_words(row.noise, token, FS_DOMAIN_EXTENSION).w[1];
        /* The strip's threshold allowed for its largest noise; this token's own may be out of reach. */
        const float ceiling = prefix < 0 ? (float)FS_NOISE_G + 1e-5f : noise_ceiling((uint32_t)prefix);
        if (l + ceiling < bar - 1e-3f) return;
        /* Unmarked noise is anything below that: a look in float spares most of them the double. Its error is below 1e-2 there. */
        if (prefix < 0 && l + noise_from_below(prefix, upper) < bar - 2e-2f && !rehearse) return;
        score = (double)l + (prefix < 0 ? noise_gumbel_unmarked(row.noise, token)
                                        : noise_gumbel_marked(row.noise, token, (uint32_t)prefix));
    }
    const uint32_t mine = ordered_float(__double2float_rd(score));
    if (rehearse) {
        if (mine == 1) *best = 0; /* no score is: keeps the compiler from dropping the rest */
        return;
    }
    const uint32_t before = atomicMax(best, mine);
    /* A score clearly below a known one need not travel; 40 bits of a key are finer than a float. */
    if (before && float_of_ordered(mine) < float_of_ordered(before) - 1e-3f) return;
    atomicMax(key, (unsigned long long)score_key(score, token));
    atomicMax(hint, mine);
}

/* Row b's part at hand. */
FS_DEVICE fs_group *part_of_row(const fs_cuda_args &args, int64_t part, int32_t b) {
    return args.parts.part + (int64_t)b * args.parts.groups * args.parts.slots + part;
}

/* Where row b's keys of this CTA go: to the row's line, or in group modes to the part at hand. */
FS_DEVICE unsigned long long *key_of_row(const fs_cuda_args &args, int64_t part, int32_t b) {
    if (!(args.want & FS_CUDA_GROUPS)) return &args.work->line[b].key;
    return (unsigned long long *)&part_of_row(args, part, b)->winner.key;
}

/* Where the CTAs that race against each other share row b's best score. */
FS_DEVICE uint32_t *hint_of_row(const fs_cuda_args &args, int64_t part, int32_t b) {
    if (!(args.want & FS_CUDA_GROUPS)) return &args.work->line[b].hint;
    return (uint32_t *)&part_of_row(args, part / args.parts.slots * args.parts.slots, b)->winner.x;
}

/* Judges what is in the queue for this judge, by chunks of 32: one survivor costs the warp as much as 32, so a chunk that is not full
 * waits for the end of the tile (`all`). Returns when there is nothing more. */
template <int N, int J>
FS_DEVICE void judge_queue(fs_court<N, J> *court, const fs_cuda_args &args, int64_t part, fs_docket *docket, bool all) {
    const uint32_t lane = threadIdx.x & 31;
    for (;;) {
        uint32_t tail = 0;
        if (lane == 0) tail = *(volatile uint32_t *)&court->tail;
        tail = __shfl_sync(~0u, tail, 0);
        const int32_t waiting = (int32_t)(tail - docket->chunk * 32);
        const uint32_t ready = waiting < 0 ? 0 : waiting < 32 ? waiting : 32;
        if (ready <= docket->taken || (ready < 32 && !all)) return;
        if (lane >= docket->taken && lane < ready) {
            volatile unsigned long long *slot = &court->queue[(docket->chunk * 32 + lane) % FS_QUEUE];
            unsigned long long entry;
            do entry = *slot;
            while (!entry); /* given out, about to be written */
            *slot = 0;
            const uint32_t id = (uint32_t)(entry >> 32) - 1, b = id & 255;
            judge_one(court->row[b], &court->best[b], &args.work->line[b], key_of_row(args, part, (int32_t)b),
                      hint_of_row(args, part, (int32_t)b), __uint_as_float((uint32_t)entry), id >> 8, false);
        }
        __syncwarp();
        docket->taken = ready;
        if (ready == 32) {
            docket->chunk += J;
            docket->taken = 0;
            __threadfence_block(); /* freed slots before the head that frees them */
            if (lane == 0) *(volatile uint32_t *)&court->head[docket->chunk % J] = docket->chunk;
        }
    }
}

template <int N, int J> FS_DEVICE fs_tile_marks *marks_of(fs_court<N, J> *court) {
    static_assert(sizeof court->stash >= N * sizeof(fs_tile_marks), "the stash holds the marks of a tile");
    return (fs_tile_marks *)court->stash;
}

/* Takes over what other CTAs know of this lane's rows. One memory latency for all of them. */
template <int N, int J> FS_DEVICE void take_hints(fs_court<N, J> *court, const fs_cuda_args &args, int64_t part) {
    constexpr int OWN = (N + J * 32 - 1) / (J * 32);
    uint32_t hint[OWN];
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        const int32_t b = judge_thread<J>() + i * J * 32;
        hint[i] = b < args.rows ? load_relaxed(hint_of_row(args, part, b)) : 0;
    }
#pragma unroll
    for (int i = 0; i < OWN; i++)
        if (hint[i]) atomicMax(&court->best[judge_thread<J>() + i * J * 32], hint[i]);
}

/* Makes row b's thresholds for the tile from `first` on, whose marks are there. A tile lies in one block of the noise; where a shard
 * begins it may begin inside. */
template <int N, int J> FS_DEVICE void set_thresholds(fs_court<N, J> *court, int32_t b, int32_t first) {
    const fs_tile_marks marks = marks_of(court)[b];
    const uint32_t known = *(volatile uint32_t *)&court->best[b];
    const float best = known ? float_of_ordered(known) : -INFINITY, temperature = court->row[b].temperature;
    /* Slack for the float products on both sides of the compare. Another +inf with a lower id still wins. */
    auto bar = [&](float noise) {
        if (best == INFINITY) return 3.4e38f;
        return (best - noise - 1e-5f - 1e-6f * (fabsf(best) + noise)) * temperature;
    };
    const float plain = known ? bar(court->row[b].greedy ? 0.0f : (float)FS_NOISE_G + 1e-4f) : -INFINITY;
#pragma unroll
    for (int32_t strip = 0; strip < FS_STRIPS; strip++) court->threshold[strip][b] = plain;
    if (!known) return;
    auto lower = [&](uint32_t place, uint32_t prefix) {
        const int32_t at = (int32_t)place - first % FS_NOISE_BLOCK;
        if (at < 0) return;
        float *threshold = &court->threshold[at / 16][b];
        *threshold = fminf(*threshold, bar(noise_ceiling(prefix)));
    };
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (i < marks.count) lower(mark_place(marks, i), mark_prefix(marks, i));
    if (marks.count < 0) {
        fs_walk walk = noise_walk(court->row[b].noise, (uint32_t)first / FS_NOISE_BLOCK);
        while (noise_next(&walk)) lower(walk.token & 127, walk.prefix);
    }
}

/* First tile: the largest logit of row b is a token; its score from below is the row's first hint. */
template <int N, int J>
FS_DEVICE void seed_row(fs_court<N, J> *court, uint32_t *hint, int32_t b, int32_t first, bool rehearse) {
    const fs_judged_row row = court->row[b];
    const uint32_t crest = rehearse ? 0x80000000u : court->crest[b];
    if (!crest) return;
    const uint32_t bits = __float_as_uint(float_of_ordered(crest));
    /* From below: towards zero for a positive logit, away from it for a negative one. */
    const float x = __uint_as_float(bits >> 31 ? bits | 127 : bits & ~127u);
    float score = x * row.inverse;
    score -= 1e-6f * fabsf(score);
    if (!row.greedy) {
        const uint32_t token = first + (bits & 127);
        score += noise_from_below(mark_of(row.noise, token), noise_words(row.noise, token, FS_DOMAIN_EXTENSION).w[1]);
    }
    if (!(score > -INFINITY) || rehearse) return;
    court->crest[b] = 0;
    atomicMax(&court->best[b], ordered_float(score));
    atomicMax(hint, ordered_float(score));
}

#endif
