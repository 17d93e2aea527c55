/* head.h - what a head does to its logits: from a dot product, or a stored number, to the raw logit. */
#ifndef FS_CORE_HEAD_H
#define FS_CORE_HEAD_H

#include "halves.h"

#include "flashsampling.h"

/* Nothing: no bias either. */
FS_CORE int head_is_plain(const fs_head *head) {
    return !head->bias && head->round == FS_F32 && head->scale == 1.0f && !(head->softcap > 0.0f) &&
           head->post_scale == 1.0f;
}

/* Of x with its bias. */
FS_CORE float head_logit(const fs_head *head, float x) {
    if (head->round == FS_BF16) x = round_bf16(x);
    if (head->round == FS_F16) x = round_f16(x);
    x *= head->scale;
    if (head->softcap > 0.0f) x = head->softcap * tanhf(x / head->softcap);
    return x * head->post_scale;
}

#endif
