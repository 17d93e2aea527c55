/* sm90_wide.cu - launches the pass over a screen for many rows, and what makes their image. */
#include "cuda/screen/wide_judge.cuh"

namespace {

template <int BITS>
__global__ void __launch_bounds__((fs_wide_room<BITS>::THREADS), 1)
    wide(const __grid_constant__ fs_wide_maps maps, const __grid_constant__ fs_cuda_args args,
         const __grid_constant__ fs_wide_image image, const char *from, int32_t stages, int32_t shaped) {
    extern __shared__ char shared[];
    typedef fs_wide_room<BITS> shared_room;
    const shared_room room(shared, image, stages);
    const int32_t warp = threadIdx.x / 32;
    if (threadIdx.x == 0) {
        for (int i = 0; i < stages; i++) {
            barrier_init(shared_address(&room.state->full[i]), 1);
            barrier_init(shared_address(&room.state->empty[i]), shared_room::CONSUMERS);
        }
        barrier_init(shared_address(&room.state->sums), 1);
        barrier_init(shared_address(&room.state->handed), shared_room::CONSUMERS);
        barrier_init(shared_address(&room.state->ready), FS_WIDE_JUDGES);
        room.state->over = room.state->queued = 0;
        room.state->stop = INT32_MAX;
        barrier_init_fence();
    }
    if (__syncthreads_or(threadIdx.x == 0 && leaves_to_weights(args))) {
        wait_for_earlier_launches(); /* what settles waits for this one alone, and reads what the image's has written */
        return;
    }
    if (warp < shared_room::CONSUMERS) {
        set_more_registers<200>();
        fs_wide_consumer<BITS> consumer = {args, room, fs_wide_walk(args.screen.of), {}, {}};
        consumer.run(image);
        return;
    }
    set_fewer_registers<104>();
    if (warp < shared_room::CONSUMERS + FS_WIDE_JUDGES) {
        wait_for_earlier_launches();
        let_next_launch_begin();
        fs_wide_judge<BITS> judge = {{args, room, shaped != 0, false}, fs_wide_walk(args.screen.of), {}, {}};
        judge.run(image, from);
    } else if (threadIdx.x % 32 == 0) wide_copies<BITS>(args, maps, image, from, room);
}

typedef void (*pass)(const fs_wide_maps, const fs_cuda_args, const fs_wide_image, const char *, int32_t, int32_t);
typedef void (*preparation)(const fs_cuda_args, const fs_wide_image, char *);

constexpr pass passes[2] = {wide<8>, wide<4>};
constexpr preparation preparations[2] = {make_image<8>, make_image<4>};

int32_t stages_of(bool four, const fs_wide_image *image, int32_t shared_bytes) {
    return four ? wide_stages<4>(image, shared_bytes) : wide_stages<8>(image, shared_bytes);
}

void configure(cudaLaunchConfig_t *config, cudaLaunchAttribute *attribute, unsigned ctas, unsigned threads,
               int64_t bytes, bool early, cudaStream_t stream) {
    config->gridDim = dim3(ctas);
    config->blockDim = dim3(threads);
    config->dynamicSmemBytes = (size_t)bytes;
    config->stream = stream;
    config->attrs = attribute;
    if (!early) return;
    attribute->id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute->val.programmaticStreamSerializationAllowed = 1;
    config->numAttrs = 1;
}

} // namespace

extern "C" int32_t fs_cuda_wide_fits(const fs_screen *s, int32_t shared_bytes) {
    const fs_wide_image image = wide_image(s);
    return stages_of(s->format == FS_SCREEN_INT4, &image, shared_bytes) >= 2;
}

extern "C" int64_t fs_cuda_wide_bytes(const fs_screen *s) {
    return wide_image(s).bytes;
}

extern "C" cudaError_t fs_cuda_wide_open(int32_t shared_bytes) {
    for (pass own : passes) {
        const cudaError_t error = cudaFuncSetAttribute(own, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
        if (error != cudaSuccess) return error;
    }
    return cudaSuccess;
}

extern "C" cudaError_t fs_cuda_wide_launch(const fs_cuda_args *args, const fs_wide_maps *maps, char *memory,
                                           int32_t processors, int32_t shared_bytes, int32_t shaped,
                                           cudaStream_t stream) {
    const fs_screen *s = &args->screen.of;
    const bool four = s->format == FS_SCREEN_INT4;
    const fs_wide_image image = wide_image(s);
    const int32_t stages = stages_of(four, &image, shared_bytes);
    const int64_t bytes = four ? wide_bytes<4>(&image, stages) : wide_bytes<8>(&image, stages);
    const int64_t units = (s->rows + FS_NOISE_BLOCK - 1) / FS_NOISE_BLOCK;
    const unsigned ctas = (unsigned)(units < processors ? units : processors);
    cudaLaunchAttribute attribute[1];
    cudaLaunchConfig_t config = {};
    configure(&config, attribute, (unsigned)image.records, FS_IMAGE_THREADS, 0, args->overlap != 0, stream);
    const cudaError_t error = cudaLaunchKernelEx(&config, preparations[four], *args, image, memory);
    if (error != cudaSuccess) return error;
    config = {};
    configure(&config, attribute, ctas, fs_wide_room<4>::THREADS, bytes, args->overlap != 0, stream);
    return cudaLaunchKernelEx(&config, passes[four], *maps, *args, image, (const char *)memory, stages, shaped);
}
