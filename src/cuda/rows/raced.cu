/* raced.cu - the end of rows whose race is over: a pass over W has drawn from all tokens of each (fused.cuh) and kept
 * their logits, and what is left is to look at the logits once. What is their mass? Does the winner stay when the row
 * is cut by top-p, what is its rank, which are the best tokens?
 *
 *   slices, a CTA each: mass, who is ahead of the winner --the row's last CTA--> it stays: results
 *                                                                           --> it does not: those ahead race again.cu
 *                                                                           --> that cannot be told: open, for rows.cu
 *
 * Of most rows the winner stays: those ahead of it weigh less than the nucleus. */
#include "cuda/cuda_launch.h"
#include "cuda/device/decided.cuh"
#include "cuda/device/granules.cuh"
#include "cuda/rows/raced.cuh"

namespace {

constexpr int LOOK_WARPS = 12, LOOK_THREADS = 32 * LOOK_WARPS;
constexpr int LOOKED_LIST = 6144; /* tokens of a row that are listed; where there are more the row may be open */
constexpr int FEW = 256;          /* tokens of which the best are sorted */
constexpr int PIECE = 512;        /* tokens that a warp looks at together: each lane has a granule */
constexpr int STAGES = 4;         /* pieces of a warp on their way, or looked at */

/* A row in the shared memory of each of its CTAs. */
struct looked_row : raced_row {
    bool odd;      /* there are numbers that are none, or infinite */
    float best;    /* tokens are listed from here on: the best are not below */
    float rate;    /* of the mass that is summed; 0: none is */
    uint32_t last; /* of the row's CTAs, this one is */
    uint64_t barrier[LOOK_WARPS * STAGES];
    unsigned long long limb[8]; /* of this CTA's mass, as those of fs_cuda_row */
    uint32_t few;
    uint32_t most[32 * LIST_LANES]; /* largest logits of parts, ordered */
    unsigned long long found[FEW], sorted[FS_CUDA_BEST];
};

/* ------------------------------------------------------------------------------------------------------ slices ---- */

/* A warp's part of a slice of a row's logits: pieces, of which the next ones are on their way to shared memory. */
struct raced_slice {
    const float *row;
    uint32_t to, barrier; /* of the warp's first stage */
    const float *stage;
    int32_t tokens;     /* of the row */
    int32_t piece, end; /* the warp's next one of the row's, those of its slice end */
    int32_t turn = 0;   /* pieces it has looked at */

    FS_DEVICE_MEMBER raced_slice(const fs_cuda_args &args, int32_t b, int32_t slice, char *shared, uint64_t *barriers) {
        const int32_t warp = threadIdx.x / 32;
        const int64_t end_token = min(args.head.first_token + args.head.rows, (int64_t)args.vocab);
        row = kept_logits(args, b);
        stage = (const float *)shared + warp * STAGES * PIECE;
        to = shared_address(stage);
        barrier = shared_address(&barriers[warp * STAGES]);
        tokens = (int32_t)max(end_token - args.head.first_token, (int64_t)0);
        const int32_t pieces = (tokens + PIECE - 1) / PIECE;
        const int32_t share = (pieces + args.raced.slices - 1) / args.raced.slices;
        end = min((slice + 1) * share, pieces);
        piece = slice * share + warp;
    }

    /* One lane: its i-th piece from now on into its stage. */
    FS_DEVICE_MEMBER void bring(int32_t i) const {
        const int32_t which = piece + i * LOOK_WARPS, at = (turn + i) % STAGES;
        if (which >= end) return;
        const uint32_t bytes = (uint32_t)min(PIECE, tokens - which * PIECE + 3 & ~3) * 4;
        barrier_expect(barrier + 8 * at, bytes);
        copy_bytes(to + at * PIECE * 4, row + which * PIECE, bytes, barrier + 8 * at);
    }

    FS_DEVICE_MEMBER bool is_over() const { return piece >= end; }

    /* This lane's granule of the piece that is there; `first` is that of its j-th quad, in the row. Lanes begin at
     * different quads: see each_granule of rows/masses.cuh. */
    FS_DEVICE_MEMBER int32_t first(int j) const {
        const int32_t lane = threadIdx.x % 32;
        return piece * PIECE + FS_GRANULE * lane + 4 * ((lane / 2 + j) % 4);
    }
    FS_DEVICE_MEMBER void look(float4 (&q)[4]) const {
        const float4 *quad = (const float4 *)(stage + turn % STAGES * PIECE);
        barrier_wait(barrier + 8 * (turn % STAGES), turn / STAGES & 1);
#pragma unroll
        for (int j = 0; j < 4; j++) q[j] = quad[(first(j) - piece * PIECE) / 4];
        if ((piece + 1) * PIECE <= tokens) return;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int32_t left = tokens - first(j);
            if (left < 1) q[j].x = -INFINITY;
            if (left < 2) q[j].y = -INFINITY;
            if (left < 3) q[j].z = -INFINITY;
            if (left < 4) q[j].w = -INFINITY;
        }
    }

    /* One of the piece's. */
    FS_DEVICE_MEMBER float at_token(int32_t in_row) const {
        return stage[turn % STAGES * PIECE + in_row - piece * PIECE];
    }

    /* After all lanes have looked. */
    FS_DEVICE_MEMBER void next() {
        __syncwarp();
        if (threadIdx.x % 32 == 0) bring(STAGES);
        piece += LOOK_WARPS;
        turn++;
    }
};

/* -------------------------------------------------------------------------------------------------------- best ---- */

/* The k-th largest of what threads have, each one value, or a lower one. */
FS_DEVICE float kth_of_threads(looked_row *r, uint32_t ordered, int32_t k) {
    constexpr int PARTS = 32 * LIST_LANES;
    atomicMax(&r->most[threadIdx.x % PARTS], ordered);
    __syncthreads();
    if (threadIdx.x < 32) {
        uint32_t value[LIST_LANES];
#pragma unroll
        for (int i = 0; i < LIST_LANES; i++) value[i] = r->most[32 * i + threadIdx.x];
        const uint32_t kth = kth_largest(value, PARTS, k);
        const uint32_t none = ordered_float(-INFINITY); /* below it, and rounded down to below it, are NaNs */
        if (threadIdx.x == 0) r->best = kth > none ? float_of_ordered(kth) : -INFINITY;
    }
    __syncthreads();
    return r->best;
}

/* A logit that the best are not below, by the first pieces. */
FS_DEVICE void find_best_floor(looked_row *r, const raced_slice &slice) {
    float most = -INFINITY;
#pragma unroll 1
    for (raced_slice s = slice; s.turn < STAGES && !s.is_over(); s.turn++, s.piece += LOOK_WARPS) {
        float4 q[4];
        s.look(q);
#pragma unroll
        for (int j = 0; j < 4; j++) most = fmaxf(most, largest_of(q[j]));
    }
    kth_of_threads(r, ordered_float(most), r->args.result.top_count);
}

/* Lists those of a warp's piece that are not below a floor, as long as there is room. */
FS_DEVICE void list_piece(looked_row *r, const float4 (&q)[4], const raced_slice &slice, float floor,
                          unsigned long long *entry, uint32_t room) {
    const uint32_t lane = threadIdx.x % 32, first = (uint32_t)r->args.head.first_token;
    if (*(volatile uint32_t *)&r->ahead.listed > room) return;
    uint32_t hits = 0;
#pragma unroll
    for (int i = 0; i < FS_GRANULE; i++)
        if (at(q[i / 4], i % 4) >= floor && at(q[i / 4], i % 4) > -INFINITY) hits |= 1u << i;
    uint32_t place = (uint32_t)__popc(hits);
    for (int apart = 1; apart < 32; apart *= 2) {
        const uint32_t before = __shfl_up_sync(~0u, place, apart);
        if (lane >= (uint32_t)apart) place += before;
    }
    uint32_t start = lane == 31 ? atomicAdd(&r->ahead.listed, place) : 0;
    start = __shfl_sync(~0u, start, 31);
#pragma unroll 1
    for (place += start - (uint32_t)__popc(hits); hits && place < room; hits &= hits - 1, place++) {
        const int32_t i = __ffs((int)hits) - 1, in_row = slice.first(i / 4) + i % 4;
        entry[place] = order_key(slice.at_token(in_row), first + (uint32_t)in_row);
    }
}

/* Brings what slices have listed; whether that is all. */
FS_DEVICE bool take_listed(looked_row *r, unsigned long long *list) {
    const int32_t slices = r->args.raced.slices, all = raced_room(&r->args.result), room = all / slices;
    const fs_cuda_ahead *of = slices_of(r->args, r->place, slices);
    const unsigned long long *entry = r->args.raced.entry + (int64_t)r->place * all;
    if (r->ahead.listed > (uint32_t)min(LOOKED_LIST, r->args.lists.room)) return false;
    if (threadIdx.x == 0) r->few = 0;
    __syncthreads();
#pragma unroll 1
    for (int32_t i = threadIdx.x / 32; i < slices; i += LOOK_WARPS) {
        const uint32_t lane = threadIdx.x % 32, count = of[i].listed;
        const uint32_t start = __shfl_sync(~0u, lane == 0 ? atomicAdd(&r->few, count) : 0, 0);
#pragma unroll 4
        for (uint32_t e = lane; e < count; e += 32) list[start + e] = __ldcg(&entry[i * room + e]);
    }
    __syncthreads();
    return true;
}

/* Puts the best of those listed in order; false: there are too many to tell. */
FS_DEVICE bool sort_best(looked_row *r, const unsigned long long *list) {
    const int32_t count = (int32_t)r->ahead.listed;
    const int32_t asked = r->args.result.top_count;
    uint64_t most = 0;
    if (threadIdx.x < 32 * LIST_LANES) r->most[threadIdx.x] = 0;
    if (threadIdx.x < FS_CUDA_BEST) r->sorted[threadIdx.x] = FS_KEY_NONE;
    __syncthreads();
    for (int32_t i = threadIdx.x; i < count; i += LOOK_THREADS) most = max(most, (uint64_t)list[i]);
    if (threadIdx.x == 0) r->few = 0;
    const float floor = kth_of_threads(r, (uint32_t)(most >> 32), asked);
    for (int32_t i = threadIdx.x; i < count; i += LOOK_THREADS) {
        if (!(order_key_logit(list[i]) >= floor)) continue;
        const uint32_t place = atomicAdd(&r->few, 1u);
        if (place < FEW) r->found[place] = list[i];
    }
    __syncthreads();
    const int32_t few = (int32_t)r->few;
    if (few > FEW) return false;
    for (int32_t i = threadIdx.x; i < few; i += LOOK_THREADS) {
        int32_t ahead = 0;
        for (int32_t j = 0; j < few; j++) ahead += r->found[j] > r->found[i];
        if (ahead < asked) r->sorted[ahead] = r->found[i];
    }
    __syncthreads();
    return true;
}

/* -------------------------------------------------------------------------------------------------------- look ---- */

/* A granule for each lane, so four tiles of a warp: to the CTA's mass. */
FS_DEVICE void add_tiles(looked_row *r, fs_tile_sum *sum, const float4 (&q)[4], float rate) {
    float v[FS_GRANULE];
#pragma unroll
    for (int i = 0; i < FS_GRANULE; i++) v[i] = exp2_approximate(at(q[i / 4], i % 4) * rate);
    float granule = sum_of_granule(v);
    const bool odd = !granule_is_near(granule);
    if (__any_sync(~0u, odd)) {
        float number[FS_GRANULE];
#pragma unroll
        for (int i = 0; i < FS_GRANULE; i++) number[i] = at(q[i / 4], i % 4) * rate;
        add_odd_granules(&r->args.work[r->b], number, odd);
        if (odd) granule = 0.0f;
    }
    const float tile = tile_of_granules(granule);
    if (threadIdx.x % 8 == 0) sum->add(r->limb, tile);
}

/* Goes through a slice, whose first pieces are on their way. */
FS_DEVICE void look_at(looked_row *r, raced_slice slice, unsigned long long *entry) {
    const bool matters = !r->odd && (r->weighs || r->ranks);
    raced_ahead ahead(r, matters);
    const float rate = r->rate;
    const float floor = fminf(r->lists ? r->best : INFINITY, r->weighs && !r->odd ? r->x : INFINITY);
    const uint32_t share = (uint32_t)(raced_room(&r->args.result) / r->args.raced.slices);
    const uint32_t room = r->lists ? share : min(share, (uint32_t)FS_CUDA_SHORT);
    float largest = -INFINITY;
    fs_tile_sum sum;
#pragma unroll 1
    for (; !slice.is_over(); slice.next()) {
        float4 q[4];
        slice.look(q);
        const float most = fmaxf(fmaxf(largest_of(q[0]), largest_of(q[1])), fmaxf(largest_of(q[2]), largest_of(q[3])));
        largest = fmaxf(largest, most);
        if (rate > 0.0f) add_tiles(r, &sum, q, rate);
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (largest_of(q[j]) >= ahead.level) ahead.look(q[j], slice.first(j));
        if (__any_sync(~0u, most >= floor)) list_piece(r, q, slice, floor, entry, room);
    }
    ahead.add_to(&r->ahead);
    if (rate > 0.0f) sum.hand_in(r->limb);
    const uint32_t ordered = __reduce_max_sync(~0u, ordered_float(largest));
    if (threadIdx.x % 32 == 0) atomicMax(&r->ahead.largest, ordered);
}

/* From slices to the row. */
FS_DEVICE void gather(looked_row *r) {
    const int32_t slices = r->args.raced.slices, lane = threadIdx.x;
    const fs_cuda_ahead *of = slices_of(r->args, r->place, slices);
    if (lane < 32) {
        fs_cuda_ahead own = {0, 0, 0, 0, 0, 0, 0};
        if (lane < slices) own = of[lane]; /* which no L1 has */
#pragma unroll
        for (int apart = 16; apart; apart /= 2) own.weight += __shfl_xor_sync(~0u, own.weight, apart);
        own.largest = __reduce_max_sync(~0u, own.largest);
        own.larger = __reduce_add_sync(~0u, own.larger);
        own.equal = __reduce_add_sync(~0u, own.equal);
        own.same = __reduce_add_sync(~0u, own.same);
        const bool fits = own.listed <= (uint32_t)(raced_room(&r->args.result) / slices);
        const bool all = __all_sync(~0u, fits);
        own.listed = __reduce_add_sync(~0u, fits ? own.listed : 0);
        if (!all) own.listed = ~0u;
        if (lane == 0) r->ahead = own;
    }
    __syncthreads();
}

/* By the row's last CTA. */
FS_DEVICE void end_raced_row(looked_row *r, unsigned long long *list) {
    const bool best = result_wants_top(&r->args.result);
    gather(r);
    const float l = float_of_ordered(r->ahead.largest) * r->draw.inverse;
    bool open = (r->weighs || r->ranks || r->lists) && (r->odd || !(fabsf(l) < INFINITY));
    if (r->lists && !open) open = !take_listed(r, list) || !sort_best(r, list);
    if (threadIdx.x == 0) {
        if (needs_mass(r->args.needs)) r->mass = row_mass(&r->args.work[r->b]);
        summarise(r);
        const int32_t stays = open ? -1 : r->weighs ? winner_stays(r) : 1;
        if (stays > 0) write_drawn(r);
        if (best) open_best(r);
        if (stays == 0 && r->args.raced.again) {
            const uint32_t few = (uint32_t)min(FS_CUDA_SHORT, r->args.lists.room);
            int32_t *counts = r->args.lists.open;
            if (r->ahead.listed <= few)
                *again_at(r->args, r->args.rows - 1 - atomicAdd(&counts[FS_AGAIN_BY_CTA], 1)) = r->b;
            else *again_at(r->args, atomicAdd(&counts[FS_AGAIN_BY_TEAM], 1)) = r->b;
            r->ahead.where = (uint32_t)(r->place * 64 + r->args.raced.slices);
            *whole_of(r->args, r->b) = r->ahead;
        } else close_raced(r, stays <= 0);
    }
    if (!best) return;
    __syncthreads();
    for (int32_t i = threadIdx.x; i < r->args.result.top_count && !open; i += LOOK_THREADS)
        row_write_best(&r->row, i, r->own ? r->sorted[i] : FS_KEY_NONE);
}

/* Where only some rows are kept: finds the one that is this CTA's. All CTAs find them in the same order. False: there
 * is none. */
FS_DEVICE bool find_row(looked_row *r, int32_t *kept) {
    __shared__ int32_t count[LOOK_WARPS];
    const int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int32_t all = 0;
#pragma unroll 1
    for (int32_t first = 0; first < r->args.rows; first += LOOK_THREADS) {
        const int32_t b = first + (int32_t)threadIdx.x;
        bool weighs = false, own = false;
        if (b < r->args.rows) {
            const fs_draw draw = draw_of_listed(r->args, b, &weighs);
            own = draws(draw) && is_kept(draw);
        }
        const uint32_t who = __ballot_sync(~0u, own);
        if (lane == 0) count[warp] = __popc(who);
        __syncthreads();
        int32_t place = all + __popc(who & ((1u << lane) - 1));
        for (int w = 0; w < LOOK_WARPS; w++) {
            place += w < warp ? count[w] : 0;
            all += count[w];
        }
        if (own) kept[place] = b;
        __syncthreads();
    }
    if (all == 0) return false;
    const int32_t slices = min(max((int32_t)gridDim.x / all, 1), FS_CUDA_SLICES), place = (int32_t)blockIdx.x / slices;
    if (place >= all) return false;
    if (threadIdx.x == 0) {
        r->args.raced.slices = (int16_t)slices;
        r->place = place;
        r->b = kept[place];
    }
    async_proxy_fence(); /* pieces take the list's place */
    __syncthreads();
    return true;
}

__global__ void __launch_bounds__(LOOK_THREADS, 2) end_raced(const __grid_constant__ fs_cuda_args args) {
    extern __shared__ __align__(16) char shared[];
    __shared__ __align__(16) char room[sizeof(looked_row)];
    looked_row *r = (looked_row *)room;
    for (int32_t i = threadIdx.x; i < (int32_t)(sizeof args / 4); i += LOOK_THREADS)
        ((uint32_t *)&r->args)[i] = ((const uint32_t *)&args)[i];
    if (threadIdx.x < 8) r->limb[threadIdx.x] = 0;
    if (threadIdx.x < 32 * LIST_LANES) r->most[threadIdx.x] = 0;
    if (threadIdx.x == 0) {
        r->ahead = {0, 0, 0, 0, 0, 0, 0};
        if (args.raced.slices) r->b = r->place = (int32_t)blockIdx.x / args.raced.slices;
    }
    if (threadIdx.x % 32 == 0)
        for (int i = 0; i < STAGES; i++) barrier_init(shared_address(&r->barrier[threadIdx.x / 32 * STAGES + i]), 1);
    barrier_init_fence();
    __syncthreads();
    wait_for_earlier_launches();
    let_next_launch_begin();
    if (is_decided(args) || (!args.raced.slices && !find_row(r, (int32_t *)shared))) return;
    const int32_t slices = r->args.raced.slices, b = r->b, own = (int32_t)blockIdx.x - r->place * slices;
    const raced_slice slice(r->args, b, own, shared, r->barrier);
    if (threadIdx.x % 32 == 0)
        for (int i = 0; i < STAGES; i++) slice.bring(i);
    open_raced(r, (uint32_t *)r->sorted);
    __syncthreads();
    if (threadIdx.x == 0) {
        const fs_needs &needs = r->args.needs;
        ask_raced(r);
        r->odd = r->flags != 0;
        r->best = INFINITY;
        r->rate = 0.0f;
        if (needs_mass(needs) && (r->weighs || !needs.mass_to_cut)) r->rate = mass_rate(r->draw, needs.raw_mass);
    }
    __syncthreads();
    if (r->lists) find_best_floor(r, slice);
    const int32_t listed = raced_room(&r->args.result);
    look_at(r, slice, r->args.raced.entry + (int64_t)r->place * listed + own * (listed / slices));
    __syncthreads();
    if (threadIdx.x < 8 && r->limb[threadIdx.x]) atomicAdd(&r->args.work[b].limb[threadIdx.x], r->limb[threadIdx.x]);
    __syncthreads();
    if (threadIdx.x == 0) {
        slices_of(r->args, r->place, slices)[own] = r->ahead;
        r->last = add_in_order(&r->args.work[b].done, 1) == (uint32_t)slices - 1;
    }
    __syncthreads(); /* all pieces have been looked at: the list takes their place */
    if (r->last) end_raced_row(r, (unsigned long long *)shared);
}

constexpr int RACED_BYTES = LOOK_WARPS * STAGES * PIECE * (int)sizeof(float);
static_assert(RACED_BYTES >= LOOKED_LIST * (int)sizeof(unsigned long long), "the list takes the place of pieces");

} // namespace

/* Where there is less shared memory no pass keeps logits. */
extern "C" cudaError_t fs_cuda_raced_open(int32_t shared_bytes) {
    if (shared_bytes < RACED_BYTES + 8192) return cudaSuccess;
    return cudaFuncSetAttribute(end_raced, cudaFuncAttributeMaxDynamicSharedMemorySize, RACED_BYTES);
}

extern "C" cudaError_t fs_cuda_raced_launch(const fs_cuda_args *args, int32_t processors, cudaStream_t stream) {
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute overlap = {};
    overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    overlap.val.programmaticStreamSerializationAllowed = 1;
    const int32_t ctas = 2 * processors, some = args->rows < ctas ? ctas : args->rows;
    config.gridDim = dim3((unsigned)(args->raced.slices ? args->rows * args->raced.slices : some));
    config.blockDim = dim3(LOOK_THREADS);
    config.dynamicSmemBytes = RACED_BYTES;
    config.stream = stream;
    config.attrs = &overlap;
    config.numAttrs = args->overlap ? 1 : 0;
    return cudaLaunchKernelEx(&config, end_raced, *args);
}
