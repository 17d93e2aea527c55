/* sm80.cu - the portable tile of the fused kernel, for every architecture from sm_80 on: logits of 128 tokens x N rows
 * by mma.sync, from W and H streamed through shared memory by cp.async. It takes data at any address, so on Hopper it
 * is also the tile for what the copy engine cannot.
 *
 *         W tile --cp.async--> ring --ldmatrix, mma.sync--> accumulators   (the rest: fused.cuh)
 *         H tile --cp.async-->
 *
 * Two teams of four warps take tiles in turn. A warp has 2 x 16 tokens, 64 apart, and all rows; while it multiplies 16
 * of K it reads the next 16. A stage of the ring is 64 of K, and the producers fill two at once, so that memory is
 * asked for 256 bytes of a row together (docs/notes/gpu-reading-weights.md, "256 bytes of a row at once").
 *
 * Cost model of one stage on an H200, which brings 64 of K of W in about 850 cycles. Shared memory, in cycles of 128
 * bytes: W in and out 128 + 128, H in N, H out 4 N, so N = 64 takes 576. The consumers alone, without copies, take
 * about 600 at N = 64, of them 512 the tensor cores. L2 gives W and, for H, N / 128 of it once more: at N = 64 it is 91
 * % busy (ncu, V = 128,256, D = 8,192).
 *
 * One K order for every token and every N, as on Hopper. So a logit does not depend on the batch, the shard or its
 * token's id. */
#include "cuda/fused/fused.cuh"

namespace {

constexpr int K = 64; /* elements of a stage: 128 bytes, so that a row of a stage is all banks once */
constexpr int ROW = K * 2;
constexpr int W_BYTES = FS_CUDA_TILE * ROW;
constexpr int BATCH = 16; /* rows of plain loads in flight */

/* W and H as they lie. */
struct matrices {
    const char *w, *h;
    int64_t w_stride, h_stride;
    int32_t w_unit, h_unit; /* bytes a copy can take at once: 16, 4, or 2 */
};

/* -------------------------------------------------------------------------------------------------------- load ---- */

/* The row of a stage holds 16-byte chunk c of its 64 elements at place c ^ (row % 8): eight rows at the same c, which
 * is what ldmatrix reads at once, then lie in different banks.
 *
 * Each loads `rows` rows, at most ROWS, by one warp: their first `columns` columns, and zeros for the others. The other
 * rows stay as they are: tokens past a piece are no candidates whatever their logit is, and H's last rows are zeros
 * from the start. */

/* 128 columns, 64 each to the stages at `to` and `next`. */
template <int ROWS>
FS_DEVICE void load_by_16(uint32_t to, uint32_t next, const char *from, int64_t stride, int32_t rows, int32_t columns) {
    const int32_t lane = threadIdx.x & 31, row = lane / 16, chunk = lane % 16; /* two rows at a time */
    const int32_t bytes = max(0, min(16, columns * 2 - chunk * 16));
    from += row * stride + chunk * 16;
    to = (chunk < 8 ? to : next) + row * ROW + ((chunk % 8 ^ row) << 4);
    /* Two rows further the other bits of row % 8 are the next ones. */
    auto place = [&](int i) { return (to ^ (2 * i % 8 << 4)) + i * 2 * ROW; };
    if (columns == 2 * K && rows == ROWS) {
#pragma unroll
        for (int i = 0; i < ROWS / 2; i++, from += 2 * stride) copy_16(place(i), from);
    } else if (columns == 2 * K) {
        /* Groups are straight-line code again: in one loop 48 rows took 1.42 of the ceiling, so 1.13 (H200,
         * 2026-11). */
        constexpr int GROUP = ROWS % 16 ? 8 : 16;
        int32_t done = 0;
#pragma unroll 1
        for (; done + GROUP <= rows; done += GROUP)
#pragma unroll
            for (int i = 0; i < GROUP / 2; i++, from += 2 * stride) copy_16(place(i) + done * ROW, from);
#pragma unroll 1
        for (; done + row < rows; done += 2, from += 2 * stride) copy_16((to ^ (done % 8 << 4)) + done * ROW, from);
    } else {
#pragma unroll 4
        for (int i = 0; row + 2 * i < rows; i++, from += 2 * stride) copy_some<16>(place(i), from, bytes);
    }
}

/* 64 columns. */
FS_DEVICE void load_by_4(uint32_t to, const char *from, int64_t stride, int32_t rows, int32_t columns) {
    const int32_t lane = threadIdx.x & 31; /* a row at a time */
    const int32_t bytes = max(0, min(4, columns * 2 - lane * 4));
    from += lane * 4;
#pragma unroll 8
    for (int row = 0; row < rows; row++, from += stride)
        copy_some<4>(to + row * ROW + ((lane * 4) ^ (row % 8 << 4)), from, bytes);
}

/* cp.async takes no less than four bytes, so these come through registers, and memory is waited for. */
FS_DEVICE void load_by_2(uint32_t to, const char *from, int64_t stride, int32_t rows, int32_t columns) {
    const int32_t lane = threadIdx.x & 31, column = 2 * lane;
    from += lane * 4;
#pragma unroll 1
    for (int base = 0; base < rows; base += BATCH) {
        uint16_t low[BATCH], high[BATCH];
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            const uint16_t *two = (const uint16_t *)(from + (base + i) * stride);
            low[i] = base + i < rows && column < columns ? two[0] : 0;
            high[i] = base + i < rows && column + 1 < columns ? two[1] : 0;
        }
#pragma unroll
        for (int i = 0; i < BATCH; i++)
            if (base + i < rows)
                store_shared_4(to + (base + i) * ROW + ((lane * 4) ^ (i % 8 << 4)), (uint32_t)high[i] << 16 | low[i]);
    }
}

template <int ROWS>
FS_DEVICE void load(uint32_t to, uint32_t next, const char *from, int64_t stride, int32_t unit, int32_t rows,
                    int32_t columns) {
    if (unit == 16) return load_by_16<ROWS>(to, next, from, stride, rows, columns);
#pragma unroll 1
    for (int half = 0; half < 2; half++, to = next, from += ROW, columns -= K)
        if (unit == 4) load_by_4(to, from, stride, rows, min(columns, K));
        else load_by_2(to, from, stride, rows, min(columns, K));
}

/* One instantiation: ROWS rows. */
template <int ROWS, int DTYPE = FS_BF16, fs_cuda_kind FOR = FS_CUDA_GROUPED> struct tile {
    static constexpr int N = ROWS, CLUSTER = 1, TEAMS = 2;
    static constexpr fs_cuda_kind KIND = FOR;
    static constexpr int SCORERS =
        2; /* and two producers: one cannot feed an SM, three bring no more (H200, 2026-11) */
    static constexpr int FILLERS = 64; /* every lane of both arrives when its copies are there */
    /* Tokens of a stage the first producer brings; the second brings the others and H, as many copies. */
    static constexpr int FIRST = (64 + N / 2) / 8 * 8;
    static constexpr int STAGE_BYTES = W_BYTES + N * ROW;
    /* The ring comes last and is as deep as the launch's shared memory: one kernel for every architecture's size of
     * it. */
    static constexpr int STAGES = 232448 / STAGE_BYTES; /* barriers for more than any device has room for */
    static constexpr int STATE_START = 0;
    static constexpr int BARRIER_START = ((int)sizeof(fs_tile_state<N, SCORERS>) + 15) / 16 * 16;
    static constexpr int RING_START = (BARRIER_START + 2 * STAGES * 8 + ROUNDS_BYTES<TEAMS> + ROW - 1) / ROW * ROW;
    typedef matrices source;
    using f16 = tile<ROWS, FS_F16, KIND>;
    using tokens = tile<ROWS, DTYPE, FS_CUDA_TOKENS>;
    using logits = tile<ROWS, DTYPE, FS_CUDA_LOGITS>;

    static FS_DEVICE_MEMBER void give_registers() {}

    static FS_DEVICE_MEMBER void take_registers() {}

    static FS_DEVICE_MEMBER int32_t stages() { return (int32_t)((dynamic_shared_bytes() - RING_START) / STAGE_BYTES); }

    static FS_DEVICE_MEMBER void advance(ring *r, int32_t stages) {
        if (++r->stage == stages) r->stage = 0, r->parity ^= 1;
    }

    /* To stage n of those a CTA's consumers take. */
    static FS_DEVICE_MEMBER void place(ring *r, int32_t n) {
        const int32_t depth = stages();
        r->stage = n % depth;
        r->parity = n / depth & 1;
    }

    /* Fills the ring, piece by piece, two stages at a time. Two warps, each its share of every stage. */
    static FS_DEVICE_MEMBER void produce(const matrices &from, const fs_cuda_args &args, char *shared, ring r) {
        const uint32_t start = shared_address(shared) + RING_START;
        const int32_t depth = stages();
        const int64_t dim = args.head.dim;
        const bool first = threadIdx.x < 32;
        const int32_t start_row = block_start(args), rows = min(args.rows - start_row, args.block_rows);
        const char *h = from.h + (args.first_row + start_row) * from.h_stride;
        /* Zeros where no row of the batch comes, once and for all stages; a copy of no bytes, so that they are there
         * when H is. */
        for (int32_t s = 0; s < depth && !first; s++)
#pragma unroll 1
            for (int32_t i = rows * (ROW / 16) + (threadIdx.x & 31); i < N * (ROW / 16); i += 32)
                copy_some<16>(start + s * STAGE_BYTES + W_BYTES + i * 16, args.work, 0);
        wait_for_earlier_launches();
        const share own = share_of<tile>(args);
        for (int32_t i = 0;; i++) {
            const piece p = piece_at<CLUSTER>(args, own, i);
            if (p.count < 0) return;
            const char *w = from.w + (p.first - args.head.first_token) * from.w_stride;
            for (int32_t step = 0; step < args.k_steps; step += 2) {
                const int64_t column = (int64_t)slice_at(args.k_order, step / 2) * 2 * K;
                const int32_t columns = (int32_t)min(dim - column, (int64_t)2 * K);
                uint32_t to[2], full[2];
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    to[half] = start + r.stage * STAGE_BYTES;
                    full[half] = r.full + 8 * r.stage;
                    barrier_wait(r.empty + 8 * r.stage, r.parity);
                    advance(&r, depth);
                }
                if (first)
                    load<FIRST>(to[0], to[1], w + column * 2, from.w_stride, from.w_unit, min(p.count, FIRST), columns);
                else {
                    load<FS_CUDA_TILE - FIRST>(to[0] + FIRST * ROW, to[1] + FIRST * ROW,
                                               w + FIRST * from.w_stride + column * 2, from.w_stride, from.w_unit,
                                               max(p.count - FIRST, 0), columns);
                    load<N>(to[0] + W_BYTES, to[1] + W_BYTES, h + column * 2, from.h_stride, from.h_unit, rows,
                            columns);
                }
                /* What was stored is released by an arrival of the lane itself, and by no other. */
                const bool stored = from.w_unit == 2 || from.h_unit == 2;
                if (stored) wait_for_copies();
#pragma unroll
                for (int half = 0; half < 2; half++)
                    if (stored) barrier_arrive(full[half]);
                    else barrier_arrive_after_copies(full[half]);
            }
        }
    }

    /* ---------------------------------------------------------------------------------------------------- dot ---- */

    /* What a warp multiplies at once: 2 x 16 tokens and N rows, 16 of K. */
    struct fragments {
        uint32_t w[2][4];
        uint32_t h[(N + 15) / 16][4];
    };

    /* Step i of the four of a stage. Addresses are this lane's, whose chunk ldmatrix hands on. The next 16 of K are two
     * chunks further: after the swizzle, other bits of the address. */
    static FS_DEVICE_MEMBER void load_fragments(fragments &f, uint32_t w, uint32_t h, int i) {
        load_matrices(f.w[0], w ^ 32 * i);
        load_matrices(f.w[1], (w ^ 32 * i) + 64 * ROW);
        if constexpr (N == 8) load_two_matrices(f.h[0], h ^ 32 * i);
        else
#pragma unroll
            for (int j = 0; j < N / 16; j++) load_matrices(f.h[j], (h ^ 32 * i) + j * 16 * ROW);
    }

    static FS_DEVICE_MEMBER void multiply(float (&d)[TEAMS][N / 2], const fragments &f) {
#pragma unroll
        for (int m = 0; m < TEAMS; m++)
#pragma unroll
            for (int j = 0; j < N / 8; j++)
                mma<DTYPE>(&d[m][4 * j], f.w[m], f.h[j / 2][j % 2 * 2], f.h[j / 2][j % 2 * 2 + 1]);
    }

    /* Every lane's reads of the stage are behind it when one lane gives it back. */
    static FS_DEVICE_MEMBER void release(const ring &r, int32_t stage) {
        __syncwarp();
        if ((threadIdx.x & 31) == 0) barrier_arrive(r.empty + 8 * stage);
    }

    /* The accumulators of one piece. The last of a stage's four steps is multiplied when the first of the next stage is
     * on its way; whether that is there is asked one step before, so that the answer is not waited for. */
    static FS_DEVICE_MEMBER void dot(float (&d)[TEAMS][N / 2], ring *r, int32_t k_steps, char *shared, int32_t warp) {
        const int32_t lane = threadIdx.x & 31, depth = stages();
        /* ldmatrix gives the fragments of mma.sync if lanes 0-7, 8-15, 16-23, 24-31 name, 8 rows each: of W tokens 0-7
         * and 8-15 at the first 8 of K, then both at the next 8; of H rows 0-7 at both, then rows 8-15 at both. */
        const int32_t w_row = warp % 4 * 16 + (lane & 15), h_row = (lane & 7) + (N == 8 ? 0 : (lane >> 4) * 8);
        const uint32_t start = shared_address(shared) + RING_START;
        const uint32_t w = start + w_row * ROW + ((lane >> 4 ^ (lane & 7)) << 4);
        const uint32_t h = start + W_BYTES + h_row * ROW + (((lane >> 3 & 1) ^ (lane & 7)) << 4);
        fragments f[2];
#pragma unroll
        for (int i = 0; i < N / 2; i++) d[0][i] = d[1][i] = 0.0f;
        barrier_wait(r->full + 8 * r->stage, r->parity);
        uint32_t at = r->stage * STAGE_BYTES;
        load_fragments(f[0], w + at, h + at, 0);
        for (int32_t step = 1;; step++) {
            const int32_t stage = r->stage;
            bool there = false;
#pragma unroll
            for (int i = 0; i < 3; i++) {
                if (i == 2) {
                    advance(r, depth);
                    there = barrier_is_over(r->full + 8 * r->stage, r->parity);
                }
                load_fragments(f[(i + 1) % 2], w + at, h + at, i + 1);
                multiply(d, f[i % 2]);
            }
            release(*r, stage);
            if (step == k_steps) break;
            if (!there) barrier_wait(r->full + 8 * r->stage, r->parity);
            at = r->stage * STAGE_BYTES;
            load_fragments(f[0], w + at, h + at, 0);
            multiply(d, f[1]);
        }
        multiply(d, f[1]);
    }
};

template <class T>
__global__ void __launch_bounds__(FS_THREADS, 1)
    fused(const __grid_constant__ matrices from, const __grid_constant__ fs_cuda_args args, int32_t shaped) {
    fused_kernel<T>(from, args, shaped);
}

/* -------------------------------------------------------------------------------------------------- launcher ---- */

/* Shared memory of a block, by architecture, largest first: 9.0, 10.x; 8.0, 8.7; 8.6, 8.9, 12.x. */
constexpr int ROOM[] = {232448, 166912, 101376};
constexpr int ROOMS = 3;

template <class T> constexpr fs_cuda_shape shape(int room) {
    const int stages = (ROOM[room] - T::RING_START) / T::STAGE_BYTES;
    return {T::N, 1, stages, K, T::TEAMS, T::RING_START + stages * T::STAGE_BYTES};
}

typedef void (*kernel)(const matrices, const fs_cuda_args, int32_t);

/* ROOMS shapes for each kernel, narrowest first and then deepest first: of equal ones cuda_plan.c takes the first that
 * fits. */
template <class... T> struct table {
    static constexpr fs_cuda_shape shapes[][ROOMS] = {{shape<T>(0), shape<T>(1), shape<T>(2)}...};
    static constexpr int32_t COUNT = sizeof...(T);
    /* By what the call is for, anything, tokens alone or dot products, and whether W is f16. */
    static constexpr kernel kernels[3][2][COUNT] = {
        {{fused<T>...}, {fused<typename T::f16>...}},
        {{fused<typename T::tokens>...}, {fused<typename T::tokens::f16>...}},
        {{fused<typename T::logits>...}, {fused<typename T::logits::f16>...}}};
};

/* Two strips of 96 rows are 96 accumulators and 64 of fragments, more than 168 registers. */
using family = table<tile<8>, tile<16>, tile<32>, tile<64>>;
static_assert(family::shapes[family::COUNT - 1][ROOMS - 1].stages >= 2, "two stages are filled at once");

int32_t unit_of(const void *data, int64_t stride) {
    const uintptr_t bits = (uintptr_t)data | (uintptr_t)stride;
    return bits % 16 == 0 ? 16 : bits % 4 == 0 ? 4 : 2;
}

} // namespace

extern "C" const fs_cuda_shape *fs_cuda_sm80_shapes(int32_t *count) {
    *count = family::COUNT * ROOMS;
    return family::shapes[0];
}

extern "C" cudaError_t fs_cuda_sm80_open(int32_t shared_bytes) {
    for (int32_t i = 0; i < family::COUNT * 6; i++) {
        const kernel run = family::kernels[i % 6 / 2][i % 2][i / 6];
        int32_t most = 0;
        for (const fs_cuda_shape &s : family::shapes[i / 6])
            if (s.shared_bytes <= shared_bytes && s.shared_bytes > most) most = s.shared_bytes;
        const cudaError_t error = cudaFuncSetAttribute(run, cudaFuncAttributeMaxDynamicSharedMemorySize, most);
        if (error != cudaSuccess) return error;
    }
    return cudaSuccess;
}

extern "C" cudaError_t fs_cuda_sm80_launch(const fs_cuda_plan *plan, const fs_cuda_args *args, int32_t shaped,
                                           cudaStream_t stream) {
    const int64_t i = (plan->shape - family::shapes[0]) / ROOMS;
    const fs_head *head = &args->head;
    const fs_matrix w = weights_of_head(head);
    const fs_matrix h = hidden_of_batch(head, &args->batch);
    const matrices from = {w.data, h.data, w.stride, h.stride, unit_of(w.data, w.stride), unit_of(h.data, h.stride)};
    /* Stages are filled two at a time: behind an odd number one of zeros. */
    fs_cuda_args even = *args;
    even.k_steps += even.k_steps % 2;
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attribute;
    config.gridDim = dim3((unsigned)plan->grid, (unsigned)plan->blocks);
    config.blockDim = dim3(FS_THREADS);
    config.dynamicSmemBytes = (size_t)plan->shape->shared_bytes;
    config.stream = stream;
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    config.attrs = &attribute;
    config.numAttrs = args->overlap && head->flags & FS_HEAD_CONSTANT;
    const fs_cuda_kind kind = call_kind(args, shaped);
    const int which = kind == FS_CUDA_LOGITS ? 2 : kind == FS_CUDA_TOKENS ? 1 : 0;
    return cudaLaunchKernelEx(&config, family::kernels[which][w.format != FS_FORMAT_BF16][i], from, even, shaped);
}
