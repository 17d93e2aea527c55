/* core.h - what lets the files of this folder be compiled by gcc and by nvcc alike. */
#ifndef FS_CORE_CORE_H
#define FS_CORE_CORE_H

#include <stdint.h>
#include <string.h>

#if defined(__CUDACC__)
#define FS_CORE static __host__ __device__ __forceinline__
#else
#define FS_CORE static inline
#endif

FS_CORE uint32_t float_bits(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

FS_CORE float bits_float(uint32_t u) {
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

FS_CORE uint64_t double_bits(double x) {
    uint64_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

FS_CORE double bits_double(uint64_t u) {
    double x;
    memcpy(&x, &u, sizeof x);
    return x;
}

#endif
