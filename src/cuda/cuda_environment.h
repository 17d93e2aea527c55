/* cuda_environment.h - the environment variables of the CUDA backend, in plain C: a build without CUDA refuses the same
 * values. */
#ifndef FS_CUDA_ENVIRONMENT_H
#define FS_CUDA_ENVIRONMENT_H

#include "error.h"

/* Names of the kernel families (cuda_families.c), as FLASHSAMPLING_CUDA_TILE spells them. */
#define FS_CUDA_SM90 "sm90"
#define FS_CUDA_PORTABLE "portable"

typedef struct fs_cuda_environment {
    char tile[64];     /* FLASHSAMPLING_CUDA_TILE: a family, or a family and the rows of its tile; "" if not set */
    int32_t list_room; /* FLASHSAMPLING_CUDA_LIST: candidates of a row that are looked at */
    int32_t team;      /* FLASHSAMPLING_CUDA_TEAM: CTAs that end a row, 0 if not set; and threads of each, or 0 */
    int32_t threads;
} fs_cuda_environment;

/* An invalid value is FS_ERR_ENVIRONMENT. The text is on the context, or on the thread if context is NULL. */
fs_status fs_cuda_environment_read(fs_context *context, fs_cuda_environment *environment);

#endif
