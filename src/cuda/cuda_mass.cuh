/* cuda_mass.cuh - log Z beside the race: sums of exp over a warp's 16 tokens, which are one granule of core/mass.h.
 *
 * exp(l) is split into 2^n and 2^f, |f| <= 1/2, so that a granule's float sum in units of 2^R is the same bits for any integer R that
 * neither overflows nor loses what counts. Judges choose R below the row's best score, with which hardly a sum overflows; one that
 * does is made again with an R of its own and goes straight to the part. Sums are added by the judges as integers (mass_add), so log Z
 * does not depend on the batch, the tiles or the shards. ex2.approx differs from the CPU's exp by 2^-22: a log Z agrees to 1e-6. */
#ifndef FS_CUDA_MASS_CUH
#define FS_CUDA_MASS_CUH

#include "cuda_epilogue.cuh"

/* Adding this to a float rounds it to an integer, held in the low bits. Shift = this - R. */
#define FS_MASS_MAGIC 12582912.0f
/* R lies this far below the row's best score: noise is below 43, so the row's mass is above 2^R. */
#define FS_MASS_BELOW 43.0f

/* The shift of a row whose best score is known, in units of the logits that are summed; NaN where none is. */
FS_DEVICE float mass_shift(const fs_judged_row &row, float best, bool raw) {
    if (!(best > -INFINITY)) return NAN;
    float l = best - (row.greedy ? 0.0f : FS_MASS_BELOW);
    if (raw) l *= row.temperature;
    return FS_MASS_MAGIC - rintf(fminf(fmaxf(l, -FS_EXP_LIMIT), FS_EXP_LIMIT) * 1.44269504f);
}

/* exp(l) 2^-R + more. +inf or NaN where l is too large for R, or is NaN; 0 more where it is too small. */
FS_DEVICE float add_exp(float l, float shift, float more) {
    const float z = fminf(fmaxf(fmaf(l, 1.44269502f, shift), FS_MASS_MAGIC - 100.0f), FS_MASS_MAGIC + 100.0f);
    const float n = z - shift;
    const float f = fmaf(l, 1.92596299e-8f, fmaf(l, 1.44269502f, -n)); /* l log2(e) - n; the product is exact inside fmaf */
    const float scale = __int_as_float((__float_as_int(z) << 23) + 0x3F800000);
    return fmaf(exp2_approximate(f), scale, more);
}

/* Both tokens of a thread, in the order of core/mass.h: i and i + 8 first. */
FS_DEVICE float add_pair(float low, float high, float factor, float shift) {
    return add_exp(high * factor, shift, add_exp(low * factor, shift, 0.0f));
}

FS_DEVICE float keep_sum(float mine, float theirs, int32_t apart) {
    const bool upper = threadIdx.x & apart;
    const float sent = __shfl_xor_sync(~0u, upper ? mine : theirs, apart);
    return (upper ? theirs : mine) + sent;
}

/* A granule whose sum did not fit: with an exponent of its own, into the part. All lanes; row b is the same in all. */
template <int N>
FS_DEVICE void odd_granule(fs_court<N> *court, fs_group *part, int32_t warp, int32_t b, float factor) {
    const int32_t lane = threadIdx.x & 31;
    const float4 four = court->stash[warp][b >> 3 & 1][(lane & ~3) | (b >> 1 & 3)];
    float low = (b & 1 ? four.y : four.x) * factor, high = (b & 1 ? four.w : four.z) * factor;
    if (!(low < INFINITY)) low = -INFINITY; /* NaN is treated as -inf; +inf has a flag of its own and no mass */
    if (!(high < INFINITY)) high = -INFINITY;
    float most = fmaxf(low, high);
    for (int apart = 16; apart >= 4; apart /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, apart));
    if (!(most > -INFINITY)) return;
    const int32_t exponent = (int32_t)rintf(fminf(fmaxf(most, -FS_EXP_LIMIT), FS_EXP_LIMIT) * 1.44269504f);
    const float shift = FS_MASS_MAGIC - (float)exponent;
    float sum = add_pair(low, high, 1.0f, shift);
    for (int apart = 16; apart >= 4; apart /= 2) sum += __shfl_xor_sync(~0u, sum, apart);
    if (lane != 0) return;
    while (atomicCAS(&court->lock, 0u, 1u)) {
    }
    __threadfence_block();
    fs_mass mass = part->mass.limb[0] ? part->mass : mass_empty();
    mass_add(&mass, sum, exponent);
    part->mass = mass;
    __threadfence_block(); /* the mass before the lock is free */
    atomicExch(&court->lock, 0u);
}

/* The sums of this warp's granules, one per row, into its stash as float[N]; judges add them up. parts is row 0's part at hand, rows
 * `stride` parts apart. */
template <int N>
FS_DEVICE void sum_granules(const float (&d)[N / 2], fs_court<N> *court, int32_t warp, bool raw, fs_group *parts,
                            int64_t stride) {
    const int32_t column = 2 * (threadIdx.x & 3);
    constexpr int BLOCKS = (N + 31) / 32;
    float sums[BLOCKS];
#pragma unroll
    for (int q = 0; q < BLOCKS; q++) {
        float v[8];
        asm volatile("" ::: "memory"); /* no loads ahead of their block: with N = 256 there is no register to spare */
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const int j = 4 * q + i / 2, at = 4 * j + (i & 1);
            v[i] = 0.0f;
            if (at >= N / 2) continue;
            const int32_t b = 8 * j + column + (i & 1);
            v[i] = add_pair(d[at < N / 2 ? at : 0], d[at < N / 2 ? at + 2 : 0], raw ? 1.0f : court->row[b].inverse,
                            court->shift[b]);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) v[i] = keep_sum(v[i], v[i + 4], 16);
        v[0] = keep_sum(v[0], v[2], 8);
        v[1] = keep_sum(v[1], v[3], 8);
        sums[q] = keep_sum(v[0], v[1], 4);
    }
#pragma unroll 1
    for (int q = 0; q < BLOCKS; q++) {
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < BLOCKS; i++) sum = i == q ? sums[i] : sum;
        const int32_t own = 32 * q + halved_row();
        const bool drawn = own < N && !(court->row[own < N ? own : 0].status & FS_ROW_NO_TOKEN);
        uint32_t odd = __ballot_sync(~0u, drawn && !(sum < INFINITY));
        for (; odd; odd &= odd - 1) {
            const int32_t b = __shfl_sync(~0u, own, __ffs(odd) - 1);
            stash<N>(d, court->stash[warp], b / 16);
            __syncwarp();
            odd_granule(court, parts + b * stride, warp, b, raw ? 1.0f : court->row[b].inverse);
            __syncwarp();
        }
    }
#pragma unroll
    for (int q = 0; q < BLOCKS; q++) {
        const int32_t own = 32 * q + halved_row();
        if (own < N) ((float *)court->stash[warp])[own] = sums[q] < INFINITY ? sums[q] : 0.0f;
    }
}

/* Judges: adds the eight granules of row b in the tile just compared to the row's part. */
template <int N> FS_DEVICE void tally_row(const fs_court<N> *court, int32_t b, fs_group *part) {
    const float shift = court->shift[b];
    if (!(shift < INFINITY)) return; /* no score was known: the sums went to the part by themselves */
    fs_mass mass = part->mass.limb[0] ? part->mass : mass_empty();
#pragma unroll 1
    for (int32_t warp = 0; warp < FS_STRIPS; warp++)
        mass_add(&mass, ((const float *)court->stash[warp])[b], (int32_t)(FS_MASS_MAGIC - shift));
    if (!mass_is_empty(&mass)) part->mass = mass;
}

#endif
