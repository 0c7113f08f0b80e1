// Products of rows of activations with matrices. Included by step.inl.
//
// Two ways, and which one is taken depends on how many rows share the weights read:
//   few rows, weights in groups:  the groups as they are, by byte products. A row is kept as two signed bytes per k,
//                                 x = scale * (256 hi + lo), which loses nothing that matters (one byte would: its
//                                 error is larger than that of the weights);
//   otherwise:                    tiles are widened to bf16 panels, once for all rows, and rows are bf16 too. Without
//                                 dot product instructions rows stay float32.

#if defined(__AVX512F__) && defined(__AVX512BF16__) && defined(__AVX512VNNI__)
#define ULLAGE_DOT_PRODUCTS 1
#else
#define ULLAGE_DOT_PRODUCTS 0
#endif

#if !defined(ULLAGE_TILES)
#define ULLAGE_TILES 0
#endif

constexpr int kTileVecs = kTile / kLanes;
// Rows multiplied together: as many accumulators as the registers hold.
constexpr int kMaxRows = kLanes == 16 ? 12 : kLanes == 8 ? 3 : 2;
constexpr int kMaxGroupRows = 3;     // of byte products; four would spill
constexpr int kMostFewRows = ULLAGE_TILES ? 6 : 16;  // up to so many rows byte products are faster
constexpr int kPrefetchBytes = 8192;

ULLAGE_INLINE bool use_byte_products(const Matrix& w, int num_rows) {
  return ULLAGE_DOT_PRODUCTS && w.format != Format::bf16 && num_rows <= kMostFewRows;
}

// ---- Activations: 4 bytes per k, in the form the product reads ------------------------------------------------------

// n is a multiple of 2.
ULLAGE_INLINE void pack_row_bf16(const float* x, int n, uint8_t* to) {
#if ULLAGE_DOT_PRODUCTS
  int i = 0;
  for (; i + 16 <= n; i += 16) {
    const __m256bh v = _mm512_cvtneps_pbh(_mm512_loadu_ps(x + i));
    memcpy(to + 2 * i, &v, 32);
  }
  for (; i < n; ++i) reinterpret_cast<uint16_t*>(to)[i] = to_bf16(x[i]);
#else
  memcpy(to, x, sizeof(float) * n);
#endif
}

// A row as bytes: [hi][lo], each in the order of formats.h; the sums of 256 hi + lo over 32 and over 16 k; the scale.
struct ByteRow {
  const uint8_t* hi;
  const uint8_t* lo;
  const float* sums32;
  const float* sums16;
  const float* scale;

  ByteRow(const uint8_t* row, int k)
      : hi(row),
        lo(row + k),
        sums32(reinterpret_cast<const float*>(row + 2 * k)),
        sums16(sums32 + k / 32),
        scale(sums16 + k / 16) {}
};

#if ULLAGE_DOT_PRODUCTS
// n is a multiple of 16; behind it the row is filled with zeros up to `k`, a multiple of 32.
ULLAGE_INLINE void pack_row_bytes(const float* x, int n, int k, uint8_t* to) {
  const ByteRow row(to, k);
  uint8_t *hi_at = to, *lo_at = to + k;
  float* sums32 = const_cast<float*>(row.sums32);
  float* sums16 = const_cast<float*>(row.sums16);
  Vec peaks = splat(0.0f), nothing = splat(0.0f);
  for (int i = 0; i < n; i += kLanes) {
    const Vec v = load(x + i);
    peaks = maximum(maximum(v, -v), peaks);
    nothing += v * splat(0.0f);  // NaN if v isn't finite
  }
  const float peak = largest(peaks);
  // 256 hi + lo with hi, lo in -128..127 reaches 32639; 32512 keeps hi from overflowing when lo rounds up.
  const Vec inverse = splat(peak > 1e-30f ? 32512.0f / peak : 0.0f);
  *const_cast<float*>(row.scale) = peak / 32512.0f + sum(nothing);
  const __m128i order = _mm_setr_epi8(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15);
  for (int i = 0; i < k; i += kLanes) {
    const __m512 scaled = i < n ? (__m512)(load(x + i) * inverse) : _mm512_setzero_ps();
    const __m512i q = _mm512_maskz_cvtps_epi32(_mm512_cmp_ps_mask(scaled, scaled, _CMP_ORD_Q), scaled);  // 0 for NaN
    const __m512i hi = _mm512_srai_epi32(_mm512_add_epi32(q, _mm512_set1_epi32(128)), 8);
    const __m512i lo = _mm512_sub_epi32(q, _mm512_slli_epi32(hi, 8));
    const __m128i hi_bytes = _mm_shuffle_epi8(_mm512_cvtepi32_epi8(hi), order);
    const __m128i lo_bytes = _mm_shuffle_epi8(_mm512_cvtepi32_epi8(lo), order);
    memcpy(hi_at + i, &hi_bytes, 16);
    memcpy(lo_at + i, &lo_bytes, 16);
    sums16[i / 16] = static_cast<float>(_mm512_reduce_add_epi32(q));
    if (i % 32) sums32[i / 32] = sums16[i / 16 - 1] + sums16[i / 16];
  }
}
#endif

// ---- One tile -------------------------------------------------------------------------------------------------------
// All write out[M][kTile].

template <int M>
using Accumulators = Vec[M][kTileVecs];

struct PanelPair {
  const uint8_t* left;
  const uint8_t* right;
};

// acc += rows[0..M) * panels, over k values of k. fetch(left, right, offset) is called at each pair of lines, to fetch
// another one from memory.
template <int M, class Fetch>
ULLAGE_INLINE void multiply_bf16(const uint8_t* const (&rows)[M], PanelPair panels, int k, Accumulators<M>& acc,
                                 Fetch&& fetch) {
  for (int i = 0; i < k / 2; ++i) {
    const size_t at = 64 * static_cast<size_t>(i);
    const uint8_t* step[2] = {panels.left + at, panels.right + at};
    fetch(step[0], step[1], at);
#if ULLAGE_DOT_PRODUCTS
    const __m512bh w0 = (__m512bh)_mm512_loadu_si512(step[0]);
    const __m512bh w1 = (__m512bh)_mm512_loadu_si512(step[1]);
    for (int m = 0; m < M; ++m) {
      int32_t pair;
      memcpy(&pair, rows[m] + 4 * i, 4);
      const __m512bh x = (__m512bh)_mm512_set1_epi32(pair);
      acc[m][0] = (Vec)_mm512_dpbf16_ps((__m512)acc[m][0], w0, x);
      acc[m][1] = (Vec)_mm512_dpbf16_ps((__m512)acc[m][1], w1, x);
    }
#else
    for (int j = 0; j < kTileVecs; ++j) {
      const UVec pairs = load_words(step[j / (kTileVecs / 2)] + 4 * kLanes * (j % (kTileVecs / 2)));
      const Vec even = (Vec)(pairs << 16);
      const Vec odd = (Vec)(pairs & 0xffff0000u);
      for (int m = 0; m < M; ++m) {
        const float* x = reinterpret_cast<const float*>(rows[m]) + 2 * i;
        acc[m][j] += splat(x[0]) * even + splat(x[1]) * odd;
      }
    }
#endif
  }
}

template <int M>
static void multiply_tile(const uint8_t* first_row, size_t row_stride, const uint8_t* panels, int k, float* out) {
  Accumulators<M> acc = {};
  const uint8_t* rows[M];
  for (int m = 0; m < M; ++m) rows[m] = first_row + row_stride * m;
  const PanelPair pair = {panels, panels + static_cast<size_t>(2) * kPanel * k};
  multiply_bf16<M>(rows, pair, k, acc, [](const uint8_t* left, const uint8_t* right, size_t) {
    __builtin_prefetch(left + kPrefetchBytes, 0, 2);  // a distance known here needs no registers
    __builtin_prefetch(right + kPrefetchBytes, 0, 2);
  });
  for (int m = 0; m < M; ++m)
    for (int j = 0; j < kTileVecs; ++j) store(out + m * kTile + j * kLanes, acc[m][j]);
}

// The 16 (or kLanes) scales or minima that begin at `from`.
template <class F>
ULLAGE_INLINE Vec load_scales(const uint8_t* from) {
  if constexpr (F::scale_bytes == 4) return load(reinterpret_cast<const float*>(from));
  typedef uint16_t Halves __attribute__((vector_size(2 * kLanes)));
  Halves halves;
  memcpy(&halves, from, sizeof halves);
  const UVec bits = __builtin_convertvector(halves, UVec);
  const Vec magnitude = (Vec)((bits & 0x7fffu) << 13) * splat(0x1p112f);  // see from_half
  return (Vec)((UVec)magnitude | ((bits & 0x8000u) << 16));
}

// What is added to scale * q.
template <class F>
ULLAGE_INLINE Vec load_offsets(const uint8_t* group, int output, Vec scales) {
  if constexpr (F::has_minimum) return load_scales<F>(group + F::minima_at + F::scale_bytes * output);
  return scales * splat(static_cast<float>(-F::zero));
}

#if ULLAGE_DOT_PRODUCTS
// Four consecutive bytes of k of one panel, in the order of formats.h. i is a multiple of 4.
template <class F>
ULLAGE_INLINE __m512i load_quads(const uint8_t* panel, int i) {
  if constexpr (F::bits == 8) return _mm512_loadu_si512(panel + 16 * i);
  const __m512i pairs = _mm512_loadu_si512(panel + 8 * (i & ~7));
  return _mm512_and_si512(i & 4 ? _mm512_srli_epi16(pairs, 4) : pairs, _mm512_set1_epi8(15));
}

ULLAGE_INLINE __m512i broadcast_quad(const uint8_t* at) {
  int32_t quad;
  memcpy(&quad, at, 4);
  return _mm512_set1_epi32(quad);
}

template <class F, int M>
static void multiply_groups(const uint8_t* first_row, size_t row_stride, const uint8_t* group, int k, float* out) {
  Vec acc[M][2] = {};
  const uint8_t* rows[M];
  for (int m = 0; m < M; ++m) rows[m] = first_row + row_stride * m;
  for (int start = 0; start < k; start += F::terms, group += F::bytes) {
    for (size_t line = 0; line < F::bytes; line += 64) __builtin_prefetch(group + kPrefetchBytes + line, 0, 2);
    __m512i hi[M][2], lo[M][2];
    for (int m = 0; m < M; ++m) hi[m][0] = hi[m][1] = lo[m][0] = lo[m][1] = _mm512_setzero_si512();
    for (int i = 0; i < F::terms; i += 4) {
      const __m512i q[2] = {load_quads<F>(group, i), load_quads<F>(group + F::panel_bytes, i)};
      for (int m = 0; m < M; ++m) {
        const __m512i h = broadcast_quad(rows[m] + start + i), l = broadcast_quad(rows[m] + k + start + i);
        for (int panel = 0; panel < 2; ++panel) {
          hi[m][panel] = _mm512_dpbusd_epi32(hi[m][panel], q[panel], h);
          lo[m][panel] = _mm512_dpbusd_epi32(lo[m][panel], q[panel], l);
        }
      }
    }
    for (int panel = 0; panel < 2; ++panel) {
      const Vec scales = load_scales<F>(group + 2 * F::panel_bytes + F::scale_bytes * kPanel * panel);
      const Vec offsets = load_offsets<F>(group, kPanel * panel, scales);
      for (int m = 0; m < M; ++m) {
        const ByteRow row(rows[m], k);
        const float sum_x = F::terms == 32 ? row.sums32[start / 32] : row.sums16[start / 16];
        const __m512i whole = _mm512_add_epi32(_mm512_slli_epi32(hi[m][panel], 8), lo[m][panel]);
        acc[m][panel] += (Vec)_mm512_cvtepi32_ps(whole) * scales;
        acc[m][panel] += splat(sum_x) * offsets;
      }
    }
  }
  for (int m = 0; m < M; ++m)
    for (int panel = 0; panel < 2; ++panel)
      store(out + m * kTile + panel * kPanel, acc[m][panel] * splat(*ByteRow(rows[m], k).scale));
}
#endif

// Pairs (even, odd) of floats to pairs of bf16, nearest; a tie goes up.
ULLAGE_INLINE UVec bf16_pairs(Vec even, Vec odd) {
  return (((UVec)even + 0x8000u) >> 16) | (((UVec)odd + 0x8000u) & 0xffff0000u);
}

// Eight consecutive k of kLanes outputs to four vectors of bf16 pairs, 64 bytes apart.
template <class F>
ULLAGE_INLINE void expand_eight(const uint8_t* lanes, Vec scales, Vec offsets, uint8_t* to) {
  for (int pair = 0; pair < 4; ++pair) {
    Vec even, odd;
    if constexpr (F::bits == 4) {
      // 0x4300 | q is 128 + q in bf16. The odd float's lower half holds the even number: 0x4300 / 2^16 is taken out by
      // the offset, what remains (q / 2^16) is far below the rounding to bf16.
      const UVec words = ((load_words(lanes) >> (4 * pair)) & 0x000f000fu) | 0x43004300u;
      even = (Vec)(words << 16) * scales + (offsets - splat(128.0f) * scales);
      odd = (Vec)words * scales + (offsets - splat(128.0f + 0x4300 / 65536.0f) * scales);
    } else {
      const UVec words = (load_words(lanes + 64 * (pair % 2)) >> (8 * (pair / 2))) & 0x00ff00ffu;
      even = __builtin_convertvector((IVec)(words & 0xffffu), Vec) * scales + offsets;
      odd = __builtin_convertvector((IVec)(words >> 16), Vec) * scales + offsets;
    }
    const UVec pairs = bf16_pairs(even, odd);
    memcpy(to + 64 * pair, &pairs, sizeof pairs);
  }
}

// A tile in groups, widened to bf16 panels. Fetches the tile behind it, which is read next.
template <class F>
static void expand_tile(const uint8_t* group, int k, uint8_t* to) {
  const size_t tile_bytes = static_cast<size_t>(k / F::terms) * F::bytes;
  for (int start = 0; start < k; start += F::terms, group += F::bytes) {
    for (size_t line = 0; line < F::bytes; line += 64) __builtin_prefetch(group + tile_bytes + line, 0, 2);
    for (int j = 0; j < kTileVecs; ++j) {
      const int output = j * kLanes;
      const uint8_t* lanes = group + output / kPanel * F::panel_bytes + output % kPanel * 4;
      uint8_t* panel = to + static_cast<size_t>(output / kPanel) * 2 * kPanel * k + output % kPanel * 4;
      const Vec scales = load_scales<F>(group + 2 * F::panel_bytes + F::scale_bytes * output);
      const Vec offsets = load_offsets<F>(group, output, scales);
      for (int eight = 0; eight < F::terms / 8; ++eight)
        expand_eight<F>(lanes + 64 * (F::bits / 4) * eight, scales, offsets,
                        panel + static_cast<size_t>(64) * (start / 2 + 4 * eight));
    }
  }
}

#if ULLAGE_TILES
#include "tiles.h"
#endif

// ---- A matrix -------------------------------------------------------------------------------------------------------

using TileKernel = void (*)(const uint8_t* first_row, size_t row_stride, const uint8_t* tile, int k, float* out);

constexpr int kMostRowsTogether = ULLAGE_TILES ? 2 * 16 : kMaxRows;

ULLAGE_INLINE int rows_together(int num_rows, int most) {
  if (most > kMaxRows && num_rows > 4) return num_rows < most ? num_rows : most;  // tiles take what there is
  for (const int count : {12, 8, 6, 4, 3, 2})
    if (count <= most && count <= num_rows) return count;
  return 1;
}

static TileKernel dense_kernel(int num_rows) {
#if ULLAGE_TILES
  if (num_rows > 4) return num_rows > kTileRows ? multiply_tile_rows<2> : multiply_tile_rows<1>;
#endif
  switch (num_rows) {
#if ULLAGE_LANES == 16
    case 12: return multiply_tile<12>;
    case 8: return multiply_tile<8>;
    case 6: return multiply_tile<6>;
    case 4: return multiply_tile<4>;
#endif
#if ULLAGE_LANES >= 8
    case 3: return multiply_tile<3>;
#endif
    case 2: return multiply_tile<2>;
    default: return multiply_tile<1>;
  }
}

static TileKernel group_kernel(Format format, int num_rows) {
#if ULLAGE_DOT_PRODUCTS
  return with_format(format, [&](auto f) -> TileKernel {
    using F = decltype(f);
    switch (num_rows) {
      case 4: return multiply_groups<F, 4>;
      case 3: return multiply_groups<F, 3>;
      case 2: return multiply_groups<F, 2>;
      default: return multiply_groups<F, 1>;
    }
  });
#else
  (void)format;
  return dense_kernel(num_rows);
#endif
}

// Multiplies all rows with the tiles [tile_begin, tile_end) and hands each finished row of a tile to
// finish(row, tile, values[kTile]). `panels` is scratch for one widened tile.
template <class Finish>
ULLAGE_INLINE void multiply_tiles(const Matrix& w, const uint8_t* activations, size_t row_stride, int num_rows,
                                  int tile_begin, int tile_end, uint8_t* panels, Finish&& finish) {
  const bool byte_products = use_byte_products(w, num_rows);
  alignas(64) float out[kMostRowsTogether * kTile];
  for (int tile = tile_begin; tile < tile_end; ++tile) {
    const uint8_t* weights = w.tile(tile);
    if (!byte_products && w.format != Format::bf16) {
      with_format(w.format, [&](auto f) { expand_tile<decltype(f)>(weights, w.k, panels); });
      weights = panels;
    }
    for (int first = 0; first < num_rows;) {
      const int count = rows_together(num_rows - first, byte_products ? kMaxGroupRows : kMostRowsTogether);
      const TileKernel kernel = byte_products ? group_kernel(w.format, count) : dense_kernel(count);
      kernel(activations + row_stride * first, row_stride, weights, w.k, out);
      for (int m = 0; m < count; ++m) finish(first + m, tile, out + m * kTile);
      first += count;
    }
  }
}
