/* operands.cuh - from the numbers of a screen to bf16, as tensor instructions take them. */
#ifndef FS_CUDA_SCREEN_OPERANDS_CUH
#define FS_CUDA_SCREEN_OPERANDS_CUH

#include "cuda/device/ptx.cuh"

/* (w & mask) | more, of which an instruction takes one constant at most: the mask is in a register. */
FS_DEVICE uint32_t and_or(uint32_t w, uint32_t mask, uint32_t more) {
    uint32_t d;
    asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(d) : "r"(w), "r"(mask), "r"(more));
    return d;
}

/* A constant that stays in a register. */
FS_DEVICE uint32_t kept(uint32_t x) {
    asm volatile("" : "+r"(x));
    return x;
}

/* 128 as bf16, twice: below it an integer of 7 bits is added by putting it in. */
constexpr uint32_t FS_128 = 0x43004300u;

/* What operands are made with: a mask of the lower 4 or 7 bits, kept in a register. */
template <int BITS> FS_DEVICE uint32_t operand_mask() {
    return kept(BITS == 4 ? 0x000F000Fu : 0x007F007Fu);
}

/* Four registers of 16 tokens x 16 columns from a word of a lane's. Each number is more by FS_OFFSET, which is taken
 * off the sums. */
FS_DEVICE void operand_of_4(uint32_t (&a)[4], uint32_t w, uint32_t mask) {
#pragma unroll
    for (int i = 0; i < 4; i++) a[i] = and_or(w >> 4 * i, mask, FS_128);
}

/* The same from two words: 128 and the lower seven bits, less 128 or 256 by the sign. */
FS_DEVICE void operand_of_8(uint32_t (&a)[4], uint32_t w0, uint32_t w1, uint32_t mask) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint32_t own = (i & 1 ? w1 : w0) >> 8 * (i / 2);
        asm("fma.rn.bf16x2 %0, %1, %2, %3;"
            : "=r"(a[i])
            : "r"(and_or(own, ~mask & 0x00FF00FFu, FS_128)), "r"(0xBF80BF80u), "r"(and_or(own, mask, FS_128)));
    }
}

#endif
