/* bigram.c - a language model you can read: which character follows which, counted in a text, as an LM head over 256 bytes.
 *
 *   bigram FILE [TEMPERATURE [SEED]]
 *
 * The hidden state is the last character, one-hot; row v of W holds log(how often v followed it); so H W^T is the
 * log of the counts and sampling it writes text with the file's statistics. The same seed writes the same text. */
#include <flashsampling.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { BYTES = 256, LENGTH = 400 };
static float W[BYTES][BYTES]; /* [next, last] */
static float hidden[BYTES];

static int read_counts(const char *path) {
    FILE *file = fopen(path, "rb");
    if (!file) return 0;
    int last = '\n', next;
    while ((next = getc(file)) != EOF) {
        W[next][last]++;
        last = next;
    }
    fclose(file);
    return 1;
}

int main(int argc, char **argv) {
    if (argc < 2 || !read_counts(argv[1])) {
        fprintf(stderr, "usage: bigram FILE [TEMPERATURE [SEED]]; FILE must be readable\n");
        return 2;
    }
    /* The log of no occurrence is -inf, which a dot product with zeros would turn into NaN: -1e4 is as good as never. */
    for (int i = 0; i < BYTES * BYTES; i++) {
        float *w = &W[i / BYTES][i % BYTES];
        *w = *w > 0.0f ? logf(*w) : -1e4f;
    }

    fs_head head = fs_head_default();
    head.data = W;
    head.rows = BYTES;
    head.dim = BYTES;

    int32_t token = '\n';
    fs_batch batch = fs_batch_default();
    batch.hidden = hidden;
    batch.rows = 1;
    fs_rules rules = fs_rules_default();
    batch.rules = &rules;
    if (argc > 2) rules.temperature.value = strtof(argv[2], NULL);
    if (argc > 3) batch.seed_all = strtoull(argv[3], NULL, 10);
    uint32_t row_status = FS_ROW_OK;
    fs_result result = fs_result_default();
    result.tokens = &token;
    result.status = &row_status;

    fs_context *context;
    fs_options options = fs_options_default();
    options.threads = 1; /* 256 x 256 is no work to share */
    fs_status status = fs_context_create(&options, &context);
    for (int step = 0; step < LENGTH && status == FS_OK; step++) {
        batch.position_all = (uint64_t)step;
        hidden[token] = 1.0f;
        int32_t last = token;
        status = fs_sample(context, &head, &batch, &result);
        hidden[last] = 0.0f;
        if (row_status & FS_ROW_NO_TOKEN) { /* a bad temperature, say: the call is fine, the row is not */
            fprintf(stderr, "bigram: the row has no token, status 0x%x\n", row_status);
            break;
        }
        putchar(token);
    }
    putchar('\n');
    if (status != FS_OK) fprintf(stderr, "bigram: %s error: %s\n", fs_status_text(status), fs_error_text(context));
    fs_context_destroy(context);
    return status != FS_OK || (row_status & FS_ROW_NO_TOKEN);
}
