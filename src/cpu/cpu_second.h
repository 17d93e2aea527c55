/* cpu_second.h - the passes of a call: the first, and what becomes of rows that it leaves open. */
#ifndef FS_CPU_SECOND_H
#define FS_CPU_SECOND_H

#include "cpu_job.h"

/* Where a row is; in this order they have their turns. */
enum {
    FS_DONE,
    FS_DONE_WIDE, /* done, by stored logits, which it needed */
    FS_TO_READ,   /* a screen leaves too much open: a pass over W */
    FS_TO_STORE,  /* a pass that stores its logits, which end it (cpu_stored.h) */
    FS_TO_LIST,   /* lists with room for all that it can draw */
    FS_TO_PROVE   /* the same with exact masses: then nothing is in doubt */
};

/* Draws every row of a job that has its memory. *again: rows that took another pass; *extra_bytes: what was taken
 * beside the work memory. */
fs_status fs_job_draw(fs_job *job, fs_context *context, int64_t *again, size_t *extra_bytes);

/* Whether the first pass of a job is over the head's screen. */
int fs_job_screens(const fs_job *job, const fs_context *context);

/* Whether this call does not for once, because screens have left too many rows of its kind to W. Once a call. */
int fs_job_skips_screen(const fs_job *job, fs_context *context);

/* What that did; then the pass becomes one over W, in the same memory, for the rows that are to be read. Returns how
 * many. */
int32_t fs_job_leave_screen(fs_job *job, fs_context *context);

/* Makes the pass one of these rows that the first has left for this turn. Returns the bytes it takes. */
size_t fs_second_start(fs_job *job, fs_context *context, int32_t turn, const int32_t *row, int32_t rows);

/* The memory of second passes and stored logits is given back. */
void fs_second_free(fs_context *context);

#endif
