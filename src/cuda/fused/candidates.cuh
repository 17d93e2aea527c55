/* candidates.cuh - lists of candidates of rows that are cut, beside the race: consumers list what is not below a row's
 * floor (epilogue.cuh), scorers find the floors (cuda/device/lists.cuh) from the largest logits of all CTAs' first
 * tiles. */
#ifndef FS_CUDA_CANDIDATES_CUH
#define FS_CUDA_CANDIDATES_CUH

#include "cuda/fused/scorer.cuh"

/* ------------------------------------------------------------------------------------------------- consumers ---- */

/* Lists a token that is not below the floor of its row, nor will be when it is edited: in this CTA's segment, as long
 * as it has room. */
template <int N, int J> FS_DEVICE void list_token(fs_tile_state<N, J> *state, float x, int32_t token, int32_t row) {
    float floor = __uint_as_float(state->first_max[row]);
    if (is_raised(state->draw[row])) {
        const float raise = state->args.edits.row[row].raise;
        floor -= raise + (fabsf(floor) + raise) * 1e-6f;
    }
    if (!(x >= floor) || !(x > -INFINITY)) return; /* nor above a NaN */
    const uint32_t place = atomicAdd(&state->listed[row / 2], row & 1 ? 1u << 16 : 1u) >> 16 * (row & 1) & 0xFFFF;
    const fs_cuda_lists &lists = state->args.lists;
    if (place < FS_CUDA_SEGMENT)
        lists.entry[(uint32_t)(row * lists.slots + (int32_t)blockIdx.x) * (uint64_t)FS_CUDA_SEGMENT + place] =
            order_key(x, (uint32_t)token);
}

/* Whether a token of a row with a list is below what can win: it is here to be listed. `low` is its strip's threshold,
 * which tells whether there is a mark, but for -inf: then there may be one. */
template <int N, int J>
FS_DEVICE bool is_only_listed(const fs_tile_state<N, J> *state, float x, float low, int32_t row) {
    if (!is_listed(state->draw[row]) || mark_in(low) >= 0 || !(low > -INFINITY) || is_raised(state->draw[row]))
        return false;
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

/* The floor of row b's list. A warp; out of line, for its instructions to be there when they are needed. */
static __device__ __noinline__ uint32_t find_floor(const fs_cuda_args &args, const fs_draw &draw, int32_t b) {
    return list_floor(args, draw, b);
}

/* The largest logits of this CTA's first tile, for all. */
template <int N, int J> FS_DEVICE void put_most(const fs_cuda_args &args, fs_tile_state<N, J> *state, int32_t first) {
    const fs_cuda_lists &lists = args.lists;
    if (!state->lists) return;
    own_rows<N>(args, state, [&](int32_t b) {
        const uint32_t most = state->first_max[b], place = __float_as_uint(float_of_ordered(most)) & 127;
        if (!is_listed(state->draw[b]) || !most) return;
        float x = first_logit(most);
        if (is_edited(state->draw[b])) x = look_up(args, b, first + (int32_t)place, x);
        if (x > -INFINITY) lists.most[(int64_t)b * lists.slots + blockIdx.x] = ordered_float(x);
    });
    __threadfence(); /* the logits before the count */
    __syncwarp();
    if (threadIdx.x % 32 == 0) atomicAdd(&lists.progress->told, 1u);
}

/* Floors of the lists: each CTA finds those of a few rows when all tiles have told, and takes all of them when they are
 * there. A scorer goes on with that between other work, while consumers are busy with the race in their first tile. */
template <int N, int J> struct fs_floors {
    uint64_t start;
    bool put, taken;

    FS_DEVICE_MEMBER explicit fs_floors(bool none) : start(nanoseconds()), put(false), taken(none) {}

    /* What comes later than this does not come. */
    FS_DEVICE_MEMBER bool is_late(uint32_t patience) const { return nanoseconds() - start > patience; }

    FS_DEVICE_MEMBER void put_own(const fs_cuda_args &args, const fs_tile_state<N, J> *state) {
        const int32_t slots = args.lists.slots;
        if ((int32_t)blockIdx.x + scorer_thread<J>() / 32 * slots < args.rows)
            __threadfence(); /* counts before logits */
#pragma unroll 1
        for (int32_t b = (int32_t)blockIdx.x + scorer_thread<J>() / 32 * slots; b < args.rows; b += J * slots) {
            if (!draws(state->draw[b]) || !is_listed(state->draw[b])) continue;
            const uint32_t floor = find_floor(args, state->draw[b], b);
            if (threadIdx.x % 32 == 0) atomicMax(&args.lists.floor[b], floor);
        }
        put = true;
    }

    /* A floor that does not come is none: then the list is likely to be too long, and its row is open. */
    FS_DEVICE_MEMBER void take_own(const fs_cuda_args &args, fs_tile_state<N, J> *state, bool late) {
        bool there = true;
#pragma unroll 1
        for (int32_t b = scorer_thread<J>(); b < N; b += J * 32) {
            float own = INFINITY;
            if (draws(state->draw[b]) && is_listed(state->draw[b])) {
                const uint32_t floor = load_relaxed(&args.lists.floor[b]);
                own = floor ? float_of_ordered(floor) : -INFINITY;
                there &= floor != 0;
            }
            state->first_max[b] = __float_as_uint(own);
        }
        taken = __all_sync(~0u, there) || late;
    }

    /* A step. True when the floors have just come. */
    FS_DEVICE_MEMBER bool advance(const fs_cuda_args &args, fs_tile_state<N, J> *state, uint32_t patience) {
        if (taken) return false;
        const uint32_t told = load_relaxed(&args.lists.progress->told);
        if (!put && __any_sync(~0u, told == (uint32_t)args.lists.slots * J || is_late(patience / 2)))
            put_own(args, state);
        if (put) take_own(args, state, __any_sync(~0u, is_late(patience)));
        return taken;
    }
};

#endif
