/* sm90.cu - launches Hopper's kernels. */
#include "cuda/fused/sm90.cuh"

namespace {

/* By fs_cuda_kind. */
constexpr fs_cuda_sm90_kernel (*kernels[FS_CUDA_KINDS])(int64_t, bool) = {
    fs_cuda_sm90_logits, fs_cuda_sm90_tokens, fs_cuda_sm90_masses, fs_cuda_sm90_shaped,
    fs_cuda_sm90_kept,   fs_cuda_sm90_listed, fs_cuda_sm90_grouped};

void configure(cudaLaunchConfig_t *config, cudaLaunchAttribute (&attribute)[2], const fs_cuda_shape *s, dim3 grid,
               bool early, cudaStream_t stream) {
    config->gridDim = grid;
    config->blockDim = dim3(FS_THREADS);
    config->dynamicSmemBytes = (size_t)s->shared_bytes;
    config->stream = stream;
    config->attrs = attribute;
    config->numAttrs = 0;
    if (s->cluster > 1) {
        cudaLaunchAttribute &a = attribute[config->numAttrs++];
        a.id = cudaLaunchAttributeClusterDimension;
        a.val.clusterDim.x = (unsigned)s->cluster;
        a.val.clusterDim.y = a.val.clusterDim.z = 1;
    }
    if (early) {
        cudaLaunchAttribute &a = attribute[config->numAttrs++];
        a.id = cudaLaunchAttributeProgrammaticStreamSerialization;
        a.val.programmaticStreamSerializationAllowed = 1;
    }
}

} // namespace

extern "C" const fs_cuda_shape *fs_cuda_sm90_shapes(int32_t *count) {
    *count = family::COUNT;
    return family::shapes;
}

extern "C" cudaError_t fs_cuda_sm90_open(int32_t *clusters_of_two) {
    *clusters_of_two = 0;
    for (int32_t i = 0; i < family::COUNT * 2 * FS_CUDA_KINDS; i++) {
        const int32_t shape = i % family::COUNT, which = i / family::COUNT;
        const fs_cuda_sm90_kernel run = kernels[which / 2](shape, which % 2);
        const fs_cuda_shape *s = &family::shapes[shape];
        if (!run) continue;
        cudaError_t error = cudaFuncSetAttribute(run, cudaFuncAttributeMaxDynamicSharedMemorySize, s->shared_bytes);
        if (error != cudaSuccess) return error;
        if (s->cluster != 2) continue;
        cudaLaunchConfig_t config = {};
        cudaLaunchAttribute attribute[2];
        configure(&config, attribute, s, dim3(2), false, 0);
        error = cudaOccupancyMaxActiveClusters(clusters_of_two, run, &config);
        if (error != cudaSuccess) return error;
    }
    return cudaSuccess;
}

extern "C" cudaError_t fs_cuda_sm90_launch(const fs_cuda_plan *plan, const fs_cuda_maps *maps, const fs_cuda_args *args,
                                           int32_t shaped, cudaStream_t stream) {
    const int64_t i = plan->shape - family::shapes;
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attribute[2];
    configure(&config, attribute, plan->shape, dim3((unsigned)plan->grid, (unsigned)plan->blocks),
              args->head.flags & FS_HEAD_CONSTANT, stream);
    const fs_cuda_kind kind = call_kind(args, shaped);
    return cudaLaunchKernelEx(&config, kernels[kind](i, format_of(args->head.dtype) != FS_FORMAT_BF16), *maps, *args,
                              shaped);
}
