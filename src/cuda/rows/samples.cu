/* samples.cu - samples of a row that are drawn as rows of their own, side by side, in one pass: row i of the launch is
 * sample i % n of row i / n of the batch. Each needs the hidden state of its row, so these are copied. */
#include "cuda/cuda_launch.h"
#include "cuda/device/ptx.cuh"

#include "core/head.h"

namespace {

constexpr int THREADS = 256;

/* A CTA a copy. */
__global__ void __launch_bounds__(THREADS) repeat_hidden(const __grid_constant__ fs_cuda_args args, uint16_t *copies) {
    wait_for_earlier_launches();
    let_next_launch_begin();
    const fs_matrix hidden = hidden_of_batch(&args.head, &args.batch);
    const uint16_t *from = (const uint16_t *)matrix_row(&hidden, blockIdx.x / (uint32_t)args.batch.samples);
    uint16_t *to = copies + blockIdx.x * open_stride(args.head.dim);
    const int32_t dim = (int32_t)args.head.dim, eights = (uint64_t)from % 16 ? 0 : dim / 8;
#pragma unroll 4
    for (int32_t i = threadIdx.x; i < eights; i += THREADS) ((uint4 *)to)[i] = ((const uint4 *)from)[i];
    for (int32_t k = 8 * eights + (int32_t)threadIdx.x; k < dim; k += THREADS) to[k] = from[k];
}

} // namespace

extern "C" cudaError_t fs_cuda_repeat_launch(const fs_cuda_args *args, void *copies, cudaStream_t stream) {
    repeat_hidden<<<(unsigned)(args->batch.rows * args->batch.samples), THREADS, 0, stream>>>(*args,
                                                                                              (uint16_t *)copies);
    return cudaGetLastError();
}
