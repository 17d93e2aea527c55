/* accept.cu - fs_accept_drafts of sequences of one length: a thread a sequence. */
#include "cuda_launch.h"

#include "core/accept.h"

namespace {

constexpr int THREADS = 256;

__global__ void __launch_bounds__(THREADS)
    accept(int32_t dtype, int64_t sequences, int64_t k, const void *draft, const void *target, int32_t *accepted) {
    const int64_t s = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (s < sequences) accepted[s] = (int32_t)accept_count(dtype, k, draft, s * k, target, s * (k + 1));
}

} // namespace

extern "C" cudaError_t fs_cuda_accept_launch(int32_t dtype, int64_t sequences, int64_t k, const void *draft,
                                             const void *target, int32_t *accepted, cudaStream_t stream) {
    const int64_t ctas = (sequences + THREADS - 1) / THREADS;
    accept<<<(unsigned)ctas, THREADS, 0, stream>>>(dtype, sequences, k, draft, target, accepted);
    return cudaGetLastError();
}
