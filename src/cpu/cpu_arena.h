/* cpu_arena.h - work memory handed out front to back. An arena without memory counts only: the same layout function
 * then tells how much a call takes. */
#ifndef FS_CPU_ARENA_H
#define FS_CPU_ARENA_H

#include "core/core.h"

#include <stddef.h>

#define FS_ALIGNMENT 64 /* a cache line, and the widest vector */

typedef struct fs_arena {
    char *memory; /* FS_ALIGNMENT aligned, or NULL: count */
    size_t size;
    size_t used; /* may pass size: then the arena is too small by that much */
} fs_arena;

static inline void *arena_take(fs_arena *arena, size_t count, size_t bytes) {
    size_t at = arena->used;
    size_t want = (count * bytes + FS_ALIGNMENT - 1) / FS_ALIGNMENT * FS_ALIGNMENT;
    arena->used += want;
    return arena->memory && arena->used <= arena->size ? arena->memory + at : NULL;
}

static inline int arena_fits(const fs_arena *arena) {
    return arena->memory && arena->used <= arena->size;
}

#endif
