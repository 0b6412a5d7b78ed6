#!/usr/bin/env python3
"""Measures how far engines' logits are from the reference's.

    kl.py REFERENCE.npy ENGINE.npy [ENGINE.npy ...] [--ids FILE.ids] [--skip POSITIONS]

Every file is [tokens, vocabulary] of any float type, mapped and read a few rows at a time, so that arrays larger than
memory are fine. Per engine: KL(reference || engine) over positions in nats (mean, median, 99th percentile, maximum),
how often both choose the same token, the largest difference of a logit, and with --ids (the tokens that gave those
logits) the perplexity of each file. --skip leaves the first positions out.
"""
import argparse
import pathlib
import sys

import numpy as np

ROWS = 16  # float64 temporaries of 16 * 262144 * 8 bytes = 32 MiB each


def log_softmax(rows):
    """float64 [rows, vocabulary] -> log probabilities"""
    shifted = rows - rows.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def open_logits(path, shape=None):
    array = np.load(path, mmap_mode="r")
    if array.ndim != 2 or array.dtype.kind != "f":
        sys.exit(f"{path}: {array.dtype} {list(array.shape)}; expected floats [tokens, vocabulary]")
    if shape and array.shape != shape:
        sys.exit(f"{path}: {list(array.shape)}, but the reference has {list(shape)}")
    return array


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("reference")
    parser.add_argument("engines", nargs="+")
    parser.add_argument("--ids")
    parser.add_argument("--skip", type=int, default=0)
    args = parser.parse_args()

    reference = open_logits(args.reference)
    engines = [open_logits(path, reference.shape) for path in args.engines]
    tokens = len(reference)
    if not 0 <= args.skip < tokens - 1:
        sys.exit(f"--skip is {args.skip}; {args.reference} has {tokens} positions")
    ids = None
    if args.ids:
        words = pathlib.Path(args.ids).read_text().split()
        if len(words) != tokens or not all(w.isdecimal() and int(w) < reference.shape[1] for w in words):
            sys.exit(f"{args.ids}: {len(words)} words; expected {tokens} token ids below {reference.shape[1]}")
        ids = np.array(words, np.int64)[args.skip:]
    reference = reference[args.skip:]
    engines = [engine[args.skip:] for engine in engines]
    tokens = len(reference)

    divergence = np.zeros((len(engines), tokens))
    agreement = np.zeros((len(engines), tokens), bool)
    difference = np.zeros(len(engines))
    next_logprob = np.zeros((1 + len(engines), tokens - 1))  # of the reference, then of each engine

    def keep_next(which, start, logprobs):
        if ids is not None:
            following = ids[start + 1:start + 1 + len(logprobs)]
            next_logprob[which, start:start + len(following)] = logprobs[np.arange(len(following)), following]

    for start in range(0, tokens, ROWS):
        rows = slice(start, start + ROWS)
        truth = reference[rows].astype(np.float64)
        expected = log_softmax(truth)
        weight = np.exp(expected)
        keep_next(0, start, expected)
        for which, engine in enumerate(engines):
            values = engine[rows].astype(np.float64)
            if not np.isfinite(values).all():
                sys.exit(f"{args.engines[which]}: a logit of rows {start} to {start + len(values) - 1} is not finite")
            got = log_softmax(values)
            divergence[which, rows] = (weight * (expected - got)).sum(axis=-1)
            agreement[which, rows] = values.argmax(axis=-1) == truth.argmax(axis=-1)
            difference[which] = max(difference[which], np.abs(values - truth).max())
            keep_next(1 + which, start, got)

    def perplexity(which):
        return f" {np.exp(-next_logprob[which].mean()):11.5f}" if ids is not None else ""

    names = [pathlib.Path(path).stem for path in [args.reference] + args.engines]
    width = max(map(len, names))
    print(f"{'':{width}} {'KL mean':>9} {'median':>9} {'99 %':>9} {'max':>9} {'top-1 %':>8} {'max|dlogit|':>11}"
          + (f" {'perplexity':>11}" if ids is not None else ""))
    print(f"{names[0]:{width}} {'0':>9} {'0':>9} {'0':>9} {'0':>9} {'100.00':>8} {'0':>11}{perplexity(0)}")
    for which, name in enumerate(names[1:]):
        kl = divergence[which]
        print(f"{name:{width}} {kl.mean():9.2e} {np.median(kl):9.2e} {np.quantile(kl, 0.99):9.2e} {kl.max():9.2e} "
              f"{100 * agreement[which].mean():8.2f} {difference[which]:11.2e}{perplexity(1 + which)}")


if __name__ == "__main__":
    main()
