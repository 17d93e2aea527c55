/* print.h - what a person or a program reads: aligned tables, JSON, numbers with units, progress. */
#ifndef FS_CLI_PRINT_H
#define FS_CLI_PRINT_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Prints a text that may hold what somebody else wrote (a file's name, a value of the environment): UTF-8 as it is,
 * other bytes and control characters, which a terminal would obey, as \xNN. */
void print_visible(FILE *to, const char *text);

/* ---- tables: cells are collected, columns get the width of their widest cell. */
typedef struct table table;
/* heads: "row|token|<text"; a column is right-aligned unless its head starts with '<'. Lives until the program ends. */
table *table_new(const char *heads);
void table_cell(table *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Prints to stdout, indented by two. */
void table_print(const table *t);

/* ---- numbers with units: short texts in one of a few rotating buffers, so that one printf can use several. */
const char *text_bytes(double bytes);     /* "311.2 MB" */
const char *text_count(double count);     /* "1,234,567" */
const char *text_seconds(double seconds); /* "12.3 ms" */
const char *text_cache(int64_t bytes);    /* "315 MB", or "unknown size" for 0 */
const char *text_real(double value);      /* four significant digits; "-inf", "nan" */

/* ---- JSON on stdout. key is NULL inside an array. Numbers that are not finite are the texts "nan", "inf", "-inf"; a
 * byte of a text that is not UTF-8 is the text \xNN. */
void json_open(const char *key, char bracket); /* '{' or '[' */
void json_close(char bracket);                 /* '}' or ']'; the outermost ends the line */
void json_int(const char *key, int64_t value);
void json_uint(const char *key, uint64_t value);
void json_real(const char *key, double value);
void json_text(const char *key, const char *value);
void json_bool(const char *key, int value);

/* ---- progress on stderr: a bar with the time left on a terminal, otherwise a plain line after a second and then
 * every few. */
void progress_start(const char *what, double total);
void progress_at(double done);
/* Another text beside the bar. */
void progress_label(const char *what);
void progress_end(void);
/* Silences progress, for tests and --quiet. */
void progress_off(void);

#endif
