"""Hashes every prefix of a log of record batches.  If two logs have equal hashes, all batches before are equal.

The hash is BLAKE2b (RFC 7693) over a single block.  It is a compiled kernel because a log has millions of batches.
"""

from __future__ import annotations

import numpy as np

from checkers.base.arrays import Int32, Int64, UInt8, UInt64
from checkers.kernels.jit import inner_kernel, kernel


def chain(before: int, base: Int64, epoch: Int32, crc: Int64) -> Int64:
    """Return the prefix hash after each batch.  before: the hash in front of the first batch.

    h := BLAKE2b-64(int64 h, int64 base offset, int32 leader epoch, uint32 CRC), all big endian, the digest read as a
    big-endian int64; int64[len(base)].
    """
    return _chain(before, base, epoch, crc, _SIGMA, _BLAKE_START)


@kernel
def _chain(before: int, base: Int64, epoch: Int32, crc: Int64, sigma: UInt8, begin: UInt64) -> Int64:
    message = np.zeros(16, np.uint64)
    hashes = np.empty(base.shape[0], np.int64)
    last = np.uint64(before)
    for i in range(base.shape[0]):
        message[0] = _swapped(last)
        message[1] = _swapped(np.uint64(base[i]))
        message[2] = _swapped((np.uint64(np.uint32(epoch[i])) << np.uint64(32)) | np.uint64(crc[i]))
        last = _swapped(_blake2b_first_word(message, sigma, begin))
        hashes[i] = np.int64(last)
    return hashes


@inner_kernel
def _swapped(word: np.uint64) -> np.uint64:
    """Reverse the eight bytes of a word."""
    a, b = np.uint64(0x00FF00FF00FF00FF), np.uint64(0x0000FFFF0000FFFF)
    word = ((word >> np.uint64(8)) & a) | ((word & a) << np.uint64(8))
    word = ((word >> np.uint64(16)) & b) | ((word & b) << np.uint64(16))
    return (word >> np.uint64(32)) | (word << np.uint64(32))


@inner_kernel
def _turned(word: np.uint64, bits: int) -> np.uint64:
    return (word >> np.uint64(bits)) | (word << np.uint64(64 - bits))


@inner_kernel
def _stirred(
    a: np.uint64, b: np.uint64, c: np.uint64, d: np.uint64, x: np.uint64, y: np.uint64
) -> tuple[np.uint64, np.uint64, np.uint64, np.uint64]:
    """Apply the function G of RFC 7693, section 3.1."""
    a = a + b + x
    d = _turned(d ^ a, 32)
    c = c + d
    b = _turned(b ^ c, 24)
    a = a + b + y
    d = _turned(d ^ a, 16)
    c = c + d
    b = _turned(b ^ c, 63)
    return a, b, c, d


@inner_kernel
def _blake2b_first_word(m: UInt64, sigma: UInt8, begin: UInt64) -> np.uint64:
    """Return the first word of the digest of a single block.  begin: the sixteen words where compression starts."""
    v0, v1, v2, v3 = begin[0], begin[1], begin[2], begin[3]
    v4, v5, v6, v7 = begin[4], begin[5], begin[6], begin[7]
    v8, v9, v10, v11 = begin[8], begin[9], begin[10], begin[11]
    v12, v13, v14, v15 = begin[12], begin[13], begin[14], begin[15]
    for r in range(12):
        s = sigma[r]
        v0, v4, v8, v12 = _stirred(v0, v4, v8, v12, m[s[0]], m[s[1]])
        v1, v5, v9, v13 = _stirred(v1, v5, v9, v13, m[s[2]], m[s[3]])
        v2, v6, v10, v14 = _stirred(v2, v6, v10, v14, m[s[4]], m[s[5]])
        v3, v7, v11, v15 = _stirred(v3, v7, v11, v15, m[s[6]], m[s[7]])
        v0, v5, v10, v15 = _stirred(v0, v5, v10, v15, m[s[8]], m[s[9]])
        v1, v6, v11, v12 = _stirred(v1, v6, v11, v12, m[s[10]], m[s[11]])
        v2, v7, v8, v13 = _stirred(v2, v7, v8, v13, m[s[12]], m[s[13]])
        v3, v4, v9, v14 = _stirred(v3, v4, v9, v14, m[s[14]], m[s[15]])
    word: np.uint64 = begin[0] ^ v0 ^ v8
    return word


def _blake_start() -> UInt64:
    """Return the state before the only block: 24 bytes long, no key, a digest of 8 bytes (RFC 7693, section 3.2)."""
    roots = [
        0x6A09E667F3BCC908,
        0xBB67AE8584CAA73B,
        0x3C6EF372FE94F82B,
        0xA54FF53A5F1D36F1,
        0x510E527FADE682D1,
        0x9B05688C2B3E6C1F,
        0x1F83D9ABFB41BD6B,
        0x5BE0CD19137E2179,
    ]
    words = np.array(roots + roots, np.uint64)
    words[0] ^= np.uint64(0x01010000 ^ 8)  # fan-out and depth 1, eight bytes of digest
    words[12] ^= np.uint64(24)
    words[14] = ~words[14]
    return words


_SIGMA = np.array(
    [
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15],
        [14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3],
        [11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4],
        [7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8],
        [9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13],
        [2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9],
        [12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11],
        [13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10],
        [6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5],
        [10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0],
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15],
        [14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3],
    ],
    np.uint8,
)
_BLAKE_START = _blake_start()
