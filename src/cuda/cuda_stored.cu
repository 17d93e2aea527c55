/* cuda_stored.cu - draws from stored logits [B, V]: all of a draw but the dot product.
 *
 *   CTA: one share of one row. Warp w of 12 takes blocks w, w + 12, ... of the share, 128 ids each; a lane has four neighbours.
 *
 *   logits --cp.async--> ring --> four logits --max > threshold?--> queue --32 at a time--> exact scores --> RED.MAX key
 *                                                 ^ (threshold, one per lane)                    |
 *                                                 +---- best so far - largest noise of the ids --+
 *
 * Cost model (H200): reading is everything, 4.45 TB/s or 19 bytes per cycle and SM, which leaves 107 instructions of a warp for a block
 * of 512 bytes; this takes about 50 (counted, sm_90a). Dense noise would take 32 Philox calls per block of 128; marks (core/noise.h) take
 * one, which lane i makes for the i-th of the warp's next 32 blocks, and a logit costs little more than its max. Of 151,936 normal
 * logits 50 to 300 are judged (counted). What is left is latency, the first and the last microseconds: logits are on their way before the
 * row's rules are known, and every row is finished by the last of its own CTAs.
 *
 * Masses (log Z): 16 ids, a granule of core/mass.h, are four lanes; the order of its additions is kept, and between granules sums are
 * integers, so log Z does not depend on the batch, the shares or the shards. */
#include "cuda_blocks.cuh"
#include "cuda_launch.h"
#include "cuda_mass.cuh"
#include "cuda_stored.cuh"

namespace {

constexpr int THREADS = 32 * WARPS;
/* CTAs an SM is to run at once: what its shared memory has room for. */
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ == 860 || __CUDA_ARCH__ == 890 || __CUDA_ARCH__ >= 1200)
constexpr int RESIDENT = 1;
#else
constexpr int RESIDENT = 2;
#endif
constexpr int FIRST = 4; /* blocks in which a warp looks for its first tokens to judge */

/* Shared memory: the desk, the warps' rings, a mass per thread where masses are asked for. */
static_assert(sizeof(desk) % 16 == 0, "slots are copied to and read in pieces of 16 bytes");
template <int DTYPE> constexpr int RING = DEPTH<DTYPE> *SLOT<DTYPE>;
template <int DTYPE> constexpr int MASSES_START = (int)sizeof(desk) + WARPS *RING<DTYPE>;
template <int DTYPE, bool MASS> constexpr int BYTES = MASSES_START<DTYPE> + (MASS ? THREADS * (int)sizeof(fs_mass) : 0);
static_assert(BYTES<FS_F32, true> <= 101376 && BYTES<FS_BF16, true> <= 101376, "99 KB: all of sm_86, sm_89 and sm_120");

/* Blocks of one warp in one part: first, first + step, ... */
struct lot {
    int32_t first, step, count;
};

FS_DEVICE int32_t own_warp() {
    return (int32_t)threadIdx.x / 32;
}

/* A warp's ring of slots: its shared address. */
template <int DTYPE> FS_DEVICE uint32_t slot_at(uint32_t ring, int32_t i) {
    return ring + i % DEPTH<DTYPE> * SLOT<DTYPE>;
}

/* ------------------------------------------------------------------------------------------------------ load ---- */

/* The warp's lot of blocks begin .. stop - 1, the first of them on their way. Two blocks are one group of copies, whether they are
 * there or not, so that groups can be counted. */
template <int DTYPE>
FS_DEVICE lot open_lot(const seat &at, const plain_blocks &plain, int32_t begin, int32_t stop, uint32_t ring) {
    const int32_t first = begin + own_warp() - at.team, left = max(stop - first, 0);
    const lot mine = {first, at.warps, at.warps > 1 ? (left + WARPS - 1) / WARPS : left};
#pragma unroll 1
    for (int32_t i = 0; i < DEPTH<DTYPE>; i += 2) {
        if (i < mine.count)
            fetch_two<DTYPE>(&at.d->data, plain, first + i * at.warps, at.warps, i + 1 < mine.count,
                             slot_at<DTYPE>(ring, i));
        commit_copies();
    }
    return mine;
}

/* ----------------------------------------------------------------------------------------------------- noise ---- */

FS_DEVICE void add_mark(block_marks *marks, uint32_t place, uint32_t prefix) {
    const float ceiling = __uint_as_float(((__float_as_uint(noise_ceiling(prefix)) + 128) & ~127u) | place);
    marks->lanes |= 1u << place / 4;
    marks->ceiling = fmaxf(marks->ceiling, ceiling);
}

/* Each lane looks up the marks of one of the warp's next 32 blocks. Out of line: two places need it. */
static __device__ __noinline__ void look_up(desk *d, int32_t block) {
    const fs_tile_marks drawn = d->row.greedy ? fs_tile_marks{0, 0, {0, 0}} : tile_marks(d->row.noise, (uint32_t)block);
    block_marks marks = {0, 0.0f};
#pragma unroll 1
    for (int32_t i = 0; i < drawn.count; i++)
        add_mark(&marks, mark_place(drawn, i),
                 (i < 2 ? drawn.prefixes[0] : drawn.prefixes[1]) >> (16 * (i & 1)) & 0xFFFF);
    if (drawn.count < 0) {
        fs_walk walk = noise_walk(d->row.noise, (uint32_t)block);
        while (noise_next(&walk)) add_mark(&marks, walk.token & 127, walk.prefix);
    }
    __syncwarp(); /* the last ones have been read */
    d->marks[own_warp()][threadIdx.x & 31] = marks;
    __syncwarp();
}

/* Thresholds: a logit x of a token with at most this noise can win only if x > level - noise * slope. There is slack for the float
 * products on both sides. Without a score so far everything but -inf is above; where the best is +inf another one with a lower id still
 * wins, and so does an x that the temperature makes +inf. */
struct thresholds {
    float level, slope, unmarked; /* unmarked: of tokens without a mark */
};

FS_DEVICE thresholds thresholds_of(const fs_judged_row &row, uint32_t known) {
    const float best = known ? float_of_ordered(known) : -INFINITY, T = row.temperature;
    if (best == INFINITY) {
        const float level = fminf(3.4e38f, 3.4e38f * T);
        return {level, 0.0f, level};
    }
    const float level = (best - 1e-5f - 1e-6f * fabsf(best)) * T, slope = T * 1.000001f;
    return {level, slope, row.greedy ? level : level - ((float)FS_NOISE_G + 1e-4f) * slope};
}

/* ------------------------------------------------------------------------------------------------------ seed ---- */

/* A first score. Each lane proposes the largest logit it has, or a marked token of the block it looked up, whose noise is large for sure:
 * the one decides peaked rows, the other flat ones. A team of one warp judges 32 of them, a larger one the best two of every warp. */
template <int DTYPE>
FS_DEVICE void seed(const fs_cuda_args &args, const seat &at, const plain_blocks &plain, const lot &mine,
                    uint32_t ring) {
    desk *d = at.d;
    const int32_t lane = threadIdx.x & 31, seen = min(mine.count, FIRST);
    const float inverse = d->row.inverse;
    float top = -INFINITY;
    uint32_t token = 0;
    wait_for_groups<(DEPTH<DTYPE> - FIRST) / 2>();
    __syncwarp(); /* what other lanes have fetched */
#pragma unroll 1
    for (int32_t i = 0; i < seen; i += 2) {
        const int32_t block = mine.first + i * mine.step;
        float x[8];
        take_two<DTYPE>(x, &d->data, plain, args.head, block, mine.step, i + 1 < seen, slot_at<DTYPE>(ring, i));
#pragma unroll
        for (int e = 0; e < 8; e++)
            if (x[e] > top) top = x[e], token = (block + e / 4 * mine.step) * FS_NOISE_BLOCK + 4 * lane + e % 4;
    }
    float hope = top * inverse + 1.0f;
    const block_marks *marks = &d->marks[own_warp()][lane];
    if (lane < seen && marks->lanes) {
        const int32_t block = mine.first + lane * mine.step, place = __float_as_int(marks->ceiling) & 127;
        const float x = take_odd<DTYPE>(&d->data, args.head, block, place, slot_at<DTYPE>(ring, lane));
        const float better = x * inverse + marks->ceiling;
        if (better > hope) top = x, token = block * FS_NOISE_BLOCK + place, hope = better;
    }
    if (at.warps == 1) judge_lanes(d, at.team, top, token, false);
    else {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint32_t most = __reduce_max_sync(~0u, ordered_float(hope));
            const int32_t leader = __ffs(__ballot_sync(~0u, ordered_float(hope) == most)) - 1;
            if (lane == leader) {
                d->candidate[2 * own_warp() + i] = make_uint2(__float_as_uint(top), token);
                top = hope = -INFINITY;
            }
        }
        __syncthreads(); /* all candidates before they are judged */
        const uint2 first = d->candidate[lane];
        if (own_warp() == 0) judge_lanes(d, at.team, __uint_as_float(first.x), first.y, false);
    }
    team_barrier(at); /* the first score before it is asked for */
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

/* A lane's mass is in shared memory: there are no registers for it across the calls that judge. */
FS_DEVICE void tally(fs_mass *mass, float sum, int32_t exponent) {
    fs_mass more = *mass;
    mass_add(&more, sum, exponent);
    *mass = more;
}

/* The masses of a warp's lanes to its desk; the lanes' start anew. */
FS_DEVICE void hand_in(desk *d, fs_mass *mass) {
    fs_mass sum = *mass;
    *mass = mass_empty();
#pragma unroll 1
    for (int apart = 16; apart; apart /= 2) {
        const fs_mass other = mass_across(sum, apart);
        mass_merge(&sum, &other);
    }
    if (threadIdx.x % 32 == 0) d->mass[own_warp()] = sum;
}

/* ------------------------------------------------------------------------------------------------------ race ---- */

/* The best of a greedy row so far. Equal logits with higher ids are not queued: a flat row would queue all it has. */
struct tie {
    float x;
    uint32_t token;
};

FS_DEVICE tie tie_of(const desk *d, int32_t team) {
    const uint64_t key = d->row.greedy ? *(const volatile unsigned long long *)&d->key[team] : FS_KEY_NONE;
    return {key ? (float)score_key_value(key) : -INFINITY, score_key_token(key)};
}

FS_DEVICE bool loses(const tie &best, float x, uint32_t token) {
    return x < best.x || (x == best.x && token > best.token);
}

/* One part of a warp: every block is compared with the thresholds, and summed. Two blocks at a time, the lane's four tokens of each. */
template <int DTYPE, bool MASS>
FS_DEVICE void race(const fs_cuda_args &args, const seat &at, const plain_blocks &plain, const lot &mine, uint32_t ring,
                    float *peak, fs_mass *mass) {
    desk *d = at.d;
    const uint32_t lane = threadIdx.x & 31;
    const uint32_t best = kept_address(&d->best[at.team]), marks = kept_address(d->marks[own_warp()]);
    const bool asks = own_warp() == 0 && d->line;
    uint32_t known = 0, hint = 0;
    thresholds bar = thresholds_of(d->row, known);
    float held = 0.0f; /* a granule's sum */
    int32_t held_exponent = 0, block = mine.first;
    look_up(d, block + lane * mine.step);
    seed<DTYPE>(args, at, plain, mine, ring);
#pragma unroll 1
    for (int32_t i = 0; i < mine.count; i += 2, block += 2 * mine.step) {
        if (i % 32 == 0 && i > 0) look_up(d, block + lane * mine.step);
        const uint32_t slot = slot_at<DTYPE>(ring, i);
        float x[8];
        wait_for_groups<DEPTH<DTYPE> / 2 - 1>();
        __syncwarp(); /* what other lanes have fetched */
        take_two<DTYPE>(x, &d->data, plain, args.head, block, mine.step, i + 1 < mine.count, slot);
        __syncwarp(); /* all have read before the slots are filled again */
        if (i + DEPTH<DTYPE> < mine.count)
            fetch_two<DTYPE>(&d->data, plain, block + DEPTH<DTYPE> * mine.step, mine.step,
                             i + 1 + DEPTH<DTYPE> < mine.count, slot);
        commit_copies();

        if (MASS) { /* a lane keeps every fourth sum of its granules, so that one addition serves four blocks */
            const float factor = args.want & FS_CUDA_RAW_MASS ? 1.0f : d->row.inverse;
#pragma unroll
            for (int k = 0; k < 2; k++) {
                int32_t exponent;
                const float granule = sum_granule(x + 4 * k, factor, &exponent);
                if ((i + k ^ lane) % 4 == 0) held = granule, held_exponent = exponent;
            }
            if (i % 4 == 2) tally(mass, held, held_exponent), held = 0.0f;
        }
        if (asks && i % 4 == 0) { /* what other CTAs knew four blocks ago */
            if (lane == 0 && hint) atomicMax(&d->best[at.team], hint);
            hint = load_relaxed(&d->line->hint);
        }
        const uint32_t now = load_shared_4(best);
        if (now != known) known = now, bar = thresholds_of(d->row, known);
        const uint4 two = load_shared_16(marks + i % 32 * (uint32_t)sizeof(block_marks));
        const float low0 = two.x >> lane & 1 ? bar.level - __uint_as_float(two.y) * bar.slope : bar.unmarked;
        const float low1 = two.z >> lane & 1 ? bar.level - __uint_as_float(two.w) * bar.slope : bar.unmarked;
        /* A NaN passes: it is flagged when judged. */
        const float most0 = max_or_nan(max_or_nan(x[0], x[1]), max_or_nan(x[2], x[3]));
        const float most1 = max_or_nan(max_or_nan(x[4], x[5]), max_or_nan(x[6], x[7]));
        *peak = fmaxf(*peak, fmaxf(most0, most1));
        if (__any_sync(~0u, !(most0 <= low0) || !(most1 <= low1))) {
            const uint32_t token = block * FS_NOISE_BLOCK + 4 * lane, apart = mine.step * FS_NOISE_BLOCK;
            const tie last = tie_of(d, at.team);
            uint32_t pass = 0;
#pragma unroll
            for (int e = 0; e < 8; e++) {
                const bool above = !(x[e] <= (e < 4 ? low0 : low1));
                if (above && !loses(last, x[e], token + e % 4 + e / 4 * apart)) pass |= 1u << e;
                *peak = fmaxf(*peak, x[e]); /* the largest of those beside a NaN */
            }
            queue_up(at, x, pass, token, apart);
        }
    }
    if (MASS) tally(mass, held, held_exponent);
}

/* -------------------------------------------------------------------------------------------------- the parts ---- */

/* The index of a team's part within its row: group by group, and within a group team by team. */
FS_DEVICE int64_t part_of_team(const fs_cuda_args &args, const fs_cuda_share &share, int32_t team, int32_t begin) {
    const int32_t size = args.parts.group_tiles;
    if (!size) return team;
    /* The team whose share the group's first block is in. */
    const int32_t block = max(begin / size * size, share.first) - share.first;
    const int32_t first = ((block + 1) * share.teams - 1) / share.blocks;
    return (int64_t)(begin / size - share.first / size) * args.parts.slots + team - first;
}

/* Ends a part: judges what is left in the queue and stores what the team has found. */
template <bool MASS> FS_DEVICE void close_part(const fs_cuda_args &args, const seat &at, int64_t part, fs_mass *mass) {
    desk *d = at.d;
    if (MASS) hand_in(d, mass);
    team_barrier(at); /* every warp has queued what it has */
    if (at.warps == 1 || own_warp() == 0) {
        const uint32_t tail = *(volatile uint32_t *)&d->tail[at.team];
        if (tail % 32) judge_chunk(at, tail / 32, tail % 32);
        if (threadIdx.x % 32 == 0) {
            const unsigned long long key = *(volatile unsigned long long *)&d->key[at.team];
            if (key) atomicMax(key_on(board_of(args, part), d->b), key);
            d->key[at.team] = d->best[at.team] = d->tail[at.team] = 0;
            if (MASS) {
                fs_mass all = d->mass[at.team];
#pragma unroll 1
                for (int32_t i = 1; i < at.warps; i++) mass_merge(&all, &d->mass[i]);
                if (!mass_is_empty(&all))
                    args.parts.part[(int64_t)d->b * args.parts.groups * args.parts.slots + part].mass = all;
            }
        }
    }
    team_barrier(at); /* the desk is cleared before the next part */
}

/* ---------------------------------------------------------------------------------------------------- kernel ---- */

/* What cuda_finish.cuh's close_row is to the fused kernel: the drawn logit is there to be read. */
static __device__ __noinline__ void close_stored_row(const fs_cuda_args &args, const fs_judged_row &row, int32_t b) {
    fs_cuda_line *line = &args.work->line[b];
    const uint64_t key = __ldcg(&line->key);
    const fs_verdict found = {key, __ldcg(&line->flags), NAN, (double)NAN, drawn_logit(args, b, key)};
    write_row(args, row, b, found, true);
    clear_line(line, 0); /* masses are in parts */
}

/* The last to leave a row writes its results, unless a second launch does. One thread, after all of its CTA. */
FS_DEVICE void leave_row(const fs_cuda_args &args, const desk *d, int32_t ctas) {
    const int32_t b = d->b;
    fs_cuda_line *line = &args.work->line[b];
    if (d->flags) atomicOr(&line->flags, d->flags);
    if ((args.want & FS_CUDA_PEAK) && d->peak) atomicMax(&line->peak, d->peak);
    if (args.want) return; /* cuda_finish.cu goes on */
    if (ctas > 1) {
        __threadfence(); /* this CTA's keys and hints before the count */
        if (atomicAdd(&line->done, 1u) != (uint32_t)ctas - 1) return;
        __threadfence(); /* the count before the keys it counts */
    }
    close_stored_row(args, d->row, b);
}

/* Who the row is, while its first logits are on their way; another warp rehearses. */
FS_DEVICE void meet_row(const fs_cuda_args &args, desk *d, int32_t b) {
    if (threadIdx.x == 0) d->row = judged_row(args, b);
    if (own_warp() == 1) {
        if (threadIdx.x == 32) d->blank = {{1, 2, 3}, 1.0f, 1.0f, 0, 0};
        __syncwarp();
        judge_lanes(d, 0, 0.0f, threadIdx.x, true);
    }
    __syncthreads();
}

template <int DTYPE, bool MASS>
__global__ void __launch_bounds__(THREADS, RESIDENT)
    stored(const __grid_constant__ fs_cuda_args args, const __grid_constant__ fs_cuda_share share, int32_t shaped) {
    extern __shared__ __align__(16) char shared[];
    desk *d = (desk *)shared;
    const int32_t b = blockIdx.x / share.segments, segment = blockIdx.x % share.segments;
    const uint32_t ring = kept_address(shared + sizeof(desk) + own_warp() * RING<DTYPE>);
    const seat at = {d, share.team > 1 ? 0 : own_warp(), share.team};
    const int32_t team = share.team > 1 ? segment : segment * WARPS + own_warp();
    /* Products fit: below 2^17 blocks and 2^12 teams. */
    const int32_t end = share.first + (int32_t)((uint32_t)share.blocks * (team + 1) / share.teams);
    int32_t begin = share.first + (int32_t)((uint32_t)share.blocks * team / share.teams);
    const int32_t size = args.parts.group_tiles;
    auto part_end = [&] { return size ? min(end, (begin / size + 1) * size) : end; }; /* of the one at `begin` */
    desk_open(d);
    if (threadIdx.x == 0) {
        const bool alone = share.segments == 1 || (args.want & FS_CUDA_GROUPS);
        d->line = alone ? NULL : &args.work->line[b];
        d->b = b;
        d->data = find_row<DTYPE>(args, b, shaped);
    }
    __syncthreads(); /* the desk */
    const plain_blocks plain = find_plain(d->data);
    int32_t stop = part_end();
    wait_for_earlier_launches();
    let_next_launch_begin();
    lot mine = open_lot<DTYPE>(at, plain, begin, stop, ring);
    meet_row(args, d, b);
    fs_mass *mass = &((fs_mass *)(shared + MASSES_START<DTYPE>))[threadIdx.x];
    if (MASS) *mass = mass_empty();
    float peak = -INFINITY;
    const bool drawn = !(d->row.status & FS_ROW_NO_TOKEN);
    while (drawn && begin < end) {
        race<DTYPE, MASS>(args, at, plain, mine, ring, &peak, mass);
        close_part<MASS>(args, at, part_of_team(args, share, team, begin), mass);
        begin = stop;
        if (begin >= end) break;
        stop = part_end();
        mine = open_lot<DTYPE>(at, plain, begin, stop, ring);
    }
    wait_for_groups<0>();
    const uint32_t most = __reduce_max_sync(~0u, peak > -INFINITY ? ordered_float(peak) : 0);
    if (threadIdx.x % 32 == 0 && most) atomicMax(&d->peak, most);
    __syncthreads(); /* every warp's flags and peak */
    if (threadIdx.x == 0) leave_row(args, d, share.segments);
}

/* -------------------------------------------------------------------------------------------------- launcher ---- */

typedef void (*kernel)(const fs_cuda_args, const fs_cuda_share, int32_t);

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
    config.gridDim = dim3((unsigned)plan->grid);
    config.blockDim = dim3(THREADS);
    config.dynamicSmemBytes = (size_t)bytes[args->head.dtype][masses];
    config.stream = stream;
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    config.attrs = &attribute;
    config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, kernels[args->head.dtype][masses], *args, plan->share, shaped);
}
