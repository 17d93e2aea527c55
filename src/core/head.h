/* head.h - what a head does to its logits: from a dot product, or a stored number, to the raw logit. */
#ifndef FS_CORE_HEAD_H
#define FS_CORE_HEAD_H

#include "halves.h"

#include "flashsampling.h"

/* Nothing: no bias either. */
FS_CORE int head_is_plain(const fs_head *head) {
    return !head->bias && head->round_to == FS_F32 && head->scale == 1.0f && !(head->softcap > 0.0f) &&
           head->post_scale == 1.0f;
}

/* Of x with its bias. */
FS_CORE float head_logit(const fs_head *head, float x) {
    if (head->round_to == FS_BF16) x = round_bf16(x);
    if (head->round_to == FS_F16) x = round_f16(x);
    x *= head->scale;
    if (head->softcap > 0.0f) x = head->softcap * tanhf(x / head->softcap);
    return x * head->post_scale;
}

/* The same of x [n], a step at a time: loops without a choice inside are what a CPU's vectors need (stored logits by a
 * loop over head_logit took 1.3 times as long with a scale, 1.5 with a rounding; Neoverse-V1, 2026-11). */
FS_CORE void head_logits(const fs_head *head, float *x, int64_t n) {
    const float scale = head->scale, cap = head->softcap, post = head->post_scale;
    if (head->round_to == FS_BF16)
        for (int64_t i = 0; i < n; i++) x[i] = round_bf16(x[i]);
    if (head->round_to == FS_F16)
        for (int64_t i = 0; i < n; i++) x[i] = round_f16(x[i]);
    if (scale != 1.0f)
        for (int64_t i = 0; i < n; i++) x[i] *= scale;
    if (cap > 0.0f)
        for (int64_t i = 0; i < n; i++) x[i] = cap * tanhf(x[i] / cap);
    if (post != 1.0f)
        for (int64_t i = 0; i < n; i++) x[i] *= post;
}

#endif
