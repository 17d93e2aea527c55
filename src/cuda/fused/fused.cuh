/* fused.cuh - the fused kernel around a tile: who does what, and when. A tile (sm90.cuh, sm80.cu) is a type T with its
 * shape, produce() and dot(); the rest is here and the same for all. T::KIND says what it need not do (fs_cuda_kind).
 *
 *   warp 0        producer (with two scorers, warps 0 and 1): fills a ring of stages with W [128, K] and H [N, K]
 *   warps 1-3     scorers: thresholds for the next tile, scores of survivors (scorer.cuh), masses (masses.cuh)
 *   warps 4-11    consumers: dot products, then one max per logit (epilogue.cuh). One team of eight warps, 16 tokens x
 *                 N rows each, or two teams of four with tiles in turn, 2 x 16 tokens each: while one compares, the
 *                 other multiplies
 *
 *         W tile --copy--> ring --mma--> accumulators --max > threshold?--> queue --exact--> RED.MAX key in memory
 *         H tile --copy-->                                  ^ (threshold, one per row and strip)       |
 *                                                         scorers <-------- best so far ---------------+
 *
 * Cost model (H200): below B ~ 175 reading W is everything: 64 KB in flight per SM saturate the memory, and nothing may
 * hold up the ring for more than a microsecond. With two teams no comparison does, not even the first tile's, which
 * waits for the scorers. Above, the tensor cores are everything and each further instruction beside them costs: hence
 * no noise and no exact score on the consumers' path. */
#ifndef FS_CUDA_FUSED_CUH
#define FS_CUDA_FUSED_CUH

#define FS_PHILOX_ROLLED
#include "cuda/cuda_launch.h"
#include "cuda/fused/cuts.cuh"
#include "cuda/fused/masses.cuh"

constexpr int FS_CONSUMERS = FS_STRIPS;   /* warps */
constexpr int FS_PATIENCE = 3000;         /* nanoseconds a CTA waits for the others' first scores, where that pays, */
constexpr int FS_FLOOR_PATIENCE = 200000; /* for the floors of lists, */
constexpr int FS_END_PATIENCE = 200000;   /* and for the others' last tiles */

/* What a call needs, as far as the kernel is for it; with candidates, what a block of its rows does. */
template <class T> FS_DEVICE bool masses_of(const fs_cuda_args &args, const fs_tile_state<T::N, T::SCORERS> *state) {
    if (T::KIND == FS_CUDA_LISTED) return state->weighs;
    return T::KIND >= FS_CUDA_MASSES && T::KIND != FS_CUDA_KEPT && needs_mass(args.needs);
}

template <class T> FS_DEVICE bool max_of(const fs_cuda_args &args) {
    return T::KIND >= FS_CUDA_SHAPED && args.needs.max;
}

template <class T> FS_DEVICE bool groups_of(const fs_cuda_args &args) {
    return T::KIND >= FS_CUDA_GROUPED && args.groups.tiles;
}

/* Barriers between consumers and scorers. Once: `opened`, the rows are in shared memory; `floors`, those of their lists
 * are. Once per record: `first`, the largest logits of its first tile are. Once per tile: `ready`, its thresholds are
 * set; `used`, the consumers are done with them; `next`, the ring is the next team's. A team waits for its own tiles
 * alone, so `ready` and `next` are a barrier for each, 16 bytes apart: a parity tells one tile from the next, not from
 * the one after. */
struct rounds {
    uint32_t opened, first, floors, used, ready, next;

    FS_DEVICE_MEMBER explicit rounds(uint32_t at)
        : opened(at), first(at + 8), floors(at + 16), used(at + 24), ready(at + 32), next(at + 40) {}
};
template <int TEAMS> constexpr int ROUNDS_BYTES = 32 + 16 * TEAMS;

template <int TEAMS> FS_DEVICE void wait_ready(const rounds &turn, int32_t i) {
    barrier_wait(turn.ready + 16 * (i % TEAMS), i / TEAMS & 1);
}

/* The ring comes to the team of tile i when the one before it has read all of tile i - 1. */
template <int TEAMS> FS_DEVICE void wait_turn(const rounds &turn, int32_t i) {
    if (TEAMS > 1 && i > 0) barrier_wait(turn.next + 16 * (i % TEAMS), (i - 1) / TEAMS & 1);
}

template <int TEAMS> FS_DEVICE void end_turn(const rounds &turn, int32_t i) {
    if (TEAMS > 1 && (threadIdx.x & 31) == 0) barrier_arrive(turn.next + 16 * ((i + 1) % TEAMS));
}

/* A warp's place in the ring. */
struct ring {
    uint32_t full, empty, parity;
    int32_t stage;
};

/* One CTA's walk over its pieces, the same in every role. */
template <class T> struct walk {
    const fs_cuda_args &args;
    const share own;
    int32_t i;
    int64_t record; /* of the piece at hand; -1 before the first */
    bool fresh;     /* the piece is the first of its record */
    piece p;

    FS_DEVICE_MEMBER explicit walk(const fs_cuda_args &args)
        : args(args), own(share_of<T>(args)), i(-1), record(-1), fresh(false), p{0, 0} {}

    FS_DEVICE_MEMBER bool is_last() const { return i + 1 >= own.count; }

    /* To the next piece; false if there is none. */
    FS_DEVICE_MEMBER bool next() {
        p = piece_at<T::CLUSTER>(args, own, ++i);
        fresh = false;
        if (p.count <= 0) return p.count == 0;
        const int64_t now = T::KIND == FS_CUDA_GROUPED ? record_at<T::CLUSTER>(args, p) : 0;
        fresh = now != record;
        record = now;
        return true;
    }

    /* `count` pieces on. */
    FS_DEVICE_MEMBER bool next(int32_t count) {
        bool more = next();
        for (; more && count > 1; count--) more = next();
        return more;
    }
};

/* --------------------------------------------------------------------------------------------------- scorers ---- */

/* One more scorer whose first scores are there, or that has none. */
FS_DEVICE void count_seeded(const fs_cuda_args &args) {
    if ((threadIdx.x & 31) == 0) atomicAdd(&args.work->seeded, 1u);
}

/* First tile: a first score for every row, shared by all CTAs, before any survivor is queued: alone, a CTA would let
 * tens of tokens per row through, together two or three. With patience a CTA waits for the others; nothing depends on
 * it but how tight the thresholds are. */
template <bool LOOKS_UP, int N, int J>
FS_DEVICE void seed(const fs_cuda_args &args, fs_tile_state<N, J> *state, const fs_shared_scores &shared, int32_t first,
                    int32_t patience, bool rehearse) {
    own_rows<N>(args, state, [&](int32_t b) { seed_row<LOOKS_UP>(state, args, shared, b, first, rehearse); });
    __syncwarp();
    if (patience == 0 || rehearse) return;
    count_seeded(args);
    const uint64_t start = nanoseconds();
    while (load_relaxed(&args.work->seeded) < gridDim.x * J && nanoseconds() - start < (uint64_t)patience) {
    }
    __syncwarp();
}

/* One scorer is done; how many were before it. What it sent goes before the count, and who counts to the end sees
 * everything. Called with 0 for its instructions alone, out of line for them to be the same ones. */
static __device__ __noinline__ uint32_t leave(uint32_t *done, bool owed, uint32_t count) {
    if (owed) __threadfence();
    return add_acquire(done, count);
}

/* Thresholds tile by tile. Survivors are scored while waiting: consumers may be held up by a full queue. */
template <class T>
FS_DEVICE void score(const fs_cuda_args &args, fs_tile_state<T::N, T::SCORERS> *state, const rounds &turn) {
    constexpr int N = T::N, J = T::SCORERS;
    constexpr bool LISTED = T::KIND == FS_CUDA_LISTED;
    const int32_t warp = scorer_thread<J>() / 32, lane = threadIdx.x & 31;
    /* Waiting saves survivors in proportion to the rows and costs what is not hidden: nothing with two teams. */
    static_assert(T::TEAMS > 1 || N >= 96, "else a CTA should not wait for the others' first scores");
    fs_scorer<N, J> scorer = {(uint32_t)warp, 0, false, 0, {}};
    walk<T> at(args);
    uint32_t seeded = 0, *done = T::KIND == FS_CUDA_LISTED ? &args.lists.progress->done : &args.work->done;
    if (N <= FS_PARTIAL_MASSES && masses_of<T>(args, state))
        own_rows<N>(args, state, [&](int32_t b) { state->mass[b] = {0, 0, 0}; });
    while (at.next()) {
        const int32_t first = at.p.first;
        const fs_shared_scores shared = shared_scores<T::KIND == FS_CUDA_GROUPED>(args, at.record);
        if (at.i == 0 && !at.fresh) count_seeded(args); /* another CTA's half of a pair: nobody waits for this one */
        /* Sums are read before marks take their place. */
        if (masses_of<T>(args, state) && at.i > 0) named_barrier(1, J * 32);
        own_rows<N>(args, state, [&](int32_t b) {
            if (!AHEAD<N, J> || at.i == 0) find_marks(state, b, first);
            /* A new group starts without a best score; every survivor of the last one has been scored. */
            if (groups_of<T>(args) && at.fresh) state->best[b] = 0, state->lead[b] = 0;
        });
        /* Its instructions come while the first tile does: 1 to 2 % of a call over a small head. With one team it is in
         * the way, 2 % at 192 and 256 rows (H200, 2026-11). */
        for (bool rehearse = T::TEAMS > 1 && at.i == 0;; rehearse = false) {
            if (at.fresh && !rehearse) barrier_wait(turn.first, seeded++ & 1);
            if (at.fresh) seed<LISTED, N>(args, state, shared, first, at.i == 0 ? FS_PATIENCE : 0, rehearse);
            take_bounds(state, args, shared);
            own_rows<N>(args, state, [&](int32_t b) {
                set_thresholds(state, b, first, LISTED && at.i > 0);
                if (LISTED && is_raised(state->draw[b])) lower_raised(state, args, b, first);
                if (masses_of<T>(args, state)) state->rate[b] = mass_rate(state->draw[b], args.needs.raw_mass);
            });
            if (!rehearse) break;
        }
        __syncwarp();
        if (lane == 0) barrier_arrive(turn.ready + 16 * (at.i % T::TEAMS));
        if (LISTED && at.i == 0) put_most(args, state, first);
        fs_floors<N, J> floors(!LISTED || at.i > 0 || !state->lists);
        if (T::KIND == FS_CUDA_LISTED) floors.advance(args, state, FS_FLOOR_PATIENCE);
        if (AHEAD<N, J> && !at.is_last()) {
            const int32_t next = piece_at<T::CLUSTER>(args, at.own, at.i + 1).first;
            own_rows<N>(args, state, [&](int32_t b) { find_marks(state, b, next); });
        }
        if (AHEAD<N, J> && at.i > 0 && !groups_of<T>(args)) settle(state, shared, &scorer, true);
        if (scorer.owed && lane == 0) __threadfence(); /* here there is time; at the end there is none */
        scorer.owed = false;
        if (T::KIND != FS_CUDA_TOKENS && at.is_last()) {
            if (lane == 0) leave(done, true, 0);
            if (T::KIND != FS_CUDA_LISTED && T::KIND != FS_CUDA_KEPT && warp == J - 1) rehearse_end<T>(state);
        }
        if (T::KIND == FS_CUDA_LISTED && at.i == 0 && floors.taken && lane == 0) barrier_arrive(turn.floors);
        for (bool over = false; !over;) {
            if (T::KIND == FS_CUDA_LISTED && floors.advance(args, state, FS_FLOOR_PATIENCE) && lane == 0)
                barrier_arrive(turn.floors);
            /* One lane decides: the others' clocks may run out a moment earlier or later. */
            over = __shfl_sync(~0u, barrier_wait_for(turn.used, at.i & 1, 500), 0) && floors.taken;
            const uint32_t asked = last_question(state);
            score_queue<LISTED>(state, args, shared, &scorer);
            if (asked != scorer.answered) answer(state, args, shared, &scorer, asked);
        }
        /* With one team double arithmetic waits for the tensor cores, and they for it: not before they are done. A
         * group does not outlast its tiles. */
        const bool ends = groups_of<T>(args) || at.is_last();
        if (ends || (T::TEAMS > 1 && !AHEAD<N, J>)) settle(state, shared, &scorer, !at.is_last());
        bool sent = false;
        own_rows<N>(args, state, [&](int32_t b) { sent |= take_lead(state, shared, b, ends); });
        if (__any_sync(~0u, sent)) scorer.owed = true;
        if (masses_of<T>(args, state) && at.p.count > 0)
            own_rows<N>(args, state, [&](int32_t b) { add_tile_mass(state, args, at.record, b, groups_of<T>(args)); });
    }
    if (T::KIND == FS_CUDA_LISTED)
        own_rows<N>(args, state, [&](int32_t b) {
            args.lists.count[(int64_t)b * args.lists.slots + blockIdx.x] = state->listed[b / 2] >> 16 * (b & 1) &
                                                                           0xFFFF;
        });
    if (masses_of<T>(args, state) && !groups_of<T>(args))
        own_rows<N>(args, state, [&](int32_t b) { hand_in_mass(state, args, b); });
    if (max_of<T>(args)) own_rows<N>(args, state, [&](int32_t b) { atomicMax(&args.work[b].max, state->max[b]); });
    __syncwarp();
    if (groups_of<T>(args)) return;
    if (T::KIND == FS_CUDA_LISTED && lane == 0) leave(done, true, 1);
    else if (lane == 0) {
        const bool owed = scorer.owed || masses_of<T>(args, state) || max_of<T>(args);
        if (leave(done, owed, 1) == gridDim.x * J - 1) state->last = 1;
    }
}

/* ------------------------------------------------------------------------------------------------- consumers ---- */

template <class T>
FS_DEVICE void consume(const fs_cuda_args &args, fs_tile_state<T::N, T::SCORERS> *state, char *shared, bool shaped,
                       ring r, const rounds &turn) {
    constexpr int N = T::N, TEAMS = T::TEAMS;
    constexpr bool LISTED = T::KIND == FS_CUDA_LISTED;
    const bool masked = LISTED && args.batch.allow;
    int32_t kept = -1; /* where the tile began that is still to be listed */
    const int32_t warp = threadIdx.x / 32 - 4, lane = threadIdx.x & 31;
    const int32_t team = warp / (FS_CONSUMERS / TEAMS), strip = warp % (FS_CONSUMERS / TEAMS);
    const int32_t t = strip * 16 + lane / 4; /* this thread's first token in a tile; in two teams it has t + 64 too */
    float d[TEAMS][N / 2];
    walk<T> at(args);
    while (at.next(at.i < 0 ? 1 + team : TEAMS)) {
        fs_allowed<N, TEAMS> allowed;
        if (masked && at.i >= TEAMS) allowed.load(state, at.p.first + 16 * strip);
        wait_turn<TEAMS>(turn, at.i);
        if constexpr (TEAMS > 1) T::place(&r, at.i * args.k_steps);
        /* Warps without tokens in a piece compute too: a branch around the tensor instructions serialises them
         * (C7520). */
        T::dot(d, &r, args.k_steps, shared, warp);
        end_turn<TEAMS>(turn, at.i);
        if constexpr (T::KIND == FS_CUDA_LOGITS) {
            store_logits<N, TEAMS>(d, args, at.p, t);
            __syncwarp(); /* without it ptxas serialises the tensor instructions of wide tiles (C7518) */
            continue;
        }
        transform<N, TEAMS>(d, args.head, shaped, at.p, t);
        if constexpr (T::KIND == FS_CUDA_KEPT) {
            store_logits<N, TEAMS>(d, args, at.p, t);
            __syncwarp();
        }
        if (at.i < TEAMS) barrier_wait(turn.opened, 0);
        if (masked) {
            if (at.i < TEAMS) allowed.load(state, at.p.first + 16 * strip);
            allowed.apply(d);
        }
        if (LISTED && state->keeps) {
            store_kept<N, TEAMS>(d, state, args, at.p, t);
            __syncwarp();
        }
        if (at.fresh) {
            /* The maximum of the tile before has been read. */
            if (TEAMS > 1 && at.i > 0) wait_ready<TEAMS>(turn, at.i - 1);
            find_first_max<N, TEAMS>(d, state, t);
            __syncwarp();
            if (lane == 0) barrier_arrive(turn.first);
        }
        wait_ready<TEAMS>(turn, at.i);
        if (at.p.count > 0) {
            reduce<LISTED, N, TEAMS>(d, state, strip, at.p, at.i > 0 && state->lists);
            if (LISTED && at.i == 0 && state->lists) {
                fs_kept_tile<N, TEAMS>(args.lists).put(d);
                kept = at.p.first;
            }
            if (masses_of<T>(args, state))
#pragma unroll
                for (int m = 0; m < TEAMS; m++)
                    sum_granules<N>(d[m], state, state->args, at.record, strip + 4 * m,
                                    at.p.count <= 16 * (strip + 4 * m), groups_of<T>(args));
            if (max_of<T>(args)) find_max<N, TEAMS>(d, state);
        }
        __syncwarp();
        /* With the next tile's thresholds floors have come. Who has no next one waits for them. */
        if (LISTED && kept >= 0 && (at.i > 0 || at.own.count <= TEAMS)) {
            if (at.i == 0) barrier_wait(turn.floors, 0);
            fs_kept_tile<N, TEAMS>(args.lists).list(state, strip, kept);
            kept = -1;
            __syncwarp();
        }
        if (lane == 0) barrier_arrive(turn.used);
    }
}

/* ---------------------------------------------------------------------------------------------------- kernel ---- */

template <class T>
FS_DEVICE void fused_kernel(const typename T::source &source, const fs_cuda_args &args, int32_t shaped) {
    extern __shared__ __align__(1024) char shared[];
    fs_tile_state<T::N, T::SCORERS> *state = (fs_tile_state<T::N, T::SCORERS> *)(shared + T::STATE_START);
    const uint32_t full = shared_address(shared + T::BARRIER_START), empty = full + 8 * T::STAGES;
    const rounds turn(empty + 8 * T::STAGES);
    if constexpr (T::KIND == FS_CUDA_LOGITS)
        if (args.lists.by_place) { /* how many rows there are the device knows */
            wait_for_earlier_launches();
            if (args.first_row + block_start(args) >= *(volatile int32_t *)args.lists.open) return;
        }
    if constexpr (T::KIND != FS_CUDA_LOGITS && T::KIND != FS_CUDA_KEPT)
        if (is_decided(args)) return;
    if (threadIdx.x == 0) {
        state->noisy = state->lists = state->raises = state->keeps = 0;
        state->weighs = T::KIND == FS_CUDA_LISTED && needs_mass(args.needs) && !args.needs.mass_to_cut;
        for (int s = 0; s < T::STAGES; s++) {
            barrier_init(full + 8 * s, T::FILLERS);
            barrier_init(empty + 8 * s, FS_CONSUMERS / T::TEAMS * T::CLUSTER);
        }
        barrier_init(turn.opened, T::SCORERS);
        barrier_init(turn.floors, T::SCORERS);
        barrier_init(turn.first, FS_CONSUMERS / T::TEAMS);
        barrier_init(turn.used, FS_CONSUMERS / T::TEAMS);
        for (int team = 0; team < T::TEAMS; team++) {
            barrier_init(turn.ready + 16 * team, T::SCORERS);
            barrier_init(turn.next + 16 * team, FS_CONSUMERS / T::TEAMS);
        }
        barrier_init_fence();
    }
    /* The warp that has made the barriers does not wait for those that use them: its first copies are the start of
     * everything. */
    if (threadIdx.x < 32) named_barrier_pass(2, FS_THREADS);
    else named_barrier(2, FS_THREADS);
    if constexpr (T::CLUSTER > 1) {
        cluster_arrive(); /* no copy into a CTA whose barriers are not there yet */
        if (threadIdx.x >= 32) cluster_wait();
    }
    if (threadIdx.x < 128) {
        T::give_registers();
        if (threadIdx.x < 32 * (4 - T::SCORERS)) T::produce(source, args, shared, ring{full, empty, 1, 0});
        else if constexpr (T::KIND != FS_CUDA_LOGITS) {
            wait_for_earlier_launches();
            let_next_launch_begin(); /* what this launch was given is there for the next one too */
            /* Of several blocks of rows one may end before this CTA begins: then the host has seen to it. */
            if (T::KIND == FS_CUDA_LISTED && args.first_row == 0 && blockIdx.x == 0 && gridDim.y == 1 &&
                scorer_thread<T::SCORERS>() == 0)
                *args.lists.open = 0;
            if (blockIdx.x == 0 && blockIdx.y == 0 && scorer_thread<T::SCORERS>() == 0 &&
                (T::KIND == FS_CUDA_KEPT || (T::KIND == FS_CUDA_LISTED && args.dense.x))) {
                /* Which are not looked at before this launch is over. */
                if (T::KIND == FS_CUDA_KEPT) *args.lists.open = 0;
                args.lists.open[FS_AGAIN_BY_TEAM] = args.lists.open[FS_AGAIN_BY_CTA] = 0;
            }
            /* Who the rows are is not needed before the first tile is there. */
            open_state(state, args, scorer_thread<T::SCORERS>(), T::SCORERS * 32);
            named_barrier(1, T::SCORERS * 32);
            if (gridDim.y > 1) {
                if (scorer_thread<T::SCORERS>() == 0) narrow_to_block(&state->args);
                named_barrier(1, T::SCORERS * 32);
            }
            if (threadIdx.x % 32 == 0) barrier_arrive(turn.opened);
            score<T>(state->args, state, turn);
        }
    } else {
        T::take_registers();
        consume<T>(args, state, shared, T::KIND >= FS_CUDA_SHAPED && shaped != 0, ring{full, empty, 0, 0}, turn);
    }
    __syncthreads();
    if constexpr (T::CLUSTER > 1) cluster_barrier(); /* no exit while the other CTA may still send here */
    if constexpr (T::KIND == FS_CUDA_LISTED) end_rows<T>(state, (unsigned long long *)shared, FS_END_PATIENCE);
    if constexpr (T::KIND == FS_CUDA_LOGITS || T::KIND == FS_CUDA_LISTED) return;
    if (state->last) { /* in group modes groups.cu goes on */
        for (int32_t b = threadIdx.x; b < state->args.rows && !state->args.leave_rows; b += FS_THREADS)
            close<T>(state, b, false);
        if (threadIdx.x == 0) state->args.work->done = state->args.work->seeded = 0;
    }
}

#endif
