/* sample.h - the parts of `flashsample sample`: what was asked for, the call, what is printed. */
#ifndef FS_CLI_SAMPLE_H
#define FS_CLI_SAMPLE_H

#include "cli.h"
#include "rules.h"
#include "screen.h"

/* The options as they were given; texts are NULL where they were not. */
typedef struct sample_args {
    const char *head, *hidden, *logits, *synthetic;
    int bf16;
    int dtype; /* of synthetic weights; -1 = not given */
    int64_t first_token, vocab;
    int screen; /* FS_SCREEN_..., or SCREEN_NONE */
    const char *bias;
    int round_to;
    double scale, softcap, post_scale;

    rule_texts rules;
    const char *seed, *position, *substream, *slot;
    const char *allow, *allow_index, *edits, *seen, *counts, *count_list;
    const char *score_tokens, *watch;
    int mode, noise;
    int keep_ties; /* bits of FS_KEEP_TIES */
    int joint_top_p, min_p_last, cut_before_temperature, edits_last, exact_rank, rank_of_ties;
    int64_t samples, fallback_token, group_size, list_capacity;

    int logprobs; /* 0 = none, else 1 + FS_LOGITS_... */
    int64_t top, shards;
    int i64, json, quiet;
    const char *out;
    context_args context;
} sample_args;

/* The call those options mean. */
typedef struct sample_call {
    fs_head head;
    fs_batch batch; /* without its rules, */
    fs_rules rules; /* which are these */
    fs_result result;
    fs_counters counters; /* of the call */
    int64_t watch_count;
    screen_facts screen;
} sample_call;

sample_args parse_sample(int argc, char **argv);
/* Reads the files and fills head, batch and result; every array has its room. */
sample_call build_call(const sample_args *args);
/* The batch of that call; its head and the number of rows are there. */
void build_batch(const sample_args *args, sample_call *call);
void print_call(const sample_args *args, const sample_call *call, const char *context_text, double seconds);
void print_call_json(const sample_args *args, const sample_call *call, const char *context_text, double seconds);

#endif
