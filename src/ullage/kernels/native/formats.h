// How a matrix y = W x lies in memory. Its outputs are cut into *panels* of 16, so that one 64-byte vector holds one
// step of a panel; two panels are a *tile*, the unit in which a matrix is computed. Outputs and k are padded with
// zeros to whole tiles and whole groups.
//
//   bf16:      panel[k / 2][16 outputs][2]   two consecutive k of each output; one panel after the other
//   in groups: along k, groups of 32 (or 16) small whole numbers q, w = scale * (q - zero) + minimum, with one scale
//              and perhaps a minimum per output; a tile is one stream, group after group:
//
//              [q of outputs 0-15][q of outputs 16-31][32 scales][32 minima]
//
// In a group, eight consecutive k take one 64-byte vector (4 bits) or two (8 bits), a 32-bit lane per output:
//
//   4 bits:  half p (of 16 bits), nibble j           hold k = 2 j + p
//   8 bits:  vector v, half p (of 16 bits), byte b   hold k = 2 (v + 2 b) + p
//
// so that shift and mask give pairs of neighbours for bf16 products, and bytes in the order 0 4 1 5 | 2 6 3 7 for byte
// products.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ullage {

constexpr int kPanel = 16;
constexpr int kTile = 2 * kPanel;  // outputs computed together
constexpr int kGroup = 32;         // k is padded to a multiple of this

enum class Format : int32_t { bf16, int4, int4_min, int4_min_f32, int8, int8_min_f32, int8_g16, int8_g16_min };
constexpr int kNumFormats = 8;

template <int Bits, int Terms, int ScaleBytes, int Zero, bool HasMinimum>
struct GroupFormat {
  static constexpr int bits = Bits, terms = Terms, scale_bytes = ScaleBytes, zero = Zero;
  static constexpr bool has_minimum = HasMinimum;
  static constexpr int vectors = Terms * Bits / 32;  // 64-byte vectors of one panel
  static constexpr size_t panel_bytes = 64 * vectors;
  static constexpr size_t minima_at = 2 * panel_bytes + kTile * ScaleBytes;
  static constexpr size_t bytes = minima_at + (HasMinimum ? kTile * ScaleBytes : 0);
};

// Scales are half precision where the file has them so, and single precision where they come out of a product.
using Int4 = GroupFormat<4, 32, 2, 8, false>;         // Q4_0
using Int4Min = GroupFormat<4, 32, 2, 0, true>;       // Q4_1
using Int4MinF32 = GroupFormat<4, 32, 4, 0, true>;    // Q4_K
using Int8 = GroupFormat<8, 32, 2, 128, false>;       // Q8_0, Q5_0
using Int8MinF32 = GroupFormat<8, 32, 4, 0, true>;    // Q5_K, Q5_1
using Int8G16 = GroupFormat<8, 16, 4, 128, false>;    // Q6_K
using Int8G16Min = GroupFormat<8, 16, 4, 0, true>;    // whatever one matrix mixes of these

// Calls body(GroupFormat) for any format but bf16.
template <class Body>
inline auto with_format(Format format, Body&& body) {
  switch (format) {
    case Format::int4: return body(Int4{});
    case Format::int4_min: return body(Int4Min{});
    case Format::int4_min_f32: return body(Int4MinF32{});
    case Format::int8: return body(Int8{});
    case Format::int8_min_f32: return body(Int8MinF32{});
    case Format::int8_g16: return body(Int8G16{});
    default: return body(Int8G16Min{});
  }
}

struct Matrix {
  const uint8_t* tiles = nullptr;
  Format format = Format::bf16;
  int outputs = 0;  // padded
  int k = 0;        // padded

  int num_tiles() const { return outputs / kTile; }
  size_t tile_bytes() const {
    if (format == Format::bf16) return sizeof(uint16_t) * kTile * k;
    return with_format(format, [&](auto f) { return k / f.terms * f.bytes; });
  }
  const uint8_t* tile(int i) const { return tiles + tile_bytes() * i; }
};

// Where the number of one output (of the tile's 32) and one k of a group stands.
struct Place {
  size_t byte;
  int shift;
};

template <class F>
constexpr Place place_of(int output, int k) {
  const size_t lane = output / kPanel * F::panel_bytes + output % kPanel * 4;
  const int within = k % 8, half = within % 2, pair = within / 2;
  if (F::bits == 4) return {lane + k / 8 * 64 + half * 2 + pair / 2, pair % 2 * 4};
  return {lane + (k / 8 * 2 + pair % 2) * 64 + half * 2 + pair / 2, 0};
}

inline float from_half(uint16_t bits) {
  uint32_t word = (bits & 0x7fffu) << 13;
  float value;
  __builtin_memcpy(&value, &word, 4);
  value *= 0x1p112f;  // also right for subnormal halves; infinities never get here
  return bits & 0x8000u ? -value : value;
}

}  // namespace ullage
