/* sm90_logits.cu - Hopper's kernels that store dot products. */
#include "cuda/fused/sm90.cuh"

fs_cuda_sm90_kernel fs_cuda_sm90_logits(int64_t shape, bool f16) {
    return family::kernels<FS_CUDA_LOGITS>[f16][shape];
}
