/* core_vectors.cuh - the same cases on the host and on the device, value by value.
 *
 * A kind of cases is a struct without pointers and two functions: make() fills one, on the host, as a function of its
 * number alone; run() hands it to src/core and puts down what comes out, once on the host and once in a kernel, a
 * thread a case. run() may write into its case: each side has a copy.
 *
 * Values are equal in every bit but for what follows from the last bits of a logarithm: those of the C library and of
 * CUDA differ by an ulp or two of their type, and core says nowhere that they do not. So
 *   a score key      is a double rounded to 28 bits of mantissa: once in 2^24 an ulp is next to where that rounds, and
 *                    the key differs by a unit. Counted, and never more than a unit.
 *   a log            is a double rounded to float: by the same argument one float in 2^29 differs by an ulp. Counted,
 *                    and at most one of 100,000. Where little is left of two large numbers, log Z - l of a token that
 *                    has all of the mass, an ulp of the double is many of the float: counted as cancelled, and never
 *                    more than some ulps of the double. So is a 0 of the other sign, which fmax may choose.
 *   a loose one      is a float that comes of logf or tanhf itself (fast noise, soft-cap): some ulps of it, or of 8.
 * The sign and the payload of a NaN differ between processors, so all of them are one. */
#ifndef FS_CORE_VECTORS_CUH
#define FS_CORE_VECTORS_CUH

#include "core/list.h"
#include "core/mass.h"

#include "../c/random.h"

#include <initializer_list>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <vector>

enum { SAME, KEY, LOG, LOOSE, HOWS };
enum { MOST = 448, BATCH = 2048, PLACES = 32 };

/* What only the host's first run leaves: names of values, and how often a place was reached. */
typedef struct remarks {
    const char *name[MOST];
    const char *place[PLACES];
    int64_t times[PLACES];
} remarks;

/* What a run has put down. */
typedef struct record {
    int32_t count;
    int32_t planted; /* 1: the case is to be changed in its last bit somewhere */
    float reach;     /* how large the numbers were whose differences are logs */
    remarks *said;   /* or NULL */
    uint8_t how[MOST];
    uint64_t value[MOST];
} record;

/* --------------------------------------------------------------------------------------- for run(), both sides ---- */

FS_CORE void put_as(record *out, int how, const char *name, uint64_t value) {
    if (out->count < MOST) {
        out->how[out->count] = (uint8_t)how;
        out->value[out->count] = value;
        if (out->said) out->said->name[out->count] = name;
    }
    out->count++;
}

FS_CORE uint64_t bits_of(float x) {
    return x != x ? 0x7FC00000u : float_bits(x);
}

FS_CORE void put(record *out, const char *name, uint64_t value) {
    put_as(out, SAME, name, value);
}

FS_CORE void put_float(record *out, const char *name, float x) {
    put_as(out, SAME, name, bits_of(x));
}

FS_CORE void put_double(record *out, const char *name, double x) {
    put_as(out, SAME, name, x != x ? 0x7FF8000000000000u : double_bits(x));
}

FS_CORE void put_key(record *out, const char *name, uint64_t key) {
    put_as(out, KEY, name, key);
}

FS_CORE void put_log(record *out, const char *name, float x) {
    put_as(out, LOG, name, bits_of(x));
}

FS_CORE void put_loose(record *out, const char *name, float x) {
    put_as(out, LOOSE, name, bits_of(x));
}

FS_CORE void put_mass(record *out, const fs_mass *m) {
    put(out, "top", (uint32_t)m->top);
    for (int i = 0; i < 3; i++) put(out, "limb", m->limb[i]);
}

FS_CORE void put_list(record *out, const fs_list *list) {
    put(out, "count", (uint32_t)list->count);
    put(out, "bound", list->bound);
    for (int32_t i = 0; i < list->count; i++) put(out, "key", list->key[i]);
    for (int32_t i = 0; list->raw && i < list->count; i++) put_float(out, "raw", list->raw[i]);
}

/* So large a number has a part in what is put down as a log. */
FS_CORE void reach_for(record *out, float x) {
    if (fabsf(x) < INFINITY && fabsf(x) > out->reach) out->reach = fabsf(x);
}

/* The number, or with a planted error the next one. */
FS_CORE float planted(const record *out, float x) {
    return fabsf(x) < INFINITY ? bits_float(float_bits(x) + (uint32_t)out->planted) : x;
}

/* Counts on the host that something has happened. */
FS_CORE void reached(record *out, int whether, const char *place) {
    if (!out->said || !whether) return;
    remarks *said = out->said;
    int i = 0;
    while (i < PLACES - 1 && said->place[i] && said->place[i] != place) i++;
    said->place[i] = place;
    said->times[i]++;
}

/* ------------------------------------------------------------------------------------- for make(), on the host ---- */

static int32_t below(rng *r, int64_t n) {
    return (int32_t)(random_next(r) % (uint64_t)n);
}

static double unit(rng *r) {
    return (double)(random_next(r) >> 11) * 0x1p-53;
}

static int one_in(rng *r, int n) {
    return below(r, n) == 0;
}

template <class T> static T pick(rng *r, std::initializer_list<T> of) {
    return of.begin()[below(r, (int64_t)of.size())];
}

/* Numbers of one size around one level, often with ties. Half of the time the level is one where floats end, or masses
 * or their exactness, or the size is one that leaves one token all of the mass; and some are -inf, +inf, or -0. */
static void make_logits(rng *r, float *l, int32_t n) {
    const int odd = one_in(r, 2);
    const double level = odd ? pick(r, {0., 0., -20., 3000., -4.4e4, 4.6e4, 3.6e5, -3.62e5, 1e8, 3e38, -3e38}) : 0.;
    const double size = odd ? pick(r, {0., 1e-3, 1., 60., 400., 3e5, 1e37}) : pick(r, {0., .3, 1., 2., 4., 12.});
    const double step = pick(r, {0., 0., 0., .25, 1., size});
    const double absent = odd ? pick(r, {0., 0., .1, .5, .95, 1.}) : 0., infinite = odd && one_in(r, 5) ? .05 : 0.;
    for (int32_t i = 0; i < n; i++) {
        double x = size * (unit(r) + unit(r) + unit(r) + unit(r) - 2.0);
        if (step > 0.0) x = step * floor(x / step + 0.5);
        l[i] = (float)(level + x);
        if (l[i] == 0.0f && one_in(r, 2)) l[i] = -0.0f;
        if (unit(r) < infinite) l[i] = INFINITY;
        if (unit(r) < absent) l[i] = -INFINITY;
    }
}

/* -------------------------------------------------------------------------------------------------- comparison ---- */

typedef struct tally {
    int64_t cases, values, logs, different, units, ulps, cancelled, loose;
} tally;

static int same_value(const record *host, const record *device, int32_t i, tally *t) {
    const uint64_t a = host->value[i], b = device->value[i];
    const float x = bits_float((uint32_t)a), y = bits_float((uint32_t)b);
    const int64_t apart = (int64_t)ordered_float(x) - (int64_t)ordered_float(y);
    /* No less than 64: a mass is counted in so small units that their logarithm alone is so large. */
    const double off = fabs((double)x - (double)y), most = fmax(fmax(64.0, (double)host->reach), fabs((double)x));
    const int how = host->how[i];
    t->values++;
    t->logs += how == LOG;
    if (how != device->how[i]) return 0;
    if (a == b) return 1;
    if (how == KEY && ((a ^ b) & 0xFFFFFF) == 0 && (a > b ? a - b : b - a) == 1u << 24) return (int)++t->units;
    if (!(off < INFINITY)) return 0; /* one of them is no number */
    if (how == LOG && off <= 0x1p-50 * most) return (int)++t->cancelled;
    if (how == LOG && apart >= -1 && apart <= 1) return (int)++t->ulps;
    if (how == LOOSE && off <= 4e-7 * (8.0 + fabs((double)x))) return (int)++t->loose;
    return 0;
}

static int same_record(const record *host, const record *device, tally *t) {
    int same = host->count == device->count && host->count <= MOST;
    t->cases++;
    for (int32_t i = 0; i < host->count && i < MOST; i++) same &= same_value(host, device, i, t) != 0;
    t->different += !same;
    return same;
}

static void print_difference(const char *kind, int64_t number, const record *host, const record *device) {
    static const char *const how[HOWS] = {"same", "key", "log", "loose"};
    printf("%s: case %lld has %d values on the host, %d on the device (room for %d)\n", kind, (long long)number,
           host->count, device->count, MOST);
    for (int32_t i = 0; i < host->count && i < MOST; i++) {
        tally ignored = {};
        printf("  %3d %-5s %-20s %016llx %016llx", i, how[host->how[i]], host->said->name[i],
               (unsigned long long)host->value[i], (unsigned long long)device->value[i]);
        if (host->how[i] >= LOG)
            printf("  %.9g %.9g", (double)bits_float((uint32_t)host->value[i]),
                   (double)bits_float((uint32_t)device->value[i]));
        printf("%s\n", same_value(host, device, i, &ignored) ? "" : "  <--");
    }
}

/* ------------------------------------------------------------------------------------------------------ driver ---- */

typedef struct options {
    int host_only; /* the host takes the device's part */
    int plant;
} options;

template <class CASE> static void run_on_host(CASE *c, record *out, int32_t n) {
    for (int32_t i = 0; i < n; i++) run(&c[i], &out[i]);
}

#if defined(__CUDACC__)
static void cuda(cudaError_t error, const char *what) {
    if (error == cudaSuccess) return;
    fprintf(stderr, "core_vectors: %s: %s\n", what, cudaGetErrorString(error));
    exit(2);
}

template <class CASE> static __global__ void run_cases(CASE *c, record *out, int32_t n) {
    const int32_t i = (int32_t)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n) run(&c[i], &out[i]);
}

template <class CASE> static void run_on_device(CASE *c, record *out, int32_t n) {
    CASE *cases = NULL;
    record *records = NULL;
    cuda(cudaMalloc(&cases, (size_t)n * sizeof *cases), "memory of cases");
    cuda(cudaMalloc(&records, (size_t)n * sizeof *records), "memory of records");
    cuda(cudaMemcpy(cases, c, (size_t)n * sizeof *cases, cudaMemcpyHostToDevice), "cases");
    cuda(cudaMemcpy(records, out, (size_t)n * sizeof *records, cudaMemcpyHostToDevice), "empty records");
    run_cases<<<(n + 63) / 64, 64>>>(cases, records, n);
    cuda(cudaGetLastError(), "launch");
    cuda(cudaMemcpy(out, records, (size_t)n * sizeof *records, cudaMemcpyDeviceToHost), "records");
    cudaFree(cases);
    cudaFree(records);
}
#endif

template <class CASE> static void run_other_side(const options *asked, CASE *c, record *out, int32_t n) {
#if defined(__CUDACC__)
    if (!asked->host_only) return run_on_device(c, out, n);
#endif
    if (asked->host_only) run_on_host(c, out, n);
}

static record record_for(remarks *said, int plant) {
    record out = {};
    out.said = said;
    out.planted = plant;
    return out;
}

static void print_tally(const char *kind, const tally *t, const remarks *said) {
    printf("%-7s %6lld cases, %8lld values: %lld differ; apart: %lld keys by a unit, %lld of %lld logs by an ulp, "
           "%lld cancelled, %lld loose",
           kind, (long long)t->cases, (long long)t->values, (long long)t->different, (long long)t->units,
           (long long)t->ulps, (long long)t->logs, (long long)t->cancelled, (long long)t->loose);
    for (int i = 0; i < PLACES && said->place[i]; i++)
        printf("%s%s %lld", i % 8 ? ", " : "\n        ", said->place[i], (long long)said->times[i]);
    printf("\n");
}

/* Case `number`, whatever came before it. */
template <class CASE> static void make_case(int64_t number, CASE *c) {
    rng r = random_from((uint64_t)number);
    memset((void *)c, 0, sizeof *c);
    make(&r, number, c);
}

/* Whether all cases of a kind agree. */
template <class CASE> static int compare(const char *kind, int64_t cases, const options *asked) {
    std::vector<CASE> mine(BATCH), theirs;
    std::vector<record> host(BATCH), device(BATCH);
    static remarks said, names;
    tally t = {};
    said = names = remarks();
    for (int64_t first = 0; first < cases; first += BATCH) {
        const int64_t left = cases - first;
        const int32_t n = left < BATCH ? (int32_t)left : (int32_t)BATCH;
        for (int32_t i = 0; i < n; i++) {
            make_case(first + i, &mine[i]);
            host[i] = record_for(&said, 0);
            device[i] = record_for(NULL, asked->plant);
        }
        theirs = mine;
        run_on_host(mine.data(), host.data(), n);
        run_other_side(asked, theirs.data(), device.data(), n);
        for (int32_t i = 0; i < n; i++) {
            if (same_record(&host[i], &device[i], &t) || t.different > 1) continue;
            make_case(first + i, &mine[i]);
            host[i] = record_for(&names, 0);
            run(&mine[i], &host[i]); /* once more: names are those of the last run */
            print_difference(kind, first + i, &host[i], &device[i]);
        }
    }
    print_tally(kind, &t, &said);
    return t.different == 0 && t.ulps <= 1 + t.logs / 100000;
}

#endif
