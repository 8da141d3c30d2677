"""Calls in processes of their own: each begins with a fresh solver, so what it finds does not depend on what ran before it."""

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import forkserver, get_context
from multiprocessing.connection import Connection, wait
from typing import Any


class WorkerError(RuntimeError):
    """A process ended without an answer."""


def _work(answer: Connection, fn: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever waits for the answer ends this process
    value, failure = None, None
    try:
        value = fn(*arguments)
    except Exception as error:
        failure = error
    with suppress(OSError):  # nobody listens any more
        answer.send((value, failure))
        answer.close()


@contextmanager
def _undisturbed() -> Iterator[None]:
    """What is started here never sees Ctrl-C; this process sees it afterwards."""
    held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)


def each(fn: Callable[..., Any], tasks: Sequence[tuple[Any, ...]], jobs: int) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """(task, fn(*task)) for each task, as they end, `jobs` at a time. What `fn` raises is raised here; so is WorkerError.

    Whoever stops listening ends the processes that are at work.
    """
    context = get_context("forkserver")
    context.set_forkserver_preload([fn.__module__])
    with _undisturbed():
        forkserver.ensure_running()
    todo = list(reversed(tasks))
    live: dict[Any, tuple[Any, tuple[Any, ...]]] = {}
    try:
        while todo or live:
            while todo and len(live) < jobs:
                task = todo.pop()
                ours, theirs = context.Pipe(duplex=False)
                process = context.Process(target=_work, args=(theirs, fn, task), daemon=True)
                with _undisturbed():  # half a task would be a traceback of the process
                    process.start()
                theirs.close()
                live[ours] = (process, task)
            for ready in wait(list(live)):
                process, task = live.pop(ready)
                yield task, _answer(ready, process, task)
    finally:
        for process, _ in live.values():
            process.terminate()
        for process, _ in live.values():
            process.join()


def _answer(ready: Any, process: Any, task: tuple[Any, ...]) -> Any:
    try:
        value, error = ready.recv()
    except EOFError:
        process.join()
        raise WorkerError(f"the process for {task} ended with status {process.exitcode}") from None
    process.join()
    if error is not None:
        raise error
    return value
