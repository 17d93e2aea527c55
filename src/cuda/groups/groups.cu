/* groups.cu - the second, small launch of calls that draw by groups, or need masses or largest logits of stored logits:
 * one warp per row merges the row's records and writes its results. It starts while the first launch ends (programmatic
 * launch), so what it costs is about one memory latency.
 *
 *   record[row][group][slot]  --lane: slots of its groups-->  group mass and winner  --warp-->  token, log Z  */
#include "cuda/cuda_launch.h"
#include "cuda/device/row.cuh"
#include "cuda/stored/blocks.cuh"

namespace {

constexpr int WARPS = 4;

FS_DEVICE fs_group group_empty() {
    fs_group group;
    group.mass = mass_empty();
    group.winner = {FS_KEY_NONE, 0.0f, 0.0f};
    return group;
}

/* Takes records at[0], at[step], ... out of the work memory, below `end`. Several are on their way at once. */
FS_DEVICE void take(fs_group *group, fs_group *at, const fs_group *end, int32_t step) {
    constexpr int AHEAD = 6;
    for (; at < end; at += AHEAD * step) {
        fs_group record[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
            if (at + i * step < end) record[i] = at[i * step];
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            if (at + i * step >= end) continue;
            if (record[i].mass.limb[0]) mass_merge(&group->mass, &record[i].mass);
            if (record[i].winner.key > group->winner.key) group->winner.key = record[i].winner.key;
            at[i * step].mass.limb[0] = 0;
            at[i * step].winner = {FS_KEY_NONE, 0.0f, 0.0f};
        }
    }
}

/* The mass of one group: every lane takes slots. */
FS_DEVICE fs_mass whole_mass(fs_group *record, int32_t slots, int lane) {
    fs_group all = group_empty();
    take(&all, record + lane, record + slots, 32);
    for (int apart = 16; apart; apart /= 2) {
        const fs_mass other = mass_across(all.mass, apart);
        mass_merge(&all.mass, &other);
    }
    return all.mass;
}

/* The largest of the lanes' values; *who: the first that has it. */
FS_DEVICE uint64_t largest(uint64_t value, int *who) {
    uint64_t most = value;
    for (int apart = 16; apart; apart /= 2) {
        const uint64_t other = __shfl_xor_sync(~0u, (unsigned long long)most, apart);
        most = other > most ? other : most;
    }
    *who = __ffs(__ballot_sync(~0u, value == most)) - 1;
    return most;
}

/* 32 groups at a time, a lane each, after what came before them. */
FS_DEVICE void choose_groups(const fs_cuda_args &args, const fs_draw &draw, fs_group *record, int lane,
                             fs_choice *so_far) {
    const int32_t count = args.groups.count, slots = args.groups.slots;
    const int64_t first = args.head.first_token / ((int64_t)args.groups.tiles * FS_CUDA_TILE);
    for (int32_t base = 0; base < count; base += 32) {
        fs_group mine = group_empty();
        const int32_t g = base + lane;
        fs_group *of_group = record + (int64_t)g * slots;
        if (g < count) take(&mine, of_group, of_group + slots, 1);
        fs_choice choice = *so_far;
        fs_mass all;
        const fs_mass before = mass_before(mine.mass, lane, &all);
        mass_merge(&choice.mass, &before);
        choice_add(&choice, &mine, (uint32_t)(first + g), args.batch.mode, draw.noise);
        int who;
        so_far->best = largest(choice.best, &who);
        so_far->chosen.key = __shfl_sync(~0u, (unsigned long long)choice.chosen.key, who);
        so_far->largest.key = largest(choice.largest.key, &who);
        mass_merge(&so_far->mass, &all);
    }
}

/* Twice, because code that is not there need not be fetched, and choosing groups is a third of it (H200, 2026-11: 0.3
 * to 0.6 us of a call with log Z over 1 to 8 rows of stored logits). */
template <bool GROUPED>
__global__ void __launch_bounds__(32 * WARPS) end_rows(const __grid_constant__ fs_cuda_args args) {
    const int lane = threadIdx.x & 31;
    const int32_t b = blockIdx.x * WARPS + threadIdx.x / 32;
    /* Before the pass has ended; what the row asks for was there when the pass began. */
    fs_draw draw = {};
    if (b < args.rows) draw = draw_of_row(args, b);
    wait_for_earlier_launches();
    if (b >= args.rows) return;
    fs_cuda_row *row = &args.work[b];
    fs_group *record = record_of_row(args, 0, b);
    fs_found found = found_nothing();
    found.key = row->key;
    found.flags = row->flags;
    found.max = known_score(row->max);
    if constexpr (GROUPED) {
        fs_choice choice = choice_none();
        const fs_row_rules rules = rules_of(draw);
        choose_groups(args, draw, record, lane, &choice);
        found.key = choice_winner(&choice, group_is_a_law(&rules, found.flags)).key;
        found.mass = choice.mass;
    } else found.mass = whole_mass(record, args.groups.slots, lane);
    if (lane != 0) return;
    if (args.leave_rows) {
        row->seeded = 0;
        row->key = found.key;
        if (!mass_is_empty(&found.mass)) row->odd = found.mass;
        return;
    }
    found.x = args.head.kind == FS_HEAD_LOGITS ? drawn_logit(args, b, found.key)
                                               : logit_of_key(draw, args.needs, found.key);
    write_row(args, draw, plain_needs(args.needs), args.first_row + b, found, false, NULL);
    clear_row(row, needs_mass(args.needs));
}

} // namespace

extern "C" cudaError_t fs_cuda_end_launch(const fs_cuda_args *args, cudaStream_t stream) {
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attribute;
    config.gridDim = dim3((unsigned)((args->rows + WARPS - 1) / WARPS));
    config.blockDim = dim3(32 * WARPS);
    config.stream = stream;
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    config.attrs = &attribute;
    config.numAttrs = args->overlap ? 1 : 0;
    return cudaLaunchKernelEx(&config, args->groups.tiles ? end_rows<true> : end_rows<false>, *args);
}
