/* arrays.h - arrays from the command line: a number, a list, or @file.npy. Every failure names the option, the value
 * and the limit, and ends the program. */
#ifndef FS_CLI_ARRAYS_H
#define FS_CLI_ARRAYS_H

#include "io/npy.h"

#include <stdint.h>

typedef enum { COLUMN_F32, COLUMN_I32, COLUMN_U32, COLUMN_U64 } column_type;

/* "0.7" is a scalar, "0.7,1.2" and "@file.npy" are arrays. */
typedef struct column {
    int64_t count; /* 0 = not given */
    int scalar;
    void *data; /* [count] of the asked type */
} column;

column read_column(const char *option, const char *text, column_type type);

/* A file whose memory lives until the program ends. */
npy_array read_npy(const char *option, const char *path);

/* Converts elements [from, from + count) of an array to the asked type; values that do not fit end the program. */
void convert_elements(const char *option, const npy_array *a, int64_t from, int64_t count, column_type type, void *out);

/* Rows of bits, bit (id % 32) of word (id / 32), from bool or u1 [rows, vocab] (nonzero = 1) or from u4 / i4 words
 * [rows, ceil(vocab / 32)]. One-dimensional files are one row. */
typedef struct bit_rows {
    int64_t rows, words;
    uint32_t *data; /* [rows, words] */
} bit_rows;
bit_rows read_bits(const char *option, const char *path, int64_t vocab);

/* "[ROW/]TOKEN:VALUE,..." or "[ROW/]TOKEN,..." as lists per row; entries without a row go to every row. */
typedef struct sparse {
    int64_t *offset; /* [rows + 1]; NULL = not given */
    int32_t *token;
    double *value; /* NULL where entries have no value */
} sparse;
sparse read_sparse(const char *option, const char *text, int64_t rows, int has_value);

#endif
