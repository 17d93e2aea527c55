/* ranks.c - see ranks.h. The transport is loaded, not linked: one flashsample serves every MPI, and machines without
 * one. */
#define _POSIX_C_SOURCE 200809L /* access */
#include "ranks.h"
#include "cli.h"
#include "print.h"
#include "shards.h"

#include <dlfcn.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Who starts processes, and how they know it. */
static const struct {
    const char *mpi, *size, *rank, *local;
} launchers[] = {
    {"openmpi", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"mpich", "PMI_SIZE", "PMI_RANK", "MPI_LOCALNRANKS"},
};
#define LAUNCHERS ((int)(sizeof launchers / sizeof launchers[0]))

static struct {
    int asked;
    double seconds;
    fs_ranks *ranks;
    void (*close)(fs_ranks *);
} opened = {.seconds = 60};

/* The transport that the environment names, NULL if none is; known by name, or a file. */
static const char *forced_mpi(void) {
    return getenv("FLASHSAMPLING_MPI");
}

void check_transport(void) {
    static const char *const known[] = {"openmpi", "mpich", "mpi", "none"};
    const char *forced = forced_mpi();
    if (!forced) return;
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (strcmp(forced, known[i]) == 0) return;
    if (!strchr(forced, '/'))
        die(END_USAGE, "FLASHSAMPLING_MPI=%s is unknown; known are openmpi, mpich, mpi, none and files, with a /",
            forced);
    if (access(forced, R_OK) != 0) die(END_USAGE, "FLASHSAMPLING_MPI=%s: %s", forced, strerror(errno));
}

static int launcher(void) {
    const char *forced = forced_mpi();
    if (forced && strcmp(forced, "none") == 0) return -1;
    for (int i = 0; i < LAUNCHERS; i++)
        if (getenv(launchers[i].size)) return i;
    return -1;
}

static int number(const char *name, int otherwise) {
    const char *text = getenv(name);
    return text ? atoi(text) : otherwise;
}

int launched(void) {
    return launcher() >= 0;
}

int launch_rank(void) {
    return launcher() >= 0 ? number(launchers[launcher()].rank, 0) : 0;
}

int launch_local_count(void) {
    return launcher() >= 0 ? number(launchers[launcher()].local, 1) : 1;
}

int cores_of_rank(void) {
    const int n = cores() / launch_local_count();
    return n > 0 ? n : 1;
}

void ranks_set_deadline(double seconds) {
    opened.seconds = seconds;
}

static void close_ranks(void) {
    if (opened.ranks) opened.close(opened.ranks);
    opened.ranks = NULL;
}

/* A function of the transport; its address is copied because ISO C has no cast for it. */
static void find(void *library, const char *name, void *to) {
    void *symbol = dlsym(library, name);
    if (!symbol) die(END_RUNTIME, "the transport has no %s", name);
    memcpy(to, &symbol, sizeof symbol);
}

static void load(const char *mpi) {
    char file[512];
    uint32_t version = fs_version();
    if (strchr(mpi, '/')) snprintf(file, sizeof file, "%s", mpi);
    else if (version >> 16) snprintf(file, sizeof file, "libflashsampling_%s.so.%u", mpi, version >> 16);
    else snprintf(file, sizeof file, "libflashsampling_%s.so.0.%u", mpi, version >> 8 & 255);
    /* Global: Open MPI loads plugins that look for its symbols. */
    void *library = dlopen(file, RTLD_NOW | RTLD_GLOBAL);
    if (!library) die(END_RUNTIME, "started by mpirun, but the transport does not load: %s", dlerror());
    fs_status (*open_world)(double, fs_ranks **);
    const char *(*error_text)(void);
    find(library, "fs_mpi_open_world", &open_world);
    find(library, "fs_mpi_error_text", &error_text);
    find(library, "fs_mpi_close", &opened.close);
    if (open_world(opened.seconds, &opened.ranks) != FS_OK) die(END_RUNTIME, "%s", error_text());
    atexit(close_ranks);
}

const fs_ranks *ranks_open(void) {
    const int i = launcher();
    if (opened.asked) return opened.ranks;
    opened.asked = 1;
    check_transport();
    if (i < 0) return NULL;
    load(forced_mpi() ? forced_mpi() : launchers[i].mpi);
    if (opened.ranks->rank > 0) {
        progress_off();
        if (!freopen("/dev/null", "w", stdout)) die(END_RUNTIME, "/dev/null cannot be opened");
    }
    return opened.ranks;
}

fs_head ranks_slice(const fs_head *head) {
    const fs_ranks *ranks = ranks_open();
    return ranks ? head_shard(head, ranks->rank, ranks->count) : *head;
}

fs_status ranks_sample(fs_context *context, const fs_head *head, const fs_batch *batch, const fs_result *result) {
    const fs_ranks *ranks = ranks_open();
    if (!ranks) return fs_sample(context, head, batch, result);
    return fs_sample_ranks(context, ranks, head, batch, result);
}

/* ---------------------------------------------------------------------------------------------------- mistakes ---- */

typedef struct local_draw {
    float score;
    int32_t token;
} local_draw;

fs_status ranks_sample_with_same_noise(fs_context *context, const fs_head *head, const fs_batch *batch,
                                       const fs_result *result) {
    const fs_ranks *ranks = ranks_open();
    const int64_t n = batch->rows * batch->samples;
    fs_head own = ranks_slice(head);
    const int64_t first = own.first_token;
    own.first_token = 0; /* the mistake */
    own.vocab = own.rows;
    local_draw *mine = calloc((size_t)n, sizeof *mine),
               *all = calloc((size_t)(n * (ranks ? ranks->count : 1)), sizeof *all);
    float *score = calloc((size_t)n, sizeof *score);
    if (!mine || !all || !score) die(END_RUNTIME, "no memory for %lld draws", (long long)n);
    int32_t *tokens = result->tokens;
    fs_result local = *result;
    local.noisy_logit = score;
    for (int64_t i = 0; i < n; i++) tokens[i] = -1; /* what an empty slice draws */
    fs_status status = own.rows ? fs_sample(context, &own, batch, &local) : FS_OK;
    for (int64_t i = 0; i < n; i++) mine[i] = (local_draw){score[i], tokens[i] < 0 ? -1 : (int32_t)(tokens[i] + first)};
    if (ranks && status == FS_OK) status = ranks->all_gather(ranks->self, mine, all, (size_t)n * sizeof *mine, NULL);
    for (int64_t i = 0; ranks && i < n * ranks->count; i++) {
        local_draw *best = &mine[i % n];
        if (all[i].token >= 0 && (best->token < 0 || all[i].score > best->score)) *best = all[i];
    }
    for (int64_t i = 0; i < n; i++) tokens[i] = mine[i].token;
    free(mine);
    free(all);
    free(score);
    return status;
}

double ranks_max(double value) {
    const fs_ranks *ranks = ranks_open();
    int64_t words[2] = {(int64_t)llrint(value * 1e9), 0};
    if (!ranks) return value;
    if (ranks->all_max(ranks->self, words, 2, NULL) != FS_OK) die(END_RUNTIME, "%s", ranks->error_text(ranks->self));
    return (double)words[0] * 1e-9;
}
