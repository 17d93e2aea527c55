/* cuda_stored.cu - draws from stored logits [B, V]: all of a draw but the dot product.
 *
 *   CTA: one share of one row. Each of 12 warps takes a stretch of the share, in blocks of 128 ids; a lane has four neighbours.
 *
 *   logits --cp.async--> ring --> four logits --max > threshold?--> score in float --> held by the lane --> one per CTA --> row
 *                                                 ^ (threshold, one per lane)  |
 *                                                 +-- best - largest noise ----+
 *
 * Cost model (H200): reading is everything, 4.45 TB/s or 19 bytes per cycle and SM, which leaves 107 instructions of a
 * warp for a block of 512 bytes; this takes about 50 (counted, sm_90a). Dense noise would take 32 Philox calls per
 * block of 128; marks (core/noise.h) take one, which lane i makes for the i-th of the warp's next 32 blocks, and a
 * logit costs little more than a max. Of 151,936 normal logits 50 to 300 are judged (counted). What is left is latency,
 * the first and the last microseconds, most of it for instructions that are in no cache yet
 * (docs/findings/gpu-instructions.md): rules and logits are on their way early, what all calls need is little code,
 * what few need is out of line, and every row is finished by the last of its own CTAs.
 *
 * Masses (log Z): 16 ids, a granule of core/mass.h, are four lanes; the order of its additions is kept, and between granules sums are
 * integers, so log Z does not depend on the batch, the shares or the shards. */
#define FS_PHILOX static __host__ __device__ __noinline__
#define FS_PHILOX_ROLLED
#include "cuda_blocks.cuh"
#include "cuda_launch.h"
#include "cuda_mass.cuh"
#include "cuda_stored.cuh"
#include "cuda_stored_call.cuh"

namespace {

constexpr int THREADS = 32 * WARPS;
/* CTAs an SM is to run at once: what its shared memory has room for. */
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ == 860 || __CUDA_ARCH__ == 890 || __CUDA_ARCH__ >= 1200)
constexpr int RESIDENT = 1;
#else
constexpr int RESIDENT = 2;
#endif

/* What a lane knows of masses is in shared memory: there are no registers for it across the calls that rate. */
struct purse {
    fs_mass mass;
    float sum; /* of a granule, in units of 2^exponent; not in the mass yet */
    int32_t exponent;
};

/* Shared memory: the desk, the warps' rings, a purse per thread where masses are asked for. */
static_assert(sizeof(desk) % 128 == 0, "slots are copied to in pieces of 16 bytes, fastest from multiples of 128 on");
template <int DTYPE> constexpr int RING = DEPTH<DTYPE> *SLOT<DTYPE>;
template <int DTYPE> constexpr int PURSES_START = (int)sizeof(desk) + WARPS *RING<DTYPE>;
template <int DTYPE, bool MASS> constexpr int BYTES = PURSES_START<DTYPE> + (MASS ? THREADS * (int)sizeof(purse) : 0);
static_assert(BYTES<FS_F32, true> <= 101376 && BYTES<FS_BF16, true> <= 101376, "99 KB: all of sm_86, sm_89 and sm_120");

constexpr int EAGER = 2;    /* blocks of a warp whose tokens are judged at once */
constexpr int PATIENCE = 8; /* later, so many lanes have one first */
constexpr int ASK = 8;      /* blocks between two looks at what other CTAs know of the row */

/* A warp's ring of slots: its shared address. */
template <int DTYPE> FS_DEVICE uint32_t slot_at(uint32_t ring, int32_t i) {
    return ring + i % DEPTH<DTYPE> * SLOT<DTYPE>;
}

/* ------------------------------------------------------------------------------------------------------ load ---- */

/* The warp's lot of blocks begin .. stop - 1, the first of them on their way. Two blocks are one group of copies, whether they are
 * there or not, so that groups can be counted. */
template <int DTYPE>
FS_DEVICE lot open_lot(const seat &at, const stored_row &row, int32_t begin, int32_t stop, uint32_t ring) {
    const int32_t all = stop - begin, warp = own_warp_anew(), quota = all / WARPS, extra = all % WARPS;
    const lot mine = at.warps == 1
                         ? make_lot(row, begin, all)
                         : make_lot(row, begin + warp * quota + min(warp, extra), quota + (warp < extra ? 1 : 0));
#pragma unroll 1
    for (int32_t i = 0; i < DEPTH<DTYPE>; i += 2) {
        fetch_two<DTYPE>(&at.d->data, mine, i, slot_at<DTYPE>(ring, i));
        commit_copies();
    }
    return mine;
}

/* ----------------------------------------------------------------------------------------------------- noise ---- */

/* Thresholds: a logit x of a token with at most this noise can win only if x > level - noise * slope. There is slack for the float
 * products on both sides. Everything but -inf is above without a score so far, and where products would overflow; where the best is
 * +inf another one with a lower id still wins, and so does an x that the temperature makes +inf. */
struct thresholds {
    float level, slope, unmarked; /* unmarked: of tokens without a mark */
};

/* Of a greedy row a lane passes over what only equals the token it holds, whose id is lower: a flat row would rate all it has. */
FS_DEVICE thresholds thresholds_of(const fs_judged_row &row, uint32_t known, float held) {
    const float best = known_score(known), T = row.temperature;
    float level = (best - 1e-5f - 1e-6f * fabsf(best)) * T, slope = T * 1.000001f;
    if (best == INFINITY) level = fminf(3.4e38f, 3.4e38f * T), slope = 0.0f;
    if (!known || !(level < INFINITY) || !(slope < 8e36f)) level = -INFINITY, slope = 0.0f;
    return {level, slope, row.greedy ? fmaxf(level, held) : level - ((float)FS_NOISE_G + 1e-4f) * slope};
}

/* ---------------------------------------------------------------------------------------------------- masses ---- */

/* Adding this to a float rounds it to an integer, held in the low bits. */
#define FS_MASS_MAGIC 12582912.0f

/* exp(l) 2^-R with shift = FS_MASS_MAGIC - R: 2^n 2^f with |f| <= 1/2, so that the bits of a sum do not depend on R. l is not far above
 * R log 2; 0 where it is far below. */
FS_DEVICE float exp_shifted(float l, float shift) {
    const float z = fmaxf(fmaf(l, 1.44269502f, shift), FS_MASS_MAGIC - 100.0f);
    const float n = z - shift;
    const float f =
        fmaf(l, 1.92596299e-8f, fmaf(l, 1.44269502f, -n)); /* l log2(e) - n; the product is exact inside fmaf */
    return exp2_approximate(f) * __int_as_float((__float_as_int(z) << 23) + 0x3F800000);
}

/* The sum of exp over the granule this lane's four tokens are in, in the order of core/mass.h, in units of 2^exponent. The same in its
 * four lanes. NaN has no mass, nor has +inf, which has a flag of its own. */
FS_DEVICE float sum_granule(const float *x, float factor, int32_t *exponent) {
    float l[4];
#pragma unroll
    for (int e = 0; e < 4; e++) {
        l[e] = x[e] * factor;
        if (!(l[e] < INFINITY)) l[e] = -INFINITY;
    }
    float most = fmaxf(fmaxf(l[0], l[1]), fmaxf(l[2], l[3]));
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
    if (most > -INFINITY && fabsf(most) > FS_EXP_LIMIT) {
        most = fminf(fmaxf(most, -FS_EXP_LIMIT), FS_EXP_LIMIT);
#pragma unroll
        for (int e = 0; e < 4; e++)
            if (l[e] > -INFINITY) l[e] = fminf(fmaxf(l[e], -FS_EXP_LIMIT), FS_EXP_LIMIT);
    }
    *exponent = most > -INFINITY ? (int32_t)rintf(most * 1.44269504f) : 0;
    const float shift = FS_MASS_MAGIC - (float)*exponent;
#pragma unroll
    for (int e = 0; e < 4; e++) l[e] = exp_shifted(l[e], shift);
    /* i and i + 8, i and i + 4: two and one lanes apart; then the lane's own, 2 and 1 apart, which by now are other lanes'. */
    float sum = keep_sum(keep_sum(l[0], l[1], 2), keep_sum(l[2], l[3], 2), 1);
    sum += __shfl_xor_sync(~0u, sum, 1);
    return sum + __shfl_xor_sync(~0u, sum, 2);
}

FS_DEVICE void tally(purse *own) {
    fs_mass more = own->mass;
    mass_add(&more, own->sum, own->exponent);
    own->mass = more;
    own->sum = 0.0f;
}

/* The masses of a warp's lanes to its desk; the lanes' start anew. */
FS_DEVICE void hand_in(desk *d, purse *own) {
    fs_mass sum = own->mass;
    own->mass = mass_empty();
#pragma unroll 1
    for (int apart = 16; apart; apart /= 2) {
        const fs_mass other = mass_across(sum, apart);
        mass_merge(&sum, &other);
    }
    if (threadIdx.x % 32 == 0) d->mass[own_warp_anew()] = sum;
}

/* ------------------------------------------------------------------------------------------------------ race ---- */

/* One part of a warp: every block is compared with the thresholds, and summed. Two at a time, the lane's four tokens of each. */
template <int DTYPE, bool MASS>
FS_DEVICE finalist race(const fs_cuda_args &args, const seat &at, const lot &mine, uint32_t ring, float *peak,
                        purse *purse) {
    desk *d = at.d;
    const uint32_t lane = threadIdx.x & 31;
    /* Shared addresses are made from one, when they are needed: there are no registers for more across a call. */
    const uint32_t at_desk = kept_address(d), best = at_desk + (uint32_t)offsetof(desk, best) + 4 * at.team;
    uint32_t known = ~0u; /* ~0: the thresholds have to be made */
    thresholds bar = {0.0f, 0.0f, 0.0f};
    finalist held = {-INFINITY, 0, 0.0f};
    float waiting = 0.0f; /* the logit of a token that waits to be judged, where there is one */
    uint32_t entry = 0;
#pragma unroll 1
    for (int32_t i = 0; i < mine.count; i += 2) {
        if (i % 32 == 0) look_up(d, mine.first + i + lane, i + (int32_t)lane < mine.count);
        const uint32_t slot = slot_at<DTYPE>(ring, i);
        float x[8];
        wait_for_groups<DEPTH<DTYPE> / 2 - 1>();
        __syncwarp(); /* what other lanes have fetched */
        take_two<DTYPE>(x, &d->data, mine, i, slot);
        __syncwarp(); /* all have read before the slots are filled again */
        fetch_two<DTYPE>(&d->data, mine, i + DEPTH<DTYPE>, slot);
        if (i % ASK == 0 && lane == 0 && d->line) { /* what it asked last time has come with the logits of that time */
            const uint32_t seen = shared_address(&d->seen[own_warp_anew()]);
            raise_shared(best, load_shared_4(seen + 8));
            copy_16(seen, d->line);
        }
        commit_copies();

        if (MASS) { /* a lane keeps every fourth sum of its granules, so that one addition serves four blocks */
            const float factor = args.want & FS_CUDA_RAW_MASS ? 1.0f : d->row.inverse;
#pragma unroll
            for (int k = 0; k < 2; k++) {
                int32_t exponent;
                const float granule = sum_granule(x + 4 * k, factor, &exponent);
                if ((i + k ^ lane) % 4 == 0) purse->sum = granule, purse->exponent = exponent;
            }
            if (i % 4 == 2) tally(purse);
        }
        const bool leaving = i + 2 >= mine.count || i % 32 == 30; /* the marks of what waits are about to go */
        for (;;) {
            const uint4 two = load_shared_16(at_desk + (uint32_t)offsetof(desk, marks) +
                                             own_warp() * 32 * sizeof(block_marks) +
                                             i % 32 * (uint32_t)sizeof(block_marks));
            const uint32_t now = load_shared_4(best);
            if (now != known) known = now, bar = thresholds_of(d->row, known, held.x);
            const float low0 = two.x >> lane & 1 ? bar.level - __uint_as_float(two.y) * bar.slope : bar.unmarked;
            const float low1 = two.z >> lane & 1 ? bar.level - __uint_as_float(two.w) * bar.slope : bar.unmarked;
            /* A NaN passes: it is flagged when rated. */
            const float most0 = max_or_nan(max_or_nan(x[0], x[1]), max_or_nan(x[2], x[3]));
            const float most1 = max_or_nan(max_or_nan(x[4], x[5]), max_or_nan(x[6], x[7]));
            *peak = fmaxf(*peak, fmaxf(most0, most1));
            const bool above0 = !(most0 <= low0), above1 = !(most1 <= low1), passes = above0 || above1;
            if (!__any_sync(~0u, passes || (leaving && entry))) break;
            /* Each lane's largest, of two equal ones the first; beside a NaN the first there is. It is -inf from then on. */
            const bool second = above1 && (!above0 || most1 > most0);
            const float y0 = second ? x[4] : x[0], y1 = second ? x[5] : x[1], y2 = second ? x[6] : x[2];
            const float y3 = second ? x[7] : x[3], top = second ? most1 : most0;
            auto is_top = [&](float x) { return !(x < top) && x != -INFINITY; };
            const int32_t place = is_top(y0) ? 0 : is_top(y1) ? 1 : is_top(y2) ? 2 : 3;
            const float y = place == 0 ? y0 : place == 1 ? y1 : place == 2 ? y2 : y3;
            const uint32_t taken = passes ? 1u << place << (second ? 4 : 0) : 0;
#pragma unroll
            for (int e = 0; e < 8; e++) x[e] = taken >> e & 1 ? -INFINITY : x[e];
            *peak = fmaxf(*peak, y);
            /* It waits for more: 32 cost as much as one. At first every one is judged, for the thresholds' sake. */
            const bool full = __any_sync(~0u, passes && entry);
            const int32_t at_block = i + (second ? 1 : 0);
            const uint32_t next = entry_of((mine.first + at_block) * FS_NOISE_BLOCK + 4 * lane + place, at_block % 32);
            if (passes && !full) waiting = y, entry = next;
            if (full || __popc(__ballot_sync(~0u, entry)) >= (i < EAGER || leaving ? 1 : PATIENCE)) {
                held = judge(d, at.team, waiting, entry, held);
                entry = 0;
                if (passes && full) waiting = y, entry = next;
                known = ~0u;
            }
        }
    }
    if (MASS) tally(purse);
    return held;
}

/* ----------------------------------------------------------------------------------------------------- parts ---- */

/* The first block of a team. Products fit: below 2^17 blocks and 2^12 teams. */
FS_DEVICE int32_t share_of_team(const fs_cuda_share &share, int32_t team) {
    return (int32_t)((uint32_t)share.blocks * team / share.teams);
}

/* The index of a team's part within its row: group by group, and within a group team by team. */
FS_DEVICE int64_t part_of_team(const fs_cuda_args &args, const fs_cuda_share &share, int32_t team, int32_t begin) {
    const int32_t size = args.parts.group_tiles;
    if (!size) return team;
    /* The team whose share the group's first block is in. */
    const int32_t block = max(begin / size * size, share.first) - share.first;
    const int32_t first = ((block + 1) * share.teams - 1) / share.blocks;
    return (int64_t)(begin / size - share.first / size) * args.parts.slots + team - first;
}

/* The team's token from those of its lanes: true in the lane of its first warp that has it, in lane 0 where there is none. */
FS_DEVICE bool find_winner(const seat &at, finalist *own) {
    const int32_t lane = threadIdx.x & 31;
    int32_t lead = leader(at.d, at.team, *own);
    if (at.warps > 1) {
        if (lane == max(lead, 0)) at.d->last[own_warp_anew()] = {own->x, lead < 0 ? 0 : own->id, own->most};
        __syncthreads(); /* every warp's finalist, flags, peak */
        if (own_warp() != 0) return false;
        *own = at.d->last[min(lane, WARPS - 1)];
        if (lane >= WARPS) own->id = 0;
        lead = leader(at.d, at.team, *own);
    }
    if (lead < 0) own->id = 0;
    return lane == max(lead, 0);
}

/* Stores what a team has found of a part. */
FS_DEVICE void close_part(const fs_cuda_args &args, const seat &at, int64_t part, finalist own, purse *purse) {
    desk *d = at.d;
    const int32_t b = blockIdx.y;
    hand_in(d, purse);
    const bool winner = find_winner(at, &own);
    __syncwarp(); /* where a warp is a team, its mass is another lane's, and all have read the best before it is cleared */
    if (winner) {
        if (own.id)
            atomicMax(key_on(board_of<false>(args, part), b), (unsigned long long)exact_key(d->row, own.x, own.id - 1));
        d->best[at.team] = 0;
        fs_mass all = d->mass[at.team];
#pragma unroll 1
        for (int32_t i = 1; i < at.warps; i++) mass_merge(&all, &d->mass[i]);
        if (!mass_is_empty(&all)) args.parts.part[(int64_t)b * args.parts.groups * args.parts.slots + part].mass = all;
    }
    team_barrier(at); /* the desk is cleared before the next part */
}

/* Where the part ends that begins at a block. */
FS_DEVICE int32_t part_end(const fs_cuda_args &args, int32_t begin, int32_t end) {
    const int32_t size = args.parts.group_tiles;
    return size ? min(end, (begin / size + 1) * size) : end;
}

/* All parts of a team; the first one's logits are on their way. */
template <int DTYPE>
FS_DEVICE void race_parts(const fs_cuda_args &args, const fs_cuda_share &share, const seat &at, lot mine, uint32_t ring,
                          float *peak, purse *purse) {
    /* Read anew after every part: there are no registers for it across a race. */
    auto look = [&] {
        const uint4 four = load_shared_16(shared_address(&at.d->way[own_warp_anew()]));
        return trip{(int32_t)four.x, (int32_t)four.y, (int32_t)four.z, (int32_t)four.w};
    };
    __syncwarp(); /* the lanes have written it */
    for (trip now = look(); now.begin < now.end;) {
        const finalist own = race<DTYPE, true>(args, at, mine, ring, peak, purse);
        now = look();
        const seat here = {at.d, at.warps == 1 ? own_warp_anew() : 0, at.warps};
        close_part(args, here, part_of_team(args, share, now.team, now.begin), own, purse);
        now.begin = now.stop;
        if (now.begin >= now.end) break;
        now.stop = part_end(args, now.begin, now.end);
        at.d->way[own_warp_anew()] = now;
        __syncwarp();
        mine = open_lot<DTYPE>(at, at.d->data, now.begin, now.stop, ring);
    }
}

/* ------------------------------------------------------------------------------------------------------- row ---- */

/* Results beside the token, or a part for other ranks: they hold the exact score. */
static __device__ __noinline__ void close_stored_row(const fs_cuda_args &args, const fs_judged_row &row, int32_t b,
                                                     uint32_t id, uint32_t flags) {
    uint64_t key = FS_KEY_NONE;
    float x = NAN;
    if (id) x = stored_logit(args, b, id - 1), key = exact_key(row, x, id - 1);
    if (!args.result.logit && !args.result.logprob) x = NAN;
    write_row(args, row, b, {key, flags, NAN, (double)NAN, x}, true);
}

/* What this CTA has found of its row to the row's line. One thread. True in the last of the row's CTAs, with what all found. */
FS_DEVICE bool leave_row(const fs_cuda_args &args, const stored_call &call, const desk *d, int32_t b, finalist *own,
                         uint32_t *flags) {
    fs_cuda_line *line = &args.work->line[b];
    if (*flags) atomicOr(&line->flags, *flags);
    if (own->id) {
        const unsigned long long mine = rough_key(*own), before = atomicMax(&line->rough, mine);
        if (before && !d->row.greedy && are_close(rough_score(before), own->most))
            leave_exact(args, d->row, b, own->x, own->id - 1, 0xFFFFFFu - (uint32_t)(before & 0xFFFFFF));
    }
    if (add_in_order(&line->done, 1u) != (uint32_t)call.share.segments - 1) return false;
    const uint64_t rough = __ldcg(&line->rough), exact = __ldcg(&line->key);
    *flags = __ldcg(&line->flags);
    own->id = rough ? 0x1000000u - (uint32_t)(rough & 0xFFFFFF) : 0;
    /* Whoever came close has left an exact key, and so has the token that is best. */
    if (exact) {
        const float most = rough_score(rough);
        if (!(score_key_value(exact) < (double)most - (double)rough_bound(most))) own->id = 1 + score_key_token(exact);
    }
    clear_line(line, 0);
    line->rough = 0;
    return true;
}

/* Ends a row whose results this launch writes. One thread of the CTA. */
FS_DEVICE void close_row_of(const fs_cuda_args &args, const stored_call &call, const desk *d, int32_t b, finalist own) {
    uint32_t flags = d->flags;
    if (call.share.segments > 1 && !leave_row(args, call, d, b, &own, &flags)) return;
    if (!call.tokens_only) {
        close_stored_row(args, d->row, b, own.id, flags);
        return;
    }
    const uint32_t status = final_status(d->row, flags, own.id != 0);
    write_token(args, call.first_row + b, status & FS_ROW_NO_TOKEN ? args.batch.fallback_token : (int32_t)own.id - 1,
                status, true);
}

/* Where cuda_finish.cu goes on: what is known of the row beside its parts. One thread of the CTA. */
FS_DEVICE void hand_over(const fs_cuda_args &args, const desk *d, int32_t b) {
    fs_cuda_line *line = &args.work->line[b];
    if (d->flags) atomicOr(&line->flags, d->flags);
    if ((args.want & FS_CUDA_PEAK) && d->peak) atomicMax(&line->peak, d->peak);
}

/* ---------------------------------------------------------------------------------------------------- kernel ---- */

template <int DTYPE, bool MASS>
__global__ void __launch_bounds__(THREADS, RESIDENT)
    stored(const __grid_constant__ stored_call call, const __grid_constant__ fs_cuda_args args) {
    extern __shared__ __align__(16) char shared[];
    desk *d = (desk *)shared;
    const fs_cuda_share &share = call.share;
    const int32_t segment = blockIdx.x, b = blockIdx.y, thread = threadIdx.x;
    wait_for_earlier_launches();
    let_next_launch_begin();
    memory_rules rules;
    if (thread == 0 && call.plain_rules) rules = fetch_rules(call, b);
    const stored_row row = find_row(call, args.head, b);
    if (thread / 32 == 1) { /* while the first warp fetches rules */
        const bool shares = share.segments > 1 && !(args.want & FS_CUDA_GROUPS);
        if (thread == 32) {
            d->data = row;
            d->line = shares ? &args.work->line[b] : NULL;
            d->flags = d->peak = 0;
        }
        if (thread < 32 + WARPS) d->best[thread - 32] = 0, d->seen[thread - 32] = make_uint4(0, 0, 0, 0);
    }
    const uint32_t ring = kept_address(shared + sizeof(desk) + own_warp() * RING<DTYPE>);
    /* Groups, which may be one warp's each, come with masses. */
    const seat at = {d, MASS && share.team == 1 ? own_warp() : 0, MASS ? share.team : WARPS};
    const int32_t team = at.warps == 1 ? segment * WARPS + own_warp() : segment;
    const int32_t begin = share.first +
                          (MASS ? share_of_team(share, team) : team * share.quota + min(team, share.extra));
    const int32_t end = MASS ? share.first + share_of_team(share, team + 1)
                             : begin + share.quota + (team < share.extra ? 1 : 0);
    __syncthreads(); /* the desk */
    const int32_t stop = MASS ? part_end(args, begin, end) : end;
    const lot mine = open_lot<DTYPE>(at, row, begin, stop, ring);
    if (MASS) d->way[own_warp()] = {begin, stop, end, team};
    if (threadIdx.x == 0) {
        if (call.plain_rules) d->row = plain_row(call, rules);
        else read_rules(args, &d->row, b);
    }
    __syncthreads(); /* the row */
    const bool drawn = !(d->row.status & FS_ROW_NO_TOKEN);
    float peak = -INFINITY;
    finalist own = {-INFINITY, 0, 0.0f};
    if constexpr (MASS) {
        purse *purse = &((struct purse *)(shared + PURSES_START<DTYPE>))[threadIdx.x];
        *purse = {mass_empty(), 0.0f, 0};
        if (drawn) race_parts<DTYPE>(args, share, at, mine, ring, &peak, purse);
    } else if (drawn) own = race<DTYPE, MASS>(args, at, mine, ring, &peak, NULL);
    wait_for_groups<0>();
    if (args.want & FS_CUDA_PEAK) {
        const uint32_t most = __reduce_max_sync(~0u, peak > -INFINITY ? ordered_float(peak) : 0);
        if (threadIdx.x % 32 == 0 && most) atomicMax(&d->peak, most);
    }
    if constexpr (MASS) {
        __syncthreads(); /* every warp's flags and peak */
        if (threadIdx.x == 0) hand_over(args, d, b);
    } else {
        if (!find_winner(at, &own)) return;
        if (!args.want) close_row_of(args, call, d, b, own);
        else {
            if (own.id) atomicMax(&args.work->line[b].key, (unsigned long long)exact_key(d->row, own.x, own.id - 1));
            hand_over(args, d, b);
        }
    }
}

/* -------------------------------------------------------------------------------------------------- launcher ---- */

typedef void (*kernel)(const stored_call, const fs_cuda_args);

/* By fs_dtype, then without and with masses. */
constexpr kernel kernels[3][2] = {{stored<FS_F32, false>, stored<FS_F32, true>},
                                  {stored<FS_F16, false>, stored<FS_F16, true>},
                                  {stored<FS_BF16, false>, stored<FS_BF16, true>}};
static_assert(FS_F32 == 0 && FS_F16 == 1 && FS_BF16 == 2, "the table is by fs_dtype");

/* Shared memory, the same way. */
constexpr int bytes[3][2] = {{BYTES<FS_F32, false>, BYTES<FS_F32, true>},
                             {BYTES<FS_F16, false>, BYTES<FS_F16, true>},
                             {BYTES<FS_BF16, false>, BYTES<FS_BF16, true>}};

} // namespace

extern "C" cudaError_t fs_cuda_stored_open(int32_t *ctas) {
    *ctas = INT32_MAX;
    for (int dtype = 0; dtype < 3; dtype++)
        for (int masses = 0; masses < 2; masses++) {
            const kernel run = kernels[dtype][masses];
            const int32_t shared = bytes[dtype][masses];
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
    const int masses = args->want & (FS_CUDA_MASS | FS_CUDA_RAW_MASS) ? 1 : 0;
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attribute;
    config.gridDim = dim3((unsigned)plan->share.segments, (unsigned)plan->rows);
    config.blockDim = dim3(THREADS);
    config.dynamicSmemBytes = (size_t)bytes[args->head.dtype][masses];
    config.stream = stream;
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    config.attrs = &attribute;
    config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, kernels[args->head.dtype][masses], call_of(*plan, *args, shaped), *args);
}
