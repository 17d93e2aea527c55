/* print.c - see print.h. */
#define _POSIX_C_SOURCE 200809L
#include "print.h"
#include "cli.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ----------------------------------------------------------------------------------------------------- texts ---- */

/* Bytes of the character of UTF-8 that begins here; 0: none does. */
static int utf8_bytes(const unsigned char *c) {
    if (c[0] < 0x80) return 1;
    const int more = c[0] >= 0xf0 ? 3 : c[0] >= 0xe0 ? 2 : 1;
    if (c[0] < 0xc2 || c[0] > 0xf4) return 0;
    for (int i = 1; i <= more; i++)
        if ((c[i] & 0xc0) != 0x80) return 0;
    /* What has a shorter form, halves of surrogate pairs, and what is above U+10FFFF. */
    if ((c[0] == 0xe0 && c[1] < 0xa0) || (c[0] == 0xed && c[1] >= 0xa0)) return 0;
    if ((c[0] == 0xf0 && c[1] < 0x90) || (c[0] == 0xf4 && c[1] >= 0x90)) return 0;
    return more + 1;
}

/* Which control character begins here; -1: none does. */
static int control_code(const unsigned char *c) {
    if (c[0] < 0x20 || c[0] == 0x7f) return c[0];
    return c[0] == 0xc2 && c[1] >= 0x80 && c[1] < 0xa0 ? c[1] : -1;
}

void print_visible(FILE *to, const char *text) {
    const unsigned char *c = (const unsigned char *)text;
    while (*c) {
        const int n = control_code(c) < 0 ? utf8_bytes(c) : 0;
        if (n) fwrite(c, 1, (size_t)n, to);
        else fprintf(to, "\\x%02x", *c);
        c += n ? n : 1;
    }
}

/* ---------------------------------------------------------------------------------------------------- tables ---- */

#define MAX_COLUMNS 24

struct table {
    int columns;
    char *head[MAX_COLUMNS];
    int left[MAX_COLUMNS];
    int width[MAX_COLUMNS];
    int64_t cells, room;
    char **cell;
};

static char *keep_text(const char *text) {
    char *copy = strdup(text);
    if (!copy) die(END_RUNTIME, "no memory for a table");
    keep_memory(copy);
    return copy;
}

/* Columns on a terminal: bytes of UTF-8 that do not continue a character. */
static int text_width(const char *text) {
    int n = 0;
    for (; *text; text++) n += ((unsigned char)*text & 0xC0) != 0x80;
    return n;
}

table *table_new(const char *heads) {
    table *t = take_memory(1, sizeof *t, "a table");
    while (t->columns < MAX_COLUMNS) {
        size_t n = strcspn(heads, "|");
        t->left[t->columns] = *heads == '<';
        char head[64];
        snprintf(head, sizeof head, "%.*s", (int)n - t->left[t->columns], heads + t->left[t->columns]);
        t->head[t->columns] = keep_text(head);
        t->width[t->columns] = text_width(head);
        t->columns++;
        if (!heads[n]) break;
        heads += n + 1;
    }
    return t;
}

void table_cell(table *t, const char *format, ...) {
    char text[256];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    if (t->cells == t->room) {
        int64_t room = t->room ? 2 * t->room : 64;
        char **cell = take_memory(room, sizeof *cell, "a table");
        if (t->cells) memcpy(cell, t->cell, (size_t)t->cells * sizeof *cell);
        t->cell = cell;
        t->room = room;
    }
    int column = (int)(t->cells % t->columns);
    t->cell[t->cells++] = keep_text(text);
    if (text_width(text) > t->width[column]) t->width[column] = text_width(text);
}

static void print_cell(const table *t, int column, const char *text) {
    int pad = t->width[column] - text_width(text);
    int last = column + 1 == t->columns;
    if (t->left[column]) printf("  %s%*s", text, last ? 0 : pad, "");
    else printf("  %*s%s", pad, "", text);
    if (last) putchar('\n');
}

void table_print(const table *t) {
    for (int c = 0; c < t->columns; c++) print_cell(t, c, t->head[c]);
    for (int64_t i = 0; i < t->cells; i++) print_cell(t, (int)(i % t->columns), t->cell[i]);
}

/* --------------------------------------------------------------------------------------------------- numbers ---- */

static char *next_buffer(void) {
    static char buffers[16][40];
    static int next;
    next = (next + 1) % 16;
    return buffers[next];
}

const char *text_bytes(double bytes) {
    static const char *const unit[] = {"B", "KB", "MB", "GB", "TB"};
    int u = 0;
    while (bytes >= 1000.0 && u < 4) {
        bytes /= 1000.0;
        u++;
    }
    char *text = next_buffer();
    snprintf(text, 40,
             u == 0          ? "%.0f %s"
             : bytes < 10.0  ? "%.2f %s"
             : bytes < 100.0 ? "%.1f %s"
                             : "%.0f %s",
             bytes, unit[u]);
    return text;
}

const char *text_seconds(double seconds) {
    char *text = next_buffer();
    if (seconds < 1e-3) snprintf(text, 40, "%.1f us", seconds * 1e6);
    else if (seconds < 1.0) snprintf(text, 40, seconds < 0.1 ? "%.2f ms" : "%.1f ms", seconds * 1e3);
    else if (seconds < 100.0) snprintf(text, 40, "%.1f s", seconds);
    else snprintf(text, 40, "%.0f min %02.0f s", floor(seconds / 60.0), floor(fmod(seconds, 60.0)));
    return text;
}

const char *text_count(double count) {
    char digits[32], *text = next_buffer();
    int n = snprintf(digits, sizeof digits, "%.0f", fabs(count));
    int out = 0;
    if (count < 0) text[out++] = '-';
    for (int i = 0; i < n && out < 38; i++) {
        if (i > 0 && (n - i) % 3 == 0) text[out++] = ',';
        text[out++] = digits[i];
    }
    text[out] = 0;
    return text;
}

const char *text_cache(int64_t bytes) {
    return bytes > 0 ? text_bytes((double)bytes) : "unknown size";
}

const char *text_real(double value) {
    char *text = next_buffer();
    if (isnan(value)) return "nan"; /* without the sign printf gives it */
    snprintf(text, 40, "%.4f", value);
    return text;
}

/* ------------------------------------------------------------------------------------------------------ JSON ---- */

static int json_depth, json_filled[64];

static void json_key(const char *key) {
    if (json_depth > 0) {
        int first = !json_filled[json_depth];
        json_filled[json_depth] = 1;
        if (!first) putchar(',');
        /* One line per entry of the outer two levels; rows of numbers stay on one line. */
        if (json_depth <= 2) printf("\n%*s", 2 * json_depth, "");
        else if (!first) putchar(' ');
    }
    if (key) printf("\"%s\": ", key);
}

void json_open(const char *key, char bracket) {
    json_key(key);
    putchar(bracket);
    if (json_depth < 63) json_filled[++json_depth] = 0;
}

void json_close(char bracket) {
    json_depth--;
    if (json_depth < 2 && json_filled[json_depth + 1]) printf("\n%*s", 2 * json_depth, "");
    putchar(bracket);
    if (json_depth == 0) putchar('\n');
}

void json_int(const char *key, int64_t value) {
    json_key(key);
    printf("%lld", (long long)value);
}

void json_uint(const char *key, uint64_t value) {
    json_key(key);
    printf("%llu", (unsigned long long)value);
}

void json_real(const char *key, double value) {
    json_key(key);
    if (isnan(value)) printf("\"nan\"");
    else if (isinf(value)) printf(value > 0 ? "\"inf\"" : "\"-inf\"");
    else printf("%.9g", value);
}

void json_bool(const char *key, int value) {
    json_key(key);
    printf(value ? "true" : "false");
}

void json_text(const char *key, const char *value) {
    json_key(key);
    putchar('"');
    for (const unsigned char *c = (const unsigned char *)value; *c;) {
        const int n = utf8_bytes(c), control = control_code(c);
        if (n == 0) printf("\\\\x%02x", *c);
        else if (control >= 0) printf("\\u%04x", (unsigned)control);
        else printf("%s%.*s", *c == '"' || *c == '\\' ? "\\" : "", n, (const char *)c);
        c += n ? n : 1;
    }
    putchar('"');
}

/* -------------------------------------------------------------------------------------------------- progress ---- */

static struct {
    char what[64];
    double total, began, shown;
    int off, tty, active, lines;
} progress;

void progress_off(void) {
    progress.off = 1;
}

void progress_label(const char *what) {
    snprintf(progress.what, sizeof progress.what, "%s", what);
}

void progress_start(const char *what, double total) {
    if (progress.off) return;
    fflush(stdout); /* both streams may be the same file */
    progress_label(what);
    progress.active = 1;
    progress.lines = 0;
    progress.total = total > 0 ? total : 1;
    progress.began = progress.shown = now();
    const char *term = getenv("TERM");
    progress.tty = isatty(2) && !(term && strcmp(term, "dumb") == 0);
    if (progress.tty) progress_at(0);
}

static const char *whole_seconds(double seconds) {
    char *text = next_buffer();
    if (seconds < 100.0) snprintf(text, 40, "%.0f s", seconds);
    else snprintf(text, 40, "%.0f min", seconds / 60.0);
    return text;
}

void progress_at(double done) {
    if (!progress.active) return;
    double time = now(), share = fmin(1.0, done / progress.total);
    /* Lines start after a second: what takes less needs none. */
    double pause = progress.tty ? 0.1 : progress.lines ? 5.0 : 1.0;
    if (!(progress.tty && done == 0) && time - progress.shown < pause) return;
    progress.shown = time;
    progress.lines++;
    double left = share > 0.01 ? (time - progress.began) * (1.0 - share) / share : -1.0;
    char rest[48] = "";
    if (left >= 0) snprintf(rest, sizeof rest, ", %s left", left < 1.0 ? "less than 1 s" : whole_seconds(left));
    if (!progress.tty) {
        fprintf(stderr, "%s ... %.0f %%%s\n", progress.what, 100 * share, rest);
        return;
    }
    char bar[31] = "..............................";
    memset(bar, '#', (size_t)(share * 30));
    fprintf(stderr, "\r\033[K%-32s [%s] %3.0f %%%s", progress.what, bar, 100 * share, rest);
    fflush(stderr);
}

void progress_end(void) {
    if (progress.active && progress.tty) fprintf(stderr, "\r\033[K");
    progress.active = 0;
}
