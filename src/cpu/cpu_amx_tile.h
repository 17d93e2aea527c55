/* cpu_amx_tile.h - how a call's tokens and rows become tiles for a kernel's `dot`, and sums become logits: stored, or sifted (cpu_sieve.h). */
#ifndef FS_CPU_AMX_TILE_H
#define FS_CPU_AMX_TILE_H

#include "cpu_amx.h"
#include "cpu_avx512.h"

_Static_assert(FS_SUMS == FS_SIEVE_SUMS && FS_TILE == FS_SIEVE_LANES, "a sieve keeps sums as they are");
_Static_assert(FS_TOKENS == FS_NOISE_BLOCK, "lifts are kept as long as sums are");

/* ---------------------------------------------------------------------------------------------------- store ---- */

/* A call of `tile`: scheme, H, the sums of a group of tiles. */
typedef struct calling {
    const scheme *s;
    const fs_hidden *hidden;
    packing packing;
    int32_t first, end; /* the panels that are multiplied now */
    int64_t stride;
    float *sum;  /* [FS_TOKENS, FS_PANELS, 16] */
    float *lift; /* [FS_TOKENS] */
} calling;

/* Where logits go: into a sieve, or to out[row * out_ld + token]. */
typedef struct ending {
    fs_sieve *sieve; /* or NULL */
    float *out;
    int64_t out_ld;
} ending;

/* Whether both weights and hidden states are multiplied as they lie. Below this is `plain`, a constant: what repairs and lifts need beside it
 * cost f16 at 64 rows 2 to 5 % where one function did both. */
FS_INLINE int as_they_lie(const calling *c) {
    return c->s->weights == c->s->unit && c->hidden->dtype == c->s->unit;
}

#define FS_NOT_FINITE 0x99 /* of vfpclassps: quiet and signalling NaN, + and - inf */

/* x [16] logits of 16 tokens from place t on, whose sums were of lifted weights or hidden states: exact but for what is denormal. */
FS_INLINE void put_down(const calling *c, int32_t t, int32_t first, __m512 *x) {
    const __m512 of_tokens = _mm512_loadu_ps(c->lift + t);
    const float *of_rows = lifts_of(&c->packing, c->hidden) + first;
    for (int r = 0; r < FS_TILE; r++) /* rows that are not there have a lift too */
        x[r] = _mm512_scalef_ps(x[r], _mm512_sub_ps(_mm512_set1_ps(-of_rows[r]), of_tokens));
}

/* Logits of `tokens` tokens, up to 16, w, whose sums are from place t on, for the rows of a panel, the j-th of those whose sums are there. */
FS_INLINE void store_tile(const calling *c, int plain, int32_t panel, int32_t j, const char *w, int32_t t,
                          int32_t tokens, float *out, int64_t out_ld) {
    const float *sum = c->sum + t * FS_SUMS + j * FS_TILE;
    const int32_t first = panel * FS_TILE, left = c->hidden->rows - first, rows = left < FS_TILE ? left : FS_TILE;
    const __mmask16 there = (__mmask16)((1u << tokens) - 1);
    __m512 x[16];
    for (int i = 0; i < 16; i++) x[i] = _mm512_load_ps(sum + i * FS_SUMS);
    transpose(x);
    if (!plain && c->s->unit == FS_F16) put_down(c, t, first, x);
    for (int32_t r = 0; r < rows; r++) {
        float *to = out + (first + r) * out_ld;
        _mm512_mask_storeu_ps(to, there, x[r]);
        if (plain) continue;
        for (uint32_t odd = _mm512_mask_fpclass_ps_mask(there, x[r], FS_NOT_FINITE); odd; odd &= odd - 1) {
            const int32_t i = __builtin_ctz(odd);
            to[i] = repair_nan(c->hidden, first + r, w + i * c->stride, c->s->weights);
        }
    }
}

/* ----------------------------------------------------------------------------------------------------- sift ---- */

/* Where the sums of a group go, from `place` of the block on, and their lifts: a sieve keeps those of a noise block, for rows of panel p on. */
FS_INLINE float *sums_at(const calling *c, const fs_sieve *sieve, int32_t p, int32_t place) {
    if (!sieve) return c->sum;
    return sieve->sums + ((int64_t)(p / FS_PANELS) * FS_NOISE_BLOCK + place % FS_NOISE_BLOCK) * FS_SUMS;
}

/* The logits of a token, 16 rows from `first` on, from sums and their tokens' lifts. */
FS_INLINE __m512 logits_of(const calling *c, int plain, int32_t first, const float *sum, const float *lift) {
    const __m512 x = _mm512_load_ps(sum);
    if (plain || c->s->unit != FS_F16) return x;
    const __m512 of_rows = _mm512_loadu_ps(lifts_of(&c->packing, c->hidden) + first);
    return _mm512_scalef_ps(x, _mm512_sub_ps(_mm512_set1_ps(-*lift), of_rows));
}

/* A tile's sums on their way through a sieve, some at a time (sift_share): while the unit multiplies the next tile
 * nothing else keeps the vector units busy, and behind the products they kept the unit waiting
 * (docs/findings/cpu-draws.md, "between the products"). */
typedef struct sifting {
    const calling *c;
    int plain;
    fs_sieve *sieve;
    const float *sum; /* of the first token; the others' `spacing` tokens apart */
    float lift[FS_TILE];
    int32_t spacing, place, n;
    int32_t panel, end; /* the panel whose rows are looked at, and the one behind the last */
    int32_t token;      /* that is looked at next */
    int64_t due, every; /* the step of the next tile at which that is, or -1: all is done; steps in between */
    __m512 most, odd, terms;
} sifting;

/* The logits of a row of the panel, all its tokens. */
FS_INLINE __m512 logits_of_row(const sifting *s, int32_t r) {
    const calling *c = s->c;
    const __m512i token = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i at = _mm512_mullo_epi32(token, _mm512_set1_epi32(s->spacing * FS_SUMS));
    const __mmask16 there = (__mmask16)((1u << s->n) - 1);
    const float *sum = s->sum + s->panel % FS_PANELS * FS_TILE + r;
    const __m512 x = _mm512_mask_i32gather_ps(_mm512_setzero_ps(), there, at, sum, 4);
    if (s->plain || c->s->unit != FS_F16) return x;
    const __m512 down = _mm512_set1_ps(-lifts_of(&c->packing, c->hidden)[s->panel * FS_TILE + r]);
    return _mm512_scalef_ps(x, _mm512_sub_ps(down, _mm512_loadu_ps(s->lift)));
}

/* What is above the floors of these rows of the panel. */
static __attribute__((noinline)) void sift_rows(const sifting *s, uint32_t rows) {
    for (; rows; rows &= rows - 1) {
        const int32_t r = __builtin_ctz(rows), row = s->panel * FS_TILE + r;
        const __m512 y = logits_of_row(s, r);
        uint32_t above = _mm512_cmp_ps_mask(y, _mm512_set1_ps(s->sieve->floor[row]), _CMP_GT_OQ);
        for (above &= (1u << s->n) - 1; above; above &= above - 1) {
            const int32_t i = __builtin_ctz(above);
            const float found = _mm512_cvtss_f32(_mm512_maskz_compress_ps((__mmask16)(1u << i), y));
            sieve_find(s->sieve, found, s->place + i * s->spacing, row, -1);
        }
    }
}

/* A panel's last token has been looked at. */
FS_INLINE void sift_panel(sifting *s) {
    fs_sieve *sieve = s->sieve;
    const int32_t first = s->panel * FS_TILE, left = s->c->hidden->rows - first;
    const __mmask16 rows = (__mmask16)(left < FS_TILE ? (1u << left) - 1 : 0xFFFF);
    if (sieve->per)
        _mm512_storeu_ps(sieve->mass + first, _mm512_add_ps(_mm512_loadu_ps(sieve->mass + first), s->terms));
    if (_mm512_mask_cmp_ps_mask(rows, s->odd, s->odd, _CMP_UNORD_Q)) sieve->failed = 1;
    _mm512_storeu_ps(sieve->most + first, _mm512_max_ps(_mm512_loadu_ps(sieve->most + first), s->most));
    const uint32_t hit = _mm512_mask_cmp_ps_mask(rows, s->most, _mm512_loadu_ps(sieve->floor + first), _CMP_GT_OQ);
    if (hit) sift_rows(s, hit);
}

FS_INLINE void start_panel(sifting *s, int32_t panel) {
    s->panel = panel;
    s->token = 0;
    s->most = _mm512_set1_ps(-INFINITY);
    s->odd = s->terms = _mm512_setzero_ps();
}

#define FS_SHARE 8 /* tokens that are looked at at a time */

/* Looks at n more tokens of a panel; n, a power of two, and lifted, whether sums are of lifted numbers, are constants. */
FS_INLINE void look_at(sifting *s, int n, int lifted) {
    const fs_sieve *sieve = s->sieve;
    const int32_t first = s->panel * FS_TILE;
    const float *sum = s->sum + s->panel % FS_PANELS * FS_TILE + s->token * s->spacing * FS_SUMS;
    __m512 x[FS_SHARE];
    for (int i = 0; i < n; i++)
        x[i] = logits_of(s->c, !lifted, first, sum + i * s->spacing * FS_SUMS, &s->lift[s->token + i]);
    /* Pairs, and pairs of those, so that no step waits for the one before. */
    __m512 most[FS_SHARE];
    for (int i = 0; i < n; i++) most[i] = x[i];
    for (int half = n / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++) most[i] = _mm512_max_ps(most[i], most[i + half]);
    s->most = _mm512_max_ps(s->most, most[0]);
    if (!sieve->per || !s->plain) { /* else terms tell NaN and +inf, and -inf is what it seems */
        __m512 sums[FS_SHARE];
        for (int i = 0; i < n; i++) sums[i] = x[i];
        for (int half = n / 2; half > 0; half /= 2)
            for (int i = 0; i < half; i++) sums[i] = _mm512_add_ps(sums[i], sums[i + half]);
        s->odd = _mm512_fmadd_ps(sums[0], _mm512_setzero_ps(), s->odd); /* NaN from the first that is not finite on */
    }
    if (sieve->per) {
        const __m512 unit = _mm512_cvtepi32_ps(_mm512_loadu_si512(sieve->unit + first));
        const rough_lanes rough = {_mm512_loadu_ps(sieve->per + first), unit};
        __m512 terms[2] = {s->terms, _mm512_setzero_ps()};
        for (int i = 0; i < n; i++) terms[i % 2] = _mm512_add_ps(terms[i % 2], rough_exp(&rough, x[i]));
        s->terms = _mm512_add_ps(terms[0], terms[1]);
    }
    s->token += n;
}

/* Looks at some more tokens of a panel. */
static __attribute__((noinline)) void sift_share(sifting *s) {
    const int lifted = !s->plain && s->c->s->unit == FS_F16;
    if (s->n - s->token < FS_SHARE)
        while (s->token < s->n) look_at(s, 1, lifted);
    else if (lifted) look_at(s, FS_SHARE, 1);
    else look_at(s, FS_SHARE, 0);
    s->due += s->every;
    if (s->token < s->n) return;
    sift_panel(s);
    start_panel(s, s->panel + 1);
    if (s->panel == s->end) s->due = -1;
}

/* At step k of a tile: what is due, if anything. The next step, up to `to`, at which something is. */
FS_INLINE int64_t sift_aside(sifting *s, int64_t k, int64_t to) {
    if (k == s->due) sift_share(s);
    return s->due > k && s->due < to ? s->due : to;
}

/* Logits of 16 rows, each at its own place of the noise block. sum: of the block's first token. */
FS_INLINE __m512 gather_logits(const calling *c, int plain, int32_t first, const float *sum, __mmask16 lanes,
                               __m512i place) {
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i at = _mm512_add_epi32(_mm512_mullo_epi32(place, _mm512_set1_epi32(FS_SUMS)), lane);
    const __m512 x = _mm512_mask_i32gather_ps(_mm512_setzero_ps(), lanes, at, sum, 4);
    if (plain || c->s->unit != FS_F16) return x;
    const __m512 of_rows = _mm512_loadu_ps(lifts_of(&c->packing, c->hidden) + first);
    const __m512 of_tokens = _mm512_mask_i32gather_ps(_mm512_setzero_ps(), lanes, place, c->lift, 4);
    return _mm512_scalef_ps(x, _mm512_sub_ps(_mm512_sub_ps(_mm512_setzero_ps(), of_tokens), of_rows));
}

/* The marked token of each of these rows, if it can win. */
FS_INLINE void sift_mark(const calling *c, int plain, fs_sieve *sieve, int32_t first, const float *sum, int32_t from,
                         __mmask16 lanes, __m512i place, __m512i prefix) {
    const __m512 y = gather_logits(c, plain, first, sum, lanes, place);
    const __m512 bits = _mm512_cvtepi32_ps(_mm512_castps_si512(_mm512_cvtepi32_ps(prefix)));
    const __m512 noise = _mm512_mul_ps(bits, _mm512_set1_ps(FS_MARK_SLOPE));
    const __m512 score = _mm512_add_ps(_mm512_mul_ps(y, _mm512_loadu_ps(sieve->scale + first)), noise);
    uint32_t found = _mm512_mask_cmp_ps_mask(lanes, score, _mm512_loadu_ps(sieve->reach + first), _CMP_GT_OQ);
    for (; found; found &= found - 1) {
        const __mmask16 one = (__mmask16)(found & -found);
        const int32_t at = _mm512_cvtsi512_si32(_mm512_maskz_compress_epi32(one, place));
        sieve_find(sieve, _mm512_cvtss_f32(_mm512_maskz_compress_ps(one, y)), from + at, first + __builtin_ctz(found),
                   _mm512_cvtsi512_si32(_mm512_maskz_compress_epi32(one, prefix)));
    }
}

/* All marked tokens of a row whose marks take more than the first two pairs to tell. w: the words of 16 rows. */
static __attribute__((noinline)) void sift_walk(const calling *c, int plain, fs_sieve *sieve, int32_t first, int32_t r,
                                                const float *sum, int32_t from, int32_t n, const __m512i *w) {
    const uint32_t block = (uint32_t)((sieve->first + from) / FS_NOISE_BLOCK);
    const fs_noise noise = {sieve->r0[first + r], sieve->r1[first + r], sieve->r2[first + r] ^ FS_DOMAIN_MARK};
    const __mmask16 one = (__mmask16)(1u << r);
    fs_words words;
    for (int k = 0; k < 4; k++) words.w[k] = (uint32_t)_mm512_cvtsi512_si32(_mm512_maskz_compress_epi32(one, w[k]));
    fs_walk walk = noise_walk_from(noise, block, words);
    while (noise_next(&walk)) {
        const int32_t at = (int32_t)(walk.token % FS_NOISE_BLOCK);
        if (at >= n) continue;
        const __m512 x = gather_logits(c, plain, first, sum, one, _mm512_set1_epi32(at));
        const float y = _mm512_cvtss_f32(_mm512_maskz_compress_ps(one, x));
        if (mark_passes(y, sieve->scale[first + r], walk.prefix, sieve->reach[first + r]))
            sieve_find(sieve, y, from + at, first + r, (int32_t)walk.prefix);
    }
}

/* The marks of a noise block that is complete, n tokens from `from` on, for the rows of a panel. sum: of its first token. */
FS_INLINE void sift_marks(const calling *c, int plain, fs_sieve *sieve, int32_t panel, const float *sum, int32_t from,
                          int32_t n) {
    const int32_t first = panel * FS_TILE, left = c->hidden->rows - first;
    const __mmask16 there = (__mmask16)(left < FS_TILE ? (1u << left) - 1 : 0xFFFF);
    const __mmask16 rows =
        _mm512_mask_cmp_ps_mask(there, _mm512_loadu_ps(sieve->reach + first), _mm512_set1_ps(INFINITY), _CMP_LT_OQ);
    __m512i w[4];
    for (int half = 0; half < 2; half++) {
        const int32_t at = first + 8 * half;
        __m512i x[4] = {_mm512_set1_epi64((sieve->first + from) / FS_NOISE_BLOCK),
                        _mm512_cvtepu32_epi64(_mm256_loadu_si256((const __m256i_u *)(const void *)(sieve->r0 + at))),
                        _mm512_cvtepu32_epi64(_mm256_loadu_si256((const __m256i_u *)(const void *)(sieve->r1 + at))),
                        _mm512_cvtepu32_epi64(_mm256_loadu_si256((const __m256i_u *)(const void *)(sieve->r2 + at)))};
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
    sift_mark(c, plain, sieve, first, sum, from, _mm512_mask_cmplt_epi32_mask(first_mark, place, end), place,
              _mm512_and_si512(w[2], low));
    sift_mark(c, plain, sieve, first, sum, from, _mm512_mask_cmplt_epi32_mask(second, next, end), next,
              _mm512_srli_epi32(w[2], 16));
    for (uint32_t r = walks; r; r &= r - 1) sift_walk(c, plain, sieve, first, __builtin_ctz(r), sum, from, n, w);
}

/* Exact masses of n tokens of a noise block, whose sums are from `sum` on, for the rows of a panel. */
static __attribute__((noinline)) void weigh_rows(const calling *c, int plain, fs_sieve *sieve, const fs_weighing *w,
                                                 int32_t panel, const float *sum, int32_t n) {
    const int32_t first = panel * FS_TILE, left = c->hidden->rows - first;
    const __mmask16 rows = (__mmask16)(left < FS_TILE ? (1u << left) - 1 : 0xFFFF);
    const __m512 scale = _mm512_loadu_ps(w->scale + first), none = _mm512_set1_ps(-INFINITY);
    uint32_t *limb = w->limb + first * 3;
    for (int32_t g = 0; g < n; g += FS_GRANULE) {
        __m512 l[FS_GRANULE], most;
        for (int32_t i = 0; i < FS_GRANULE; i++) {
            const int32_t at = g + i < n ? g + i : g;
            const __m512 x = logits_of(c, plain, first, sum + at * FS_SUMS, c->lift + at);
            l[i] = g + i < n ? _mm512_mul_ps(x, scale) : none;
        }
        const wide_term term = sum_granule(l, &most);
        /* Farther out fs_exp is not what it is here. */
        if (_mm512_mask_cmp_ps_mask(rows, _mm512_abs_ps(most), _mm512_set1_ps(FS_EXP_EXACT), _CMP_NLE_UQ))
            sieve->failed = 1;
        wide_mass wide = {
            {_mm512_loadu_si512(limb), _mm512_loadu_si512(limb + FS_TILE), _mm512_loadu_si512(limb + 2 * FS_TILE)},
            _mm512_loadu_si512(w->top + first)};
        const uint32_t over = wide_over(&wide, &term) & rows;
        if (over) {
            int32_t low[FS_TILE];
            _mm512_storeu_si512(low, term.low);
            for (uint32_t r = over; r; r &= r - 1)
                weighing_raise(w, first + __builtin_ctz(r), limb_of(low[__builtin_ctz(r)]));
            for (int j = 0; j < 3; j++) wide.limb[j] = _mm512_loadu_si512(limb + j * FS_TILE);
            wide.top = _mm512_loadu_si512(w->top + first);
        }
        wide_add(&wide, &term);
        for (int j = 0; j < 3; j++) _mm512_storeu_si512(limb + j * FS_TILE, wide.limb[j]);
    }
}

/* ------------------------------------------------------------------------------------------------- the tile ---- */

/* Steps that are summed from zero. A large sum rounds products of small parts away; so where there are such, as few blocks as there can be,
 * and as even. */
FS_INLINE int64_t block_of(const calling *c) {
    const int64_t steps = steps_of(c->hidden), blocks = (steps + FS_BLOCK - 1) / FS_BLOCK;
    return !as_they_lie(c) ? (steps + blocks - 1) / blocks : steps;
}

/* Sums of `many` tokens from `place` on, whose tiles have n, and of `panels` panels from p on become logits. */
FS_INLINE void store_group(const calling *c, int plain, int32_t p, int32_t panels, const char *w, int32_t many,
                           int32_t n, const ending *end, int32_t place) {
    for (int32_t j = 0; j < panels; j++)
        for (int32_t t = 0; t < many; t += FS_TILE)
            store_tile(c, plain, p + j, j, w + t * c->stride, t, n, end->out + place + t, end->out_ld);
}

/* The marks of the noise block that ends `done` tokens behind place `from`, where all its sums are there. */
FS_INLINE void sift_group(const calling *c, int plain, fs_sieve *sieve, int32_t p, int32_t panels, int32_t from,
                          int32_t done) {
    for (int32_t j = 0; j < panels; j++) {
        const float *sum = sums_at(c, sieve, p, from) + j * FS_TILE;
        sift_marks(c, plain, sieve, p + j, sum, from, done);
        for (int i = 0; i < 2; i++)
            if (sieve->exact[i].mass) weigh_rows(c, plain, sieve, &sieve->exact[i], p + j, sum, done);
    }
}

FS_INLINE void sift_rest(sifting *s) {
    while (s->due >= 0) sift_share(s);
}

/* The tile that m has met is to be sifted, at once or aside; the rest of the one before it first. */
FS_INLINE void sift_next(const calling *c, const meeting *m, fs_sieve *sieve, int32_t panel, int32_t place,
                         sifting *s) {
    const int64_t steps = steps_of(c->hidden);
    sift_rest(s);
    s->c = c;
    s->plain = as_they_lie(c);
    s->sieve = sieve;
    s->sum = m->sum;
    for (int32_t t = 0; !s->plain && t < m->n; t++) s->lift[t] = m->lift[t * m->spacing];
    s->spacing = m->spacing;
    s->place = place;
    s->n = m->n;
    s->end = panel + m->panels;
    s->due = 0;
    s->every = (steps + 7) / 8;
    start_panel(s, panel);
    if (!sieve->aside || !s->plain) sift_rest(s);
}

/* `tiles` tiles of n tokens from `place` on, of `all`: token t of tile i is row i + t * tiles of w. then: the next group, or w. */
FS_INLINE void tile_group(const calling *c, const char *w, const char *then, int32_t tiles, int32_t n,
                          const ending *end, int32_t place, int32_t all, sifting *before) {
    const int32_t in_block = end->sieve ? place % FS_NOISE_BLOCK : 0, many = tiles * n;
    const int32_t done = in_block + many, whole = done == FS_NOISE_BLOCK || place + many == all;
    meeting m = {
        .stride = tiles * c->stride, .dim = c->hidden->dim, .block = block_of(c), .n = n, .packing = c->packing};
    m.sum_stride = tiles * FS_SUMS * 4;
    m.spacing = tiles;
    m.before = before;
    /* The fewest panels come first. Those that fetch what is next share its rows; if none does, the last one fetches first lines. */
    const int32_t count = c->end - c->first, rest = count % FS_PANELS;
    const int all_fetch = fetches_whole(c->s, &c->packing, m.stride, FS_PANELS);
    const int rest_fetches = rest && fetches_whole(c->s, &c->packing, m.stride, rest);
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
            m.sum = sums_at(c, end->sieve, p, place) + i * FS_SUMS;
            m.lift = c->lift + in_block + i;
            c->s->dot(&m);
            if (end->sieve) sift_next(c, &m, end->sieve, p, place + i, before);
        }
        const int plain = as_they_lie(c);
        if (!end->sieve && plain) store_group(c, 1, p, m.panels, w, many, n, end, place);
        else if (!end->sieve) store_group(c, 0, p, m.panels, w, many, n, end, place);
        else if (whole && plain) sift_group(c, 1, end->sieve, p, m.panels, place - in_block, done);
        else if (whole) sift_group(c, 0, end->sieve, p, m.panels, place - in_block, done);
    }
}

/* Tiles side by side in one page, at most `most`: rows of the tile are that far apart. See
 * docs/findings/cpu-memory.md. */
FS_INLINE int32_t spacing_of(int64_t stride, int32_t most) {
    int32_t tiles = 1;
    while (tiles * stride < FS_PAGE && tiles < most) tiles *= 2;
    return tiles;
}

/* The panels that a call takes at a time, whole groups of them: while W streams by they stay in half of an L2 of 2 MB. More of them came from
 * L3 for every tile; so W comes once for each of these instead (docs/findings/amx.md, "Rows that outgrow L2"). */
#define FS_KEPT_BYTES (1 << 20)

FS_INLINE int32_t kept_panels(const packing *p) {
    const int64_t kept = FS_KEPT_BYTES / p->panel / FS_PANELS * FS_PANELS;
    return kept < FS_PANELS ? FS_PANELS : kept < p->panels ? (int32_t)kept : p->panels;
}

FS_INLINE void tile_all(const scheme *s, const fs_hidden *hidden, const char *w, int64_t stride, int32_t tokens,
                        const ending *end) {
    _Alignas(64) float sum[FS_TOKENS * FS_SUMS], lift[FS_TOKENS] = {0};
    calling c = {s, hidden, packing_of(s, hidden), 0, 0, stride, sum, lift};
    const int of_w = parts_in(s->unit, s->weights);
    const int32_t most = spacing_of(stride, FS_TOKENS / FS_TILE), kept = kept_panels(&c.packing);
    sifting before = {.due = -1};
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
            tile_group(&c, at, then, tiles, n, end, t, tokens, &before);
        }
    }
    sift_rest(&before);
    give_back_config(&callers);
}

/* The functions of a kernel, of scheme_<type>. */
#define FS_DEFINE_CALLS(type, isa)                                                                                     \
    static size_t packed_bytes_##type##_##isa(const fs_hidden *hidden) {                                               \
        return packing_bytes(&scheme_##type##_##isa, hidden);                                                          \
    }                                                                                                                  \
    static void pack_##type##_##isa(const fs_hidden *hidden, int64_t from, int64_t to) {                               \
        pack_all(&scheme_##type##_##isa, hidden, from, to);                                                            \
    }                                                                                                                  \
    static void tile_##type##_##isa(const fs_hidden *hidden, const void *w, int64_t stride, int32_t tokens,            \
                                    float *out, int64_t out_ld) {                                                      \
        const ending end = {NULL, out, out_ld};                                                                        \
        tile_all(&scheme_##type##_##isa, hidden, (const char *)w, stride, tokens, &end);                               \
    }                                                                                                                  \
    static void sift_##type##_##isa(const fs_hidden *hidden, const void *w, int64_t stride, int32_t tokens,            \
                                    fs_sieve *sieve) {                                                                 \
        const ending end = {sieve, NULL, 0};                                                                           \
        tile_all(&scheme_##type##_##isa, hidden, (const char *)w, stride, tokens, &end);                               \
    }                                                                                                                  \
    const fs_kernel fs_kernel_##type##__##isa = {packed_bytes_##type##_##isa, pack_##type##_##isa,                     \
                                                 tile_##type##_##isa, sift_##type##_##isa}

#endif
