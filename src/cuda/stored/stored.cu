/* stored.cu - draws from stored logits [B, V]: all of a draw but the dot product.
 *
 *   CTA: one share of one row. Each of 12 warps takes a stretch of the share, in blocks of 128 ids; a lane has four
 *   neighbours.
 *
 *   logits --cp.async--> ring --> four logits --max > threshold?--> score in float --> pending --> one per CTA --> row
 *                                                 ^ (threshold, one per lane)  |
 *                                                 +-- best - largest noise ----+
 *
 * Cost model (H200): reading is everything, 4.45 TB/s or 19 bytes per cycle and SM, which leaves 107 instructions of a
 * warp for a block of 512 bytes; this takes about 50 (counted, sm_90a). Dense noise would take 32 Philox calls per
 * block of 128; marks (core/noise.h) take one, which lane i makes for the i-th of the warp's next 32 blocks, and a
 * logit costs little more than a max. Of 151,936 normal logits 50 to 300 are scored (counted). What is left is latency,
 * the first and the last microseconds, most of it for instructions that are in no cache yet
 * (docs/notes/gpu-instructions.md): rules and logits are on their way early, what all calls need is little code,
 * what few need is out of line, and every row is finished by the last of its own CTAs. */
#define FS_PHILOX static __host__ __device__ __noinline__
#define FS_PHILOX_ROLLED
#define FS_WALK static __device__ __noinline__
#include "cuda/cuda_launch.h"
#include "cuda/stored/call.cuh"
#include "cuda/stored/masses.cuh"
#include "cuda/stored/state.cuh"

namespace {

constexpr int THREADS = 32 * WARPS;
/* CTAs an SM is to run at once: what its shared memory has room for. */
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ == 860 || __CUDA_ARCH__ == 890 || __CUDA_ARCH__ >= 1200)
constexpr int RESIDENT = 1;
#else
constexpr int RESIDENT = 2;
#endif

/* Shared memory: the state, the warps' rings, a mass per thread where masses are asked for. */
static_assert(sizeof(cta_state) % 128 == 0,
              "slots are copied to in pieces of 16 bytes, fastest from multiples of 128 on");
template <int DTYPE> constexpr int RING = DEPTH<DTYPE> *SLOT<DTYPE>;
template <int DTYPE> constexpr int MASSES_START = (int)sizeof(cta_state) + WARPS *RING<DTYPE>;
template <int DTYPE, bool MASS>
constexpr int BYTES = MASSES_START<DTYPE> + (MASS ? THREADS * (int)sizeof(lane_mass) : 0);
static_assert(BYTES<FS_F32, true> <= 101376 && BYTES<FS_BF16, true> <= 101376, "99 KB: all of sm_86, sm_89 and sm_120");

constexpr int EAGER = 2;    /* blocks of a warp whose tokens are scored at once */
constexpr int PATIENCE = 8; /* later, so many lanes have one first */
constexpr int ASK = 8;      /* blocks between two looks at what other CTAs know of the row */

/* A warp's ring of slots: its shared address. */
template <int DTYPE> FS_DEVICE uint32_t slot_at(uint32_t ring, int32_t i) {
    return ring + i % DEPTH<DTYPE> * SLOT<DTYPE>;
}

/* ------------------------------------------------------------------------------------------------------ load ---- */

/* The warp's stretch of blocks begin .. stop - 1, the first of them on their way. Two blocks are one group of copies,
 * whether they are there or not, so that groups can be counted. */
template <int DTYPE>
FS_DEVICE stretch open_stretch(const place &at, const stored_row &row, int32_t begin, int32_t stop, uint32_t ring) {
    const int32_t all = stop - begin, warp = own_warp_anew(), quota = all / WARPS, extra = all % WARPS;
    const stretch mine =
        at.warps == 1 ? make_stretch(row, begin, all)
                      : make_stretch(row, begin + warp * quota + min(warp, extra), quota + (warp < extra ? 1 : 0));
#pragma unroll 1
    for (int32_t i = 0; i < DEPTH<DTYPE>; i += 2) {
        fetch_two<DTYPE>(&at.cta->data, mine, i, slot_at<DTYPE>(ring, i));
        commit_copies();
    }
    return mine;
}

/* ----------------------------------------------------------------------------------------------------- noise ---- */

/* A lane's thresholds. */
struct lane_threshold {
    fs_threshold of;
    float unmarked; /* of tokens without a mark */
};

/* Of a greedy row a lane passes over what only equals the token it has pending, whose id is lower: a flat row would
 * score all it has. */
FS_DEVICE lane_threshold lane_threshold_of(const fs_draw &draw, uint32_t known, float pending) {
    const fs_threshold of = threshold_of(known, draw.temperature);
    return {of, is_greedy(draw) ? fmaxf(of.level, pending) : threshold_at(of, FS_UNMARKED_CEILING)};
}

/* ------------------------------------------------------------------------------------------------------ race ---- */

/* One record of a warp: every block is compared with the thresholds, and summed. Two at a time, the lane's four tokens
 * of each. */
template <int DTYPE, bool MASS>
FS_DEVICE fs_pending race(const fs_cuda_args &args, const place &at, const stretch &mine, uint32_t ring, float *max_x,
                          lane_mass *mass) {
    cta_state *cta = at.cta;
    const uint32_t lane = threadIdx.x & 31;
    /* Shared addresses are made from one, when they are needed: there are no registers for more across a call. */
    const uint32_t state = kept_address(cta), best = state + (uint32_t)offsetof(cta_state, best) + 4 * at.team;
    uint32_t known = ~0u; /* ~0: the thresholds have to be made */
    lane_threshold threshold = {{0.0f, 0.0f}, 0.0f};
    fs_pending pending = {-INFINITY, 0, 0.0f};
    float waiting = 0.0f; /* the logit of a token that waits to be scored, where there is one */
    uint32_t entry = 0;
#pragma unroll 1
    for (int32_t i = 0; i < mine.count; i += 2) {
        if (i % 32 == 0) look_up(cta, mine.first + i + lane, i + (int32_t)lane < mine.count);
        const uint32_t slot = slot_at<DTYPE>(ring, i);
        float x[8];
        wait_for_groups<DEPTH<DTYPE> / 2 - 1>();
        __syncwarp(); /* what other lanes have fetched */
        take_two<DTYPE>(x, &cta->data, mine, i, slot);
        __syncwarp(); /* all have read before the slots are filled again */
        fetch_two<DTYPE>(&cta->data, mine, i + DEPTH<DTYPE>, slot);
        if (i % ASK == 0 && lane == 0 && cta->row) { /* what it asked last time has come with the logits of that time */
            const uint32_t seen = shared_address(&cta->seen[own_warp_anew()]);
            raise_shared(best, load_shared_4(seen + 8));
            copy_16(seen, cta->row);
        }
        commit_copies();

        if (MASS) { /* a lane keeps every fourth sum of its granules, so that one addition serves four blocks */
            const float factor = args.needs.raw_mass ? 1.0f : cta->draw.inverse;
#pragma unroll
            for (int k = 0; k < 2; k++) {
                int32_t exponent;
                const float granule = sum_granule(x + 4 * k, factor, &exponent);
                if ((i + k ^ lane) % 4 == 0) mass->sum = granule, mass->exponent = exponent;
            }
            if (i % 4 == 2) add_granules(mass);
        }
        const bool leaving = i + 2 >= mine.count || i % 32 == 30; /* the marks of what waits are about to go */
        for (;;) {
            const uint4 two = load_shared_16(state + (uint32_t)offsetof(cta_state, marks) +
                                             (own_warp() * 32 + i % 32) * (uint32_t)sizeof(lane_marks));
            const uint32_t now = load_shared_4(best);
            if (now != known) known = now, threshold = lane_threshold_of(cta->draw, known, pending.x);
            const float low0 = two.x >> lane & 1 ? threshold_at(threshold.of, __uint_as_float(two.y))
                                                 : threshold.unmarked;
            const float low1 = two.z >> lane & 1 ? threshold_at(threshold.of, __uint_as_float(two.w))
                                                 : threshold.unmarked;
            /* A NaN passes: it is flagged when scored. */
            const float most0 = max_or_nan(max_or_nan(x[0], x[1]), max_or_nan(x[2], x[3]));
            const float most1 = max_or_nan(max_or_nan(x[4], x[5]), max_or_nan(x[6], x[7]));
            *max_x = fmaxf(*max_x, fmaxf(most0, most1));
            const bool above0 = !(most0 <= low0), above1 = !(most1 <= low1), passes = above0 || above1;
            if (!__any_sync(~0u, passes || (leaving && entry))) break;
            /* Each lane's largest, of two equal ones the first; beside a NaN the first there is. It is -inf from then
             * on. */
            const bool second = above1 && (!above0 || most1 > most0);
            const float y0 = second ? x[4] : x[0], y1 = second ? x[5] : x[1], y2 = second ? x[6] : x[2];
            const float y3 = second ? x[7] : x[3], top = second ? most1 : most0;
            auto is_top = [&](float x) { return !(x < top) && x != -INFINITY; };
            const int32_t place = is_top(y0) ? 0 : is_top(y1) ? 1 : is_top(y2) ? 2 : 3;
            const float y = place == 0 ? y0 : place == 1 ? y1 : place == 2 ? y2 : y3;
            const uint32_t taken = passes ? 1u << place << (second ? 4 : 0) : 0;
#pragma unroll
            for (int e = 0; e < 8; e++) x[e] = taken >> e & 1 ? -INFINITY : x[e];
            *max_x = fmaxf(*max_x, y);
            /* It waits for more: 32 cost as much as one. At first every one is scored, for the thresholds' sake. */
            const bool full = __any_sync(~0u, passes && entry);
            const int32_t at_block = i + (second ? 1 : 0);
            const uint32_t next = entry_of((mine.first + at_block) * FS_NOISE_BLOCK + 4 * lane + place, at_block % 32);
            if (passes && !full) waiting = y, entry = next;
            if (full || __popc(__ballot_sync(~0u, entry)) >= (i < EAGER || leaving ? 1 : PATIENCE)) {
                pending = score(cta, at.team, waiting, entry, pending);
                entry = 0;
                if (passes && full) waiting = y, entry = next;
                known = ~0u;
            }
        }
    }
    if (MASS) add_granules(mass);
    return pending;
}

/* --------------------------------------------------------------------------------------------------- records ---- */

/* The first block of a team. Products fit: below 2^17 blocks and 2^12 teams. */
FS_DEVICE int32_t share_of_team(const fs_cuda_share &share, int32_t team) {
    return (int32_t)((uint32_t)share.blocks * team / share.teams);
}

/* The index of a team's record within its row: group by group, and within a group team by team. */
FS_DEVICE int64_t record_of_team(const fs_cuda_args &args, const fs_cuda_share &share, int32_t team, int32_t begin) {
    const int32_t size = args.groups.tiles;
    if (!size) return team;
    /* The team whose share the group's first block is in. */
    const int32_t block = max(begin / size * size, share.first) - share.first;
    const int32_t first = ((block + 1) * share.teams - 1) / share.blocks;
    return (int64_t)(begin / size - share.first / size) * args.groups.slots + team - first;
}

/* The team's token from those of its lanes: true in the lane of its first warp that has it, in lane 0 where there is
 * none. */
FS_DEVICE bool find_winner(const place &at, fs_pending *own) {
    const int32_t lane = threadIdx.x & 31;
    int32_t lead = leader(at.cta, at.team, *own);
    if (at.warps > 1) {
        if (lane == max(lead, 0)) at.cta->last[own_warp_anew()] = {own->x, lead < 0 ? 0 : own->id, own->most};
        __syncthreads(); /* every warp's token, flags, max */
        if (own_warp() != 0) return false;
        *own = at.cta->last[min(lane, WARPS - 1)];
        if (lane >= WARPS) own->id = 0;
        lead = leader(at.cta, at.team, *own);
    }
    if (lead < 0) own->id = 0;
    return lane == max(lead, 0);
}

/* Stores what a team has found for a record. */
FS_DEVICE void close_record(const fs_cuda_args &args, const place &at, int64_t record, fs_pending own,
                            lane_mass *mass) {
    cta_state *cta = at.cta;
    const int32_t b = blockIdx.y;
    hand_in(cta, mass);
    const bool winner = find_winner(at, &own);
    /* Where a warp is a team its mass is another lane's; and all have read the best before it is cleared. */
    __syncwarp();
    if (winner) {
        if (own.id)
            atomicMax(key_of(shared_scores<true>(args, record), b),
                      (unsigned long long)exact_key(cta->draw, own.x, own.id - 1));
        cta->best[at.team] = 0;
        fs_mass all = cta->mass[at.team];
#pragma unroll 1
        for (int32_t i = 1; i < at.warps; i++) mass_merge(&all, &cta->mass[i]);
        if (!mass_is_empty(&all)) record_of_row(args, record, b)->mass = all;
    }
    team_barrier(at); /* the state is cleared before the next record */
}

/* Where the record ends that begins at a block. */
FS_DEVICE int32_t record_end(const fs_cuda_args &args, int32_t begin, int32_t end) {
    const int32_t size = args.groups.tiles;
    return size ? min(end, (begin / size + 1) * size) : end;
}

/* All records of a team; the first one's logits are on their way. */
template <int DTYPE>
FS_DEVICE void race_records(const fs_cuda_args &args, const fs_cuda_share &share, const place &at, stretch mine,
                            uint32_t ring, float *max_x, lane_mass *mass) {
    /* Read anew after every record: there are no registers for it across a race. */
    auto look = [&] {
        const uint4 four = load_shared_16(shared_address(&at.cta->way[own_warp_anew()]));
        return progress{(int32_t)four.x, (int32_t)four.y, (int32_t)four.z, (int32_t)four.w};
    };
    __syncwarp(); /* the lanes have written it */
    for (progress now = look(); now.begin < now.end;) {
        const fs_pending own = race<DTYPE, true>(args, at, mine, ring, max_x, mass);
        now = look();
        const place here = {at.cta, at.warps == 1 ? own_warp_anew() : 0, at.warps};
        close_record(args, here, record_of_team(args, share, now.team, now.begin), own, mass);
        now.begin = now.stop;
        if (now.begin >= now.end) break;
        now.stop = record_end(args, now.begin, now.end);
        at.cta->way[own_warp_anew()] = now;
        __syncwarp();
        mine = open_stretch<DTYPE>(at, at.cta->data, now.begin, now.stop, ring);
    }
}

/* ------------------------------------------------------------------------------------------------------- row ---- */

/* What this CTA has found of its row to work memory. One thread. True in the last of the row's CTAs, with what all
 * found. */
FS_DEVICE bool leave_row(const fs_cuda_args &args, const stored_call &call, const cta_state *cta, int32_t b,
                         fs_pending *own, uint32_t *flags) {
    fs_cuda_row *row = &args.work[b];
    if (*flags) atomicOr(&row->flags, *flags);
    if (own->id) {
        const unsigned long long mine = rough_key(*own), before = atomicMax(&row->rough, mine);
        if (before && !is_greedy(cta->draw) && are_close(rough_score(before), own->most))
            leave_exact(args, cta->draw, b, own->x, own->id - 1, 0xFFFFFFu - (uint32_t)(before & 0xFFFFFF));
    }
    if (add_in_order(&row->done, 1u) != (uint32_t)call.share.segments - 1) return false;
    const uint64_t rough = __ldcg(&row->rough), exact = __ldcg(&row->key);
    *flags = __ldcg(&row->flags);
    own->id = rough ? 0x1000000u - (uint32_t)(rough & 0xFFFFFF) : 0;
    /* Whoever came close has left an exact key, and so has the token that is best. */
    if (exact) {
        const float most = rough_score(rough);
        if (!(score_key_value(exact) < (double)most - (double)rough_bound(most))) own->id = 1 + score_key_token(exact);
    }
    clear_row(row, false);
    row->rough = 0;
    return true;
}

/* Results beside the token: they hold the exact score. */
static __device__ __noinline__ void write_all(const fs_cuda_args &args, const fs_draw &draw, int32_t b, uint32_t id,
                                              uint32_t flags) {
    fs_found found = found_nothing();
    found.flags = flags;
    if (id) found.x = stored_logit(args, b, id - 1), found.key = exact_key(draw, found.x, id - 1);
    write_row(args, draw, plain_needs(args.needs), args.first_row + b, found, false, NULL);
}

/* Ends a row whose results this launch writes. One thread of the CTA. */
FS_DEVICE void end_row(const fs_cuda_args &args, const stored_call &call, const cta_state *cta, int32_t b,
                       fs_pending own) {
    uint32_t flags = cta->flags;
    if (call.share.segments > 1 && !leave_row(args, call, cta, b, &own, &flags)) return;
    if (!call.tokens_only) {
        write_all(args, cta->draw, b, own.id, flags);
        return;
    }
    fs_needs needs = {};
    needs.samples = 1;
    fs_found found = found_nothing();
    found.flags = flags;
    if (own.id) found.key = score_key(0.0, own.id - 1); /* nobody asks for the score */
    write_row(args, cta->draw, needs, call.first_row + b, found, true, NULL);
}

/* Where another launch goes on: what is known of the row beside its records. One thread of the CTA. */
FS_DEVICE void hand_over(const fs_cuda_args &args, const cta_state *cta, int32_t b) {
    fs_cuda_row *row = &args.work[b];
    if (cta->flags) atomicOr(&row->flags, cta->flags);
    if (args.needs.max && cta->max) atomicMax(&row->max, cta->max);
}

/* ---------------------------------------------------------------------------------------------------- kernel ---- */

template <int DTYPE, bool MASS>
__global__ void __launch_bounds__(THREADS, RESIDENT)
    stored(const __grid_constant__ stored_call call, const __grid_constant__ fs_cuda_args args) {
    extern __shared__ __align__(16) char shared[];
    cta_state *cta = (cta_state *)shared;
    const fs_cuda_share &share = call.share;
    const int32_t segment = blockIdx.x, b = blockIdx.y, thread = threadIdx.x;
    wait_for_earlier_launches();
    let_next_launch_begin();
    /* Begun before the first logits are: behind these it would take microseconds (H200, 2026-11: 4). */
    fs_draw_values values;
    if (thread == 0 && call.uniform) values = draw_values(&call.source, call.first_row + b);
    const stored_row row = find_row(call, args.head, b);
    if (thread / 32 == 1) { /* while the first warp fetches rules */
        const bool shares = share.segments > 1 && !call.grouped;
        if (thread == 32) {
            cta->data = row;
            cta->row = shares ? &args.work[b] : NULL;
            cta->flags = cta->max = 0;
        }
        if (thread < 32 + WARPS) cta->best[thread - 32] = 0, cta->seen[thread - 32] = make_uint4(0, 0, 0, 0);
    }
    const uint32_t ring = kept_address(shared + sizeof(cta_state) + own_warp() * RING<DTYPE>);
    /* Groups, which may be one warp's each, come with masses. */
    const place at = {cta, MASS && share.team == 1 ? own_warp() : 0, MASS ? share.team : WARPS};
    const int32_t team = at.warps == 1 ? segment * WARPS + own_warp() : segment;
    const int32_t begin = share.first +
                          (MASS ? share_of_team(share, team) : team * share.quota + min(team, share.extra));
    const int32_t end = MASS ? share.first + share_of_team(share, team + 1)
                             : begin + share.quota + (team < share.extra ? 1 : 0);
    __syncthreads(); /* the state */
    const int32_t stop = MASS ? record_end(args, begin, end) : end;
    const stretch mine = open_stretch<DTYPE>(at, row, begin, stop, ring);
    if (MASS) cta->way[own_warp()] = {begin, stop, end, team};
    if (threadIdx.x == 0) {
        if (call.uniform) cta->draw = uniform_draw(call, values);
        else read_draw(args, &cta->draw, b);
    }
    __syncthreads(); /* the row */
    float max_x = -INFINITY;
    fs_pending own = {-INFINITY, 0, 0.0f};
    if constexpr (MASS) {
        lane_mass *mass = &((lane_mass *)(shared + MASSES_START<DTYPE>))[threadIdx.x];
        *mass = {mass_empty(), 0.0f, 0};
        if (draws(cta->draw)) race_records<DTYPE>(args, share, at, mine, ring, &max_x, mass);
    } else if (draws(cta->draw)) own = race<DTYPE, MASS>(args, at, mine, ring, &max_x, NULL);
    wait_for_groups<0>();
    if (call.max) {
        const uint32_t most = __reduce_max_sync(~0u, max_x > -INFINITY ? ordered_float(max_x) : 0);
        if (threadIdx.x % 32 == 0 && most) atomicMax(&cta->max, most);
    }
    if constexpr (MASS) {
        __syncthreads(); /* every warp's flags and max */
        if (threadIdx.x == 0) hand_over(args, cta, b);
    } else {
        if (!find_winner(at, &own)) return;
        if (!call.goes_on) end_row(args, call, cta, b, own);
        else {
            if (own.id) atomicMax(&args.work[b].key, (unsigned long long)exact_key(cta->draw, own.x, own.id - 1));
            hand_over(args, cta, b);
        }
    }
}

/* -------------------------------------------------------------------------------------------------- launcher ---- */

typedef void (*kernel)(const stored_call, const fs_cuda_args);

/* By format, then without and with masses. */
constexpr kernel kernels[FS_FLOAT_FORMATS][2] = {{stored<FS_F32, false>, stored<FS_F32, true>},
                                                 {stored<FS_F16, false>, stored<FS_F16, true>},
                                                 {stored<FS_BF16, false>, stored<FS_BF16, true>}};
static_assert(FS_FORMAT_F32 == 0 && FS_FORMAT_F16 == 1 && FS_FORMAT_BF16 == 2, "the order of the table");

/* Shared memory, the same way. */
constexpr int bytes[FS_FLOAT_FORMATS][2] = {{BYTES<FS_F32, false>, BYTES<FS_F32, true>},
                                            {BYTES<FS_F16, false>, BYTES<FS_F16, true>},
                                            {BYTES<FS_BF16, false>, BYTES<FS_BF16, true>}};

} // namespace

extern "C" cudaError_t fs_cuda_stored_open(int32_t *ctas) {
    *ctas = INT32_MAX;
    for (int format = 0; format < FS_FLOAT_FORMATS; format++)
        for (int masses = 0; masses < 2; masses++) {
            const kernel run = kernels[format][masses];
            const int32_t shared = bytes[format][masses];
            int32_t fit = 0;
            cudaError_t error = cudaFuncSetAttribute(run, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
            if (error == cudaSuccess) /* or the driver may leave room for one CTA only */
                error = cudaFuncSetAttribute(run, cudaFuncAttributePreferredSharedMemoryCarveout,
                                             cudaSharedmemCarveoutMaxShared);
            if (error == cudaSuccess)
                error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&fit, run, THREADS, (size_t)shared);
            if (error != cudaSuccess) return error;
            if (fit < *ctas) *ctas = fit;
        }
    return cudaSuccess;
}

extern "C" cudaError_t fs_cuda_stored_launch(const fs_cuda_stored_plan *plan, const fs_cuda_args *args, int32_t shaped,
                                             cudaStream_t stream) {
    const int masses = args->needs.mass || args->needs.raw_mass;
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attribute;
    config.gridDim = dim3((unsigned)plan->share.segments, (unsigned)plan->rows);
    config.blockDim = dim3(THREADS);
    const int32_t format = format_of(args->head.dtype);
    config.dynamicSmemBytes = (size_t)bytes[format][masses];
    config.stream = stream;
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    config.attrs = &attribute;
    config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, kernels[format][masses], call_of(*plan, *args, shaped), *args);
}
