/* cuda_judge.cuh - which tokens of a tile can win, and their exact scores.
 *
 *   consumers (tensor cores)                      judges (the warps beside the producers)
 *   tile of logits in registers
 *   compare with threshold[strip][row]  <------   threshold = best score of the row - largest noise of the strip's ids
 *   survivors -> queue                  ------>   bounds of their scores in float; where one may be the best of its row, the exact
 *                                                 score in double, RED.MAX to global memory
 *
 * The compare is one max per logit: which ids of a block of 128 have large noise is known beforehand (core/noise.h: marks and their
 * prefixes), so the largest noise in a strip, the 16 tokens of one warp, is one number, and one Philox call off the consumers' path
 * gives a row's eight of a tile. A threshold from an older best is lower: slower, never wrong. */
#ifndef FS_CUDA_JUDGE_CUH
#define FS_CUDA_JUDGE_CUH

#include "cuda_finish.cuh"
#include "cuda_noise.cuh"

#define FS_QUEUE                                                                                                       \
    384 /* survivors in flight; a multiple of 32 times any number of judges, so that a slot always belongs to one */
#define FS_STRIPS 8 /* of 16 tokens in a tile, each in one consumer warp */

/* What a CTA has added up of a row's mass so far, for rows of tiles up to so many: in wider ones there is no room. Every CTA adds to every
 * row's line: once a tile that cost up to 11 us of a call (H200, 2026-11). */
#define FS_PILES 128
typedef struct fs_pile {
    unsigned long long low, high; /* to limbs `limb` and `limb` + 1 of the line; 0, 0: nothing yet */
    int32_t limb;
} fs_pile;

/* Shared memory of consumers and J judges, for N rows. */
template <int N, int J> struct fs_court {
    static_assert(FS_QUEUE % (32 * J) == 0, "a slot belongs to one judge");
    float threshold[FS_STRIPS][N]; /* a logit at or below this cannot win */
    float rate[N];                 /* of the row's masses (cuda_mass.cuh) */
    uint32_t peak[N];              /* largest x, ordered; 0: none */
    uint32_t best[N];              /* ordered float, rounded down, of the best score known here; 0: none */
    uint32_t crest[N]; /* first tile: its largest logit, ordered, with the place in its last 7 bits; 0: none */
    fs_judged_row row[N];
    /* Per strip and lane: eight of its accumulators, for code that cannot index registers; then its rows' masses. Between two
     * tiles it is the judges': the marks of the next one (marks_of). */
    float4 stash[FS_STRIPS][2][32];
    fs_pile pile[N <= FS_PILES ? N : 1];
    unsigned long long queue[FS_QUEUE]; /* low word the logit, high word 1 + (token << 8 | row) ; 0: free */
    uint32_t tail;                      /* slots given out */
    uint32_t head[J];                   /* first chunk of 32 slots this judge has not finished */
    uint32_t lock;                      /* of the parts' masses */
    uint32_t highest;                   /* no score is above: for rehearsals */
    unsigned long long scrap;           /* takes the key of a rehearsal */
    int32_t last;
    /* The call, for its end and, in plain kernels, for the judges: a function finds the kernel's parameters in memory, a microsecond away
     * (H200, 2026-11). */
    fs_cuda_args args;
};

/* Judges are the last J of the first four warps; this thread's place among their threads. */
template <int J> FS_DEVICE int32_t judge_thread() {
    return (int32_t)threadIdx.x - 32 * (4 - J);
}

template <int N, int J> FS_DEVICE fs_tile_marks *marks_of(fs_court<N, J> *court) {
    static_assert(sizeof court->stash >= N * sizeof(fs_tile_marks), "the stash holds the marks of a tile");
    return (fs_tile_marks *)court->stash;
}

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
    for (int32_t i = thread; i < (int32_t)(sizeof args / 4); i += threads)
        ((uint32_t *)&court->args)[i] = ((const uint32_t *)&args)[i];
    if (thread < J) court->head[thread] = thread;
    if (thread == 0) {
        court->tail = court->lock = 0;
        court->last = 0;
        court->highest = ordered_float(INFINITY);
    }
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

/* A score that is known, or the lowest. */
FS_DEVICE float known_score(uint32_t ordered) {
    return ordered ? float_of_ordered(ordered) : -INFINITY;
}

/* A token that may be its row's best. */
typedef struct fs_held {
    uint32_t id; /* 1 + (token << 8 | row); 0: none */
    float x;
    float most;     /* the score is not above this */
    int32_t prefix; /* of its mark, -1: none; with `words` its noise */
    uint32_t words[2];
} fs_held;

/* A token's score, bounded in float: if it may be the row's best, all CTAs are told the lower bound and the token is returned to be held,
 * for settle_one. Out of line, for first scores and survivors alike, because it is large: cold instructions come from L2 or memory, a
 * line in some hundred cycles (docs/findings/gpu-instructions.md). */
static __device__ __noinline__ fs_held judge_one(const fs_judged_row &row, uint32_t *best, uint32_t *hint,
                                                 uint32_t *flags, float x, uint32_t id) {
    const uint32_t token = (id - 1) >> 8;
    const float l = row.greedy ? x : x * row.inverse;
    const bool noisy = !row.greedy && l < INFINITY;
    fs_held held = {0, x, l, -1, {0, 0}};
    if (x != x) atomicOr(flags, FS_ROW_NAN);
    if (!(l > -INFINITY)) return held;
    if (l == INFINITY) atomicOr(flags, FS_ROW_INF | (x == INFINITY ? FS_CUDA_X_INF : 0u));
    float least = l;
    if (noisy) {
        fs_words extension;
        held.prefix = draw_token(row.noise, token, &extension);
        held.words[0] = extension.w[0];
        held.words[1] = extension.w[1];
        const float slack = 2e-3f + 1e-6f * fabsf(l), noise = noise_about(held.prefix, extension.w[1]);
        held.most += noise + slack;
        least += noise_is_sharp(held.prefix, extension.w[1]) ? noise - slack : -INFINITY;
    }
    if (held.most < known_score(*(volatile uint32_t *)best)) return held;
    if (least > -INFINITY && atomicMax(best, ordered_float(least)) < ordered_float(least))
        atomicMax(hint, ordered_float(least));
    held.id = id;
    return held;
}

/* The exact score of what judge_one has returned, in double. Double arithmetic waits for the tensor cores, some 700 cycles an instruction
 * with N = 256, and they for it (H200, 2026-11), so it must be rare. */
static __device__ __noinline__ void settle_one(const fs_judged_row &row, unsigned long long *key, const fs_held held) {
    const float l = row.greedy ? held.x : held.x * row.inverse;
    const fs_words extension = {{held.words[0], held.words[1], 0, 0}};
    const double noise = row.greedy || l == INFINITY ? 0.0 : noise_gumbel_from(extension, held.prefix);
    atomicMax(key, (unsigned long long)score_key((double)l + noise, (held.id - 1) >> 8));
}

/* A judge's place in the queue, the same in all lanes, and what each lane holds. */
typedef struct fs_docket {
    uint32_t chunk, taken;
    bool owed; /* something went to global memory since the last fence */
    fs_held held;
} fs_docket;

/* Row b's part at hand. */
FS_DEVICE fs_group *part_of_row(const fs_cuda_args &args, int64_t part, int32_t b) {
    return args.parts.part + (int64_t)b * args.parts.groups * args.parts.slots + part;
}

/* Where the keys of a CTA go, and where the CTAs that race against each other share their best scores: the rows' lines, or in group
 * modes the parts at hand. Row b's are b * stride bytes on: no choice is left where they are used, and little code. */
typedef struct fs_board {
    char *key, *hint;
    int64_t stride;
} fs_board;

template <bool SIMPLE> FS_DEVICE fs_board board_of(const fs_cuda_args &args, int64_t part) {
    if (SIMPLE || !(args.want & FS_CUDA_GROUPS))
        return {(char *)&args.work->line[0].key, (char *)&args.work->line[0].hint, sizeof(fs_cuda_line)};
    fs_group *first = part_of_row(args, part / args.parts.slots * args.parts.slots, 0);
    return {(char *)&part_of_row(args, part, 0)->winner.key, (char *)&first->winner.x,
            (int64_t)sizeof(fs_group) * args.parts.groups * args.parts.slots};
}

FS_DEVICE unsigned long long *key_on(const fs_board &board, int32_t b) {
    return (unsigned long long *)(board.key + b * board.stride);
}

FS_DEVICE uint32_t *hint_on(const fs_board &board, int32_t b) {
    return (uint32_t *)(board.hint + b * board.stride);
}

/* Whether another token is known to be better. Asking the other CTAs takes a microsecond. */
template <int N, int J>
FS_DEVICE bool overtaken(const fs_court<N, J> *court, const fs_board &board, const fs_held &held, bool ask) {
    const int32_t b = (int32_t)((held.id - 1) & 255);
    return held.most < known_score(*(const volatile uint32_t *)&court->best[b]) ||
           (ask && held.most < known_score(load_relaxed(hint_on(board, b))));
}

/* Settles what this judge's lanes hold. */
template <int N, int J>
FS_DEVICE void settle(fs_court<N, J> *court, const fs_board &board, fs_docket *docket, bool ask) {
    const fs_held held = docket->held;
    docket->held.id = 0;
    if (__any_sync(~0u, held.id)) docket->owed = true;
    if (!held.id || overtaken(court, board, held, ask)) return;
    const int32_t b = (int32_t)((held.id - 1) & 255);
    settle_one(court->row[b], key_on(board, b), held);
}

/* Holds what the lanes have found until it is settled: a lane that holds something already gives it to one that does not. Nearly all
 * that is held is overtaken before the end, and never settled. */
template <int N, int J>
FS_DEVICE void hold(fs_court<N, J> *court, const fs_board &board, fs_docket *docket, fs_held found) {
    const int32_t lane = threadIdx.x & 31;
    if (__any_sync(~0u, found.id && docket->held.id) && docket->held.id && overtaken(court, board, docket->held, true))
        docket->held.id = 0;
    __syncwarp();
    while (const uint32_t crowded = __ballot_sync(~0u, found.id && docket->held.id)) {
        const uint32_t free = __ballot_sync(~0u, !found.id && !docket->held.id);
        if (!free) {
            settle(court, board, docket, true);
            __syncwarp();
            continue;
        }
        const int32_t from = __ffs(crowded) - 1, to = __ffs(free) - 1;
        const fs_held moved = {__shfl_sync(~0u, found.id, from),
                               __shfl_sync(~0u, found.x, from),
                               __shfl_sync(~0u, found.most, from),
                               __shfl_sync(~0u, found.prefix, from),
                               {__shfl_sync(~0u, found.words[0], from), __shfl_sync(~0u, found.words[1], from)}};
        if (lane == to) docket->held = moved;
        if (lane == from) found.id = 0;
    }
    if (found.id) docket->held = found;
}

/* Judges what is in the queue for this judge, by chunks of 32. Returns when there is nothing more. */
template <int N, int J>
FS_DEVICE void judge_queue(fs_court<N, J> *court, const fs_cuda_args &args, const fs_board &board, fs_docket *docket) {
    const uint32_t lane = threadIdx.x & 31;
    for (;;) {
        uint32_t tail = 0;
        if (lane == 0) tail = *(volatile uint32_t *)&court->tail;
        tail = __shfl_sync(~0u, tail, 0);
        const int32_t waiting = (int32_t)(tail - docket->chunk * 32);
        const uint32_t ready = waiting < 0 ? 0 : waiting < 32 ? waiting : 32;
        if (ready <= docket->taken) return;
        fs_held found;
        found.id = 0;
        bool odd = false;
        if (lane >= docket->taken && lane < ready) {
            volatile unsigned long long *slot = &court->queue[(docket->chunk * 32 + lane) % FS_QUEUE];
            unsigned long long entry;
            do entry = *slot;
            while (!entry); /* given out, about to be written */
            *slot = 0;
            const uint32_t id = (uint32_t)(entry >> 32), b = (id - 1) & 255;
            const float x = __uint_as_float((uint32_t)entry);
            odd = !(fabsf(x) < INFINITY); /* has a flag */
            found =
                judge_one(court->row[b], &court->best[b], hint_on(board, (int32_t)b), &args.work->line[b].flags, x, id);
        }
        if (__any_sync(~0u, found.id || odd)) docket->owed = true;
        hold(court, board, docket, found);
        docket->taken = ready;
        if (ready == 32) {
            docket->chunk += J;
            docket->taken = 0;
            __threadfence_block(); /* freed slots before the head that frees them */
            if (lane == 0) *(volatile uint32_t *)&court->head[docket->chunk % J] = docket->chunk;
        }
    }
}

/* Takes over what other CTAs know of this lane's rows. One memory latency for all of them. */
template <int N, int J>
FS_DEVICE void take_hints(fs_court<N, J> *court, const fs_cuda_args &args, const fs_board &board) {
    constexpr int OWN = (N + J * 32 - 1) / (J * 32);
    uint32_t hint[OWN];
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        const int32_t b = judge_thread<J>() + i * J * 32;
        hint[i] = b < args.rows ? load_relaxed(hint_on(board, b)) : 0;
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
    const float best = known_score(known), temperature = court->row[b].temperature;
    /* Slack for the float products on both sides of the compare. Of those that l makes +inf the lowest id wins, so all
     * of them pass: x need not be infinite where 1 / temperature is large. */
    auto bar = [&](float noise) {
        if (best == INFINITY) return 3.4e38f * fminf(temperature * 0.999999f, 1.0f);
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
        *threshold = fminf(*threshold, bar(mark_ceiling(prefix)));
    };
#pragma unroll 1
    for (int i = 0; i < marks.count; i++) lower(mark_place(marks, i), mark_prefix(marks, i));
    if (marks.count < 0) {
        fs_walk walk = noise_walk(court->row[b].noise, (uint32_t)first / FS_NOISE_BLOCK);
        while (noise_next(&walk)) lower(walk.token & 127, walk.prefix);
    }
}

template <class T> FS_DEVICE void close(const fs_court<T::N, T::JUDGES> *court, int32_t b, bool rehearse) {
    if constexpr (T::PLAIN) close_token(court->args, court->row[b], b, rehearse);
    else close_row(court->args, court->row[b], b, rehearse);
}

/* Runs through what follows the last tile, for its instructions alone: they are otherwise fetched from memory at the very end, when the
 * call waits for nothing else (H200, 2026-11: 2 us). */
template <class T> FS_DEVICE void rehearse_end(fs_court<T::N, T::JUDGES> *court) {
    const int32_t b = (int32_t)(threadIdx.x & 31) % court->args.rows;
    settle_one(court->row[b], &court->scrap, {1, 0.0f, 0.0f, -1, {0, 0}});
    close<T>(court, b, true);
}

/* First tile: the largest logit of row b is a token; its score from below is the row's first hint. A rehearsal is without effect. */
template <int N, int J>
FS_DEVICE void seed_row(fs_court<N, J> *court, const fs_cuda_args &args, const fs_board &board, int32_t b,
                        int32_t first, bool rehearse) {
    const uint32_t crest = rehearse ? ordered_float(0.0f) : court->crest[b];
    if (!crest) return;
    if (!rehearse) court->crest[b] = 0;
    const uint32_t bits = __float_as_uint(float_of_ordered(crest));
    /* From below: towards zero for a positive logit, away from it for a negative one. */
    const float x = __uint_as_float(bits >> 31 ? bits | 127 : bits & ~127u);
    judge_one(court->row[b], rehearse ? &court->highest : &court->best[b], hint_on(board, b), &args.work->line[b].flags,
              x, ((uint32_t)(first + (bits & 127)) << 8 | b) + 1);
}

#endif
