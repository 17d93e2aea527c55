/* nccl_ranks.c - ranks of an NCCL communicator: see flashsampling_nccl.h. Compiled against the public headers alone. */
#define _POSIX_C_SOURCE 200809L
#include <flashsampling_nccl.h>

#include <cuda_runtime_api.h>

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define TEXT_CHARS 256
#define PAUSE 50000 /* nanoseconds between two looks: a stream's state costs the driver a lock */

typedef struct fs_nccl {
    fs_ranks ranks; /* first: what callers hold */
    ncclComm_t comm;
    uint32_t flags;
    int failed;
    char text[TEXT_CHARS];
} fs_nccl;

static _Thread_local char open_text[TEXT_CHARS];

static fs_status fail(char *text, fs_status status, const char *format, ...) __attribute__((format(printf, 3, 4)));
static fs_status fail(char *text, fs_status status, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(text, TEXT_CHARS, format, args);
    va_end(args);
    return status;
}

/* From here on ranks may be out of step. */
static fs_status break_off(fs_nccl *nccl, const char *what, ncclResult_t result) {
    const int abort_it = (nccl->flags & FS_NCCL_MAY_ABORT) && !nccl->failed;
    nccl->failed = 1;
    if (abort_it) (void)ncclCommAbort(nccl->comm);
    return fail(nccl->text, FS_ERR_PEER, "%s: %s%s", what, ncclGetErrorString(result),
                abort_it ? "; the communicator was aborted" : "");
}

/* ------------------------------------------------------------------------------------------------- collectives ---- */

/* A communicator made non-blocking says "in progress" where others have enqueued already. */
static fs_status settle(fs_nccl *nccl, const char *what, ncclResult_t result) {
    const struct timespec pause = {0, PAUSE};
    while (result == ncclInProgress) {
        if (ncclCommGetAsyncError(nccl->comm, &result) != ncclSuccess) result = ncclInternalError;
        if (result == ncclInProgress) nanosleep(&pause, NULL);
    }
    return result == ncclSuccess ? FS_OK : break_off(nccl, what, result);
}

static fs_status all_max(void *self, int64_t *values, int64_t count, void *stream) {
    fs_nccl *nccl = self;
    if (nccl->failed) return FS_ERR_STATE; /* the text still says what failed */
    return settle(nccl, "ncclAllReduce",
                  ncclAllReduce(values, values, (size_t)count, ncclInt64, ncclMax, nccl->comm, (cudaStream_t)stream));
}

static fs_status all_gather(void *self, const void *mine, void *all, size_t bytes, void *stream) {
    fs_nccl *nccl = self;
    if (nccl->failed) return FS_ERR_STATE;
    return settle(nccl, "ncclAllGather", ncclAllGather(mine, all, bytes, ncclUint8, nccl->comm, (cudaStream_t)stream));
}

static const char *error_text(void *self) {
    return ((fs_nccl *)self)->text;
}

/* -------------------------------------------------------------------------------------------------------- poll ---- */

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

fs_status fs_nccl_poll(fs_ranks *ranks, void *stream, double seconds, int32_t *done) {
    const struct timespec pause = {0, PAUSE};
    if (!ranks || !(seconds >= 0)) return FS_ERR_ARGUMENT;
    fs_nccl *nccl = ranks->self;
    const double end = now() + seconds;
    if (done) *done = 0;
    if (nccl->failed) return FS_ERR_STATE;
    for (;;) {
        ncclResult_t state = ncclSuccess;
        const ncclResult_t asked = ncclCommGetAsyncError(nccl->comm, &state);
        if (asked != ncclSuccess) return break_off(nccl, "ncclCommGetAsyncError", asked);
        if (state != ncclSuccess && state != ncclInProgress)
            return break_off(nccl, "the communicator has failed", state);
        const cudaError_t ran = cudaStreamQuery((cudaStream_t)stream);
        if (ran == cudaSuccess) {
            if (done) *done = 1;
            return FS_OK;
        }
        if (ran != cudaErrorNotReady)
            return fail(nccl->text, FS_ERR_DEVICE, "cudaStreamQuery: %s", cudaGetErrorString(ran));
        if (seconds == 0) return FS_OK;
        if (now() > end) {
            char what[96];
            snprintf(what, sizeof what, "the stream did not finish in %g s: a rank has died or stalled", seconds);
            return break_off(nccl, what, ncclInProgress);
        }
        nanosleep(&pause, NULL);
    }
}

/* ------------------------------------------------------------------------------------------------- open, close ---- */

const char *fs_nccl_error_text(void) {
    return open_text;
}

fs_status fs_nccl_open(ncclComm_t communicator, uint32_t flags, fs_ranks **out) {
    int rank, count;
    if (!out) return fail(open_text, FS_ERR_ARGUMENT, "out is NULL");
    *out = NULL;
    if (!communicator) return fail(open_text, FS_ERR_ARGUMENT, "communicator is NULL");
    if (flags & ~FS_NCCL_MAY_ABORT)
        return fail(open_text, FS_ERR_ARGUMENT, "flags is 0x%x, known is FS_NCCL_MAY_ABORT (1)", flags);
    ncclResult_t result = ncclCommUserRank(communicator, &rank);
    if (result == ncclSuccess) result = ncclCommCount(communicator, &count);
    if (result != ncclSuccess) return fail(open_text, FS_ERR_DEVICE, "nccl: %s", ncclGetErrorString(result));
    fs_nccl *nccl = calloc(1, sizeof *nccl);
    if (!nccl) return fail(open_text, FS_ERR_MEMORY, "cannot allocate %zu bytes", sizeof *nccl);
    nccl->comm = communicator;
    nccl->flags = flags;
    nccl->ranks = fs_ranks_default();
    nccl->ranks.rank = rank;
    nccl->ranks.count = count;
    nccl->ranks.device = 1;
    nccl->ranks.self = nccl;
    nccl->ranks.all_max = all_max;
    nccl->ranks.all_gather = all_gather;
    nccl->ranks.error_text = error_text;
    *out = &nccl->ranks;
    return FS_OK;
}

void fs_nccl_close(fs_ranks *ranks) {
    if (ranks) free(ranks->self);
}
