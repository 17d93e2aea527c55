/* hash.h - hashes of what ranks must agree on, and of the bytes they send each other. */
#ifndef FS_CORE_HASH_H
#define FS_CORE_HASH_H

#include "core.h"

/* Mixes a word into a hash: a changed bit changes every bit above it, the shift brings it down again. */
FS_CORE uint64_t hash_mix(uint64_t hash, uint64_t word) {
    hash = (hash ^ word) * 0x9E3779B97F4A7C15u;
    return hash ^ hash >> 32;
}

/* Of hashes that are to be added up, so that terms may come in any order, from any thread: a difference of one bit has
 * then reached every other, and terms that trade words cancel out as seldom as random numbers would. */
FS_CORE uint64_t hash_end(uint64_t hash) {
    return hash_mix(hash_mix(hash, 0), 0);
}

/* The hash of 64 bytes at a place. Sums of these hashes do not depend on their order. */
FS_CORE uint64_t hash_line(uint64_t place, const uint64_t *line) {
    uint64_t hash = hash_mix(0, place);
    for (int i = 0; i < 8; i++) hash = hash_mix(hash, line[i]);
    return hash_end(hash);
}

#endif
