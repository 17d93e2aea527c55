/* sm90_grouped.cu - Hopper's kernels for draws by groups. */
#include "cuda/fused/sm90.cuh"

fs_cuda_sm90_kernel fs_cuda_sm90_grouped(int64_t shape, bool f16) {
    return family::kernels<FS_CUDA_GROUPED>[f16][shape];
}
