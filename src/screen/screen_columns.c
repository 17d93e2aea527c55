/* screen_columns.c - the order of columns of FS_SCREEN_MIXED: the largest first. Bounds hold for every order. */
#include "screen_make.h"

#include "core/format.h"

#define FS_SCREEN_LOOKED_AT 4096 /* rows of W, evenly spaced: enough to see which columns are large */

typedef struct fs_column {
    double energy;
    uint32_t column;
} fs_column;

/* Sums of squares of the columns of some rows; what is no number counts as nothing. */
static void add_energy(const fs_matrix *rows, int64_t count, int64_t dim, fs_column *columns) {
    const int64_t step = (count + FS_SCREEN_LOOKED_AT - 1) / FS_SCREEN_LOOKED_AT;
    for (int64_t i = 0; i < count; i += step)
        for (int64_t d = 0; d < dim; d++) {
            const double x = (double)element_at(matrix_row(rows, i), rows->format, d);
            if (x * x < INFINITY) columns[d].energy += x * x;
        }
}

static int is_ahead(const fs_column *a, const fs_column *b) {
    return a->energy > b->energy || (a->energy == b->energy && a->column < b->column);
}

static void sift(fs_column *columns, int64_t at, int64_t n) {
    const fs_column moved = columns[at];
    for (int64_t child; (child = 2 * at + 1) < n; at = child) {
        child += child + 1 < n && is_ahead(&columns[child], &columns[child + 1]);
        if (!is_ahead(&moved, &columns[child])) break;
        columns[at] = columns[child];
    }
    columns[at] = moved;
}

/* The largest first. A heap, because qsort of some libraries allocates. */
static void sort_columns(fs_column *columns, int64_t n) {
    for (int64_t i = n / 2 - 1; i >= 0; i--) sift(columns, i, n);
    for (int64_t left = n - 1; left > 0; left--) {
        const fs_column last = columns[0];
        columns[0] = columns[left];
        columns[left] = last;
        sift(columns, 0, left);
    }
}

fs_status fs_screen_choose_columns(fs_context *context, const fs_head *head, const fs_screen_options *options,
                                   uint32_t *order) {
    const int64_t dim = head->dim;
    const fs_matrix weights = weights_of_head(head);
    const fs_matrix hidden = {options->hidden, dim * dtype_bytes(options->hidden_dtype),
                              format_of(options->hidden_dtype)};
    fs_column *columns = fs_context_alloc(context, (size_t)dim * sizeof *columns, "an order of columns");
    if (!columns) return FS_ERR_MEMORY;
    for (int64_t d = 0; d < dim; d++) columns[d].energy = 0.0, columns[d].column = (uint32_t)d;
    if (options->hidden) add_energy(&hidden, options->hidden_rows, dim, columns);
    else add_energy(&weights, head->rows, dim, columns);
    sort_columns(columns, dim);
    for (int64_t i = 0; i < dim; i++) order[i] = columns[i].column;
    fs_context_free(context, columns);
    return FS_OK;
}

fs_status fs_screen_check_columns(fs_context *context, const char *name, const uint32_t *order,
                                  const fs_screen_header *h) {
    FS_REQUIRE(context, screen_order_hash(order, h->dim) == h->order,
               "%s was changed: the order of its columns is not the one it was made with", name);
    unsigned char *seen = fs_context_alloc(context, (size_t)h->dim, "an order of columns");
    if (!seen) return FS_ERR_MEMORY;
    int64_t wrong = -1;
    memset(seen, 0, (size_t)h->dim);
    for (int64_t i = 0; i < h->dim && wrong < 0; i++)
        if (order[i] >= (uint64_t)h->dim || seen[order[i]]++) wrong = i;
    fs_context_free(context, seen);
    FS_REQUIRE(context, wrong < 0, "%s has an order of columns that is none: %u in place %lld of %lld", name,
               order[wrong], (long long)wrong, (long long)h->dim);
    return FS_OK;
}
