/* npy.h - NumPy's .npy files, read and written: what the command line and the tests exchange arrays in.
 *
 * Read: format versions 1, 2 and 3, little-endian, C order, at most 4 dimensions, the element types below. Everything
 * else is refused with a text. A file is untrusted: every length in it is checked against the file before it is used.
 */
#ifndef FS_IO_NPY_H
#define FS_IO_NPY_H

#include <stddef.h>
#include <stdint.h>

#define NPY_MAX_RANK 4
#define NPY_ERROR_CHARS 512

/* Longest header that is read. NumPy writes 118 bytes for the arrays of this project and refuses 10,000 itself. */
#define NPY_MAX_HEADER 65535

typedef enum {
    NPY_F32,    /* <f4 */
    NPY_F64,    /* <f8 */
    NPY_F16,    /* <f2 */
    NPY_BITS16, /* |V2: 16 bits without a meaning; how ml_dtypes' bfloat16 is saved */
    NPY_BOOL,   /* |b1 */
    NPY_I8,     /* |i1 */
    NPY_U8,     /* |u1 */
    NPY_I16,    /* <i2 */
    NPY_U16,    /* <u2 */
    NPY_I32,    /* <i4 */
    NPY_U32,    /* <u4 */
    NPY_I64,    /* <i8 */
    NPY_U64     /* <u8 */
} npy_type;

typedef struct npy_array {
    npy_type type;
    int rank;                    /* 0 = a scalar */
    int64_t shape[NPY_MAX_RANK]; /* beyond rank: 1 */
    int64_t count;               /* product of shape */
    size_t bytes;                /* count * npy_type_size(type) */
    void *data;                  /* 64-byte aligned, never NULL after a read; freed by npy_free */
} npy_array;

/* Bytes per element, and the name in a header without its byte order ("f4"). */
size_t npy_type_size(npy_type type);
const char *npy_type_name(npy_type type);

/* "[151936, 1024] f2", for messages; into text [size]. */
void npy_describe(const npy_array *array, char *text, size_t size);

/* Parses the text of a header (the dictionary, `size` bytes, not terminated) into type, shape, count and bytes; data
 * is NULL. Returns 0, or -1 with a reason in error [NPY_ERROR_CHARS]. */
int npy_parse_header(const char *header, size_t size, npy_array *array, char *error);

/* Reads a whole file. Returns 0, or -1 with a text in error [NPY_ERROR_CHARS] that names the file; then array->data is
 * NULL. */
int npy_read(const char *path, npy_array *array, char *error);

/* Writes a file of version 1. Returns 0, or -1 with a text in error [NPY_ERROR_CHARS]. */
int npy_write(const char *path, const npy_array *array, char *error);

/* Frees data and forgets it; NULL data is allowed. */
void npy_free(npy_array *array);

#endif
