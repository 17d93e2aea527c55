/* sm90_tokens.cu - Hopper's kernels for tokens alone. */
#include "cuda/fused/sm90.cuh"

fs_cuda_sm90_kernel fs_cuda_sm90_tokens(int64_t shape, bool f16) {
    return family::kernels<FS_CUDA_TOKENS>[f16][shape];
}
