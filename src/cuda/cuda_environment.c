#include "cuda_environment.h"

#include "cuda_plan.h"

#include <stdio.h>
#include <stdlib.h>

/* "family" or "family:N". Whether the family has a tile of N rows depends on the device: cuda_plan.c. */
static int is_tile(const char *text) {
    static const char *const family[] = {FS_CUDA_SM90, FS_CUDA_PORTABLE};
    for (size_t i = 0; i < sizeof family / sizeof family[0]; i++) {
        const size_t n = strlen(family[i]);
        int rows = 0, end = 0;
        if (strncmp(text, family[i], n) != 0) continue;
        if (text[n] == 0) return 1;
        return sscanf(text + n, ":%d%n", &rows, &end) == 1 && rows > 0 && text[n + (size_t)end] == 0;
    }
    return 0;
}

static fs_status read_tile(fs_context *context, fs_cuda_environment *environment) {
    const char *text = getenv("FLASHSAMPLING_CUDA_TILE");
    if (!text) return FS_OK;
    if (!is_tile(text))
        return fs_fail(context, FS_ERR_ENVIRONMENT,
                       "FLASHSAMPLING_CUDA_TILE=%.40s is unknown, must be " FS_CUDA_SM90 ", " FS_CUDA_PORTABLE
                       ", or one of them and :N, N being the rows of its tile",
                       text);
    snprintf(environment->tile, sizeof environment->tile, "%s", text);
    return FS_OK;
}

/* Short lists leave many rows to the second pass: for tests of it. */
static fs_status read_list(fs_context *context, fs_cuda_environment *environment) {
    const char *text = getenv("FLASHSAMPLING_CUDA_LIST");
    char *end = NULL;
    const long room = text ? strtol(text, &end, 10) : FS_CUDA_LIST;
    if (text && (end == text || *end || room < 0 || room > FS_CUDA_LIST))
        return fs_fail(context, FS_ERR_ENVIRONMENT,
                       "FLASHSAMPLING_CUDA_LIST is \"%.40s\", must be a number from 0 to %d", text, FS_CUDA_LIST);
    environment->list_room = (int32_t)room;
    return FS_OK;
}

static int is_power_of_two(int number, int least, int most) {
    return number >= least && number <= most && (number & (number - 1)) == 0;
}

/* How many CTAs end a row, and threads of each: for tests, which find that it changes nothing. */
static fs_status read_team(fs_context *context, fs_cuda_environment *environment) {
    const char *text = getenv("FLASHSAMPLING_CUDA_TEAM");
    int size = 0, threads = 0, end = 0;
    if (!text) return FS_OK;
    if (sscanf(text, "%d%n:%d%n", &size, &end, &threads, &end) < 1 || text[end] ||
        !is_power_of_two(size, 1, FS_CUDA_TEAM) || (threads && !is_power_of_two(threads, 256, FS_CUDA_TEAM_THREADS)))
        return fs_fail(
            context, FS_ERR_ENVIRONMENT,
            "FLASHSAMPLING_CUDA_TEAM is \"%.40s\", must be a power of two from 1 to %d, or that with :256 or :512 "
            "behind it",
            text, FS_CUDA_TEAM);
    environment->team = size;
    environment->threads = threads;
    return FS_OK;
}

fs_status fs_cuda_environment_read(fs_context *context, fs_cuda_environment *environment) {
    memset(environment, 0, sizeof *environment);
    FS_TRY(read_tile(context, environment));
    FS_TRY(read_list(context, environment));
    return read_team(context, environment);
}
