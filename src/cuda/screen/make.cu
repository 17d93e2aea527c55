/* make.cu - makes a screen of weights on the device, and compares one with its weights. */
#include "cuda/cuda_launch.h"
#include "cuda/device/ptx.cuh"

#include "core/strip.h"

namespace {

/* A thread for tokens g and g + 8 of a strip: 4 bits of them share their bytes. The same arithmetic as on the CPU, in
 * the same order, so the same bytes. */
__global__ void make(const __grid_constant__ fs_head head, const __grid_constant__ fs_screen_header header,
                     unsigned char *screen, int64_t from, int64_t to) {
    const int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) + from * (FS_SCREEN_TOKENS / 2);
    const int64_t number = i / (FS_SCREEN_TOKENS / 2);
    if (number >= to) return;
    const fs_weights weights = weights_of_head(&head);
    unsigned char *strip = screen + sizeof header + number * screen_strip_bytes(header.format, header.dim);
    const int at = (int)(i % (FS_SCREEN_TOKENS / 2));
    if (at == 0) ((fs_strip_head *)strip)->check = screen_check(&head, &weights, number);
#pragma unroll 1
    for (int half = 0; half < FS_SCREEN_TOKENS; half += 8) make_token(&header, &weights, number, at + half, strip);
}

__global__ void compare(const __grid_constant__ fs_head head, const __grid_constant__ fs_screen_header header,
                        int64_t count, unsigned long long *other) {
    const fs_weights weights = weights_of_head(&head);
    const fs_screen screen = screen_at(head.screen, &header);
    if ((int64_t)threadIdx.x >= count) return;
    const int64_t strip = screen_sample(&screen, (int64_t)threadIdx.x, count);
    const uint64_t check = screen_check(&head, &weights, strip);
    if (strip_head(screen_strip(&screen, strip))->check != check) atomicMax(other, (unsigned long long)strip + 1);
}

} // namespace

extern "C" cudaError_t fs_cuda_make_launch(const fs_head *head, const fs_screen_header *header, void *screen,
                                           int64_t from, int64_t to, cudaStream_t stream) {
    const int64_t threads = (to - from) * (FS_SCREEN_TOKENS / 2);
    make<<<(unsigned)((threads + 63) / 64), 64, 0, stream>>>(*head, *header, (unsigned char *)screen, from, to);
    return cudaGetLastError();
}

extern "C" cudaError_t fs_cuda_compare_launch(const fs_head *head, const fs_screen_header *header, int64_t count,
                                              uint64_t *other, cudaStream_t stream) {
    compare<<<1, (unsigned)count, 0, stream>>>(*head, *header, count, (unsigned long long *)other);
    return cudaGetLastError();
}
