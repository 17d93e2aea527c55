/* A user's program: draws one token of four and checks that header and library are the same version. */
#include <flashsampling.h>
#include <stdio.h>

int main(void) {
    const float logits[4] = {0.0f, 1.0f, 2.0f, 3.0f};
    int32_t token = -1;
    fs_context *context = NULL;
    if (fs_context_create(NULL, &context) != FS_OK) {
        fprintf(stderr, "%s\n", fs_error_text(NULL));
        return 1;
    }
    fs_head head = fs_head_default();
    head.kind = FS_HEAD_LOGITS;
    head.data = logits;
    head.rows = 4;
    fs_batch batch = fs_batch_default();
    batch.rows = 1;
    fs_result result = fs_result_default();
    result.tokens = &token;
    fs_status status = fs_sample(context, &head, &batch, &result);
    if (status != FS_OK) fprintf(stderr, "%s\n", fs_error_text(context));
    fs_context_destroy(context);

    const uint32_t version = FS_VERSION_MAJOR << 16 | FS_VERSION_MINOR << 8 | FS_VERSION_PATCH;
    return status != FS_OK || token < 0 || token > 3 || fs_version() != version;
}
