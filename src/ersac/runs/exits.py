"""Exit codes, the errors that have one, and the signals that stop a run."""

import contextlib
import os
import signal
import sys
import threading
import time
from types import TracebackType
from typing import Any

from ersac.config import SettingsError

OK, SETTINGS, NON_FINITE, IO, RESUMABLE = 0, 2, 3, 74, 75
# The terminal is gone (SIGHUP); SLURM warns before the time limit (SIGUSR1). Windows has neither.
NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1")
SIGNALS: tuple[signal.Signals, ...] = tuple(
    getattr(signal, name) for name in NAMES if hasattr(signal, name)
)
URGENT = (signal.SIGINT, signal.SIGTERM)  # these stop at once if they come second
# Threads that may still be in a step or an update when a run has ended.
LEFT_BEHIND = ("actor", "learner")
SAME_EVENT_SECONDS = 0.1  # a shell and the kernel may both send a signal for one event


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
    """Receives signals even while the main thread is inside a compiled call.

    Python's own signal handlers would wait for the call to return. After the first call of `poll`,
    the first signal is answered in one line and returned by the next `poll`; a second SIGINT or
    SIGTERM exits at once. Before it there is nothing to save, and the first signal exits at once.
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
        if hasattr(os, "set_blocking"):  # Windows has it from Python 3.12 on
            os.set_blocking(write_fd, False)
        self._write_fd = write_fd
        self._previous_fd = signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
        self._previous: dict[int, Any] = {
            number: signal.signal(number, lambda *_: None)
            for number in SIGNALS
            if number.name != "SIGHUP" or signal.getsignal(number) != signal.SIG_IGN  # nohup
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
        first = 0.0
        while data := os.read(read_fd, 1):
            number = data[0]
            if number not in SIGNALS:
                continue
            if not self._polled:
                _exit_at_once(number)
            elif not self._received:
                self._received, first = number, time.monotonic()
                name = signal.Signals(number).name
                print_error(f"{name}: saving and stopping; a second one stops at once")
            elif number in URGENT and time.monotonic() > first + SAME_EVENT_SECONDS:
                _exit_at_once(number)
        os.close(read_fd)


def _exit_at_once(number: int) -> None:
    """End this process without saving, from any thread."""
    if os.isatty(1):
        with contextlib.suppress(OSError):
            os.write(1, b"\x1b[?25h")  # a live table hides the cursor
    with contextlib.suppress(OSError):
        os.write(2, b"ersac: stopped at once\n")
    os._exit(signal_exit_code(number))


def print_error(text: str) -> None:
    """Print one line to standard error, if that still exists: a terminal may be gone."""
    with contextlib.suppress(OSError, ValueError):
        print(f"ersac: {one_line(text)}", file=sys.stderr, flush=True)
