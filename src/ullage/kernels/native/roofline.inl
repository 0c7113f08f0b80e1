// Dot products from register to register, as fast as they go. Included by the isa_*.cpp files after step.inl, whose
// choice of instructions it repeats.

#if defined(ULLAGE_TILES) && ULLAGE_TILES == 1
// Four products of 16 x 32 and 32 x 16 bf16 on tiles, as the kernels arrange them. Returns how many operations.
static double tile_loop(int64_t rounds) {
  configure_tiles();
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_zero(4);
  _tile_zero(5);
  _tile_zero(6);
  _tile_zero(7);
  for (int64_t round = 0; round < rounds; ++round) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  release_tiles();
  return static_cast<double>(rounds) * 4 * 2.0 * 16 * 16 * 32;
}
#endif

// Runs `rounds` rounds of independent products, in bf16 or in whole numbers; returns how many operations these were.
#if ULLAGE_DOT_PRODUCTS
constexpr int kChains = 16;  // more than latency times instructions a cycle

static double peak_loop(bool bf16, int64_t rounds) {
#if defined(ULLAGE_TILES) && ULLAGE_TILES == 1
  if (bf16) return tile_loop(rounds);
#endif
  __m512i x = _mm512_set1_epi32(1), w = _mm512_set1_epi32(2);
  __m512i whole[kChains] = {};
  __m512 real[kChains] = {};
  // Unknown to the compiler: it would take equal sums for one, and constant products out of the loop.
  asm volatile("" : "+v"(x), "+v"(w));
  for (int i = 0; i < kChains; ++i) asm volatile("" : "+v"(whole[i]), "+v"(real[i]));
  for (int64_t round = 0; round < rounds; ++round) {
    if (bf16) {
      for (int i = 0; i < kChains; ++i) real[i] = _mm512_dpbf16_ps(real[i], (__m512bh)x, (__m512bh)w);
    } else {
      for (int i = 0; i < kChains; ++i) whole[i] = _mm512_dpbusd_epi32(whole[i], w, x);
    }
  }
  for (int i = 0; i < kChains; ++i) asm volatile("" : : "v"(whole[i]), "v"(real[i]));
  return static_cast<double>(rounds) * kChains * (bf16 ? 2.0 * 32 : 2.0 * 64);
}
#else
constexpr int kChains = ULLAGE_LANES == 16 ? 16 : 12;

// Weights of every type are widened to float32 here.
static double peak_loop(bool, int64_t rounds) {
  volatile float unknown = 1e-9f;  // to the compiler: it would take equal sums for one
  const Vec x = splat(unknown), w = splat(unknown);
  Vec sums[kChains];
  for (Vec& lanes : sums) lanes = splat(unknown);
  for (int64_t round = 0; round < rounds; ++round)
    for (int i = 0; i < kChains; ++i) sums[i] += x * w;
  float total = 0;
  for (const Vec& lanes : sums) total += sum(lanes);
  volatile float kept = total;
  (void)kept;
  return static_cast<double>(rounds) * kChains * 2.0 * kLanes;
}
#endif
