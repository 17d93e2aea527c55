/* options.h - a command's options are a table; parsing (getopt_long), limits and help all come from it. */
#ifndef FS_CLI_OPTIONS_H
#define FS_CLI_OPTIONS_H

#include "cli.h"

typedef enum {
    OPT_SECTION, /* a heading in the help; name is its text */
    OPT_FLAG,    /* int *: set to 1 */
    OPT_INT,     /* int64_t *: low .. high */
    OPT_REAL,    /* double *: low .. high, which may be infinite */
    OPT_TEXT,    /* const char ** */
    OPT_CHOICE,  /* int *: index into choices */
    OPT_RULES    /* rule_texts *: stands for one OPT_TEXT for each rule of the library (rules.h) */
} opt_kind;

typedef struct opt {
    opt_kind kind;
    const char *name; /* without the dashes */
    const char *arg;  /* what the value is called in the help; NULL for flags */
    const char *help;
    void *to;
    double low, high;           /* OPT_INT, OPT_REAL */
    const char *const *choices; /* OPT_CHOICE, NULL-terminated */
} opt;

typedef struct command {
    const char *name;
    const char *usage;   /* what follows the name in the usage line */
    const char *about;   /* paragraphs above the options */
    const char *details; /* paragraphs below, or NULL */
} command;

#define OPT_HEAD(text)                                                                                                 \
    { OPT_SECTION, text, NULL, NULL, NULL, 0, 0, NULL }
#define OPT_RULES_TO(to)                                                                                               \
    { OPT_RULES, NULL, NULL, NULL, to, 0, 0, NULL }
#define OPT_FLAG_TO(name, help, to)                                                                                    \
    { OPT_FLAG, name, NULL, help, to, 0, 0, NULL }
#define OPT_TEXT_TO(name, arg, help, to)                                                                               \
    { OPT_TEXT, name, arg, help, to, 0, 0, NULL }
#define OPT_INT_TO(name, arg, help, to, low, high)                                                                     \
    { OPT_INT, name, arg, help, to, low, high, NULL }
#define OPT_REAL_TO(name, arg, help, to, low, high)                                                                    \
    { OPT_REAL, name, arg, help, to, low, high, NULL }
#define OPT_CHOICE_TO(name, help, to, choices)                                                                         \
    { OPT_CHOICE, name, "NAME", help, to, 0, 0, choices }

/* The options of a context, for the end of a table. `a` is a context_args. */
#define CONTEXT_OPTIONS(a)                                                                                             \
    OPT_HEAD("Machine"),                                                                                               \
        OPT_INT_TO("threads", "N", "CPU threads; 0 = every core this process may run on (default)", &(a).threads, 0,   \
                   4096),                                                                                              \
        OPT_INT_TO("block", "N", "CPU: tokens per block, never changes a token; 0 = chosen (default)", &(a).block, 0,  \
                   1 << 20),                                                                                           \
        OPT_CHOICE_TO(                                                                                                 \
            "backend",                                                                                                 \
            "where calls run; auto = cpu; cuda = on a GPU; reference = plain loops in double, slow (default auto)",    \
            &(a).backend, backend_names),                                                                              \
        OPT_INT_TO("device", "N", "CUDA device, as flashsample info numbers them (default 0)", &(a).device, 0, 1023),  \
        OPT_INT_TO("fallback-mib", "N", "most MiB a second pass for wide rows may take; 0 = none (default 320)",       \
                   &(a).fallback_mib, 0, 1 << 20),                                                                     \
        OPT_FLAG_TO("verbose", "what the library chose and why, on stderr", &(a).verbose)

/* Parses argv [argc], whose first word is the command's name, by the table [count]. Ends the program for --help (0), for
 * an unknown option, a value out of range or a stray argument (2). */
void parse_options(const command *c, const opt *table, int count, int argc, char **argv);
#define PARSE_OPTIONS(c, table, argc, argv)                                                                            \
    parse_options(c, table, (int)(sizeof(table) / sizeof((table)[0])), argc, argv)

/* The option of a rule: its name, with dashes. */
const char *option_of_rule(const fs_rule_info *info);

/* 16 for digits that begin with 0x, else 10: a leading zero does not make them octal. */
int number_base(const char *digits);
/* A whole text as a number ("1e6" is an integer); 0 if it is none. */
int parse_int(const char *text, int64_t *value);
int parse_real(const char *text, double *value);

#endif
