"""NCCL and our transport for it, through ctypes: a communicator of processes that may share one device."""
import ctypes
import os
import time

import flashsampling as fs
from flashsampling import _c

MAY_ABORT = 1
# Processes that share a device: NCCL takes them for machines of their own and goes over sockets.
SHARING = {"NCCL_SOCKET_IFNAME": "lo", "NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}


class UniqueId(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 128)]


def load():
    """libflashsampling_nccl beside the library, and the NCCL it is linked to (torch's, where torch has loaded one)."""
    folder = os.path.dirname(os.path.abspath(_c.library()._name))
    nccl = ctypes.CDLL("libnccl.so.2", mode=ctypes.RTLD_GLOBAL)
    ours = ctypes.CDLL(os.path.join(folder, "libflashsampling_nccl.so"))
    ours.fs_nccl_open.argtypes = [ctypes.c_void_p, ctypes.c_uint32, ctypes.POINTER(ctypes.c_void_p)]
    ours.fs_nccl_close.argtypes, ours.fs_nccl_close.restype = [ctypes.c_void_p], None
    ours.fs_nccl_poll.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_double, ctypes.POINTER(ctypes.c_int32)]
    ours.fs_nccl_error_text.restype = ctypes.c_char_p
    nccl.ncclCommInitRank.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_int, UniqueId, ctypes.c_int]
    nccl.ncclGetErrorString.restype = ctypes.c_char_p
    return nccl, ours


class Ranks:
    """fs_ranks of a new communicator; `folder` is where processes tell each other its id."""

    def __init__(self, rank, count, folder, flags=0):
        self.nccl, self.ours = load()
        self.comm, self.ranks = ctypes.c_void_p(), ctypes.c_void_p()
        self._check(self.nccl.ncclCommInitRank(ctypes.byref(self.comm), count, self._share_id(rank, folder), rank))
        if self.ours.fs_nccl_open(self.comm, flags, ctypes.byref(self.ranks)) != 0:
            raise RuntimeError(self.ours.fs_nccl_error_text().decode())
        self.address = self.ranks.value

    def _check(self, result):
        if result != 0:
            raise RuntimeError("nccl: %s" % self.nccl.ncclGetErrorString(result).decode())

    def _share_id(self, rank, folder):
        path, id_ = os.path.join(folder, "nccl-id"), UniqueId()
        if rank == 0:
            self._check(self.nccl.ncclGetUniqueId(ctypes.byref(id_)))
            with open(path + ".new", "wb") as file:
                file.write(bytes(id_))
            os.rename(path + ".new", path)
            return id_
        for _ in range(600):
            if os.path.exists(path):
                with open(path, "rb") as file:
                    return UniqueId.from_buffer_copy(file.read())
            time.sleep(0.1)
        raise RuntimeError("rank 0 has left no id")

    def poll(self, stream, seconds):
        """(status, done) of fs_nccl_poll."""
        done = ctypes.c_int32(-1)
        return self.ours.fs_nccl_poll(self.ranks, stream, seconds, ctypes.byref(done)), done.value

    def close(self):
        self.ours.fs_nccl_close(self.ranks)
        self._check(self.nccl.ncclCommDestroy(self.comm))


def shards(vocab, count, how="even"):
    """[(first, last)] of every rank, at multiples of 128 ids. "uneven": rank 0 has half; "empty": the last has
    nothing."""
    if how == "empty" and count > 1:
        return shards(vocab, count - 1) + [(vocab, vocab)]
    share = [vocab * r // count for r in range(count)]
    if how == "uneven" and count > 1:
        share = [0] + [vocab // 2 + (vocab - vocab // 2) * r // (count - 1) for r in range(count - 1)]
    cuts = [s // 128 * 128 for s in share] + [vocab]
    return list(zip(cuts, cuts[1:]))


Row = fs.Row
