#!/usr/bin/env python3
"""Predicted step times over ranks, from the measured times of one H200 (docs/results/h200.md) and assumed networks:
Markdown on stdout.

    pass(R)      f + w * waves(R): W's tiles of 128 tokens over 132 processors per rank; f and w from one rank's time
    all-reduce   2 a ceil(log2 R) + bytes / b        bytes = 16 + 8 B
    all-gather   a ceil(log2 R) + (R - 1) bytes / b  what every rank receives
    ours         pass + all-reduce + finish
    usual        pass + all-gather of float32 logits [B, V/R] + the sampler over whole rows
"""
import math

V, TILE, PROCESSORS = 151_936, 128, 132
# Measured, H200, D = 4,096, microseconds: our call; the read ceiling, which is what scales with W; sampler over stored
# logits.
OURS, CEILING, SAMPLER = {1: 283.8, 64: 290.5, 256: 450.3}, 276.4, {1: 10.4, 64: 25.6, 256: 56.0}
FIXED = OURS[1] - CEILING  # start and end of a launch: what one row costs beyond the read
# Assumed: latency of one step in microseconds and bandwidth per rank in bytes per microsecond, as software sees them.
NETWORKS = {"NVLink": (2.0, 150e3), "InfiniBand": (5.0, 40e3), "Ethernet": (30.0, 10e3)}
FINISH = 4.0  # assumed: the launch after the collective
RANKS = (1, 2, 4, 8, 16, 64, 256, 1024)


def waves(ranks):
    return math.ceil(math.ceil(V / TILE) / (PROCESSORS * ranks))


def pass_us(B, ranks):
    return FIXED + (OURS[B] - FIXED) * waves(ranks) / waves(1)


def steps(ranks):
    return math.ceil(math.log2(ranks)) if ranks > 1 else 0


def all_reduce_us(ranks, size, network):
    a, b = NETWORKS[network]
    return 2 * a * steps(ranks) + (size / b if ranks > 1 else 0)


def all_gather_us(ranks, size, network):
    a, b = NETWORKS[network]
    return a * steps(ranks) + (ranks - 1) * size / b


def main():
    for B in OURS:
        print(f"\n### B = {B}\n\n| ranks | pass | {' | '.join(f'{n}: ours | {n}: usual' for n in NETWORKS)} |")
        print("|---" * (2 + 2 * len(NETWORKS)) + "|")
        for ranks in RANKS:
            cells = []
            for network in NETWORKS:
                ours = pass_us(B, ranks) + all_reduce_us(ranks, 16 + 8 * B, network) + FINISH
                usual = pass_us(B, ranks) + all_gather_us(ranks, B * V * 4 / ranks, network) + SAMPLER[B]
                cells += [f"{ours:,.0f}", f"{usual:,.0f}"]
            print(f"| {ranks:,} | {pass_us(B, ranks):,.0f} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
