/* synth.h - an LM head and hidden states that behave like a language model's, made on the spot. */
#ifndef FS_CLI_SYNTH_H
#define FS_CLI_SYNTH_H

#include <stdint.h>

typedef struct synth {
    int64_t V, D, B;
    int dtype; /* FS_F32, FS_F16 or FS_BF16, of W and H */
    uint64_t seed;
    int64_t first, rows; /* only rows [first, first + rows) of W are made; rows 0 = all V */
} synth;

/* Rows of W that are made. */
int64_t synth_rows(const synth *s);

/* Bytes of one element of an fs_dtype. */
int64_t dtype_bytes(int dtype);
extern const char *const dtype_names[]; /* NULL-terminated, indexed by fs_dtype: f32, f16, bf16 */

/* Element i of an array of this dtype, as float. */
float load_element(const void *data, int dtype, int64_t i);

/* Fills W [rows, D] on `threads` threads; progress is reported if it takes long. */
void synth_weights(const synth *s, void *w, int threads);
/* Fills H [B, D]; row b does not depend on B. */
void synth_hidden(const synth *s, void *h);

#endif
