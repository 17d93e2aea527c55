/* fuzz_npy.c - .npy files with anything in them: read, or refused with a text. */
#define _POSIX_C_SOURCE 200809L
#include "fuzz.h"

#include "io/npy.h"

#include <unistd.h>

enum { MOST = 1024 };

static char path[256];

static void remove_file(void) {
    unlink(path);
}

static void make_path(void) {
    const char *folder = getenv("TMPDIR");
    if (*path) return;
    snprintf(path, sizeof path, "%s/flashsampling-XXXXXX", folder ? folder : "/tmp");
    const int handle = mkstemp(path);
    if (handle < 0 || close(handle) != 0) fuzz_fault("no file %s", path);
    atexit(remove_file);
}

/* A file as NumPy would write it, or nearly. */
static size_t make_file(rng *r, char *file) {
    static const char *const types[] = {"<f4", "<f8", "<f2", "|V2", "|b1",  "<i4", "<i8",
                                        "<u4", ">f4", "<c8", "|O",  "<f16", "f4",  ""};
    static const char *const shapes[] = {"()",
                                         "(3,)",
                                         "(2, 3)",
                                         "(1, 2, 3)",
                                         "(1, 1, 1, 2)",
                                         "(1, 1, 1, 1, 2)",
                                         "(0,)",
                                         "(0, 5)",
                                         "(-1,)",
                                         "(3)",
                                         "(3, )",
                                         "(99999999999999999999,)",
                                         "(4294967296, 4294967296)",
                                         "(9223372036854775807, 2)",
                                         "(03,)",
                                         "(3L,)"};
    static const char *const orders[] = {"False", "False", "False", "True", "0", ""};
    char header[512];
    const int version = 1 + (int)below(r, one_in(r, 9) ? 5 : 3);
    int n = snprintf(header, sizeof header, "{'descr': '%s', 'fortran_order': %s, 'shape': %s, }",
                     one_in(r, 3) ? PICK(r, types) : "<f4", one_in(r, 4) ? PICK(r, orders) : "False",
                     one_in(r, 3) ? PICK(r, shapes) : "(2, 3)");
    for (int64_t pad = below(r, 64); pad > 0; pad--) header[n++] = ' ';
    header[n++] = '\n';
    memcpy(file, "\x93NUMPY", 6);
    file[6] = (char)version, file[7] = 0;
    const uint32_t length = (uint32_t)n;
    size_t at = 8 + (size_t)(version == 1 ? 2 : 4);
    memcpy(file + 8, &length, at - 8); /* little-endian machines alone are supported */
    memcpy(file + at, header, (size_t)n);
    at += (size_t)n;
    for (int64_t data = one_in(r, 3) ? below(r, 60) : 24; data > 0; data--) file[at++] = (char)random_next(r);
    return at;
}

static size_t mutate(rng *r, char *file, size_t bytes) {
    static const char telling[] = "{}()',: <>|-0123456789\\\"FTabLx\n";
    for (int64_t n = one_in(r, 3) ? 0 : below(r, 4); n > 0; n--) {
        char *at = file + below(r, (int64_t)bytes);
        switch (below(r, 6)) {
        case 0:
            *at ^= (char)(1 << below(r, 8));
            break;
        case 1:
            *at = (char)random_next(r);
            break;
        case 2:
            *at = PICK(r, telling);
            break;
        case 3:
            bytes = (size_t)(at - file) + 1;
            break;
        case 4:
            memmove(at, file + below(r, (int64_t)bytes), bytes - (size_t)(at - file) < 8 ? 1 : 4);
            break;
        default: /* a byte more */
            if (bytes < MOST) memmove(at + 1, at, bytes++ - (size_t)(at - file));
        }
    }
    return bytes;
}

static void check_array(const npy_array *a, int failed, const char *error, int reads) {
    fuzz_count(failed ? "refused" : "read");
    if (failed != 0 && failed != -1) fuzz_fault("%d was returned", failed);
    if (failed && !*error) fuzz_fault("refused without a text");
    if (failed && reads && a->data) fuzz_fault("refused, but data is there");
    if (failed) return;
    int64_t count = 1;
    for (int i = 0; i < a->rank; i++) count *= a->shape[i];
    if (a->rank < 0 || a->rank > NPY_MAX_RANK || count != a->count || a->count < 0 ||
        a->bytes != (size_t)count * npy_type_size(a->type) || (reads && (a->bytes > MOST || !a->data)))
        fuzz_fault("%lld elements of rank %d in %zu bytes", (long long)a->count, a->rank, a->bytes);
}

static void one(rng *r) {
    char buffer[MOST + 8], error[NPY_ERROR_CHARS] = "";
    npy_array a;
    make_path();
    const size_t bytes = mutate(r, buffer, make_file(r, buffer));
    char *file = slab_take(bytes, 0);
    if (!file) return;
    memcpy(file, buffer, bytes);
    memset(&a, 0x5A, sizeof a);
    uint16_t length = 0;
    const size_t start = file[6 % bytes] == 1 ? 10 : 12, from = bytes > start ? start : bytes, left = bytes - from;
    if (left) memcpy(&length, file + 8, sizeof length);
    int failed = npy_parse_header(file + from, length < left ? length : left, &a, error);
    check_array(&a, failed, error, 0);
    if (!one_in(r, 8)) return;
    FILE *out = fopen(path, "wb");
    if (!out || fwrite(file, 1, bytes, out) != bytes || fclose(out) != 0) fuzz_fault("%s cannot be written", path);
    error[0] = 0;
    failed = npy_read(path, &a, error);
    check_array(&a, failed, error, 1);
    if (!failed) {
        unsigned sum = 0;
        for (size_t i = 0; i < a.bytes; i++) sum += ((const unsigned char *)a.data)[i]; /* all of it is there */
        if (sum == UINT32_MAX) fuzz_count("never");
    }
    npy_free(&a);
}

int main(int argc, char **argv) {
    return fuzz_main(argc, argv, "fuzz_npy", 15000, one);
}
