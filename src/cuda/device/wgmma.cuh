/* wgmma.cuh - start: d = a b, add: d += a b, for 64 tokens x N rows x 16 of K, both operands in shared memory, K-major,
 * 128-byte swizzle. An instruction takes all of its N / 2 accumulators as operands, and inline assembly has no loops:
 * hence these macros. */
#ifndef FS_CUDA_WGMMA_CUH
#define FS_CUDA_WGMMA_CUH

#include "flashsampling.h"

#include <cstdint>

template <int N, int DTYPE> struct fs_wgmma;

/* clang-format off */
/* The first so many operands, by their numbers; */
#define FS_REGISTERS_4 "%0, %1, %2, %3"
#define FS_REGISTERS_8 FS_REGISTERS_4 ", %4, %5, %6, %7"
#define FS_REGISTERS_16 FS_REGISTERS_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define FS_REGISTERS_24 FS_REGISTERS_16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define FS_REGISTERS_32 FS_REGISTERS_24 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define FS_REGISTERS_48 FS_REGISTERS_32                                                                                \
    ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define FS_REGISTERS_64 FS_REGISTERS_48                                                                                \
    ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define FS_REGISTERS_72 FS_REGISTERS_64 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define FS_REGISTERS_80 FS_REGISTERS_72 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define FS_REGISTERS_88 FS_REGISTERS_80 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define FS_REGISTERS_96 FS_REGISTERS_88 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define FS_REGISTERS_104 FS_REGISTERS_96 ", %96, %97, %98, %99, %100, %101, %102, %103"
#define FS_REGISTERS_112 FS_REGISTERS_104 ", %104, %105, %106, %107, %108, %109, %110, %111"
#define FS_REGISTERS_120 FS_REGISTERS_112 ", %112, %113, %114, %115, %116, %117, %118, %119"
#define FS_REGISTERS_128 FS_REGISTERS_120 ", %120, %121, %122, %123, %124, %125, %126, %127"
/* what they are. */
#define FS_OPERANDS_4(of, i) of "f"(d[i]), of "f"(d[i + 1]), of "f"(d[i + 2]), of "f"(d[i + 3])
#define FS_OPERANDS_8(of, i) FS_OPERANDS_4(of, i), FS_OPERANDS_4(of, i + 4)
#define FS_OPERANDS_16(of, i) FS_OPERANDS_8(of, i), FS_OPERANDS_8(of, i + 8)
#define FS_OPERANDS_24(of, i) FS_OPERANDS_16(of, i), FS_OPERANDS_8(of, i + 16)
#define FS_OPERANDS_32(of, i) FS_OPERANDS_16(of, i), FS_OPERANDS_16(of, i + 16)
#define FS_OPERANDS_48(of, i) FS_OPERANDS_32(of, i), FS_OPERANDS_16(of, i + 32)
#define FS_OPERANDS_64(of, i) FS_OPERANDS_32(of, i), FS_OPERANDS_32(of, i + 32)
#define FS_OPERANDS_72(of, i) FS_OPERANDS_64(of, i), FS_OPERANDS_8(of, i + 64)
#define FS_OPERANDS_80(of, i) FS_OPERANDS_64(of, i), FS_OPERANDS_16(of, i + 64)
#define FS_OPERANDS_88(of, i) FS_OPERANDS_64(of, i), FS_OPERANDS_24(of, i + 64)
#define FS_OPERANDS_96(of, i) FS_OPERANDS_64(of, i), FS_OPERANDS_32(of, i + 64)
#define FS_OPERANDS_104(of, i) FS_OPERANDS_96(of, i), FS_OPERANDS_8(of, i + 96)
#define FS_OPERANDS_112(of, i) FS_OPERANDS_96(of, i), FS_OPERANDS_16(of, i + 96)
#define FS_OPERANDS_120(of, i) FS_OPERANDS_96(of, i), FS_OPERANDS_24(of, i + 96)
#define FS_OPERANDS_128(of, i) FS_OPERANDS_64(of, i), FS_OPERANDS_64(of, i + 64)
/* clang-format on */

/* One instruction; accumulators are written (of "=", more 0) or added to (of "+", more 1). */
#define FS_WGMMA_ONE(name, of, more, N, count, a_at, b_at, type)                                                       \
    static __device__ __forceinline__ void name(float(&d)[count], uint64_t a, uint64_t b) {                            \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " more ", 0;\n"                                                 \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." type "." type " {" FS_REGISTERS_##count         \
                     "}, %" #a_at ", %" #b_at ", p, 1, 1, 0, 0;\n}\n"                                                  \
                     : FS_OPERANDS_##count(of, 0)                                                                      \
                     : "l"(a), "l"(b));                                                                                \
    }

#define FS_WGMMA_OF(N, count, a_at, b_at, dtype, type)                                                                 \
    template <> struct fs_wgmma<N, dtype> {                                                                            \
        FS_WGMMA_ONE(start, "=", "0", N, count, a_at, b_at, type)                                                      \
        FS_WGMMA_ONE(add, "+", "1", N, count, a_at, b_at, type)                                                        \
    };

#define FS_WGMMA(N, count, a_at, b_at)                                                                                 \
    FS_WGMMA_OF(N, count, a_at, b_at, FS_BF16, "bf16")                                                                 \
    FS_WGMMA_OF(N, count, a_at, b_at, FS_F16, "f16")

FS_WGMMA(8, 4, 4, 5)
FS_WGMMA(16, 8, 8, 9)
FS_WGMMA(32, 16, 16, 17)
FS_WGMMA(48, 24, 24, 25)
FS_WGMMA(64, 32, 32, 33)
FS_WGMMA(96, 48, 48, 49)
FS_WGMMA(128, 64, 64, 65)
FS_WGMMA(144, 72, 72, 73)
FS_WGMMA(160, 80, 80, 81)
FS_WGMMA(176, 88, 88, 89)
FS_WGMMA(192, 96, 96, 97)
FS_WGMMA(208, 104, 104, 105)
FS_WGMMA(224, 112, 112, 113)
FS_WGMMA(240, 120, 120, 121)
FS_WGMMA(256, 128, 128, 129)

/* d = a b, d += a b, a in registers: of every warp 16 x 16, as mma.sync takes it. */
#define FS_WGMMA_FROM_ONE(name, of, more, N, count, a0, a1, a2, a3, b_at)                                              \
    static __device__ __forceinline__ void name(float(&d)[count], const uint32_t(&a)[4], uint64_t b) {                 \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " more ", 0;\n"                                                 \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" FS_REGISTERS_##count                 \
                     "}, {%" #a0 ", %" #a1 ", %" #a2 ", %" #a3 "}, %" #b_at ", p, 1, 1, 0;\n}\n"                       \
                     : FS_OPERANDS_##count(of, 0)                                                                      \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                            \
    }

#define FS_WGMMA_FROM(N, count, a0, a1, a2, a3, b_at)                                                                  \
    FS_WGMMA_FROM_ONE(wgmma_start_from, "=", "0", N, count, a0, a1, a2, a3, b_at)                                      \
    FS_WGMMA_FROM_ONE(wgmma_add_from, "+", "1", N, count, a0, a1, a2, a3, b_at)

FS_WGMMA_FROM(16, 8, 8, 9, 10, 11, 12)
FS_WGMMA_FROM(32, 16, 16, 17, 18, 19, 20)
FS_WGMMA_FROM(64, 32, 32, 33, 34, 35, 36)

/* Wider than the instruction is: two of them, side by side. */
template <int N, int DTYPE> struct fs_wgmma {
    static constexpr int FIRST = N / 32 * 16;
    static __device__ __forceinline__ void start(float (&d)[N / 2], uint64_t a, uint64_t b) {
        fs_wgmma<FIRST, DTYPE>::start((float(&)[FIRST / 2]) d[0], a, b);
        fs_wgmma<N - FIRST, DTYPE>::start((float(&)[(N - FIRST) / 2]) d[FIRST / 2], a, b + FIRST * 128 / 16);
    }
    static __device__ __forceinline__ void add(float (&d)[N / 2], uint64_t a, uint64_t b) {
        fs_wgmma<FIRST, DTYPE>::add((float(&)[FIRST / 2]) d[0], a, b);
        fs_wgmma<N - FIRST, DTYPE>::add((float(&)[(N - FIRST) / 2]) d[FIRST / 2], a, b + FIRST * 128 / 16);
    }
};

#endif
