/* sm90_kept.cu - Hopper's kernels for rows whose winners are looked at again (fused/raced.cu). */
#include "cuda/fused/sm90.cuh"

fs_cuda_sm90_kernel fs_cuda_sm90_kept(int64_t shape, bool f16) {
    return family::kernels<FS_CUDA_KEPT>[f16][shape];
}
