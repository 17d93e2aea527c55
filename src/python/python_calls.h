/* python_calls.h - what the Python package calls in place of its own code, where it finds this library: a prepared call
 * (prepared.c), the kernels of torch's operators (torch_ops.c). Nobody else does: the package and this library are of
 * one build, and fs_python_layout says so. The C library itself comes by pointers, as the package has found it. */
#ifndef FS_PYTHON_CALLS_H
#define FS_PYTHON_CALLS_H

#include <flashsampling.h>

typedef fs_status (*fs_sample_function)(fs_context *, const fs_head *, const fs_batch *, const fs_result *);
typedef fs_status (*fs_stream_function)(fs_context *, void *);

/* A tensor as DLPack shows it, and a framework's functions that show it (DLPack 1: docs of dmlc/dlpack). */
typedef struct fs_dl_tensor {
    void *data;
    int32_t device_kind, device;
    int32_t dims;
    uint8_t code, bits; /* of an element: what kind of number, how long */
    uint16_t lanes;
    int64_t *sizes, *strides; /* in elements; strides NULL = packed */
    uint64_t offset;          /* bytes from data to the first element */
} fs_dl_tensor;

/* A call of Sampler, whose structures are filled. Mirrored by _native.py. */
typedef struct fs_prepared {
    int (*view)(void *object, fs_dl_tensor *out); /* DLPack's, and its current stream */
    int (*current_stream)(int32_t device_kind, int32_t device, void **out);
    void *tensor, *is_negative, *no; /* Python's: the type, its method, False */
    void *locked;                    /* ... and whether a call of Python's own has the context */
    int32_t *in_c;                   /* whether one of these has it */
    void *weights;                   /* the tensor that the head's rows lie in, or NULL */
    const void *place;               /* ... and where they lay when the head was made */
    int32_t device_kind, device;
    int32_t code, bits;
    int64_t rows, columns; /* of what is drawn from; rows -1: the next call is looked at by Python */
    const void **input;    /* where its address goes */
    uint64_t *position_at; /* where the position goes, or NULL: it is an array */
    uint64_t position;     /* of the next call */
    int64_t *stream_now;   /* the context's stream as torch counts, -1: none yet, or one of FS_PYTHON_... */
    fs_stream_function set_stream;
    fs_sample_function sample;
    fs_context *context;
    fs_head *head;
    fs_batch *batch;
    const fs_result *result;
    const uint32_t *status; /* [rows] in host memory that the call writes and a row of which may end it, or NULL */
    void *drawn;            /* what a call returns */
} fs_prepared;

/* Bits of a row that lacks a token. A skipped row is meant to have none. */
#define FS_PYTHON_LACKS ((uint32_t)((FS_ROW_NO_TOKEN & ~FS_ROW_SKIPPED) | FS_ROW_SHORT))

/* Whether one of the rows lacks a token. */
static inline int fs_python_lacks(const uint32_t *status, int64_t rows) {
    uint32_t bits = 0;
    for (int64_t b = 0; b < rows; b++) bits |= status[b];
    return (bits & FS_PYTHON_LACKS) != 0;
}

enum { FS_PYTHON_STAY = -2, FS_PYTHON_CLOSED = -3 }; /* the stream stays as it is; the context is no more */
/* A function for Python, of a tensor: draws from it and returns `drawn`, or None: it is not as the last one was, or the
 * call failed, or a row lacks a token, and Python is to do it. NULL: Python's exception is set. The GIL is held. */
FS_API void *fs_python_prepare(fs_prepared *prepared);

/* The C library for one kind of device, and how contexts are made. */
typedef struct fs_python_library {
    fs_status (*create)(const fs_options *, fs_context **);
    void (*destroy)(fs_context *);
    fs_sample_function sample;
    fs_stream_function set_stream;
    const char *(*error_text)(const fs_context *);
    const char *(*status_text)(fs_status);
    fs_options options; /* but for the device's number */
} fs_python_library;

/* What torch's operators ask Python for. */
typedef const fs_python_library *(*fs_python_find)(int32_t cuda);
typedef int32_t (*fs_python_make_room)(int32_t device); /* gives device memory back; 0: there is none to give */

/* Writes which of the rows lack a token, and why, to text [size]. */
typedef void (*fs_python_rows_text)(const uint32_t *status, int64_t rows, char *text, int32_t size);

/* Finds torch's functions. NULL, or the name of what is missing. Once, before fs_python_torch_register. */
FS_API const char *fs_python_torch_open(fs_python_find find, fs_python_make_room make_room,
                                        fs_python_rows_text rows_text);
/* Makes fs_python_torch_draw the kernel of this operator, for the CPU and for CUDA. NULL, or what went wrong. */
FS_API const char *fs_python_torch_register(const char *name);
/* The kernel: see torch_ops.c. */
FS_API void fs_python_torch_draw(uint64_t *stack, uint64_t inputs, uint64_t outputs);

/* A member of fs_prepared or fs_python_library, by its full name, for _native.py to compare. */
typedef struct fs_python_member {
    const char *name;
    size_t offset, size;
} fs_python_member;
/* All of them; the name of the last one is NULL. */
FS_API const fs_python_member *fs_python_layout(void);

#endif
