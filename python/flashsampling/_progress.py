"""Progress: a progress function as C calls it, which can stop the call."""
import signal
import threading
from collections.abc import Callable
from typing import Any

from . import _c


class Progress:
    """`function(done, rows)`, or None, for the calls of one `with` block. An exception of the function stops the call
    of C, and so does Ctrl-C; it is raised when C has returned.

    Python would run a handler of SIGINT as soon as C calls back, before any `try` there, and ctypes would print the
    KeyboardInterrupt and go on. So signals are kept until the function can handle them.
    """

    def __init__(self, function: Callable[[int, int], object] | None) -> None:
        self.function = function
        self.error: BaseException | None = None
        self.signals: list[tuple[int, Any]] = []
        self.handler: Any = None
        self.in_c = _c.ProgressFunction(self._call)

    def _call(self, user: int | None, done: int, rows: int) -> int:
        try:
            if self.function:
                self.function(done, rows)
            self._handle_signals()
        except BaseException as error:
            self.error = error
        return int(self.error is not None)

    def _handle_signals(self) -> None:
        while self.signals:
            self.handler(*self.signals.pop())

    def __enter__(self) -> "Progress":
        if threading.current_thread() is threading.main_thread():  # Python runs handlers there alone
            self.handler = signal.getsignal(signal.SIGINT)
        if callable(self.handler):
            signal.signal(signal.SIGINT, lambda *received: self.signals.append(received))
        return self

    def __exit__(self, *_: object) -> None:
        if callable(self.handler):
            signal.signal(signal.SIGINT, self.handler)
        if self.error is not None:
            raise self.error from None
        self._handle_signals()
