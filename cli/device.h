/* device.h - the memory that calls read and write: host memory or, after device_open, memory of a CUDA device.
 *
 * The CUDA driver is loaded when it is asked for, not linked: one flashsample serves machines with and without one.
 * Every failure ends the program with a text that says what failed. Memory is freed when the program ends. */
#ifndef FS_CLI_DEVICE_H
#define FS_CLI_DEVICE_H

#include <stddef.h>
#include <stdint.h>

/* Makes CUDA device `ordinal` the one that all calls of this process run on. Contexts that are opened later are closed
 * before it. */
void device_open(int64_t ordinal);
/* Whether calls run on a CUDA device. */
int device_is_cuda(void);
/* The stream (a CUstream) of all calls and copies; NULL for host memory. */
void *device_stream(void);
/* Returns when all calls and copies have run. */
void device_wait(void);

/* Memory for arrays of calls, 64-byte aligned, which holds nothing yet; `what` names it where it cannot be had. */
void *device_take(int64_t bytes, const char *what);
/* Frees it before the program ends; NULL is allowed. */
void device_free(void *memory);
/* Copy bytes between host memory and memory that calls read, after all calls so far, and wait. */
void device_upload(void *to, const void *from, size_t bytes);
void device_download(void *to, const void *from, size_t bytes);
/* The array as calls read it: a copy in device memory, or the array itself where calls read host memory. NULL stays
 * NULL. */
const void *device_array(const void *array, int64_t bytes, const char *what);
/* Copies between two places in memory that calls read; on CUDA it does not wait. */
void device_copy(void *to, const void *from, size_t bytes);

typedef struct device_facts {
    char name[128];
    int major, minor;                  /* compute capability; 0 for the host */
    int64_t memory_bytes, cache_bytes; /* the cache is the last-level one */
} device_facts;

/* The CUDA devices of this machine, at most `most`; returns how many there are. Where there is none, *why says why, a
 * text that is valid until the program ends. */
int device_list(device_facts *facts, int most, const char **why);
/* The device that calls run on: a CUDA device, or the host. */
device_facts device_opened(void);

#endif
