/* groups.cuh - draws by groups (core/group.h) of any size, of a row whose logits are in memory.
 *
 *   tokens --warp: blocks of the noise--> parts of groups --thread: its parts--> a group --CTA, in order--> choice
 *
 * There may be as many groups as tokens, so they come in windows that shared memory holds. A large group is the work of
 * several warps, each with a part of its blocks; masses merge exactly, so how many they are changes nothing. */
#ifndef FS_CUDA_ROWS_GROUPS_CUH
#define FS_CUDA_ROWS_GROUPS_CUH

#include "cuda/device/mass.cuh"
#include "cuda/rows/draw.cuh"

#include "core/group.h"

constexpr int GROUP_PARTS = 512; /* of all groups of a window: 20 KB */
static_assert(GROUP_PARTS <= FS_CUDA_TEAM_THREADS, "a thread for each");

struct group_window {
    fs_mass mass[GROUP_PARTS];
    unsigned long long key[GROUP_PARTS]; /* of each part's winner */
    fs_mass of_warp[GROUP_PARTS / 32];   /* masses of 32 groups together */
    fs_choice choice;                    /* over the windows so far */
};

FS_DEVICE uint64_t warp_max(uint64_t value) {
    for (int apart = 16; apart; apart /= 2) {
        const uint64_t other = __shfl_xor_sync(~0u, (unsigned long long)value, apart);
        value = other > value ? other : value;
    }
    return value;
}

/* The token's key; 0 if it is surely below `best`. */
FS_DEVICE uint64_t key_in_group(const row_race &race, uint32_t token, float y, const fs_marks &marks, uint64_t best) {
    const fs_noise &noise = race_of_block()->room.noise[0];
    if (best && !race.greedy && race.kind == FS_NOISE_EXACT) {
        const int32_t prefix = mark_among(marks, noise, token);
        const float most = prefix < 0 ? FS_UNMARKED_CEILING : mark_ceiling((uint32_t)prefix);
        if ((double)(y * race.inverse) + (double)most < score_key_value(best)) return 0;
    }
    return exact_key(token, y, noise);
}

/* A warp's part of the group of tokens low .. high - 1: every `parts`-th block of the noise, from the group's block
 * `part` on. Into place `at` of the window. */
FS_DEVICE void take_part(group_window *window, int32_t at, const row_race &race, int32_t low, int32_t high,
                         int32_t part, int32_t parts) {
    const float inverse = race.inverse;
    const int32_t lane = threadIdx.x % 32;
    fs_mass mass = mass_empty();
    uint64_t best = 0;
    for (int32_t block = low / FS_NOISE_BLOCK + part; block * FS_NOISE_BLOCK < high; block += parts) {
        float four[4];
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int32_t token = block * FS_NOISE_BLOCK + 32 * e + lane;
            four[e] = token >= low && token < high ? race.y.at(token) : -INFINITY;
        }
        const fs_marks marks = marks_of(race_of_block()->room.noise[0], (uint32_t)block);
#pragma unroll 1
        for (int e = 0; e < 4; e++) {
            const float l = four[e] * inverse > -INFINITY ? four[e] * inverse : -INFINITY;
            if (!__any_sync(~0u, l > -INFINITY)) continue;
            add_granules(&mass, l);
            const uint32_t token = (uint32_t)(block * FS_NOISE_BLOCK + 32 * e + lane);
            const uint64_t key = l > -INFINITY ? key_in_group(race, token, four[e], marks, best) : 0;
            best = key > best ? key : best;
        }
        best = warp_max(best); /* which spares the next tokens their noise */
    }
    const fs_mass other = mass_across(mass, 16);
    mass_merge(&mass, &other);
    if (lane == 0) window->mass[at] = mass, window->key[at] = best;
}

/* A thread's group of the window, put together from its parts. */
FS_DEVICE fs_group whole_group(const group_window *window, int32_t first, int32_t parts) {
    fs_group group = {mass_empty(), {FS_KEY_NONE, 0.0f, 0.0f}};
    for (int32_t i = first; i < first + parts; i++) {
        mass_merge(&group.mass, &window->mass[i]);
        if (window->key[i] > group.winner.key) group.winner.key = window->key[i];
    }
    return group;
}

/* Adds the groups of the window, one a thread, to the choice. Each comes after all groups before it. */
FS_DEVICE void choose_in_window(group_window *window, int32_t first, int32_t groups, int32_t parts, int32_t mode,
                                fs_noise noise) {
    const int32_t i = threadIdx.x, warp = i / 32;
    const bool takes_part = i < GROUP_PARTS; /* whole warps */
    fs_choice choice = choice_none();
    fs_group mine = whole_group(window, i * parts, i < groups ? parts : 0);
    if (takes_part) {
        fs_mass all;
        choice.mass = mass_before(mine.mass, i % 32, &all);
        if (i % 32 == 0) window->of_warp[warp] = all;
    }
    __syncthreads();
    if (takes_part) {
        mass_merge(&choice.mass, &window->choice.mass);
        for (int w = 0; w < warp; w++) mass_merge(&choice.mass, &window->of_warp[w]);
        choice_add(&choice, &mine, (uint32_t)(first + i), mode, noise);
    }
    const uint64_t best = block_max(choice.best), largest = block_max(mine.winner.key);
    /* No two groups have the same `best`, and all have read what was chosen so far. */
    if (best && choice.best == best && best > window->choice.best) {
        window->choice.best = best;
        window->choice.chosen = mine.winner;
    }
    if (i != GROUP_PARTS - 1) return;
    window->choice.mass = choice.mass;
    if (largest > window->choice.largest.key) window->choice.largest.key = largest;
}

/* The choice among all groups of the row, into window->choice. */
static __device__ __noinline__ void choose_group(group_window *window, const row_race &race, const fs_batch &batch) {
    const int32_t low = race.y.low, high = race.y.high, size = (int32_t)batch.group_size;
    const int32_t warps = (int32_t)blockDim.x / 32;
    const int32_t end = (high - 1) / size + 1;
    int32_t parts = 1; /* of a group: four blocks each, or more where it has as many parts as there are warps */
    while (parts < warps && 4 * FS_NOISE_BLOCK * parts < min(size, high - low)) parts *= 2;
    if (threadIdx.x == 0) window->choice = choice_none();
    for (int32_t first = low / size; first < end; first += GROUP_PARTS / parts) {
        const int32_t groups = min(GROUP_PARTS / parts, end - first);
        for (int32_t at = threadIdx.x / 32; at < groups * parts; at += warps) {
            const int32_t group = first + at / parts;
            take_part(window, at, race, max(low, group * size), min(high, (group + 1) * size), at % parts, parts);
        }
        __syncthreads();
        choose_in_window(window, first, groups, parts, batch.mode, race_of_block()->room.noise[0]);
        __syncthreads(); /* before the next window takes the place of this one, and the caller reads the choice */
    }
}

#endif
