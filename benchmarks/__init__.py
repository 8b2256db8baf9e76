"""What serving costs, measured side by side: `make bench`. One question per module of `benchmarks.questions`."""
