/* torch_api.h - the functions of torch's stable C interface that operators need, found by name in the libraries that
 * the process has loaded, and a tensor as they show it. torch is needed neither to compile nor to load this library. */
#ifndef FS_TORCH_API_H
#define FS_TORCH_API_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Types by name; the first seven are those that some argument may have. */
enum { F32, F16, BF16, I32, I64, U32, U64, TYPES = 17 };
#define FLOATS (1u << F32 | 1u << F16 | 1u << BF16)
#define LONGS (1u << I64 | 1u << U64)
#define WORDS (1u << I32 | 1u << U32)

/* 0 is success, of all that return int32_t. Handles that come back are the caller's to delete. */
typedef struct fs_torch {
    int32_t (*get_data_ptr)(void *tensor, void **out);
    int32_t (*get_dim)(void *tensor, int64_t *out);
    int32_t (*get_sizes)(void *tensor, int64_t **out);
    int32_t (*get_strides)(void *tensor, int64_t **out);
    int32_t (*get_dtype)(void *tensor, int32_t *out);
    int32_t (*get_device_type)(void *tensor, int32_t *out);
    int32_t (*get_device_index)(void *tensor, int32_t *out);
    int32_t (*empty_strided)(int64_t dims, const int64_t *sizes, const int64_t *strides, int32_t dtype, int32_t device,
                             int32_t index, void **out);
    int32_t (*delete_tensor)(void *tensor);
    int32_t (*string_c_str)(void *string, const char **out);
    int32_t (*delete_string)(void *string);
    int32_t (*library_init_impl)(const char *space, const char *key, const char *file, uint32_t line, void **out);
    int32_t (*library_impl)(void *library, const char *name, void (*kernel)(uint64_t *, uint64_t, uint64_t),
                            uint64_t version);
    uint64_t (*abi_version)(void);
    void (*check)(bool good, const char *function, const char *file, uint32_t line, const char *text); /* throws */
    void (*delete_word)(void *memory);                         /* C++'s delete */
    int32_t (*current_cuda_stream)(int32_t index, void **out); /* NULL where torch is without CUDA */
    int32_t dtype[TYPES];                                      /* torch's numbers of our types */
    int32_t cpu, cuda;                                         /* and of devices */
} fs_torch;

typedef struct fs_tensor {
    void *handle, *data;
    const int64_t *sizes, *strides; /* in elements */
    int64_t dims;
    int32_t type, device, index; /* type: F32, ..., or TYPES for others */
} fs_tensor;

/* NULL, or the name of the function that is missing. */
const char *fs_torch_find(fs_torch *torch);
/* Whether torch has shown all of it. */
int fs_tensor_look(const fs_torch *torch, void *handle, fs_tensor *out);
/* "float32[7, 5] on cpu, strides [5, 1]". */
void fs_tensor_text(const fs_torch *torch, const fs_tensor *tensor, char *out, size_t size);
/* "float32 or float16": the types of these bits. */
void fs_types_text(uint32_t types, char *out, size_t size);

#endif
