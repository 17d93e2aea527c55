/* cli.h - what every command of flashsample shares: how it ends, memory, time, contexts. */
#ifndef FS_CLI_CLI_H
#define FS_CLI_CLI_H

#include "flashsampling.h"

#include <stddef.h>
#include <stdint.h>

/* How the program ends; `flashsample --help` says the same. */
enum { END_OK = 0, END_REJECTED = 1, END_USAGE = 2, END_RUNTIME = 3 };

/* Prints "flashsample COMMAND: text" to stderr and ends the program. */
void die(int code, const char *format, ...) __attribute__((format(printf, 2, 3), noreturn));

/* Ends the program with this code, or with END_RUNTIME where what it printed could not be written. */
void finish(int code) __attribute__((noreturn));

/* The command in messages; set once by main. */
void set_command(const char *name);

/* count * size bytes, zeroed, 64-byte aligned, or the end of the program with a text that says for what. Freed when the
 * program ends, so commands free nothing. */
void *take_memory(int64_t count, size_t size, const char *what);
/* The same for memory from elsewhere (malloc family): freed when the program ends. */
void keep_memory(void *memory);

/* Seconds of a monotonic clock. */
double now(void);
/* Cores this process may run on. */
int cores(void);
/* Bytes of the last-level cache of one socket, 0 if the system does not tell. */
int64_t cache_bytes(void);
/* Bytes of memory the machine has. */
int64_t memory_bytes(void);
/* "Intel(R) Xeon(R) ...", or "unknown CPU". Valid until the program ends. */
const char *cpu_name(void);

/* The options every command that opens a context has; CONTEXT_OPTIONS in options.h fills it. */
typedef struct context_args {
    int backend; /* index into backend_names */
    int64_t threads, block, device;
    int64_t fallback_mib; /* -1 = what the library grants */
    int verbose;
} context_args;

extern const char *const backend_names[]; /* NULL-terminated, indexed by FS_BACKEND_... */
context_args context_args_default(void);
/* Opens a context or ends the program; it is closed when the program ends. */
fs_context *open_context(const context_args *args);
/* Of its last call. */
fs_counters counters_of(fs_context *context);
/* Ends the program unless the call went well: a refused argument is the user's (2), the rest is ours (3). */
void check(fs_context *context, fs_status status);

int cmd_demo(int argc, char **argv);
int cmd_sample(int argc, char **argv);
int cmd_verify(int argc, char **argv);
int cmd_bench(int argc, char **argv);
int cmd_info(int argc, char **argv);

#endif
