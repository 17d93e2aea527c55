/* raced.cu - the end of rows whose race is over: a pass over W has drawn from all tokens of each (fused.cuh), summed
 * their masses and kept their logits, and what is left is to look at the logits once. Does the winner stay when the row
 * is cut by top-p, what is its rank, which are the best tokens?
 *
 *   slices, a CTA each: who is ahead of the winner --the row's last CTA--> it stays: results
 *                                                                      --> it does not: likely tokens race again
 *                                                                      --> that cannot be told: open, for rows.cu
 *
 * Of most rows the winner stays: those ahead of it weigh less than the nucleus. Else the nucleus is among those that
 * are listed, if they weigh enough, and cuts.cuh finds who of them wins. */
#define FS_PHILOX_ROLLED
#include "cuda/cuda_launch.h"
#include "cuda/fused/raced.cuh"

namespace {

/* --------------------------------------------------------------------------------------------------------- cut ---- */

/* Raises the floor of a row's list to a logit that tokens of so much weight are above, or a little more. */
FS_DEVICE void find_floor_of_nucleus(raced_row *r, double mark) {
    constexpr int BINS = 32 * LIST_LANES;
    constexpr float WIDE = 16.0f / BINS; /* in numbers that cuts look at, down from the row's mass */
    float *bin = (float *)r->most;
    const float top = (float)r->units.unit * 0.6931472f, scale = r->units.scale;
    const unsigned long long *list = r->room.list;
    for (int32_t i = threadIdx.x; i < BINS; i += FS_THREADS) bin[i] = 0.0f;
    if (threadIdx.x == 0) r->room.floor = r->likely;
    __syncthreads();
    for (int32_t i = threadIdx.x; i < (int32_t)r->listed; i += FS_THREADS) {
        const float v = order_key_logit(list[i]);
        const int32_t to = (int32_t)((top - v * scale) * (1.0f / WIDE));
        if (to < BINS) atomicAdd(&bin[max(to, 0)], r->units.about(v));
    }
    __syncthreads();
    if (threadIdx.x < 32) {
        float own = 0.0f;
        for (int i = 0; i < LIST_LANES; i++) own += bin[LIST_LANES * threadIdx.x + i];
        float sum = own;
        for (int apart = 1; apart < 32; apart *= 2) {
            const float other = __shfl_up_sync(~0u, sum, apart);
            if ((int)threadIdx.x >= apart) sum += other;
        }
        const float enough = (float)mark * 1.0001f;
        if (sum > enough && !(sum - own > enough)) {
            int i = 0;
            for (sum -= own; i < LIST_LANES - 1; i++) {
                sum += bin[LIST_LANES * threadIdx.x + i];
                if (sum > enough) break;
            }
            const float floor = (top - (float)(LIST_LANES * (int)threadIdx.x + i + 1) * WIDE) / scale;
            r->room.floor = fmaxf(r->likely, floor - 1e-5f * (fabsf(floor) + 1.0f / scale));
        }
    }
    __syncthreads();
}

/* Bounds of a candidate's score; those of one that is known to lose are -inf. Half of the noise of most is enough. */
FS_DEVICE fs_score score_candidate(raced_row *r, uint64_t key, fs_drawn *drawn) {
    const fs_noise noise = r->draw.noise;
    const uint32_t token = order_key_token(key);
    const float l = order_key_logit(key) * r->draw.inverse;
    const float reached = known_score(*(volatile uint32_t *)&r->room.best);
    const int32_t prefix = mark_among(marks_of(noise, token / FS_NOISE_BLOCK), noise, token);
    const float ceiling = prefix < 0 ? FS_UNMARKED_CEILING : mark_ceiling((uint32_t)prefix);
    if (l + ceiling + score_slack(l) < reached) return {-INFINITY, -INFINITY};
    const fs_words words = noise_words(noise, token, FS_DOMAIN_EXTENSION);
    *drawn = {prefix, {words.w[0], words.w[1]}};
    return score_of(l, noise_about(*drawn));
}

/* The race of the candidates from a key on, as cuts.cuh has it: the winner's order key. */
FS_DEVICE uint64_t race_candidates(raced_row *r, uint64_t from) {
    fs_cut_room *room = &r->room;
    if (threadIdx.x == 0) room->best = 0, room->key = 0;
#pragma unroll 1
    for (int pass = 0; pass < 2; pass++) {
        __syncthreads();
#pragma unroll 1
        for (int32_t i = threadIdx.x; i < room->count; i += FS_THREADS) {
            const uint64_t key = room->list[i];
            fs_drawn drawn;
            if (key < from) continue;
            const fs_score score = score_candidate(r, key, &drawn);
            if (score.most < known_score(*(volatile uint32_t *)&room->best)) continue;
            atomicMax(&room->best, ordered_float(score.least));
            if (pass) {
                const uint64_t exact = race_key(r->draw, order_key_logit(key), order_key_token(key), drawn);
                atomicMax(&room->key, (unsigned long long)exact);
            }
        }
    }
    __syncthreads();
    return find_token(room, score_key_token(room->key));
}

/* The order key of the token of a row that is cut, whose list is there or not; 0 if it is open. */
FS_DEVICE uint64_t cut_raced(raced_row *r, unsigned long long *list, bool there) {
    fs_cut_room *room = &r->room;
    if (threadIdx.x == 0) {
        room->largest = (uint64_t)r->largest << 32 | 0xFFFFFFFFu;
        room->list = list;
        room->weight = list + RACED_LIST;
        room->count = 0;
    }
    __syncthreads();
    const fs_marks_of_cuts marks = marks_of_cuts(r->args, room, &r->args.work[r->b]);
    if (!marks.known) return 0;
    /* From the units of the cut, which begin at the largest logit, to those of the mass. */
    const cut_scale units(r->units.scale, float_of_ordered(r->largest));
    const double scale = __hiloint2double((1023 + units.unit - r->units.unit) << 20, 0); /* 2 to that power */
    const uint32_t ties = r->args.batch.flags & FS_KEEP_TIES_TOP_P ? 0 : r->equal;
    const double ahead = (double)r->weight + (double)ties * (double)(r->units.about(r->x) * ONE);
    const double slack = ahead * SLACK + (double)(r->larger + ties);
    if (r->larger + ties == 0 || ahead + slack < marks.less * scale) return r->own;
    if (!(ahead - slack > marks.more * scale)) return 0;
    if (!there && !take_listed(r, list)) return 0;
    find_floor_of_nucleus(r, marks.more * scale * (1.0 / ONE));
    if (threadIdx.x == 0) room->count = (int32_t)r->listed;
    __syncthreads();
    const uint64_t own = end_list(r->args, room, r->b,
                                  [&](uint64_t from, const fs_marks_of_cuts &) { return race_candidates(r, from); });
    if (!own || !r->ranks) return own;
    const uint32_t larger = ahead_of(room, ((own >> 32) + 1) << 32, false).count;
    const uint32_t same = ahead_of(room, own >> 32 << 32, false).count - larger;
    if (threadIdx.x == 0) r->larger = larger, r->same = same;
    return own;
}

/* -------------------------------------------------------------------------------------------------------- best ---- */

/* Puts the best of those listed in order; false: there are too many to tell. */
FS_DEVICE bool sort_best(raced_row *r, const unsigned long long *list) {
    const int32_t count = (int32_t)r->listed;
    const int32_t asked = r->args.result.top_count;
    uint64_t most = 0;
    if (threadIdx.x < 32 * LIST_LANES) r->most[threadIdx.x] = 0;
    if (threadIdx.x < FS_CUDA_BEST) r->sorted[threadIdx.x] = FS_KEY_NONE;
    __syncthreads();
    for (int32_t i = threadIdx.x; i < count; i += FS_THREADS) most = max(most, (uint64_t)list[i]);
    if (threadIdx.x == 0) r->few = 0;
    const float floor = kth_of_threads(r, (uint32_t)(most >> 32), asked);
    for (int32_t i = threadIdx.x; i < count; i += FS_THREADS) {
        if (!(order_key_logit(list[i]) >= floor)) continue;
        const uint32_t place = atomicAdd(&r->few, 1u);
        if (place < FEW) r->found[place] = list[i];
    }
    __syncthreads();
    const int32_t few = (int32_t)r->few;
    if (few > FEW) return false;
    for (int32_t i = threadIdx.x; i < few; i += FS_THREADS) {
        int32_t ahead = 0;
        for (int32_t j = 0; j < few; j++) ahead += r->found[j] > r->found[i];
        if (ahead < asked) r->sorted[ahead] = r->found[i];
    }
    __syncthreads();
    return true;
}

/* ----------------------------------------------------------------------------------------------------- results ---- */

/* The drawn token's, as those of plain rows are written, and what speaks of it and others. One thread, then all. */
FS_DEVICE void write_raced(raced_row *r, uint64_t own) {
    const fs_cuda_args &args = r->args;
    const int64_t b = args.first_row + r->b;
    if (threadIdx.x == 0) {
        fs_found found = found_nothing();
        fs_needs needs = plain_needs(args.needs);
        needs.max = needs.bounded = 1;
        found.key = own ? r->room.key : FS_KEY_NONE;
        found.x = own ? order_key_logit(own) : NAN;
        found.max = r->largest ? float_of_ordered(r->largest) : -INFINITY;
        found.flags = r->flags;
        if (needs_mass(needs)) found.mass = row_mass(&args.work[r->b]);
        r->result = plain_result(args.result, false, NULL);
        r->call = {&args.head, &args.batch, &r->result, NULL, args.vocab, needs};
        r->plain = rules_of(r->draw);
        r->summary = summary_of(needs, found, &r->winner);
        finish_row(&r->call, b, &r->plain, &r->summary, 0, 1, NULL);
        if (args.result.rank) {
            const uint32_t others = args.batch.flags & FS_RANK_OF_TIES ? r->same - 1 : 0; /* not itself */
            args.result.rank[b] = own ? 1 + (int32_t)(r->larger + others) : -1;
        }
        if (wants_best(args.result)) {
            r->result.top_token = args.result.top_token;
            r->result.top_logit = args.result.top_logit;
            r->result.top_logprob = args.result.top_logprob;
            r->result.top_count = args.result.top_count;
            memset(&r->row, 0, sizeof r->row);
            r->row.call = &r->call;
            r->row.rules = &r->plain;
            r->row.summary = &r->summary;
            r->row.b = b;
            r->row.log_z = args.result.top_logprob ? row_log_z(&r->row) : NAN;
        }
    }
    if (!wants_best(args.result)) return;
    __syncthreads();
    for (int32_t i = threadIdx.x; i < args.result.top_count; i += FS_THREADS)
        row_write_best(&r->row, i, own ? r->sorted[i] : FS_KEY_NONE);
}

/* By the row's last CTA. */
FS_DEVICE void end_raced_row(raced_row *r, unsigned long long *list) {
    const bool asks = r->weighs || r->ranks || r->lists;
    uint64_t own = r->own;
    gather(r);
    const float l = float_of_ordered(r->largest) * r->draw.inverse;
    bool open = asks && (r->odd || !(fabsf(l) < INFINITY));
    if (r->lists && !open) open = !take_listed(r, list) || !sort_best(r, list);
    if (r->weighs && !open) open = !(own = cut_raced(r, list, r->lists));
    __syncthreads();
    if (!open) write_raced(r, own);
    if (threadIdx.x != 0) return;
    if (open) r->args.lists.open[1 + atomicAdd(&r->args.lists.open[0], 1)] = r->args.first_row + r->b;
    clear_row(&r->args.work[r->b], needs_mass(r->args.needs));
}

__global__ void __launch_bounds__(FS_THREADS, 2) end_raced(const __grid_constant__ fs_cuda_args args) {
    extern __shared__ __align__(16) char shared[];
    __shared__ __align__(16) char room[sizeof(raced_row)];
    raced_row *r = (raced_row *)room;
    const int32_t slices = args.raced.slices, b = (int32_t)blockIdx.x / slices, own = (int32_t)blockIdx.x % slices;
    const raced_slice slice(args, b, own, shared);
    for (int32_t i = threadIdx.x; i < (int32_t)(sizeof args / 4); i += FS_THREADS)
        ((uint32_t *)&r->args)[i] = ((const uint32_t *)&args)[i];
    if (threadIdx.x == 0) {
        r->b = b;
        r->weight = 0;
        r->larger = r->equal = r->same = r->listed = r->largest = 0;
    }
    __syncthreads();
    wait_for_earlier_launches();
    for (int32_t k = 0; k < COPIES; k++) slice.copy(k);
    open_raced(r);
    if (wants_best(r->args.result)) find_best_floor(r, slice);
    look_at(r, slice, r->args.raced.entry + (int64_t)b * FS_CUDA_LIST + own * (FS_CUDA_LIST / slices));
    __syncthreads();
    if (threadIdx.x == 0) {
        r->args.raced.ahead[blockIdx.x] = {r->weight, r->largest, r->larger, r->equal, r->same, r->listed};
        r->last = add_in_order(&r->args.work[b].done, 1) == (uint32_t)slices - 1;
    }
    __syncthreads();
    wait_for_copies(); /* of which there are none but empty ones: the list takes their place */
    if (r->last) end_raced_row(r, (unsigned long long *)shared);
}

constexpr int RACED_BYTES = 2 * RACED_LIST * (int)sizeof(unsigned long long);
static_assert(RACED_BYTES >= COPIES * FS_THREADS * (int)sizeof(float4), "the list takes the place of copies");

} // namespace

extern "C" cudaError_t fs_cuda_raced_open(void) {
    return cudaFuncSetAttribute(end_raced, cudaFuncAttributeMaxDynamicSharedMemorySize, RACED_BYTES);
}

extern "C" cudaError_t fs_cuda_raced_launch(const fs_cuda_args *args, cudaStream_t stream) {
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute overlap = {};
    overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    overlap.val.programmaticStreamSerializationAllowed = 1;
    config.gridDim = dim3((unsigned)(args->rows * args->raced.slices));
    config.blockDim = dim3(FS_THREADS);
    config.dynamicSmemBytes = RACED_BYTES;
    config.stream = stream;
    config.attrs = &overlap;
    config.numAttrs = args->overlap ? 1 : 0;
    return cudaLaunchKernelEx(&config, end_raced, *args);
}
