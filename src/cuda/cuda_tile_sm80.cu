/* cuda_tile_sm80.cu - the portable tile of the fused kernel, for every architecture from sm_80 on: logits of 128 tokens x N rows by
 * mma.sync, from W and H streamed through shared memory by cp.async. It takes data at any address, so on Hopper it is also the tile for
 * what the copy engine cannot.
 *
 *         W tile --cp.async--> ring --ldmatrix, mma.sync--> accumulators   (the rest: cuda_fused.cuh)
 *         H tile --cp.async-->
 *
 * Two warps share 32 tokens, and each has half of every stage's K for all of them:
 *
 *                        K  0 .. 31    32 .. 63     of a stage of 64
 *   strip 2 q   (16)       warp 2 q    warp 2 q + 1
 *   strip 2 q + 1 (16)     warp 2 q    warp 2 q + 1
 *
 * After the last stage each gives the other its half of the other's strip. So a warp reads half of H for 32 tokens instead of all of it
 * for 16. Cost model of one stage, in cycles of 128 bytes from or to shared memory: W in and out 128 + 128, H in N, H out 4 N, and 8 N
 * without the halves. An H200 at 4.45 TB/s brings a stage of W in about 850 cycles; N = 64 takes 576 of them, 832 without the halves.
 *
 * One K order for every N: a pair of tiles starts at a K slice that depends on its global token ids alone, as on Hopper, and a logit is
 * the sum of its two halves, each in order. So a logit does not depend on the batch or the shard. */
#include "cuda_fused.cuh"

namespace {

constexpr int K = 64;   /* elements of a stage: 128 bytes, so that a row of a stage is all banks once */
constexpr int TURN = 5; /* slices of 128 in K a pair of tiles starts after its predecessor, as in cuda_tile_sm90.cu */
constexpr int ROW = K * 2;
constexpr int W_BYTES = FS_CUDA_TILE * ROW;
constexpr int BATCH = 16; /* rows of plain loads in flight */

/* W and H as they lie. */
struct matrices {
    const char *w, *h;
    int64_t w_stride, h_stride;
    int32_t w_unit, h_unit; /* bytes a copy can take at once: 16, 4, or 2 */
};

/* ---------------------------------------------------------------------------------------------------------- load ---- */

/* The row of a stage holds 16-byte chunk c of its 64 elements at place c ^ (row % 8): eight rows at the same c, which is what ldmatrix
 * reads at once, then lie in different banks.
 *
 * Each loads the first `columns` of 64 columns, and zeros for the others, of `rows` rows, at most ROWS, by one warp. The other rows stay
 * as they are: tokens past a piece are no candidates whatever their logit is, and H's last rows are zeros from the start. */
template <int ROWS>
FS_DEVICE void load_by_16(uint32_t to, const char *from, int64_t stride, int32_t rows, int32_t columns) {
    const int32_t lane = threadIdx.x & 31, row = lane / 8, chunk = lane % 8; /* four rows at a time */
    const bool whole = columns == K;
    const int32_t bytes = max(0, min(16, columns * 2 - chunk * 16));
    from += row * stride + chunk * 16;
    to += row * ROW + ((chunk ^ row) << 4);
    /* Four rows further another bit of row % 8 is set, or not. */
    auto place = [&](int i) { return (to ^ ((i & 1) << 6)) + i * 4 * ROW; };
    if (whole && rows == ROWS) {
#pragma unroll
        for (int i = 0; i < ROWS / 4; i++) copy_16(place(i), from + i * 4 * stride);
    } else if (whole) {
#pragma unroll 4
        for (int i = 0; row + 4 * i < rows; i++, from += 4 * stride) copy_16(place(i), from);
    } else {
#pragma unroll 1
        for (int i = 0; row + 4 * i < rows; i++, from += 4 * stride) copy_some<16>(place(i), from, bytes);
    }
}

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
FS_DEVICE void load(uint32_t to, const char *from, int64_t stride, int32_t unit, int32_t rows, int32_t columns) {
    if (unit == 16) load_by_16<ROWS>(to, from, stride, rows, columns);
    else if (unit == 4) load_by_4(to, from, stride, rows, columns);
    else load_by_2(to, from, stride, rows, columns);
}

/* One instantiation: ROWS rows. */
template <int ROWS, int DTYPE = FS_BF16> struct tile {
    static constexpr int N = ROWS, CLUSTER = 1, TEAMS = 1;
    static constexpr int JUDGES =
        2; /* and two producers: one brings a copy of 512 bytes each 28 cycles (H200, 2026-11) */
    static constexpr int FILLERS = 64; /* every lane of both arrives when its copies are there */
    /* Tokens of a stage the first producer brings; the second brings the others and H, as many copies. */
    static constexpr int FIRST = (64 + N / 2 + 7) / 8 * 8;
    static constexpr int STAGE_BYTES = W_BYTES + N * ROW;
    /* The ring comes last and is as deep as the launch's shared memory: one kernel for every architecture's size of it. */
    static constexpr int STAGES = 232448 / STAGE_BYTES; /* barriers for more than any device has room for */
    static constexpr int COURT_START = 0;
    static constexpr int BARRIER_START = ((int)sizeof(fs_court<N, JUDGES>) + 15) / 16 * 16;
    static constexpr int RING_START = (BARRIER_START + 2 * STAGES * 8 + rounds::BYTES + ROW - 1) / ROW * ROW;
    typedef matrices source;
    using f16 = tile<ROWS, FS_F16>;

    static FS_DEVICE_MEMBER void give_registers() {}

    static FS_DEVICE_MEMBER void take_registers() {}

    static FS_DEVICE_MEMBER int32_t stages() { return (int32_t)((dynamic_shared_bytes() - RING_START) / STAGE_BYTES); }

    static FS_DEVICE_MEMBER void advance(ring *r, int32_t stages) {
        if (++r->stage == stages) r->stage = 0, r->parity ^= 1;
    }

    static FS_DEVICE_MEMBER void begin(const matrices &, const fs_cuda_args &, char *, const ring &) {}

    /* Fills the ring, piece by piece, stage by stage. Two warps, each its share of every stage. */
    static FS_DEVICE_MEMBER void produce(const matrices &from, const fs_cuda_args &args, char *shared, ring r) {
        const uint32_t start = shared_address(shared) + RING_START;
        const int32_t depth = stages();
        const int64_t dim = args.head.dim;
        const bool first = threadIdx.x < 32;
        const char *h = from.h + args.first_row * from.h_stride;
        /* Zeros where no row of the batch comes, once and for all stages; a copy of no bytes, so that they are there when H is. */
        for (int32_t s = 0; s < depth && !first; s++)
#pragma unroll 1
            for (int32_t i = args.rows * (ROW / 16) + (threadIdx.x & 31); i < N * (ROW / 16); i += 32)
                copy_some<16>(start + s * STAGE_BYTES + W_BYTES + i * 16, args.work, 0);
        wait_for_earlier_launches();
        const share own = share_of<CLUSTER>(args);
        for (int32_t i = 0;; i++) {
            const piece p = piece_at<CLUSTER>(args, own, i);
            if (p.count < 0) return;
            const char *w = from.w + (p.first - args.head.first_token) * from.w_stride;
            int32_t k = (int32_t)((int64_t)p.pair * TURN % ((dim + 127) / 128)) * 2;
            for (int32_t step = 0; step < args.k_steps; step++) {
                const uint32_t to = start + r.stage * STAGE_BYTES, full = r.full + 8 * r.stage;
                const int64_t column = (int64_t)k * K;
                const int32_t columns = (int32_t)min(dim - column, (int64_t)K);
                barrier_wait(r.empty + 8 * r.stage, r.parity);
                if (first) load<FIRST>(to, w + column * 2, from.w_stride, from.w_unit, min(p.count, FIRST), columns);
                else {
                    load<FS_CUDA_TILE - FIRST>(to + FIRST * ROW, w + FIRST * from.w_stride + column * 2, from.w_stride,
                                               from.w_unit, max(p.count - FIRST, 0), columns);
                    load<N>(to + W_BYTES, h + column * 2, from.h_stride, from.h_unit, args.rows, columns);
                }
                if (from.w_unit == 2 || from.h_unit == 2) {
                    /* What was stored is released by an arrival of the lane itself, and by no other. */
                    wait_for_copies();
                    barrier_arrive(full);
                } else barrier_arrive_after_copies(full);
                advance(&r, depth);
                if (++k == args.k_steps) k = 0;
            }
        }
    }

    /* ---------------------------------------------------------------------------------------------------- dot ---- */

    /* Every lane's reads of the stage are behind it when one lane gives it back. */
    static FS_DEVICE_MEMBER void release(const ring &r) {
        __syncwarp();
        if ((threadIdx.x & 31) == 0) barrier_arrive(r.empty + 8 * r.stage);
    }

    /* This warp's 32 of a stage's K, for its own strip (d) and the other one of its pair. Addresses are this lane's, whose chunk ldmatrix
     * hands on. The next 16 of K are two chunks further: after the swizzle, one bit of the address the other way round. */
    static FS_DEVICE_MEMBER void dot_stage(float (&d)[N / 2], float (&other)[N / 2], uint32_t w, uint32_t w_other,
                                           uint32_t h) {
        uint32_t b[4];
        if constexpr (N == 8) load_matrices(b, h); /* both steps of 16 in one: eight rows x 32 */
#pragma unroll
        for (int i = 0; i < 2; i++) {
            uint32_t mine[4], theirs[4];
            load_matrices(mine, w ^ 32 * i);
            load_matrices(theirs, w_other ^ 32 * i);
            if constexpr (N == 8) {
                mma<DTYPE>(&d[0], mine, b[2 * i], b[2 * i + 1]);
                mma<DTYPE>(&other[0], theirs, b[2 * i], b[2 * i + 1]);
            } else {
#pragma unroll
                for (int j = 0; j < N / 16; j++) {
                    load_matrices(b, (h ^ 32 * i) + j * 16 * ROW);
                    mma<DTYPE>(&d[8 * j], mine, b[0], b[1]);
                    mma<DTYPE>(&other[8 * j], theirs, b[0], b[1]);
                    mma<DTYPE>(&d[8 * j + 4], mine, b[2], b[3]);
                    mma<DTYPE>(&other[8 * j + 4], theirs, b[2], b[3]);
                }
            }
        }
    }

    /* Adds the other warp's half of this strip. They meet in their strips of the last stage's W, which nobody else reads and which is not
     * given back before. */
    static FS_DEVICE_MEMBER void join(float (&d)[N / 2], const float (&other)[N / 2], char *w, int32_t warp) {
        constexpr int AT_ONCE = N / 2 < 16 ? N / 2 : 16; /* floats a lane has room for there: 16 rows of 128 bytes */
        const int32_t lane = threadIdx.x & 31, meeting = 2 + warp / 2;
        float4 *mine = (float4 *)(w + warp * 16 * ROW) + lane;
        const float4 *theirs = (const float4 *)(w + (warp ^ 1) * 16 * ROW) + lane;
#pragma unroll
        for (int at = 0; at < N / 2; at += AT_ONCE) {
            named_barrier(meeting, 64); /* both have read what lies there */
#pragma unroll
            for (int i = 0; i < AT_ONCE; i += 4)
                mine[i * 8] = make_float4(other[at + i], other[at + i + 1], other[at + i + 2], other[at + i + 3]);
            named_barrier(meeting, 64); /* both have written */
#pragma unroll
            for (int i = 0; i < AT_ONCE; i += 4) {
                const float4 more = theirs[i * 8];
                d[at + i] += more.x;
                d[at + i + 1] += more.y;
                d[at + i + 2] += more.z;
                d[at + i + 3] += more.w;
            }
        }
    }

    /* The accumulators of one piece. */
    static FS_DEVICE_MEMBER void dot(float (&sum)[1][N / 2], ring *r, int32_t k_steps, char *shared, int32_t warp) {
        float(&d)[N / 2] = sum[0];
        const int32_t lane = threadIdx.x & 31, depth = stages(), half = warp & 1;
        /* ldmatrix gives the fragments of mma.sync if lanes 0-7, 8-15, 16-23, 24-31 name, 8 rows each: of W tokens 0-7 and 8-15 at the
         * first 8 of K, then both at the next 8; of H rows 0-7 at both, then rows 8-15 at both; with N = 8 rows 0-7 at four. */
        const int32_t w_row = warp * 16 + (lane & 15), w_chunk = 4 * half + (lane >> 4);
        const int32_t h_row = N == 8 ? lane & 7 : (lane & 7) + (lane >> 4) * 8;
        const int32_t h_chunk = 4 * half + (N == 8 ? lane >> 3 : lane >> 3 & 1);
        const uint32_t w = w_row * ROW + ((w_chunk ^ (lane & 7)) << 4), w_other = w ^ 16 * ROW;
        const uint32_t h = W_BYTES + h_row * ROW + ((h_chunk ^ (lane & 7)) << 4);
        const uint32_t start = shared_address(shared) + RING_START;
        float other[N / 2];
#pragma unroll
        for (int i = 0; i < N / 2; i++) d[i] = other[i] = 0.0f;
        for (int32_t step = 0;;) {
            const uint32_t stage = start + r->stage * STAGE_BYTES;
            barrier_wait(r->full + 8 * r->stage, r->parity);
            dot_stage(d, other, stage + w, stage + w_other, stage + h);
            if (++step == k_steps) break;
            release(*r);
            advance(r, depth);
        }
        join(d, other, shared + RING_START + r->stage * STAGE_BYTES, warp);
        release(*r);
        advance(r, depth);
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
    return {T::N, 1, stages, K, T::RING_START + stages * T::STAGE_BYTES};
}

typedef void (*kernel)(const matrices, const fs_cuda_args, int32_t);

/* ROOMS shapes for each kernel, narrowest first and then deepest first: cuda_plan.c takes the first that is wide enough and fits. */
template <class... T> struct table {
    static constexpr fs_cuda_shape shapes[][ROOMS] = {{shape<T>(0), shape<T>(1), shape<T>(2)}...};
    static constexpr kernel bf16[] = {fused<T>...}, f16[] = {fused<typename T::f16>...};
    static constexpr int32_t COUNT = sizeof...(T);
};

/* Two strips of 96 rows are 96 accumulators, which leaves too few of 168 registers: it spills on sm_86. */
using family = table<tile<8>, tile<16>, tile<32>, tile<64>>;
static_assert(family::shapes[family::COUNT - 1][ROOMS - 1].stages >= 2, "one stage is filled while another is read");

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
    for (int32_t i = 0; i < family::COUNT; i++)
        for (kernel run : {family::f16[i], family::bf16[i]}) {
            int32_t most = 0;
            for (const fs_cuda_shape &s : family::shapes[i])
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
    const fs_batch *batch = &args->batch;
    const int64_t w_stride = head->stride ? head->stride : head->dim * 2;
    const int64_t h_stride = batch->hidden_stride ? batch->hidden_stride : head->dim * 2;
    const matrices from = {(const char *)head->data,      (const char *)batch->hidden,     w_stride, h_stride,
                           unit_of(head->data, w_stride), unit_of(batch->hidden, h_stride)};
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attribute;
    config.gridDim = dim3((unsigned)plan->grid);
    config.blockDim = dim3(FS_THREADS);
    config.dynamicSmemBytes = (size_t)plan->shape->shared_bytes;
    config.stream = stream;
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    config.attrs = &attribute;
    config.numAttrs = args->overlap && head->flags & FS_HEAD_CONSTANT;
    return cudaLaunchKernelEx(&config, head->dtype == FS_BF16 ? family::bf16[i] : family::f16[i], from, *args, shaped);
}
