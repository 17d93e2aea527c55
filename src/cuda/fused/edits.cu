/* edits.cu - what a pass over W will look up of edits and penalties (device/edits.cuh), made before it: a CTA has one
 * row.
 *
 * A pass compares x, and looks up y of those that pass. That is enough where y is not above x, as bans and penalties
 * leave it; tokens that an edit raises have their strips named, whose thresholds are lower. Rows for which neither
 * holds have their logits stored instead. */
#include "cuda/cuda_launch.h"
#include "cuda/device/decided.cuh"
#include "cuda/device/edits.cuh"

#include "core/rules.h"

namespace {

constexpr int THREADS = 256;

/* Whether penalties may raise a token that was there before. */
FS_DEVICE bool penalties_raise(const fs_cuda_edits &e) {
    return e.penalises && !(e.repetition >= 1.0f && e.frequency >= 0.0f && e.presence >= 0.0f);
}

/* Puts the entries of a list into its table; whether some token has several. */
FS_DEVICE bool fill_table(uint32_t *table, const int32_t *token, int64_t count) {
    bool several = false;
    for (int32_t i = threadIdx.x; i < count; i += THREADS) {
        const uint32_t own = (uint32_t)token[i], entry = table_entry(own, i);
        uint32_t place = table_place(own), there;
        while ((there = atomicCAS(&table[place], 0u, entry)) != 0 && there >> 12 != own) place = table_next(place);
        if (there) {
            several = true;
            atomicMin(&table[place], entry);
        }
    }
    return several;
}

/* Names the strips of tokens that edits raise, and says by how much at most: one entry, and all of them together. A NaN
 * is a raise by +inf. */
FS_DEVICE void name_raised(const fs_cuda_args &args, const fs_cuda_edits &e, uint8_t *raised, float *most, float *all) {
    const int64_t low = args.head.first_token, base = low / FS_CUDA_TILE * FS_CUDA_TILE;
    for (int32_t i = threadIdx.x; i < e.edits; i += THREADS) {
        const float bias = e.edit_bias[i];
        if (bias <= 0.0f) continue;
        const int64_t token = e.edit_token[i];
        *most = bias == bias ? fmaxf(*most, bias) : INFINITY;
        *all += bias == bias ? bias : INFINITY;
        if (token < low || token >= low + args.head.rows) continue;
        const uint32_t at = (uint32_t)(token - base), tile = at / FS_CUDA_TILE;
        atomicOr((uint32_t *)raised + tile / 4, 1u << (8 * (tile % 4) + at % FS_CUDA_TILE / 16));
    }
}

FS_DEVICE bool are_tokens(const int32_t *token, int64_t count, int64_t vocab) {
    bool fine = true;
    for (int64_t i = threadIdx.x; i < count; i += THREADS) fine &= token[i] >= 0 && token[i] < vocab;
    return __syncthreads_and(fine);
}

__global__ void __launch_bounds__(THREADS) prepare(const __grid_constant__ fs_cuda_args args) {
    __shared__ fs_row_rules rules;
    __shared__ float sums[2][THREADS / 32];
    const int32_t b = (int32_t)blockIdx.x;
    let_next_launch_begin();
    if (is_decided(args)) return;
    wait_for_earlier_launches();
    if (threadIdx.x == 0) rules = rules_of_row(&args.batch, &args.rules, &args.limits, args.vocab, args.first_row + b);
    __syncthreads();
    fs_cuda_edits *row = &args.edits.row[b];
    if (rules_drop_row(&rules)) {
        if (threadIdx.x == 0) row->way = FS_UNEDITED;
        return;
    }
    fs_cuda_edits e = edits_of_row(&args.batch, &rules, args.vocab, args.first_row + b);
    uint32_t *table = args.edits.table + (int64_t)b * 2 * FS_CUDA_TABLE;
    uint8_t *raised = args.edits.raised + (int64_t)b * args.edits.tiles;
    const int64_t most_entries = FS_CUDA_TABLE / 2;
    e.way = e.edits > 0 || e.penalises ? FS_EDITED : FS_UNEDITED;
    /* A sparse count without a penalty is checked too. */
    const int64_t *offset = args.batch.count_offset ? args.batch.count_offset + rules.slot : NULL;
    if (e.edits > most_entries || e.listed > most_entries || penalties_raise(e) ||
        !are_tokens(e.edit_token, e.edits, args.vocab) ||
        (offset && !are_tokens(args.batch.count_token + offset[0], offset[1] - offset[0], args.vocab))) {
        if (threadIdx.x == 0) row->way = FS_NOT_LOOKED_UP;
        return;
    }
    if (e.edits)
        for (int32_t i = threadIdx.x; i < FS_CUDA_TABLE; i += THREADS) table[i] = 0;
    if (e.listed)
        for (int32_t i = threadIdx.x; i < FS_CUDA_TABLE; i += THREADS) table[FS_CUDA_TABLE + i] = 0;
    for (int32_t i = threadIdx.x; i < args.edits.tiles / 4; i += THREADS) ((uint32_t *)raised)[i] = 0;
    __syncthreads();
    const bool edits = __syncthreads_or(fill_table(table, e.edit_token, e.edits));
    const bool counts = __syncthreads_or(fill_table(table + FS_CUDA_TABLE, e.count_token, e.listed));
    float most = 0.0f, all = 0.0f;
    name_raised(args, e, raised, &most, &all);
    for (int apart = 16; apart; apart /= 2) {
        most = fmaxf(most, __shfl_xor_sync(~0u, most, apart));
        all += __shfl_xor_sync(~0u, all, apart);
    }
    if (threadIdx.x % 32 == 0) sums[0][threadIdx.x / 32] = most, sums[1][threadIdx.x / 32] = all;
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (int w = 1; w < THREADS / 32; w++) most = fmaxf(most, sums[0][w]), all += sums[1][w];
    e.several = (edits ? FS_SEVERAL_EDITS : 0) | (counts ? FS_SEVERAL_COUNTS : 0);
    e.raise = (edits ? all : most) * 1.00001f;
    if (e.raise == INFINITY) e.way = FS_NOT_LOOKED_UP;
    *row = e;
}

} // namespace

extern "C" cudaError_t fs_cuda_edits_launch(const fs_cuda_args *args, cudaStream_t stream) {
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attribute;
    config.gridDim = dim3((unsigned)args->rows);
    config.blockDim = dim3(THREADS);
    config.stream = stream;
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    config.attrs = &attribute;
    config.numAttrs = args->overlap ? 1 : 0;
    return cudaLaunchKernelEx(&config, prepare, *args);
}
