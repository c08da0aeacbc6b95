"""The console script, and `python -m headroom`."""

import sys


def main() -> None:
    """`headroom --version` alone is answered without the command line, whose library takes longer to import."""
    if sys.argv[1:] == ["--version"]:
        from headroom.version import version_line

        sys.stdout.write(f"{version_line()}\n")
        return
    from headroom.cli.main import main as command_line

    command_line()


if __name__ == "__main__":
    main()
