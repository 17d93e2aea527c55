/* decided.cuh - whether there is anything left to do. */
#ifndef FS_CUDA_DECIDED_CUH
#define FS_CUDA_DECIDED_CUH

#include "cuda/cuda_call.h"
#include "cuda/device/ptx.cuh"

/* Whether a screen has decided all rows of the call, and what reads W has nothing to do. */
FS_DEVICE bool is_decided(const fs_cuda_args &args) {
    if (!args.screen.open) return false;
    wait_for_earlier_launches();
    return *(volatile int32_t *)args.screen.open == 0;
}

#endif
