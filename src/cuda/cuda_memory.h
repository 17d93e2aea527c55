/* cuda_memory.h - work memory of calls, and how calls of one context that share it keep apart.
 *
 * Calls that are enqueued follow each other on the context's stream and share one region. Where the stream changes, the
 * first call on the new one waits for the last on the old one. A call that is captured runs whenever its graph is
 * replayed, beside anything else: it has a region of its own, for as long as the context lives.
 *
 *   the context's own      calls:    one block, which grows                     captured: slabs, a piece each
 *   the caller's           calls:    from its front                             captured: from its end
 *
 * In a region the pass's rows and records are zero between calls, wherever a call puts them; what ranks exchange lies
 * behind them and is not. How screens have fared is zero at first and then nobody's but theirs. */
#ifndef FS_CUDA_MEMORY_H
#define FS_CUDA_MEMORY_H

#include "backend.h"
#include "cuda_call.h"

#include <cuda_runtime_api.h>

/* What a call asks for, and where it has it. */
typedef struct fs_cuda_room {
    fs_cuda_row *work;
    fs_cuda_history *history; /* [FS_SCREENS_KNOWN, FS_CUDA_SCREEN_KINDS] */
    fs_group *records;
    char *parts; /* those of ranks, and this rank's own; logits of rows with rules */
    size_t records_bytes, parts_bytes;
} fs_cuda_room;

typedef struct fs_cuda_block {
    struct fs_cuda_block *next;
    char *memory; /* on the device */
    size_t bytes, used;
} fs_cuda_block;

typedef struct fs_cuda_memory {
    fs_cuda_block *calls;         /* own: the newest serves, the others may still be in use */
    fs_cuda_block *slabs;         /* own: of captured calls */
    char *given;                  /* the caller's, or NULL */
    size_t front, back;           /* of it: above what calls have used, below what captured ones have */
    size_t dirty_from, dirty_end; /* of the region of calls: where parts were */
    cudaStream_t used;            /* where the last call went that was not captured */
    cudaEvent_t event;            /* ... recorded when the stream is changed; NULL: not yet made */
    int32_t called, changed;      /* there was such a call; its stream is no longer the context's */
} fs_cuda_memory;

/* Takes the caller's memory, or gives it back (NULL). Waits for the stream, which may still use it, and zeroes it. */
fs_status fs_cuda_memory_give(fs_context *context, void *memory, size_t bytes);
/* Before the context's stream becomes this one. */
fs_status fs_cuda_memory_leave_stream(fs_context *context, cudaStream_t next);
/* Room of the sizes that are set, on the context's stream, which then has waited for the calls before. */
fs_status fs_cuda_memory_take(fs_context *context, fs_cuda_room *room);
/* Bytes of such a room, for fs_work_size. */
size_t fs_cuda_room_bytes(const fs_cuda_room *room);
/* Waits for the device and frees everything. */
void fs_cuda_memory_close(fs_context *context);

#endif
