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

void write_bf16(const float* row, int k, int column, uint16_t* panel) {
  for (int i = 0; i < k; ++i) panel[(i / 2 * kPanel + column) * 2 + i % 2] = round_to_bf16(row[i]);
}

uint16_t to_half(float value) {  // of a value that is one already
  const float magnitude = std::fabs(value) * 0x1p-112f;
  uint32_t word;
  std::memcpy(&word, &magnitude, 4);
  return static_cast<uint16_t>(word >> 13 | (std::signbit(value) ? 0x8000 : 0));
}

template <class F>
void write_number(float value, int column, uint8_t* numbers) {
  if constexpr (F::scale_bytes == 4) {
    std::memcpy(numbers + 4 * column, &value, 4);
  } else {
    const uint16_t half = to_half(value);
    std::memcpy(numbers + 2 * column, &half, 2);
  }
}

// One row into its column of the tile. False when a number doesn't fit.
template <class F>
bool write_groups(const GroupedRow& row, int column, uint8_t* group) {
  const int shift = F::has_minimum ? 0 : F::zero - row.zero;
  const int k = static_cast<int>(row.q.size());
  for (int start = 0; start < k; start += F::terms, group += F::bytes) {
    for (int i = 0; i < F::terms; ++i) {
      const int q = row.q[start + i] + shift;
      if (q < 0 || q >= 1 << F::bits) return false;
      const Place place = place_of<F>(column, i);
      group[place.byte] |= static_cast<uint8_t>(q << place.shift);
    }
    const float scale = row.scales[start / kStep], minimum = row.minima[start / kStep];
    if (!std::isfinite(scale) || !std::isfinite(minimum) || (!F::has_minimum && minimum != 0)) return false;
    write_number<F>(scale, column, group + 2 * F::panel_bytes);
    if constexpr (F::has_minimum) write_number<F>(minimum - scale * row.zero, column, group + F::minima_at);
  }
  return true;
}

bool write_row(const GroupedRow& row, int output, const Matrix& matrix, uint8_t* tiles) {
  uint8_t* tile = tiles + matrix.tile_bytes() * (output / kTile);
  return with_format(matrix.format, [&](auto f) { return write_groups<decltype(f)>(row, output % kTile, tile); });
}

}  // namespace

void pack_rows(const float* rows, int num_rows, int k, Placement placement, const Matrix& matrix, uint8_t* tiles) {
  GroupedRow grouped(k);
  for (int r = 0; r < num_rows; ++r, rows += k) {
    const int output = placement.output_of(r), column = output % kTile;
    if (matrix.format == Format::bf16) {
      uint16_t* tile = reinterpret_cast<uint16_t*>(tiles + matrix.tile_bytes() * (output / kTile));
      write_bf16(rows, k, column % kPanel, tile + static_cast<size_t>(column / kPanel) * kPanel * matrix.k);
    } else {
      matrix.format == Format::int8 ? round_to_int8(rows, k, grouped) : round_to_int4(rows, k, grouped);
      write_row(grouped, output, matrix, tiles);
    }
  }
}

bool pack_blocks(BlockType type, const uint8_t* rows, int num_rows, int k, Placement placement, const Matrix& matrix,
                 uint8_t* tiles) {
  GroupedRow grouped(k);
  const BlockShape shape = block_shape(type);
  for (int r = 0; r < num_rows; ++r, rows += static_cast<size_t>(k / shape.terms) * shape.bytes) {
    read_blocks(type, rows, k, grouped);
    if (!write_row(grouped, placement.output_of(r), matrix, tiles)) return false;
  }
  return true;
}

}  // namespace ullage
