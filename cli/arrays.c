/* arrays.c - see arrays.h. */
#define _POSIX_C_SOURCE 200809L
#include "arrays.h"
#include "cli.h"
#include "half.h"
#include "options.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *what;
    size_t size;
} column_info[] = {{"a number", 4},
                   {"an integer from -2^31 to 2^31-1", 4},
                   {"an integer from 0 to 2^32-1", 4},
                   {"an integer from 0 to 2^64-1", 8}};

npy_array read_npy(const char *option, const char *path) {
    npy_array a;
    char error[NPY_ERROR_CHARS];
    if (npy_read(path, &a, error) != 0) die(END_RUNTIME, "--%s %s", option, error);
    keep_memory(a.data);
    return a;
}

/* ----------------------------------------------------------------------------------------------- elements ---- */

static int is_float(npy_type type) {
    return type == NPY_F32 || type == NPY_F64 || type == NPY_F16;
}

static double element_real(const npy_array *a, int64_t i) {
    switch (a->type) {
    case NPY_F32:
        return (double)((const float *)a->data)[i];
    case NPY_F64:
        return ((const double *)a->data)[i];
    case NPY_F16:
        return (double)float_of_f16(((const uint16_t *)a->data)[i]);
    default:
        return (double)NAN;
    }
}

/* An integer element as sign and magnitude, which holds every 64-bit type. */
static uint64_t element_integer(const npy_array *a, int64_t i, int *negative) {
    int64_t s = 0;
    uint64_t u = 0;
    switch (a->type) {
    case NPY_BOOL:
    case NPY_U8:
        u = ((const uint8_t *)a->data)[i];
        break;
    case NPY_U16:
        u = ((const uint16_t *)a->data)[i];
        break;
    case NPY_U32:
        u = ((const uint32_t *)a->data)[i];
        break;
    case NPY_U64:
        u = ((const uint64_t *)a->data)[i];
        break;
    case NPY_I8:
        s = ((const int8_t *)a->data)[i];
        break;
    case NPY_I16:
        s = ((const int16_t *)a->data)[i];
        break;
    case NPY_I32:
        s = ((const int32_t *)a->data)[i];
        break;
    case NPY_I64:
        s = ((const int64_t *)a->data)[i];
        break;
    default:
        break;
    }
    *negative = s < 0;
    return s < 0 ? 0 - (uint64_t)s : u | (uint64_t)s;
}

/* Stores sign and magnitude as an integer column; 0 if it does not fit. */
static int store_integer(column_type type, void *out, int64_t i, uint64_t magnitude, int negative) {
    if (type == COLUMN_I32) {
        if (magnitude > 0x7fffffffu + (uint64_t)negative) return 0;
        ((int32_t *)out)[i] = (int32_t)(negative ? -(int64_t)magnitude : (int64_t)magnitude);
        return 1;
    }
    if (negative && magnitude > 0) return 0;
    if (type == COLUMN_U64) ((uint64_t *)out)[i] = magnitude;
    if (type == COLUMN_U32) ((uint32_t *)out)[i] = (uint32_t)magnitude;
    return type == COLUMN_U64 || magnitude <= UINT32_MAX;
}

void convert_elements(const char *option, const npy_array *a, int64_t from, int64_t count, column_type type,
                      void *out) {
    if (a->type == NPY_BITS16 || (is_float(a->type) && type != COLUMN_F32))
        die(END_RUNTIME, "--%s: the file holds %s, expected %s", option, npy_type_name(a->type),
            column_info[type].what);
    for (int64_t i = 0; i < count; i++) {
        if (is_float(a->type)) {
            ((float *)out)[i] = (float)element_real(a, from + i);
            continue;
        }
        int negative;
        uint64_t magnitude = element_integer(a, from + i, &negative);
        if (type == COLUMN_F32) ((float *)out)[i] = negative ? -(float)magnitude : (float)magnitude;
        else if (!store_integer(type, out, i, magnitude, negative))
            die(END_USAGE, "--%s: element %lld of the file is %s%llu, expected %s", option, (long long)(from + i),
                negative ? "-" : "", (unsigned long long)magnitude, column_info[type].what);
    }
}

/* ---------------------------------------------------------------------------------------------------- column ---- */

static int parse_integer(column_type type, const char *text, void *out, int64_t i) {
    char *end;
    int negative = *text == '-';
    if (text[negative] < '0' || text[negative] > '9') return 0; /* strtoull takes signs and spaces */
    errno = 0;
    uint64_t magnitude = strtoull(text + negative, &end, number_base(text + negative));
    return *end == 0 && errno == 0 && store_integer(type, out, i, magnitude, negative);
}

static void parse_word(const char *option, const char *word, column_type type, void *out, int64_t i) {
    double real;
    int good = type == COLUMN_F32 ? parse_real(word, &real) : parse_integer(type, word, out, i);
    if (!good) die(END_USAGE, "--%s %s: expected %s", option, word, column_info[type].what);
    if (type != COLUMN_F32) return;
    /* 0 has a meaning of its own: a temperature of 0 is greedy. */
    if (real != 0 && (float)real == 0) die(END_USAGE, "--%s %s: too close to 0 for a float", option, word);
    ((float *)out)[i] = (float)real;
}

/* A copy of the next word up to one of `stops`, and *text behind it. Words are short: numbers. */
static void next_word(const char *option, const char **text, const char *stops, char *word, size_t size) {
    size_t n = strcspn(*text, stops);
    if (n >= size) die(END_USAGE, "--%s: \"%.20s...\" is too long for a number", option, *text);
    memcpy(word, *text, n);
    word[n] = 0;
    *text += n;
}

static int64_t count_words(const char *text) {
    int64_t n = 1;
    for (; *text; text++) n += *text == ',';
    return n;
}

column read_column(const char *option, const char *text, column_type type) {
    column c = {0, 0, NULL};
    if (!text) return c;
    if (*text == '@') {
        npy_array a = read_npy(option, text + 1);
        if (a.count == 0) die(END_RUNTIME, "--%s %s: the file has no elements", option, text + 1);
        c.count = a.count;
        c.scalar = a.rank == 0;
        c.data = take_memory(a.count, column_info[type].size, option);
        convert_elements(option, &a, 0, a.count, type, c.data);
        return c;
    }
    c.count = count_words(text);
    c.scalar = c.count == 1;
    c.data = take_memory(c.count, column_info[type].size, option);
    for (int64_t i = 0; i < c.count; i++) {
        char word[64];
        next_word(option, &text, ",", word, sizeof word);
        parse_word(option, word, type, c.data, i);
        text += *text == ',';
    }
    return c;
}

/* ------------------------------------------------------------------------------------------------------ bits ---- */

bit_rows read_bits(const char *option, const char *path, int64_t vocab) {
    if (*path == '@') path++;
    npy_array a = read_npy(option, path);
    char shape[128];
    npy_describe(&a, shape, sizeof shape);
    int64_t words = (vocab + 31) / 32, width = a.rank ? a.shape[a.rank - 1] : 0;
    int dense = a.type == NPY_BOOL || a.type == NPY_U8, packed = a.type == NPY_U32 || a.type == NPY_I32;
    if ((!dense && !packed) || a.rank < 1 || a.rank > 2 || width != (dense ? vocab : words))
        die(END_RUNTIME, "--%s %s: %s, expected bool [.., %lld] or u4 words [.., %lld]", option, path, shape,
            (long long)vocab, (long long)words);
    bit_rows bits = {a.rank == 2 ? a.shape[0] : 1, words, NULL};
    bits.data = packed ? a.data : take_memory(bits.rows * words, sizeof(uint32_t), option);
    for (int64_t r = 0; dense && r < bits.rows; r++)
        for (int64_t v = 0; v < vocab; v++)
            if (((const uint8_t *)a.data)[r * vocab + v]) bits.data[r * words + v / 32] |= 1u << (v % 32);
    return bits;
}

/* ---------------------------------------------------------------------------------------------------- sparse ---- */

typedef struct entry {
    int64_t row; /* -1 = every row */
    int32_t token;
    double value;
} entry;

static entry read_entry(const char *option, const char **text, int64_t rows, int has_value) {
    entry e = {-1, 0, 0.0};
    char word[64];
    next_word(option, text, "/:,", word, sizeof word);
    if (**text == '/') {
        if (!parse_int(word, &e.row) || e.row < 0 || e.row >= rows)
            die(END_USAGE, "--%s: row \"%s\" must lie in 0 .. %lld", option, word, (long long)rows - 1);
        ++*text;
        next_word(option, text, "/:,", word, sizeof word);
    }
    if (!parse_integer(COLUMN_I32, word, &e.token, 0)) die(END_USAGE, "--%s: \"%s\" is not a token id", option, word);
    if ((**text == ':') != has_value)
        die(END_USAGE, "--%s: expected [ROW/]TOKEN%s at \"%s%.20s\"", option, has_value ? ":VALUE" : "", word, *text);
    if (has_value) {
        ++*text;
        next_word(option, text, "/:,", word, sizeof word);
        if (strcmp(word, "ban") == 0) e.value = -(double)INFINITY;
        else if (!parse_real(word, &e.value)) die(END_USAGE, "--%s: \"%s\" is not a number", option, word);
    }
    if (**text && **text != ',') die(END_USAGE, "--%s: expected a comma at \"%.20s\"", option, *text);
    *text += **text == ',';
    return e;
}

sparse read_sparse(const char *option, const char *text, int64_t rows, int has_value) {
    sparse s = {NULL, NULL, NULL};
    if (!text) return s;
    int64_t count = count_words(text), total = 0;
    entry *entries = take_memory(count, sizeof *entries, option);
    for (int64_t i = 0; i < count; i++) {
        entries[i] = read_entry(option, &text, rows, has_value);
        total += entries[i].row < 0 ? rows : 1;
    }
    s.offset = take_memory(rows + 1, sizeof *s.offset, option);
    s.token = take_memory(total, sizeof *s.token, option);
    s.value = has_value ? take_memory(total, sizeof *s.value, option) : NULL;
    int64_t n = 0;
    for (int64_t row = 0; row < rows; row++) {
        for (int64_t i = 0; i < count; i++) {
            if (entries[i].row >= 0 && entries[i].row != row) continue;
            s.token[n] = entries[i].token;
            if (has_value) s.value[n] = entries[i].value;
            n++;
        }
        s.offset[row + 1] = n;
    }
    return s;
}
