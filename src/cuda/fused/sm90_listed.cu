/* sm90_listed.cu - Hopper's kernels for rows that are cut. */
#include "cuda/fused/sm90.cuh"

fs_cuda_sm90_kernel fs_cuda_sm90_listed(int64_t shape, bool f16) {
    return family::kernels<FS_CUDA_LISTED>[f16][shape];
}
