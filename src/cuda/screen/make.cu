/* make.cu - makes a screen of weights on the device, adds up its hashes, and compares one with its weights. */
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
    const fs_matrix weights = weights_of_head(&head);
    const fs_screen s = screen_at(screen, &header);
    unsigned char *strip = screen + (screen_strip(&s, number) - screen);
    const int at = (int)(i % (FS_SCREEN_TOKENS / 2));
    fs_strip_head *head_of_strip = (fs_strip_head *)strip;
    uint64_t hash = 0;
    if (at == 0) head_of_strip->sample = screen_sample_hash(&head, &weights, number);
#pragma unroll 1
    for (int half = 0; half < FS_SCREEN_TOKENS; half += 8)
        hash += make_token(&header, &s, &weights, number, at + half, strip);
    atomicAdd((unsigned long long *)&head_of_strip->weights, (unsigned long long)hash);
}

__device__ uint64_t sum_of_warp(uint64_t sum) {
    for (int half = 16; half > 0; half /= 2) sum += __shfl_xor_sync(~0u, sum, half);
    return sum;
}

/* A warp for a strip. sums[0]: of its weights' hashes; sums[1]: of its bytes. */
__global__ void sum_strips(const __grid_constant__ fs_screen_header header, const void *bytes,
                           unsigned long long *sums) {
    const fs_screen screen = screen_at(bytes, &header);
    const int64_t strip = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / 32;
    if (strip >= screen_strips(header.rows)) return;
    const unsigned char *at = screen_strip(&screen, strip);
    const int lane = threadIdx.x % 32;
    uint64_t sum = 0;
    for (int64_t line = lane * FS_SCREEN_LINE; line < screen.strip_bytes; line += 32 * FS_SCREEN_LINE) {
        ulonglong2 words[4];
        for (int i = 0; i < 4; i++) words[i] = ((const ulonglong2 *)(at + line))[i];
        const uint64_t eight[8] = {words[0].x, words[0].y, words[1].x, words[1].y,
                                   words[2].x, words[2].y, words[3].x, words[3].y};
        sum += hash_line((uint64_t)strip << 32 | (uint64_t)line, eight);
    }
    sum = sum_of_warp(sum);
    if (lane) return;
    atomicAdd(&sums[0], (unsigned long long)strip_head(at)->weights);
    atomicAdd(&sums[1], (unsigned long long)sum);
}

/* A warp for a strip: lanes 0 to 15 take a token each. *other: the last strip that differs, and one. */
__global__ void compare_strips(const __grid_constant__ fs_head head, const __grid_constant__ fs_screen_header header,
                               int whole, unsigned long long *other) {
    const fs_matrix weights = weights_of_head(&head);
    const fs_screen screen = screen_at(head.screen, &header);
    const int64_t strip = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / 32;
    if (strip >= screen_strips(header.rows)) return;
    const fs_strip_head *made = strip_head(screen_strip(&screen, strip));
    const int lane = threadIdx.x % 32;
    bool differs = false;
    if (whole) {
        const uint64_t hash = lane < FS_SCREEN_TOKENS ? token_hash(&head, &weights, strip, lane) : 0;
        differs = sum_of_warp(hash) != made->weights;
    } else if (lane == 0) {
        differs = screen_sample_hash(&head, &weights, strip) != made->sample;
    }
    if (lane == 0 && differs) atomicMax(other, (unsigned long long)strip + 1);
}

constexpr int FS_STRIPS = 4; /* of a block, a warp each */

unsigned blocks_of(const fs_screen_header *header) {
    return (unsigned)((screen_strips(header->rows) + FS_STRIPS - 1) / FS_STRIPS);
}

} // namespace

extern "C" cudaError_t fs_cuda_make_launch(const fs_head *head, const fs_screen_header *header, void *screen,
                                           int64_t from, int64_t to, cudaStream_t stream) {
    const int64_t threads = (to - from) * (FS_SCREEN_TOKENS / 2);
    make<<<(unsigned)((threads + 63) / 64), 64, 0, stream>>>(*head, *header, (unsigned char *)screen, from, to);
    return cudaGetLastError();
}

extern "C" cudaError_t fs_cuda_sum_launch(const fs_screen_header *header, const void *screen, uint64_t *sums,
                                          cudaStream_t stream) {
    sum_strips<<<blocks_of(header), 32 * FS_STRIPS, 0, stream>>>(*header, screen, (unsigned long long *)sums);
    return cudaGetLastError();
}

extern "C" cudaError_t fs_cuda_compare_launch(const fs_head *head, const fs_screen_header *header, int whole,
                                              uint64_t *other, cudaStream_t stream) {
    compare_strips<<<blocks_of(header), 32 * FS_STRIPS, 0, stream>>>(*head, *header, whole,
                                                                     (unsigned long long *)other);
    return cudaGetLastError();
}
