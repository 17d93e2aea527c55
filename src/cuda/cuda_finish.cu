/* cuda_finish.cu - the second, small launch of calls that draw by groups, or want masses of stored logits: one warp per row merges the
 * row's parts and writes its results. It starts while the first launch ends (programmatic launch), so what it costs is about one memory
 * latency.
 *
 *   part[row][group][slot]  --lane: slots of its groups-->  group mass and winner  --warp-->  token, log Z  */
#include "cuda_blocks.cuh"
#include "cuda_finish.cuh"
#include "cuda_launch.h"

namespace {

constexpr int WARPS = 4;

/* Over the lanes up to and including this one. */
FS_DEVICE fs_mass mass_scan(fs_mass m, int lane) {
    for (int apart = 1; apart < 32; apart *= 2) {
        fs_mass other;
        other.top = __shfl_up_sync(~0u, m.top, apart);
        for (int i = 0; i < 3; i++) other.limb[i] = __shfl_up_sync(~0u, (unsigned long long)m.limb[i], apart);
        if (lane >= apart) mass_merge(&m, &other);
    }
    return m;
}

FS_DEVICE uint64_t largest_key(uint64_t key) {
    for (int apart = 16; apart; apart /= 2) {
        const uint64_t other = __shfl_xor_sync(~0u, (unsigned long long)key, apart);
        key = other > key ? other : key;
    }
    return key;
}

/* Takes parts at[0], at[step], ... out of the work memory, below `end`. Several are on their way at once. */
FS_DEVICE void take(fs_group *group, fs_group *at, const fs_group *end, int32_t step) {
    constexpr int AHEAD = 6;
    for (; at < end; at += AHEAD * step) {
        fs_group part[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
            if (at + i * step < end) part[i] = at[i * step];
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            if (at + i * step >= end) continue;
            if (part[i].mass.limb[0]) mass_merge(&group->mass, &part[i].mass);
            if (part[i].winner.key > group->winner.key) group->winner.key = part[i].winner.key;
            at[i * step].mass.limb[0] = 0;
            at[i * step].winner = {FS_KEY_NONE, 0.0f, 0.0f};
        }
    }
}

FS_DEVICE fs_group group_empty() {
    fs_group group;
    group.mass = mass_empty();
    group.winner = {FS_KEY_NONE, 0.0f, 0.0f};
    return group;
}

/* One group: every lane takes slots. */
FS_DEVICE fs_group whole_row(fs_group *part, int32_t slots, int lane) {
    fs_group all = group_empty();
    take(&all, part + lane, part + slots, 32);
    for (int apart = 16; apart; apart /= 2) {
        const fs_mass other = mass_across(all.mass, apart);
        mass_merge(&all.mass, &other);
    }
    return all;
}

/* 32 groups at a time, a lane each. The drawn key, and the mass of all. */
FS_DEVICE fs_group choose_group(const fs_cuda_args &args, const fs_judged_row &row, fs_group *part, uint32_t flags,
                                int lane) {
    const int32_t groups = args.parts.groups, slots = args.parts.slots;
    const int64_t first = args.head.first_token / ((int64_t)args.parts.group_tiles * FS_CUDA_TILE);
    const bool lawful = !row.greedy && !(flags & FS_ROW_INF), online = args.batch.mode == FS_MODE_GROUP_ONLINE;
    fs_group all = group_empty();
    uint64_t best = FS_KEY_NONE; /* B.2: score of the best group so far; else the largest key */
    uint64_t own = FS_KEY_NONE;  /* the largest key of this lane's groups */
    for (int32_t base = 0; base < groups; base += 32) {
        fs_group mine = group_empty();
        const int32_t g = base + lane;
        fs_group *of_group = part + (int64_t)g * slots;
        if (g < groups) take(&mine, of_group, of_group + slots, 1);
        fs_mass running = mass_scan(mine.mass, lane);
        const int32_t lanes_before = __shfl_up_sync(~0u, !mass_is_empty(&running), 1);
        const bool preceded = !mass_is_empty(&all.mass) || (lane > 0 && lanes_before);
        mass_merge(&running, &all.mass);
        all.mass.top = __shfl_sync(~0u, running.top, 31);
        for (int i = 0; i < 3; i++) all.mass.limb[i] = __shfl_sync(~0u, (unsigned long long)running.limb[i], 31);
        uint64_t key = mine.winner.key; /* what the lanes compare */
        own = key > own ? key : own;
        if (lawful) {
            key = FS_KEY_NONE;
            const uint32_t index = (uint32_t)(first + g);
            if (!mass_is_empty(&mine.mass)) {
                const double log_mass = mass_log(&mine.mass);
                if (!online) key = score_key(log_mass + noise_gumbel_of(row.noise, index, FS_DOMAIN_GROUP), index);
                else if (!preceded ||
                         noise_unit_of(row.noise, index, FS_DOMAIN_ONLINE) < exp(log_mass - mass_log(&running)))
                    key = (uint64_t)g + 1; /* the last to replace the draw wins */
            }
        }
        const uint64_t top = largest_key(key);
        if (top > best) {
            best = top;
            const int chosen = __ffs(__ballot_sync(~0u, key == top)) - 1;
            all.winner.key = __shfl_sync(~0u, (unsigned long long)mine.winner.key, chosen);
        }
    }
    if (mass_is_far(&all.mass)) all.winner.key = largest_key(own); /* core/group.h says why */
    return all;
}

/* Twice, because code that is not there need not be fetched, and choosing groups is a third of it (H200, 2026-11: 0.3
 * to 0.6 us of a call with log Z over 1 to 8 rows of stored logits). */
template <bool GROUPS> __global__ void __launch_bounds__(32 * WARPS) finish(const __grid_constant__ fs_cuda_args args) {
    const int lane = threadIdx.x & 31;
    const int32_t b = blockIdx.x * WARPS + threadIdx.x / 32;
    /* Before the pass has ended; what the row asks for was there when the pass began. */
    fs_judged_row row = {};
    if (b < args.rows) row = judged_row(args, b);
    wait_for_earlier_launches();
    if (blockIdx.x == 0 && threadIdx.x == 0) args.work->done = args.work->seeded = 0;
    if (b >= args.rows) return;
    fs_cuda_line *line = &args.work->line[b];
    fs_group *part = args.parts.part + (int64_t)b * args.parts.groups * args.parts.slots;
    const fs_cuda_line seen = *line;
    fs_group all;
    if constexpr (GROUPS) all = choose_group(args, row, part, seen.flags, lane);
    else all = whole_row(part, args.parts.slots, lane);
    if (lane != 0) return;
    const uint64_t key = GROUPS ? all.winner.key : (uint64_t)seen.key;
    const fs_verdict found = {key,
                              seen.flags,
                              seen.peak ? float_of_ordered(seen.peak) : -INFINITY,
                              mass_log(&all.mass),
                              drawn_logit(args, b, key),
                              all.mass};
    write_row(args, row, b, found, true);
    clear_line(line, args.want);
}

} // namespace

extern "C" cudaError_t fs_cuda_finish_launch(const fs_cuda_args *args, cudaStream_t stream) {
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attribute;
    config.gridDim = dim3((unsigned)((args->rows + WARPS - 1) / WARPS));
    config.blockDim = dim3(32 * WARPS);
    config.stream = stream;
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    config.attrs = &attribute;
    config.numAttrs = args->overlap ? 1 : 0;
    return cudaLaunchKernelEx(&config, args->want & FS_CUDA_GROUPS ? finish<true> : finish<false>, *args);
}
