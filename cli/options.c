/* options.c - see options.h. */
#include "options.h"
#include "rules.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COLUMNS 100
#define HELP_COLUMN 30

/* --------------------------------------------------------------------------------------------------- numbers ---- */

int parse_real(const char *text, double *value) {
    char *end;
    errno = 0;
    *value = strtod(text, &end);
    return end != text && *end == 0 && !(errno == ERANGE && isinf(*value));
}

int number_base(const char *digits) {
    return digits[0] == '0' && (digits[1] == 'x' || digits[1] == 'X') ? 16 : 10;
}

int parse_int(const char *text, int64_t *value) {
    char *end;
    errno = 0;
    *value = strtoll(text, &end, number_base(text + (*text == '-' || *text == '+')));
    if (end != text && *end == 0 && errno == 0) return 1;
    double real;
    /* "1e6", as people write numbers of draws; exact up to 2^53. */
    if (!parse_real(text, &real) || real != floor(real) || fabs(real) > 9007199254740992.0) return 0;
    *value = (int64_t)real;
    return 1;
}

/* ----------------------------------------------------------------------------------------------------- hints ---- */

/* Edits (insert, delete, replace) from a to b, at most 31 characters each. */
static int distance(const char *a, const char *b) {
    int n = (int)strlen(b), row[32];
    if (strlen(a) > 31 || n > 31) return 99;
    for (int j = 0; j <= n; j++) row[j] = j;
    for (int i = 1; a[i - 1]; i++) {
        int diagonal = row[0];
        row[0] = i;
        for (int j = 1; j <= n; j++) {
            int best = diagonal + (a[i - 1] != b[j - 1]);
            if (row[j] + 1 < best) best = row[j] + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            diagonal = row[j];
            row[j] = best;
        }
    }
    return row[n];
}

const char *nearest(const char *word, const char *const *words) {
    const char *found = NULL;
    int least = strlen(word) < 5 ? 2 : 3; /* at most this many edits, less one */
    for (; *words; words++) {
        int d = distance(word, *words);
        if (d <= least) {
            least = d - 1;
            found = *words;
        }
    }
    return found;
}

/* ------------------------------------------------------------------------------------------------------ help ---- */

/* Prints one paragraph line wrapped; the cursor is at `column` when it starts. */
static void print_words(const char *text, size_t length, int indent, int column) {
    const char *end = text + length;
    int first = 1;
    while (text < end) {
        size_t word = strcspn(text, " \n");
        if (word > (size_t)(end - text)) word = (size_t)(end - text);
        if (!first && column + 1 + (int)word > COLUMNS) {
            printf("\n%*s", indent, "");
            column = indent;
        } else if (!first) {
            putchar(' ');
            column++;
        }
        printf("%.*s", (int)word, text);
        column += (int)word;
        text += word;
        while (text < end && *text == ' ') text++;
        first = 0;
    }
    putchar('\n');
}

void print_wrapped(const char *text, int indent) {
    while (*text) {
        size_t line = strcspn(text, "\n");
        if (*text == ' ' || line == 0) printf("%.*s\n", (int)line, text);
        else {
            printf("%*s", indent, "");
            print_words(text, line, indent, indent);
        }
        text += line + (text[line] == '\n');
    }
}

static void print_option(const opt *o) {
    char left[128];
    int n = snprintf(left, sizeof left, "  --%s%s%s", o->name, o->arg ? " " : "", o->arg ? o->arg : "");
    printf("%s", left);
    if (n + 2 > HELP_COLUMN) printf("\n%*s", HELP_COLUMN, "");
    else printf("%*s", HELP_COLUMN - n, "");
    print_words(o->help, strlen(o->help), HELP_COLUMN, HELP_COLUMN);
    if (o->kind != OPT_CHOICE) return;
    char names[256] = "one of:";
    size_t used = strlen(names);
    for (const char *const *name = o->choices; *name; name++)
        used += (size_t)snprintf(names + used, sizeof names - used, " %s%s", *name, name[1] ? "," : "");
    printf("%*s", HELP_COLUMN, "");
    print_words(names, strlen(names), HELP_COLUMN, HELP_COLUMN);
}

static void print_help(const command *c, const opt *table, int count) {
    char usage[256];
    snprintf(usage, sizeof usage, "usage: flashsample %s %s", c->name, c->usage);
    print_words(usage, strlen(usage), 4, 0);
    putchar('\n');
    print_wrapped(c->about, 0);
    for (int i = 0; i < count; i++) {
        if (table[i].kind == OPT_SECTION) printf("\n%s\n", table[i].name);
        else print_option(&table[i]);
    }
    static const opt help = {OPT_FLAG, "help", NULL, "this text", NULL, 0, 0, NULL};
    print_option(&help);
    if (c->details) {
        putchar('\n');
        print_wrapped(c->details, 0);
    }
}

/* ----------------------------------------------------------------------------------------------------- parse ---- */

__attribute__((noreturn)) static void unknown_option(const opt *table, int count, const char *name) {
    const char *names[128];
    int n = 0;
    for (int i = 0; i < count && n < 127; i++)
        if (table[i].kind != OPT_SECTION) names[n++] = table[i].name;
    names[n] = NULL;
    const char *near = nearest(name, names);
    if (near) die(END_USAGE, "unknown option --%s; did you mean --%s?", name, near);
    die(END_USAGE, "unknown option --%s; --help lists them", name);
}

static void set_choice(const opt *o, const char *value) {
    for (int i = 0; o->choices[i]; i++) {
        if (strcmp(o->choices[i], value) == 0) {
            *(int *)o->to = i;
            return;
        }
    }
    char names[256] = "";
    size_t used = 0;
    for (int i = 0; o->choices[i] && used < sizeof names; i++)
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", i ? ", " : "", o->choices[i]);
    die(END_USAGE, "--%s %s: expected one of %s", o->name, value, names);
}

static void set_value(const opt *o, const char *value) {
    if (o->kind == OPT_TEXT) *(const char **)o->to = value;
    if (o->kind == OPT_CHOICE) set_choice(o, value);
    if (o->kind == OPT_INT) {
        int64_t *to = o->to;
        if (!parse_int(value, to)) die(END_USAGE, "--%s %s: not an integer", o->name, value);
        if ((double)*to < o->low || (double)*to > o->high)
            die(END_USAGE, "--%s %s: must lie in %.0f .. %.0f", o->name, value, o->low, o->high);
    }
    if (o->kind == OPT_REAL) {
        double *to = o->to;
        if (!parse_real(value, to)) die(END_USAGE, "--%s %s: not a number", o->name, value);
        if (!(*to >= o->low && *to <= o->high))
            die(END_USAGE, "--%s %s: must lie in %g .. %g", o->name, value, o->low, o->high);
        if (*to != 0 && (float)*to == 0) die(END_USAGE, "--%s %s: too close to 0 for a float", o->name, value);
    }
}

static const opt *find_option(const opt *table, int count, const char *name, size_t length) {
    for (int i = 0; i < count; i++)
        if (table[i].kind != OPT_SECTION && strlen(table[i].name) == length && memcmp(table[i].name, name, length) == 0)
            return &table[i];
    return NULL;
}

const char *option_of_rule(const fs_rule_info *info) {
    static char names[RULES_MOST][32];
    int32_t at = 0;
    while (fs_rule(at) != info) at++;
    char *name = names[at % RULES_MOST];
    snprintf(name, sizeof names[0], "%s", info->name);
    for (char *c = name; *c; c++)
        if (*c == '_') *c = '-';
    return name;
}

/* The table with an option for each rule in place of OPT_RULES. */
static int expand(const opt *table, int count, opt *to) {
    int n = 0;
    for (int i = 0; i < count; i++) {
        if (table[i].kind != OPT_RULES) {
            to[n++] = table[i];
            continue;
        }
        rule_texts *texts = table[i].to;
        for (int32_t rule = 0; fs_rule(rule) && rule < RULES_MOST; rule++)
            to[n++] =
                (opt){OPT_TEXT, option_of_rule(fs_rule(rule)), "VALUES", fs_rule(rule)->about, &texts->text[rule], 0, 0,
                      NULL};
    }
    return n;
}

void parse_options(const command *c, const opt *compact, int compact_count, int argc, char **argv) {
    opt *table = take_memory(compact_count + RULES_MOST, sizeof *table, "options");
    const int count = expand(compact, compact_count, table);
    for (int i = 0; i < argc; i++) {
        if (strcmp(argv[i], "-h") == 0 || strcmp(argv[i], "--help") == 0) {
            print_help(c, table, count);
            finish(END_OK);
        }
    }
    for (int i = 0; i < argc; i++) {
        const char *word = argv[i];
        if (word[0] != '-' || word[1] != '-' || !word[2])
            die(END_USAGE, "unexpected argument \"%s\"; options start with --", word);
        word += 2;
        size_t length = strcspn(word, "=");
        const opt *o = find_option(table, count, word, length);
        if (!o) {
            char name[64];
            snprintf(name, sizeof name, "%.*s", (int)(length < 63 ? length : 63), word);
            unknown_option(table, count, name);
        }
        const char *value = word[length] == '=' ? word + length + 1 : NULL;
        if (o->kind == OPT_FLAG) {
            if (value) die(END_USAGE, "--%s takes no value", o->name);
            *(int *)o->to = 1;
            continue;
        }
        if (!value && i + 1 == argc) die(END_USAGE, "--%s needs a value (%s)", o->name, o->arg);
        set_value(o, value ? value : argv[++i]);
    }
}
