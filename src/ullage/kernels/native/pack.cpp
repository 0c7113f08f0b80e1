#include "pack.h"

#include <cmath>
#include <cstring>

namespace ullage {
namespace {

uint16_t round_to_bf16(float value) {
  uint32_t word;
  std::memcpy(&word, &value, 4);
  return static_cast<uint16_t>((word + 0x7fff + ((word >> 16) & 1)) >> 16);
}

void pack_row_as_bf16(const float* row, int k, int column, uint16_t* panel) {
  for (int i = 0; i < k; ++i) panel[(i / 2 * kPanel + column) * 2 + i % 2] = round_to_bf16(row[i]);
}

// `group` is the first group of the tile; `column` one of its 32 outputs.
void pack_row_as_int8(const float* row, int k, int column, uint8_t* group) {
  for (int start = 0; start < k; start += kGroup) {
    const int size = k - start < kGroup ? k - start : kGroup;
    uint8_t* panel = group + column / kPanel * kPanel * size;
    float* scales = reinterpret_cast<float*>(group + kTile * size);
    float peak = 0;
    for (int i = 0; i < size; ++i) peak = std::fmax(peak, std::fabs(row[start + i]));
    scales[column] = peak / 127.0f;
    const float inverse = peak > 1e-30f ? 127.0f / peak : 0.0f;  // of less it would be infinite
    for (int i = 0; i < size; ++i) {
      const long whole = std::lrintf(row[start + i] * inverse);
      panel[(i / 4 * kPanel + column % kPanel) * 4 + i % 4] = static_cast<uint8_t>(whole + 128);
    }
    group = reinterpret_cast<uint8_t*>(scales + kTile);
  }
}

}  // namespace

void pack_rows(const float* rows, int num_rows, Placement placement, const Matrix& matrix, uint8_t* tiles) {
  for (int r = 0; r < num_rows; ++r) {
    const int output = placement.output_of(r), column = output % kTile;
    const float* row = rows + static_cast<size_t>(r) * matrix.k;
    uint8_t* tile = tiles + matrix.tile_bytes() * (output / kTile);
    if (matrix.type == WeightType::bf16) {
      uint16_t* panel = reinterpret_cast<uint16_t*>(tile) + static_cast<size_t>(column / kPanel) * kPanel * matrix.k;
      pack_row_as_bf16(row, matrix.k, column % kPanel, panel);
    } else {
      pack_row_as_int8(row, matrix.k, column, tile);
    }
  }
}

}  // namespace ullage
