"""The LM head is split over processes that have a transport of their own: here pipes, elsewhere torch.distributed,
Gloo, UCX.

    python3 own_transport.py 3        # the number of processes; the tokens are the same for any

Each process makes a part from its shard, parts are gathered, and everyone merges them. The library needs no more than
that from a transport: all_gather below could be torch.distributed.all_gather of uint8 tensors, or comm.allgather of
mpi4py.
"""
import multiprocessing
import sys

import numpy as np

import flashsampling as fs

B, D, V, STEPS = 4, 64, 5003, 4
SEED = 42


class Ranks:
    """An all-gather over pipes: rank 0 collects, and sends everyone everything."""

    def __init__(self, rank, count, pipes):
        self.rank, self.count = rank, count
        self.peers = [pipe[0] for pipe in pipes] if rank == 0 else [pipes[rank - 1][1]]

    def all_gather(self, mine):
        if self.rank:
            self.peers[0].send_bytes(mine)
            return [self.peers[0].recv_bytes() for _ in range(self.count)]
        parts = [bytes(mine)] + [peer.recv_bytes() for peer in self.peers]
        for peer in self.peers:
            for part in parts:
                peer.send_bytes(part)
        return parts


def draw(context, ranks, head, hidden, position):
    """fs_partial, the caller's transport, fs_merge; rows whose cut is wider than the lists go round again, with longer
    ones."""
    capacity = 0
    while True:
        rules = dict(temperature=0.8, top_p=0.95, seed=SEED, position=position, list_capacity=capacity)
        batch = fs.Batch(head, hidden, **rules)
        parts = ranks.all_gather(context.partial(head, batch, outputs=("logprob",)))
        result = context.merge(parts, head, batch, outputs=("logprob",), on_error="status")
        if not (result.status & fs.Row.INCOMPLETE).any():
            return result.check()
        capacity = 4 * capacity or 4096  # every process saw the same parts, so every one comes here


def run(rank, count, pipes):
    ranks = Ranks(rank, count, pipes)
    generator = np.random.default_rng(1)
    W, H = generator.standard_normal((V, D), np.float32), generator.standard_normal((B, D), np.float32) / 4
    first, last = (V * r // count // 16 * 16 if r < count else V for r in (rank, rank + 1))
    head = fs.Head(W[first:last], first_token=first, vocab=V)
    with fs.Context("cpu", threads=1) as context:
        for position in range(STEPS):
            result = draw(context, ranks, head, H, position)
            if rank == 0:
                print("step %d: tokens %s" % (position, " ".join(str(t) for t in result.tokens[:, 0])), flush=True)


if __name__ == "__main__":
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    pipes = [multiprocessing.Pipe() for _ in range(count - 1)]
    processes = [multiprocessing.Process(target=run, args=(r, count, pipes), daemon=True) for r in range(count)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    sys.exit(any(process.exitcode != 0 for process in processes))
