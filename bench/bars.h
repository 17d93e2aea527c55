/* bars.h - the bars of the CPU backend, see bars.c. */
#ifndef FS_BENCH_BARS_H
#define FS_BENCH_BARS_H

#include "cli.h"

typedef struct bars_args {
    int64_t vocab;
    double seconds; /* per batch size and shape */
    context_args context;
} bars_args;

int print_bars(const bars_args *args);

#endif
