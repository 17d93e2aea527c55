/* screen_check.c - whether a screen is one, and this head's; slices. */
#include "screen_make.h"

#include "screen_strips.h"

#include "core/key.h"

#include <math.h>

static const char *format_name(int32_t format) {
    return format == FS_SCREEN_INT8   ? "FS_SCREEN_INT8"
           : format == FS_SCREEN_INT4 ? "FS_SCREEN_INT4"
                                      : "FS_SCREEN_MIXED";
}

/* A backend that makes screens itself reads those without an order of columns. */
static fs_status check_backend(fs_context *context, const char *name, int32_t format) {
    if (format != FS_SCREEN_MIXED || !context->backend->make_screen) return FS_OK;
    return fs_fail(context, FS_ERR_UNSUPPORTED,
                   "%s is FS_SCREEN_MIXED, which the %s backend does not read: use FS_SCREEN_INT8 or FS_SCREEN_INT4",
                   name, context->backend->name);
}

static fs_status check_columns(fs_context *context, const fs_head *head, const fs_screen_options *o) {
    FS_REQUIRE(context, o->format == FS_SCREEN_MIXED || (o->columns == 0 && !o->hidden),
               "screen_options.columns and hidden are of FS_SCREEN_MIXED (3), format is %d", o->format);
    FS_REQUIRE(context, o->columns >= 0 && o->columns <= FS_SCREEN_KEPT_MOST && o->columns % FS_SCREEN_CHUNK == 0,
               "screen_options.columns is %d, must be a multiple of %d up to %d, or 0", o->columns, FS_SCREEN_CHUNK,
               FS_SCREEN_KEPT_MOST);
    if (!o->hidden) return FS_OK;
    FS_REQUIRE(context, dtype_is_float(o->hidden_dtype),
               "screen_options.hidden_dtype is %d, must be FS_F32, FS_F16 or "
               "FS_BF16",
               o->hidden_dtype);
    FS_REQUIRE(context, (uintptr_t)o->hidden % (uintptr_t)dtype_bytes(o->hidden_dtype) == 0,
               "screen_options.hidden is %p, must be aligned to its elements", o->hidden);
    FS_REQUIRE(context, o->hidden_rows > 0 && o->hidden_rows < FS_TOKEN_LIMIT,
               "screen_options.hidden_rows is %lld, must be above 0", (long long)o->hidden_rows);
    (void)head;
    return FS_OK;
}

int32_t fs_screen_kept(const fs_head *head, const fs_screen_options *options) {
    const int64_t all = (head->dim + FS_SCREEN_CHUNK - 1) / FS_SCREEN_CHUNK * FS_SCREEN_CHUNK;
    if (options->format != FS_SCREEN_MIXED) return 0;
    int64_t kept = options->columns ? options->columns : FS_SCREEN_CHUNK;
    /* Twice as many where that fills a record that is half empty. */
    if (!options->columns && screen_records(head->dim, 2 * kept) == screen_records(head->dim, kept)) kept *= 2;
    return (int32_t)(kept < all ? kept : all);
}

fs_status fs_screen_check_options(fs_context *context, const fs_head *head, fs_screen_options *o) {
    FS_REQUIRE(context, head->kind == FS_HEAD_WEIGHTS, "head.kind is %d: screens are of weights", head->kind);
    FS_REQUIRE(context, head->dim <= FS_SCREEN_DIM_MOST, "head.dim is %lld, must be 1 to %lld for a screen",
               (long long)head->dim, (long long)FS_SCREEN_DIM_MOST);
    if (o->format == 0) o->format = FS_SCREEN_INT8;
    FS_REQUIRE(context, o->format >= FS_SCREEN_INT8 && o->format <= FS_SCREEN_MIXED,
               "screen_options.format is %d, must be FS_SCREEN_INT8 (1), FS_SCREEN_INT4 (2) or FS_SCREEN_MIXED (3)",
               o->format);
    FS_TRY(check_backend(context, "screen_options.format", o->format));
    FS_TRY(check_columns(context, head, o));
    if (o->group == 0) o->group = o->format == FS_SCREEN_INT8 ? FS_SCREEN_SPAN : FS_SCREEN_CHUNK;
    const int long_group = o->format != FS_SCREEN_MIXED, short_group = o->format != FS_SCREEN_INT8;
    FS_REQUIRE(context, (long_group && o->group == FS_SCREEN_SPAN) || (short_group && o->group == FS_SCREEN_CHUNK),
               "screen_options.group is %d, must be %s, or 0", o->group,
               o->format == FS_SCREEN_INT4   ? "128 or 64"
               : o->format == FS_SCREEN_INT8 ? "128 for FS_SCREEN_INT8"
                                             : "64 for FS_SCREEN_MIXED");
    if (o->eta == 0.0) o->eta = 1e-16;
    FS_REQUIRE(context, o->eta >= 1e-300 && o->eta <= 0.1, "screen_options.eta is %g, must be 1e-300 to 0.1, or 0",
               o->eta);
    return FS_OK;
}

fs_status fs_screen_check_room(fs_context *context, const char *name, const void *memory, size_t bytes,
                               int64_t needed) {
    FS_REQUIRE(context, memory != NULL, "%s is NULL", name);
    FS_REQUIRE(context, (uintptr_t)memory % 64 == 0, "%s is %p, must be 64-byte aligned", name, memory);
    FS_REQUIRE(context, bytes >= (size_t)needed, "%s has %zu bytes, must be at least %lld (fs_screen_size)", name,
               bytes, (long long)needed);
    return FS_OK;
}

/* The header of what may be a screen: one that this version wrote, and as many bytes as it says. */
static fs_status read_header(fs_context *context, const char *name, const void *screen, size_t bytes,
                             fs_screen_header *h) {
    FS_TRY(fs_screen_check_room(context, name, screen, bytes, (int64_t)sizeof *h));
    FS_TRY(fs_screen_copy(context, h, screen, sizeof *h));
    FS_REQUIRE(context, h->magic == FS_SCREEN_MAGIC, "%s is no screen: it begins with 0x%llx, not with \"FSSCREEN\"",
               name, (unsigned long long)h->magic);
    FS_REQUIRE(context, h->version == FS_SCREEN_VERSION && h->layout == FS_SCREEN_LAYOUT,
               "%s is of version %u, layout %u; this library reads version %d, layout %d", name, h->version, h->layout,
               FS_SCREEN_VERSION, FS_SCREEN_LAYOUT);
    FS_REQUIRE(context, h->hash == screen_header_hash(h), "%s has a header that was changed: its hash is not 0x%llx",
               name, (unsigned long long)h->hash);
    FS_REQUIRE(context,
               h->format >= FS_SCREEN_INT8 && h->format <= FS_SCREEN_MIXED && h->rows >= 0 &&
                   h->rows < FS_TOKEN_LIMIT && h->dim >= 1 && h->dim <= FS_SCREEN_DIM_MOST &&
                   (h->group == FS_SCREEN_SPAN || h->group == FS_SCREEN_CHUNK) &&
                   (h->format == FS_SCREEN_MIXED) == (h->kept > 0) && h->kept <= FS_SCREEN_KEPT_MOST &&
                   h->kept % FS_SCREEN_CHUNK == 0,
               "%s is of format %d, [%lld, %lld] weights, groups of %d, %d columns in 8 bits: no screen is", name,
               h->format, (long long)h->rows, (long long)h->dim, h->group, h->kept);
    FS_TRY(check_backend(context, name, h->format));
    for (size_t i = 0; i < sizeof h->reserved; i++)
        FS_REQUIRE(context, h->reserved[i] == 0, "%s has a header that was changed: its reserved byte %zu is %d", name,
                   i, h->reserved[i]);
    return fs_screen_check_room(context, name, screen, bytes, screen_bytes(h->format, h->rows, h->dim, h->kept));
}

/* Whether the bytes behind a header are those that were written behind it. */
static fs_status check_body(fs_context *context, const char *name, const void *screen, const fs_screen_header *h) {
    fs_screen_sums sums;
    const fs_screen s = screen_at(screen, h);
    if (h->kept) FS_TRY(fs_screen_check_columns(context, name, screen_columns(&s), h));
    FS_TRY(fs_strips_sum(context, h, screen, &sums));
    FS_REQUIRE(context, sums.body == h->sums.body && sums.weights == h->sums.weights,
               "%s was changed: the checksum of its body is 0x%llx, its header says 0x%llx", name,
               (unsigned long long)sums.body, (unsigned long long)h->sums.body);
    return FS_OK;
}

static fs_status check_weights(fs_context *context, const fs_head *head, const fs_screen_header *h, int whole) {
    int64_t strip;
    FS_TRY(fs_strips_compare(context, head, h, whole, &strip));
    const int64_t first = strip * FS_SCREEN_TOKENS, end = first + FS_SCREEN_TOKENS;
    FS_REQUIRE(context, strip < 0, "head.screen was made of other weights: some of rows %lld to %lld differ",
               (long long)first, (long long)(end < head->rows ? end : head->rows) - 1);
    return FS_OK;
}

/* Whether these two are known, which are then this call's. */
static int is_known(fs_context *context, const fs_head *head) {
    for (int32_t i = 0; i < FS_SCREENS_KNOWN; i++)
        if (context->screened[i].data == head->data && context->screened[i].screen == head->screen &&
            context->screened[i].bytes == head->screen_bytes && context->screened[i].stride == head->stride) {
            context->screen = i;
            return 1;
        }
    return 0;
}

static void remember(fs_context *context, const fs_head *head, const fs_screen_header *h) {
    fs_screen_forget(context, head->screen);
    context->screen = context->screens++ % FS_SCREENS_KNOWN;
    context->screened[context->screen].data = head->data;
    context->screened[context->screen].screen = head->screen;
    context->screened[context->screen].bytes = head->screen_bytes;
    context->screened[context->screen].stride = head->stride;
    context->screened[context->screen].header = *h;
}

void fs_screen_forget(fs_context *context, const void *screen) {
    for (int32_t i = 0; i < FS_SCREENS_KNOWN; i++)
        if (context->screened[i].screen == screen) context->screened[i].screen = NULL;
}

/* Whether a screen with this header is of a head of the same shape and type. */
static fs_status check_shape(fs_context *context, const fs_head *head, const fs_screen_header *h) {
    FS_TRY(fs_screen_check_room(context, "head.screen", head->screen, head->screen_bytes,
                                screen_bytes(h->format, h->rows, h->dim, h->kept)));
    FS_REQUIRE(context, h->rows == head->rows && h->dim == head->dim,
               "head.screen is of [%lld, %lld] weights, the head's are [%lld, %lld]", (long long)h->rows,
               (long long)h->dim, (long long)head->rows, (long long)head->dim);
    FS_REQUIRE(context, h->dtype == head->dtype, "head.screen is of weights of dtype %d, head.dtype is %d", h->dtype,
               head->dtype);
    FS_REQUIRE(context, h->first_token == head->first_token, "head.screen begins with token %lld, the head with %lld",
               (long long)h->first_token, (long long)head->first_token);
    return FS_OK;
}

fs_status fs_screen_admit(fs_context *context, const fs_head *head) {
    fs_screen_header h;
    FS_REQUIRE(context, head->kind == FS_HEAD_WEIGHTS, "head.screen is given for stored logits");
    const int known = is_known(context, head);
    /* A device's is read once: a pass over it looks whether its header is still the same. */
    if (known && context->backend->copy) h = context->screened[context->screen].header;
    else FS_TRY(read_header(context, "head.screen", head->screen, head->screen_bytes, &h));
    FS_TRY(check_shape(context, head, &h));
    if (known && context->screened[context->screen].header.hash == h.hash) return FS_OK;
    FS_TRY(check_body(context, "head.screen", head->screen, &h));
    FS_TRY(check_weights(context, head, &h, 0));
    remember(context, head, &h);
    fs_context_log(context, "screen: %s, groups of %d, %zu bytes", format_name(h.format), h.group,
                   (size_t)screen_bytes(h.format, h.rows, h.dim, h.kept));
    return FS_OK;
}

fs_status fs_screen_check_whole(fs_context *context, const fs_head *head) {
    fs_screen_header h;
    FS_REQUIRE(context, head->kind == FS_HEAD_WEIGHTS, "head.screen is given for stored logits");
    fs_screen_forget(context, head->screen); /* a screen that fails is not read again */
    FS_TRY(read_header(context, "head.screen", head->screen, head->screen_bytes, &h));
    FS_TRY(check_shape(context, head, &h));
    FS_TRY(check_body(context, "head.screen", head->screen, &h));
    FS_TRY(check_weights(context, head, &h, 1));
    remember(context, head, &h);
    return FS_OK;
}

fs_status fs_screen_cut(fs_context *context, const void *whole, size_t whole_bytes, int64_t first, int64_t rows,
                        void *to, size_t bytes, size_t *needed) {
    fs_screen_header h;
    FS_TRY(read_header(context, "whole", whole, whole_bytes, &h));
    FS_REQUIRE(context, first >= 0 && first <= h.rows && first % FS_SCREEN_TOKENS == 0,
               "first is %lld, must be a multiple of %d from 0 to %lld", (long long)first, FS_SCREEN_TOKENS,
               (long long)h.rows);
    /* The last strip would have tokens that the slice has not. */
    FS_REQUIRE(context, rows >= 0 && rows <= h.rows - first && (rows % FS_SCREEN_TOKENS == 0 || rows == h.rows - first),
               "rows is %lld, must be a multiple of %d, or all of the %lld from row %lld on", (long long)rows,
               FS_SCREEN_TOKENS, (long long)(h.rows - first), (long long)first);
    const fs_screen screen = screen_at(whole, &h);
    const int64_t size = screen_bytes(h.format, rows, h.dim, h.kept), head_bytes = screen_head_bytes(h.dim, h.kept);
    if (needed) *needed = (size_t)size;
    FS_REQUIRE(context, to || needed, "to and needed are both NULL");
    if (!to) return FS_OK;
    FS_TRY(check_body(context, "whole", whole, &h)); /* else the slice's sums would hide what was changed */
    FS_TRY(fs_screen_check_room(context, "to", to, bytes, size));
    fs_screen_forget(context, to);
    h.rows = rows;
    h.first_token += first;
    if (h.kept)
        FS_TRY(fs_screen_copy(context, (char *)to + sizeof h, screen_columns(&screen), (size_t)head_bytes - sizeof h));
    FS_TRY(fs_screen_copy(context, (char *)to + head_bytes, screen_strip(&screen, first / FS_SCREEN_TOKENS),
                          (size_t)(size - head_bytes)));
    FS_TRY(fs_strips_sum(context, &h, to, &h.sums));
    h.hash = screen_header_hash(&h);
    return fs_screen_copy(context, to, &h, sizeof h);
}
