/* place.h - from a call whose arrays are host memory to the same call on the device that runs it (device.h), and its
 * results back. Where calls read host memory nothing is copied: the call is the same, with the same arrays. */
#ifndef FS_CLI_PLACE_H
#define FS_CLI_PLACE_H

#include "flashsampling.h"

/* The head with its data and its bias; `rows` is that of the batch, of which stored logits have as many. The head has
 * no screen yet. */
fs_head place_head(const fs_head *head, int64_t rows);
/* The batch with every array that flashsample uses. */
fs_batch place_batch(const fs_batch *batch, const fs_head *head);
/* A result with room for what this one asks for. */
fs_result place_result(const fs_result *result, const fs_batch *batch);
/* Waits for the call, then copies its results from `placed` to the arrays of `result`; `batch` is the one
 * of host memory. */
void fetch_result(const fs_result *result, const fs_result *placed, const fs_batch *batch);

#endif
