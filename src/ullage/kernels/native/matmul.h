// Products of rows of activations with panels. Included by step.inl.
//
// A row of activations is kept in the form the multiplication instruction wants, always in 4 bytes per k:
//   AVX-512 with bf16:  bf16 weights read bf16 pairs;
//                       int8 weights read hi and lo, two signed bytes with x = scale * (256 hi + lo), which loses
//                       nothing that matters (one byte would: its error is larger than that of the weights);
//   elsewhere:          float32, weights are widened on the fly.

#if defined(__AVX512F__) && defined(__AVX512BF16__) && defined(__AVX512VNNI__)
#define ULLAGE_DOT_PRODUCTS 1
#else
#define ULLAGE_DOT_PRODUCTS 0
#endif

constexpr int kTileVecs = kTile / kLanes;
// Rows multiplied together: as many accumulators as the registers hold.
constexpr int kMaxRows = kLanes == 16 ? 12 : kLanes == 8 ? 3 : 2;
constexpr int kMaxRowsInt8 = ULLAGE_DOT_PRODUCTS ? 6 : kMaxRows;  // hi and lo have accumulators of their own

struct Rows {
  const uint8_t* data;
  size_t stride;  // bytes

  const uint8_t* row(int r) const { return data + static_cast<size_t>(r) * stride; }
};

// ---- Activations ----------------------------------------------------------------------------------------------------

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

// Bytes of hi, bytes of lo, for each group of k the sums of both, and the scale of the row.
struct ByteRow {
  int8_t* hi;
  int8_t* lo;
  int32_t* sums;  // [groups][2]
  float* scale;
};

ULLAGE_INLINE ByteRow byte_row(uint8_t* row, int k) {
  int32_t* sums = reinterpret_cast<int32_t*>(row + 2 * k);
  int8_t* bytes = reinterpret_cast<int8_t*>(row);
  return {bytes, bytes + k, sums, reinterpret_cast<float*>(sums + 2 * num_groups(k))};
}

// n is a multiple of 16.
ULLAGE_INLINE void pack_row_int8(const float* x, int n, uint8_t* to) {
#if ULLAGE_DOT_PRODUCTS
  const ByteRow row = byte_row(to, n);
  Vec peaks = splat(0.0f), nothing = splat(0.0f);
  for (int i = 0; i < n; i += kLanes) {
    const Vec v = load(x + i);
    peaks = maximum(maximum(v, -v), peaks);
    nothing += v * splat(0.0f);  // NaN if v isn't finite
  }
  const float peak = largest(peaks);
  // 256 hi + lo with hi, lo in -128..127 reaches 32639; 32512 keeps hi from overflowing when lo rounds up.
  const Vec inverse = splat(peak > 1e-30f ? 32512.0f / peak : 0.0f);
  *row.scale = peak / 32512.0f + sum(nothing);
  memset(row.sums, 0, 2 * sizeof(int32_t) * num_groups(n));
  for (int i = 0; i < n; i += kLanes) {
    const __m512 scaled = (__m512)(load(x + i) * inverse);
    const __m512i q = _mm512_maskz_cvtps_epi32(_mm512_cmp_ps_mask(scaled, scaled, _CMP_ORD_Q), scaled);  // 0 for NaN
    const __m512i hi = _mm512_srai_epi32(_mm512_add_epi32(q, _mm512_set1_epi32(128)), 8);
    const __m512i lo = _mm512_sub_epi32(q, _mm512_slli_epi32(hi, 8));
    const __m128i hi_bytes = _mm512_cvtepi32_epi8(hi), lo_bytes = _mm512_cvtepi32_epi8(lo);
    memcpy(row.hi + i, &hi_bytes, 16);
    memcpy(row.lo + i, &lo_bytes, 16);
    row.sums[i / kGroup * 2] += _mm512_reduce_add_epi32(hi);
    row.sums[i / kGroup * 2 + 1] += _mm512_reduce_add_epi32(lo);
  }
#else
  memcpy(to, x, sizeof(float) * n);
#endif
}

// ---- One tile: M rows times two panels ------------------------------------------------------------------------------

template <int M>
using Accumulators = Vec[M][kTileVecs];

constexpr int kPrefetchBytes = 4096;

// acc += rows[0..M) * (left | right), over k values of k.
template <int M>
ULLAGE_INLINE void multiply_bf16(const uint8_t* const (&rows)[M], const uint8_t* left, const uint8_t* right, int k,
                                 Accumulators<M>& acc) {
  for (int i = 0; i < k / 2; ++i) {
    const uint8_t* step[2] = {left + 64 * static_cast<size_t>(i), right + 64 * static_cast<size_t>(i)};
    __builtin_prefetch(step[0] + kPrefetchBytes, 0, 2);
    __builtin_prefetch(step[1] + kPrefetchBytes, 0, 2);
#if ULLAGE_DOT_PRODUCTS
    const __m512bh w0 = (__m512bh)_mm512_loadu_si512(step[0]);
    const __m512bh w1 = (__m512bh)_mm512_loadu_si512(step[1]);
    for (int m = 0; m < M; ++m) {
      int32_t pair;
      memcpy(&pair, rows[m] + 4 * i, 4);
      const __m512bh x = (__m512bh)_mm512_set1_epi32(pair);
      acc[m][0] = (Vec)_mm512_dpbf16_ps((__m512)acc[m][0], x, w0);
      acc[m][1] = (Vec)_mm512_dpbf16_ps((__m512)acc[m][1], x, w1);
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

// acc = rows[0..M) * tile. Sums over a group are whole numbers; its scales are applied to them.
template <int M>
ULLAGE_INLINE void multiply_int8(const uint8_t* const (&rows)[M], const uint8_t* tile, int k, Accumulators<M>& acc) {
  for (int start = 0; start < k; start += kGroup) {
    const int size = k - start < kGroup ? k - start : kGroup;
    const uint8_t* panels[2] = {tile, tile + kPanel * size};
    const float* scales = reinterpret_cast<const float*>(tile + kTile * size);
    for (int line = 0; line < kTile * size + 128; line += 64) __builtin_prefetch(tile + kPrefetchBytes + line, 0, 2);
    tile = reinterpret_cast<const uint8_t*>(scales + kTile);
#if ULLAGE_DOT_PRODUCTS
    __m512i hi[M][2], lo[M][2];
    for (int m = 0; m < M; ++m) {
      const int32_t* sums = byte_row(const_cast<uint8_t*>(rows[m]), k).sums + start / kGroup * 2;
      hi[m][0] = hi[m][1] = _mm512_set1_epi32(-128 * sums[0]);  // takes the 128 in the stored weights back out
      lo[m][0] = lo[m][1] = _mm512_set1_epi32(-128 * sums[1]);
    }
    for (int i = 0; i < size / 4; ++i) {
      const __m512i w[2] = {_mm512_loadu_si512(panels[0] + 64 * i), _mm512_loadu_si512(panels[1] + 64 * i)};
      for (int m = 0; m < M; ++m) {
        int32_t h, l;
        memcpy(&h, rows[m] + start + 4 * i, 4);
        memcpy(&l, rows[m] + k + start + 4 * i, 4);
        for (int j = 0; j < 2; ++j) {
          hi[m][j] = _mm512_dpbusd_epi32(hi[m][j], w[j], _mm512_set1_epi32(h));
          lo[m][j] = _mm512_dpbusd_epi32(lo[m][j], w[j], _mm512_set1_epi32(l));
        }
      }
    }
    for (int m = 0; m < M; ++m)
      for (int j = 0; j < 2; ++j) {
        const __m512i whole = _mm512_add_epi32(_mm512_slli_epi32(hi[m][j], 8), lo[m][j]);
        acc[m][j] += (Vec)_mm512_cvtepi32_ps(whole) * load(scales + kPanel * j);
      }
  }
  for (int m = 0; m < M; ++m)
    for (int j = 0; j < 2; ++j) acc[m][j] *= splat(*byte_row(const_cast<uint8_t*>(rows[m]), k).scale);
#else
    Accumulators<M> part = {};
    for (int i = 0; i < size / 4; ++i)
      for (int j = 0; j < kTileVecs; ++j) {
        const UVec quads = load_words(panels[j / (kTileVecs / 2)] + 64 * i + 4 * kLanes * (j % (kTileVecs / 2)));
        for (int b = 0; b < 4; ++b) {
          const Vec w = __builtin_convertvector((IVec)((quads >> (8 * b)) & 0xffu) - 128, Vec);
          for (int m = 0; m < M; ++m)
            part[m][j] += splat(reinterpret_cast<const float*>(rows[m])[start + 4 * i + b]) * w;
        }
      }
    for (int m = 0; m < M; ++m)
      for (int j = 0; j < kTileVecs; ++j) acc[m][j] += part[m][j] * load(scales + kLanes * j);
  }
#endif
}

// ---- A matrix -------------------------------------------------------------------------------------------------------

// Calls body(M as a compile-time constant, first row) until all rows are done.
template <int M = kMaxRows, class Body>
ULLAGE_INLINE void in_row_groups(int num_rows, int first, Body&& body) {
  while (num_rows - first >= M) {
    body(std::integral_constant<int, M>{}, first);
    first += M;
  }
  constexpr int next = M == 12 ? 8 : M == 8 ? 6 : M == 6 ? 4 : M - 1;
  if constexpr (M > 1) in_row_groups<next>(num_rows, first, body);
}

// Multiplies all rows with the tiles [tile_begin, tile_end) and hands each finished row of a tile (kTileVecs vectors)
// to finish(row, tile, vectors).
template <class Finish>
ULLAGE_INLINE void multiply_tiles(const Matrix& w, const Rows& a, int num_rows, int tile_begin, int tile_end,
                                  Finish&& finish) {
  for (int tile = tile_begin; tile < tile_end; ++tile) {
    const auto multiply = [&](auto count, int first) __attribute__((always_inline)) {
      constexpr int M = decltype(count)::value;
      Accumulators<M> acc = {};
      const uint8_t* rows[M];
      for (int m = 0; m < M; ++m) rows[m] = a.row(first + m);
      if (w.type == WeightType::bf16) {
        multiply_bf16<M>(rows, w.tile(tile), w.tile(tile) + w.tile_bytes() / 2, w.k, acc);
      } else if constexpr (M <= kMaxRowsInt8) {
        multiply_int8<M>(rows, w.tile(tile), w.k, acc);
      }
      for (int m = 0; m < M; ++m) finish(first + m, tile, acc[m]);
    };
    if (w.type == WeightType::bf16) {
      in_row_groups(num_rows, 0, multiply);
    } else {
      in_row_groups<kMaxRowsInt8>(num_rows, 0, multiply);
    }
  }
}
