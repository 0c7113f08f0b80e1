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

void pack_row_as_int8(const float* row, int k, int column, uint8_t* panel, float* scale) {
  float peak = 0;
  for (int i = 0; i < k; ++i) peak = std::fmax(peak, std::fabs(row[i]));
  *scale = peak / 127.0f;
  const float inverse = peak > 1e-30f ? 127.0f / peak : 0.0f;  // of less it would be infinite
  for (int i = 0; i < k; ++i)
    panel[(i / 4 * kPanel + column) * 4 + i % 4] = static_cast<uint8_t>(std::lrintf(row[i] * inverse) + 128);
}

}  // namespace

void pack_rows(const float* rows, int num_rows, int k, Placement placement, WeightType type, uint8_t* panels, float* scales) {
  const size_t panel_bytes = static_cast<size_t>(k) * kPanel * (type == WeightType::bf16 ? 2 : 1);
  for (int r = 0; r < num_rows; ++r) {
    const int output = placement.output_of(r);
    const float* row = rows + static_cast<size_t>(r) * k;
    uint8_t* panel = panels + panel_bytes * (output / kPanel);
    if (type == WeightType::bf16) {
      pack_row_as_bf16(row, k, output % kPanel, reinterpret_cast<uint16_t*>(panel));
    } else {
      pack_row_as_int8(row, k, output % kPanel, panel, scales + output);
    }
  }
}

}  // namespace ullage
