/* backend.h - where a backend is chosen, and what a backend is: a struct of a few functions. Arguments have been
 * checked by check.c when they get here, as far as a host can check them. */
#ifndef FS_BACKEND_H
#define FS_BACKEND_H

#include "error.h"

#include "core/history.h"
#include "core/screen.h"

#include "flashsampling_ranks.h"

/* A row of a table of what a backend does not do: whether a call asks for it, and the words for that. */
typedef struct fs_lack {
    int asked;
    const char *words;
} fs_lack;

/* The words of the first row that is asked for; NULL: none is. */
const char *fs_first_lack(const fs_lack *table, size_t count);

typedef struct fs_backend {
    const char *name;
    int host_arrays; /* arrays of a batch can be read, and so checked, on the host */
    /* Allocates context->state and writes context->text. */
    fs_status (*open)(fs_context *context);
    void (*close)(fs_context *context);
    fs_status (*sample)(fs_context *context, const fs_head *head, const fs_batch *batch, const fs_result *result);
    /* The words, constant, for something in this call that the backend does not do, or NULL; calls are refused with
     * them. Without the function it does everything. */
    const char *(*lacks)(const fs_call_desc *call);
    /* Runs task(arg, i) for i = 0 .. count-1 on the context's threads; NULL: one after another. */
    void (*parallel)(fs_context *context, int32_t count, void (*task)(void *arg, int32_t i), void *arg);
    /* Each of the following may be NULL: not supported by this backend. */
    fs_status (*set_stream)(fs_context *context, void *stream);
    fs_status (*set_work)(fs_context *context, void *memory, size_t bytes);
    /* bytes[0] for common rows, bytes[1] for every row: see fs_work_size. */
    fs_status (*work_size)(fs_context *context, const fs_head *head, const fs_batch *batch, const fs_result *result,
                           size_t bytes[2]);
    /* With FS_CHECK_POINTERS: refuses one that the device cannot reach. NULL: there is nothing to needs. */
    fs_status (*check_pointer)(fs_context *context, const char *name, const void *pointer);
    /* fs_accept_drafts of device arrays. */
    fs_status (*accept)(fs_context *context, const fs_drafts *drafts);
    /* Screens that are not in host memory; src/screen does the same for those that are.
     * make_screen: writes the strips. sum_screen: adds up their hashes.
     * compare_screen: the last strip made of other weights, or -1; it compares a sample of each row, or all if `whole`.
     * copy: copies bytes, from and to anywhere, and waits. */
    fs_status (*make_screen)(fs_context *context, const fs_head *head, const fs_screen_header *header,
                             const fs_screen_options *options, void *screen);
    fs_status (*sum_screen)(fs_context *context, const fs_screen_header *header, const void *screen,
                            fs_screen_sums *sums);
    fs_status (*compare_screen)(fs_context *context, const fs_head *head, const fs_screen_header *header, int whole,
                                int64_t *strip);
    fs_status (*copy)(fs_context *context, void *to, const void *from, size_t bytes);
    /* `least`: entries that lists must be able to hold beyond what the batch asks for; 0 in a first round. */
    fs_status (*partial_size)(fs_context *context, const fs_head *head, const fs_batch *batch, const fs_result *result,
                              int32_t least, size_t *bytes);
    /* `sealed`: the part has its checksum. src/dist does without: it has checked shards itself, and its transport is
     * reliable. */
    fs_status (*partial)(fs_context *context, const fs_head *head, const fs_batch *batch, const fs_result *result,
                         int32_t least, int32_t sealed, void *part, size_t bytes);
    /* Without parts, as src/dist asks, it only takes the memory that a merge of `count` needs; the next call then has
     * it. What is sealed is checked: each part, and that together they are the vocabulary. */
    fs_status (*merge)(fs_context *context, const fs_head *head, const fs_batch *batch, const void *const *parts,
                       int32_t count, int32_t least, int32_t sealed, const fs_result *result);
    /* fs_sample_ranks of a backend whose arrays are not in host memory; NULL: src/dist does it with the three above.
     * `failed`: what is wrong on this rank already; it takes part all the same where it can. */
    fs_status (*sample_ranks)(fs_context *context, const fs_ranks *ranks, const fs_head *head, const fs_batch *batch,
                              const fs_result *result, fs_status failed);
} fs_backend;

struct fs_context {
    const fs_backend *backend;
    void *state;
    fs_options options;
    unsigned forks; /* fs_forks when it was created */
    void *exchange; /* src/dist: memory for what ranks send each other, grown as needed */
    size_t exchange_bytes;
    struct { /* src/dist: the shard that was last found to make a vocabulary with those of the other ranks */
        const void *ranks;
        int64_t first, rows, vocab;
    } adjoined;
    struct { /* src/screen: heads and screens that were found to belong together; */
        const void *data, *screen;
        size_t bytes; /* of the screen, as they were given: its memory may be another's by now */
        int64_t stride;
        fs_screen_header header;
    } screened[FS_SCREENS_KNOWN];
    fs_counters counters;    /* of the last call */
    int32_t screen, screens; /* which of them is this call's, and how many were put there */
    char text[160];
    char error[FS_ERROR_CHARS];
};

/* The backend for these options and the environment; NULL, with *status and this thread's text set, if there is
 * none. */
const fs_backend *fs_backend_choose(const fs_options *options, fs_status *status);

/* The backend of this kind; else FS_ERR_UNSUPPORTED, if it is not in this build, or FS_ERR_ARGUMENT, and constant
 * words. */
fs_status fs_backend_find(int32_t kind, const fs_backend **backend, const char **why);

/* The calls that follow go to this stream; NULL: the context's. Backends without streams take NULL alone. */
fs_status fs_backend_take_stream(fs_context *context, const char *name, void *cuda_stream);

/* Checks the environment variables of every backend, in this build or not: an invalid value is FS_ERR_ENVIRONMENT. */
fs_status fs_backend_environment(void);

/* Up to how many rows of a call screens are read, if the environment says so, for tests and measurements; else -1. */
fs_status fs_screen_most_rows(fs_context *context, int32_t *rows);

/* Calls options.progress, if there is one: this many strips of a screen of `all` rows are made. FS_ERR_CANCELLED if it
 * stops the build. */
fs_status fs_screen_progress(fs_context *context, const fs_screen_options *options, int64_t strips, int64_t all);

/* Forks between the process that loaded the library and this one, counted from the first fs_forks_watch() on. */
extern unsigned fs_forks;
fs_status fs_forks_watch(void);
/* Whether this process has the context by fork(): without its threads, and with locks as they were held. */
static inline int fs_context_inherited(const fs_context *context) {
    return context->forks != fs_forks;
}

/* The context's allocator. fs_context_alloc fails with FS_ERR_MEMORY and a text that says for what. */
void *fs_context_alloc(fs_context *context, size_t bytes, const char *what);
void fs_context_free(fs_context *context, void *memory);
/* One line to the log callback, if there is one. */
void fs_context_log(fs_context *context, const char *format, ...) __attribute__((format(printf, 2, 3)));

extern const fs_backend fs_backend_cpu;
extern const fs_backend fs_backend_cuda; /* where FS_WITH_CUDA is defined */
extern const fs_backend fs_backend_reference;

#endif
