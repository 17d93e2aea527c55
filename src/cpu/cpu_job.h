/* cpu_job.h - one call of any kind: its rows, its pass, its work memory, and how it runs. What becomes of its rows'
 * summaries, results (cpu_backend.c) or a part (cpu_parts.c), is the task of who runs it. */
#ifndef FS_CPU_JOB_H
#define FS_CPU_JOB_H

#include "cpu_pass.h"

/* A row's turn in a block costs some 200 ns however short that is, and logits in L3 less than shorter blocks
 * (docs/notes/cpu-draws.md, "row's turn in a block"); memory alone sets a limit, 4 MB a task. */
#define FS_BLOCK_LOGITS (1 << 20)
#define FS_BLOCK_MOST 1024

/* One call, laid out in the work memory: the rows' rules, then the pass. */
typedef struct fs_job {
    fs_call call;
    fs_pass pass;
    fs_row_rules *rules; /* [B] */
    int32_t *row;        /* [B] rows that take part */
    uint8_t *state;      /* [B] see cpu_second.h */
    fs_summary *kept;    /* [B] where there are lists, of rows whose results are not there: what the first pass knows */
    size_t pass_at;      /* the work memory before the pass */
    int32_t screened;    /* the first pass is over the head's screen, */
    int64_t screened_rows, screened_dots; /* which ended so many rows, with so many logits of W */
    int32_t turn;                         /* the state of the rows that the pass is for; 0: the first pass */
    int32_t grouped;                      /* the pass is one of the group modes */
    int32_t largest;                      /* see fs_pass */
} fs_job;

fs_job fs_job_of(const fs_head *head, const fs_batch *batch, const fs_result *result);

/* The same for a part: that is one group whatever the mode, so it is not grouped; and lists hold `least` entries, where
 * there are lists. */
fs_job fs_job_of_part(const fs_head *head, const fs_batch *batch, const fs_result *result, int32_t least);

/* Makes the pass one of these rows [rows], not yet laid out. */
void fs_job_start_pass(fs_job *job, fs_context *context, const int32_t *row, int32_t rows);

/* Bytes of work memory if every row takes part. */
size_t fs_job_size(const fs_job *job, fs_context *context);

/* Makes the context's work memory this large, all of it free. */
fs_status fs_work_reserve(fs_context *context, size_t bytes);

/* Lays the job out in the context's work memory. */
fs_status fs_job_take_memory(fs_job *job, fs_context *context);

/* Runs the pass; then tasks merge rows (fs_pass_merged), and do with them what is to be done. */
void fs_job_run(fs_job *job, void (*task)(void *arg, int32_t i));

#endif
