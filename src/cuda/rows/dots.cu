/* dots.cu - dot products of any float types in float, for heads that have no tensor instructions of their own: f32
 * weights, and hidden states of another type than W. Correct, not fast: W is read once for 32 rows of the batch. */
#include "cuda/cuda_launch.h"
#include "cuda/rows/logits.cuh"

namespace {

constexpr int TOKENS = 64, ROWS = 32, DEPTH = 32, THREADS = 256; /* a tile, and a step in K */

/* A tile of numbers, [K][LINES + 1], from rows of a matrix. Zero past its ends. */
template <int LINES>
FS_DEVICE void load_tile(float (*to)[LINES + 1], const char *data, int64_t stride, int32_t format, int64_t first,
                         int64_t lines, int64_t k, int64_t dim) {
    for (int i = threadIdx.x; i < LINES * DEPTH; i += THREADS) {
        const int line = i / DEPTH, column = i % DEPTH;
        const bool there = first + line < lines && k + column < dim;
        to[column][line] = there ? number_at(data + (first + line) * stride, format, k + column) : 0.0f;
    }
}

/* Four tokens x two rows a thread, summed in the order of K. */
__global__ void __launch_bounds__(THREADS) dots(const __grid_constant__ fs_cuda_args args) {
    __shared__ float w[DEPTH][TOKENS + 1], h[DEPTH][ROWS + 1];
    const fs_matrix weights = weights_of_head(&args.head);
    const fs_matrix hidden = hidden_of_batch(&args.head, &args.batch);
    const int64_t first = (int64_t)blockIdx.x * TOKENS, row = (int64_t)blockIdx.y * ROWS;
    const int token = threadIdx.x % 16, pair = threadIdx.x / 16;
    float sum[4][2] = {};
    for (int64_t k = 0; k < args.head.dim; k += DEPTH) {
        load_tile<TOKENS>(w, weights.data, weights.stride, weights.format, first, args.head.rows, k, args.head.dim);
        load_tile<ROWS>(h, hidden.data, hidden.stride, hidden.format, args.first_row + row, args.first_row + args.rows,
                        k, args.head.dim);
        __syncthreads();
        for (int i = 0; i < DEPTH; i++)
#pragma unroll
            for (int t = 0; t < 4; t++)
#pragma unroll
                for (int r = 0; r < 2; r++) sum[t][r] = fmaf(w[i][token + 16 * t], h[i][pair + 16 * r], sum[t][r]);
        __syncthreads();
    }
#pragma unroll
    for (int t = 0; t < 4; t++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int64_t v = first + token + 16 * t, b = row + pair + 16 * r;
            if (v < args.head.rows && b < args.rows) args.dense.x[b * args.dense.stride + v] = sum[t][r];
        }
}

} // namespace

extern "C" cudaError_t fs_cuda_dots_launch(const fs_cuda_args *args, cudaStream_t stream) {
    const dim3 grid((unsigned)((args->head.rows + TOKENS - 1) / TOKENS), (unsigned)((args->rows + ROWS - 1) / ROWS));
    dots<<<grid, THREADS, 0, stream>>>(*args);
    return cudaGetLastError();
}
