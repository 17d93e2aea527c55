/* options.c - see options.h. */
#define _GNU_SOURCE /* getopt_long */
#include "options.h"
#include "rules.h"

#include <errno.h>
#include <getopt.h>
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

static void print_wrapped(const char *text, int indent) {
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

enum { HELP = 'h', FIRST = 256 }; /* what getopt_long returns: FIRST is option 0 of the table */

/* The table as getopt_long wants it, headings left out. */
static struct option *long_options(const opt *table, int count) {
    struct option *to = take_memory(count + 2, sizeof *to, "options"), *next = to;
    for (int i = 0; i < count; i++)
        if (table[i].kind != OPT_SECTION)
            *next++ = (struct option){table[i].name, table[i].kind == OPT_FLAG ? no_argument : required_argument, NULL,
                                      FIRST + i};
    *next = (struct option){"help", no_argument, NULL, HELP};
    return to;
}

void parse_options(const command *c, const opt *compact, int compact_count, int argc, char **argv) {
    opt *table = take_memory(compact_count + RULES_MOST, sizeof *table, "options");
    const int count = expand(compact, compact_count, table);
    const struct option *names = long_options(table, count);
    for (int at = 1; at < argc; at = optind) {
        const char *word = argv[at];
        if (strncmp(word, "--", 2) != 0 && strcmp(word, "-h") != 0)
            die(END_USAGE, "unexpected argument \"%s\"; options start with --", word);
        /* '+': options end at the first operand; ':': this prints no errors, and a missing value is ':'. */
        const int found = getopt_long(argc, argv, "+:h", names, NULL);
        if (found == HELP) {
            print_help(c, table, count);
            finish(END_OK);
        }
        const opt *o = found >= FIRST ? &table[found - FIRST] : optopt >= FIRST ? &table[optopt - FIRST] : NULL;
        const int length = (int)strcspn(word, "=");
        /* A name that was cut short is refused: another option may begin so one day. */
        if (!o || (int)strlen(o->name) != length - 2)
            die(END_USAGE, "unknown option %.*s; --help lists them", length, word);
        if (found == ':') die(END_USAGE, "--%s needs a value (%s)", o->name, o->arg);
        if (found == '?') die(END_USAGE, "--%s takes no value", o->name);
        if (o->kind == OPT_FLAG) *(int *)o->to = 1;
        else set_value(o, optarg);
    }
}
