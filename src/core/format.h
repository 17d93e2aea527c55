/* format.h - how numbers are stored: a row of the table for each format, and matrices of them as a backend takes them.
 *
 * A backend asks weights_of_head, hidden_of_batch and logits_of_head once a call and reads what they say: strides are
 * bytes and never 0. Its tables of kernels have FS_FORMATS entries, by row of the table here, of which it fills in
 * those that it has a loader for. A new format is a row here, and a loader in each backend. */
#ifndef FS_CORE_FORMAT_H
#define FS_CORE_FORMAT_H

#include "halves.h"

#include "flashsampling.h"

/* row(name, numbers in a block, bytes of a block); a block is the least that can be addressed. The float formats come
 * first: hidden states and stored logits have one of them too, and so far no backend has kernels for others. */
/* clang-format off */
#define FS_FORMAT_TABLE(row) \
    row(F32,    1,   4)      \
    row(F16,    1,   2)      \
    row(BF16,   1,   2)      \
    row(Q8_0,  32,  34)      \
    row(Q5_K, 256, 176)      \
    row(Q6_K, 256, 210)
/* clang-format on */

/* FS_FORMAT_F32: the row of FS_F32, and so on. */
#define FS_FORMAT_NUMBER(name, numbers, bytes) FS_FORMAT_##name,
enum { FS_FORMAT_TABLE(FS_FORMAT_NUMBER) FS_FORMATS, FS_FLOAT_FORMATS = FS_FORMAT_BF16 + 1 };
#undef FS_FORMAT_NUMBER

typedef struct fs_format {
    int32_t numbers, bytes; /* of a block */
} fs_format;

/* The row of a dtype; -1: numbers are not stored in it. */
FS_CORE int32_t format_of(int32_t dtype) {
#define FS_FORMAT_CASE(name, numbers, bytes)                                                                           \
    case FS_##name:                                                                                                    \
        return FS_FORMAT_##name;
    switch (dtype) { FS_FORMAT_TABLE(FS_FORMAT_CASE) }
#undef FS_FORMAT_CASE
    return -1;
}

/* A switch, which both compilers know how to fold: device code cannot read an array of the host's. */
FS_CORE fs_format format_at(int32_t format) {
    fs_format f = {1, 1};
#define FS_FORMAT_CASE(name, numbers_, bytes_)                                                                         \
    case FS_FORMAT_##name:                                                                                             \
        f.numbers = numbers_, f.bytes = bytes_;                                                                        \
        break;
    switch (format) { FS_FORMAT_TABLE(FS_FORMAT_CASE) } /* NOLINT(bugprone-branch-clone): some are alike */
#undef FS_FORMAT_CASE
    return f;
}

/* FS_F32, FS_F16 and FS_BF16 are. */
FS_CORE int dtype_is_float(int32_t dtype) {
    const int32_t format = format_of(dtype);
    return format >= 0 && format < FS_FLOAT_FORMATS;
}

/* Bytes of one number of such a dtype. */
FS_CORE int64_t dtype_bytes(int32_t dtype) {
    return format_at(format_of(dtype)).bytes;
}

/* Bytes of `columns` numbers, whole blocks of them. */
FS_CORE int64_t format_row_bytes(int32_t format, int64_t columns) {
    const fs_format f = format_at(format);
    return (columns + f.numbers - 1) / f.numbers * f.bytes;
}

/* ------------------------------------------------------------------------------------------------- matrices ---- */

/* Rows of numbers: weights [V, D], hidden states [B, D], or stored logits [B, V]. */
typedef struct fs_matrix {
    const char *data;
    int64_t stride;
    int32_t format;
} fs_matrix;

/* A stride as it is counted with: 0 stands for packed rows, FS_STRIDE_BROADCAST for one row in place of all. */
FS_CORE int64_t stride_of(int64_t stride, int32_t format, int64_t columns) {
    return stride == FS_STRIDE_BROADCAST ? 0 : stride ? stride : format_row_bytes(format, columns);
}

FS_CORE fs_matrix matrix_of(const void *data, int64_t stride, int32_t dtype, int64_t columns) {
    const int32_t format = format_of(dtype);
    fs_matrix m = {(const char *)data, stride_of(stride, format, columns), format};
    return m;
}

FS_CORE fs_matrix weights_of_head(const fs_head *head) {
    return matrix_of(head->data, head->stride, head->dtype, head->dim);
}

FS_CORE fs_matrix hidden_of_batch(const fs_head *head, const fs_batch *batch) {
    return matrix_of(batch->hidden, batch->hidden_stride, batch->hidden_dtype, head->dim);
}

FS_CORE fs_matrix logits_of_head(const fs_head *head) {
    return matrix_of(head->data, head->stride, head->dtype, head->rows);
}

FS_CORE const char *matrix_row(const fs_matrix *m, int64_t row) {
    return m->data + row * m->stride;
}

/* Element i of a row of floats of a format, at any address. */
FS_CORE float element_at(const char *row, int32_t format, int64_t i) {
    float x;
    uint16_t half;
    if (format == FS_FORMAT_F32) {
        memcpy(&x, row + 4 * i, sizeof x);
        return x;
    }
    memcpy(&half, row + 2 * i, sizeof half);
    return format == FS_FORMAT_BF16 ? widen_bf16(half) : widen_f16(half);
}

#endif
