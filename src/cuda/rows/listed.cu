/* listed.cu - the end of rows whose candidates a pass has listed: a CTA has one row. Rows that their lists do not
 * decide are left open, for a second pass (rows.cu). */
#define FS_ROW_THREADS 256
#include "cuda/cuda_launch.h"
#include "cuda/rows/cut.cuh"
#include "cuda/rows/draw.cuh"

#include "cuda/device/lists.cuh"
#include "cuda/device/row.cuh"

namespace {

constexpr int SHORT_LIST = 1024; /* of these each can look at all others */

/* Few instructions: they come from memory, a line at a time, while everything waits (docs/findings/gpu-rows.md). So not
 * the whole of ending.cuh. */
struct listing {
    fs_rules rules;
    select_room room;
    unsigned long long list[FS_CUDA_LIST];
    unsigned long long weight[SHORT_LIST];
};

/* The candidates of row b of the launch, if they are all there and few enough, into e->list; else -1. */
FS_DEVICE int32_t take_list(listing *e, const fs_cuda_lists &lists, int32_t b) {
    __shared__ uint32_t found;
    const uint32_t *count = lists.count + (int64_t)b * lists.slots;
    const unsigned long long *entry = lists.entry + (int64_t)b * lists.slots * FS_CUDA_SEGMENT;
    static_assert(ROW_THREADS >= 256, "a thread for every slot");
    if (threadIdx.x == 0) found = 0;
    __syncthreads();
    const int32_t slot = (int32_t)threadIdx.x;
    const uint32_t n = slot < lists.slots ? count[slot] : 0, start = n ? atomicAdd(&found, n) : 0;
    const bool whole = __syncthreads_and(n <= FS_CUDA_SEGMENT);
    const uint32_t all = found;
    if (!whole || all > (uint32_t)lists.room) return -1;
    const unsigned long long *own = entry + (int64_t)slot * FS_CUDA_SEGMENT;
#pragma unroll 1
    for (uint32_t first = 0; first < n; first += 8) { /* together: one memory latency */
        unsigned long long key[8];
#pragma unroll
        for (int i = 0; i < 8; i++) key[i] = first + i < n ? own[first + i] : 0;
#pragma unroll
        for (int i = 0; i < 8; i++)
            if (first + i < n) e->list[start + first + i] = key[i];
    }
    __syncthreads();
    return (int32_t)all;
}

/* A row is open: its hidden state goes where open ones are side by side. */
FS_DEVICE void leave_open(const fs_cuda_args &args, int64_t b) {
    __shared__ int32_t place;
    if (threadIdx.x == 0) {
        place = atomicAdd(&args.lists.open[0], 1);
        args.lists.open[1 + place] = (int32_t)b;
    }
    __syncthreads();
    const fs_matrix hidden = hidden_of_batch(&args.head, &args.batch);
    const uint16_t *from = (const uint16_t *)matrix_row(&hidden, b);
    uint16_t *to = (uint16_t *)args.lists.hidden + place * args.lists.hidden_stride;
    for (int64_t i = threadIdx.x; i < args.head.dim; i += ROW_THREADS) to[i] = from[i];
}

/* log Z of the kind asked for, as row_log_z of core/finish.h: the largest logit of that kind is `largest`. */
FS_DEVICE double log_z_of(const fs_cuda_args &args, const fs_cuda_row *row, float largest, uint32_t *status) {
    if (!needs_mass(args.needs)) return NAN;
    if (!(largest < INFINITY)) return INFINITY;
    const fs_mass mass = row_mass(row);
    if (mass_is_far(&mass)) {
        *status |= FS_ROW_FAR;
        return NAN;
    }
    return fmax(mass_log(&mass), (double)largest);
}

/* Results of a row that is cut, of which what asks for a list (rank, ...) is not among what this pass does. */
FS_DEVICE void write_listed(const fs_cuda_args &args, const fs_rules &rules, const fs_cuda_row *row, float x,
                            float first, uint64_t key) {
    const fs_result &r = args.result;
    const int64_t b = args.first_row + (int64_t)blockIdx.x;
    const float scale = r.logits == FS_LOGITS_RAW ? 1.0f : rules.inverse_temperature;
    uint32_t status = rules.status | (__ldcg(&row->flags) & ~FS_CUDA_X_INF);
    const double log_z = log_z_of(args, row, first * scale, &status);
    result_put_token(&r, b, score_key_token(key));
    if (r.score) r.score[b] = (float)score_key_value(key);
    if (r.logit) r.logit[b] = x * scale;
    if (r.logprob) r.logprob[b] = log_z < INFINITY ? (float)fmin((double)(x * scale) - log_z, 0.0) : NAN;
    if (r.max_logit) r.max_logit[b] = first * scale;
    if (r.log_z) r.log_z[b] = (float)log_z;
    if (r.status) r.status[b] = status;
}

/* cut_row of a short list, by few instructions: how many are ahead of an entry, and how much they weigh, it finds out
 * by looking at all of them. */
FS_DEVICE uint64_t cut_short(listing *e, int32_t count, const fs_rules &rules, uint32_t flags, const cut_scale &units,
                             float first) {
    const cut_keys keys = cut_keys_of(rules, flags, first);
    uint64_t cut = keys.from;
    /* The least key from `cut` on that has less than `most` ahead of it. */
    auto last_below = [&](auto amount, uint64_t most) {
        uint64_t last = ~0ull;
#pragma unroll 1
        for (int32_t i = threadIdx.x; i < count; i += ROW_THREADS) {
            const uint64_t key = e->list[i];
            uint64_t ahead = 0;
            if (key < cut) continue;
#pragma unroll 4
            for (int32_t j = 0; j < count; j++) ahead += e->list[j] > key ? amount(j) : 0;
            if (ahead < most && key < last) last = key;
        }
        return (uint64_t)block_min(last);
    };
    if (rules.top_k > 0) {
        const uint64_t last = last_below([](int32_t) { return (uint64_t)1; }, (uint64_t)rules.top_k);
        cut = max(cut, with_ties(last, flags, FS_KEEP_TIES_TOP_K));
    }
    if (keys.of_left) {
        uint64_t own = 0;
        for (int32_t i = threadIdx.x; i < count; i += ROW_THREADS) {
            e->weight[i] = e->list[i] >= cut ? units.weigh(order_key_logit(e->list[i])) : 0;
            own += e->weight[i];
        }
        const uint64_t all = block_sum(own); /* and every weight is there */
        const uint64_t mark = (uint64_t)ceil((double)keys.top_p * (double)all);
        const uint64_t last = last_below([&](int32_t j) { return (uint64_t)e->weight[j]; }, mark ? mark : 1);
        cut = max(cut, with_ties(last, flags, FS_KEEP_TIES_TOP_P));
    }
    if (keys.floor_last) cut = max(cut, keys.floor);
    return max(cut, keys.there);
}

/* The token of a row that is cut, from its list: the winner of the race over all tokens, if it survives; else of a race
 * of those that do. */
FS_DEVICE void end_list(listing *e, const fs_cuda_args &args, const fs_cuda_row *row, int32_t count) {
    const fs_rules &rules = e->rules;
    uint64_t key = __ldcg(&row->key);
    const uint32_t token = score_key_token(key);
    unsigned long long largest = 0, own = 0;
    for (int32_t i = threadIdx.x; i < count; i += ROW_THREADS) {
        const unsigned long long entry = e->list[i];
        largest = max(largest, entry);
        if (order_key_token(entry) == token) own = entry;
    }
    largest = block_max(largest);
    own = block_max(own);
    const float first = order_key_logit(largest);
    const list_entries all = {{count, count, 1, cut_scale(rules.cut_scale, first), first, 40.0f / rules.cut_scale},
                              e->list};
    short_list left = {NULL, 0, 0}; /* all of it is short */
    const uint64_t last = count <= SHORT_LIST ? cut_short(e, count, rules, args.batch.flags, all.units, first)
                                              : cut_row(&e->room, all, rules, args.batch.flags, first, &left);
    if (own < last) {
        row_race race = {
            {},      &rules,         args.batch.noise, last, noise_row(rules.seed, rules.position, 0, rules.stream),
            e->list, (uint32_t)count};
        key = race_once(race);
        for (int32_t i = threadIdx.x; i < count; i += ROW_THREADS)
            if (order_key_token(e->list[i]) == score_key_token(key)) own = e->list[i];
        own = block_max(own);
    }
    if (threadIdx.x == 0) write_listed(args, rules, row, order_key_logit(own), first, key);
}

/* A row that is not cut. Out of the way of the others, as its instructions are. */
static __device__ __noinline__ void end_plain(const fs_cuda_args &args, const fs_rules &rules, int32_t b) {
    const fs_draw draw = draw_of(rules);
    const fs_needs needs = plain_needs(args.needs);
    write_row(args, draw, needs, args.first_row + b, found_in(&args.work[b], draw, needs), false, NULL);
}

/* After a pass that has listed candidates: a CTA has one row. */
__global__ void __launch_bounds__(ROW_THREADS, 1) end_listed(const __grid_constant__ fs_cuda_args args) {
    extern __shared__ __align__(16) char shared[];
    listing *e = (listing *)shared;
    const int32_t b = (int32_t)blockIdx.x;
    if (threadIdx.x == 0) e->rules = rules_of_row(&args.batch, args.vocab, args.first_row + b);
    wait_for_earlier_launches();
    __syncthreads();
    const fs_rules &rules = e->rules;
    fs_cuda_row *row = &args.work[b];
    const bool listed = rules_list(rules, args.batch.flags, args.lists.slots);
    const bool cut = !rules_drop_row(&rules) && rules_cut(&rules) && !rules.greedy && __ldcg(&row->key);
    int32_t count = -1;
    if (cut && listed) count = take_list(e, args.lists, b);
    if (cut && count <= 0) leave_open(args, args.first_row + b);
    else if (cut) end_list(e, args, row, count);
    else if (threadIdx.x == 0) end_plain(args, rules, b);
    __syncthreads();
    if (threadIdx.x == 0) {
        clear_row(row, needs_mass(args.needs));
        args.lists.floor[b] = args.lists.there[b] = 0;
    }
    for (int32_t i = threadIdx.x; i < args.lists.slots; i += ROW_THREADS)
        args.lists.most[(int64_t)b * args.lists.slots + i] = 0;
}

} // namespace

extern "C" cudaError_t fs_cuda_listed_open(void) {
    return cudaFuncSetAttribute(end_listed, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)sizeof(listing));
}

extern "C" cudaError_t fs_cuda_listed_launch(const fs_cuda_args *args, cudaStream_t stream) {
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attribute;
    config.gridDim = dim3((unsigned)args->rows);
    config.blockDim = dim3(ROW_THREADS);
    config.dynamicSmemBytes = sizeof(listing);
    config.stream = stream;
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    config.attrs = &attribute;
    config.numAttrs = args->overlap ? 1 : 0;
    return cudaLaunchKernelEx(&config, end_listed, *args);
}
