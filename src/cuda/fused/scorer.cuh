/* scorer.cuh - which tokens of a tile can win: who sets thresholds for the consumers, and scores what passes them.
 *
 *   consumers (tensor cores)                      scorers (the warps beside the producers)
 *   tile of logits in registers
 *   compare with threshold[strip][row]  <------   threshold = best score of the row - largest noise of the strip's ids
 *   survivors -> queue                  ------>   bounds of their scores in float; where one may be the best of its row
 *                                                 it is pending; in the end the exact score, RED.MAX to memory
 *
 * The compare is one max per logit: which ids of a block of 128 have large noise is known beforehand (core/noise.h:
 * marks and their prefixes), so the largest noise in a strip, the 16 tokens of one warp, is one number, and one Philox
 * call off the consumers' path gives a row's eight of a tile. A threshold from an older best is lower: slower, never
 * wrong. */
#ifndef FS_CUDA_SCORER_CUH
#define FS_CUDA_SCORER_CUH

#include "cuda/device/edits.cuh"
#include "cuda/device/lists.cuh"
#include "cuda/device/row.cuh"

/* Survivors in flight. Beside 192 rows there is no room for more. */
template <int N> constexpr int QUEUE = N == 192 ? 288 : 384;
/* An id is 1 + (token << ROW_BITS | row): with 9 bits there is room for 2^23 tokens (cuda_plan.c). */
template <int N> constexpr int ROW_BITS = N > 256 ? 9 : 8;

template <int BITS> FS_DEVICE uint32_t id_of(uint32_t token, int32_t row) {
    return (token << BITS | (uint32_t)row) + 1;
}

template <int BITS> FS_DEVICE uint32_t token_of(uint32_t id) {
    return (id - 1) >> BITS;
}

template <int BITS> FS_DEVICE int32_t row_of(uint32_t id) {
    return (int32_t)((id - 1) & ((1u << BITS) - 1));
}

#define FS_STRIPS 8 /* of 16 tokens in a tile, each in one consumer warp */
#define FS_WARPS 12 /* of a CTA */
#define FS_THREADS (32 * FS_WARPS)

/* What a CTA has added up of a row's mass so far, for rows of tiles up to so many: in wider ones there is no room.
 * Every CTA adds to every row in work memory: once a tile that cost up to 11 us of a call (H200, 2026-11). */
#define FS_PARTIAL_MASSES 128
typedef struct fs_partial_mass {
    unsigned long long low, high; /* to limbs `limb` and `limb` + 1 of the row; 0, 0: nothing yet */
    int32_t limb;
} fs_partial_mass;

/* Hopper's two teams, wide tiles: the marks of the next tile are found, and what is pending is settled, while this one
 * is compared. 117 -> 112 us at 128 rows of D = 1,024; narrower tiles lose 1 to 2 (H200, 2026-11), wider ones have no
 * room. */
template <int N, int J> constexpr bool AHEAD = J == 3 && N >= 96 && N <= 160;

/* What those that end a row share (cuts.cuh). */
typedef struct fs_cut_room {
    fs_row_rules rules;
    unsigned long long *list;          /* order keys of candidates, in no order; 0: none */
    unsigned long long *weight;        /* of each */
    unsigned long long largest;        /* of them */
    unsigned long long key;            /* score key of the drawn token, or the best of a race */
    unsigned long long part[FS_WARPS]; /* of sums, by warps, */
    uint16_t tally[FS_WARPS];          /* and of how many there are */
    float floor;                       /* every token whose logit is not below it is a candidate */
    int32_t count;                     /* places in the list */
    union {
        uint32_t best, found;
    };
    union {
        int32_t row, place;
    };
} fs_cut_room;

/* Shared memory of consumers and J scorers, for N rows. */
template <int N, int J> struct fs_tile_state {
    static_assert(QUEUE<N> % (32 * J) == 0, "a slot belongs to one scorer");
    /* A logit at or below this cannot win; and which token of the strip is marked (with_mark). */
    float threshold[FS_STRIPS][N];
    float rate[N];    /* of the row's masses (masses.cuh) */
    uint32_t max[N];  /* largest x, ordered; 0: none */
    uint32_t best[N]; /* ordered float, rounded down, of the best score known here; 0: none */
    /* First tile: its largest logit, ordered, with the place in its last 7 bits; 0: none. Then the floor of the row's
     * list, a float; +inf where it has none. */
    uint32_t first_max[N];
    uint32_t listed[(N + 1) / 2]; /* tokens this CTA has listed, 16 bits a row */
    unsigned long long lead[N];   /* greedy rows: the largest order key (core/key.h) so far; 0: none */
    fs_draw draw[N];
    /* Per strip and lane: eight of its accumulators, for code that cannot index registers; then its rows' masses.
     * Between two tiles it is the scorers', unless they have marks of their own: the marks of the next one. */
    float4 stash[FS_STRIPS][N > 256 ? 3 : 2][32];
    fs_marks marks[AHEAD<N, J> ? N : 1];
    fs_partial_mass mass[N <= FS_PARTIAL_MASSES ? N : 1];
    union {
        unsigned long long queue[QUEUE<N>]; /* low word the logit, high word the id; 0: free */
        fs_cut_room cut;                    /* when it is over: of the row that is being ended (cuts.cuh) */
    };
    uint32_t tail;                 /* slots given out */
    uint32_t head[J];              /* first chunk of 32 slots this scorer has not finished */
    int32_t noisy;                 /* some row is not greedy */
    int32_t weighs, lists, raises; /* some row needs its mass, lists candidates, has tokens that edits raise */
    uint32_t asked, answered[J];   /* for better thresholds in the middle of a tile: how often, and up to which */
    uint32_t lock;                 /* of the records' masses */
    uint32_t highest;              /* no score is above: for rehearsals */
    unsigned long long scrap;      /* takes the results of a rehearsal */
    int32_t last;
    int32_t keeps; /* some row's logits are kept, beside candidates of others */
    /* The call over this block of rows. For scorers too: a function finds the kernel's parameters in memory, a
     * microsecond away (H200, 2026-11). */
    fs_cuda_args args;
};

/* Scorers are the last J of the first four warps; this thread's place among their threads. */
template <int J> FS_DEVICE int32_t scorer_thread() {
    return (int32_t)threadIdx.x - 32 * (4 - J);
}

template <int N, int J> FS_DEVICE fs_marks *tile_marks(fs_tile_state<N, J> *state) {
    static_assert(sizeof state->stash >= N * sizeof(fs_marks), "the stash holds the marks of a tile");
    return AHEAD<N, J> ? state->marks : (fs_marks *)state->stash;
}

/* The first row of this CTA's block among the launch's. */
FS_DEVICE int32_t block_start(const fs_cuda_args &args) {
    return (int32_t)blockIdx.y * args.block_rows;
}

/* From the launch's rows to those of this CTA's block. */
FS_DEVICE void narrow_to_block(fs_cuda_args *args) {
    const int32_t start = block_start(*args);
    args->first_row += start;
    args->rows = min(args->rows - start, args->block_rows);
    args->work += start;
    args->groups.record += (int64_t)start * args->groups.count * args->groups.slots;
    if (args->lists.entry) {
        args->lists.entry += (int64_t)start * args->lists.slots * FS_CUDA_SEGMENT;
        args->lists.count += (int64_t)start * args->lists.slots;
        args->lists.most += (int64_t)start * args->lists.slots;
        args->lists.floor += start;
        args->lists.progress += start;
    }
    if (args->edits.row) {
        args->edits.row += start;
        args->edits.table += (int64_t)start * 2 * FS_CUDA_TABLE;
        args->edits.raised += (int64_t)start * args->edits.tiles;
    }
}

template <int N, int J>
FS_DEVICE void open_state(fs_tile_state<N, J> *state, const fs_cuda_args &args, int32_t thread, int32_t threads) {
    const int32_t start = block_start(args), rows = min(args.rows - start, args.block_rows);
    for (int32_t b = thread; b < N; b += threads) {
        fs_draw draw;
        memset(&draw, 0, sizeof draw);
        draw.status = FS_ROW_SKIPPED;
        if (b < rows && args.lists.entry) {
            bool weighs = false;
            draw = draw_of_listed(args, start + b, &weighs);
            if (weighs) state->weighs = 1;
            if (is_listed(draw)) state->lists = 1;
            if (is_raised(draw)) state->raises = 1;
            if (is_kept(draw)) state->keeps = 1;
        } else if (b < rows) draw = draw_of_row(args, start + b);
        state->draw[b] = draw;
        if (b % 2 == 0) state->listed[b / 2] = 0;
        if (draws(draw) && !is_greedy(draw)) state->noisy = 1;
        for (int32_t strip = 0; strip < FS_STRIPS; strip++)
            state->threshold[strip][b] = INFINITY; /* stays so for rows without a token, and past the batch */
        state->rate[b] = 0.0f;
        state->max[b] = state->best[b] = state->first_max[b] = 0;
        state->lead[b] = 0;
    }
    for (int32_t i = thread; i < QUEUE<N>; i += threads) state->queue[i] = 0;
    for (int32_t i = thread; i < (int32_t)(sizeof args / 4); i += threads)
        ((uint32_t *)&state->args)[i] = ((const uint32_t *)&args)[i];
    if (thread < J) state->head[thread] = thread, state->answered[thread] = 0;
    if (thread == 0) {
        state->tail = state->lock = state->asked = 0;
        state->last = 0;
        state->highest = ordered_float(INFINITY);
    }
}

/* ----------------------------------------------------------------------------------------------------- marks ---- */

/* A threshold, a little lower, with a mark's place in its strip of 16 in the last bits; place -1: none. */
FS_DEVICE float with_mark(float threshold, int32_t place) {
    const float low = threshold - fabsf(threshold) * 0x1p-17f;
    if (!(low > -INFINITY)) return -INFINITY;
    return __uint_as_float((__float_as_uint(low) & ~31u) | (uint32_t)(place < 0 ? 0 : 16 + place));
}

/* That place; below 0: none. */
FS_DEVICE int32_t mark_in(float threshold) {
    return (int32_t)(__float_as_uint(threshold) & 31) - 16;
}

/* Runs f(strip, place in it, prefix) for the marks of row b in the tile from `first` on, which tile_marks holds. A tile
 * lies in one block of the noise; where a shard begins it may begin inside. */
template <int N, int J, class F> FS_DEVICE void for_marks(fs_tile_state<N, J> *state, int32_t b, int32_t first, F f) {
    const fs_marks marks = tile_marks(state)[b];
    auto at = [&](uint32_t place, uint32_t prefix) {
        const int32_t in_tile = (int32_t)place - first % FS_NOISE_BLOCK;
        if (in_tile >= 0) f(in_tile / 16, in_tile % 16, prefix);
    };
#pragma unroll 1
    for (int i = 0; i < marks.count; i++) at(mark_place(marks, i), mark_prefix(marks, i));
    if (marks.count < 0) {
        fs_walk walk = noise_walk(state->draw[b].noise, (uint32_t)first / FS_NOISE_BLOCK);
        while (noise_next(&walk)) at(walk.token & 127, walk.prefix);
    }
}

/* ------------------------------------------------------------------------------------------------- consumers ---- */

/* Greedy rows race here and now: scorers find the lead when the tile is over (take_lead), and the queue, which a row of
 * equal logits would fill with all of them, sees only what has a flag to set. x is no NaN. */
template <int N, int J>
FS_DEVICE bool is_ahead_of_lead(const fs_tile_state<N, J> *state, float x, int32_t token, int32_t row) {
    return *(const volatile unsigned long long *)&state->lead[row] < order_key(x, (uint32_t)token);
}

template <int N, int J> FS_DEVICE bool takes_lead(fs_tile_state<N, J> *state, float x, int32_t token, int32_t row) {
    const unsigned long long key = order_key(x, (uint32_t)token);
    return is_ahead_of_lead(state, x, token, row) && atomicMax(&state->lead[row], key) < key;
}

/* Queues one logit. Lanes call it on their own: there are few, and seldom two at once. */
template <int N, int J> FS_DEVICE void push_survivor(fs_tile_state<N, J> *state, float x, int32_t token, int32_t row) {
    const fs_draw &draw = state->draw[row];
    if (is_greedy(draw) && x == x) {
        /* What is looked up first cannot be ahead of the lead, if it is not before. */
        if (is_edited(draw) ? !is_raised(draw) && x < INFINITY && !is_ahead_of_lead(state, x, token, row)
                            : !takes_lead(state, x, token, row) || x < INFINITY)
            return;
    }
    const uint32_t slot = atomicAdd(&state->tail, 1u), chunk = slot / 32;
    /* The slot's last use must be over. */
    while (chunk - *(volatile uint32_t *)&state->head[chunk % J] >= QUEUE<N> / 32) {
    }
    const uint32_t id = id_of<ROW_BITS<N>>((uint32_t)token, row);
    const unsigned long long entry = (unsigned long long)id << 32 | __float_as_uint(x);
    *(volatile unsigned long long *)&state->queue[slot % QUEUE<N>] = entry;
}

/* Has the scorers look at what this warp has queued, before it goes on. */
template <int N, int J> FS_DEVICE void ask_scorers(fs_tile_state<N, J> *state) {
    if ((threadIdx.x & 31) == 0) {
        __threadfence_block(); /* the queue before the question */
        const uint32_t ticket = atomicAdd(&state->asked, 1u) + 1;
        for (int j = 0; j < J; j++)
            while ((int32_t)(*(volatile uint32_t *)&state->answered[j] - ticket) < 0) {
            }
        __threadfence_block(); /* the answer before the thresholds */
    }
    __syncwarp();
}

/* --------------------------------------------------------------------------------------------------- scorers ---- */

/* A token that may be its row's best, with what is drawn of it. */
typedef struct fs_survivor {
    fs_pending token;
    fs_drawn drawn;
} fs_survivor;

/* Bounds of a token's score: if it may be the row's best, all CTAs are told the lower one and the token is returned, to
 * be pending. Out of line, for first scores and survivors alike, because it is large: cold instructions come from L2 or
 * memory, a line in some hundred cycles. */
template <int BITS>
static __device__ __noinline__ fs_survivor score_token(const fs_draw &draw, uint32_t *best, uint32_t *bound,
                                                       uint32_t *flags, float x, uint32_t id) {
    const float l = x * draw.inverse;
    fs_score score = {l, l};
    fs_survivor survivor = {{x, 0, l}, {-1, {0, 0}}};
    if (!(fabsf(l) < INFINITY)) {
        const uint32_t odd = odd_flags(x, l);
        if (odd) atomicOr(flags, odd);
        if (!(l > -INFINITY)) return survivor;
    } else if (!is_greedy(draw)) {
        survivor.drawn = draw_token(draw.noise, token_of<BITS>(id));
        score = score_of(l, noise_about(survivor.drawn));
    }
    if (score.most < known_score(*(volatile uint32_t *)best)) return survivor;
    if (atomicMax(best, ordered_float(score.least)) < ordered_float(score.least))
        atomicMax(bound, ordered_float(score.least));
    survivor.token.most = score.most;
    survivor.token.id = id;
    return survivor;
}

/* A scorer's place in the queue, the same in all lanes, and what each lane has pending: together they have room for as
 * many tokens as there are rows, which may all have a new best in one tile. */
template <int N, int J> struct fs_scorer {
    static constexpr int PLACES = N > 256 ? 3 : (N + J * 32 - 1) / (J * 32); /* of 4 there are not registers enough */
    uint32_t chunk, taken;
    bool owed; /* something went to global memory since the last fence */
    uint32_t answered;
    fs_survivor pending[PLACES];
};

/* Whether another token is known to be better. Asking the other CTAs takes a microsecond. */
template <int N, int J>
FS_DEVICE bool is_overtaken(const fs_tile_state<N, J> *state, const fs_shared_scores &shared, const fs_pending &token,
                            bool ask) {
    const int32_t b = row_of<ROW_BITS<N>>(token.id);
    return token.most < known_score(*(const volatile uint32_t *)&state->best[b]) ||
           (ask && token.most < known_score(load_relaxed(bound_of(shared, b))));
}

/* What the lead of a greedy row is worth to all: a bound and, with `key`, its place in the race. Whether something was
 * sent. */
template <int N, int J>
FS_DEVICE bool take_lead(fs_tile_state<N, J> *state, const fs_shared_scores &shared, int32_t b, bool key) {
    const unsigned long long lead = state->lead[b];
    if (!is_greedy(state->draw[b]) || !lead) return false;
    const uint32_t least = (uint32_t)(lead >> 32);
    const bool better = atomicMax(&state->best[b], least) < least;
    if (better) atomicMax(bound_of(shared, b), least);
    if (key) atomicMax(key_of(shared, b), (unsigned long long)score_key(order_key_logit(lead), order_key_token(lead)));
    return better || key;
}

/* The exact score. Out of line: its instructions are rehearsed. */
template <int BITS> static __device__ __noinline__ uint64_t exact_key(const fs_draw &draw, const fs_survivor s) {
    return race_key(draw, s.token.x, token_of<BITS>(s.token.id), s.drawn);
}

/* Gives up what is overtaken of what the lanes have pending. */
template <int N, int J>
FS_DEVICE void drop_overtaken(const fs_tile_state<N, J> *state, const fs_shared_scores &shared, fs_scorer<N, J> *scorer,
                              bool ask) {
#pragma unroll
    for (int i = 0; i < fs_scorer<N, J>::PLACES; i++) {
        fs_pending &token = scorer->pending[i].token;
        if (token.id && is_overtaken(state, shared, token, ask)) token.id = 0;
    }
}

/* Exact scores of what is left of it. Double arithmetic waits for the tensor cores, some 700 cycles an instruction with
 * N = 256, and they for it (H200, 2026-11), so it must be rare. */
template <int N, int J>
FS_DEVICE void settle(fs_tile_state<N, J> *state, const fs_shared_scores &shared, fs_scorer<N, J> *scorer, bool ask) {
    drop_overtaken(state, shared, scorer, ask || fs_scorer<N, J>::PLACES > 1);
#pragma unroll 1
    for (;;) {
        fs_survivor next = {};
#pragma unroll
        for (int i = 0; i < fs_scorer<N, J>::PLACES; i++)
            if (!next.token.id && scorer->pending[i].token.id)
                next = scorer->pending[i], scorer->pending[i].token.id = 0;
        if (!__any_sync(~0u, next.token.id)) break;
        scorer->owed = true;
        if (!next.token.id) continue;
        const int32_t b = row_of<ROW_BITS<N>>(next.token.id);
        atomicMax(key_of(shared, b), (unsigned long long)exact_key<ROW_BITS<N>>(state->draw[b], next));
    }
    __syncwarp();
}

/* Takes what was found into a free place of the lane; true if there was one. */
template <int N, int J> FS_DEVICE bool take_pending(fs_scorer<N, J> *scorer, const fs_survivor &found, bool here) {
    bool taken = false;
#pragma unroll
    for (int i = 0; i < fs_scorer<N, J>::PLACES; i++) {
        const bool take = here && !taken && !scorer->pending[i].token.id;
        if (take) scorer->pending[i] = found;
        taken |= take;
    }
    return taken;
}

FS_DEVICE fs_survivor from_lane(const fs_survivor &s, int32_t lane) {
    return {
        {__shfl_sync(~0u, s.token.x, lane), __shfl_sync(~0u, s.token.id, lane), __shfl_sync(~0u, s.token.most, lane)},
        {__shfl_sync(~0u, s.drawn.prefix, lane),
         {__shfl_sync(~0u, s.drawn.word[0], lane), __shfl_sync(~0u, s.drawn.word[1], lane)}}};
}

/* Keeps what the lanes have found until it is settled: a lane without a free place gives it to one that has. Nearly all
 * of it is overtaken before the end, and never settled. */
template <int N, int J>
FS_DEVICE void keep_pending(fs_tile_state<N, J> *state, const fs_shared_scores &shared, fs_scorer<N, J> *scorer,
                            fs_survivor found) {
    if (take_pending(scorer, found, found.token.id != 0)) found.token.id = 0;
    if (!__any_sync(~0u, found.token.id)) return;
    drop_overtaken(state, shared, scorer, true);
    __syncwarp();
    while (const uint32_t crowded = __ballot_sync(~0u, found.token.id != 0)) {
        bool room = false;
#pragma unroll
        for (int i = 0; i < fs_scorer<N, J>::PLACES; i++) room |= !scorer->pending[i].token.id;
        const uint32_t free = __ballot_sync(~0u, room);
        if (!free) {
            settle(state, shared, scorer, true);
            continue;
        }
        const int32_t from = __ffs(crowded) - 1, to = __ffs(free) - 1, lane = threadIdx.x & 31;
        take_pending(scorer, from_lane(found, from), lane == to);
        if (lane == from) found.token.id = 0;
    }
}

/* y of a token that has passed with x, of a row that is edited; -inf if there is no more to do: the only race of greedy
 * rows is for the lead. Whose lead it is all are told at once, because scorers do not wait for each other. */
template <int N, int J>
FS_DEVICE float logit_of_edited(fs_tile_state<N, J> *state, const fs_cuda_args &args, const fs_shared_scores &shared,
                                float x, int32_t token, int32_t b) {
    if (!(fabsf(x) < INFINITY)) return x; /* has a flag, and the row will be open */
    const float y = look_up(args, b, token, x);
    if (!is_greedy(state->draw[b])) return y;
    if (y > -INFINITY && takes_lead(state, y, token, b))
        atomicMax(key_of(shared, b), (unsigned long long)score_key(y, (uint32_t)token));
    return -INFINITY;
}

/* Scores what is in the queue for this scorer, by chunks of 32. Returns when there is nothing more. LOOKS_UP: rows may
 * be edited. */
template <bool LOOKS_UP, int N, int J>
FS_DEVICE void score_queue(fs_tile_state<N, J> *state, const fs_cuda_args &args, const fs_shared_scores &shared,
                           fs_scorer<N, J> *scorer) {
    const uint32_t lane = threadIdx.x & 31;
    for (;;) {
        uint32_t tail = 0;
        if (lane == 0) tail = *(volatile uint32_t *)&state->tail;
        tail = __shfl_sync(~0u, tail, 0);
        const int32_t waiting = (int32_t)(tail - scorer->chunk * 32);
        const uint32_t ready = waiting < 0 ? 0 : waiting < 32 ? waiting : 32;
        if (ready <= scorer->taken) return;
        fs_survivor found = {};
        bool odd = false;
        if (lane >= scorer->taken && lane < ready) {
            volatile unsigned long long *slot = &state->queue[(scorer->chunk * 32 + lane) % QUEUE<N>];
            unsigned long long entry;
            do entry = *slot;
            while (!entry); /* given out, about to be written */
            *slot = 0;
            const uint32_t id = (uint32_t)(entry >> 32);
            const int32_t b = row_of<ROW_BITS<N>>(id);
            float x = __uint_as_float((uint32_t)entry);
            odd = !(fabsf(x) < INFINITY); /* has a flag; or was looked up, and may have taken the lead */
            if (LOOKS_UP && is_edited(state->draw[b])) {
                x = logit_of_edited(state, args, shared, x, (int32_t)token_of<ROW_BITS<N>>(id), b);
                odd = true;
            }
            found = score_token<ROW_BITS<N>>(state->draw[b], &state->best[b], bound_of(shared, b), &args.work[b].flags,
                                             x, id);
        }
        if (__any_sync(~0u, found.token.id || odd)) scorer->owed = true;
        keep_pending(state, shared, scorer, found);
        scorer->taken = ready;
        if (ready == 32) {
            scorer->chunk += J;
            scorer->taken = 0;
            __threadfence_block(); /* freed slots before the head that frees them */
            if (lane == 0) *(volatile uint32_t *)&state->head[scorer->chunk % J] = scorer->chunk;
        }
    }
}

/* Takes over what other CTAs know of this lane's rows. One memory latency for all of them. */
template <int N, int J>
FS_DEVICE void take_bounds(fs_tile_state<N, J> *state, const fs_cuda_args &args, const fs_shared_scores &shared) {
    constexpr int OWN = (N + J * 32 - 1) / (J * 32);
    uint32_t bound[OWN];
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        const int32_t b = scorer_thread<J>() + i * J * 32;
        bound[i] = b < args.rows ? load_relaxed(bound_of(shared, b)) : 0;
    }
#pragma unroll
    for (int i = 0; i < OWN; i++)
        if (bound[i]) atomicMax(&state->best[scorer_thread<J>() + i * J * 32], bound[i]);
}

/* What is below the floor of row b's list, further than a mark moves a threshold. */
template <int N, int J> FS_DEVICE float below_floor(const fs_tile_state<N, J> *state, int32_t b) {
    const float floor = __uint_as_float(state->first_max[b]);
    return floor - fabsf(floor) * 0x1p-16f - 1e-30f;
}

/* The marks of row b in the tile from `first` on. */
template <int N, int J> FS_DEVICE void find_marks(fs_tile_state<N, J> *state, int32_t b, int32_t first) {
    const fs_draw &draw = state->draw[b];
    tile_marks(state)[b] = is_greedy(draw) ? fs_marks{0, 0, {0, 0}}
                                           : marks_of(draw.noise, (uint32_t)first / FS_NOISE_BLOCK);
}

/* Makes row b's thresholds for the tile from `first` on, whose marks are there. A CTA's tiles come in the order of
 * their ids (pieces.cuh), so in a greedy row what only equals its lead has lost; a threshold of +inf would hold back
 * NaNs. `lists`: what is a candidate passes too. */
template <int N, int J>
FS_DEVICE void set_thresholds(fs_tile_state<N, J> *state, int32_t b, int32_t first, bool lists) {
    const uint32_t known = *(volatile uint32_t *)&state->best[b];
    const fs_threshold threshold = threshold_of(known, state->draw[b].temperature);
    const float listed = lists && is_listed(state->draw[b]) ? below_floor(state, b) : INFINITY;
    float unmarked = with_mark(fminf(threshold_at(threshold, FS_UNMARKED_CEILING), listed), -1);
    if (is_greedy(state->draw[b]))
        unmarked = fmaxf(threshold.level, fminf(known_score((uint32_t)(state->lead[b] >> 32)), 0x1.fffffep127f));
#pragma unroll
    for (int32_t strip = 0; strip < FS_STRIPS; strip++) state->threshold[strip][b] = unmarked;
    if (!known) return;
    for_marks(state, b, first, [&](int32_t strip, int32_t place, uint32_t prefix) {
        float *low = &state->threshold[strip][b];
        const float marked = threshold_at(threshold, mark_ceiling(prefix));
        if (listed < INFINITY) *low = with_mark(fminf(*low, marked), place); /* that there is a mark is to be seen */
        else *low = fminf(*low, with_mark(marked, place));
    });
}

/* Lowers the thresholds of strips with tokens that row b's edits raise, in the tile from `first` on. */
template <int N, int J>
FS_DEVICE void lower_raised(fs_tile_state<N, J> *state, const fs_cuda_args &args, int32_t b, int32_t first) {
    const int64_t tile = first / FS_CUDA_TILE - args.head.first_token / FS_CUDA_TILE;
    uint32_t strips = args.edits.raised[(int64_t)b * args.edits.tiles + tile];
    if (strips && first % FS_CUDA_TILE) strips = 0xFF; /* the first tile of a shard has strips of its own */
    if (!strips) return;
    const float raise = args.edits.row[b].raise;
#pragma unroll 1
    for (; strips; strips &= strips - 1) {
        float *low = &state->threshold[__ffs(strips) - 1][b];
        *low = with_mark(*low - raise - (fabsf(*low) + raise) * 1e-6f, is_greedy(state->draw[b]) ? -1 : mark_in(*low));
    }
}

template <class T> FS_DEVICE void close(fs_tile_state<T::N, T::SCORERS> *state, int32_t b, bool rehearse) {
    close_row<T::KIND == FS_CUDA_TOKENS>(state->args, state->draw[b], b, rehearse ? &state->scrap : NULL);
}

/* Runs through what follows the last tile, for its instructions alone: they are otherwise fetched from memory at the
 * very end, when the call waits for nothing else. Of calls for tokens alone they are so few that it does not pay (H200,
 * 2026-11: 1 to 2 % of a call with log Z over a small head, less than nothing without). */
template <class T> FS_DEVICE void rehearse_end(fs_tile_state<T::N, T::SCORERS> *state) {
    const int32_t b = (int32_t)(threadIdx.x & 31) % state->args.rows;
    state->scrap = exact_key<ROW_BITS<T::N>>(state->draw[b], {{0.0f, 1, 0.0f}, {-1, {0, 0}}});
    close<T>(state, b, true);
}

/* A logit of first_max from below: towards zero if it is positive, away from it if it is negative. */
FS_DEVICE float first_logit(uint32_t most) {
    const uint32_t bits = __float_as_uint(float_of_ordered(most));
    return __uint_as_float(bits >> 31 ? bits | 127 : bits & ~127u);
}

/* First tile: the largest logit of row b is a token; its score from below is the row's first bound. A rehearsal is
 * without effect. */
template <bool LOOKS_UP, int N, int J>
FS_DEVICE void seed_row(fs_tile_state<N, J> *state, const fs_cuda_args &args, const fs_shared_scores &shared, int32_t b,
                        int32_t first, bool rehearse) {
    const uint32_t most = rehearse ? ordered_float(0.0f) : state->first_max[b];
    if (!most) return;
    if (!LOOKS_UP && !rehearse) state->first_max[b] = 0; /* else there are floors to come, and no other first tile */
    const uint32_t bits = __float_as_uint(float_of_ordered(most));
    float x = first_logit(most);
    if (LOOKS_UP && is_edited(state->draw[b]) && !rehearse) x = look_up(args, b, first + (int32_t)(bits & 127), x);
    score_token<ROW_BITS<N>>(state->draw[b], rehearse ? &state->highest : &state->best[b], bound_of(shared, b),
                             &args.work[b].flags, x, id_of<ROW_BITS<N>>((uint32_t)(first + (bits & 127)), b));
}

/* Raises row b's thresholds, while consumers read them, by what its best score has risen: as much for every strip. The
 * lead of a greedy row may be of this tile, where a lower id can still come. */
template <int N, int J> FS_DEVICE void raise_thresholds(fs_tile_state<N, J> *state, int32_t b) {
    const fs_threshold threshold = threshold_of(*(volatile uint32_t *)&state->best[b], state->draw[b].temperature);
    float before = -INFINITY; /* of a strip without a mark */
#pragma unroll 1
    for (int32_t strip = 0; strip < FS_STRIPS; strip++) {
        float *low = &state->threshold[strip][b];
        if (is_listed(state->draw[b]) || is_raised(state->draw[b])) return; /* what is below is wanted too */
        if (is_greedy(state->draw[b])) *low = fmaxf(*low, threshold.level);
        else if (mark_in(*low) < 0) before = *low;
    }
    const float now = threshold_at(threshold, FS_UNMARKED_CEILING);
    const float rise = now - before - (fabsf(now) + fabsf(before)) * 0x1p-13f; /* room for FS_STRIPS answers a tile */
    if (is_greedy(state->draw[b]) || !(before > -INFINITY) || !(rise > 0.0f)) return;
#pragma unroll 1
    for (int32_t strip = 0; strip < FS_STRIPS; strip++) {
        float *low = &state->threshold[strip][b];
        *low = with_mark(*low + rise, mark_in(*low));
    }
}

template <int N, int J> FS_DEVICE uint32_t last_question(const fs_tile_state<N, J> *state) {
    const uint32_t asked = __shfl_sync(~0u, *(const volatile uint32_t *)&state->asked, 0);
    __threadfence_block(); /* the question before what it is about */
    return asked;
}

/* Answers warps that are flooded, whose queue has been scored: raises thresholds. */
template <int N, int J>
FS_DEVICE void answer(fs_tile_state<N, J> *state, const fs_cuda_args &args, const fs_shared_scores &shared,
                      fs_scorer<N, J> *scorer, uint32_t asked) {
    take_bounds(state, args, shared);
#pragma unroll 1
    for (int32_t b = scorer_thread<J>(); b < args.rows; b += J * 32)
        if (draws(state->draw[b])) raise_thresholds(state, b);
    scorer->answered = asked;
    __threadfence_block(); /* the thresholds before the answer */
    __syncwarp();
    if ((threadIdx.x & 31) == 0) *(volatile uint32_t *)&state->answered[scorer_thread<J>() / 32] = asked;
}

#endif
