"""The command line: one file a verb; each has `add_parser(subparsers)` and `run(args) -> exit code`."""
