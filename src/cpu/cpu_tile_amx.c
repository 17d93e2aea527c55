/* AMX: tdpbf16ps multiplies bf16 weights by hidden states as sums of bf16 parts (cpu_split.h), 1 to 3 of them. It counts denormals as zero,
 * in and out. How it is used: cpu_tile_amx.h. */
#define FS_WEIGHTS FS_BF16
#define FS_MULTIPLY _tile_dpbf16ps
#include "cpu_tile_amx.h"

/* [panels, steps, parts, 16 pairs, 16 rows, 2] bf16; zeros behind dim and behind the last row. */
static void pack(const fs_hidden *hidden, int64_t from, int64_t to) {
    const int parts = parts_of(hidden);
    const int64_t end = steps_of(hidden) * FS_STEP, last = to < end ? to : end;
    if (parts == 1) {
        pack_whole(hidden, from, to);
        return;
    }
    for (int32_t p = 0; p < panels_of(hidden); p++) {
        uint16_t *panel = (uint16_t *)(void *)(hidden->packed + (size_t)p * panel_bytes(hidden));
        const int64_t tile = FS_TILE_BYTES / 2, first = from / FS_STEP * parts * tile;
        if (from < last) memset(panel + first, 0, (size_t)((last - from) / FS_STEP * parts) * FS_TILE_BYTES);
        for (int32_t r = 0; r < FS_TILE && p * FS_TILE + r < hidden->rows; r++)
            for (int64_t d = from; d < last && d < hidden->dim; d++) {
                uint16_t part[FS_PARTS_MOST];
                split_float(split_element(hidden->row[p * FS_TILE + r], hidden->dtype, d), parts, part);
                uint16_t *at = panel + d / FS_STEP * parts * tile + d % FS_STEP / 2 * 32 + r * 2 + d % 2;
                for (int i = 0; i < parts; i++) at[i * tile] = part[i];
            }
    }
}

const fs_kernel fs_kernel_bf16__amx = {packed_bytes, pack, tile};
