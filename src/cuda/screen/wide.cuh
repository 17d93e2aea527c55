/* wide.cuh - a pass over a screen for up to 32 rows: dot products of the screen's numbers by warpgroups.
 *
 *   2 warpgroups   dot products: of twice 64 tokens each, strips of 16 to a warp, all columns, wgmma with the screen's
 *                  numbers from registers and hidden states from shared memory
 *   3 warps        judges: who may win of those whose upper bounds are above a threshold
 *   1 warp         the copies
 *
 *   screen --TMA--> ring --registers--> bf16 --wgmma--> sums, and sums of the bounds --> upper bounds --> judges
 *   image of H --copies--> ring --wgmma-->
 *
 * Hidden states of more than 16 rows have no room in shared memory: they are streamed from L2 with every tile of 256
 * tokens, so a launch in front brings them into the order of the screen (image.cuh). Bounds are sums of products too,
 * of a number of each group and token with one of each group and row: behind a tile, one instruction for 64 of its own.
 *
 * The first tile's upper bounds are parked in shared memory as bf16, rounded up, until all CTAs have told the best of
 * theirs: consumers do not wait for that. */
#ifndef FS_CUDA_SCREEN_WIDE_CUH
#define FS_CUDA_SCREEN_WIDE_CUH

#include "cuda/device/wgmma.cuh"
#include "cuda/screen/operands.cuh"
#include "cuda/screen/wide_room.cuh"

/* ------------------------------------------------------------------------------------------------ dot products ---- */

/* Numbers of a chunk of a strip, on their way to an operand. */
template <int BITS> struct fs_wide_numbers {
    uint4 q[BITS / 4];

    FS_DEVICE_MEMBER void load(const char *from) {
#pragma unroll
        for (int i = 0; i < BITS / 4; i++) q[i] = *(const uint4 *)(from + i * 512 + (threadIdx.x & 31) * 16);
    }

    FS_DEVICE_MEMBER void operand(uint32_t (&a)[4][4], uint32_t mask) const {
#pragma unroll
        for (int k = 0; k < 4; k++) {
            if constexpr (BITS == 4) operand_of_4(a[k], (&q[0].x)[k], mask);
            else operand_of_8(a[k], (&q[0].x)[k], (&q[1].x)[k], mask);
        }
    }
};

/* Products of a chunk, in flight. 8 bits have a scale for both of a record, which then are one group. */
template <int BITS> struct fs_wide_group {
    float d[FS_WIDE_ROWS / 2]; /* as accumulators lie (fused/epilogue.cuh) */
    float scale[2];            /* of the lane's tokens g and g + 8 */

    /* They have been waited for. */
    FS_DEVICE_MEMBER void are_here() {
#pragma unroll
        for (int i = 0; i < FS_WIDE_ROWS / 2; i++) asm volatile("" : "+f"(d[i])::"memory");
    }
};

/* One warpgroup's 64 tokens, a strip of 16 to a warp. */
template <int BITS> struct fs_wide_sums {
    float sum[FS_WIDE_ROWS / 2];
    uint32_t halves[4]; /* what tokens have of the groups of a block: an A operand */

    FS_DEVICE_MEMBER void clear() {
#pragma unroll
        for (int i = 0; i < FS_WIDE_ROWS / 2; i++) sum[i] = 0.0f;
        halves[0] = halves[1] = halves[2] = halves[3] = 0;
    }

    FS_DEVICE_MEMBER void add(const fs_wide_group<BITS> &g) {
#pragma unroll
        for (int i = 0; i < FS_WIDE_ROWS / 2; i++) sum[i] = fmaf(g.d[i], g.scale[i / 2 % 2], sum[i]);
    }

    /* Of 8 records (4 bits; 16 with 8 bits) lane t of four keeps two, or four: two groups of a token are a register. */
    FS_DEVICE_MEMBER void keep(int32_t record, int c, uint32_t g0, uint32_t g8) {
        const bool mine = (BITS == 4 ? record & 3 : record >> 1 & 3) == (threadIdx.x & 3),
                   second = BITS == 4 ? record & 4 : record & 8;
        const int shift = BITS == 4 ? 16 * c : 16 * (record & 1);
        if (mine && second) halves[2] |= g0 << shift, halves[3] |= g8 << shift;
        if (mine && !second) halves[0] |= g0 << shift, halves[1] |= g8 << shift;
    }

    FS_DEVICE_MEMBER uint4 take_halves() {
        const uint4 all = make_uint4(halves[0], halves[1], halves[2], halves[3]);
        halves[0] = halves[1] = halves[2] = halves[3] = 0;
        return all;
    }

    FS_DEVICE_MEMBER void take_scale(fs_wide_group<BITS> *g, const char *tail, int32_t record, int c) {
        const uint16_t *all = (const uint16_t *)tail;
        const int32_t at = (BITS == 4 ? 16 * c : 0) + (int32_t)(threadIdx.x & 31) / 4;
        const uint32_t g0 = all[at], g8 = all[at + 8];
        g->scale[0] = __uint_as_float(g0 << 16);
        g->scale[1] = __uint_as_float(g8 << 16);
        if (BITS == 4) keep(record, c, g0, g8);
        else keep(record, c, all[at + 16], all[at + 24]);
    }
};

/* Upper bounds of strips' logits to where the judges look. */
template <int BITS> struct fs_wide_consumer {
    typedef fs_wide_stage<BITS> stage;
    /* Groups of a record and product, which have accumulators of their own. Behind a tile: sums of bounds, and of what
     * the offset of the numbers adds to products. */
    static constexpr int GROUPS = BITS == 4 ? 2 : 1;
    const fs_cuda_args &args;
    const fs_wide_room<BITS> &room;
    const fs_wide_walk walk;
    fs_wide_sums<BITS> of[FS_PRODUCTS];
    fs_wide_group<BITS> group[GROUPS][FS_PRODUCTS];

    /* Of the tile's strips this warp's m-th. */
    static FS_DEVICE_MEMBER int32_t strip_of(int m) {
        return ((int32_t)threadIdx.x / 128 * FS_PRODUCTS + m) * 4 + (int32_t)threadIdx.x / 32 % 4;
    }

    static FS_DEVICE_MEMBER int32_t strip_at(int32_t n, int m) {
        return fs_wide_walk::strip(n, strip_of(m) / FS_UNIT_STRIPS) + strip_of(m) % FS_UNIT_STRIPS;
    }

    /* [i]: logit and bound of the lane's i-th; its row and token of the strip: */
    static FS_DEVICE_MEMBER int32_t row_of(int i) { return 8 * (i / 4) + 2 * (int32_t)(threadIdx.x & 3) + (i & 1); }
    static FS_DEVICE_MEMBER int32_t place_of(int i) { return (int32_t)(threadIdx.x & 31) / 4 + (i & 2 ? 8 : 0); }

    FS_DEVICE_MEMBER void give_back(int32_t at) const {
        __syncwarp();
        if ((threadIdx.x & 31) == 0) barrier_arrive(shared_address(&room.state->empty[at]));
    }

    /* Waits for all but the last LEFT chunks of a stage, and adds what is complete: product m's group of chunk c. */
    template <int LEFT> FS_DEVICE_MEMBER void end_group(int c, int m) {
        fs_wide_group<BITS> &g = group[c % GROUPS][m];
        wgmma_wait<LEFT>();
        g.are_here();
        if (BITS == 4 || c == 1) of[m].add(g);
    }

    /* A stage's products, chunk by chunk and 64 tokens by 64: while those before are on their way operands are made. */
    FS_DEVICE_MEMBER void add_record(int32_t at, int32_t record, uint32_t mask) {
        const char *h = room.ring + at * stage::BYTES;
        const uint32_t hidden = matrix_start(shared_address(h));
        const char *tail[FS_PRODUCTS];
        fs_wide_numbers<BITS> numbers[2][FS_PRODUCTS];
        uint32_t a[2][FS_PRODUCTS][4][4];
#pragma unroll
        for (int m = 0; m < FS_PRODUCTS; m++) {
            const int32_t strip = strip_of(m), own = strip % FS_UNIT_STRIPS;
            const char *w = h + stage::H + strip / FS_UNIT_STRIPS * stage::UNIT;
            const char *from = w + own * (BITS == 4 ? stage::RECORD : 1024);
            tail[m] = BITS == 4 ? from + 1024 : w + FS_UNIT_STRIPS * 2048 + own * FS_SCREEN_TAIL;
#pragma unroll
            for (int c = 0; c < 2; c++) numbers[c][m].load(from + c * (BITS == 4 ? 512 : FS_UNIT_STRIPS * 1024));
        }
#pragma unroll
        for (int c = 0; c < 2; c++)
#pragma unroll
            for (int m = 0; m < FS_PRODUCTS; m++) {
                fs_wide_group<BITS> &g = group[c % GROUPS][m];
                numbers[c][m].operand(a[c][m], mask);
                wgmma_fence();
#pragma unroll
                for (int k = 0; k < 4; k++) {
                    const uint64_t b = matrix_at(hidden, c * FS_WIDE_ROWS * 128 + 32 * k);
                    if (k == 0 && (BITS == 4 || c == 0)) wgmma_start_from(g.d, a[c][m][k], b);
                    else wgmma_add_from(g.d, a[c][m][k], b);
                }
                wgmma_commit();
                if (BITS == 4 || c == 0) of[m].take_scale(&g, tail[m], record, c);
            }
        if (BITS == 4) {
            end_group<3>(0, 0);
            end_group<2>(0, 1);
        }
        end_group<1>(1, 0);
        end_group<0>(1, 1);
        give_back(at);
    }

    FS_DEVICE_MEMBER void put_scales(int32_t block) {
        const int32_t lane = threadIdx.x & 31;
#pragma unroll
        for (int m = 0; m < FS_PRODUCTS; m++)
            room.scales[(strip_of(m) * room.blocks + block) * 32 + lane] = of[m].take_halves();
    }

    /* Products of what tokens and rows have of all groups. `rows`: the first of their operands. */
    FS_DEVICE_MEMBER void add_groups(const fs_wide_image &image, uint32_t rows) {
        float rest[FS_PRODUCTS][FS_WIDE_ROWS / 2]; /* of offsets, behind the first part: apart, so that it is small */
        add_block<true>(image, rows, 0, rest);
#pragma unroll 1
        for (int32_t block = 1; block < room.blocks; block++)
            add_block<false>(image, rows + (block / 4 * FS_WIDE_ROWS * 128 + block % 4 * 32) / 16, block, rest);
        if (BITS == 8) return;
#pragma unroll
        for (int m = 0; m < FS_PRODUCTS; m++)
#pragma unroll
            for (int i = 0; i < FS_WIDE_ROWS / 2; i++) of[m].sum[i] += group[GROUPS - 1][m].d[i] + rest[m][i];
    }

    template <bool FIRST>
    FS_DEVICE_MEMBER void add_block(const fs_wide_image &image, uint32_t rows, int32_t block,
                                    float (&rest)[FS_PRODUCTS][FS_WIDE_ROWS / 2]) {
        uint32_t a[FS_PRODUCTS][4], square[FS_PRODUCTS][4];
#pragma unroll
        for (int m = 0; m < FS_PRODUCTS; m++) {
            const uint4 own = room.scales[(strip_of(m) * room.blocks + block) * 32 + (threadIdx.x & 31)];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                a[m][i] = (&own.x)[i];
                square[m][i] = BITS == 4 ? squares_up(a[m][i]) : a[m][i];
            }
        }
        wgmma_fence();
#pragma unroll
        for (int m = 0; m < FS_PRODUCTS; m++) {
            multiply<FIRST>(group[0][m].d, square[m], rows);
            if (BITS == 8) continue;
            multiply<FIRST>(group[GROUPS - 1][m].d, a[m], rows + image.sum_bytes / 16);
            multiply<FIRST>(rest[m], a[m], rows + 2 * image.sum_bytes / 16);
            multiply<false>(rest[m], a[m], rows + 3 * image.sum_bytes / 16);
        }
        wgmma_commit();
        wgmma_wait<0>();
#pragma unroll
        for (int m = 0; m < FS_PRODUCTS; m++) {
            group[0][m].are_here();
            group[GROUPS - 1][m].are_here();
#pragma unroll
            for (int i = 0; BITS == 4 && i < FS_WIDE_ROWS / 2; i++) asm volatile("" : "+f"(rest[m][i])::"memory");
        }
    }

    template <bool FIRST>
    static FS_DEVICE_MEMBER void multiply(float (&d)[FS_WIDE_ROWS / 2], const uint32_t (&a)[4], uint32_t rows) {
        if (FIRST) wgmma_start_from(d, a, matrix_at(rows, 0));
        else wgmma_add_from(d, a, matrix_at(rows, 0));
    }

    /* Of two bf16, rounded up. */
    static FS_DEVICE_MEMBER uint32_t squares_up(uint32_t two) {
        const float low = __uint_as_float(two << 16), high = __uint_as_float(two & 0xFFFF0000u);
        return bf16_up(low * low) | bf16_up(high * high) << 16;
    }

    FS_DEVICE_MEMBER void find_bounds(float (&bound)[FS_WIDE_ROWS / 2], const float (&norm)[2]) {
#pragma unroll
        for (int i = 0; i < FS_WIDE_ROWS / 2; i++) {
            const int own = i & 2 ? 1 : 0;
            bound[i] = screened_bound<BITS>(args.screen.of, bound[i], norm[own], room.state->slack[row_of(i)]);
        }
    }

    FS_DEVICE_MEMBER void park(const float (&sum)[FS_WIDE_ROWS / 2], const float (&bound)[FS_WIDE_ROWS / 2],
                               int32_t strip, int32_t count) const {
#pragma unroll
        for (int i = 0; i < FS_WIDE_ROWS / 2; i++) {
            const float high = sum[i] + bound[i];
            uint32_t up = high != high ? 0x7FC0u : high > 0.0f ? bf16_up(high) : __float_as_uint(high) >> 16;
            if (place_of(i) >= count) up = 0xFF80u;
            room.state->parked[strip][row_of(i)][place_of(i)] = (uint16_t)up;
        }
    }

    /* Of each row the strip's token with the largest logit, of those of which something is known: an ordered float, the
     * last four bits its place; 0: none. */
    FS_DEVICE_MEMBER void find_likely(const float (&sum)[FS_WIDE_ROWS / 2], const float (&bound)[FS_WIDE_ROWS / 2],
                                      int32_t strip, int32_t count) const {
#pragma unroll
        for (int j = 0; j < FS_WIDE_ROWS / 4; j++) {
            const int i = j / 2 * 4 + j % 2; /* and i + 2: two tokens of a row */
            uint32_t key = 0;
#pragma unroll
            for (int own = i; own < i + 4; own += 2)
                if (place_of(own) < count && fabsf(sum[own]) < INFINITY && bound[own] < INFINITY)
                    key = max(key, (ordered_float(sum[own]) & ~15u) | (uint32_t)place_of(own));
#pragma unroll
            for (int apart = 4; apart < 32; apart *= 2) key = max(key, __shfl_xor_sync(~0u, key, apart));
            if ((threadIdx.x & 31) < 4) room.state->likely[strip][row_of(i)] = key;
        }
    }

    FS_DEVICE_MEMBER void queue(const float (&sum)[FS_WIDE_ROWS / 2], const float (&bound)[FS_WIDE_ROWS / 2],
                                int32_t strip, int32_t first, int32_t count) const {
        const int32_t lane = threadIdx.x & 31;
#pragma unroll
        for (int i = 0; i < FS_WIDE_ROWS / 2; i++) {
            const float high = sum[i] + bound[i];
            const float least = room.state->threshold[1][strip][row_of(i)];
            const bool passes = place_of(i) < count && least < INFINITY && !(high <= least);
            const uint32_t who = __ballot_sync(~0u, passes);
            if (!who) continue;
            int32_t at = 0;
            if (lane == 0) at = atomicAdd(&room.state->queued, __popc(who));
            at = __shfl_sync(~0u, at, 0) + __popc(who & ((1u << lane) - 1));
            if (!passes) continue;
            const fs_contender c = {sum[i], bound[i], (uint32_t)(first + place_of(i)), row_of(i)};
            if (at < FS_QUEUED) room.state->queue[at] = c;
            else {
                /* Settled without being judged. */
                const uint32_t place = atomicAdd(&args.work[c.row].max, 1u);
                if (place < FS_CUDA_SCREENED)
                    args.screen.entry[c.row * FS_CUDA_SCREENED + place] = {INFINITY, -INFINITY, c.token, 0};
            }
        }
    }

    FS_DEVICE_MEMBER void run(const fs_wide_image &image) {
        const int32_t lane = threadIdx.x & 31;
        const fs_screen &s = args.screen.of;
        const int32_t first_token = (int32_t)args.head.first_token,
                      end = (int32_t)min(args.head.first_token + args.head.rows, (int64_t)args.vocab);
        const uint32_t mask = operand_mask<BITS>(), rows = matrix_start(shared_address(room.sums));
        uint32_t parity = 0;
        int32_t used = 0, at = 0;
        for (int32_t n = 0; n < walk.tiles; n++) {
#pragma unroll
            for (int m = 0; m < FS_PRODUCTS; m++) of[m].clear();
            const bool here = walk.has(n, __shfl_sync(~0u, strip_of(0) / FS_UNIT_STRIPS, 0));
            float norm[FS_PRODUCTS][2]; /* of the lane's tokens, long before they are needed */
#pragma unroll
            for (int m = 0; m < FS_PRODUCTS; m++) {
                const int32_t strip = min(strip_at(n, m), (int32_t)screen_strips(s.rows) - 1);
                const fs_strip_head *head = strip_head(screen_strip(&s, strip));
                norm[m][0] = __ldg(&head->norm[lane / 4]);
                norm[m][1] = __ldg(&head->norm[lane / 4 + 8]);
            }
#pragma unroll 1
            for (int32_t block = 0, record = 0; record < image.records; block++) {
                const int32_t to = min(image.records, record + FS_BLOCK_RECORDS<BITS>);
#pragma unroll 1
                for (; record < to; record++, used++) {
                    if (!room.wait_or_stop(at, parity, used)) return;
                    if (here) add_record(at, record, mask);
                    else give_back(at);
                    if (++at == room.stages) at = 0, parity ^= 1;
                }
                put_scales(block);
            }
            if (n == 0) {
                barrier_wait(shared_address(&room.state->sums), 0);
                named_barrier(FS_ROWS_OPEN, fs_wide_room<BITS>::AT_ROWS_OPEN);
            }
            add_groups(image, rows);
            if (n > 0 && !room.wait(&room.state->ready, (uint32_t)(n - 1) & 1)) return;
#pragma unroll
            for (int m = 0; m < FS_PRODUCTS; m++) {
                const int32_t in_tile = strip_of(m), first = first_token + strip_at(n, m) * FS_SCREEN_TOKENS;
                const int32_t count = walk.has(n, in_tile / FS_UNIT_STRIPS) ? max(0, min(FS_SCREEN_TOKENS, end - first))
                                                                            : 0;
                float(&bound)[FS_WIDE_ROWS / 2] = group[0][m].d;
                find_bounds(bound, norm[m]);
                if (n == 0) {
                    park(of[m].sum, bound, in_tile, count);
                    find_likely(of[m].sum, bound, in_tile, count);
                } else queue(of[m].sum, bound, in_tile, first, count);
            }
            __syncwarp();
            if (lane == 0) barrier_arrive(shared_address(&room.state->handed));
        }
    }
};

#endif
