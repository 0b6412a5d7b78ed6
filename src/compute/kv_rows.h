// How one head's key or value lies in a cache: the meaning of every KvFormat, in plain float32.
//
// A row is its codes and then its scales:
//   float formats   the numbers themselves
//   affine          head_dim codes of `bits` bits as one little-endian stream, then a scale for each group, then a bias
//                   for each group, as float16: number = code * scale + bias, rounded once
//   spread          the same of a head whose groups were spread (spread_kv_groups)
//   rotated         the same without biases: number = codebook[code] * scale, of the rotated head
// Vector kernels store the same bytes and load the same floats (tests/compute/kv_rows_test.cpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "carat/kv_format.h"

namespace carat {

/// Heads of coded formats are at most this wide.
constexpr int kMaxCodedHead = 1024;
/// So a row has at most this many scales and as many biases (groups of 16).
constexpr int kMaxKvGroups = kMaxCodedHead / 16;
/// Scales and biases stay within float16.
constexpr float kLargestKvScale = 65504.0f;

/// Bytes of one head's row. `format` must fit the head (fit_kv_format).
size_t kv_row_bytes(KvFormat format, int head_dim);

/// The format with its group halved until it divides head_dim. Throws Error where the format cannot hold such heads:
/// coded formats need a multiple of 16 up to kMaxCodedHead, rotated ones a power of two.
KvFormat fit_kv_format(KvFormat format, int head_dim);

/// What each code stands for: 2^bits numbers, ascending; 0, 1, 2 … in affine and spread formats. Rotated formats have
/// the best points for a unit normal (Lloyd and Max). Numbers are coded as the point below and above which the
/// boundaries, half way between neighbours, lie. Of code widths up to 4 the table is repeated to 16 entries. Valid for
/// ever.
const float* kv_codebook(KvFormat format);

/// kMaxCodedHead signs, +-1: the fixed part of the rotation.
const float* kv_signs();

/// Rotates a head of 2^n >= 16 numbers in place: x -> H (x * signs) / sqrt(size), H the Walsh-Hadamard matrix, by
/// butterflies of distance 1, 2, 4 …; `back` undoes it.
void rotate_kv_head(std::span<float> x, bool back);

/// Spreads each `group` (16, 32 or 64) numbers over their places: x -> H x / sqrt(group), by butterflies of distance
/// 1, 2, 4 …, so that an outlier widens the range of its group by no more than its share. Spreading again undoes it.
/// Attention spreads queries like the keys they meet, which leaves their products as they were. What leaves float16's
/// range then (beyond 65504 / sqrt(group)) is cut to it when it is stored.
void spread_kv_groups(std::span<float> x, int group);

/// Stores one head; it is rotated or spread first in formats that are so. Finite numbers are stored as finite numbers.
void store_kv_row(std::span<const float> x, KvFormat format, std::byte* row);

/// Loads what was stored. Rotated and spread heads stay as they are.
void load_kv_row(const std::byte* row, KvFormat format, std::span<float> x);

}  // namespace carat
