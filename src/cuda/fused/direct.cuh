/* direct.cuh - the fused kernel where a CTA has few pieces: short vocabularies, shards of many ranks. Logits go to
 * shared memory, and all warps but the producer's race there.
 *
 *   warp 0        producer
 *   warps 1-3     who the rows are; the marks of a piece
 *   warps 4-11    dot products, and from the accumulators to shared memory, [N][128]
 *   warps 1-11    the race, every eleventh row each
 *
 *         W tile --copy--> ring --mma--> accumulators --> logits --> race --> best of a row --exact--> RED.MAX key
 *         H tile --copy-->
 *
 * Such a call is a chain of latencies: a copy, a product, a race, three round trips to memory. What pays where a CTA
 * has many tiles (fused.cuh) only makes it longer: waiting for all CTAs' first scores, a queue, few scorers. A warp
 * finds a likely token of each of its rows, scores these all at once, a row to a lane, tells the other CTAs, takes what
 * they know by then, and goes through its rows again for what can still win. An instruction is a warp's, so tokens
 * are scored by 32, of all rows: 128 rows of a tile whose warps scored row by row took 27 us (docs/notes/
 * gpu-short-vocabularies.md). */
#ifndef FS_CUDA_DIRECT_CUH
#define FS_CUDA_DIRECT_CUH

#include "cuda/fused/fused.cuh"

constexpr int FS_RACERS = 11; /* warps, from 1 on */
/* Floats from one row to the next: lanes of a store are in 8 tokens of 4 rows, 2 rows apart, each in a bank of its
 * own. */
constexpr int FS_PITCH = FS_CUDA_TILE + 4;
/* Tokens of a warp that wait to be scored: a row's, and what was left of those before it. */
constexpr int FS_WAITING = FS_CUDA_TILE + 32;

/* ------------------------------------------------------------------------------------------------------ before ---- */

/* Rows, from the batch. What CTAs will meet at is asked for early: memory is cold. */
template <int N, int J>
FS_DEVICE void open_rows(fs_tile_state<N, J> *state, const fs_cuda_args &args, int32_t start, int32_t rows) {
    const fs_draw_source source = draw_source(&args.batch, &args.rules);
    for (int32_t b = scorer_thread<J>(); b < N; b += 32 * J) {
        fs_draw draw;
        memset(&draw, 0, sizeof draw);
        draw.status = FS_ROW_SKIPPED;
        if (b < rows) {
            prefetch_l2(&args.work[start + b]);
            const fs_draw_values values = draw_values(&source, args.first_row + start + b);
            draw = draw_of(rules_of_draw(&values)); /* there are no other rules (fs_cuda_plan_next) */
        }
        state->draw[b] = draw;
        state->best[b] = 0;
    }
}

/* From the accumulators of eight warps to shared memory. */
template <int N> FS_DEVICE void put_logits(const float (&d)[N / 2], float *logits, int32_t t) {
    float *to = logits + 2 * (threadIdx.x & 3) * FS_PITCH + t;
#pragma unroll
    for (int i = 0; i < N / 2; i++) to[(i / 4 * 8 + (i & 1)) * FS_PITCH + (i & 2 ? 8 : 0)] = d[i];
}

/* -------------------------------------------------------------------------------------------------------- race ---- */

/* Where ids of a warp's tokens wait. */
template <int N, int J> FS_DEVICE uint32_t *waiting_tokens(fs_tile_state<N, J> *state, int32_t warp) {
    constexpr int MARKS = AHEAD<N, J> ? 0 : N * (int)sizeof(fs_marks); /* (tile_marks) */
    static_assert(MARKS + FS_RACERS * FS_WAITING * 4 <= sizeof state->stash, "the stash holds what waits");
    return (uint32_t *)((char *)state->stash + MARKS) + warp * FS_WAITING;
}

/* The largest logit of a row, of equal ones the first: x and its place in the piece, below 0 if there is none. */
FS_DEVICE int32_t largest_logit(const float *row, uint32_t *flags, float *x) {
    const int32_t lane = threadIdx.x & 31;
    float most = -INFINITY;
    int32_t place = 0;
    bool odd = false;
#pragma unroll
    for (int32_t t = lane; t < FS_CUDA_TILE; t += 32) {
        odd |= row[t] != row[t];
        if (row[t] > most) most = row[t], place = t;
    }
    if (odd) atomicOr(flags, (uint32_t)FS_ROW_NAN);
    const uint32_t own = most > -INFINITY ? ordered_float(most) : 0, top = __reduce_max_sync(~0u, own);
    const uint32_t behind = __reduce_max_sync(~0u, own == top ? FS_CUDA_TILE - (uint32_t)place : 0);
    *x = float_of_ordered(top);
    return top ? FS_CUDA_TILE - (int32_t)behind : -1;
}

/* A marked token in the place of row b's largest logit, where its score is likely to be higher: its mark nearly tells
 * its noise, which others have half a unit of as a rule. Rows that are nearly flat are bounded by marks. */
template <int N, int J>
FS_DEVICE void take_likelier(fs_tile_state<N, J> *state, const float *logits, int32_t first, int32_t b, float *x,
                             uint32_t *id) {
    const fs_draw &draw = state->draw[b];
    if (is_greedy(draw)) return;
    float likely = *x * draw.inverse + 0.5f;
    for_marks(state, b, first, [&](int32_t strip, int32_t place, uint32_t prefix) {
        const int32_t t = 16 * strip + place;
        const float y = logits[b * FS_PITCH + t], l = y * draw.inverse + mark_ceiling(prefix);
        if (l > likely) likely = l, *x = y, *id = id_of<ROW_BITS<N>>((uint32_t)(first + t), b);
    });
}

/* Puts those tokens of row b that may still win, but for `known`, behind `count` others; how many there are then. */
template <int N, int J>
FS_DEVICE int32_t find_survivors(fs_tile_state<N, J> *state, const float *logits, int32_t first, int32_t b,
                                 uint32_t known, uint32_t *waiting, int32_t count) {
    const int32_t lane = threadIdx.x & 31;
    const fs_threshold threshold = threshold_of(*(volatile uint32_t *)&state->best[b], state->draw[b].temperature);
    float low[FS_CUDA_TILE / 32];
#pragma unroll
    for (int32_t i = 0; i < FS_CUDA_TILE / 32; i++) low[i] = threshold_at(threshold, FS_UNMARKED_CEILING);
    for_marks(state, b, first, [&](int32_t strip, int32_t place, uint32_t prefix) {
        const float marked = threshold_at(threshold, mark_ceiling(prefix));
#pragma unroll
        for (int32_t i = 0; i < FS_CUDA_TILE / 32; i++)
            if (16 * strip + place == lane + 32 * i) low[i] = fminf(low[i], marked);
    });
#pragma unroll
    for (int32_t i = 0; i < FS_CUDA_TILE / 32; i++) {
        const uint32_t id = id_of<ROW_BITS<N>>((uint32_t)(first + lane + 32 * i), b);
        const bool may = logits[b * FS_PITCH + lane + 32 * i] > low[i] && id != known;
        const uint32_t who = __ballot_sync(~0u, may);
        if (may) waiting[count + __popc(who & ((1u << lane) - 1))] = id;
        count += __popc(who);
    }
    __syncwarp();
    return count;
}

/* The race of this warp's rows, every FS_RACERS-th, in the piece from `first` on. Nobody else is at these rows. Out of
 * line: both roles are here, and cold instructions come from memory. */
template <int N, int J>
static __device__ __noinline__ void race_rows(fs_tile_state<N, J> *state, const float *logits, fs_cuda_row *work,
                                              int32_t first, int32_t rows) {
    static_assert(N <= 32 * FS_RACERS, "a lane for each row of a warp");
    const int32_t lane = threadIdx.x & 31, warp = (int32_t)threadIdx.x / 32 - 1;
    const fs_shared_scores shared = {(char *)&work->key, (char *)&work->bound, sizeof *work};
    uint32_t id = 0, *waiting = waiting_tokens(state, warp);
    float x = 0.0f;
    fs_survivor pending = {}; /* a lane's, which most likely is overtaken before its exact score is wanted */
    auto settle_pending = [&] {
        if (!pending.token.id || is_overtaken(state, shared, pending.token, false)) return;
        const int32_t b = row_of<ROW_BITS<N>>(pending.token.id);
        atomicMax(key_of(shared, b), (unsigned long long)exact_key<ROW_BITS<N>>(state->draw[b], pending));
    };
    auto score = [&] {
        const int32_t b = row_of<ROW_BITS<N>>(id);
        const fs_survivor found =
            score_token<ROW_BITS<N>>(state->draw[b], &state->best[b], bound_of(shared, b), &work[b].flags, x, id);
        if (!found.token.id) return;
        settle_pending();
        pending = found;
    };
#pragma unroll 1
    for (int32_t b = warp, j = 0; b < rows; b += FS_RACERS, j++) {
        if (!draws(state->draw[b])) continue;
        float most;
        const int32_t place = largest_logit(logits + b * FS_PITCH, &work[b].flags, &most);
        if (lane == j && place >= 0) x = most, id = id_of<ROW_BITS<N>>((uint32_t)(first + place), b);
    }
    if (id) {
        const int32_t b = row_of<ROW_BITS<N>>(id);
        take_likelier(state, logits, first, b, &x, &id);
        score();
        atomicMax(&state->best[b], load_relaxed(bound_of(shared, b)));
    }
    __syncwarp();
    const uint32_t likely = id;
    int32_t count = 0;
#pragma unroll 1
    for (int32_t b = warp, j = 0, over = 0; !over; b += FS_RACERS, j++) {
        over = b >= rows;
        const uint32_t known = __shfl_sync(~0u, likely, j & 31);
        if (!over && known && !is_greedy(state->draw[b]))
            count = find_survivors(state, logits, first, b, known, waiting, count);
#pragma unroll 1
        while (count >= 32 || (over && count > 0)) {
            /* The last lanes first: the first ones have a row's likely token pending. */
            const int32_t from = max(count - 32, 0), place = from + 31 - lane;
            if (place < count) {
                id = waiting[place];
                x = logits[row_of<ROW_BITS<N>>(id) * FS_PITCH + (int32_t)token_of<ROW_BITS<N>>(id) - first];
                score();
            }
            count = from;
            __syncwarp();
        }
    }
    settle_pending();
}

/* ------------------------------------------------------------------------------------------------------ kernel ---- */

template <class T> FS_DEVICE void direct_kernel(const typename T::source &source, const fs_cuda_args &args) {
    constexpr int N = T::N, J = T::SCORERS;
    extern __shared__ __align__(1024) char shared[];
    fs_tile_state<N, J> *state = (fs_tile_state<N, J> *)(shared + T::STATE_START);
    float *logits = (float *)(shared + T::LOGITS_START);
    const uint32_t full = shared_address(shared + T::BARRIER_START), empty = full + 8 * T::STAGES;
    const uint32_t raced = empty + 8 * T::STAGES; /* warps are done with a piece's logits and marks, */
    const uint32_t there = raced + 8;             /* or these are there */
    const int32_t start = block_start(args), rows = min(args.rows - start, args.block_rows);
    fs_cuda_row *work = args.work + start;
    if (is_decided(args)) return;
    if (threadIdx.x == 0) {
        for (int s = 0; s < T::STAGES; s++) {
            barrier_init(full + 8 * s, T::FILLERS);
            barrier_init(empty + 8 * s, FS_STRIPS * T::CLUSTER);
        }
        barrier_init(raced, FS_RACERS);
        barrier_init(there, FS_RACERS);
        barrier_init_fence();
    }
    if (threadIdx.x < 32) named_barrier_pass(2, 32 * (FS_RACERS + 1));
    else named_barrier(2, 32 * (FS_RACERS + 1));
    if constexpr (T::CLUSTER > 1) {
        cluster_arrive(); /* no copy into a CTA whose barriers are not there yet */
        if (threadIdx.x >= 32) cluster_wait();
    }
    auto race = [&](const piece &p, int32_t i) {
        __syncwarp();
        if (threadIdx.x % 32 == 0) barrier_arrive(there);
        barrier_wait(there, i & 1);
        race_rows<N, J>(state, logits, work, p.first, rows);
        __syncwarp();
        if (threadIdx.x % 32 == 0) barrier_arrive(raced);
    };
    if (threadIdx.x < 32 * (4 - J)) T::produce(source, args, shared, {full, empty, 1, 0});
    else if (threadIdx.x < 128) {
        wait_for_earlier_launches();
        let_next_launch_begin(); /* what this launch was given is there for the next one too */
        open_rows(state, args, start, rows);
        walk<T> at(args);
        while (at.next()) {
            if (at.i > 0) barrier_wait(raced, (at.i - 1) & 1);
            for (int32_t b = scorer_thread<J>(); b < rows; b += 32 * J) find_marks(state, b, at.p.first);
            race(at.p, at.i);
        }
    } else {
        const int32_t warp = (int32_t)threadIdx.x / 32 - 4, t = 16 * warp + (int32_t)(threadIdx.x & 31) / 4;
        ring r = {full, empty, 0, 0};
        walk<T> at(args);
        while (at.next()) {
            float d[1][N / 2];
            T::dot(d, &r, args.k_steps, shared, warp);
            transform<N, 1>(d, args.head, false, at.p, t);
            if (at.i > 0) barrier_wait(raced, (at.i - 1) & 1);
            put_logits<N>(d[0], logits, t);
            race(at.p, at.i);
        }
    }
    __syncthreads();
    if constexpr (T::CLUSTER > 1) cluster_arrive();
    if (threadIdx.x == 0) state->last = add_in_order(&work->done, 1) == gridDim.x - 1; /* behind the keys of all */
    __syncthreads();
    if constexpr (T::CLUSTER > 1) cluster_wait(); /* no exit while the other CTA may still send here */
    if (!state->last) return;
    for (int32_t b = threadIdx.x; b < rows && !args.leave_rows; b += 32 * (FS_RACERS + 1))
        end_row<true>(args, state->draw[b], start + b, NULL);
    if (threadIdx.x == 0) work->done = 0;
}

#endif
