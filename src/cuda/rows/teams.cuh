/* teams.cuh - launches of teams, a row each. */
#ifndef FS_CUDA_ROWS_TEAMS_CUH
#define FS_CUDA_ROWS_TEAMS_CUH

#include "cuda/cuda_plan.h"

#include <cuda_runtime_api.h>

static void config_of_teams(cudaLaunchConfig_t *config, cudaLaunchAttribute (&attribute)[2], int64_t teams,
                            const fs_cuda_team &team, bool overlap, cudaStream_t stream) {
    config->gridDim = dim3((unsigned)(teams * team.size));
    config->blockDim = dim3((unsigned)team.threads);
    config->dynamicSmemBytes = (size_t)team.shared_bytes;
    config->stream = stream;
    config->attrs = attribute;
    config->numAttrs = 0;
    if (team.size > 1) {
        cudaLaunchAttribute &a = attribute[config->numAttrs++];
        a.id = cudaLaunchAttributeClusterDimension;
        a.val.clusterDim.x = (unsigned)team.size;
        a.val.clusterDim.y = a.val.clusterDim.z = 1;
    }
    if (overlap) {
        cudaLaunchAttribute &a = attribute[config->numAttrs++];
        a.id = cudaLaunchAttributeProgrammaticStreamSerialization;
        a.val.programmaticStreamSerializationAllowed = 1;
    }
}

#endif
