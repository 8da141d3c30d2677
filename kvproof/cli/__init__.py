"""The `kvproof` program. Each command lives in a module of its own and is imported when it is called."""

import importlib
import os
import signal
import sys
import threading
from typing import Any

import click

from kvproof import __version__

COMMANDS = {
    "prove": "prove the theorems on the functions that run",
    "audit": "mutate the core and prove again: the proofs must notice",
    "replay": "run a scenario and print its decision records",
    "simulate": "discrete-event run of a trace",
    "fuzz": "stateful fuzzing of the whole system",
    "bench": "cost of a scheduling pass",
    "doctor": "what this machine can run",
    "demo": "the guided tour",
}


class InputError(click.ClickException):
    """Bad input: one line that names the place, exit status 2."""

    exit_code = 2

    def show(self, file: Any = None) -> None:
        """Print the line to stderr."""
        click.echo(f"kvproof: {self.message}", err=True)


class _Lazy(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"kvproof.cli.{cmd_name}")
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=_Lazy)
@click.version_option(__version__, prog_name="kvproof")
def program() -> None:
    """A preemptive scheduler and KV-cache block manager for LLM inference, proved on the functions that run."""


class Terminated(KeyboardInterrupt):
    """SIGTERM has come: to be treated as Ctrl-C is, so that worker processes do not stay behind."""


def _terminate(number: int, frame: Any) -> None:
    raise Terminated


def interrupted(error: BaseException) -> int:
    """The exit status after Ctrl-C (130) or SIGTERM (143)."""
    click.echo("kvproof: interrupted", err=True)
    return 143 if isinstance(error, Terminated) or isinstance(error.__cause__, Terminated) else 130


def nothing_more_to_flush() -> None:
    """What is left in the buffer of stdout, which cannot be written, goes nowhere at exit."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main() -> None:
    """Run the program. Ctrl-C ends it with status 130, SIGTERM with 143, bad input with one line and status 2."""
    alone = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, _terminate) if alone else None
    try:
        if sys.stdout is None:
            raise OSError("it is closed")
        status = program.main(prog_name="kvproof", standalone_mode=False)
        sys.stdout.flush()
    except (click.exceptions.Abort, KeyboardInterrupt) as error:
        sys.exit(interrupted(error))
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(2)
    except click.UsageError as error:
        place = error.ctx.command_path if error.ctx is not None else "kvproof"
        click.echo(f"{place}: {error.format_message()} See {place} --help.", err=True)
        sys.exit(2)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except BrokenPipeError:  # the reader (head, say) has gone: nothing to say
        nothing_more_to_flush()
        sys.exit(1)
    except OSError as error:
        nothing_more_to_flush()
        place = f"{error.filename}" if error.filename else "standard output cannot be written"
        click.echo(f"kvproof: {place}: {error.strerror or error}", err=True)
        sys.exit(2)
    finally:
        if alone:
            signal.signal(signal.SIGTERM, before or signal.SIG_DFL)
    sys.exit(status if isinstance(status, int) else 0)
