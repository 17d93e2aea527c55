/* masses.cuh - log Z beside the race: sums of exp over a strip's 16 tokens, a granule of device/granules.cuh, and over
 * a tile's eight.
 *
 * Three instructions per logit: with N = 256 registers are so scarce that a longer chain (an exponent of the row's own,
 * split off first) cost 14,000 cycles a tile (H200, 2026-11). */
#ifndef FS_CUDA_MASSES_CUH
#define FS_CUDA_MASSES_CUH

#include "cuda/device/granules.cuh"
#include "cuda/fused/epilogue.cuh"

/* A granule outside the range: with an exponent of its own, into a mass of its own. All lanes; row b is the same in
 * all, and its group of accumulators is stashed. */
template <int N, int J>
FS_DEVICE void odd_granule(fs_tile_state<N, J> *state, fs_mass *into, uint32_t *lock, int32_t strip, int32_t b) {
    const int32_t lane = threadIdx.x & 31;
    const float4 four = state->stash[strip][b >> 3 & 1][(lane & ~3) | (b >> 1 & 3)];
    const float rate = state->rate[b];
    const float low = odd_number((b & 1 ? four.y : four.x) * rate), high = odd_number((b & 1 ? four.w : four.z) * rate);
    float most = fmaxf(low, high);
    for (int apart = 16; apart >= 4; apart /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, apart));
    if (!(most > -INFINITY)) return;
    const float exponent = odd_exponent(most);
    float sum = exp2_approximate(low - exponent) + exp2_approximate(high - exponent);
    for (int apart = 16; apart >= 4; apart /= 2) sum += __shfl_xor_sync(~0u, sum, apart);
    if (lane == 0) row_add_odd(into, lock, sum, (int32_t)exponent);
}

/* The sums of a strip's granules, one per row, into its stash as float[N]; scorers add them up. `absent`: the strip has
 * no token in this tile. */
template <int N, int J>
FS_DEVICE void sum_granules(const float (&d)[N / 2], fs_tile_state<N, J> *state, const fs_cuda_args &args,
                            int64_t record, int32_t strip, bool absent, bool groups) {
    const int32_t column = 2 * (threadIdx.x & 3);
    constexpr int BLOCKS = (N + 31) / 32;
    float sums[BLOCKS];
#pragma unroll
    for (int q = 0; q < BLOCKS; q++) {
        float v[8];
        asm volatile("" ::: "memory"); /* no loads ahead of their block: with N = 256 there is no register to spare */
#pragma unroll
        for (int i = 0; i < 8; i += 2) {
            const int j = 4 * q + i / 2;
            v[i] = v[i + 1] = 0.0f;
            if (j >= N / 8) continue;
            const float2 rate = *(const float2 *)&state->rate[8 * j + column];
            v[i] = exp2_approximate(d[4 * j] * rate.x) + exp2_approximate(d[4 * j + 2] * rate.x);
            v[i + 1] = exp2_approximate(d[4 * j + 1] * rate.y) + exp2_approximate(d[4 * j + 3] * rate.y);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) v[i] = keep_sum(v[i], v[i + 4], 16);
        v[0] = keep_sum(v[0], v[2], 8);
        v[1] = keep_sum(v[1], v[3], 8);
        sums[q] = keep_sum(v[0], v[1], 4);
    }
#pragma unroll 1
    for (int q = 0; q < BLOCKS && !absent; q++) {
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < BLOCKS; i++) sum = i == q ? sums[i] : sum;
        const int32_t own = 32 * q + halved_row();
        const bool drawn = own < N && draws(state->draw[own < N ? own : 0]);
        uint32_t odd = __ballot_sync(~0u, drawn && !granule_is_near(sum));
        for (; odd; odd &= odd - 1) {
            const int32_t b = __shfl_sync(~0u, own, __ffs(odd) - 1);
            stash<N>(d, state->stash[strip], b / 16);
            __syncwarp();
            if (groups) odd_granule(state, &record_of_row(args, record, b)->mass, &state->lock, strip, b);
            else odd_granule(state, &args.work[b].odd, &args.work[b].lock, strip, b);
            __syncwarp();
        }
    }
#pragma unroll
    for (int q = 0; q < BLOCKS; q++) {
        const int32_t own = 32 * q + halved_row();
        if (own < N) ((float *)state->stash[strip])[own] = granule_is_near(sums[q]) ? sums[q] : 0.0f;
    }
}

/* To a CTA's partial mass of a row; what begins in another limb goes to the row at once. */
FS_DEVICE void add_partial(fs_partial_mass *partial, fs_cuda_row *row, float sum) {
    int32_t limb;
    const unsigned long long wide = limbs_of(sum, &limb), low = wide & 0xFFFFFF, high = wide >> 24;
    const fs_partial_mass before = *partial;
    if (!(before.low | before.high) || before.limb == limb) *partial = {before.low + low, before.high + high, limb};
    else row_add_mass(row, limb, low, high);
}

/* Scorers: adds the eight granules of row b in the tile just compared, in one order, to the row's mass or in group
 * modes the record's. */
template <int N, int J>
FS_DEVICE void add_tile_mass(fs_tile_state<N, J> *state, const fs_cuda_args &args, int64_t at, int32_t b, bool groups) {
    float sum = 0.0f;
#pragma unroll
    for (int32_t strip = 0; strip < FS_STRIPS; strip++) sum += ((const float *)state->stash[strip])[b];
    if (!(sum > 0.0f)) return;
    if (!groups) {
        if constexpr (N <= FS_PARTIAL_MASSES) add_partial(&state->mass[b], &args.work[b], sum);
        else {
            int32_t limb;
            const unsigned long long wide = limbs_of(sum, &limb);
            row_add_mass(&args.work[b], limb, wide & 0xFFFFFF, wide >> 24);
        }
        return;
    }
    fs_group *record = record_of_row(args, at, b);
    fs_mass mass = record->mass.limb[0] ? record->mass : mass_empty();
    mass_add(&mass, sum, 0);
    record->mass = mass;
}

/* The CTA's share of row b's mass, when its last tile is over. */
template <int N, int J>
FS_DEVICE void hand_in_mass(const fs_tile_state<N, J> *state, const fs_cuda_args &args, int32_t b) {
    if constexpr (N <= FS_PARTIAL_MASSES) {
        const fs_partial_mass mass = state->mass[b];
        if (mass.low | mass.high) row_add_mass(&args.work[b], mass.limb, mass.low, mass.high);
    }
}

#endif
