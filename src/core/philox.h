/* philox.h - Philox4x32-10, the counter-based generator of Salmon et al. (SC 2011): a pure function of (key, counter).
 * Checked against Random123's published vectors in tests/vectors/noise.txt. Ten rounds; eight are the fewest with no
 * known flaw. */
#ifndef FS_CORE_PHILOX_H
#define FS_CORE_PHILOX_H

#include "core.h"

typedef struct fs_words {
    uint32_t w[4];
} fs_words;

/* A round, and the next round's keys. */
FS_CORE fs_words philox_round(fs_words c, uint32_t *key0, uint32_t *key1) {
    const uint64_t a = (uint64_t)0xD2511F53u * c.w[0], b = (uint64_t)0xCD9E8D57u * c.w[2];
    const fs_words out = {
        {(uint32_t)(b >> 32) ^ c.w[1] ^ *key0, (uint32_t)b, (uint32_t)(a >> 32) ^ c.w[3] ^ *key1, (uint32_t)a}};
    *key0 += 0x9E3779B9u;
    *key1 += 0xBB67AE85u;
    return out;
}

#ifndef FS_PHILOX /* set by code that wants one copy of it rather than one wherever it is called */
#define FS_PHILOX FS_CORE
#endif

FS_PHILOX fs_words philox4x32(uint32_t key0, uint32_t key1, uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3) {
    fs_words c = {{c0, c1, c2, c3}};
#ifdef FS_PHILOX_ROLLED /* set by code that runs too seldom to find ten rounds' instructions in the cache */
#pragma unroll 2
#endif
    for (int round = 0; round < 10; round++) c = philox_round(c, &key0, &key1);
    return c;
}

#endif
