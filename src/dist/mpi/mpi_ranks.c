/* mpi_ranks.c - ranks of an MPI communicator: see flashsampling_mpi.h. Compiled once per MPI, against the public
 * headers alone.
 *
 * The largest over ranks is exchanged point to point, by dissemination: in step k = 1, 2, 4, ... each rank sends what
 * it has to the rank k above it and takes what the one k below has. A max may count a rank twice, so this needs no
 * power of two and ends after ceil(log2 ranks) steps, which is what MPI libraries do for short messages too. Unlike
 * MPI_Iallreduce it defines what happens when ranks come with different counts, and that is how ranks learn that their
 * calls differ: the values both have are compared. Gathering has one size on all ranks, agreed on before, and is
 * MPI_Iallgather.
 *
 * Memory MPI may still write to when an exchange is given up must stay: exchanges go through buffers of our own, which
 * are left behind with a transport that has failed. */
#define _POSIX_C_SOURCE 200809L
#include <flashsampling_mpi.h>

#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define TEXT_CHARS 256
/* Looks before the core is offered to others: some hundred microseconds, longer than a message takes on one machine. */
#define SPINS 2000
/* Nanoseconds between looks from then on. Ranks that share cores and only yield wait whole time slices: 7 ranks on 2
 * busy cores took 70 s for what takes 20 with a pause (2026-11). */
#define PAUSE 10000

typedef struct fs_mpi {
    fs_ranks ranks; /* first: what callers hold */
    MPI_Comm comm;
    double seconds;
    int failed;     /* ranks may be out of step: nothing more is exchanged */
    int finalise;   /* we initialised MPI */
    char *out, *in; /* what is being sent and received */
    size_t out_bytes, in_bytes;
    char text[TEXT_CHARS];
} fs_mpi;

static _Thread_local char open_text[TEXT_CHARS];

static fs_status fail(char *text, fs_status status, const char *format, ...) __attribute__((format(printf, 3, 4)));
static fs_status fail(char *text, fs_status status, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(text, TEXT_CHARS, format, args);
    va_end(args);
    return status;
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* From here on ranks may be out of step. */
static fs_status break_off(fs_mpi *mpi, fs_status status, const char *what, int code) {
    char words[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    mpi->failed = 1;
    if (code == MPI_SUCCESS) return fail(mpi->text, status, "%s", what);
    MPI_Error_string(code, words, &length);
    return fail(mpi->text, status, "%s: %.150s", what, words);
}

#define TRY_MPI(mpi, call)                                                                                             \
    do {                                                                                                               \
        int try_code = (call);                                                                                         \
        if (try_code != MPI_SUCCESS) return break_off(mpi, FS_ERR_PEER, #call, try_code);                              \
    } while (0)

#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        fs_status try_status = (call);                                                                                 \
        if (try_status != FS_OK) return try_status;                                                                    \
    } while (0)

/* ----------------------------------------------------------------------------------------------------- waiting ---- */

typedef struct watch {
    double end; /* 0: none */
    int spins;
} watch;

static watch watch_start(const fs_mpi *mpi) {
    watch w = {mpi->seconds > 0 ? now() + mpi->seconds : 0.0, 0};
    return w;
}

/* Called between two looks; says when it is enough. */
static fs_status watch_turn(fs_mpi *mpi, watch *w, int from) {
    if (++w->spins < SPINS) return FS_OK;
    if (w->end > 0 && now() > w->end) {
        char what[96];
        if (from >= 0)
            snprintf(what, sizeof what, "nothing came from rank %d in %g s: it has died or stalled", from,
                     mpi->seconds);
        else snprintf(what, sizeof what, "not all ranks came in %g s: one has died or stalled", mpi->seconds);
        return break_off(mpi, FS_ERR_PEER, what, MPI_SUCCESS);
    }
    const struct timespec pause = {0, PAUSE};
    nanosleep(&pause, NULL);
    return FS_OK;
}

static fs_status wait_for(fs_mpi *mpi, MPI_Request *request, watch *w, int from) {
    for (;;) {
        int done = 0;
        TRY_MPI(mpi, MPI_Test(request, &done, MPI_STATUS_IGNORE));
        if (done) return FS_OK;
        TRY(watch_turn(mpi, w, from));
    }
}

/* A rank without memory cannot take part, so the others are out of step with it. */
static fs_status reserve(fs_mpi *mpi, char **memory, size_t *have, size_t bytes) {
    if (bytes <= *have) return FS_OK;
    char *larger = realloc(*memory, bytes);
    if (!larger) {
        mpi->failed = 1;
        return fail(mpi->text, FS_ERR_MEMORY, "cannot allocate %zu bytes for an exchange", bytes);
    }
    *memory = larger;
    *have = bytes;
    return FS_OK;
}

/* ----------------------------------------------------------------------------------------------------- all_max ---- */

/* Receives what rank `from` sends, however long it is, into mpi->in. */
static fs_status receive(fs_mpi *mpi, int from, watch *w, size_t *bytes) {
    MPI_Message message;
    MPI_Status status;
    MPI_Request request;
    for (int there = 0; !there;) {
        TRY_MPI(mpi, MPI_Improbe(from, 0, mpi->comm, &there, &message, &status));
        if (!there) TRY(watch_turn(mpi, w, from));
    }
    int count = 0;
    TRY_MPI(mpi, MPI_Get_count(&status, MPI_BYTE, &count));
    *bytes = (size_t)count;
    TRY(reserve(mpi, &mpi->in, &mpi->in_bytes, *bytes));
    TRY_MPI(mpi, MPI_Imrecv(mpi->in, count, MPI_BYTE, &message, &request));
    return wait_for(mpi, &request, w, from);
}

static fs_status ready(fs_mpi *mpi, size_t bytes) {
    if (mpi->failed) return FS_ERR_STATE; /* the text still says what failed */
    if (bytes > INT_MAX)
        return fail(mpi->text, FS_ERR_UNSUPPORTED, "%zu bytes in one exchange, MPI counts to %d", bytes, INT_MAX);
    return FS_OK;
}

static fs_status all_max(void *self, int64_t *values, int64_t count, void *stream) {
    (void)stream;
    fs_mpi *mpi = self;
    const int rank = mpi->ranks.rank, ranks = mpi->ranks.count;
    const size_t bytes = (size_t)count * sizeof *values;
    TRY(ready(mpi, bytes));
    TRY(reserve(mpi, &mpi->out, &mpi->out_bytes, bytes));
    int step = 1;
    do { /* once even where there is one rank, so that every number of ranks takes the same way */
        const int to = (rank + step) % ranks, from = (rank + ranks - step % ranks) % ranks;
        watch w = watch_start(mpi);
        MPI_Request sending;
        size_t got = 0;
        memcpy(mpi->out, values, bytes);
        TRY_MPI(mpi, MPI_Isend(mpi->out, (int)bytes, MPI_BYTE, to, 0, mpi->comm, &sending));
        TRY(receive(mpi, from, &w, &got));
        TRY(wait_for(mpi, &sending, &w, to));
        for (size_t i = 0; i < got / sizeof *values && i < (size_t)count; i++) {
            int64_t theirs;
            memcpy(&theirs, mpi->in + i * sizeof theirs, sizeof theirs);
            if (theirs > values[i]) values[i] = theirs;
        }
        step *= 2;
    } while (step < ranks);
    return FS_OK;
}

/* -------------------------------------------------------------------------------------------------- all_gather ---- */

static fs_status all_gather(void *self, const void *mine, void *all, size_t bytes, void *stream) {
    (void)stream;
    fs_mpi *mpi = self;
    const size_t whole = bytes * (size_t)mpi->ranks.count;
    MPI_Request request;
    TRY(ready(mpi, bytes));
    TRY(reserve(mpi, &mpi->out, &mpi->out_bytes, bytes));
    TRY(reserve(mpi, &mpi->in, &mpi->in_bytes, whole));
    memcpy(mpi->out, mine, bytes);
    watch w = watch_start(mpi);
    TRY_MPI(mpi, MPI_Iallgather(mpi->out, (int)bytes, MPI_BYTE, mpi->in, (int)bytes, MPI_BYTE, mpi->comm, &request));
    TRY(wait_for(mpi, &request, &w, -1));
    memcpy(all, mpi->in, whole);
    return FS_OK;
}

static const char *error_text(void *self) {
    return ((fs_mpi *)self)->text;
}

/* ------------------------------------------------------------------------------------------------- open, close ---- */

const char *fs_mpi_error_text(void) {
    return open_text;
}

/* `finalise`: MPI ends with these ranks. */
static fs_status open_on(MPI_Comm communicator, double seconds, int finalise, fs_ranks **out) {
    int started = 0;
    if (!out) return fail(open_text, FS_ERR_ARGUMENT, "out is NULL");
    *out = NULL;
    if (!(seconds >= 0))
        return fail(open_text, FS_ERR_ARGUMENT, "seconds is %g, must be 0 (for ever) or more", seconds);
    MPI_Initialized(&started);
    if (!started) return fail(open_text, FS_ERR_STATE, "MPI is not initialised");
    fs_mpi *mpi = calloc(1, sizeof *mpi);
    if (!mpi) return fail(open_text, FS_ERR_MEMORY, "cannot allocate %zu bytes", sizeof *mpi);
    if (MPI_Comm_dup(communicator, &mpi->comm) != MPI_SUCCESS) {
        free(mpi);
        return fail(open_text, FS_ERR_PEER, "MPI_Comm_dup failed");
    }
    int rank, count;
    MPI_Comm_set_errhandler(mpi->comm, MPI_ERRORS_RETURN);
    MPI_Comm_rank(mpi->comm, &rank);
    MPI_Comm_size(mpi->comm, &count);
    mpi->seconds = seconds;
    mpi->finalise = finalise;
    mpi->ranks = fs_ranks_default();
    mpi->ranks.rank = rank;
    mpi->ranks.count = count;
    mpi->ranks.self = mpi;
    mpi->ranks.all_max = all_max;
    mpi->ranks.all_gather = all_gather;
    mpi->ranks.error_text = error_text;
    *out = &mpi->ranks;
    return FS_OK;
}

fs_status fs_mpi_open(MPI_Comm communicator, double seconds, fs_ranks **out) {
    return open_on(communicator, seconds, 0, out);
}

fs_status fs_mpi_open_world(double seconds, fs_ranks **out) {
    int started = 0, got;
    MPI_Initialized(&started);
    if (!started && MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &got) != MPI_SUCCESS)
        return fail(open_text, FS_ERR_STATE, "MPI_Init_thread failed");
    return open_on(MPI_COMM_WORLD, seconds, !started, out);
}

void fs_mpi_close(fs_ranks *ranks) {
    if (!ranks) return;
    fs_mpi *mpi = ranks->self;
    if (mpi->failed) return; /* MPI may still hold our buffers, and freeing a communicator waits for the others */
    const int finalise = mpi->finalise;
    MPI_Comm_free(&mpi->comm);
    free(mpi->out);
    free(mpi->in);
    free(mpi);
    if (finalise) MPI_Finalize();
}
