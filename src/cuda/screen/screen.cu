/* screen.cu - launches the pass over a screen, and what settles its rows. */
#include "cuda/screen/screened.cuh"
#include "cuda/screen/settle.cuh"

namespace {

typedef void (*kernel)(const fs_cuda_args, int32_t);

/* By rules, bits and rows. */
constexpr kernel passes[2][2][2] = {
    {{screened<8, 8, false>, screened<8, 16, false>}, {screened<4, 8, false>, screened<4, 16, false>}},
    {{screened<8, 8, true>, screened<8, 16, true>}, {screened<4, 8, true>, screened<4, 16, true>}}};

/* Shared memory of a pass; as for 4 bits, which need more. */
template <int N> int64_t bytes_of(int64_t records) {
    return N * (screened_pitch(records) + NORMS<4> * records * (int64_t)sizeof(float)) +
           (int64_t)sizeof(fs_screened_state<N>);
}

cudaError_t launch(kernel run, dim3 grid, int32_t threads, int64_t bytes, bool early, const fs_cuda_args *args,
                   int32_t shaped, cudaStream_t stream) {
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attribute[1];
    config.gridDim = grid;
    config.blockDim = dim3((unsigned)threads);
    config.dynamicSmemBytes = (size_t)bytes;
    config.stream = stream;
    config.attrs = attribute;
    if (early) {
        attribute[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attribute[0].val.programmaticStreamSerializationAllowed = 1;
        config.numAttrs = 1;
    }
    return cudaLaunchKernelEx(&config, run, *args, shaped);
}

} // namespace

extern "C" int32_t fs_cuda_screen_rows(int64_t dim, int64_t rows, int32_t shared_bytes) {
    const int64_t records = (dim + FS_SCREEN_SPAN - 1) / FS_SCREEN_SPAN;
    if (settle_bytes(dim) > shared_bytes) return 0;
    if (rows > 8 && bytes_of<16>(records) <= shared_bytes) return 16;
    return bytes_of<8>(records) <= shared_bytes ? 8 : 0;
}

extern "C" cudaError_t fs_cuda_screen_open(int32_t shared_bytes) {
    for (int i = 0; i < 8; i++) {
        const cudaError_t error = cudaFuncSetAttribute(passes[i / 4][i / 2 % 2][i % 2],
                                                       cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
        if (error != cudaSuccess) return error;
    }
    return cudaFuncSetAttribute(settle, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
}

extern "C" cudaError_t fs_cuda_screen_launch(const fs_cuda_args *args, int32_t rows, int32_t processors, int32_t shaped,
                                             cudaStream_t stream) {
    const fs_screen *s = &args->screen.of;
    const bool early = args->overlap && args->head.flags & FS_HEAD_CONSTANT;
    const int64_t tiles = (screen_strips(s->rows) + FS_JUDGES - 1) / FS_JUDGES;
    const unsigned ctas = (unsigned)(tiles < processors ? tiles : processors);
    return launch(passes[args->dense.x != NULL][s->format == FS_SCREEN_INT4][rows > 8], dim3(ctas), FS_SCREENED_THREADS,
                  rows > 8 ? bytes_of<16>(s->records) : bytes_of<8>(s->records), early, args, shaped, stream);
}

extern "C" cudaError_t fs_cuda_settle_launch(const fs_cuda_args *args, int32_t shaped, cudaStream_t stream) {
    const int32_t most = args->dense.x ? 4 * FS_MOST_SETTLERS : FS_MOST_SETTLERS;
    const int32_t settlers = args->rows > 512 / most ? 512 / args->rows : most;
    return launch(settle, dim3((unsigned)(settlers * args->rows)), FS_SETTLE_THREADS, settle_bytes(args->head.dim),
                  args->overlap != 0, args, shaped, stream);
}
