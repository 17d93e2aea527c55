#include "cuda_memory.h"
#include "cuda_backend.h"

#define ALIGNMENT 256
/* The least that is allocated: some fifteen captured calls; and one block for most that are not, since each is in pages
 * of its own. */
#define SLAB ((size_t)1 << 21)
/* Rows have as much in every call, so that what is zero between calls is in the same place in all. */
#define ROWS_BYTES (FS_CUDA_ROWS * sizeof(fs_cuda_row))
#define HISTORY_BYTES aligned(FS_SCREENS_KNOWN *FS_CUDA_SCREEN_KINDS * sizeof(fs_cuda_history))

static size_t aligned(size_t bytes) {
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* What is zero between calls, and what stays as it is. */
static size_t zero_bytes(const fs_cuda_room *room) {
    return ROWS_BYTES + HISTORY_BYTES + aligned(room->records_bytes);
}

size_t fs_cuda_room_bytes(const fs_cuda_room *room) {
    return zero_bytes(room) + aligned(room->parts_bytes);
}

static void place(fs_cuda_room *room, char *at) {
    room->work = (fs_cuda_row *)(void *)at;
    at += ROWS_BYTES;
    room->history = (fs_cuda_history *)(void *)at;
    at += HISTORY_BYTES;
    room->records = room->records_bytes ? (fs_group *)(void *)at : NULL;
    at += aligned(room->records_bytes);
    room->parts = room->parts_bytes ? at : NULL;
}

/* ------------------------------------------------------------------------------------------------------ blocks ---- */

/* Allocating disturbs captures, of any thread, unless this one says that it knows what it does: new memory is in no
 * graph yet. */
static enum cudaStreamCaptureMode exchange_mode(enum cudaStreamCaptureMode mode) {
    (void)cudaThreadExchangeStreamCaptureMode(&mode);
    return mode;
}

/* Zeroes memory that nothing uses, on a stream of its own, and waits for that. */
static cudaError_t zero(void *memory, size_t bytes) {
    cudaStream_t stream;
    cudaError_t error = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    if (error != cudaSuccess) return error;
    error = cudaMemsetAsync(memory, 0, bytes, stream);
    if (error == cudaSuccess) error = cudaStreamSynchronize(stream);
    cudaStreamDestroy(stream);
    return error;
}

/* A new block at the head of the list. */
static fs_status grow(fs_context *context, fs_cuda_block **list, size_t bytes) {
    fs_cuda_block *block = fs_context_alloc(context, sizeof *block, "a block of device memory");
    if (!block) return FS_ERR_MEMORY;
    memset(block, 0, sizeof *block);
    const enum cudaStreamCaptureMode before = exchange_mode(cudaStreamCaptureModeRelaxed);
    cudaError_t error = cudaMalloc((void **)&block->memory, bytes);
    if (error == cudaSuccess) error = zero(block->memory, bytes);
    if (error != cudaSuccess) {
        cudaFree(block->memory);
        (void)cudaGetLastError(); /* not left for the caller's next call to find */
    }
    (void)exchange_mode(before);
    if (error != cudaSuccess) {
        fs_context_free(context, block);
        return fs_fail(context, FS_ERR_MEMORY, "cuda: no %zu bytes of device memory for this call: %s", bytes,
                       cudaGetErrorString(error));
    }
    block->bytes = bytes;
    block->next = *list;
    *list = block;
    return FS_OK;
}

static void free_blocks(fs_context *context, fs_cuda_block *block) {
    while (block) {
        fs_cuda_block *next = block->next;
        cudaFree(block->memory);
        fs_context_free(context, block);
        block = next;
    }
}

void fs_cuda_memory_close(fs_context *context) {
    fs_cuda_memory *memory = &((fs_cuda *)context->state)->memory;
    const enum cudaStreamCaptureMode before = exchange_mode(cudaStreamCaptureModeRelaxed);
    /* Not the stream: its owner may have destroyed it. */
    if (memory->called || memory->slabs) (void)cudaDeviceSynchronize();
    free_blocks(context, memory->calls);
    free_blocks(context, memory->slabs);
    if (memory->event) (void)cudaEventDestroy(memory->event);
    (void)cudaGetLastError();
    (void)exchange_mode(before);
}

/* ----------------------------------------------------------------------------------------- the caller's memory ---- */

fs_status fs_cuda_memory_give(fs_context *context, void *given, size_t bytes) {
    fs_cuda *cuda = context->state;
    fs_cuda_memory *memory = &cuda->memory;
    FS_REQUIRE(context, (uintptr_t)given % ALIGNMENT == 0, "memory is %p, must be %d-byte aligned device memory", given,
               ALIGNMENT);
    if (given) {
        enum cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
        if (cuda->stream) FS_CUDA_TRY(context, cudaStreamIsCapturing(cuda->stream, &capturing));
        if (capturing != cudaStreamCaptureStatusNone)
            return fs_fail(context, FS_ERR_STATE, "work memory cannot be given while the stream is being captured");
        FS_CUDA_TRY(context, cuda->stream ? cudaStreamSynchronize(cuda->stream) : cudaDeviceSynchronize());
        FS_CUDA_TRY(context, zero(given, bytes));
    }
    memory->given = given;
    memory->front = 0;
    memory->back = bytes / ALIGNMENT * ALIGNMENT;
    memory->dirty_from = memory->dirty_end = 0;
    return FS_OK;
}

static fs_status too_small(fs_context *context, size_t bytes) {
    const fs_cuda_memory *memory = &((fs_cuda *)context->state)->memory;
    return fs_fail(context, FS_ERR_MEMORY,
                   "work memory of %zu bytes is too small: this call takes %zu (fs_work_size), captured ones hold %zu",
                   context->options.work_bytes, bytes,
                   context->options.work_bytes / ALIGNMENT * ALIGNMENT - memory->back);
}

/* ----------------------------------------------------------------------------------------------------- streams ---- */

fs_status fs_cuda_memory_leave_stream(fs_context *context, cudaStream_t next) {
    fs_cuda_memory *memory = &((fs_cuda *)context->state)->memory;
    /* Once is enough: what was left may be gone by now. */
    if (memory->changed || !memory->called || next == memory->used) return FS_OK;
    if (!memory->event) FS_CUDA_TRY(context, cudaEventCreateWithFlags(&memory->event, cudaEventDisableTiming));
    FS_CUDA_TRY(context, cudaEventRecord(memory->event, memory->used));
    memory->changed = 1;
    return FS_OK;
}

/* A call that is not captured, about to go to the context's stream. */
static fs_status enter_stream(fs_context *context) {
    fs_cuda *cuda = context->state;
    fs_cuda_memory *memory = &cuda->memory;
    if (memory->changed) FS_CUDA_TRY(context, cudaStreamWaitEvent(cuda->stream, memory->event, 0));
    memory->changed = 0;
    memory->called = 1;
    memory->used = cuda->stream;
    return FS_OK;
}

/* -------------------------------------------------------------------------------------------------------- room ---- */

static fs_status take_captured(fs_context *context, fs_cuda_room *room) {
    fs_cuda_memory *memory = &((fs_cuda *)context->state)->memory;
    const size_t bytes = fs_cuda_room_bytes(room);
    if (memory->given) {
        if (bytes > memory->back || memory->back - bytes < memory->front) return too_small(context, bytes);
        memory->back -= bytes;
        place(room, memory->given + memory->back);
        return FS_OK;
    }
    if (!memory->slabs || memory->slabs->bytes - memory->slabs->used < bytes)
        FS_TRY(grow(context, &memory->slabs, bytes > SLAB ? bytes : SLAB));
    place(room, memory->slabs->memory + memory->slabs->used);
    memory->slabs->used += bytes;
    return FS_OK;
}

static fs_status take_shared(fs_context *context, fs_cuda_room *room) {
    fs_cuda *cuda = context->state;
    fs_cuda_memory *memory = &cuda->memory;
    const size_t zeroes = zero_bytes(room), bytes = fs_cuda_room_bytes(room);
    char *region = memory->given;
    if (region) {
        if (bytes > memory->back) return too_small(context, bytes);
        if (bytes > memory->front) memory->front = bytes;
    } else {
        const size_t have = memory->calls ? memory->calls->bytes : 0;
        if (bytes > have) {
            const size_t least = have ? 2 * have : SLAB;
            FS_TRY(grow(context, &memory->calls, bytes > least ? bytes : least));
            memory->dirty_from = memory->dirty_end = 0;
        }
        region = memory->calls->memory;
    }
    if (memory->dirty_end > memory->dirty_from && zeroes > memory->dirty_from) {
        const size_t end = zeroes < memory->dirty_end ? zeroes : memory->dirty_end;
        FS_CUDA_TRY(context, cudaMemsetAsync(region + memory->dirty_from, 0, end - memory->dirty_from, cuda->stream));
        memory->dirty_from = end;
    }
    if (bytes > zeroes) {
        if (memory->dirty_end <= memory->dirty_from || zeroes < memory->dirty_from) memory->dirty_from = zeroes;
        if (bytes > memory->dirty_end) memory->dirty_end = bytes;
    }
    place(room, region);
    return FS_OK;
}

fs_status fs_cuda_memory_take(fs_context *context, fs_cuda_room *room) {
    fs_cuda *cuda = context->state;
    enum cudaStreamCaptureStatus capturing;
    FS_CUDA_TRY(context, cudaStreamIsCapturing(cuda->stream, &capturing));
    if (capturing != cudaStreamCaptureStatusNone) return take_captured(context, room);
    FS_TRY(enter_stream(context));
    return take_shared(context, room);
}
