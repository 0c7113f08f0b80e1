// Tile registers (AMX): eight of 16 rows by 64 bytes. A product of bf16 tiles adds A [16 rows][32 k] times B
// [16 pairs of k][16 outputs][2] to C [16 rows][16 outputs]; B is the panel of formats.h as it stands. Included by
// products.h where the instruction set has them. ULLAGE_TILES is 1 for the instructions and 2 for a plain imitation of
// them, with which everything built on tiles is tested on processors that have none.
// Source: Intel Architecture Instruction Set Extensions Programming Reference, chapter 3.

constexpr int kTileRows = 16;
constexpr int kTileTerms = 32;  // k of one product

#if ULLAGE_TILES == 1

ULLAGE_INLINE void configure_tiles() {
  struct Config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
  };
  alignas(64) Config config = {};
  config.palette = 1;
  for (int i = 0; i < 8; ++i) {
    config.row_bytes[i] = 64;
    config.rows[i] = kTileRows;
  }
  // The intrinsic doesn't tell the compiler that it reads the struct.
  asm volatile("ldtilecfg %0" ::"m"(config) : "memory");
}
ULLAGE_INLINE void release_tiles() { _tile_release(); }

#define tile_zero(tile) _tile_zero(tile)
#define tile_load(tile, from, stride) _tile_loadd(tile, from, stride)
#define tile_store(tile, to, stride) _tile_stored(tile, to, stride)
#define tile_multiply(c, a, b) _tile_dpbf16ps(c, a, b)

#else

struct ImitatedTile {
  uint8_t rows[kTileRows][64];
};
static thread_local ImitatedTile imitated_tiles[8];

ULLAGE_INLINE void configure_tiles() {}
ULLAGE_INLINE void release_tiles() {}

static void tile_zero(int tile) { memset(&imitated_tiles[tile], 0, sizeof(ImitatedTile)); }
static void tile_load(int tile, const void* from, size_t stride) {
  for (int i = 0; i < kTileRows; ++i)
    memcpy(imitated_tiles[tile].rows[i], static_cast<const uint8_t*>(from) + stride * i, 64);
}
static void tile_store(int tile, void* to, size_t stride) {
  for (int i = 0; i < kTileRows; ++i)
    memcpy(static_cast<uint8_t*>(to) + stride * i, imitated_tiles[tile].rows[i], 64);
}
static void tile_multiply(int c, int a, int b) {
  for (int row = 0; row < kTileRows; ++row) {
    float* sums = reinterpret_cast<float*>(imitated_tiles[c].rows[row]);
    const uint16_t* x = reinterpret_cast<const uint16_t*>(imitated_tiles[a].rows[row]);
    for (int pair = 0; pair < kTileTerms / 2; ++pair) {
      const uint16_t* w = reinterpret_cast<const uint16_t*>(imitated_tiles[b].rows[pair]);
      for (int output = 0; output < kPanel; ++output)
        sums[output] += from_bf16(x[2 * pair]) * from_bf16(w[2 * output]) +
                        from_bf16(x[2 * pair + 1]) * from_bf16(w[2 * output + 1]);
    }
  }
}

#endif

// out[16 * Blocks][kTile] = rows * panels. Reads whole blocks of 16 rows, whatever stands in those that aren't asked for.
template <int Blocks>
static void multiply_tile_rows(const uint8_t* first_row, size_t row_stride, const uint8_t* panels, int k, float* out) {
  const uint8_t* right = panels + static_cast<size_t>(2) * kPanel * k;
  const uint8_t* second = first_row + row_stride * kTileRows;
  constexpr size_t kOutStride = sizeof(float) * kTile;
  tile_zero(0);
  tile_zero(1);
  tile_zero(2);
  tile_zero(3);
  for (int start = 0; start < k; start += kTileTerms) {
    const size_t panel_at = static_cast<size_t>(start) * kPanel * 2;
    tile_load(4, first_row + 2 * start, row_stride);
    tile_load(6, panels + panel_at, 64);
    tile_load(7, right + panel_at, 64);
    tile_multiply(0, 4, 6);
    tile_multiply(1, 4, 7);
    if constexpr (Blocks == 2) {
      tile_load(5, second + 2 * start, row_stride);
      tile_multiply(2, 5, 6);
      tile_multiply(3, 5, 7);
    }
  }
  tile_store(0, out, kOutStride);
  tile_store(1, out + kPanel, kOutStride);
  if constexpr (Blocks == 2) {
    tile_store(2, out + kTileRows * kTile, kOutStride);
    tile_store(3, out + kTileRows * kTile + kPanel, kOutStride);
  }
}

// Whether tiles compute what they should: asked once, before anything relies on them.
static bool tiles_work() {
  constexpr int k = 2 * kTileTerms;
  static uint16_t rows[2 * kTileRows][k], panels[2][k / 2][kPanel][2];
  static float out[2 * kTileRows][kTile];
  const auto x = [](int row, int i) { return static_cast<float>((row * 7 + i * 3) % 11 - 5); };
  const auto w = [](int output, int i) { return static_cast<float>((output * 5 + i) % 13 - 6); };
  for (int i = 0; i < k; ++i) {
    for (int row = 0; row < 2 * kTileRows; ++row) rows[row][i] = to_bf16(x(row, i));
    for (int output = 0; output < kTile; ++output)
      panels[output / kPanel][i / 2][output % kPanel][i % 2] = to_bf16(w(output, i));
  }
  configure_tiles();
  multiply_tile_rows<2>(reinterpret_cast<uint8_t*>(rows), sizeof rows[0], reinterpret_cast<uint8_t*>(panels), k, out[0]);
  release_tiles();
  for (int row = 0; row < 2 * kTileRows; ++row)
    for (int output = 0; output < kTile; ++output) {
      float sum = 0;
      for (int i = 0; i < k; ++i) sum += x(row, i) * w(output, i);
      if (out[row][output] != sum) return false;
    }
  return true;
}
