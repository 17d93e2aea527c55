/* part.cuh - a row of a shard as bytes of a part (core/wire.h), which is zero before: no cut is made here, since only
 * all shards together know where one ends. */
#ifndef FS_CUDA_ROWS_PART_CUH
#define FS_CUDA_ROWS_PART_CUH

#include "cuda/rows/results.cuh"

/* The first tokens of the total order of these logits, `keep` at most, x beside them if `raw`, and which is the first
 * of the others. Returns what follows the list. */
ROW_PART char *put_list(char *at, bool by_x, int32_t keep, bool raw) {
    ending *e = this_ending();
    const int use = by_x ? LIST_BEST : LIST_SELECTED;
    const row_view &r = e->view;
    const row_entries all = entries_of(e, by_x ? r.x : r.y, 1.0f, by_x ? e->summary.max_x : e->summary.max_y);
    if (!keep) return at;
    const uint64_t last = select_last(&e->select, all, (uint64_t)keep, SELECT_ALL);
    char *entry = at + 12;
    unsigned long long bound = FS_KEY_NONE;
    all.each([&](uint64_t key) {
        if (key < last) {
            bound = max(bound, (unsigned long long)key);
            return;
        }
        const uint32_t i = atomicAdd(at_peer(&e->listed[use], 0), 1u);
        const float x = r.x.at((int32_t)order_key_token(key));
        wire_put(entry + (size_t)i * 8, &key, 8);
        if (raw) wire_put(entry + (size_t)keep * 8 + (size_t)i * 4, &x, 4);
    });
    bound = team_max(bound);
    if (team_rank() == 0 && threadIdx.x == 0) {
        const int32_t count = (int32_t) * (volatile uint32_t *)&e->listed[use];
        wire_put(wire_put(at, &count, 4), &bound, 8);
    }
    return at + wire_list_bytes(keep, raw);
}

/* Who has a token writes what is known of it. */
FS_DEVICE void put_winners(const fs_needs &needs, char *at, int32_t drawn) {
    const ending *e = this_ending();
    const row_view &r = e->view;
    for (int32_t i = threadIdx.x; i < min(drawn, needs.samples); i += blockDim.x) {
        const int64_t token = score_key_token(e->winner[i]);
        const fs_winner winner = {e->winner[i], own_logit(r.x, token), own_logit(r.y, token)};
        if (e->winner[i] && r.x.holds(token))
            wire_put_winner(&needs, at + (size_t)i * wire_winner_bytes(&needs), &winner);
    }
}

FS_DEVICE void put_watched(const fs_call &call, char *at) {
    const ending *e = this_ending();
    const row_view &r = e->view;
    const int64_t b = e->row.b;
    for (int64_t i = threadIdx.x; i < wire_watched(&call, b); i += blockDim.x) {
        const int32_t token = watch_token(call.batch, b, i);
        const fs_watch watch = {own_logit(r.x, token), own_logit(r.y, token)}; /* NaN: another shard's */
        if (writes_token(r, token)) wire_put(at + (size_t)i * sizeof watch, &watch, sizeof watch);
    }
}

/* So many winners are there. */
ROW_PART void put_row(int32_t drawn) {
    ending *e = this_ending();
    const fs_cuda_args &args = e->args;
    const fs_needs &needs = args.needs;
    const fs_call call = {&args.head, &args.batch, &args.result, NULL, args.vocab, needs};
    const int64_t b = e->row.b;
    if (needs.watched && watch_is_over(&args.batch, b, needs.watched)) return; /* nor does anybody read it */
    char *at = args.part + wire_row_at(&call, b), *sums = at + (size_t)needs.samples * wire_winner_bytes(&needs);
    put_winners(needs, at, drawn);
    __syncthreads(); /* lists are made where others were */
    at += wire_row_bytes(&needs) - wire_list_bytes(needs.keep, needs.raw_column) - wire_list_bytes(needs.keep_raw, 0);
    at = put_list(at, false, needs.keep, needs.raw_column);
    at = put_list(at, true, needs.keep_raw, false);
    put_watched(call, at);
    if (team_rank() != 0 || threadIdx.x != 0) return;
    wire_put_sums(&needs, sums, &e->summary);
    const uint32_t bits = wire_bits(&e->summary);
    if (bits) atomicOr((uint32_t *)(args.part + FS_WIRE_HEADER) + b / 16, bits << 2 * (b % 16));
}

#endif
