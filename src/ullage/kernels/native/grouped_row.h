// A row of weights as whole numbers in groups, whatever form it comes from: w = scale * (q - zero) + minimum.
#pragma once

#include <cstdint>
#include <vector>

#include "formats.h"

namespace ullage {

constexpr int kStep = 16;  // scales and minima are kept for every 16 k

struct GroupedRow {
  explicit GroupedRow(int k) : q(padded_to_group(k)), scales(q.size() / kStep), minima(q.size() / kStep) {}

  int zero = 0;
  std::vector<uint8_t> q;      // [k]
  std::vector<float> scales;   // [k / 16]
  std::vector<float> minima;   // [k / 16]

 private:
  static size_t padded_to_group(int k) { return static_cast<size_t>((k + kGroup - 1) / kGroup) * kGroup; }
};

// The block types of GGUF files that are carried over as they are.
enum class BlockType { q4_0, q4_1, q5_0, q5_1, q8_0, q4_k, q5_k, q6_k };

struct BlockShape {
  int terms;
  int bytes;
};

BlockShape block_shape(BlockType type);

// Takes one stored row apart. `k` is a multiple of the block's terms.
void read_blocks(BlockType type, const uint8_t* stored, int k, GroupedRow& row);

// Rounds a row to 8 bits about a zero of 128, one scale for each 32: the scale is max|w| / 127, in half precision.
void round_to_int8(const float* values, int k, GroupedRow& row);

// Rounds a row to 4 bits between the smallest and the largest of each 32, in half precision.
void round_to_int4(const float* values, int k, GroupedRow& row);

}  // namespace ullage
