/* cmd_info.c - `flashsample info`: what this build is and what this machine can run. */
#define _GNU_SOURCE /* setenv, environ */
#include "device.h"
#include "options.h"
#include "print.h"
#include "screen.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Every kernel family there is or will be; the library says which of them it has and this CPU runs. */
static const char *const isa_names[] = {"amxfp16",  "amx",      "avx512bf16", "avx512", "avx2",   "svebf16", "sve",
                                        "neonmmla", "neonbf16", "neonf16",    "neon",   "scalar", NULL};

/* CPU features the kernels use, as Linux names them in /proc/cpuinfo. */
static const char *const features[] = {"avx2",        "fma",      "f16c",     "avx512f",  "avx512bw",
                                       "avx512_bf16", "amx_tile", "amx_bf16", "amx_fp16", "asimd",
                                       "asimdfhm",    "bf16",     "sve",      "svebf16",  NULL};

/* Settings that the library, this program, the Python package and its plug-ins read; the prefix left out. */
static const char *const settings[] = {
    "BACKEND",       "CALLS", "CHECK_POINTERS", "CUDA_LIST",    "CUDA_TEAM",   "CUDA_TILE",   "ISA",
    "LIBRARY",       "MPI",   "NODES",          "SCREEN_ROWS",  "SGLANG",      "SGLANG_WORK", "SGLANG_LOGITS",
    "SGLANG_SCREEN", "VLLM",  "VLLM_LOGITS",    "VLLM_RESERVE", "VLLM_SCREEN", "VLLM_WORK",   NULL};
#define PREFIX "FLASHSAMPLING_"

static const command about = {
    .name = "info",
    .usage = "[options]",
    .about =
        "Prints the version, the noise mapping, the backend a call would use, the backends of this build, the CUDA "
        "devices, the formats of screens, the instruction sets that run here and the " PREFIX
        "... settings of the environment, those that nothing reads among them.",
    .details = NULL,
};

/* Whether the library runs with this instruction set: it refuses what it does not have. 2: it calls it experimental,
 * and would not choose it by itself. */
static int runs_isa(const char *name) {
    fs_options o = fs_options_default();
    o.backend = FS_BACKEND_CPU;
    o.threads = 1;
    fs_context *context;
    setenv("FLASHSAMPLING_ISA", name, 1);
    int good = fs_context_create(&o, &context) == FS_OK;
    if (!good) return 0;
    int experimental = strstr(fs_context_text(context), "experimental") != NULL;
    fs_context_destroy(context);
    return 1 + experimental;
}

typedef struct found_isa {
    const char *name;
    int experimental;
} found_isa;

/* The runnable names, best first; the environment is as before when this returns. What else is forced does not change
 * which kernels this CPU runs. */
static int list_isas(found_isa *found) {
    static const char *const names[] = {"FLASHSAMPLING_ISA", "FLASHSAMPLING_BACKEND", "FLASHSAMPLING_NODES",
                                        "FLASHSAMPLING_CHECK_POINTERS"};
    enum { NAMES = sizeof names / sizeof *names };
    char *kept[NAMES];
    int n = 0;
    for (int i = 0; i < NAMES; i++) {
        const char *forced = getenv(names[i]);
        kept[i] = forced ? strdup(forced) : NULL;
        unsetenv(names[i]);
    }
    for (int i = 0; isa_names[i]; i++) {
        int runs = runs_isa(isa_names[i]);
        found_isa isa = {isa_names[i], runs == 2};
        if (runs) found[n++] = isa;
    }
    for (int i = 0; i < NAMES; i++) {
        if (kept[i]) setenv(names[i], kept[i], 1);
        else unsetenv(names[i]);
        free(kept[i]);
    }
    return n;
}

/* Appends the features the kernel reports for the first CPU. */
static void list_features(char *text, size_t size) {
    static char line[16384];
    size_t used = 0;
    text[0] = 0;
    FILE *file = fopen("/proc/cpuinfo", "r");
    if (!file) return;
    while (fgets(line, sizeof line, file)) {
        if (strncmp(line, "flags", 5) != 0 && strncmp(line, "Features", 8) != 0) continue;
        for (char *word = strtok(strchr(line, ':'), ": \t\n"); word; word = strtok(NULL, " \n"))
            for (int i = 0; features[i]; i++)
                if (strcmp(word, features[i]) == 0 && used < size)
                    used += (size_t)snprintf(text + used, size - used, "%s%s", used ? " " : "", word);
        break;
    }
    fclose(file);
}

/* Asks the library which backend a plain call gets; the text of the failure if it gets none. */
static void backend_text(const context_args *args, char *text, size_t size) {
    fs_options o = fs_options_default();
    o.backend = args->backend;
    o.device = (int32_t)args->device;
    o.threads = (int32_t)args->threads;
    fs_context *context;
    if (fs_context_create(&o, &context) != FS_OK) {
        snprintf(text, size, "none: %s", fs_error_text(NULL));
        return;
    }
    snprintf(text, size, "%s", fs_context_text(context));
    fs_context_destroy(context);
}

static int is_known(const char *name, size_t length) {
    for (int i = 0; settings[i]; i++)
        if (strlen(settings[i]) == length && memcmp(settings[i], name, length) == 0) return 1;
    return 0;
}

static void print_settings(void) {
    for (char **entry = environ; *entry; entry++) {
        if (strncmp(*entry, PREFIX, strlen(PREFIX)) != 0) continue;
        const char *name = *entry + strlen(PREFIX);
        fputs("setting      ", stdout);
        print_visible(stdout, *entry);
        puts(is_known(name, strcspn(name, "=")) ? "" : " (unknown: nothing reads it)");
    }
}

static void json_unknown_settings(void) {
    json_open("unknown_settings", '[');
    for (char **entry = environ; *entry; entry++) {
        const char *name = *entry + strlen(PREFIX);
        if (strncmp(*entry, PREFIX, strlen(PREFIX)) == 0 && !is_known(name, strcspn(name, "=")))
            json_text(NULL, *entry);
    }
    json_close(']');
}

/* Whether this build has a backend, FS_BACKEND_... */
static int has_backend(int kind) {
    const fs_call_desc any = fs_call_desc_default();
    return kind != FS_BACKEND_AUTO && fs_supports(kind, &any, NULL) == FS_OK;
}

#define DEVICES_MOST 64

static void json_devices(void) {
    device_facts facts[DEVICES_MOST];
    const char *why;
    const int count = device_list(facts, DEVICES_MOST, &why);
    char capability[32];
    json_open("devices", '[');
    for (int i = 0; i < count && i < DEVICES_MOST; i++) {
        snprintf(capability, sizeof capability, "%d.%d", facts[i].major, facts[i].minor);
        json_open(NULL, '{');
        json_text("name", facts[i].name);
        json_text("compute_capability", capability);
        json_int("memory_bytes", facts[i].memory_bytes);
        json_int("cache_bytes", facts[i].cache_bytes);
        json_close('}');
    }
    json_close(']');
    if (count == 0) json_text("no_devices", why);
}

static void json_names(const char *key, const char *const *names, int (*has)(int)) {
    json_open(key, '[');
    for (int i = 1; names[i]; i++)
        if (!has || has(i)) json_text(NULL, names[i]);
    json_close(']');
}

static void print_devices(void) {
    device_facts facts[DEVICES_MOST];
    const char *why;
    const int count = device_list(facts, DEVICES_MOST, &why);
    for (int i = 0; i < count && i < DEVICES_MOST; i++) {
        printf("device %-5d ", i);
        print_visible(stdout, facts[i].name);
        printf(", compute capability %d.%d, %s\n", facts[i].major, facts[i].minor,
               text_bytes((double)facts[i].memory_bytes));
    }
    if (count > 0) return;
    fputs("devices      none: ", stdout);
    print_visible(stdout, why);
    fputc('\n', stdout);
}

static void print_json(const char *backend, const found_isa *isas, int isa_count, const char *cpu_features) {
    json_open(NULL, '{');
    json_text("version", fs_version_text());
    json_uint("noise_id", fs_noise_id());
    json_bool("noise_draft", (int)(fs_noise_id() >> 31));
    json_text("backend", backend);
    json_names("backends", backend_names, has_backend);
    json_devices();
    json_names("screens", screen_names, NULL);
    json_open("isas", '[');
    for (int i = 0; i < isa_count; i++) json_text(NULL, isas[i].name);
    json_close(']');
    json_open("experimental_isas", '[');
    for (int i = 0; i < isa_count; i++)
        if (isas[i].experimental) json_text(NULL, isas[i].name);
    json_close(']');
    json_text("cpu", cpu_name());
    json_text("features", cpu_features);
    json_int("cores", cores());
    json_int("cache_bytes", cache_bytes());
    json_int("memory_bytes", memory_bytes());
    json_unknown_settings();
    json_close('}');
}

static void print_text(const char *backend, const found_isa *isas, int isa_count, const char *cpu_features) {
    printf("version      %s\n", fs_version_text());
    printf("noise id     %u%s\n", fs_noise_id() & 0x7fffffffu,
           fs_noise_id() >> 31 ? " (draft: tokens of a seed may still change)" : "");
    fputs("backend      ", stdout);
    print_visible(stdout, backend);
    printf("\nbackends    ");
    for (int i = 1; backend_names[i]; i++)
        printf(" %s%s", backend_names[i], has_backend(i) ? "" : " (not in this build)");
    fputc('\n', stdout);
    print_devices();
    printf("screens     ");
    for (int i = 1; screen_names[i]; i++) printf(" %s-bit", screen_names[i]);
    printf("\nkernels      ");
    for (int i = 0; i < isa_count; i++)
        printf("%s%s%s", isas[i].name, isas[i].experimental ? " (experimental)" : "", i + 1 < isa_count ? " " : "");
    printf("\nCPU          %s, %d cores for this process\n", cpu_name(), cores());
    printf("features     %s\n", cpu_features);
    printf("cache        %s last level\n", text_cache(cache_bytes()));
    printf("memory       %s\n", text_bytes((double)memory_bytes()));
    print_settings();
}

int cmd_info(int argc, char **argv) {
    context_args context = context_args_default();
    int isa_list = 0, json = 0;
    const opt options[] = {
        OPT_HEAD("Options"),
        OPT_FLAG_TO("isa-list", "only the names FLASHSAMPLING_ISA takes here, one per line, best first", &isa_list),
        OPT_FLAG_TO("json", "one JSON object on stdout", &json),
        CONTEXT_OPTIONS(context),
    };
    PARSE_OPTIONS(&about, options, argc, argv);
    found_isa isas[sizeof isa_names / sizeof isa_names[0]];
    int count = list_isas(isas);
    char backend[640], cpu_features[512];
    backend_text(&context, backend, sizeof backend);
    list_features(cpu_features, sizeof cpu_features);
    if (isa_list)
        for (int i = 0; i < count; i++) printf("%s\n", isas[i].name);
    else if (json) print_json(backend, isas, count, cpu_features);
    else print_text(backend, isas, count, cpu_features);
    return END_OK;
}
