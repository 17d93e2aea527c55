/* The CUDA plan, which needs no GPU: which tile, how many CTAs, what is refused. */
#include "support.h"

#include "cuda/cuda_plan.h"

static const fs_cuda_shape shapes[] = {{8, 1, 5, 128, 2, 0, 0},  {64, 1, 4, 128, 2, 0, 0}, {128, 2, 3, 128, 2, 0, 0},
                                       {256, 2, 4, 64, 1, 0, 0}, {8, 1, 5, 128, 1, 0, 1},  {32, 1, 4, 128, 1, 0, 1}};
static const fs_cuda_shape plain_shapes[] = {{16, 1, 8, 64, 2, 180000, 0},
                                             {16, 1, 4, 64, 2, 90000, 0},
                                             {64, 1, 8, 64, 2, 220000, 0},
                                             {64, 1, 4, 64, 2, 120000, 0}};
static const fs_cuda_family families[] = {{"sm90", 9, 1, 6, shapes}, {"portable", 0, 0, 4, plain_shapes}};
static const fs_cuda_device h200 = {9, 0, 132, 66, 232448, 8, 1};

static fs_head head_of(int64_t vocab, int64_t dim) {
    fs_head head = fs_head_default();
    head.dtype = FS_BF16, head.rows = vocab, head.dim = dim;
    head.stride = (dim * 2 + 15) / 16 * 16;
    return head;
}

static fs_batch batch_of(int64_t dim) {
    fs_batch batch = fs_batch_default();
    batch.hidden_stride = (dim * 2 + 15) / 16 * 16;
    return batch;
}

static fs_cuda_plan plan_for(int64_t vocab, int64_t dim, int64_t rows, int32_t plain) {
    fs_head head = head_of(vocab, dim);
    fs_batch batch = batch_of(dim);
    fs_cuda_plan plan;
    if (!fs_cuda_plan_launch(&h200, families, 2, NULL, &head, &batch, rows, plain, &plan)) fail_msg("%s", plan.text);
    return plan;
}

static fs_cuda_plan plan_of(int64_t vocab, int64_t dim, int64_t rows) {
    return plan_for(vocab, dim, rows, 0);
}

static void the_narrowest_tile_that_holds_the_rows_is_taken(void **state) {
    (void)state;
    const int64_t rows[] = {1, 8, 9, 64, 65, 128, 129, 256};
    const int32_t width[] = {8, 8, 64, 64, 128, 128, 256, 256};
    for (int i = 0; i < 8; i++) {
        assert_int_equal(plan_of(151936, 4096, rows[i]).shape->rows, width[i]);
        assert_int_equal(plan_of(151936, 4096, rows[i]).blocks, 1);
    }
}

static void a_batch_wider_than_a_tile_is_done_in_even_blocks(void **state) {
    (void)state;
    for (int64_t rows = 257; rows <= 3000; rows = rows * 8 / 7) {
        const fs_cuda_plan plan = plan_of(151936, 4096, rows);
        assert_true(plan.blocks >= 1 && plan.grid * plan.blocks <= 132 && plan.rows <= FS_CUDA_ROWS);
        assert_true(plan.block_rows <= plan.shape->rows && plan.rows <= rows);
        assert_int_equal((plan.rows + plan.block_rows - 1) / plan.block_rows, plan.blocks); /* none is empty */
        const int64_t launches = (rows + plan.rows - 1) / plan.rows;
        if (rows <= FS_CUDA_ROWS) assert_true(launches * plan.rows - rows < launches);
    }
    assert_int_equal(plan_of(151936, 4096, 512).blocks, 2);
    assert_int_equal(plan_of(151936, 4096, 1024).rows, 512); /* four blocks would leave two clusters idle */
}

static void a_short_vocabulary_takes_all_processors_by_blocks(void **state) {
    (void)state;
    assert_true(plan_of(1024, 1024, 256).grid * plan_of(1024, 1024, 256).blocks >= 32);
    assert_int_equal(plan_of(1024, 1024, 8).blocks, 1);
}

static void direct_shapes_are_for_plain_calls_of_few_pieces(void **state) {
    (void)state;
    for (int64_t vocab = 1; vocab < 400000; vocab = vocab * 5 / 4 + 1)
        for (int64_t rows = 1; rows <= 2048; rows = rows * 3 / 2 + 1) {
            const fs_cuda_plan usual = plan_of(vocab, 1024, rows), plan = plan_for(vocab, 1024, rows, 1);
            assert_false(usual.shape->direct);
            if (!plan.shape->direct) {
                assert_memory_equal(&plan, &usual, sizeof plan);
                continue;
            }
            const int64_t tiles = (vocab + 127) / 128, pieces = (tiles + plan.grid - 1) / plan.grid;
            assert_true(pieces <= 4 && pieces * plan.block_rows <= (plan.blocks == 1 ? 96 : 64));
            assert_true(plan.grid * plan.blocks <= h200.processors);
            assert_int_equal(plan.rows, rows < 1024 ? rows : 1024); /* no more launches than the others' */
        }
}

/* Measured faster, and slower, by 2 % or more. */
static void direct_shapes_are_taken_where_they_were_measured_faster(void **state) {
    (void)state;
    const int64_t faster[][3] = {{1024, 512, 1},    {1024, 1024, 256}, {4096, 1024, 64},  {4096, 1024, 256},
                                 {8192, 1024, 1},   {8192, 1024, 16},  {8192, 1024, 128}, {16384, 2048, 16},
                                 {16384, 2048, 32}, {32000, 1024, 32}, {50257, 768, 1},   {50257, 768, 32}};
    for (int i = 0; i < 12; i++) assert_true(plan_for(faster[i][0], faster[i][1], faster[i][2], 1).shape->direct);
    const int64_t slower[][3] = {{8192, 1024, 256}, {16384, 2048, 64}, {16384, 2048, 256}, {32000, 1024, 64},
                                 {50257, 768, 64},  {50257, 768, 128}, {151936, 1024, 64}, {151936, 4096, 64}};
    for (int i = 0; i < 8; i++) assert_false(plan_for(slower[i][0], slower[i][1], slower[i][2], 1).shape->direct);
    fs_head head = head_of(1024, 1024);
    fs_batch batch = batch_of(1024);
    fs_cuda_plan plan;
    assert_true(fs_cuda_plan_launch(&h200, families, 2, "sm90", &head, &batch, 1, 1, &plan) && !plan.shape->direct);
}

static void every_processor_works_where_there_are_tiles_for_it(void **state) {
    (void)state;
    assert_int_equal(plan_of(151936, 4096, 1).grid, 132);
    assert_int_equal(plan_of(151936, 4096, 256).grid, 132);
    for (int64_t vocab = 1; vocab < 40000; vocab += 97)
        for (int64_t rows = 1; rows <= 256; rows += 85) {
            fs_cuda_plan plan = plan_of(vocab, 64, rows);
            assert_true(plan.grid >= plan.shape->cluster && plan.grid <= 132);
            assert_int_equal(plan.grid % plan.shape->cluster, 0);
        }
}

/* As fused/pieces.cuh walks them. */
static void every_span_is_dealt_out_once(void **state) {
    (void)state;
    static char taken[2048];
    for (int64_t vocab = 1; vocab < 262144; vocab = vocab * 7 / 6 + 1)
        for (int64_t rows = 8; rows <= 256; rows += 248) {
            const fs_cuda_plan plan = plan_of(vocab, 64, rows);
            const int64_t span = 128 * plan.shape->cluster, spans = (vocab + span - 1) / span;
            const int64_t clusters = plan.grid / plan.shape->cluster;
            int64_t taken_in_all = 0, most = 0, least = INT64_MAX;
            memset(taken, 0, sizeof taken);
            for (int64_t c = 0; c < clusters; c++) {
                const int64_t before = c * plan.schedule.spread >> 16,
                              more = ((c + 1) * plan.schedule.spread >> 16) - before;
                for (int64_t i = 0; i < plan.schedule.turns; i++) taken[i * clusters + c]++;
                if (more) taken[plan.schedule.turns * clusters + before]++;
                taken_in_all += plan.schedule.turns + more;
                if (plan.schedule.turns + more > most) most = plan.schedule.turns + more;
                if (plan.schedule.turns + more < least) least = plan.schedule.turns + more;
            }
            assert_int_equal(taken_in_all, spans);
            for (int64_t i = 0; i < spans; i++) assert_int_equal(taken[i], 1);
            assert_true(most - least <= 1);
        }
}

/* As fused/pieces.cuh goes through them. */
static void every_slice_of_k_comes_once_and_all_kernels_have_one_order(void **state) {
    (void)state;
    for (int64_t dim = 1; dim <= 16384; dim = dim * 17 / 16 + 1) {
        const fs_cuda_k_order order = plan_of(1000, dim, 1).k_order, wide = plan_of(151936, dim, 256).k_order;
        const int32_t slices = (int32_t)(dim + 127) / 128, ways = 1 << order.ways;
        char taken[130] = {0};
        assert_memory_equal(&order, &wide, sizeof order);
        for (int32_t i = 0; i < slices; i++) {
            const int32_t at = i < order.rest ? (i & (ways - 1)) * order.stretch + (i >> order.ways) : i;
            assert_true(at >= 0 && at < slices && !taken[at]++);
        }
        assert_true(order.rest * 128 <= dim && order.rest + ways >= dim / 128);
    }
    assert_int_equal(plan_of(1000, 2048, 1).k_order.ways, 0);
    assert_int_equal(plan_of(1000, 4096, 1).k_order.ways, 1);
    assert_int_equal(plan_of(1000, 8192, 1).k_order.ways, 2);
}

static void stages_cover_every_remainder_of_the_hidden_size(void **state) {
    (void)state;
    for (int64_t dim = 1; dim < 600; dim++)
        for (int64_t rows = 1; rows <= 256; rows += 255) {
            fs_cuda_plan plan = plan_of(1000, dim, rows);
            assert_true((int64_t)plan.k_steps * plan.shape->k >= dim &&
                        (int64_t)(plan.k_steps - 1) * plan.shape->k < dim);
        }
}

static void the_prediction_is_near_what_was_measured(void **state) {
    (void)state;
    double narrow = plan_of(151936, 4096, 1).microseconds, wide = plan_of(151936, 4096, 256).microseconds;
    assert_true(narrow > 275.0 && narrow < 295.0);
    assert_true(wide > 470.0 && wide < 520.0);
}

static void what_has_no_kernel_is_refused_in_words(void **state) {
    (void)state;
    fs_head head = head_of(1000, 64);
    fs_batch batch = batch_of(64);
    fs_cuda_plan plan;
    const fs_cuda_device old = {7, 5, 84, 0, 65536, 1, 0};
    assert_int_equal(fs_cuda_plan_launch(&old, families, 2, NULL, &head, &batch, 1, 0, &plan), 0);
    assert_non_null(strstr(plan.text, "7.5"));
    const fs_cuda_device small = {8, 6, 84, 0, 65536, 1, 0};
    assert_int_equal(fs_cuda_plan_launch(&small, families, 2, NULL, &head, &batch, 33, 0, &plan), 0);
    assert_non_null(strstr(plan.text, "33"));
}

static void the_family_follows_the_device_and_the_data(void **state) {
    (void)state;
    fs_head head = head_of(1000, 64);
    fs_batch batch = batch_of(64);
    fs_cuda_plan plan;
    const fs_cuda_device ada = {8, 9, 84, 0, 101376, 1, 0};
    assert_true(fs_cuda_plan_launch(&ada, families, 2, NULL, &head, &batch, 1, 0, &plan));
    assert_string_equal(plan.family->name, "portable");
    batch.hidden_stride = 130;
    assert_true(fs_cuda_plan_launch(&h200, families, 2, NULL, &head, &batch, 1, 0, &plan));
    assert_string_equal(plan.family->name, "portable");
}

static void a_tile_without_room_is_not_taken(void **state) {
    (void)state;
    fs_head head = head_of(151936, 64);
    fs_batch batch = batch_of(64);
    fs_cuda_plan plan;
    const fs_cuda_device ada = {8, 9, 84, 0, 101376, 1, 0}, alone = {9, 0, 132, 0, 232448, 8, 1};
    assert_true(
        fs_cuda_plan_launch(&ada, families, 2, NULL, &head, &batch, 64, 0, &plan)); /* the wide tile has no room */
    assert_true(plan.shape->rows == 16 && plan.rows == 64 && plan.blocks == 4);
    assert_true(fs_cuda_plan_launch(&alone, families, 2, NULL, &head, &batch, 128, 0,
                                    &plan)); /* nor has one without clusters */
    assert_true(plan.shape->rows == 64 && plan.rows == 128);
}

static void of_equal_tiles_the_deepest_that_fits_is_taken(void **state) {
    (void)state;
    const struct {
        fs_cuda_device device;
        int64_t rows;
        int32_t width, stages;
    } cases[] = {{{9, 0, 132, 66, 232448, 8, 1}, 1, 16, 8},  {{9, 0, 132, 66, 232448, 8, 1}, 64, 64, 8},
                 {{9, 0, 132, 66, 232448, 8, 1}, 99, 64, 8}, {{8, 0, 108, 0, 166912, 1, 0}, 1, 16, 4},
                 {{8, 0, 108, 0, 166912, 1, 0}, 64, 64, 4},  {{8, 0, 108, 0, 166912, 1, 0}, 99, 64, 4},
                 {{12, 0, 170, 0, 101376, 1, 0}, 1, 16, 4},  {{12, 0, 170, 0, 101376, 1, 0}, 99, 16, 4}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (int forced = 0; forced < 2; forced++) {
            fs_head head = head_of(151936, 64);
            fs_batch batch = batch_of(64);
            fs_cuda_plan plan;
            const char *name = !forced ? "portable" : cases[i].width == 16 ? "portable:16" : "portable:64";
            assert_true(
                fs_cuda_plan_launch(&cases[i].device, families, 2, name, &head, &batch, cases[i].rows, 0, &plan));
            assert_int_equal(plan.shape->rows, cases[i].width);
            assert_int_equal(plan.shape->stages, cases[i].stages);
            assert_int_equal(plan.rows, cases[i].rows);
        }
}

static void the_environment_forces_a_family_or_a_tile(void **state) {
    (void)state;
    fs_head head = head_of(1000, 64);
    fs_batch batch = batch_of(64);
    fs_cuda_plan plan;
    assert_true(fs_cuda_plan_launch(&h200, families, 2, "portable", &head, &batch, 8, 0, &plan));
    assert_string_equal(plan.family->name, "portable");
    char text[160] = "";
    fs_cuda_plan_describe(&plan, "portable", text, sizeof text);
    assert_non_null(strstr(text, "FLASHSAMPLING_CUDA_TILE"));
    assert_true(fs_cuda_plan_launch(&h200, families, 2, "sm90:128", &head, &batch, 8, 0, &plan));
    assert_int_equal(plan.shape->rows, 128);
    const char *bad[] = {"sm9", "sm90:7", "sm90x", "", "tensor", "sm90:", "sm90:8x", "portable:-8"};
    for (int i = 0; i < 8; i++) {
        assert_int_equal(fs_cuda_plan_launch(&h200, families, 2, bad[i], &head, &batch, 8, 0, &plan), 0);
        assert_true(strlen(plan.text) > 10);
    }
}

/* What a record's index is on the device (fused/pieces.cuh), for every tile of a shard: inside its group's slots, and
 * no two CTAs in one. */
static void every_piece_has_a_part_of_its_own(void **state) {
    (void)state;
    const int64_t sizes[] = {128, 256, 384, 1280, 4096, 100096};
    for (int64_t first = 0; first < 3000; first += 700)
        for (int rows = 8; rows <= 128; rows += 120)
            for (int i = 0; i < 12; i++) { /* half of them with padding */
                const int64_t size = sizes[i % 6], tokens = i < 6 ? 40007 : 29003;
                fs_head head = head_of(40007, 64);
                fs_batch batch = batch_of(64);
                head.first_token = first, head.vocab = first + tokens;
                batch.mode = FS_MODE_GROUP_PARALLEL, batch.group_size = size;
                fs_cuda_plan plan;
                assert_true(fs_cuda_plan_launch(&h200, families, 2, NULL, &head, &batch, rows, 0, &plan));
                const int64_t cluster = plan.shape->cluster, span = 128 * cluster, clusters = plan.grid / cluster;
                const int64_t base = first / span, spans = (first + tokens + span - 1) / span - base;
                for (int64_t c = 0; c < clusters; c++)
                    for (int64_t s = spans * c / clusters; s < spans * (c + 1) / clusters; s++)
                        for (int64_t r = 0; r < cluster; r++) {
                            int64_t token = (base + s) * span + r * 128;
                            if (token < first) token = first;
                            const int64_t group = token / size, start = group * size / span;
                            const int64_t from = start > base ? start - base : 0;
                            const int64_t slot = (c - ((from + 1) * clusters - 1) / spans) * cluster + r;
                            assert_true(slot >= 0 && slot < plan.slots);
                            if (token < first + tokens) assert_true(group - first / size < plan.groups);
                        }
            }
}

static void unaligned_data_is_noticed(void **state) {
    (void)state;
    static _Alignas(16) char memory[64];
    fs_head head = fs_head_default();
    fs_batch batch = fs_batch_default();
    head.data = memory, head.dim = 64, batch.hidden = memory;
    head.dtype = batch.hidden_dtype = FS_BF16;
    assert_true(fs_cuda_plan_aligned(&head, &batch));
    head.data = memory + 2;
    assert_false(fs_cuda_plan_aligned(&head, &batch));
    head.data = memory, head.dim = 60;
    assert_false(fs_cuda_plan_aligned(&head, &batch));
    head.stride = 128, batch.hidden_stride = 136;
    assert_false(fs_cuda_plan_aligned(&head, &batch));
    batch.hidden_stride = 128;
    assert_true(fs_cuda_plan_aligned(&head, &batch));
}

/* ---------------------------------------------------------------------------------------------- stored logits ---- */

static fs_head logits_of(int64_t vocab) {
    fs_head head = fs_head_default();
    head.kind = FS_HEAD_LOGITS, head.rows = vocab;
    return head;
}

static fs_cuda_stored_plan stored_plan(int64_t vocab, int64_t rows) {
    fs_head head = logits_of(vocab);
    fs_batch batch = fs_batch_default();
    fs_cuda_stored_plan plan;
    fs_cuda_plan_stored(264, &head, &batch, rows, &plan);
    return plan;
}

static void stored_rows_are_shared_by_as_many_ctas_as_run_at_once(void **state) {
    (void)state;
    const int64_t rows[] = {1, 2, 8, 64, 128, 132, 133, 256, 300};
    const int32_t ctas[] = {99, 99, 33, 4, 2, 2, 1, 1, 1};
    for (int i = 0; i < 9; i++) {
        fs_cuda_stored_plan plan = stored_plan(151936, rows[i]);
        assert_int_equal(plan.share.segments, ctas[i]);
        assert_int_equal(plan.rows, rows[i] < 256 ? rows[i] : 256);
        assert_int_equal(plan.grid, plan.rows * plan.share.segments);
        assert_int_equal(plan.slots, plan.share.teams);
        assert_true(plan.grid <= 264 && plan.groups == 1);
        assert_int_equal(plan.share.quota * plan.share.segments + plan.share.extra, plan.share.blocks);
        assert_true(plan.share.quota >= 1 && plan.share.extra < plan.share.segments);
    }
    assert_int_equal(stored_plan(12 * 128 + 1, 1).share.segments, 2); /* no warp without a block, but in the last CTA */
    assert_int_equal(stored_plan(1, 1).share.segments, 1);
    assert_true(stored_plan(151936, 256).microseconds > 33.0 && stored_plan(151936, 256).microseconds < 36.0);
    const fs_cuda_stored_plan described = stored_plan(151936, 1);
    char text[160] = "";
    fs_cuda_plan_describe_stored(&described, text, sizeof text);
    assert_non_null(strstr(text, "CTAs per row"));
}

static void stored_rows_that_are_padding_alone_have_no_blocks(void **state) {
    (void)state;
    fs_head head = logits_of(1000);
    fs_batch batch = fs_batch_default();
    fs_cuda_stored_plan plan;
    batch.mode = FS_MODE_GROUP_ONLINE, batch.group_size = 256;
    head.first_token = 700, head.vocab = 700;
    fs_cuda_plan_stored(264, &head, &batch, 3, &plan);
    assert_int_equal(plan.share.blocks, 0);
    assert_true(plan.grid == 3 && plan.groups == 1 && plan.slots >= 1);
    head.vocab = 701;
    fs_cuda_plan_stored(264, &head, &batch, 3, &plan);
    assert_int_equal(plan.share.blocks, 1);
}

static void stored_blocks_are_whole_where_all_their_tokens_are(void **state) {
    (void)state;
    fs_head head = logits_of(1000);
    fs_batch batch = fs_batch_default();
    fs_cuda_stored_plan plan;
    head.first_token = 700, head.vocab = 1500;
    fs_cuda_plan_stored(264, &head, &batch, 3, &plan);
    assert_true(plan.share.low == 700 && plan.share.high == 1500);
    assert_true(plan.share.first == 5 && plan.share.blocks == 7); /* 640 to 1,535 */
    assert_true(plan.share.whole == 6 && plan.share.whole_end == 11);
}

/* What a record's index is on the device (stored/stored.cu), for every team and group: inside the group's slots, no two
 * teams in one, and every block with one team. */
static void every_team_has_a_part_of_its_own_in_every_group(void **state) {
    (void)state;
    const int64_t sizes[] = {128, 256, 1280, 8064, 8192, 20096, 1 << 20}, rows[] = {1, 3, 40, 256};
    for (int64_t first = 0; first < 3000; first += 700)
        for (int r = 0; r < 4; r++)
            for (int i = 0; i < 7; i++) {
                fs_head head = logits_of(40007);
                fs_batch batch = fs_batch_default();
                fs_cuda_stored_plan plan;
                head.first_token = first, head.vocab = first + 20000 + 5 * i; /* half of it is padding */
                batch.mode = FS_MODE_GROUP_PARALLEL, batch.group_size = sizes[i];
                fs_cuda_plan_stored(264, &head, &batch, rows[r], &plan);
                const fs_cuda_share *share = &plan.share;
                const int64_t n = share->blocks, teams = share->teams, size = sizes[i] / 128;
                assert_int_equal(teams * share->team, share->segments * FS_CUDA_STORED_WARPS);
                assert_true(n * teams < (int64_t)1 << 31); /* the device multiplies in 32 bits */
                int64_t next = 0, last_part = -1;
                for (int64_t t = 0; t < teams; t++)
                    for (int64_t s = n * t / teams; s < n * (t + 1) / teams; s++) {
                        const int64_t block = share->first + s, group = block / size;
                        const int64_t start = group * size > share->first ? group * size - share->first : 0;
                        const int64_t slot = t - ((start + 1) * teams - 1) / n;
                        const int64_t part = (group - share->first / size) * plan.slots + slot;
                        assert_true(s == next++);
                        assert_true(slot >= 0 && slot < plan.slots && group - share->first / size < plan.groups);
                        assert_true(part == last_part || part > last_part); /* parts follow one another */
                        last_part = part;
                    }
                assert_true(next == n);
            }
}

static void a_team_of_ctas_has_its_row_in_shared_memory_where_it_fits(void **state) {
    (void)state;
    const fs_cuda_device a100 = {8, 0, 108, 0, 166912, 1, 0};
    for (int64_t tokens = 1; tokens <= 262144; tokens = tokens * 5 / 3 + 1)
        for (int64_t rows = 1; rows <= 512; rows = rows * 2 + 1)
            for (int32_t edited = 0; edited < 2; edited++) {
                const fs_cuda_team team = fs_cuda_plan_team(&h200, rows, 0, tokens, edited, 40000, 0);
                const int64_t held = (int64_t)team.size * team.places;
                assert_true(team.size >= 1 && team.size <= 8 && (team.size & (team.size - 1)) == 0);
                assert_true(team.threads == FS_CUDA_TEAM_THREADS || team.threads == FS_CUDA_TEAM_THREADS / 2);
                assert_true(team.shared_bytes <= h200.shared_bytes);
                assert_true(team.slices == 0 || held >= tokens);
                assert_true(tokens < 4096 || team.size > 1);
                assert_int_equal(fs_cuda_plan_team(&a100, rows, 0, tokens, edited, 40000, 0).size, 1);
            }
    assert_int_equal(fs_cuda_plan_team(&h200, 16, 0, 151936, 0, 40000, 0).slices, 1);
    assert_int_equal(fs_cuda_plan_team(&h200, 16, 0, 151936, 0, 40000, 4).size, 4);
    assert_int_equal(fs_cuda_plan_team(&h200, 1, 0, 10000000, 0, 40000, 0).slices, 0); /* its logits stay in memory */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_team_of_ctas_has_its_row_in_shared_memory_where_it_fits),
        cmocka_unit_test(the_narrowest_tile_that_holds_the_rows_is_taken),
        cmocka_unit_test(a_batch_wider_than_a_tile_is_done_in_even_blocks),
        cmocka_unit_test(a_short_vocabulary_takes_all_processors_by_blocks),
        cmocka_unit_test(direct_shapes_are_for_plain_calls_of_few_pieces),
        cmocka_unit_test(direct_shapes_are_taken_where_they_were_measured_faster),
        cmocka_unit_test(every_processor_works_where_there_are_tiles_for_it),
        cmocka_unit_test(every_span_is_dealt_out_once),
        cmocka_unit_test(every_slice_of_k_comes_once_and_all_kernels_have_one_order),
        cmocka_unit_test(stages_cover_every_remainder_of_the_hidden_size),
        cmocka_unit_test(the_prediction_is_near_what_was_measured),
        cmocka_unit_test(what_has_no_kernel_is_refused_in_words),
        cmocka_unit_test(the_family_follows_the_device_and_the_data),
        cmocka_unit_test(a_tile_without_room_is_not_taken),
        cmocka_unit_test(of_equal_tiles_the_deepest_that_fits_is_taken),
        cmocka_unit_test(the_environment_forces_a_family_or_a_tile),
        cmocka_unit_test(every_piece_has_a_part_of_its_own),
        cmocka_unit_test(unaligned_data_is_noticed),
        cmocka_unit_test(stored_rows_are_shared_by_as_many_ctas_as_run_at_once),
        cmocka_unit_test(stored_rows_that_are_padding_alone_have_no_blocks),
        cmocka_unit_test(stored_blocks_are_whole_where_all_their_tokens_are),
        cmocka_unit_test(every_team_has_a_part_of_its_own_in_every_group),
    };
    return cmocka_run_group_tests_name("cuda_plan", tests, NULL, NULL);
}
