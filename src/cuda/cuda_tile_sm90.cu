/* cuda_tile_sm90.cu - the fused kernel for Hopper: logits of 128 tokens x N rows at a time in registers, from W and H streamed
 * through shared memory by the copy engine, compared with a threshold per row and thrown away.
 *
 *   warp 0        producer: one thread fills a ring of stages with W [128, K] and H [N, K] (TMA, 128-byte swizzle)
 *   warps 1-3     judges: thresholds for the next tile, exact scores of survivors (cuda_judge.cuh)
 *   warps 4-11    consumers: two warpgroups of 64 tokens each; wgmma, then one max per logit
 *
 *         W tile --TMA--> ring --wgmma--> accumulators --max > threshold?--> queue --exact--> RED.MAX key in global memory
 *         H tile --TMA-->                                   ^ (threshold, one per row and tile)          |
 *                                                         judges <--------- best so far -----------------+
 *
 * Cost model (H200): below B ~ 175 reading W is everything: 64 KB in flight per SM saturate the memory, so stages only have to
 * cover the epilogue, about 5 us. V is on wgmma's M, so a small batch wastes no tensor time. H is streamed again for every tile from
 * L2; at N >= 128 two CTAs share each H tile by multicast, or L2 would be the limit. Above B ~ 175 the tensor cores are everything
 * and each further instruction beside them costs: hence no noise and no exact score on the consumers' path.
 *
 * One K order for every N: a pair of tiles starts at a K slice that depends on its global token ids alone (spreading CTAs over
 * memory channels), and accumulates in one instruction shape per 16 of K. So a logit does not depend on the batch or the shard. */
#include "cuda_judge.cuh"
#include "cuda_launch.h"
#include "cuda_piece.cuh"
#include "cuda_wgmma.cuh"

#include "core/halves.h"

namespace {

constexpr int THREADS = 384;
constexpr int CONSUMERS = 8; /* warps */
constexpr int ATOM = 64;     /* K elements in 128 bytes, the width of a swizzled row */
constexpr int TURN = 5;      /* slices of 128 in K a pair of tiles starts after its predecessor */
constexpr int BOX = 16;      /* rows of the smaller box of W, for tiles at the ends of a shard */

/* One instantiation: N rows, CLUSTER CTAs that share H, STAGES of ATOMS * 64 in K, INFLIGHT wgmma groups left open. */
template <int ROWS, int CTAS, int DEPTH, int K_ATOMS, int OPEN> struct shape {
    static constexpr int N = ROWS, CLUSTER = CTAS, STAGES = DEPTH, ATOMS = K_ATOMS, INFLIGHT = OPEN;
    /* Groups of a thread's accumulators (see stash), and how many are in one. */
    static constexpr int GROUPS = N > 8 ? N / 16 : 1, PER_GROUP = N > 8 ? 8 : 4;
    static constexpr int W_BYTES = FS_CUDA_TILE * 128 * ATOMS, H_BYTES = N * 128 * ATOMS;
    static constexpr int H_START = STAGES * W_BYTES;
    static constexpr int COURT_START = H_START + STAGES * H_BYTES;
    static constexpr int BARRIER_START = (COURT_START + (int)sizeof(fs_court<N>) + 15) / 16 * 16;
    static constexpr int BYTES = BARRIER_START + (2 * STAGES + 4) * 8;
    static_assert(BYTES <= 232448, "a block of sm_90 has 227 KB of shared memory");
};

/* Barriers between consumers and judges. Once: `opened`, the rows are in shared memory; `crested`, the first tile's largest logits
 * are. Once per tile: `ready`, its thresholds are set; `used`, the consumers are done with them. */
struct rounds {
    uint32_t opened, crested, ready, used;
};

/* -------------------------------------------------------------------------------------------------- producer ---- */

/* load: fills the ring, piece by piece, K slice by K slice. One thread. */
template <class S>
FS_DEVICE void produce(const fs_cuda_maps &maps, const fs_cuda_args &args, char *shared, uint32_t full,
                       uint32_t empty) {
    const uint32_t w0 = shared_address(shared), h0 = w0 + S::H_START;
    const uint32_t rank = S::CLUSTER > 1 ? cluster_rank() : 0;
    int32_t stage = 0;
    uint32_t parity = 1;
    for (int32_t i = 0;; i++) {
        const piece p = piece_at<S::CLUSTER>(args, i);
        if (p.count < 0) return;
        const int32_t boxes = (p.count + BOX - 1) / BOX, row = p.first - (int32_t)args.head.first_token;
        /* The turn counts slices of 128, so that kernels with stages of 64 start at the same element. */
        int32_t k = (int32_t)((int64_t)p.pair * TURN % ((args.head.dim + 127) / 128)) * (2 / S::ATOMS);
        for (int32_t step = 0; step < args.k_steps; step++) {
            const uint32_t barrier = full + 8 * stage;
            barrier_wait(empty + 8 * stage, parity);
            barrier_expect(barrier, S::ATOMS * (boxes * BOX + S::N) * 128);
            for (int atom = 0; atom < S::ATOMS; atom++) {
                const int32_t x = (k * S::ATOMS + atom) * ATOM;
                const uint32_t w = w0 + stage * S::W_BYTES + atom * FS_CUDA_TILE * 128;
                const uint32_t h = h0 + stage * S::H_BYTES + atom * S::N * 128;
                if (boxes == FS_CUDA_TILE / BOX) copy_box(w, &maps.w_tile, barrier, x, row);
                else
                    for (int32_t box = 0; box < boxes; box++)
                        copy_box(w + box * BOX * 128, &maps.w_box, barrier, x, row + box * BOX);
                /* In a cluster each CTA fetches its share of H and sends it to all. */
                if constexpr (S::CLUSTER == 1) copy_box(h, &maps.h, barrier, x, args.first_row);
                else
                    copy_box_to_all(h + rank * (S::N / S::CLUSTER) * 128, &maps.h, barrier, x,
                                    args.first_row + (int32_t)rank * (S::N / S::CLUSTER), (1 << S::CLUSTER) - 1);
            }
            if (++k == args.k_steps) k = 0;
            if (++stage == S::STAGES) stage = 0, parity ^= 1;
        }
    }
}

/* ---------------------------------------------------------------------------------------------------- judges ---- */

/* First tile: a first score for every row, shared by all CTAs, before any survivor is queued: alone, a CTA would let tens of tokens
 * per row through, together two or three. Waits for the others up to what the ring covers; a CTA that is late or not resident is
 * only a looser threshold. */
template <class S> FS_DEVICE void seed(const fs_cuda_args &args, fs_court<S::N> *court, int32_t first, bool rehearse) {
    const int32_t thread = threadIdx.x - 32;
    fs_cuda_work *work = args.work;
    for (int32_t b = thread; b < args.rows; b += FS_JUDGES * 32) seed_row(court, work, b, first, rehearse);
    if (args.patience == 0 || rehearse) return;
    __threadfence(); /* hints before the count */
    named_barrier(1, FS_JUDGES * 32);
    if (thread == 0) {
        atomicAdd(&work->seeded, 1u);
        const uint64_t start = nanoseconds();
        while (load_relaxed(&work->seeded) < gridDim.x && nanoseconds() - start < (uint64_t)args.patience) {
        }
    }
    named_barrier(1, FS_JUDGES * 32);
}

/* Thresholds tile by tile. Survivors are judged while waiting: consumers may be held up by a full queue. */
template <class S> FS_DEVICE void judge(const fs_cuda_args &args, fs_court<S::N> *court, const rounds &turn) {
    const int32_t judge = threadIdx.x / 32 - 1, lane = threadIdx.x & 31;
    fs_docket docket = {(uint32_t)judge, 0};
    for (int32_t i = 0;; i++) {
        const piece p = piece_at<S::CLUSTER>(args, i);
        if (p.count < 0) break;
        for (int32_t b = judge * 32 + lane; b < args.rows; b += FS_JUDGES * 32)
            court->reach[b] = court->row[b].greedy ? 0.0f : judge_reach(court->row[b], p.first, p.count);
        if (i == 0) {
            judge_one(court, args.work, 0.0f, (uint32_t)p.first << 8 | lane % args.rows, true);
            close_row(court, &args, lane % args.rows, true);
        }
        for (bool rehearse = i == 0;; rehearse = false) {
            if (i == 0 && !rehearse) barrier_wait(turn.crested, 0);
            if (i == 0) seed<S>(args, court, p.first, rehearse);
            for (int32_t b = judge * 32 + lane; b < args.rows; b += FS_JUDGES * 32)
                if (!(court->row[b].status & FS_ROW_NO_TOKEN)) set_threshold(court, args.work, b, court->reach[b]);
            if (!rehearse) break;
        }
        __syncwarp();
        if (lane == 0) barrier_arrive(turn.ready);
        /* One lane decides: the others' clocks may run out a moment earlier or later. */
        while (!__shfl_sync(~0u, barrier_wait_for(turn.used, i & 1, 1000), 0)) judge_queue(court, args.work, &docket);
        judge_queue(court, args.work, &docket);
    }
    __threadfence(); /* keys before the count of finished CTAs */
}

/* ------------------------------------------------------------------------------------------------- consumers ---- */

/* A consumer warp's place in the ring. */
struct ring {
    uint32_t full, empty, parity;
    int32_t stage;
};

/* Gives a stage back to every producer that fills it. One arrival per warp and CTA. */
template <class S> FS_DEVICE void release(const ring &r, int32_t stage) {
    const int32_t lane = threadIdx.x & 31;
    if constexpr (S::CLUSTER == 1) {
        if (lane == 0) barrier_arrive(r.empty + 8 * stage);
    } else if (lane < S::CLUSTER) barrier_arrive_at(r.empty + 8 * stage, lane);
}

template <class S> FS_DEVICE void advance(ring *r) {
    if (++r->stage == S::STAGES) r->stage = 0, r->parity ^= 1;
}

/* A warpgroup without tokens in a piece still takes part in the ring. */
template <class S> FS_DEVICE void pass_stages(ring *r, int32_t k_steps) {
    for (int32_t step = 0; step < k_steps; step++) {
        barrier_wait(r->full + 8 * r->stage, r->parity);
        release<S>(*r, r->stage);
        advance<S>(r);
    }
}

/* dot: the accumulators of one piece; w and h are this warpgroup's 64 tokens and all rows in stage 0. With INFLIGHT a stage is given
 * back one step later, when the group of instructions that reads it has ended. */
template <class S, int TYPE>
FS_DEVICE void dot(float (&d)[S::N / 2], ring *r, int32_t k_steps, uint32_t w, uint32_t h) {
    int32_t previous = 0;
    for (int32_t step = 0; step < k_steps; step++) {
        barrier_wait(r->full + 8 * r->stage, r->parity);
        wgmma_fence();
#pragma unroll
        for (int atom = 0; atom < S::ATOMS; atom++)
#pragma unroll
            for (int k16 = 0; k16 < ATOM / 16; k16++)
                fs_wgmma<S::N, TYPE>::run(
                    d, matrix_descriptor(w + r->stage * S::W_BYTES + atom * FS_CUDA_TILE * 128 + k16 * 32),
                    matrix_descriptor(h + r->stage * S::H_BYTES + atom * S::N * 128 + k16 * 32),
                    (step | atom | k16) != 0);
        wgmma_commit();
        wgmma_wait<S::INFLIGHT>();
        if (S::INFLIGHT == 0) release<S>(*r, r->stage);
        else if (step > 0) release<S>(*r, previous);
        previous = r->stage;
        advance<S>(r);
    }
    if (S::INFLIGHT) {
        wgmma_wait<0>();
        release<S>(*r, previous);
    }
    /* The accumulators are final here and not before. */
#pragma unroll
    for (int i = 0; i < S::N / 2; i++) asm volatile("" : "+f"(d[i])::"memory");
}

/* A thread's accumulators: for 8 rows at a time (j), tokens t and t + 8 of its warp's 16, rows 8 j + 2 (lane & 3) + {0, 1}:
 *   d[4 j + 0] (t, row)   d[4 j + 1] (t, row + 1)   d[4 j + 2] (t + 8, row)   d[4 j + 3] (t + 8, row + 1) */

/* transform: tokens past the piece never pass; then bias, rounding, scales and soft-cap where the head has them. */
template <class S>
FS_DEVICE void transform(float (&d)[S::N / 2], const fs_head &head, bool shaped, const piece &p, int32_t t) {
    const bool out0 = t >= p.count, out1 = t + 8 >= p.count;
    if (shaped) {
        const int64_t row = p.first - head.first_token + t;
        const float bias0 = head.bias && !out0 ? head.bias[row] : 0.0f,
                    bias1 = head.bias && !out1 ? head.bias[row + 8] : 0.0f;
#pragma unroll
        for (int i = 0; i < S::N / 2; i++) {
            float x = d[i];
            if (head.bias) x += i & 2 ? bias1 : bias0;
            if (head.round == FS_BF16) x = round_bf16(x);
            if (head.round == FS_F16) x = round_f16(x);
            x *= head.scale;
            if (head.softcap > 0.0f) x = head.softcap * tanhf(x / head.softcap);
            d[i] = x * head.post_scale;
        }
    }
    if (__any_sync(~0u, out1)) {
#pragma unroll
        for (int i = 0; i < S::N / 2; i++)
            if (i & 2 ? out1 : out0) d[i] = -INFINITY;
    }
}

/* A group is two blocks of eight rows: eight accumulators of a thread. Registers cannot be indexed, so rare code gets a group through
 * shared memory and is a real loop: unrolled, it would be tens of kilobytes that are never in the instruction cache when they are
 * needed (H200: 32 us per tile at N = 256). */
template <class S> FS_DEVICE void stash(const float (&d)[S::N / 2], float4 (&to)[2][32], int32_t group) {
    const int32_t lane = threadIdx.x & 31;
#pragma unroll
    for (int g = 0; g < S::GROUPS; g++)
        if (g == group) {
            to[0][lane] = make_float4(d[8 * g], d[8 * g + 1], d[8 * g + 2], d[8 * g + 3]);
            if constexpr (S::N > 8) to[1][lane] = make_float4(d[8 * g + 4], d[8 * g + 5], d[8 * g + 6], d[8 * g + 7]);
        }
}

/* The larger of two keys, one kept by each half of the lanes `apart` apart: halves the keys a lane holds. */
FS_DEVICE uint32_t keep_larger(uint32_t mine, uint32_t theirs, int32_t apart) {
    const bool upper = threadIdx.x & apart;
    const uint32_t sent = __shfl_xor_sync(~0u, upper ? mine : theirs, apart);
    return max(upper ? theirs : mine, sent);
}

/* The largest logit of each row in this warp's 16 tokens and where it is, into court->crest. */
template <class S>
FS_DEVICE void find_crest(const float (&d)[S::N / 2], fs_court<S::N> *court, int32_t rows, int32_t t) {
    const int32_t warp = threadIdx.x / 32 - 4, lane = threadIdx.x & 31;
    auto key = [&](float low, float high) {
        const uint32_t a = low > -INFINITY ? (ordered_float(low) & ~127u) | (127 - t) : 0;
        const uint32_t b = high > -INFINITY ? (ordered_float(high) & ~127u) | (119 - t) : 0;
        return max(a, b);
    };
#pragma unroll 1
    for (int g = 0; g < S::GROUPS; g++) {
        stash<S>(d, court->stash[warp], g);
        const float4 x = court->stash[warp][0][lane];
        const float4 y = S::N > 8 ? court->stash[warp][1][lane]
                                  : make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
        /* Four rows a lane, over the eight lanes that share them: 16 apart two are left, 8 apart one, 4 apart its maximum. */
        const uint32_t m0 = keep_larger(key(x.x, x.z), key(y.x, y.z), 16),
                       m1 = keep_larger(key(x.y, x.w), key(y.y, y.w), 16);
        uint32_t m = keep_larger(m0, m1, 8);
        m = max(m, __shfl_xor_sync(~0u, m, 4));
        const int32_t b = 16 * g + (lane & 16 ? 8 : 0) + 2 * (lane & 3) + (lane & 8 ? 1 : 0);
        if (!(lane & 4) && b < rows && m) atomicMax(&court->crest[b], m);
    }
}

/* reduce: compares every logit with its row's threshold and queues those above. The hot path is one max per logit, a subtraction and a
 * max per two, and no branch. */
template <class S> FS_DEVICE void reduce(const float (&d)[S::N / 2], fs_court<S::N> *court, const piece &p, int32_t t) {
    const int32_t warp = threadIdx.x / 32 - 4, lane = threadIdx.x & 31, column = 2 * (lane & 3);
    uint32_t hot = 0;
#pragma unroll
    for (int g = 0; g < S::GROUPS; g++) {
        float above = -INFINITY;
#pragma unroll
        for (int i = 0; i < S::PER_GROUP / 4; i++) {
            const int j = 2 * g + i;
            const float2 threshold = *(const float2 *)&court->threshold[8 * j + column];
            above = max_or_nan(above, max_or_nan(d[4 * j], d[4 * j + 2]) - threshold.x);
            above = max_or_nan(above, max_or_nan(d[4 * j + 1], d[4 * j + 3]) - threshold.y);
        }
        if (!(above <= 0.0f)) hot |= 1u << g;
    }
    /* Every lane goes through its own hot groups; most warps have none. */
#pragma unroll 1
    for (; hot; hot &= hot - 1) {
        const int32_t g = __ffs(hot) - 1;
        stash<S>(d, court->stash[warp], g);
        uint32_t above = 0;
#pragma unroll
        for (int e = 0; e < S::PER_GROUP; e++) {
            const float x = ((const float *)&court->stash[warp][e / 4][lane])[e % 4];
            const float threshold = court->threshold[16 * g + 8 * (e / 4) + column + (e & 1)];
            /* A NaN passes and is flagged, but not in the columns past the batch, whose threshold is +inf. */
            if (x > threshold || (x != x && threshold < INFINITY)) above |= 1u << e;
        }
        /* All lanes push at once, each its next one. */
#pragma unroll 1
        for (; above; above &= above - 1) {
            const int32_t e = __ffs(above) - 1;
            court_push(court, ((const float *)&court->stash[warp][e / 4][lane])[e % 4], p.first + t + (e & 2 ? 8 : 0),
                       16 * g + 8 * (e / 4) + column + (e & 1));
        }
    }
}

template <class S, int TYPE>
FS_DEVICE void consume(const fs_cuda_args &args, fs_court<S::N> *court, char *shared, bool shaped, ring r,
                       const rounds &turn) {
    const int32_t warp = threadIdx.x / 32 - 4, lane = threadIdx.x & 31, group = warp / 4;
    const int32_t t = warp * 16 + lane / 4; /* this thread's first token in a tile */
    const uint32_t w = shared_address(shared) + group * 64 * 128, h = shared_address(shared) + S::H_START;
    float d[S::N / 2];
    for (int32_t i = 0;; i++) {
        const piece p = piece_at<S::CLUSTER>(args, i);
        if (p.count < 0) return;
        const bool mine = p.count > group * 64;
        if (mine) {
            dot<S, TYPE>(d, &r, args.k_steps, w, h);
            transform<S>(d, args.head, shaped, p, t);
        } else pass_stages<S>(&r, args.k_steps);
        if (i == 0) {
            barrier_wait(turn.opened, 0);
            if (mine) find_crest<S>(d, court, args.rows, t);
            __syncwarp();
            if (lane == 0) barrier_arrive(turn.crested);
        }
        barrier_wait(turn.ready, i & 1);
        if (mine) reduce<S>(d, court, p, t);
        __syncwarp();
        if (lane == 0) barrier_arrive(turn.used);
    }
}

/* ---------------------------------------------------------------------------------------------------- kernel ---- */

template <class S, int TYPE>
__global__ void __launch_bounds__(THREADS, 1)
    fused(const __grid_constant__ fs_cuda_maps maps, const __grid_constant__ fs_cuda_args args, int32_t shaped) {
    extern __shared__ __align__(1024) char shared[];
    fs_court<S::N> *court = (fs_court<S::N> *)(shared + S::COURT_START);
    const uint32_t full = shared_address(shared + S::BARRIER_START), empty = full + 8 * S::STAGES;
    const rounds turn = {empty + 8 * S::STAGES, empty + 8 * S::STAGES + 8, empty + 8 * S::STAGES + 16,
                         empty + 8 * S::STAGES + 24};
    if (threadIdx.x == 0) {
        for (int s = 0; s < S::STAGES; s++) {
            barrier_init(full + 8 * s, 1);
            barrier_init(empty + 8 * s, CONSUMERS * S::CLUSTER);
        }
        barrier_init(turn.opened, FS_JUDGES);
        barrier_init(turn.crested, CONSUMERS);
        barrier_init(turn.ready, FS_JUDGES);
        barrier_init(turn.used, CONSUMERS);
        barrier_init_fence();
    }
    __syncthreads();
    if constexpr (S::CLUSTER > 1) cluster_barrier(); /* no copy into a CTA whose barriers are not there yet */
    wait_for_earlier_launches();

    if (threadIdx.x < 128) {
        give_registers<104>();
        if (threadIdx.x == 0) produce<S>(maps, args, shared, full, empty);
        else if (threadIdx.x >= 32) {
            /* Who the rows are is not needed before the first tile is there. */
            court_open(court, args, threadIdx.x - 32, FS_JUDGES * 32);
            named_barrier(1, FS_JUDGES * 32);
            if (threadIdx.x % 32 == 0) barrier_arrive(turn.opened);
            judge<S>(args, court, turn);
        }
    } else {
        take_registers<200>();
        consume<S, TYPE>(args, court, shared, shaped != 0, ring{full, empty, 0, 0}, turn);
    }
    __syncthreads();
    if constexpr (S::CLUSTER > 1) cluster_barrier(); /* no exit while the other CTA may still send here */
    if (threadIdx.x == 0) {
        __threadfence();
        court->last = atomicAdd(&args.work->done, 1u) == gridDim.x - 1;
    }
    __syncthreads();
    if (court->last) {
        __threadfence(); /* the count before the keys it counts */
        for (int32_t b = threadIdx.x; b < args.rows; b += THREADS) close_row(court, &args, b, false);
        if (threadIdx.x == 0) args.work->done = args.work->seeded = 0;
    }
}

/* -------------------------------------------------------------------------------------------------- launcher ---- */

typedef void (*kernel)(const fs_cuda_maps, const fs_cuda_args, int32_t);

template <class S> constexpr fs_cuda_shape row_of() {
    return {S::N, S::CLUSTER, S::STAGES, S::ATOMS * ATOM, S::BYTES};
}

template <class S> kernel kernel_of(int32_t dtype) {
    return dtype == FS_BF16 ? fused<S, FS_BF16> : fused<S, FS_F16>;
}

/* Narrowest first; cuda_plan.c takes the first that is wide enough. INFLIGHT 1 pays from N = 192 on (0-4 %), not below. */
using s8 = shape<8, 1, 5, 2, 0>;
using s16 = shape<16, 1, 5, 2, 0>;
using s32 = shape<32, 1, 5, 2, 0>;
using s48 = shape<48, 1, 4, 2, 0>;
using s64 = shape<64, 1, 4, 2, 0>;
using s96 = shape<96, 2, 3, 2, 0>;
using s128 = shape<128, 2, 3, 2, 0>;
using s160 = shape<160, 2, 5, 1, 1>;
using s192 = shape<192, 2, 5, 1, 1>;
using s256 = shape<256, 2, 4, 1, 1>;

const fs_cuda_shape shapes[] = {row_of<s8>(),  row_of<s16>(),  row_of<s32>(),  row_of<s48>(),  row_of<s64>(),
                                row_of<s96>(), row_of<s128>(), row_of<s160>(), row_of<s192>(), row_of<s256>()};

kernel choose(int32_t n, int32_t dtype) {
    switch (n) {
    case 8:
        return kernel_of<s8>(dtype);
    case 16:
        return kernel_of<s16>(dtype);
    case 32:
        return kernel_of<s32>(dtype);
    case 48:
        return kernel_of<s48>(dtype);
    case 64:
        return kernel_of<s64>(dtype);
    case 96:
        return kernel_of<s96>(dtype);
    case 128:
        return kernel_of<s128>(dtype);
    case 160:
        return kernel_of<s160>(dtype);
    case 192:
        return kernel_of<s192>(dtype);
    case 256:
        return kernel_of<s256>(dtype);
    default:
        return nullptr;
    }
}

void configure(cudaLaunchConfig_t *config, cudaLaunchAttribute *attribute, const fs_cuda_shape *s, int32_t grid,
               cudaStream_t stream) {
    config->gridDim = dim3((unsigned)grid);
    config->blockDim = dim3(THREADS);
    config->dynamicSmemBytes = (size_t)s->shared_bytes;
    config->stream = stream;
    attribute->id = cudaLaunchAttributeClusterDimension;
    attribute->val.clusterDim.x = (unsigned)s->cluster;
    attribute->val.clusterDim.y = attribute->val.clusterDim.z = 1;
    config->attrs = attribute;
    config->numAttrs = s->cluster > 1 ? 1 : 0;
}

} // namespace

extern "C" const fs_cuda_shape *fs_cuda_sm90_shapes(int32_t *count) {
    *count = sizeof shapes / sizeof shapes[0];
    return shapes;
}

extern "C" cudaError_t fs_cuda_sm90_open(int32_t *clusters_of_two) {
    *clusters_of_two = 0;
    for (const fs_cuda_shape &s : shapes)
        for (int32_t dtype = FS_F16; dtype <= FS_BF16; dtype++) {
            kernel run = choose(s.rows, dtype);
            cudaError_t error = cudaFuncSetAttribute(run, cudaFuncAttributeMaxDynamicSharedMemorySize, s.shared_bytes);
            if (error != cudaSuccess) return error;
            if (s.cluster != 2) continue;
            cudaLaunchConfig_t config = {};
            cudaLaunchAttribute attribute;
            configure(&config, &attribute, &s, 2, 0);
            error = cudaOccupancyMaxActiveClusters(clusters_of_two, run, &config);
            if (error != cudaSuccess) return error;
        }
    return cudaSuccess;
}

extern "C" cudaError_t fs_cuda_sm90_launch(const fs_cuda_plan *plan, const fs_cuda_maps *maps, const fs_cuda_args *args,
                                           cudaStream_t stream) {
    const fs_head &head = args->head;
    int32_t shaped = head.bias || head.round != FS_F32 || head.scale != 1.0f || head.softcap > 0.0f ||
                     head.post_scale != 1.0f;
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attribute;
    configure(&config, &attribute, plan->shape, plan->grid, stream);
    return cudaLaunchKernelEx(&config, choose(plan->shape->rows, head.dtype), *maps, *args, shaped);
}
