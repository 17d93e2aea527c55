/* counted.h - an allocator for options.alloc that counts what is live and fails on one chosen request. */
#ifndef FS_TESTS_COUNTED_H
#define FS_TESTS_COUNTED_H

#include "support.h"

typedef struct counter {
    int64_t requests, fail_at, live_blocks;
    size_t live, most;
    struct {
        void *memory;
        size_t bytes;
    } block[64];
} counter;

static inline void *counted_alloc(void *user, size_t alignment, size_t bytes) {
    counter *c = user;
    if (++c->requests == c->fail_at) return NULL;
    void *memory = aligned_alloc(alignment, bytes);
    for (int i = 0; i < 64; i++)
        if (!c->block[i].memory) {
            c->block[i].memory = memory, c->block[i].bytes = bytes;
            c->live += bytes, c->live_blocks++;
            if (c->live > c->most) c->most = c->live;
            return memory;
        }
    fail_msg("more than 64 live blocks");
    return NULL;
}

static inline void counted_free(void *user, void *memory) {
    counter *c = user;
    for (int i = 0; i < 64; i++)
        if (c->block[i].memory == memory) {
            c->block[i].memory = NULL;
            c->live -= c->block[i].bytes, c->live_blocks--;
            free(memory);
            return;
        }
    fail_msg("freed memory that was never allocated");
}

static inline fs_options counted_options(counter *c, int32_t backend) {
    memset(c, 0, sizeof *c);
    fs_options options = fs_options_default();
    options.backend = backend;
    options.threads = 2;
    options.alloc = counted_alloc, options.free = counted_free, options.alloc_user = c;
    return options;
}

#endif
