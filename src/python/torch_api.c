/* torch_api.c - torch's functions by name, tensors as they show them. */
#include "torch_api.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static const char *const names[TYPES] = {"float32",   "float16",    "bfloat16", "int32",         "int64",      "uint32",
                                         "uint64",    "float64",    "int16",    "int8",          "uint8",      "bool",
                                         "complex64", "complex128", "uint16",   "float8_e4m3fn", "float8_e5m2"};

/* `place` is a pointer to a function, which ISO C keeps apart from pointers to data and POSIX does not. */
static int find(void *library, const char *name, void *place) {
    void *found = dlsym(library, name);
    memcpy(place, &found, sizeof found);
    return found != NULL;
}

static const char *find_types(void *library, fs_torch *torch) {
    static const char cpu[] = "aoti_torch_device_type_cpu", cuda[] = "aoti_torch_device_type_cuda";
    static char name[64];
    int32_t (*number)(void);
    for (int i = 0; i < TYPES; i++) {
        snprintf(name, sizeof name, "aoti_torch_dtype_%s", names[i]);
        if (!find(library, name, &number)) return name;
        torch->dtype[i] = number();
    }
    if (!find(library, cpu, &number)) return cpu;
    torch->cpu = number();
    if (!find(library, cuda, &number)) return cuda;
    torch->cuda = number();
    return NULL;
}

const char *fs_torch_find(fs_torch *torch) {
    static const char delete_name[] = "_ZdlPv";
    const struct {
        const char *name;
        void *place;
    } wanted[] = {
        {"aoti_torch_get_data_ptr", &torch->get_data_ptr},
        {"aoti_torch_get_dim", &torch->get_dim},
        {"aoti_torch_get_sizes", &torch->get_sizes},
        {"aoti_torch_get_strides", &torch->get_strides},
        {"aoti_torch_get_dtype", &torch->get_dtype},
        {"aoti_torch_get_device_type", &torch->get_device_type},
        {"aoti_torch_get_device_index", &torch->get_device_index},
        {"aoti_torch_empty_strided", &torch->empty_strided},
        {"aoti_torch_delete_tensor_object", &torch->delete_tensor},
        {"torch_string_c_str", &torch->string_c_str},
        {"torch_delete_string", &torch->delete_string},
        {"aoti_torch_library_init_impl", &torch->library_init_impl},
        {"torch_library_impl", &torch->library_impl},
        {"aoti_torch_abi_version", &torch->abi_version},
        {"aoti_torch_check", &torch->check},
    };
    void *cpu = dlopen("libtorch_cpu.so", RTLD_LAZY), *cuda = dlopen("libtorch_cuda.so", RTLD_LAZY);
    if (!cpu) return "libtorch_cpu.so";
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++)
        if (!find(cpu, wanted[i].name, wanted[i].place)) return wanted[i].name;
    /* C++'s delete as torch itself finds it: what the process puts before all others, else its own C++ library's. */
    if (!find(dlopen(NULL, RTLD_LAZY), delete_name, &torch->delete_word) &&
        !find(cpu, delete_name, &torch->delete_word))
        return delete_name;
    torch->current_cuda_stream = NULL;
    if (cuda) (void)find(cuda, "aoti_torch_get_current_cuda_stream", &torch->current_cuda_stream);
    return find_types(cpu, torch);
}

int fs_tensor_look(const fs_torch *torch, void *handle, fs_tensor *t) {
    int64_t *sizes, *strides;
    int32_t dtype;
    t->handle = handle;
    if (torch->get_data_ptr(handle, &t->data) || torch->get_dim(handle, &t->dims) || torch->get_sizes(handle, &sizes) ||
        torch->get_strides(handle, &strides) || torch->get_dtype(handle, &dtype) ||
        torch->get_device_type(handle, &t->device) || torch->get_device_index(handle, &t->index))
        return 0;
    t->sizes = sizes;
    t->strides = strides;
    for (t->type = 0; t->type < TYPES && torch->dtype[t->type] != dtype;) t->type++;
    return 1;
}

/* "[7, 5]" at the end of what is there. */
static void add_numbers(char *out, size_t size, const int64_t *numbers, int64_t count) {
    for (int64_t i = 0; i <= count; i++) {
        const size_t used = strlen(out);
        if (i < count) snprintf(out + used, size - used, i ? ", %lld" : "[%lld", (long long)numbers[i]);
        else snprintf(out + used, size - used, count ? "]" : "[]");
    }
}

void fs_tensor_text(const fs_torch *torch, const fs_tensor *t, char *out, size_t size) {
    snprintf(out, size, "%s", t->type < TYPES ? names[t->type] : "a type of its own");
    add_numbers(out, size, t->sizes, t->dims);
    const size_t used = strlen(out);
    if (t->device == torch->cuda) snprintf(out + used, size - used, " on cuda:%d, strides ", (int)t->index);
    else snprintf(out + used, size - used, " on %s, strides ", t->device == torch->cpu ? "cpu" : "another device");
    add_numbers(out, size, t->strides, t->dims);
}

void fs_types_text(uint32_t types, char *out, size_t size) {
    out[0] = 0;
    for (int i = 0; i < TYPES; i++) {
        const size_t used = strlen(out);
        if (types >> i & 1) snprintf(out + used, size - used, used ? " or %s" : "%s", names[i]);
    }
}
