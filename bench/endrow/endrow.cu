/* endrow.cu - a prototype of a pass over W (pass.cuh) and its end (end.cuh), as a library of its own. */
#include "pass.cuh"
#include "end.cuh"

#include <cstdio>

namespace {

#ifdef ENDROW_SOME /* a quick look */
using tiles = table<tile<8, 1, 5, 2, 0, 2>>;
#define ENDROW_TILES(X) X(8, 1, 5, 2, 0, 2)
#else
#define ENDROW_TILES(X)                                                                                                \
    X(8, 1, 5, 2, 0, 2) X(48, 1, 4, 2, 0, 2) X(64, 1, 4, 2, 0, 2) X(128, 2, 3, 2, 0, 2) X(256, 2, 4, 1, 1, 1)
#endif

struct kernel {
    void (*pass)(const fs_cuda_maps, const fs_cuda_args, const endrow_record);
    int32_t rows, cluster, k, teams, bytes;
};

#define ENDROW_KERNEL(...)                                                                                             \
    {pass<tile<__VA_ARGS__, FS_BF16, FS_CUDA_LOGITS>>,                                                                 \
     tile<__VA_ARGS__>::N,                                                                                             \
     tile<__VA_ARGS__>::CLUSTER,                                                                                       \
     tile<__VA_ARGS__>::ATOMS * ATOM,                                                                                  \
     tile<__VA_ARGS__>::TEAMS,                                                                                         \
     PASS_BYTES<tile<__VA_ARGS__, FS_BF16, FS_CUDA_LOGITS>>},
const kernel kernels[] = {ENDROW_TILES(ENDROW_KERNEL)};

typedef CUresult (*encoder)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *,
                            const cuuint64_t *, const cuuint32_t *, const cuuint32_t *, CUtensorMapInterleave,
                            CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
encoder encode;
int32_t processors, pairs;

CUresult map_of(CUtensorMap *map, const void *data, int64_t rows, int64_t dim, int32_t box_rows) {
    const cuuint64_t size[2] = {(cuuint64_t)dim, (cuuint64_t)rows}, strides[1] = {(cuuint64_t)dim * 2};
    const cuuint32_t box[2] = {64, (cuuint32_t)box_rows}, step[2] = {1, 1};
    return encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, (void *)data, size, strides, box, step,
                  CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_NONE,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        const cudaError_t error_ = (call);                                                                             \
        if (error_ != cudaSuccess) return (int)error_;                                                                 \
    } while (0)

cudaLaunchConfig_t config_of(dim3 grid, int threads, int bytes, cudaStream_t stream, cudaLaunchAttribute *attribute) {
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = dim3((unsigned)threads);
    config.dynamicSmemBytes = (size_t)bytes;
    config.stream = stream;
    config.attrs = attribute;
    return config;
}

void cluster_of(cudaLaunchConfig_t *config, int32_t cluster) {
    if (cluster == 1) return;
    cudaLaunchAttribute &a = config->attrs[config->numAttrs++];
    a.id = cudaLaunchAttributeClusterDimension;
    a.val.clusterDim.x = (unsigned)cluster;
    a.val.clusterDim.y = a.val.clusterDim.z = 1;
}

} // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

/* Once; 0 or a CUDA error. */
EXPORT int endrow_open(void) {
    if (encode) return 0;
    cudaDriverEntryPointQueryResult found;
    void *entry = NULL;
    int device;
    TRY(cudaFree(0));
    TRY(cudaGetDevice(&device));
    TRY(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));
    for (const kernel &k : kernels) {
        TRY(cudaFuncSetAttribute(k.pass, cudaFuncAttributeMaxDynamicSharedMemorySize, k.bytes));
        if (k.cluster == 1) continue;
        cudaLaunchAttribute attribute[1];
        cudaLaunchConfig_t config = config_of(dim3(2), FS_THREADS, k.bytes, 0, attribute);
        cluster_of(&config, k.cluster);
        TRY(cudaOccupancyMaxActiveClusters(&pairs, k.pass, &config));
    }
    TRY(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &found));
    encode = (encoder)entry;
    return encode ? 0 : -1;
}

/* The tile for so many rows: its width, strips of a tile. 0: none. */
EXPORT int endrow_tile(int rows, int *strips) {
    for (const kernel &k : kernels)
        if (k.rows >= rows) {
            *strips = FS_STRIPS / k.teams;
            return k.rows;
        }
    return 0;
}

typedef struct endrow_call { /* all pointers are device memory */
    const void *w, *h;       /* [V, D], [rows, D] bf16, packed */
    int64_t vocab, dim, rows;
    float *logits;
    int64_t stride;
    float *most; /* [rows][strips] */
    int64_t strips;
    uint32_t *zero; /* rows + 2 ENDROW_ROUNDS: zero between calls */
    endrow_draw draw;
    int32_t passes, ends; /* what is launched */
    int32_t rounds;       /* that raise floors, at most */
} endrow_call;

EXPORT int endrow_launch(const endrow_call *call, void *stream_of) {
    const cudaStream_t stream = (cudaStream_t)stream_of;
    const int64_t V = call->vocab, D = call->dim, B = call->rows;
    const kernel *k = NULL;
    for (const kernel &each : kernels)
        if (!k && each.rows >= B) k = &each;
    if (!k || call->rounds > ENDROW_ROUNDS || V % FS_CUDA_TILE != 0 || D % 128 != 0) return -2;
    fs_cuda_maps maps;
    if (map_of(&maps.w_tile, call->w, V, D, FS_CUDA_TILE) || map_of(&maps.w_box, call->w, V, D, 16) ||
        map_of(&maps.h, call->h, B, D, k->rows / k->cluster))
        return -3;
    fs_cuda_args args;
    memset(&args, 0, sizeof args);
    args.head.rows = args.vocab = (int32_t)V;
    args.head.dim = D;
    args.head.scale = args.head.post_scale = 1.0f;
    args.rows = args.block_rows = (int32_t)B;
    args.k_steps = (int32_t)(D / k->k);
    const int64_t spans = (V + FS_CUDA_TILE * k->cluster - 1) / (FS_CUDA_TILE * k->cluster);
    int64_t clusters = k->cluster == 1 ? processors : pairs < processors / 2 ? pairs : processors / 2;
    if (clusters > spans) clusters = spans;
    if (clusters * k->cluster > 132) return -4; /* (pass_state::LIST) */
    args.schedule = {(uint32_t)(spans / clusters), (uint32_t)((spans % clusters * 65536 + clusters - 1) / clusters)};
    const int64_t slices = D / 128;
    while (slices >> (args.k_order.ways + 1) >= 16) args.k_order.ways++;
    args.k_order.stretch = (int32_t)(slices >> args.k_order.ways);
    args.k_order.rest = args.k_order.stretch << args.k_order.ways;
    const int32_t turns = (int32_t)args.schedule.turns;
    endrow_record record = {call->logits,
                            call->stride,
                            call->most,
                            call->strips,
                            call->zero,
                            call->zero + B,
                            call->zero + B + ENDROW_ROUNDS,
                            call->draw.top_k,
                            (int32_t)(V / FS_CUDA_TILE),
                            turns < call->rounds ? turns : call->rounds};
    if (call->passes) {
        cudaLaunchAttribute attribute[1];
        cudaLaunchConfig_t config =
            config_of(dim3((unsigned)(clusters * k->cluster)), FS_THREADS, k->bytes, stream, attribute);
        cluster_of(&config, k->cluster);
        TRY(cudaLaunchKernelEx(&config, k->pass, maps, args, record));
    }
    if (call->ends) {
        cudaLaunchAttribute attribute[1];
        cudaLaunchConfig_t config = config_of(dim3((unsigned)B), END_THREADS, 0, stream, attribute);
        attribute[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attribute[0].val.programmaticStreamSerializationAllowed = 1;
        config.numAttrs = 1;
        if (k->teams == 2) TRY(cudaLaunchKernelEx(&config, end_rows<4>, record, call->draw));
        else TRY(cudaLaunchKernelEx(&config, end_rows<8>, record, call->draw));
    }
    return 0;
}
