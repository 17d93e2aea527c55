"""Ranks as threads of one process."""
import threading


def on_ranks(ranks, local, barrier, function):
    """function(rank) of every rank, each in a thread whose local.rank is its own; what the first one raises is raised,
    and those that wait at the barrier are let go."""
    results, errors = [None] * ranks, []

    def run(rank):
        local.rank = rank
        try:
            results[rank] = function(rank)
        except BaseException as error:
            errors.append(error)
            barrier.abort()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results
