/* candidates.cuh - lists of candidates of rows that are cut, beside the race: consumers list what is not below a row's
 * floor, scorers find the floors (cuda/device/lists.cuh) from the largest logits of all CTAs' first tiles. */
#ifndef FS_CUDA_CANDIDATES_CUH
#define FS_CUDA_CANDIDATES_CUH

#include "cuda/fused/scorer.cuh"

/* ------------------------------------------------------------------------------------------------- consumers ---- */

/* Lists a token that is not below the floor of its row's list: in this CTA's segment, as long as it has room. */
template <int N, int J> FS_DEVICE void list_token(fs_tile_state<N, J> *state, float x, int32_t token, int32_t row) {
    if (!(x >= float_of_ordered(state->first_max[row]))) return;
    const int shift = 16 * (row & 1);
    uint32_t *counter = &state->listed[row / 2];
    if ((*(volatile uint32_t *)counter >> shift & 0xFFFF) > FS_CUDA_SEGMENT) return; /* too short, as the count says */
    const uint32_t place = atomicAdd(counter, 1u << shift) >> shift & 0xFFFF;
    const fs_cuda_lists &lists = state->args.lists;
    if (place < FS_CUDA_SEGMENT)
        lists.entry[((int64_t)row * lists.slots + blockIdx.x) * FS_CUDA_SEGMENT + place] =
            order_key(x, (uint32_t)token);
}

/* Whether a token of a row with a list is below what can win: it is here to be listed. `low` is its strip's threshold,
 * which tells whether there is a mark. */
template <int N, int J>
FS_DEVICE bool is_only_listed(const fs_tile_state<N, J> *state, float x, float low, int32_t row) {
    if (!is_listed(state->draw[row]) || mark_in(low) >= 0) return false;
    const uint32_t known = *(const volatile uint32_t *)&state->best[row];
    return x <= threshold_at(threshold_of(known, state->draw[row].temperature), FS_UNMARKED_CEILING);
}

/* --------------------------------------------------------------------------------------------------- scorers ---- */

/* Rows go round the scorers' lanes. Runs f(row) for those of a lane that get a token. */
template <int N, int J, class F>
FS_DEVICE void own_rows(const fs_cuda_args &args, const fs_tile_state<N, J> *state, F f) {
#pragma unroll 1
    for (int32_t b = scorer_thread<J>(); b < args.rows; b += J * 32)
        if (draws(state->draw[b])) f(b);
}

/* The floor of row b's list, for all. A warp. */
template <int N, int J> FS_DEVICE void put_floor(const fs_cuda_args &args, fs_tile_state<N, J> *state, int32_t b) {
    __threadfence(); /* counts before logits */
    const uint32_t floor = list_floor(args, state->draw[b], b);
    if (threadIdx.x % 32 == 0) atomicMax(&args.lists.floor[b], floor);
}

/* The largest logits of this CTA's first tile, for all; and the floors of those rows for which they are then enough. */
template <int N, int J> FS_DEVICE void put_most(const fs_cuda_args &args, fs_tile_state<N, J> *state) {
    const fs_cuda_lists &lists = args.lists;
    for (int32_t first = scorer_thread<J>() / 32 * 32; first < args.rows; first += J * 32) {
        const int32_t b = first + (int32_t)(threadIdx.x % 32);
        bool time = false;
        if (b < args.rows && is_listed(state->draw[b])) {
            const uint32_t most = state->first_max[b];
            if (most) lists.most[(int64_t)b * lists.slots + blockIdx.x] = ordered_float(first_logit(most));
            __threadfence(); /* the logit before the count */
            time = atomicAdd(&lists.there[b], 1u) + 1 == list_need(state->draw[b], b, lists.slots);
        }
        for (uint32_t rows = __ballot_sync(~0u, time); rows; rows &= rows - 1)
            put_floor(args, state, first + __ffs(rows) - 1);
    }
}

/* Floors by all tiles: each CTA has those of a few rows. With patience it waits for the last tile, for rows that have
 * no floor yet; without, it takes what is there to raise them. */
template <int N, int J>
FS_DEVICE void put_floors(const fs_cuda_args &args, fs_tile_state<N, J> *state, int32_t patience) {
    const int32_t warp = scorer_thread<J>() / 32, slots = args.lists.slots;
    const uint64_t start = nanoseconds();
    for (int32_t b = (int32_t)blockIdx.x + warp * slots; b < args.rows; b += J * slots) {
        if (!is_listed(state->draw[b]) || (patience && list_need(state->draw[b], b, slots))) continue;
        while (patience && load_relaxed(&args.lists.there[b]) < (uint32_t)slots &&
               nanoseconds() - start < (uint64_t)patience) {
        }
        __syncwarp();
        put_floor(args, state, b);
    }
}

/* Takes over the floors of this lane's rows: with patience, waits for those that are not there. One that does not come
 * is none: then the list is likely to be too long, and its row is open. */
template <int N, int J>
FS_DEVICE void take_floors(const fs_cuda_args &args, fs_tile_state<N, J> *state, int32_t patience) {
    const uint64_t start = nanoseconds();
    own_rows<N>(args, state, [&](int32_t b) {
        if (!is_listed(state->draw[b])) {
            state->first_max[b] = ~0u;
            return;
        }
        uint32_t floor = load_relaxed(&args.lists.floor[b]);
        while (!floor && nanoseconds() - start < (uint64_t)patience) floor = load_relaxed(&args.lists.floor[b]);
        state->first_max[b] = floor ? floor : ordered_float(-INFINITY);
    });
    __syncwarp();
}

#endif
