/* cuda_fused.cuh - the fused kernel around a tile: who does what, and when. A tile kernel (cuda_tile_<arch>.cu) is a type T with its
 * shape, produce() and dot(); the rest is here and the same for all. T::SIMPLE and T::PLAIN say what it need not do (fs_cuda_kind).
 *
 *   warp 0        producer (with two judges, warps 0 and 1): fills a ring of stages with W [128, K] and H [N, K]
 *   warps 1-3     judges: thresholds for the next tile, exact scores of survivors (cuda_judge.cuh), masses (cuda_mass.cuh)
 *   warps 4-11    consumers: dot products, then one max per logit (cuda_epilogue.cuh). One team of eight warps, 16 tokens x N rows each,
 *                 or two teams of four with tiles in turn, 2 x 16 tokens each: while one compares, the other multiplies
 *
 *         W tile --copy--> ring --mma--> accumulators --max > threshold?--> queue --exact--> RED.MAX key in global memory
 *         H tile --copy-->                                  ^ (threshold, one per row and strip)         |
 *                                                         judges <--------- best so far -----------------+
 *
 * Cost model (H200): below B ~ 175 reading W is everything: 64 KB in flight per SM saturate the memory, and nothing may hold up the
 * ring for more than a microsecond. With two teams no comparison does, not even the first tile's, which waits for the judges. Above, the
 * tensor cores are everything and each further instruction beside them costs: hence no noise and no exact score on the consumers' path. */
#ifndef FS_CUDA_FUSED_CUH
#define FS_CUDA_FUSED_CUH

#define FS_PHILOX_ROLLED
#include "cuda_launch.h"
#include "cuda_mass.cuh"

constexpr int FS_THREADS = 384;
constexpr int FS_CONSUMERS = FS_STRIPS; /* warps */
constexpr int FS_PATIENCE = 3000;       /* nanoseconds a CTA waits for the others' first scores, where that pays */

/* What a call may want of a kernel. */
template <class T>
constexpr uint32_t wanted = T::PLAIN    ? 0u
                            : T::SIMPLE ? (uint32_t)(FS_CUDA_MASS | FS_CUDA_RAW_MASS)
                                        : ~0u;

/* Barriers between consumers and judges. Once: `opened`, the rows are in shared memory. Once per part: `crested`, the largest logits of
 * its first tile are. Once per tile: `ready`, its thresholds are set; `used`, the consumers are done with them; `next`, the ring is the
 * next team's. A team waits for its own tiles alone, so `ready` and `next` are a barrier for each: a parity tells one tile from the next,
 * not from the one after. */
struct rounds {
    uint32_t opened, crested, used, ready, next;

    static constexpr int BYTES = 8 * 7;
    FS_DEVICE_MEMBER explicit rounds(uint32_t at)
        : opened(at), crested(at + 8), used(at + 16), ready(at + 24), next(at + 40) {}
};

template <int TEAMS> FS_DEVICE void wait_ready(const rounds &turn, int32_t i) {
    barrier_wait(turn.ready + 8 * (i % TEAMS), i / TEAMS & 1);
}

/* The ring comes to the team of tile i when the one before it has read all of tile i - 1. */
template <int TEAMS> FS_DEVICE void wait_turn(const rounds &turn, int32_t i) {
    if (TEAMS > 1 && i > 0) barrier_wait(turn.next + 8 * (i % TEAMS), (i - 1) / TEAMS & 1);
}

template <int TEAMS> FS_DEVICE void end_turn(const rounds &turn, int32_t i) {
    if (TEAMS > 1 && (threadIdx.x & 31) == 0) barrier_arrive(turn.next + 8 * ((i + 1) % TEAMS));
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
    int64_t part; /* of the piece at hand; -1 before the first */
    bool fresh;   /* the piece is the first of its part */
    piece p;

    FS_DEVICE_MEMBER explicit walk(const fs_cuda_args &args)
        : args(args), own(share_of<T>(args)), i(-1), part(-1), fresh(false), p{0, 0, 0} {}

    FS_DEVICE_MEMBER bool is_last() const { return i + 1 >= own.count; }

    /* To the next piece; false if there is none. */
    FS_DEVICE_MEMBER bool next() {
        p = piece_at<T::CLUSTER>(args, own, ++i);
        fresh = false;
        if (p.count <= 0) return p.count == 0;
        const int64_t now = T::SIMPLE ? 0 : part_at<T::CLUSTER>(args, p);
        fresh = now != part;
        part = now;
        return true;
    }

    /* `count` pieces on. */
    FS_DEVICE_MEMBER bool next(int32_t count) {
        bool more = next();
        for (; more && count > 1; count--) more = next();
        return more;
    }
};

/* ---------------------------------------------------------------------------------------------------- judges ---- */

/* Rows go round the judges' lanes. Runs f(row) for those of a lane that get a token. */
template <int N, int J, class F> FS_DEVICE void own_rows(const fs_cuda_args &args, const fs_court<N, J> *court, F f) {
#pragma unroll 1
    for (int32_t b = judge_thread<J>(); b < args.rows; b += J * 32)
        if (!(court->row[b].status & FS_ROW_NO_TOKEN)) f(b);
}

/* First tile: a first score for every row, shared by all CTAs, before any survivor is queued: alone, a CTA would let tens of tokens
 * per row through, together two or three. With patience a CTA waits for the others; nothing depends on it but how tight the thresholds
 * are. */
template <int N, int J>
FS_DEVICE void seed(const fs_cuda_args &args, fs_court<N, J> *court, const fs_board &board, int32_t first,
                    int32_t patience, bool rehearse) {
    own_rows<N>(args, court, [&](int32_t b) { seed_row(court, args, board, b, first, rehearse); });
    __syncwarp();
    if (patience == 0 || rehearse) return;
    uint32_t *seeded = &args.work->seeded;
    if ((threadIdx.x & 31) == 0) atomicAdd(seeded, 1u);
    const uint64_t start = nanoseconds();
    while (load_relaxed(seeded) < gridDim.x * J && nanoseconds() - start < (uint64_t)patience) {
    }
    __syncwarp();
}

/* One judge is done; how many were before it. What it sent goes before the count, and who counts to the end sees everything. Called
 * with 0 for its instructions alone, out of line for them to be the same ones. */
static __device__ __noinline__ uint32_t leave(fs_cuda_work *work, bool owed, uint32_t count) {
    if (owed) __threadfence();
    return add_acquire(&work->done, count);
}

/* Thresholds tile by tile. Survivors are judged while waiting: consumers may be held up by a full queue. */
template <class T>
FS_DEVICE void judge(const fs_cuda_args &args, fs_court<T::N, T::JUDGES> *court, const rounds &turn) {
    constexpr int N = T::N, J = T::JUDGES;
    const int32_t judge = judge_thread<J>() / 32, lane = threadIdx.x & 31;
    const uint32_t want = args.want & wanted<T>;
    const bool masses = want & (FS_CUDA_MASS | FS_CUDA_RAW_MASS), groups = want & FS_CUDA_GROUPS;
    /* Waiting saves survivors in proportion to the rows and costs what is not hidden: nothing with two teams. */
    const bool patient = T::TEAMS > 1 || N >= 96 || groups;
    fs_docket docket = {(uint32_t)judge, 0, false, {}};
    walk<T> at(args);
    uint32_t crested = 0;
    if (N <= FS_PILES && masses) own_rows<N>(args, court, [&](int32_t b) { court->pile[b] = {0, 0, 0}; });
    while (at.next()) {
        const int32_t first = at.p.first;
        const fs_board board = board_of<T::SIMPLE>(args, at.part);
        if (masses && at.i > 0) named_barrier(1, J * 32); /* sums are read before marks take their place */
        own_rows<N>(args, court, [&](int32_t b) {
            const fs_judged_row &row = court->row[b];
            marks_of(court)[b] = row.greedy ? fs_tile_marks{0, 0, {0, 0}}
                                            : tile_marks(row.noise, (uint32_t)first / FS_NOISE_BLOCK);
            /* A new group starts without a best score; every survivor of the last one has been judged. */
            if (groups && at.fresh) court->best[b] = 0;
        });
        for (bool rehearse = at.i == 0;; rehearse = false) {
            if (at.fresh && !rehearse) barrier_wait(turn.crested, crested++ & 1);
            if (at.fresh) seed<N>(args, court, board, first, at.i == 0 && patient ? FS_PATIENCE : 0, rehearse);
            take_hints(court, args, board);
            own_rows<N>(args, court, [&](int32_t b) {
                set_thresholds(court, b, first);
                if (masses) court->rate[b] = mass_rate(court->row[b], want & FS_CUDA_RAW_MASS);
            });
            if (!rehearse) break;
        }
        __syncwarp();
        if (lane == 0) barrier_arrive(turn.ready + 8 * (at.i % T::TEAMS));
        if (docket.owed && lane == 0) __threadfence(); /* here there is time; at the end there is none */
        docket.owed = false;
        if (at.is_last()) {
            if (lane == 0) leave(args.work, true, 0);
            if (judge == J - 1) rehearse_end<T>(court);
        }
        /* One lane decides: the others' clocks may run out a moment earlier or later. */
        while (!__shfl_sync(~0u, barrier_wait_for(turn.used, at.i & 1, 1000), 0))
            judge_queue(court, args, board, &docket);
        judge_queue(court, args, board, &docket);
        /* With one team double arithmetic waits for the tensor cores, and they for it: not before they are done. A group does not outlast
         * its tiles. */
        if (T::TEAMS > 1 || groups || at.is_last()) settle(court, board, &docket, !at.is_last());
        __syncwarp();
        if (masses && at.p.count > 0)
            own_rows<N>(args, court, [&](int32_t b) { tally_row(court, args, at.part, b, groups); });
    }
    if (masses && !groups) own_rows<N>(args, court, [&](int32_t b) { hand_in_pile(court, args, b); });
    if (want & FS_CUDA_PEAK)
        own_rows<N>(args, court, [&](int32_t b) { atomicMax(&args.work->line[b].peak, court->peak[b]); });
    __syncwarp();
    if (lane != 0 || groups) return;
    if (leave(args.work, docket.owed || want, 1) == gridDim.x * J - 1) court->last = 1;
}

/* ------------------------------------------------------------------------------------------------- consumers ---- */

template <class T>
FS_DEVICE void consume(const fs_cuda_args &args, fs_court<T::N, T::JUDGES> *court, char *shared, bool shaped, ring r,
                       const rounds &turn) {
    constexpr int N = T::N, TEAMS = T::TEAMS;
    const int32_t warp = threadIdx.x / 32 - 4, lane = threadIdx.x & 31;
    const int32_t team = warp / (FS_CONSUMERS / TEAMS), strip = warp % (FS_CONSUMERS / TEAMS);
    const int32_t t = strip * 16 + lane / 4; /* this thread's first token in a tile; in two teams it has t + 64 too */
    float d[TEAMS][N / 2];
    /* Anything: a rehearsal makes them -inf, a product starts anew. Setting them would be a kilobyte of cold instructions. */
#pragma unroll
    for (int i = 0; i < TEAMS * N / 2; i++) asm volatile("" : "=f"(d[i / (N / 2)][i % (N / 2)]));
    auto want = [&](uint32_t what) { return args.want & what & wanted<T>; };
    walk<T> at(args);
    /* A second team has nothing to multiply before the first tile is over: it runs through what comes then, for the instructions alone, which
     * are the other team's too (H200, 2026-11: cold, they held the first crest up by 12 us at N = 64). A logit of -inf has no effect. */
    for (bool rehearse = team > 0 && at.own.count > 1;; rehearse = false) {
        if (rehearse || at.i >= 0) {
            transform<N, TEAMS>(d, args.head, shaped, at.p, t);
            if (rehearse || at.i == 0) barrier_wait(turn.opened, 0);
            if (rehearse || at.fresh) {
                /* The crest of the tile before has been read. */
                if (TEAMS > 1 && at.i > 0) wait_ready<TEAMS>(turn, at.i - 1);
                find_crest<N, TEAMS>(d, court, t);
                __syncwarp();
                if (lane == 0 && !rehearse) barrier_arrive(turn.crested);
            }
            /* One team rehearses while the judges make the first thresholds. */
            for (bool again = TEAMS == 1 && at.i == 0;; again = false) {
                if (!again && !rehearse) wait_ready<TEAMS>(turn, at.i);
                reduce<N, TEAMS>(d, court, strip, at.p, t, again || rehearse);
                if (!again) break;
            }
            if (want(~0u) && (rehearse || at.p.count > 0)) {
                if (want(FS_CUDA_MASS | FS_CUDA_RAW_MASS))
#pragma unroll
                    for (int m = 0; m < TEAMS; m++)
                        sum_granules<N>(d[m], court, args, at.part, strip + 4 * m, at.p.count <= 16 * (strip + 4 * m),
                                        want(FS_CUDA_GROUPS), rehearse);
                if (want(FS_CUDA_PEAK)) find_peaks<N, TEAMS>(d, court);
            }
            __syncwarp();
            if (lane == 0 && !rehearse) barrier_arrive(turn.used);
        }
        if (!at.next(at.i < 0 ? 1 + team : TEAMS)) break;
        wait_turn<TEAMS>(turn, at.i);
        if constexpr (TEAMS > 1) T::place(&r, at.i * args.k_steps);
        /* Warps without tokens in a piece compute too: a branch around the tensor instructions serialises them (C7520). */
        T::dot(d, &r, args.k_steps, shared, warp);
        end_turn<TEAMS>(turn, at.i);
    }
}

/* ---------------------------------------------------------------------------------------------------- kernel ---- */

template <class T>
FS_DEVICE void fused_kernel(const typename T::source &source, const fs_cuda_args &args, int32_t shaped) {
    extern __shared__ __align__(1024) char shared[];
    fs_court<T::N, T::JUDGES> *court = (fs_court<T::N, T::JUDGES> *)(shared + T::COURT_START);
    const uint32_t full = shared_address(shared + T::BARRIER_START), empty = full + 8 * T::STAGES;
    const rounds turn(empty + 8 * T::STAGES);
    if (threadIdx.x == 0) {
        for (int s = 0; s < T::STAGES; s++) {
            barrier_init(full + 8 * s, T::FILLERS);
            barrier_init(empty + 8 * s, FS_CONSUMERS / T::TEAMS * T::CLUSTER);
        }
        barrier_init(turn.opened, T::JUDGES);
        barrier_init(turn.crested, FS_CONSUMERS / T::TEAMS);
        barrier_init(turn.used, FS_CONSUMERS / T::TEAMS);
        for (int team = 0; team < T::TEAMS; team++) {
            barrier_init(turn.ready + 8 * team, T::JUDGES);
            barrier_init(turn.next + 8 * team, FS_CONSUMERS / T::TEAMS);
        }
        barrier_init_fence();
    }
    /* The warp that has made the barriers does not wait for those that use them: its first copies are the start of everything. */
    if (threadIdx.x < 32) named_barrier_pass(2, FS_THREADS);
    else named_barrier(2, FS_THREADS);
    if constexpr (T::CLUSTER > 1) {
        cluster_arrive(); /* no copy into a CTA whose barriers are not there yet */
        if (threadIdx.x >= 32) cluster_wait();
    }
    if (threadIdx.x < 128) {
        T::give_registers();
        if (threadIdx.x < 32 * (4 - T::JUDGES)) T::produce(source, args, shared, ring{full, empty, 1, 0});
        else {
            wait_for_earlier_launches();
            let_next_launch_begin(); /* what this launch was given is there for the next one too */
            /* Who the rows are is not needed before the first tile is there. */
            court_open(court, args, judge_thread<T::JUDGES>(), T::JUDGES * 32);
            named_barrier(1, T::JUDGES * 32);
            if (threadIdx.x % 32 == 0) barrier_arrive(turn.opened);
            judge<T>(T::PLAIN ? court->args : args, court, turn);
        }
    } else {
        T::take_registers();
        consume<T>(args, court, shared, !T::SIMPLE && shaped != 0, ring{full, empty, 0, 0}, turn);
    }
    __syncthreads();
    if constexpr (T::CLUSTER > 1) cluster_barrier(); /* no exit while the other CTA may still send here */
    if (court->last) {                               /* in group modes cuda_finish.cu goes on */
        for (int32_t b = threadIdx.x; b < court->args.rows; b += FS_THREADS) close<T>(court, b, false);
        if (threadIdx.x == 0) court->args.work->done = court->args.work->seeded = 0;
    }
}

#endif
