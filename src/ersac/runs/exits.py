"""Exit codes, the errors that have one, and the signals SIGINT and SIGTERM."""

import os
import signal
import threading
from types import TracebackType
from typing import Any

from ersac.config import SettingsError

OK, SETTINGS, NON_FINITE, IO, RESUMABLE = 0, 2, 3, 74, 75
SIGNALS = (signal.SIGINT, signal.SIGTERM)


class NonFinite(ArithmeticError):
    """A NaN or an infinity; the text names the tensor, the seed and the step."""


class Resumable(Exception):
    """A run that failed after a checkpoint and can be resumed."""


class Stopped(Exception):
    """A run that was stopped by a signal, after a checkpoint."""

    def __init__(self, number: int, text: str) -> None:
        super().__init__(text)
        self.number = number


# Errors that the command line prints as one line, without a traceback.
EXPECTED = (SettingsError, NonFinite, OSError, Resumable, Stopped)


def exit_code(error: BaseException) -> int:
    """Return the exit code of an expected error."""
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
    """Return the exit code of a process that a signal ended."""
    return 128 + number


def printable(text: str) -> str:
    """Return text with escapes for control characters and for bytes that are not text.

    A name may hold any of them: a newline would forge a row, an escape sequence hide one.
    """
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def one_line(text: str) -> str:
    """Return text as one printable line."""
    return printable(" ".join(text.split()))


class SignalWatcher:
    """Receives SIGINT and SIGTERM even while the main thread is inside a compiled call.

    Python's own signal handlers would wait for the call to return. After the first call of `poll`,
    the first signal is returned by the next `poll` and a second one exits at once. Before it there
    is nothing to save, and the first signal exits at once.
    """

    def __init__(self) -> None:
        self._received = 0
        self._polled = False

    def poll(self) -> int:
        """Return the signal that was received, or 0. To be called again soon."""
        self._polled = True
        return self._received

    def __enter__(self) -> "SignalWatcher":
        """Install the signal handlers."""
        read_fd, write_fd = os.pipe()
        os.set_blocking(write_fd, False)
        self._write_fd = write_fd
        self._previous_fd = signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
        self._previous: dict[int, Any] = {
            number: signal.signal(number, lambda *_: None) for number in SIGNALS
        }
        threading.Thread(target=self._listen, args=(read_fd,), daemon=True).start()
        return self

    def __exit__(
        self,
        cls: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Restore the previous signal handlers."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._previous_fd)
        os.close(self._write_fd)  # ends the thread

    def _listen(self, read_fd: int) -> None:
        while data := os.read(read_fd, 1):
            number = data[0]
            if number not in SIGNALS:
                continue
            if self._received or not self._polled:
                if os.isatty(1):
                    os.write(1, b"\x1b[?25h")  # a live table hides the cursor
                os.write(2, b"ersac: stopped at once\n")
                os._exit(signal_exit_code(number))
            self._received = number
        os.close(read_fd)
