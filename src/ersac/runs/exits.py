"""How a command can end: the exit codes, the errors that carry them, and the signals that ask for it."""

import os
import signal
import threading
from types import TracebackType
from typing import Any

from ersac.config import SettingsError

OK, SETTINGS, NON_FINITE, IO, RESUMABLE = 0, 2, 3, 74, 75
SIGNALS = (signal.SIGINT, signal.SIGTERM)


class NonFinite(ArithmeticError):
    """A number that is not one; its text names the tensor, the seed and the step."""


class Resumable(Exception):
    """A run that broke off for a reason of its own and can be continued."""


class Stopped(Exception):
    """A run that a signal ended, after it was saved."""

    def __init__(self, number: int, text: str) -> None:
        super().__init__(text)
        self.number = number


EXPECTED = (
    SettingsError,
    NonFinite,
    OSError,
    Resumable,
    Stopped,
)  # each is one line for the person at the shell


def exit_code(error: BaseException) -> int:
    """The exit code of an expected error."""
    match error:
        case SettingsError():
            return SETTINGS
        case NonFinite():
            return NON_FINITE
        case Stopped():
            return signal_exit_code(error.number)
        case Resumable():
            return RESUMABLE
    return IO


def signal_exit_code(number: int) -> int:
    """The exit code of whoever leaves because of a signal."""
    return 128 + number


class SignalWatcher:
    """Sees SIGINT and SIGTERM while the main thread is inside a compiled call, where Python's own handlers wait.

    Once somebody asks `poll`, the first signal is kept for the next time it asks, and the second leaves at once. Before that
    there is nothing to save, so the first one leaves at once.
    """

    def __init__(self) -> None:
        self._received = 0
        self._polled = False

    def poll(self) -> int:
        """The signal that came, or 0. Whoever asks will ask again soon."""
        self._polled = True
        return self._received

    def __enter__(self) -> "SignalWatcher":
        """Begin to listen."""
        listen, speak = os.pipe()
        os.set_blocking(speak, False)
        self._speak, self._before_fd = speak, signal.set_wakeup_fd(speak, warn_on_full_buffer=False)
        self._before: dict[int, Any] = {
            number: signal.signal(number, lambda *_: None) for number in SIGNALS
        }
        threading.Thread(target=self._listen, args=(listen,), daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leave signals as they were."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._before_fd)
        os.close(self._speak)  # ends the thread

    def _listen(self, listen: int) -> None:
        while heard := os.read(listen, 1):
            if heard[0] not in SIGNALS:
                continue
            if self._received or not self._polled:
                if os.isatty(1):
                    os.write(1, b"\x1b[?25h")  # a live table hides the cursor
                os.write(2, b"ersac: left at once\n")
                os._exit(signal_exit_code(heard[0]))
            self._received = heard[0]
        os.close(listen)
