/* sm90_shaped.cu - Hopper's kernels for heads with a bias, rounding, scales or soft-cap, and largest logits. */
#include "cuda/fused/sm90.cuh"

fs_cuda_sm90_kernel fs_cuda_sm90_shaped(int64_t shape, bool f16) {
    return family::kernels<FS_CUDA_SHAPED>[f16][shape];
}
