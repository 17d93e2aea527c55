/* lists.cu - parts whose rows have rules, and so lists. Rows have left them in a part (rows/part.cuh); here it is
 * sealed, and when the parts of all ranks are together each row of them is one CTA's: it puts the lists in order, and
 * core/finish.h makes results of them as it does on the host.
 *
 *   part with rows --seal--> part --all_gather, or the caller--> parts of all --check--> --merge_lists--> results */
#include "cuda/device/tokens.cuh"
#include "cuda/ranks/parts.cuh"

namespace {

__global__ void __launch_bounds__(THREADS, 1) seal(const __grid_constant__ fs_cuda_args args, char *part, bool sealed) {
    seal_part(args, part, sealed);
}

/* A CTA for each part. */
__global__ void __launch_bounds__(THREADS, 1)
    check(const __grid_constant__ fs_cuda_args args, const __grid_constant__ fs_cuda_gathered from, uint32_t *wrong) {
    const bool intact = is_intact(args, from, agreed_hash(args), (int32_t)blockIdx.x);
    const bool well = intact && (blockIdx.x > 0 || are_whole(from, (uint64_t)args.vocab));
    if (threadIdx.x == 0 && !well) *wrong = 1;
}

/* ------------------------------------------------------------------------------------------------------- lists ---- */

/* One row, in static shared memory. */
struct merging {
    fs_row_rules rules;
    fs_summary into, next;
    unsigned long long bound;
    uint32_t count;
};

FS_DEVICE uint64_t key_at(const char *list, uint32_t i) {
    uint64_t key;
    wire_get(list + 12 + (size_t)i * 8, &key, 8);
    return key;
}

/* Rising keys, raw logits along with them: bitonic, so `room` is a power of two, filled up with what comes last. */
FS_DEVICE void sort_keys(uint64_t *key, float *raw, uint32_t count, uint32_t room) {
    for (uint32_t i = count + threadIdx.x; i < room; i += blockDim.x) key[i] = ~0ull;
    __syncthreads();
    for (uint32_t run = 2; run <= room; run *= 2)
        for (uint32_t apart = run / 2; apart; apart /= 2) {
            for (uint32_t i = threadIdx.x; i < room / 2; i += blockDim.x) {
                const uint32_t low = 2 * i - (i & (apart - 1)), high = low + apart;
                const uint64_t a = key[low], b = key[high];
                if ((a > b) != ((low & run) == 0)) continue;
                key[low] = b, key[high] = a;
                if (!raw) continue;
                const float x = raw[low];
                raw[low] = raw[high], raw[high] = x;
            }
            __syncthreads();
        }
}

/* The entries of all parts' lists, at `at` in each part, that are above all bounds, in order. A list whose count or ids
 * cannot be says that anything may be missing. */
FS_DEVICE void merge_list(merging *m, const fs_cuda_gathered &from, size_t at, int32_t keep, int64_t vocab,
                          fs_list *to) {
    if (!keep) return;
    if (threadIdx.x == 0) m->bound = m->count = 0;
    __syncthreads();
    auto list_of = [&](int32_t part) { return from.part + part * from.bytes + at; };
    auto count_of = [&](int32_t part) { return *(const uint32_t *)list_of(part); };
    for (int32_t i = threadIdx.x; i < from.count; i += blockDim.x) {
        uint64_t bound;
        wire_get(list_of(i) + 4, &bound, 8);
        atomicMax(&m->bound, count_of(i) <= (uint32_t)keep ? (unsigned long long)bound : ~0ull);
    }
    __syncthreads();
    const uint64_t bound = m->bound;
    for (int32_t part = 0; part < from.count && bound < ~0ull; part++) {
        const char *list = list_of(part);
        for (uint32_t i = threadIdx.x; i < count_of(part); i += blockDim.x) {
            const uint64_t key = key_at(list, i);
            if (!wire_key_is_sound(key, vocab)) atomicMax(&m->bound, ~0ull);
            if (key <= bound) continue;
            const uint32_t place = atomicAdd(&m->count, 1u);
            to->key[place] = key;
            if (to->raw) wire_get(list + 12 + (size_t)keep * 8 + (size_t)i * 4, &to->raw[place], 4);
        }
    }
    __syncthreads();
    const uint32_t count = m->bound < ~0ull ? m->count : 0;
    uint32_t room = 1;
    while (room < count) room *= 2;
    sort_keys(to->key, to->raw, count, room);
    if (threadIdx.x == 0) {
        to->count = to->popped = (int32_t)count;
        to->sorted = 1;
        to->bound = m->bound;
    }
    __syncthreads();
}

/* Watched tokens, from the part of whoever has them into the first. */
FS_DEVICE void merge_watched(const fs_call &call, const fs_cuda_gathered &from, size_t at, int64_t b) {
    for (int64_t i = threadIdx.x; i < wire_watched(&call, b); i += blockDim.x) {
        fs_watch *first = (fs_watch *)(from.part + at) + i;
        for (int32_t part = 1; part < from.count; part++) {
            const fs_watch watch = ((const fs_watch *)(from.part + part * from.bytes + at))[i];
            if (watch.y == watch.y) *first = watch;
        }
    }
}

/* -------------------------------------------------------------------------------------------------------- rows ---- */

FS_DEVICE void open_merging(merging *m, const fs_cuda_args &args, const fs_call &call, const fs_cuda_merging &where,
                            char *room, int64_t b) {
    const fs_needs &needs = call.needs;
    memset(&m->into, 0, sizeof m->into);
    m->next = m->into;
    m->rules = rules_of_row(call.batch, &args.rules, &args.limits, call.vocab, b);
    if (needs.watched && watch_is_over(call.batch, b, needs.watched)) m->rules.status |= FS_ROW_OVER_LIMIT;
    m->into.winner = (fs_winner *)(room + where.winner);
    m->next.winner = m->into.winner + needs.samples;
    m->into.list.key = (uint64_t *)room;
    m->into.list.raw = needs.raw_column ? (float *)(room + where.raw) : NULL;
    m->into.raw_list.key = (uint64_t *)(room + where.raw_key);
}

/* Row b, in this room. */
FS_DEVICE void merge_listed_row(merging *m, const fs_cuda_args &args, const fs_call &call, const fs_cuda_gathered &from,
                                const fs_cuda_merging &where, char *room, bool well, int64_t b) {
    const fs_needs &needs = call.needs;
    if (threadIdx.x == 0) open_merging(m, args, call, where, room, b);
    __syncthreads();
    uint32_t status = check_lists(*call.batch, call.vocab, b, m->rules.slot);
    if (!well) status |= FS_ROW_PEER;
    if (!status && !rules_drop_row(&m->rules)) {
        const size_t raw_list = wire_list_bytes(needs.keep_raw, 0),
                     list = wire_list_bytes(needs.keep, needs.raw_column);
        const size_t watch = wire_row_at(&call, b) + wire_row_bytes(&needs);
        merge_list(m, from, watch - raw_list - list, needs.keep, call.vocab, &m->into.list);
        merge_list(m, from, watch - raw_list, needs.keep_raw, call.vocab, &m->into.raw_list);
        merge_watched(call, from, watch, b);
        if (threadIdx.x == 0) m->into.watch = (fs_watch *)(from.part + watch);
    }
    __syncthreads();
    if (threadIdx.x != 0) return;
    m->rules.status |= status;
    if (!rules_drop_row(&m->rules)) merge_row(call, from, m->rules, b, &m->into, &m->next);
    finish_row(&call, b, &m->rules, &m->into, 0, 1, m->next.winner + needs.samples);
}

__global__ void __launch_bounds__(THREADS, 1)
    merge_lists(const __grid_constant__ fs_cuda_args args, const __grid_constant__ fs_cuda_gathered from,
                const __grid_constant__ fs_cuda_merging where) {
    extern __shared__ __align__(16) char shared[];
    __shared__ merging m;
    char *room = where.memory ? where.memory + blockIdx.x * where.bytes : shared;
    const fs_call call = call_of(args);
    for (int64_t b = blockIdx.x; b < args.batch.rows; b += gridDim.x) {
        merge_listed_row(&m, args, call, from, where, room, *where.wrong == 0, b);
        __syncthreads();
    }
}

} // namespace

extern "C" cudaError_t fs_cuda_seal_launch(const fs_cuda_args *args, void *part, int32_t sealed, cudaStream_t stream) {
    seal<<<1, THREADS, 0, stream>>>(*args, (char *)part, sealed);
    return cudaGetLastError();
}

extern "C" cudaError_t fs_cuda_merge_lists_open(int32_t shared_bytes) {
    return cudaFuncSetAttribute(merge_lists, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
}

extern "C" cudaError_t fs_cuda_merge_lists_launch(const fs_cuda_args *args, const fs_cuda_gathered *from,
                                                  const fs_cuda_merging *where, cudaStream_t stream) {
    const size_t shared = where->memory ? 0 : where->bytes;
    check<<<(unsigned)from->count, THREADS, 0, stream>>>(*args, *from, where->wrong);
    merge_lists<<<(unsigned)where->grid, THREADS, shared, stream>>>(*args, *from, *where);
    return cudaGetLastError();
}
