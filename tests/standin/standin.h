/* standin.h - what the stand-in driver (libcuda.c) tells the stand-in backend (backend.c). */
#ifndef FS_TESTS_STANDIN_H
#define FS_TESTS_STANDIN_H

#include <stddef.h>

/* Device memory can be read and written from `standin_enter` to `standin_leave`, which nest; elsewhere a touch of it
 * ends the process. */
void standin_enter(void);
void standin_leave(void);
/* Whether the address lies in device memory. */
int standin_owns(const void *address);
/* Whether this is a stream of the driver that has not been destroyed. */
int standin_has_stream(const void *stream);

#endif
