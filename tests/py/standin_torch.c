/* standin_torch.c - torch's C interface without torch, for test_torch_kernel.py: tensors are the structs below, on any
 * device they say they are on; what is made and not deleted is counted; the exception is a text. */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct tensor {
    void *data;
    int64_t dims, sizes[2], strides[2];
    int32_t dtype, device, index, made_here;
} tensor;

int64_t standin_deleted, standin_made, standin_words, standin_strings, standin_registered;
int32_t standin_fail_empty;
void *standin_stream;
char standin_error[1024], standin_names[1024];

#define READ(name, type, expression)                                                                                   \
    int32_t aoti_torch_get_##name(tensor *t, type *out) {                                                              \
        *out = expression;                                                                                             \
        return 0;                                                                                                      \
    }
READ(data_ptr, void *, t->data)
READ(dim, int64_t, t->dims)
READ(sizes, int64_t *, t->sizes)
READ(strides, int64_t *, t->strides)
READ(dtype, int32_t, t->dtype)
READ(device_type, int32_t, t->device)
READ(device_index, int32_t, t->index)

#define NUMBER(name, value)                                                                                            \
    int32_t aoti_torch_##name(void) {                                                                                  \
        return value;                                                                                                  \
    }
NUMBER(device_type_cpu, 0)
NUMBER(device_type_cuda, 1)
NUMBER(dtype_float32, 6)
NUMBER(dtype_float16, 5)
NUMBER(dtype_bfloat16, 15)
NUMBER(dtype_int32, 3)
NUMBER(dtype_int64, 4)
NUMBER(dtype_uint32, 28)
NUMBER(dtype_uint64, 29)
NUMBER(dtype_float64, 7)
NUMBER(dtype_int16, 2)
NUMBER(dtype_int8, 1)
NUMBER(dtype_uint8, 0)
NUMBER(dtype_bool, 11)
NUMBER(dtype_complex64, 9)
NUMBER(dtype_complex128, 10)
NUMBER(dtype_uint16, 27)
NUMBER(dtype_float8_e4m3fn, 24)
NUMBER(dtype_float8_e5m2, 23)

int32_t aoti_torch_empty_strided(int64_t dims, const int64_t *sizes, const int64_t *strides, int32_t dtype,
                                 int32_t device, int32_t index, tensor **out) {
    if (standin_fail_empty) return 1;
    tensor *t = calloc(1, sizeof *t);
    memcpy(t->sizes, sizes, (size_t)dims * sizeof *sizes);
    memcpy(t->strides, strides, (size_t)dims * sizeof *strides);
    t->dims = dims, t->dtype = dtype, t->device = device, t->index = index, t->made_here = 1;
    t->data = calloc(1, (size_t)(sizes[0] * (dims > 1 ? sizes[1] : 1) * 8 + 1));
    standin_made++;
    *out = t;
    return 0;
}

int32_t aoti_torch_delete_tensor_object(tensor *t) {
    standin_deleted++;
    if (t->made_here) free(t->data), free(t);
    return 0;
}

void _ZdlPv(void *memory) {
    standin_words++;
    free(memory);
}

void *standin_word(void *handle) {
    void **word = malloc(sizeof *word);
    *word = handle;
    return word;
}

int32_t torch_string_c_str(char *string, const char **out) {
    *out = string;
    return 0;
}

int32_t torch_delete_string(char *string) {
    (void)string;
    standin_strings++;
    return 0;
}

int32_t aoti_torch_library_init_impl(const char *space, const char *key, const char *file, uint32_t line, void **out) {
    (void)file, (void)line;
    snprintf(standin_names + strlen(standin_names), 64, "%s %s;", space, key);
    *out = standin_names;
    return 0;
}

int32_t torch_library_impl(void *library, const char *name, void (*kernel)(uint64_t *, uint64_t, uint64_t),
                           uint64_t v) {
    (void)library, (void)kernel, (void)v;
    snprintf(standin_names + strlen(standin_names), 64, "%s;", name);
    return 0;
}

uint64_t aoti_torch_abi_version(void) {
    return 1;
}

void aoti_torch_check(bool good, const char *function, const char *file, uint32_t line, const char *text) {
    (void)function, (void)file, (void)line;
    if (!good) snprintf(standin_error, sizeof standin_error, "%s", text);
}

int32_t aoti_torch_get_current_cuda_stream(int32_t index, void **out) {
    (void)index;
    *out = standin_stream;
    return 0;
}
