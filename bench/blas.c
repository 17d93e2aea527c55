/* blas.c - a BLAS, if one is installed: loaded at run time, never needed; and whether it is the faster way to
 * multiply. */
#define _POSIX_C_SOURCE 200809L /* nanosleep */
#include "usual.h"
#include "cli.h"

#include <dlfcn.h>
#include <math.h>
#include <string.h>
#include <time.h>

/* ISO C has no cast from an object pointer to a function's: the address is copied. */
static int find(void *library, const char *name, void *to) {
    void *symbol = dlsym(library, name);
    memcpy(to, &symbol, sizeof symbol);
    return symbol != NULL;
}

int load_blas(blas *found) {
    static const struct {
        const char *name, *f32, *bf16, *file, *threads;
    } known[] = {{"OpenBLAS", "OpenBLAS f32", "OpenBLAS bf16", "libopenblas.so.0", "openblas_set_num_threads"},
                 {"BLIS", "BLIS f32", "BLIS bf16", "libblis.so.4", "bli_thread_set_num_threads"}};
    int n = 0;
    for (int i = 0; i < 2; i++) {
        void *library = dlopen(known[i].file, RTLD_NOW | RTLD_LOCAL);
        if (!library || !find(library, "cblas_sgemm", &found[n].sgemm)) continue;
        find(library, "cblas_sbgemm", &found[n].sbgemm);
        find(library, known[i].threads, &found[n].set_threads);
        found[n].name = known[i].name;
        found[n].f32 = known[i].f32;
        found[n++].bf16 = known[i].bf16;
    }
    return n;
}

void blas_rest(void) {
    nanosleep(&(struct timespec){.tv_nsec = 500000000}, NULL);
}

/* Row-major, W transposed: logits [B, V] = H [B, D] W^T. */
enum { ROW_MAJOR = 101, PLAIN = 111, TRANSPOSED = 112 };

static void multiply_sgemm(usual *u) {
    const int B = (int)u->B, V = (int)u->V, D = (int)u->D;
    usual_widen_hidden(u);
    u->library->sgemm(ROW_MAJOR, PLAIN, TRANSPOSED, B, V, D, 1.0f, u->hf, (int)(u->D + 15) / 16 * 16, u->wf, D, 0.0f,
                      u->logits, (int)u->ld);
}

static void multiply_sbgemm(usual *u) {
    const int B = (int)u->B, V = (int)u->V, D = (int)u->D;
    u->library->sbgemm(ROW_MAJOR, PLAIN, TRANSPOSED, B, V, D, 1.0f, u->h, D, u->w, D, 0.0f, u->logits, (int)u->ld);
}

/* Whether the first and the last row of logits are these [2, V], but for rounding. */
static int same_logits(const usual *u, const float *expected) {
    for (int last = 0; last < 2; last++) {
        const float *x = u->logits + (last ? u->B - 1 : 0) * u->ld, *y = expected + last * u->V;
        for (int64_t v = 0; v < u->V; v++)
            if (!(fabsf(x[v] - y[v]) <= 0.01f * (1.0f + fabsf(y[v])))) return 0;
    }
    return 1;
}

/* The best of three, after one that touches memory. */
static double seconds_of(usual *u) {
    double best = INFINITY;
    for (int i = 0; i < 4; i++) {
        const double begin = now();
        usual_matmul(u);
        if (i > 0) best = fmin(best, now() - begin);
    }
    return best;
}

/* Takes this way if it is right and faster than `best` seconds, which it then makes less. */
static void try_way(usual *u, usual *chosen, const float *expected, double *best) {
    memset(u->logits, 0xff, (size_t)(u->B * u->ld) * sizeof *u->logits); /* NaN */
    const double seconds = seconds_of(u);
    if (seconds >= *best || !same_logits(u, expected)) return;
    *best = seconds;
    *chosen = *u;
}

void usual_choose_matmul(usual *u, const blas *libraries, int count) {
    if (!count) return;
    float *expected = take_memory(2 * u->V, sizeof *expected, "logits to compare with");
    double best = seconds_of(u);
    for (int last = 0; last < 2; last++)
        memcpy(expected + last * u->V, u->logits + (last ? u->B - 1 : 0) * u->ld, (size_t)u->V * sizeof *expected);
    usual chosen = *u, way = *u;
    for (int i = 0; i < count; i++) {
        way.library = &libraries[i];
        if (way.library->set_threads) way.library->set_threads(u->threads);
        way.how = way.library->f32, way.multiply = multiply_sgemm;
        if (u->wf) try_way(&way, &chosen, expected, &best);
        way.how = way.library->bf16, way.multiply = multiply_sbgemm;
        if (way.library->sbgemm) try_way(&way, &chosen, expected, &best);
    }
    *u = chosen;
}
