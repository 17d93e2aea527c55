/* cpu_amx_tile.h - how a call's tokens and rows become tiles for a kernel's `dot`, and sums become logits: stored, or
 * filtered (cpu_filter.h). */
#ifndef FS_CPU_AMX_TILE_H
#define FS_CPU_AMX_TILE_H

#include "cpu_amx.h"
#include "cpu_avx512.h"

_Static_assert(FS_SUMS == FS_FILTER_SUMS && FS_TILE == FS_FILTER_LANES, "a filter keeps sums as they are");
_Static_assert(FS_TOKENS == FS_NOISE_BLOCK, "upscales are kept as long as sums are");

/* ---------------------------------------------------------------------------------------------------- store ---- */

/* A call of `tile`: microkernel, H, the sums of the tiles that are multiplied together. */
typedef struct tile_call {
    const microkernel *micro;
    const fs_hidden *hidden;
    packing packing;
    int32_t first, end; /* the panels that are multiplied now */
    int64_t stride;
    float *sum;     /* [FS_TOKENS, FS_PANELS, 16] */
    float *upscale; /* [FS_TOKENS] */
} tile_call;

/* Where logits go: into a filter, or to out[row * out_ld + token]. */
typedef struct sink {
    fs_filter *filter; /* or NULL */
    float *out;
    int64_t out_ld;
} sink;

/* Whether both weights and hidden states are multiplied as they lie. Below this is `plain`, a constant: what repairs
 * and upscales need beside it cost f16 at 64 rows 2 to 5 % where one function did both. */
FS_INLINE int as_they_lie(const tile_call *c) {
    return c->micro->weights == c->micro->unit && c->hidden->dtype == c->micro->unit;
}

#define FS_NOT_FINITE 0x99 /* of vfpclassps: quiet and signalling NaN, + and - inf */

/* x [16] logits of 16 tokens from place t on, whose sums were of upscaled weights or hidden states: exact but for what
 * is denormal. */
FS_INLINE void downscale(const tile_call *c, int32_t t, int32_t first, __m512 *x) {
    const __m512 of_tokens = _mm512_loadu_ps(c->upscale + t);
    const float *of_rows = upscales_of(&c->packing, c->hidden) + first;
    for (int r = 0; r < FS_TILE; r++) /* rows that are not there have a upscale too */
        x[r] = _mm512_scalef_ps(x[r], _mm512_sub_ps(_mm512_set1_ps(-of_rows[r]), of_tokens));
}

/* Logits of `tokens` tokens, up to 16, w, whose sums are from place t on, for the rows of a panel, the j-th of those
 * whose sums are there. */
FS_INLINE void store_tile(const tile_call *c, int plain, int32_t panel, int32_t j, const char *w, int32_t t,
                          int32_t tokens, float *out, int64_t out_ld) {
    const float *sum = c->sum + t * FS_SUMS + j * FS_TILE;
    const int32_t first = panel * FS_TILE, left = c->hidden->rows - first, rows = left < FS_TILE ? left : FS_TILE;
    const __mmask16 there = (__mmask16)((1u << tokens) - 1);
    __m512 x[16];
    for (int i = 0; i < 16; i++) x[i] = _mm512_load_ps(sum + i * FS_SUMS);
    transpose(x);
    if (!plain && c->micro->unit == FS_F16) downscale(c, t, first, x);
    for (int32_t r = 0; r < rows; r++) {
        float *to = out + (first + r) * out_ld;
        _mm512_mask_storeu_ps(to, there, x[r]);
        if (plain) continue;
        for (uint32_t odd = _mm512_mask_fpclass_ps_mask(there, x[r], FS_NOT_FINITE); odd; odd &= odd - 1) {
            const int32_t i = __builtin_ctz(odd);
            to[i] = repair_nan(c->hidden, first + r, w + i * c->stride, c->micro->weights);
        }
    }
}

/* ----------------------------------------------------------------------------------------------------- filter ---- */

/* Where sums go, from `place` of the block on, and their upscales: a filter keeps those of a noise
 * block, for rows of panel p on. */
FS_INLINE float *sums_at(const tile_call *c, const fs_filter *filter, int32_t p, int32_t place) {
    if (!filter) return c->sum;
    return filter->sums + ((int64_t)(p / FS_PANELS) * FS_NOISE_BLOCK + place % FS_NOISE_BLOCK) * FS_SUMS;
}

/* The logits of a token, 16 rows from `first` on, from sums and their tokens' upscales. */
FS_INLINE __m512 logits_of(const tile_call *c, int plain, int32_t first, const float *sum, const float *upscale) {
    const __m512 x = _mm512_load_ps(sum);
    if (plain || c->micro->unit != FS_F16) return x;
    const __m512 of_rows = _mm512_loadu_ps(upscales_of(&c->packing, c->hidden) + first);
    return _mm512_scalef_ps(x, _mm512_sub_ps(_mm512_set1_ps(-*upscale), of_rows));
}

/* A tile's sums on their way through a filter, some at a time (filter_share): while the unit multiplies the next tile
 * nothing else keeps the vector units busy, and behind the products they kept the unit waiting
 * (docs/notes/cpu-draws.md, "between the products"). */
typedef struct filtering {
    const tile_call *c;
    int plain;
    fs_filter *filter;
    const float *sum; /* of the first token; the others' `spacing` tokens apart */
    float upscale[FS_TILE];
    int32_t spacing, place, n;
    int32_t panel, end; /* the panel whose rows are looked at, and the one behind the last */
    int32_t token;      /* that is looked at next */
    int64_t due, every; /* the step of the next tile at which that is, or -1: all is done; steps in between */
    __m512 most, odd, terms;
} filtering;

/* The logits of a row of the panel, all its tokens. */
FS_INLINE __m512 logits_of_row(const filtering *s, int32_t r) {
    const tile_call *c = s->c;
    const __m512i token = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i at = _mm512_mullo_epi32(token, _mm512_set1_epi32(s->spacing * FS_SUMS));
    const __mmask16 there = (__mmask16)((1u << s->n) - 1);
    const float *sum = s->sum + s->panel % FS_PANELS * FS_TILE + r;
    const __m512 x = _mm512_mask_i32gather_ps(_mm512_setzero_ps(), there, at, sum, 4);
    if (s->plain || c->micro->unit != FS_F16) return x;
    const __m512 down = _mm512_set1_ps(-upscales_of(&c->packing, c->hidden)[s->panel * FS_TILE + r]);
    return _mm512_scalef_ps(x, _mm512_sub_ps(down, _mm512_loadu_ps(s->upscale)));
}

/* What is above the floors of these rows of the panel. */
static __attribute__((noinline)) void filter_rows(const filtering *s, uint32_t rows) {
    for (; rows; rows &= rows - 1) {
        const int32_t r = __builtin_ctz(rows), row = s->panel * FS_TILE + r;
        const __m512 y = logits_of_row(s, r);
        uint32_t above = _mm512_cmp_ps_mask(y, _mm512_set1_ps(s->filter->floor[row]), _CMP_GT_OQ);
        for (above &= (1u << s->n) - 1; above; above &= above - 1) {
            const int32_t i = __builtin_ctz(above);
            const float found = _mm512_cvtss_f32(_mm512_maskz_compress_ps((__mmask16)(1u << i), y));
            filter_find(s->filter, found, s->place + i * s->spacing, row, -1);
        }
    }
}

/* A panel's last token has been looked at. */
FS_INLINE void filter_panel(filtering *s) {
    fs_filter *filter = s->filter;
    const int32_t first = s->panel * FS_TILE, left = s->c->hidden->rows - first;
    const __mmask16 rows = (__mmask16)(left < FS_TILE ? (1u << left) - 1 : 0xFFFF);
    if (filter->per)
        _mm512_storeu_ps(filter->mass + first, _mm512_add_ps(_mm512_loadu_ps(filter->mass + first), s->terms));
    if (_mm512_mask_cmp_ps_mask(rows, s->odd, s->odd, _CMP_UNORD_Q)) filter->failed = 1;
    _mm512_storeu_ps(filter->most + first, _mm512_max_ps(_mm512_loadu_ps(filter->most + first), s->most));
    const uint32_t hit = _mm512_mask_cmp_ps_mask(rows, s->most, _mm512_loadu_ps(filter->floor + first), _CMP_GT_OQ);
    if (hit) filter_rows(s, hit);
}

FS_INLINE void start_panel(filtering *s, int32_t panel) {
    s->panel = panel;
    s->token = 0;
    s->most = _mm512_set1_ps(-INFINITY);
    s->odd = s->terms = _mm512_setzero_ps();
}

#define FS_SHARE 8 /* tokens that are looked at at a time */

/* Looks at n more tokens of a panel; n, a power of two, and upscaled, whether sums are of upscaled numbers, are
 * constants. */
FS_INLINE void look_at(filtering *s, int n, int upscaled) {
    const fs_filter *filter = s->filter;
    const int32_t first = s->panel * FS_TILE;
    const float *sum = s->sum + s->panel % FS_PANELS * FS_TILE + s->token * s->spacing * FS_SUMS;
    __m512 x[FS_SHARE];
    for (int i = 0; i < n; i++)
        x[i] = logits_of(s->c, !upscaled, first, sum + i * s->spacing * FS_SUMS, &s->upscale[s->token + i]);
    /* Pairs, and pairs of those, so that no step waits for the one before. */
    __m512 most[FS_SHARE];
    for (int i = 0; i < n; i++) most[i] = x[i];
    for (int half = n / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++) most[i] = _mm512_max_ps(most[i], most[i + half]);
    s->most = _mm512_max_ps(s->most, most[0]);
    if (!filter->per || !s->plain) { /* else terms tell NaN and +inf, and -inf is what it seems */
        __m512 sums[FS_SHARE];
        for (int i = 0; i < n; i++) sums[i] = x[i];
        for (int half = n / 2; half > 0; half /= 2)
            for (int i = 0; i < half; i++) sums[i] = _mm512_add_ps(sums[i], sums[i + half]);
        s->odd = _mm512_fmadd_ps(sums[0], _mm512_setzero_ps(), s->odd); /* NaN from the first that is not finite on */
    }
    if (filter->per) {
        const __m512 unit = _mm512_cvtepi32_ps(_mm512_loadu_si512(filter->unit + first));
        const rough_lanes rough = {_mm512_loadu_ps(filter->per + first), unit};
        __m512 terms[2] = {s->terms, _mm512_setzero_ps()};
        for (int i = 0; i < n; i++) terms[i % 2] = _mm512_add_ps(terms[i % 2], rough_exp(&rough, x[i]));
        s->terms = _mm512_add_ps(terms[0], terms[1]);
    }
    s->token += n;
}

/* Looks at some more tokens of a panel. */
static __attribute__((noinline)) void filter_share(filtering *s) {
    const int upscaled = !s->plain && s->c->micro->unit == FS_F16;
    if (s->n - s->token < FS_SHARE)
        while (s->token < s->n) look_at(s, 1, upscaled);
    else if (upscaled) look_at(s, FS_SHARE, 1);
    else look_at(s, FS_SHARE, 0);
    s->due += s->every;
    if (s->token < s->n) return;
    filter_panel(s);
    start_panel(s, s->panel + 1);
    if (s->panel == s->end) s->due = -1;
}

/* At step k of a tile: what is due, if anything. The next step, up to `to`, at which something is. */
FS_INLINE int64_t filter_between(filtering *s, int64_t k, int64_t to) {
    if (k == s->due) filter_share(s);
    return s->due > k && s->due < to ? s->due : to;
}

/* Logits of 16 rows, each at its own place of the noise block. sum: of the block's first token. */
FS_INLINE __m512 gather_logits(const tile_call *c, int plain, int32_t first, const float *sum, __mmask16 lanes,
                               __m512i place) {
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i at = _mm512_add_epi32(_mm512_mullo_epi32(place, _mm512_set1_epi32(FS_SUMS)), lane);
    const __m512 x = _mm512_mask_i32gather_ps(_mm512_setzero_ps(), lanes, at, sum, 4);
    if (plain || c->micro->unit != FS_F16) return x;
    const __m512 of_rows = _mm512_loadu_ps(upscales_of(&c->packing, c->hidden) + first);
    const __m512 of_tokens = _mm512_mask_i32gather_ps(_mm512_setzero_ps(), lanes, place, c->upscale, 4);
    return _mm512_scalef_ps(x, _mm512_sub_ps(_mm512_sub_ps(_mm512_setzero_ps(), of_tokens), of_rows));
}

/* The marked token of each of these rows, if it can win. */
FS_INLINE void filter_mark(const tile_call *c, int plain, fs_filter *filter, int32_t first, const float *sum,
                           int32_t from, __mmask16 lanes, __m512i place, __m512i prefix) {
    const __m512 y = gather_logits(c, plain, first, sum, lanes, place);
    const __m512 bits = _mm512_cvtepi32_ps(_mm512_castps_si512(_mm512_cvtepi32_ps(prefix)));
    const __m512 noise = _mm512_mul_ps(bits, _mm512_set1_ps(FS_MARK_SLOPE));
    const __m512 score = _mm512_add_ps(_mm512_mul_ps(y, _mm512_loadu_ps(filter->scale + first)), noise);
    uint32_t found = _mm512_mask_cmp_ps_mask(lanes, score, _mm512_loadu_ps(filter->reach + first), _CMP_GT_OQ);
    for (; found; found &= found - 1) {
        const __mmask16 one = (__mmask16)(found & -found);
        const int32_t at = _mm512_cvtsi512_si32(_mm512_maskz_compress_epi32(one, place));
        filter_find(filter, _mm512_cvtss_f32(_mm512_maskz_compress_ps(one, y)), from + at, first + __builtin_ctz(found),
                    _mm512_cvtsi512_si32(_mm512_maskz_compress_epi32(one, prefix)));
    }
}

/* All marked tokens of a row whose marks take more than the first two pairs to tell. w: the words of 16 rows. */
static __attribute__((noinline)) void filter_walk(const tile_call *c, int plain, fs_filter *filter, int32_t first,
                                                  int32_t r, const float *sum, int32_t from, int32_t n,
                                                  const __m512i *w) {
    const uint32_t block = (uint32_t)((filter->first + from) / FS_NOISE_BLOCK);
    const fs_noise noise = {filter->r0[first + r], filter->r1[first + r], filter->r2[first + r] ^ FS_DOMAIN_MARK};
    const __mmask16 one = (__mmask16)(1u << r);
    fs_words words;
    for (int k = 0; k < 4; k++) words.w[k] = (uint32_t)_mm512_cvtsi512_si32(_mm512_maskz_compress_epi32(one, w[k]));
    fs_walk walk = noise_walk_from(noise, block, words);
    while (noise_next(&walk)) {
        const int32_t at = (int32_t)(walk.token % FS_NOISE_BLOCK);
        if (at >= n) continue;
        const __m512 x = gather_logits(c, plain, first, sum, one, _mm512_set1_epi32(at));
        const float y = _mm512_cvtss_f32(_mm512_maskz_compress_ps(one, x));
        if (mark_passes(y, filter->scale[first + r], walk.prefix, filter->reach[first + r]))
            filter_find(filter, y, from + at, first + r, (int32_t)walk.prefix);
    }
}

/* The marks of a noise block that is complete, n tokens from `from` on, for the rows of a panel. sum: of its first
 * token. */
FS_INLINE void filter_marks(const tile_call *c, int plain, fs_filter *filter, int32_t panel, const float *sum,
                            int32_t from, int32_t n) {
    const int32_t first = panel * FS_TILE, left = c->hidden->rows - first;
    const __mmask16 there = (__mmask16)(left < FS_TILE ? (1u << left) - 1 : 0xFFFF);
    const __mmask16 rows =
        _mm512_mask_cmp_ps_mask(there, _mm512_loadu_ps(filter->reach + first), _mm512_set1_ps(INFINITY), _CMP_LT_OQ);
    __m512i w[4];
    for (int half = 0; half < 2; half++) {
        const int32_t at = first + 8 * half;
        __m512i x[4] = {_mm512_set1_epi64((filter->first + from) / FS_NOISE_BLOCK),
                        _mm512_cvtepu32_epi64(_mm256_loadu_si256((const __m256i_u *)(const void *)(filter->r0 + at))),
                        _mm512_cvtepu32_epi64(_mm256_loadu_si256((const __m256i_u *)(const void *)(filter->r1 + at))),
                        _mm512_cvtepu32_epi64(_mm256_loadu_si256((const __m256i_u *)(const void *)(filter->r2 + at)))};
        mark_words(x);
        for (int k = 0; k < 4; k++) {
            const __m256i words = _mm512_cvtepi64_epi32(x[k]);
            w[k] = half ? _mm512_inserti64x4(w[k], words, 1) : _mm512_castsi256_si512(words);
        }
    }
    const __m512i low = _mm512_set1_epi32(0xFFFF), seven = _mm512_set1_epi32(127), end = _mm512_set1_epi32(n);
    const __m512i place = _mm512_and_si512(w[1], seven), next = _mm512_and_si512(_mm512_srli_epi32(w[1], 7), seven);
    const __mmask16 one = _mm512_mask_cmpge_epu32_mask(rows, w[0], _mm512_set1_epi32((int32_t)FS_MARKS_1));
    const __mmask16 two = _mm512_mask_cmpge_epu32_mask(one, w[0], _mm512_set1_epi32((int32_t)FS_MARKS_2));
    const __mmask16 more = _mm512_mask_cmpge_epu32_mask(two, w[0], _mm512_set1_epi32((int32_t)FS_MARKS_3)) |
                           _mm512_mask_cmpeq_epi32_mask(two, place, next);
    /* At a threshold itself another call decides: such a row walks too. */
    const __mmask16 open = _mm512_mask_cmpeq_epi32_mask(one, w[0], _mm512_set1_epi32((int32_t)FS_MARKS_1)) |
                           _mm512_mask_cmpeq_epi32_mask(one, w[0], _mm512_set1_epi32((int32_t)FS_MARKS_2));
    const __mmask16 walks = more | open, first_mark = one & (__mmask16)~walks, second = two & (__mmask16)~walks;
    filter_mark(c, plain, filter, first, sum, from, _mm512_mask_cmplt_epi32_mask(first_mark, place, end), place,
                _mm512_and_si512(w[2], low));
    filter_mark(c, plain, filter, first, sum, from, _mm512_mask_cmplt_epi32_mask(second, next, end), next,
                _mm512_srli_epi32(w[2], 16));
    for (uint32_t r = walks; r; r &= r - 1) filter_walk(c, plain, filter, first, __builtin_ctz(r), sum, from, n, w);
}

/* Exact masses of n tokens of a noise block, whose sums are from `sum` on, for the rows of a panel. */
static __attribute__((noinline)) void add_masses(const tile_call *c, int plain, fs_filter *filter,
                                                 const fs_block_mass *w, int32_t panel, const float *sum, int32_t n) {
    const int32_t first = panel * FS_TILE, left = c->hidden->rows - first;
    const __mmask16 rows = (__mmask16)(left < FS_TILE ? (1u << left) - 1 : 0xFFFF);
    const __m512 scale = _mm512_loadu_ps(w->scale + first), none = _mm512_set1_ps(-INFINITY);
    uint32_t *limb = w->limb + first * 3;
    for (int32_t g = 0; g < n; g += FS_GRANULE) {
        __m512 l[FS_GRANULE], most;
        for (int32_t i = 0; i < FS_GRANULE; i++) {
            const int32_t at = g + i < n ? g + i : g;
            const __m512 x = logits_of(c, plain, first, sum + at * FS_SUMS, c->upscale + at);
            l[i] = g + i < n ? _mm512_mul_ps(x, scale) : none;
        }
        const wide_term term = sum_granule(l, &most);
        /* Farther out fs_exp is not what it is here. */
        if (_mm512_mask_cmp_ps_mask(rows, _mm512_abs_ps(most), _mm512_set1_ps(FS_EXP_EXACT), _CMP_NLE_UQ))
            filter->failed = 1;
        wide_mass wide = {
            {_mm512_loadu_si512(limb), _mm512_loadu_si512(limb + FS_TILE), _mm512_loadu_si512(limb + 2 * FS_TILE)},
            _mm512_loadu_si512(w->top + first)};
        const uint32_t over = wide_over(&wide, &term) & rows;
        if (over) {
            int32_t low[FS_TILE];
            _mm512_storeu_si512(low, term.low);
            for (uint32_t r = over; r; r &= r - 1)
                block_mass_raise(w, first + __builtin_ctz(r), limb_of(low[__builtin_ctz(r)]));
            for (int j = 0; j < 3; j++) wide.limb[j] = _mm512_loadu_si512(limb + j * FS_TILE);
            wide.top = _mm512_loadu_si512(w->top + first);
        }
        wide_add(&wide, &term);
        for (int j = 0; j < 3; j++) _mm512_storeu_si512(limb + j * FS_TILE, wide.limb[j]);
    }
}

/* Stores the logits of a noise block, n tokens from place `from` of the block on, for the rows of a panel that want
 * them, and the largest: past the caches, since W washes them out before they are read. */
static __attribute__((noinline)) void store_block(const tile_call *c, int plain, const fs_filter *filter, int32_t panel,
                                                  const float *sum, int32_t from, int32_t n) {
    const int32_t first = panel * FS_TILE;
    __m512 most = _mm512_set1_ps(-INFINITY);
    float largest[FS_TILE];
    for (int32_t g = 0; g < n; g += FS_TILE) {
        const int32_t tokens = n - g < FS_TILE ? n - g : FS_TILE;
        __m512 x[FS_TILE];
        for (int32_t i = 0; i < FS_TILE; i++) { /* sums behind the last token are of others, and not taken */
            const __mmask16 there = i < tokens ? 0xFFFF : 0;
            x[i] = logits_of(c, plain, first, sum + (g + i) * FS_SUMS, c->upscale + g + i);
            most = _mm512_mask_max_ps(most, there, most, x[i]);
        }
        transpose(x);
        for (int32_t r = 0; r < FS_TILE; r++) {
            float *to = filter->store[first + r];
            if (to && tokens == FS_TILE) _mm512_stream_ps(to + from + g, x[r]);
            else if (to) _mm512_mask_storeu_ps(to + from + g, (__mmask16)((1u << tokens) - 1), x[r]);
        }
    }
    _mm512_storeu_ps(largest, most);
    for (int32_t r = 0; r < FS_TILE; r++)
        if (filter->store[first + r]) filter->store_most[first + r][from / FS_NOISE_BLOCK] = largest[r];
}

/* ------------------------------------------------------------------------------------------------- the tile ---- */

/* Steps that are summed from zero. A large sum rounds products of small components away; so where there are such, as
 * few segments as there can be, and as even. */
FS_INLINE int64_t segment_of(const tile_call *c) {
    const int64_t steps = steps_of(c->hidden), segments = (steps + FS_SEGMENT - 1) / FS_SEGMENT;
    return !as_they_lie(c) ? (steps + segments - 1) / segments : steps;
}

/* Sums of `many` tokens from `place` on, whose tiles have n, and of `panels` panels from p on become logits. */
FS_INLINE void store_tiles(const tile_call *c, int plain, int32_t p, int32_t panels, const char *w, int32_t many,
                           int32_t n, const sink *to, int32_t place) {
    for (int32_t j = 0; j < panels; j++)
        for (int32_t t = 0; t < many; t += FS_TILE)
            store_tile(c, plain, p + j, j, w + t * c->stride, t, n, to->out + place + t, to->out_ld);
}

/* The marks of the noise block that ends `done` tokens behind place `from`, where all its sums are there. */
FS_INLINE void filter_noise_block(const tile_call *c, int plain, fs_filter *filter, int32_t p, int32_t panels,
                                  int32_t from, int32_t done) {
    for (int32_t j = 0; j < panels; j++) {
        const float *sum = sums_at(c, filter, p, from) + j * FS_TILE;
        filter_marks(c, plain, filter, p + j, sum, from, done);
        if (filter->stores) store_block(c, plain, filter, p + j, sum, from, done);
        for (int i = 0; i < 2; i++)
            if (filter->exact[i].mass) add_masses(c, plain, filter, &filter->exact[i], p + j, sum, done);
    }
}

FS_INLINE void filter_rest(filtering *s) {
    while (s->due >= 0) filter_share(s);
}

/* The tile that was multiplied is to be filtered, at once or between the products of the next; the rest of the one
 * before it first. */
FS_INLINE void filter_next(const tile_call *c, const matmul *m, fs_filter *filter, int32_t panel, int32_t place,
                           filtering *s) {
    const int64_t steps = steps_of(c->hidden);
    filter_rest(s);
    s->c = c;
    s->plain = as_they_lie(c);
    s->filter = filter;
    s->sum = m->sum;
    for (int32_t t = 0; !s->plain && t < m->n; t++) s->upscale[t] = m->upscale[t * m->spacing];
    s->spacing = m->spacing;
    s->place = place;
    s->n = m->n;
    s->end = panel + m->panels;
    s->due = 0;
    s->every = (steps + 7) / 8;
    start_panel(s, panel);
    if (!filter->overlapped || !s->plain) filter_rest(s);
}

/* `tiles` tiles of n tokens from `place` on, of `all`: token t of tile i is row i + t * tiles of w. then: the next
 * ones, or w. */
FS_INLINE void tile_tokens(const tile_call *c, const char *w, const char *then, int32_t tiles, int32_t n,
                           const sink *to, int32_t place, int32_t all, filtering *before) {
    const int32_t in_block = to->filter ? place % FS_NOISE_BLOCK : 0, many = tiles * n;
    const int32_t done = in_block + many, whole = done == FS_NOISE_BLOCK || place + many == all;
    matmul m = {
        .stride = tiles * c->stride, .dim = c->hidden->dim, .segment = segment_of(c), .n = n, .packing = c->packing};
    m.sum_stride = tiles * FS_SUMS * 4;
    m.spacing = tiles;
    m.before = before;
    /* The fewest panels come first. Those that fetch what is next share its rows; if none does, the last one fetches
     * first lines. */
    const int32_t count = c->end - c->first, rest = count % FS_PANELS;
    const int all_fetch = fetches_whole(c->micro, &c->packing, m.stride, FS_PANELS);
    const int rest_fetches = rest && fetches_whole(c->micro, &c->packing, m.stride, rest);
    const int32_t turns = (all_fetch ? count / FS_PANELS : 0) + rest_fetches;
    for (int32_t p = c->end - (rest ? rest : FS_PANELS), turn = 0; p >= c->first; p -= FS_PANELS) {
        m.panels = c->end - p < FS_PANELS ? c->end - p : FS_PANELS;
        const int fetches = turns && then != w && (m.panels < FS_PANELS ? rest_fetches : all_fetch);
        const int32_t row = fetches ? FS_TILE * turn++ / turns : 0;
        m.fetched = fetches ? FS_TILE * turn / turns - row : 0;
        for (int32_t i = 0; i < tiles; i++) {
            m.w = w + i * c->stride;
            m.whole = then + i * c->stride + row * m.stride;
            /* The last tile's first lines start the pages of all tiles. */
            m.then = !turns && then != w && p == c->first && i == tiles - 1 ? then : m.w;
            m.h = c->hidden->packed + p * c->packing.panel;
            m.sum = sums_at(c, to->filter, p, place) + i * FS_SUMS;
            m.upscale = c->upscale + in_block + i;
            c->micro->dot(&m);
            if (to->filter) filter_next(c, &m, to->filter, p, place + i, before);
        }
        const int plain = as_they_lie(c);
        if (!to->filter && plain) store_tiles(c, 1, p, m.panels, w, many, n, to, place);
        else if (!to->filter) store_tiles(c, 0, p, m.panels, w, many, n, to, place);
        else if (whole && plain) filter_noise_block(c, 1, to->filter, p, m.panels, place - in_block, done);
        else if (whole) filter_noise_block(c, 0, to->filter, p, m.panels, place - in_block, done);
    }
}

/* Tiles side by side in one page, at most `most`: rows of the tile are that far apart. See
 * docs/notes/cpu-memory.md. */
FS_INLINE int32_t spacing_of(int64_t stride, int32_t most) {
    int32_t tiles = 1;
    while (tiles * stride < FS_PAGE && tiles < most) tiles *= 2;
    return tiles;
}

/* The panels that a call takes at a time, a multiple of FS_PANELS: while W streams by they stay in half of an L2 of 2
 * MB. More of them came from L3 for every tile; so W comes once for each of these instead (docs/notes/amx.md, "Rows
 * that outgrow L2"). */
#define FS_KEPT_BYTES (1 << 20)

FS_INLINE int32_t kept_panels(const packing *p) {
    const int64_t kept = FS_KEPT_BYTES / p->panel / FS_PANELS * FS_PANELS;
    return kept < FS_PANELS ? FS_PANELS : kept < p->panels ? (int32_t)kept : p->panels;
}

FS_INLINE void tile_all(const microkernel *micro, const fs_hidden *hidden, const char *w, int64_t stride,
                        int32_t tokens, const sink *to) {
    _Alignas(64) float sum[FS_TOKENS * FS_SUMS], upscale[FS_TOKENS] = {0};
    tile_call c = {micro, hidden, packing_of(micro, hidden), 0, 0, stride, sum, upscale};
    const int of_w = components_in(micro->unit, micro->weights);
    const int32_t most = spacing_of(stride, FS_TOKENS / FS_TILE), kept = kept_panels(&c.packing);
    filtering before = {.due = -1};
    tile_config callers;
    keep_config(&callers);
    for (; c.first < c.packing.panels; c.first = c.end) {
        c.end = c.packing.panels - c.first < kept ? c.packing.panels : c.first + kept;
        if (tokens >= FS_TILE) configure(FS_TILE, of_w, c.packing.columns);
        for (int32_t t = 0, many; t < tokens; t += many) {
            const int32_t left = tokens - t, n = left < FS_TILE ? left : FS_TILE;
            const int32_t tiles = left < most * FS_TILE ? 1 : most;
            many = tiles * n;
            const char *at = w + t * stride, *then = left - many < FS_TILE ? at : at + many * stride;
            if (n < FS_TILE) configure(n, of_w, c.packing.columns);
            tile_tokens(&c, at, then, tiles, n, to, t, tokens, &before);
        }
    }
    filter_rest(&before);
    if (to->filter && to->filter->stores) _mm_sfence(); /* before other threads read what went past the caches */
    give_back_config(&callers);
}

/* The functions of a kernel, of microkernel_<type>. */
#define FS_DEFINE_CALLS(type, isa)                                                                                     \
    static size_t packed_bytes_##type##_##isa(const fs_hidden *hidden) {                                               \
        return packing_bytes(&microkernel_##type##_##isa, hidden);                                                     \
    }                                                                                                                  \
    static void pack_##type##_##isa(const fs_hidden *hidden, int64_t from, int64_t to) {                               \
        pack_all(&microkernel_##type##_##isa, hidden, from, to);                                                       \
    }                                                                                                                  \
    static void tile_##type##_##isa(const fs_hidden *hidden, const fs_matrix *w, int64_t first, int32_t tokens,        \
                                    float *out, int64_t out_ld) {                                                      \
        const sink to = {NULL, out, out_ld};                                                                           \
        tile_all(&microkernel_##type##_##isa, hidden, matrix_row(w, first), w->stride, tokens, &to);                   \
    }                                                                                                                  \
    static void filter_##type##_##isa(const fs_hidden *hidden, const fs_matrix *w, int64_t first, int32_t tokens,      \
                                      fs_filter *filter) {                                                             \
        const sink to = {filter, NULL, 0};                                                                             \
        tile_all(&microkernel_##type##_##isa, hidden, matrix_row(w, first), w->stride, tokens, &to);                   \
    }                                                                                                                  \
    const fs_kernel fs_kernel_##type##__##isa = {packed_bytes_##type##_##isa, pack_##type##_##isa,                     \
                                                 tile_##type##_##isa, filter_##type##_##isa}

#endif
