/* random.h - a small deterministic generator: every test names its own seed. */
#ifndef FS_TESTS_RANDOM_H
#define FS_TESTS_RANDOM_H

#include <stdint.h>

/* splitmix64 */
typedef struct rng {
    uint64_t state;
} rng;

static inline rng random_from(uint64_t seed) {
    rng r = {seed * 0x9E3779B97F4A7C15u + 0x1234567u};
    return r;
}

static inline uint64_t random_next(rng *r) {
    uint64_t z = r->state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

#endif
