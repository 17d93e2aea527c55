/* sm90_masses.cu - Hopper's kernels for scores and log Z. */
#include "cuda/fused/sm90.cuh"

fs_cuda_sm90_kernel fs_cuda_sm90_masses(int64_t shape, bool f16) {
    return family::kernels<FS_CUDA_MASSES>[f16][shape];
}
