/* contest.cuh - who may win of those whose logits a screen gives within bounds: what judges of every pass do with a
 * token. */
#ifndef FS_CUDA_SCREEN_CONTEST_CUH
#define FS_CUDA_SCREEN_CONTEST_CUH

#include "cuda/screen/row.cuh"

/* What the numbers of 4 bits are more by in the products: 128, and the 8 they are stored with. */
constexpr float FS_OFFSET = 136.0f;

/* A token that may win: its logit by the screen, and the bound of that. */
struct fs_contender {
    float l, bound;
    uint32_t token;
    int32_t row;
};

/* screen_bound of core/screen.h, with a root that is right to 2^-22. */
template <int BITS> FS_DEVICE float screened_bound(const fs_screen &s, float sum, float norm, float slack) {
    float root = sum;
    if (BITS == 4) asm("sqrt.approx.f32 %0, %1;" : "=f"(root) : "f"(sum));
    const float spread = BITS == 4 ? s.reach * root * (1.0f + 0x1p-20f) : sum;
    return (spread + norm * slack) * FS_SCREEN_WIDER + 1e-17f;
}

/* ROOM: what is in shared memory of the rows: draw(b), slack(b), hidden(args, b). */
template <class ROOM, bool RULES> struct fs_contest {
    const fs_cuda_args &args;
    const ROOM &room;
    const bool shaped;
    bool dry; /* nothing is told: the instructions alone are wanted */

    /* From a dot product, or a bound of it, to the logit, or a bound: up or down. */
    FS_DEVICE_MEMBER float logit(float x, uint32_t token, float way) const {
        return shaped ? shaped_logit(args.head, x, token, way) : x;
    }

    FS_DEVICE_MEMBER float edited(const fs_contender &c, float x) const {
        return RULES ? edited_logit(args, room.draw(c.row), c.row, c.token, x) : x;
    }

    FS_DEVICE_MEMBER float noise_of(int32_t b, uint32_t token) const {
        const fs_draw &draw = room.draw(b);
        return is_greedy(draw) ? 0.0f : noise_about(draw_token(draw.noise, token));
    }

    /* What is known of a score, of a token with this noise. */
    FS_DEVICE_MEMBER float least_score(const fs_contender &c, float noise) const {
        const float y = edited(c, logit(c.l - c.bound, c.token, -1.0f));
        return score_of(y * room.draw(c.row).inverse, noise).least;
    }

    FS_DEVICE_MEMBER float likely_score(const fs_contender &c, float noise) const {
        return edited(c, logit(c.l, c.token, 0.0f)) * room.draw(c.row).inverse + noise;
    }

    /* The row has at least this score; and a token that looks so good. Whether none has looked better. */
    FS_DEVICE_MEMBER bool tell(const fs_contender &c, float least, float likely) const {
        if (least > -INFINITY && !dry) atomicMax(&args.work[c.row].bound, ordered_float(least));
        const unsigned long long key = (unsigned long long)ordered_float(likely) << 32 | c.token;
        if (!(likely > -INFINITY) || dry) return dry;
        return atomicMax(&args.work[c.row].rough, key) < key;
    }

    /* A place in row b's list for every lane that wants one, its length or more if there is none. One lane of a row
     * asks for all of them: everybody asks for the same few numbers, which change one at a time. */
    FS_DEVICE_MEMBER uint32_t place_in_list(int32_t b, bool wanted) const {
        const uint32_t lane = threadIdx.x & 31, same = __match_any_sync(~0u, wanted ? b : -1);
        const int who = __ffs(same) - 1;
        uint32_t at = FS_CUDA_SCREENED;
        if (wanted && !dry && (int)lane == who) at = atomicAdd(&args.work[b].max, (uint32_t)__popc(same));
        return __shfl_sync(~0u, at, who) + (uint32_t)__popc(same & ((1u << lane) - 1));
    }

    /* One token each, of lanes that are `here`: listed if it may win. `best` is its row's best score, `most` how its
     * best one looks. `most_known`: l is not below the logit, and nothing else is known. Whether it looks better. */
    FS_DEVICE_MEMBER bool judge(const fs_contender &c, float noise, bool here, float best, float most,
                                bool most_known = false) const {
        const float high = edited(c, logit(c.l + c.bound, c.token, 1.0f)) * room.draw(c.row).inverse;
        const float upper = score_of(high, noise).most;
        const bool may = here && !(upper < best);
        const uint32_t at = place_in_list(c.row, may);
        if (!may) return false;
        const float least = most_known ? -INFINITY : least_score(c, noise), likely = likely_score(c, noise);
        if (at < FS_CUDA_SCREENED)
            args.screen.entry[(int64_t)c.row * FS_CUDA_SCREENED + at] = {upper, least, c.token, 0};
        return !most_known && (least > best || likely > most) && tell(c, least, likely);
    }

    /* The logit from W, in float, whatever the order of its sum, of the contender of lane `from`: a score that its row
     * has. By all lanes. */
    FS_DEVICE_MEMBER void refine(const fs_contender &c, float noise, int from) const {
        const uint32_t token = __shfl_sync(~0u, c.token, from);
        const int32_t b = __shfl_sync(~0u, c.row, from), lane = threadIdx.x & 31;
        const float dot = dot_of_token(args.head, token, room.hidden(args, b));
        if (lane != from) return;
        const fs_contender exact = {dot, dot_bound(args, token, room.slack(b)), token, b};
        const float least = least_score(exact, noise);
        if (least > -INFINITY && !dry) atomicMax(&args.work[b].bound, ordered_float(least));
    }

    FS_DEVICE_MEMBER void refine_all(const fs_contender &c, float noise, bool better) const {
#pragma unroll 1
        for (uint32_t who = __ballot_sync(~0u, better); who; who &= who - 1) refine(c, noise, __ffs(who) - 1);
    }

    /* Waits for all judges of the launch, so many of each CTA, to have counted `so often`, but not for ever, some
     * nanoseconds: what is not known yet makes lists longer, and nothing else. */
    FS_DEVICE_MEMBER void meet(uint32_t so_often, uint32_t judges, uint32_t patience) const {
        if (dry) return;
        __threadfence();
        __syncwarp();
        if ((threadIdx.x & 31) == 0) {
            atomicAdd(&args.work->seeded, 1u);
            const uint64_t start = nanoseconds();
            const uint32_t all = gridDim.x * judges * so_often;
            while (load_relaxed(&args.work->seeded) < all && nanoseconds() - start < patience) {
            }
        }
        __syncwarp();
    }
};

#endif
