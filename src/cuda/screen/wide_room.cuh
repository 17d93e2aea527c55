/* wide_room.cuh - shared memory of the pass over a screen for many rows, the tiles of a CTA, and the copies. */
#ifndef FS_CUDA_SCREEN_WIDE_ROOM_CUH
#define FS_CUDA_SCREEN_WIDE_ROOM_CUH

#include "cuda/screen/image.cuh"

constexpr int FS_WIDE_JUDGES = 3;                                 /* warps */
constexpr int FS_PRODUCTS = 2;                                    /* of 64 tokens, of a warpgroup */
constexpr int FS_UNIT_STRIPS = FS_NOISE_BLOCK / FS_SCREEN_TOKENS; /* a noise block, for two warpgroups */
constexpr int FS_TILE_UNITS = 2, FS_TILE_STRIPS = FS_TILE_UNITS * FS_UNIT_STRIPS;
constexpr int FS_QUEUED = 1280; /* contenders of a tile; what is more is listed as it is */
constexpr int FS_WIDE_STAGES_MOST = 8;
constexpr int FS_ROWS_OPEN = 2;              /* the named barrier behind which judges have put the rows' slacks */
constexpr uint32_t FS_WIDE_PATIENCE = 40000; /* nanoseconds to wait for the first scores of all CTAs */

/* Shared memory behind the ring, and what is multiplied behind a tile. */
struct fs_wide_state {
    unsigned long long full[FS_WIDE_STAGES_MOST], empty[FS_WIDE_STAGES_MOST];
    unsigned long long sums;   /* operands of all groups are there */
    unsigned long long handed; /* consumers have handed on a tile, */
    unsigned long long ready;  /* judges are done with the one before, and thresholds are there */
    int32_t over;              /* a row is open, so W is read for all of them */
    int32_t stop;              /* stages that are copied; the largest number as long as it goes on */
    int32_t queued;
    fs_contender queue[FS_QUEUED];
    float threshold[2][FS_TILE_STRIPS]
                   [FS_WIDE_ROWS];                 /* of the first tile, and of the one at hand; +inf: nobody passes */
    uint32_t likely[FS_TILE_STRIPS][FS_WIDE_ROWS]; /* of the first tile: the strip's largest logit and its place */
    __align__(16) uint16_t parked[FS_TILE_STRIPS][FS_WIDE_ROWS][FS_SCREEN_TOKENS];
    fs_draw draw[FS_WIDE_ROWS];
    float slack[FS_WIDE_ROWS];
};

/* Blocks of records, whose numbers for bounds are an A operand. */
template <int BITS> constexpr int FS_BLOCK_RECORDS = BITS == 4 ? 8 : 16;
template <int BITS> FS_CORE int32_t wide_blocks(const fs_wide_image *image) {
    return (image->records + FS_BLOCK_RECORDS<BITS> - 1) / FS_BLOCK_RECORDS<BITS>;
}

/* Bytes of a stage, a record of H and of two units: W's part begins a multiple of 128 on. */
template <int BITS> struct fs_wide_stage {
    static constexpr int RECORD = FS_SCREEN_TOKENS * FS_SCREEN_SPAN * BITS / 8 + FS_SCREEN_TAIL;
    static constexpr int H = FS_IMAGE_RECORD, UNIT = FS_UNIT_STRIPS * RECORD;
    static constexpr int BYTES = (H + FS_TILE_UNITS * UNIT + 1023) / 1024 * 1024;
    static_assert(H % 128 == 0 && UNIT % 128 == 0, "the copy engine's addresses");
};

template <int BITS> FS_CORE int64_t wide_fixed_bytes(const fs_wide_image *image) {
    return image->sums * image->sum_bytes + (int64_t)wide_blocks<BITS>(image) * FS_TILE_STRIPS * 512 +
           (int64_t)sizeof(fs_wide_state);
}

template <int BITS> FS_CORE int64_t wide_bytes(const fs_wide_image *image, int32_t stages) {
    return 1024 + wide_fixed_bytes<BITS>(image) + (int64_t)stages * fs_wide_stage<BITS>::BYTES;
}

template <int BITS> FS_CORE int32_t wide_stages(const fs_wide_image *image, int32_t shared_bytes) {
    const int64_t left = shared_bytes - wide_bytes<BITS>(image, 0);
    const int64_t stages = left > 0 ? left / fs_wide_stage<BITS>::BYTES : 0;
    return (int32_t)(stages < FS_WIDE_STAGES_MOST ? stages : FS_WIDE_STAGES_MOST);
}

template <int BITS> struct fs_wide_room {
    typedef fs_wide_stage<BITS> stage;
    static constexpr int CONSUMERS = FS_TILE_STRIPS / FS_PRODUCTS, THREADS = 32 * (CONSUMERS + FS_WIDE_JUDGES + 1);
    static constexpr int AT_ROWS_OPEN = 32 * (CONSUMERS + FS_WIDE_JUDGES); /* threads */
    char *ring, *sums;
    uint4 *scales; /* [strips][blocks][32]: what tokens have of a group, as lanes take it for an A operand */
    fs_wide_state *state;
    int32_t stages, blocks;

    FS_DEVICE_MEMBER fs_wide_room(char *shared, const fs_wide_image &image, int32_t stages)
        : stages(stages), blocks(wide_blocks<BITS>(&image)) {
        ring = shared + (1024 - shared_address(shared) % 1024) % 1024;
        sums = ring + stages * stage::BYTES;
        scales = (uint4 *)(sums + image.sums * image.sum_bytes);
        state = (fs_wide_state *)(scales + blocks * FS_TILE_STRIPS * 32);
    }

    FS_DEVICE_MEMBER const fs_draw &draw(int32_t b) const { return state->draw[b]; }
    FS_DEVICE_MEMBER float slack(int32_t b) const { return state->slack[b]; }
    FS_DEVICE_MEMBER const char *hidden(const fs_cuda_args &args, int32_t b) const {
        const fs_matrix m = hidden_of_batch(&args.head, &args.batch);
        return matrix_row(&m, args.first_row + b);
    }
    FS_DEVICE_MEMBER bool over() const { return *(volatile const int32_t *)&state->over; }
    FS_DEVICE_MEMBER int32_t stop() const { return *(volatile const int32_t *)&state->stop; }

    /* Waits for a phase; not if it is all over and was before the phase: all of a warpgroup have one answer. */
    FS_DEVICE_MEMBER bool wait(unsigned long long *barrier, uint32_t parity) const {
        while (!barrier_wait_for(shared_address(barrier), parity, 1000))
            if (over()) return barrier_is_over(shared_address(barrier), parity);
        return true;
    }

    /* Waits for the stage that is the `used`-th to be copied; not if it will not be. */
    FS_DEVICE_MEMBER bool wait_or_stop(int32_t at, uint32_t parity, int32_t used) const {
        while (!barrier_wait_for(shared_address(&state->full[at]), parity, 1000))
            if (used >= stop()) return false;
        return true;
    }
};

/* Which units of 128 tokens this CTA takes: in turn, so that all read one stretch of the screen at a time. */
struct fs_wide_walk {
    int32_t units, tiles; /* of this CTA */

    FS_DEVICE_MEMBER explicit fs_wide_walk(const fs_screen &s) {
        const int32_t all = (int32_t)((s.rows + FS_NOISE_BLOCK - 1) / FS_NOISE_BLOCK);
        units = (all - (int32_t)blockIdx.x + (int32_t)gridDim.x - 1) / (int32_t)gridDim.x;
        tiles = (units + FS_TILE_UNITS - 1) / FS_TILE_UNITS;
    }

    /* The first strip of unit u of tile n. */
    static FS_DEVICE_MEMBER int32_t strip(int32_t n, int32_t u) {
        return ((FS_TILE_UNITS * n + u) * (int32_t)gridDim.x + (int32_t)blockIdx.x) * FS_UNIT_STRIPS;
    }

    FS_DEVICE_MEMBER bool has(int32_t n, int32_t u) const { return FS_TILE_UNITS * n + u < units; }
};

/* ------------------------------------------------------------------------------------------------------ copies ---- */

/* One thread. */
template <int BITS>
FS_DEVICE void wide_copies(const fs_cuda_args &args, const fs_wide_maps &maps, const fs_wide_image &image,
                           const char *from, const fs_wide_room<BITS> &room) {
    typedef fs_wide_stage<BITS> stage;
    const fs_wide_walk walk(args.screen.of);
    const int32_t records = image.records;
    int32_t issued = 0, stages = room.stages;
    bool waited = !(args.head.flags & FS_HEAD_CONSTANT);
    async_proxy_fence();
    if (waited) wait_for_earlier_launches();
    for (int32_t n = 0; n < walk.tiles; n++)
        for (int32_t record = 0; record < records; record++, issued++) {
            const int32_t at = issued % stages;
            const uint32_t barrier = shared_address(&room.state->full[at]);
            if (!room.wait(&room.state->empty[at], (issued / stages & 1) ^ 1)) goto drain;
            if (room.over()) goto drain;
            const int32_t units = min(FS_TILE_UNITS, walk.units - FS_TILE_UNITS * n);
            const uint32_t to = shared_address(room.ring + at * stage::BYTES);
            barrier_expect(barrier, (uint32_t)(FS_IMAGE_RECORD + units * stage::UNIT));
            for (int32_t u = 0; u < units; u++) {
                const uint32_t w = to + stage::H + u * stage::UNIT;
                const int32_t strip = fs_wide_walk::strip(n, u);
                if constexpr (BITS == 4) copy_box_3d(w, &maps.numbers, barrier, 0, record, strip);
                else {
                    copy_box_3d(w, &maps.numbers, barrier, 0, record, strip);
                    copy_box_3d(w + FS_UNIT_STRIPS * 1024, &maps.numbers, barrier, 128, record, strip);
                    copy_box_3d(w + FS_UNIT_STRIPS * 2048, &maps.tails, barrier, 256, record, strip);
                }
            }
            if (!waited) wait_for_earlier_launches();
            waited = true;
            if (issued == 0) {
                const uint32_t sums = shared_address(&room.state->sums),
                               bytes = (uint32_t)(image.sums * image.sum_bytes);
                barrier_expect(sums, bytes);
                copy_bytes(shared_address(room.sums), from + image.sums_at, bytes, sums);
            }
            copy_bytes(to, from + record * FS_IMAGE_RECORD, FS_IMAGE_RECORD, barrier);
        }
drain:
    /* Whether or not somebody uses what is on its way, it has to arrive before this CTA is gone. */
    *(volatile int32_t *)&room.state->stop = issued;
    for (int32_t i = max(0, issued - stages); i < issued; i++)
        barrier_wait(shared_address(&room.state->full[i % stages]), i / stages & 1);
    if (issued > 0) barrier_wait(shared_address(&room.state->sums), 0);
}

#endif
