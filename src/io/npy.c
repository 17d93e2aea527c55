/* npy.c - see npy.h. A file is
 *
 *   "\x93NUMPY"  major  minor  | header length, 2 bytes (version 1) or 4 | header, a Python dictionary | elements
 *
 * and the dictionary {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), } may have its keys in any order. The
 * parser below knows exactly that grammar and no other Python.
 */
#define _POSIX_C_SOURCE 200809L
#include "npy.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define ALIGNMENT 64

static const struct {
    npy_type type;
    char name[4];
    size_t size;
} types[] = {
    {NPY_F32, "f4", 4}, {NPY_F64, "f8", 8}, {NPY_F16, "f2", 2}, {NPY_BITS16, "V2", 2}, {NPY_BOOL, "b1", 1},
    {NPY_I8, "i1", 1},  {NPY_U8, "u1", 1},  {NPY_I16, "i2", 2}, {NPY_U16, "u2", 2},    {NPY_I32, "i4", 4},
    {NPY_U32, "u4", 4}, {NPY_I64, "i8", 8}, {NPY_U64, "u8", 8},
};
#define TYPES ((int)(sizeof types / sizeof types[0]))

size_t npy_type_size(npy_type type) {
    return types[type].size;
}

const char *npy_type_name(npy_type type) {
    return types[type].name;
}

static int fail(char *error, const char *format, ...) __attribute__((format(printf, 2, 3)));
static int fail(char *error, const char *format, ...) {
    va_list list;
    va_start(list, format);
    vsnprintf(error, NPY_ERROR_CHARS, format, list);
    va_end(list);
    return -1;
}

void npy_describe(const npy_array *array, char *text, size_t size) {
    char shape[NPY_MAX_RANK * 24] = "";
    size_t used = 0;
    for (int i = 0; i < array->rank; i++)
        used +=
            (size_t)snprintf(shape + used, sizeof shape - used, "%s%lld", i ? ", " : "", (long long)array->shape[i]);
    snprintf(text, size, "[%s] %s", shape, npy_type_name(array->type));
}

/* ---------------------------------------------------------------------------------------------------- header ---- */

typedef struct cursor {
    const char *at, *end;
} cursor;

static void skip_space(cursor *c) {
    while (c->at < c->end && (*c->at == ' ' || *c->at == '\n' || *c->at == '\t')) c->at++;
}

/* Takes `word` if it comes next. */
static int take(cursor *c, const char *word) {
    skip_space(c);
    size_t n = strlen(word);
    if ((size_t)(c->end - c->at) < n || memcmp(c->at, word, n) != 0) return 0;
    c->at += n;
    return 1;
}

/* A quoted string without escapes, at most size - 1 characters of printable ASCII. */
static int take_string(cursor *c, char *text, size_t size) {
    char quote[2] = "'";
    if (!take(c, quote)) {
        quote[0] = '"';
        if (!take(c, quote)) return 0;
    }
    size_t n = 0;
    while (c->at < c->end && *c->at != quote[0]) {
        if (n + 1 >= size || *c->at < ' ' || *c->at > '~' || *c->at == '\\') return 0;
        text[n++] = *c->at++;
    }
    text[n] = 0;
    return take(c, quote);
}

/* A decimal number that fits 62 bits, so that no sum or comparison on it can overflow. */
static int take_number(cursor *c, int64_t *value) {
    skip_space(c);
    const char *first = c->at;
    int64_t v = 0;
    while (c->at < c->end && *c->at >= '0' && *c->at <= '9') {
        if (v > (INT64_MAX >> 1) / 10 - 1) return 0;
        v = v * 10 + (*c->at++ - '0');
    }
    *value = v;
    return c->at > first;
}

static int take_descr(cursor *c, npy_array *array, char *error) {
    char descr[32];
    skip_space(c);
    if (c->at < c->end && *c->at == '[') return fail(error, "structured arrays are not supported");
    if (!take_string(c, descr, sizeof descr)) return fail(error, "'descr' is not a short string");
    if (descr[0] == '>') return fail(error, "'%s' is big-endian; save it with .astype('<%s')", descr, descr + 1);
    int has_order = descr[0] == '<' || descr[0] == '|' || descr[0] == '=';
    for (int i = 0; i < TYPES; i++) {
        if (strcmp(descr + has_order, types[i].name) == 0) {
            array->type = types[i].type;
            return 0;
        }
    }
    return fail(error, "element type '%s' is not supported (f2, f4, f8, V2, b1, i1..i8, u1..u8 are)", descr);
}

static int take_order(cursor *c, char *error) {
    if (take(c, "False")) return 0;
    if (take(c, "True")) return fail(error, "Fortran order is not supported; save numpy.ascontiguousarray(a)");
    return fail(error, "'fortran_order' is neither True nor False");
}

static int take_shape(cursor *c, npy_array *array, char *error) {
    if (!take(c, "(")) return fail(error, "'shape' is not a tuple");
    array->rank = 0;
    for (int i = 0; i < NPY_MAX_RANK; i++) array->shape[i] = 1;
    while (!take(c, ")")) {
        int64_t n;
        if (!take_number(c, &n)) return fail(error, "'shape' has an entry that is no number from 0 to 2^62");
        if (array->rank == NPY_MAX_RANK) return fail(error, "more than %d dimensions", NPY_MAX_RANK);
        array->shape[array->rank++] = n;
        if (!take(c, ",")) {
            if (!take(c, ")")) return fail(error, "'shape' is not closed");
            break;
        }
    }
    return 0;
}

/* count and bytes from shape, refusing what does not fit: a product that wraps is how a small file gets a big read. A
 * zero anywhere makes the array empty, but the other entries must still be sane. */
static int set_size(npy_array *array, char *error) {
    int64_t limit = INT64_MAX / 2 / (int64_t)npy_type_size(array->type);
    int64_t product = 1, count = 1;
    for (int i = 0; i < array->rank; i++) {
        int64_t n = array->shape[i];
        if (n > 0 && product > limit / n) return fail(error, "the shape has more elements than memory can address");
        if (n > 0) product *= n;
        count = n == 0 ? 0 : count == 0 ? 0 : product;
    }
    array->count = count;
    array->bytes = (size_t)count * npy_type_size(array->type);
    return 0;
}

int npy_parse_header(const char *header, size_t size, npy_array *array, char *error) {
    cursor c = {header, header + size};
    enum { DESCR = 1, ORDER = 2, SHAPE = 4 };
    int seen = 0;
    memset(array, 0, sizeof *array);
    if (!take(&c, "{")) return fail(error, "the header is not a dictionary");
    while (!take(&c, "}")) {
        char key[32];
        if (!take_string(&c, key, sizeof key) || !take(&c, ":"))
            return fail(error, "the header is not a dictionary of strings");
        int bit = strcmp(key, "descr") == 0           ? DESCR
                  : strcmp(key, "fortran_order") == 0 ? ORDER
                  : strcmp(key, "shape") == 0         ? SHAPE
                                                      : 0;
        if (!bit) return fail(error, "unknown header key '%s'", key);
        if (seen & bit) return fail(error, "header key '%s' occurs twice", key);
        seen |= bit;
        int rc = bit == DESCR   ? take_descr(&c, array, error)
                 : bit == ORDER ? take_order(&c, error)
                                : take_shape(&c, array, error);
        if (rc) return rc;
        if (!take(&c, ",")) {
            if (!take(&c, "}")) return fail(error, "the header's dictionary is not closed");
            break;
        }
    }
    if (seen != (DESCR | ORDER | SHAPE))
        return fail(error, "the header lacks one of 'descr', 'fortran_order', 'shape'");
    skip_space(&c);
    if (c.at != c.end) return fail(error, "the header has text after its dictionary");
    return set_size(array, error);
}

/* ------------------------------------------------------------------------------------------------------ read ---- */

/* Reads magic, version and dictionary. */
static int read_header(FILE *file, npy_array *array, char *error) {
    unsigned char head[12];
    size_t got = fread(head, 1, 8, file);
    if (ferror(file)) return fail(error, "%s", strerror(errno)); /* a directory opens and fails here */
    if (got != 8 || memcmp(head, "\x93NUMPY", 6) != 0) return fail(error, "not a .npy file");
    int major = head[6];
    if (major < 1 || major > 3) return fail(error, "format version %d is not supported (1 to 3 are)", major);
    size_t width = major == 1 ? 2 : 4;
    if (fread(head + 8, 1, width, file) != width) return fail(error, "the file ends inside its header");
    uint32_t length = (uint32_t)head[8] | (uint32_t)head[9] << 8;
    if (width == 4) length |= (uint32_t)head[10] << 16 | (uint32_t)head[11] << 24;
    if (length > NPY_MAX_HEADER)
        return fail(error, "a header of %u bytes (at most %d are read)", length, NPY_MAX_HEADER);
    char *text = malloc(length + 1);
    if (!text) return fail(error, "no memory for a header of %u bytes", length);
    int rc = fread(text, 1, length, file) == length ? npy_parse_header(text, length, array, error)
                                                    : fail(error, "the file ends inside its header");
    free(text);
    return rc;
}

/* What follows the header must be the elements, all of them and nothing else. */
static int read_elements(FILE *file, npy_array *array, char *error) {
    struct stat info;
    long here = ftell(file);
    if (here >= 0 && fstat(fileno(file), &info) == 0 && S_ISREG(info.st_mode)) {
        /* Asked before allocating: a lying shape must not make us reserve the machine. */
        long long there = (long long)info.st_size - here;
        if (there < 0 || (unsigned long long)there != array->bytes)
            return fail(error, "the header promises %zu bytes of elements, the file has %lld", array->bytes, there);
    }
    size_t room = (array->bytes + ALIGNMENT) / ALIGNMENT * ALIGNMENT;
    array->data = aligned_alloc(ALIGNMENT, room);
    if (!array->data) return fail(error, "no memory for %zu bytes", array->bytes);
    size_t got = fread(array->data, 1, array->bytes, file);
    if (got == array->bytes) return 0;
    npy_free(array);
    return fail(error, "the header promises %zu bytes of elements, the file has %zu", array->bytes, got);
}

int npy_read(const char *path, npy_array *array, char *error) {
    char reason[NPY_ERROR_CHARS];
    memset(array, 0, sizeof *array);
    FILE *file = fopen(path, "rb");
    if (!file) return fail(error, "%s: %s", path, strerror(errno));
    int rc = read_header(file, array, reason);
    if (!rc) rc = read_elements(file, array, reason);
    fclose(file);
    if (rc) fail(error, "%.200s: %.300s", path, reason);
    return rc;
}

/* ----------------------------------------------------------------------------------------------------- write ---- */

/* Writes the dictionary padded so that the elements start at a multiple of 64, as NumPy does. */
static int write_header(FILE *file, const npy_array *array) {
    char text[256], shape[NPY_MAX_RANK * 24] = "";
    size_t used = 0;
    for (int i = 0; i < array->rank; i++)
        used += (size_t)snprintf(shape + used, sizeof shape - used, "%lld,%s", (long long)array->shape[i],
                                 i + 1 < array->rank ? " " : "");
    char order = npy_type_size(array->type) == 1 || array->type == NPY_BITS16 ? '|' : '<';
    size_t n = (size_t)snprintf(text, sizeof text, "{'descr': '%c%s', 'fortran_order': False, 'shape': (%s), }", order,
                                npy_type_name(array->type), shape);
    size_t padded = (10 + n + 1 + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT - 10;
    unsigned char head[10] = {
        0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0, (unsigned char)(padded & 255), (unsigned char)(padded >> 8)};
    memset(text + n, ' ', padded - n);
    text[padded - 1] = '\n';
    return fwrite(head, 1, 10, file) == 10 && fwrite(text, 1, padded, file) == padded;
}

int npy_write(const char *path, const npy_array *array, char *error) {
    FILE *file = fopen(path, "wb");
    if (!file) return fail(error, "%s: %s", path, strerror(errno));
    int good = write_header(file, array) && fwrite(array->data, 1, array->bytes, file) == array->bytes;
    int why = errno;
    /* A full disk is often reported only when the last bytes leave the buffer. */
    if (fclose(file) != 0) {
        why = errno;
        good = 0;
    }
    return good ? 0 : fail(error, "%s: write failed: %s", path, strerror(why));
}

void npy_free(npy_array *array) {
    free(array->data);
    array->data = NULL;
}
