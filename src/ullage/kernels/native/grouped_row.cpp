#include "grouped_row.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace ullage {
namespace {

float half_at(const uint8_t* at) {
  uint16_t bits;
  std::memcpy(&bits, at, 2);
  if ((bits & 0x7c00) == 0x7c00) return NAN;  // infinity or NaN: the caller refuses the file
  return from_half(bits);
}

// To half precision and back; nearest, ties to even, finite (65504 at most), smallest steps of 2^-24.
float as_half(float value) {
  const float magnitude = std::fmin(std::fabs(value), 65504.0f);
  if (magnitude == 0) return 0;
  const int exponent = std::max(std::ilogb(magnitude), -14);
  const float step = std::ldexp(1.0f, exponent - 10);
  return std::copysign(std::nearbyint(magnitude / step) * step, value);
}

void set_group(GroupedRow& row, int start, int terms, float scale, float minimum) {
  for (int i = start / kStep; i < (start + terms) / kStep; ++i) {
    row.scales[i] = scale;
    row.minima[i] = minimum;
  }
}

// 16 bytes: numbers 0..15 in their low halves, 16..31 in their high halves.
void read_nibbles(const uint8_t* bytes, int count, uint8_t* q) {
  for (int i = 0; i < count; ++i) {
    q[i] = bytes[i] & 15;
    q[i + count] = bytes[i] >> 4;
  }
}

// ---- Blocks of 32. Source of all layouts: ggml-common.h and ggml-quants.c of ggml. ----------------------------------

void read_small_block(BlockType type, const uint8_t* block, int start, GroupedRow& row) {
  const bool has_minimum = type == BlockType::q4_1 || type == BlockType::q5_1;
  const bool has_fifth_bits = type == BlockType::q5_0 || type == BlockType::q5_1;
  const float scale = half_at(block), minimum = has_minimum ? half_at(block + 2) : 0.0f;
  block += has_minimum ? 4 : 2;
  uint32_t fifth_bits = 0;
  if (has_fifth_bits) {
    std::memcpy(&fifth_bits, block, 4);
    block += 4;
  }
  uint8_t* q = row.q.data() + start;
  if (type == BlockType::q8_0) {
    for (int i = 0; i < 32; ++i) q[i] = block[i] ^ 0x80;  // signed to unsigned about 128
  } else {
    read_nibbles(block, 16, q);
    for (int i = 0; i < 32; ++i) q[i] |= (fifth_bits >> i & 1) << 4;
  }
  set_group(row, start, 32, scale, minimum);
}

// ---- Blocks of 256 --------------------------------------------------------------------------------------------------

// Six-bit scale and minimum of group j of 8, out of 12 bytes.
void read_six_bits(const uint8_t* packed, int j, int& scale, int& minimum) {
  if (j < 4) {
    scale = packed[j] & 63;
    minimum = packed[j + 4] & 63;
  } else {
    scale = (packed[j + 4] & 15) | (packed[j - 4] >> 6 << 4);
    minimum = (packed[j + 4] >> 4) | (packed[j] >> 6 << 4);
  }
}

void read_q4_k_or_q5_k(bool five_bits, const uint8_t* block, int start, GroupedRow& row) {
  const float d = half_at(block), d_minimum = half_at(block + 2);
  const uint8_t* packed_scales = block + 4;
  const uint8_t* fifth_bits = block + 16;
  const uint8_t* nibbles = block + (five_bits ? 48 : 16);
  for (int j = 0; j < 8; ++j) {
    uint8_t* q = row.q.data() + start + 32 * j;
    if (j % 2 == 0) read_nibbles(nibbles + 16 * j, 32, q);
    if (five_bits)
      for (int i = 0; i < 32; ++i) q[i] |= (fifth_bits[i] >> j & 1) << 4;
    int scale, minimum;
    read_six_bits(packed_scales, j, scale, minimum);
    set_group(row, start + 32 * j, 32, d * scale, -d_minimum * minimum);
  }
}

void read_q6_k(const uint8_t* block, int start, GroupedRow& row) {
  const uint8_t *low = block, *high = block + 128, *scales = block + 192;
  const float d = half_at(block + 208);
  for (int half = 0; half < 2; ++half)
    for (int i = 0; i < 32; ++i) {
      uint8_t* q = row.q.data() + start + 128 * half + i;
      const uint8_t *at = low + 64 * half + i, bits = high[32 * half + i];
      q[0] = (at[0] & 15) | (bits & 3) << 4;
      q[32] = (at[32] & 15) | (bits >> 2 & 3) << 4;
      q[64] = (at[0] >> 4) | (bits >> 4 & 3) << 4;
      q[96] = (at[32] >> 4) | (bits >> 6) << 4;
    }
  for (int j = 0; j < 16; ++j) set_group(row, start + 16 * j, 16, d * static_cast<int8_t>(scales[j]), 0);
}

int zero_of(BlockType type) {
  switch (type) {
    case BlockType::q4_0: return 8;
    case BlockType::q5_0: return 16;
    case BlockType::q6_k: return 32;
    case BlockType::q8_0: return 128;
    default: return 0;
  }
}

}  // namespace

BlockShape block_shape(BlockType type) {
  switch (type) {
    case BlockType::q4_0: return {32, 18};
    case BlockType::q4_1: return {32, 20};
    case BlockType::q5_0: return {32, 22};
    case BlockType::q5_1: return {32, 24};
    case BlockType::q8_0: return {32, 34};
    case BlockType::q4_k: return {256, 144};
    case BlockType::q5_k: return {256, 176};
    default: return {256, 210};
  }
}

void read_blocks(BlockType type, const uint8_t* stored, int k, GroupedRow& row) {
  const BlockShape shape = block_shape(type);
  row.zero = zero_of(type);
  for (int start = 0; start < k; start += shape.terms, stored += shape.bytes) {
    if (type == BlockType::q6_k) {
      read_q6_k(stored, start, row);
    } else if (shape.terms == 256) {
      read_q4_k_or_q5_k(type == BlockType::q5_k, stored, start, row);
    } else {
      read_small_block(type, stored, start, row);
    }
  }
}

void round_to_int8(const float* values, int k, GroupedRow& row) {
  row.zero = 128;
  for (int start = 0; start < k; start += kGroup) {
    const int end = std::min(start + kGroup, k);
    float peak = 0;
    for (int i = start; i < end; ++i) peak = std::fmax(peak, std::fabs(values[i]));
    const float scale = as_half(peak / 127.0f), inverse = scale > 0 ? 1.0f / scale : 0.0f;
    for (int i = start; i < end; ++i)
      row.q[i] = static_cast<uint8_t>(std::clamp(std::lrintf(values[i] * inverse), -128l, 127l) + 128);
    for (int i = end; i < start + kGroup; ++i) row.q[i] = 128;
    set_group(row, start, kGroup, scale, 0);
  }
}

void round_to_int4(const float* values, int k, GroupedRow& row) {
  row.zero = 0;
  for (int start = 0; start < k; start += kGroup) {
    const int end = std::min(start + kGroup, k);
    const auto [low, high] = std::minmax_element(values + start, values + end);
    const float minimum = as_half(*low), scale = as_half((*high - minimum) / 15.0f);
    const float inverse = scale > 0 ? 1.0f / scale : 0.0f;
    for (int i = start; i < end; ++i)
      row.q[i] = static_cast<uint8_t>(std::clamp(std::lrintf((values[i] - minimum) * inverse), 0l, 15l));
    for (int i = end; i < start + kGroup; ++i) row.q[i] = 0;
    set_group(row, start, kGroup, scale, minimum);
  }
}

}  // namespace ullage
