// Vectors of the instruction set this file is compiled for, through the compiler's vector extension. Included by
// step.inl, inside a namespace of its own per instruction set, so that no function compiled for a newer processor is
// ever shared.

#if defined(__AVX512F__)
#define ULLAGE_LANES 16
#elif defined(__AVX2__)
#define ULLAGE_LANES 8
#else
#define ULLAGE_LANES 4
#endif

#define ULLAGE_INLINE static inline __attribute__((always_inline))

constexpr int kLanes = ULLAGE_LANES;
typedef float Vec __attribute__((vector_size(4 * ULLAGE_LANES)));
typedef int32_t IVec __attribute__((vector_size(4 * ULLAGE_LANES)));
typedef uint32_t UVec __attribute__((vector_size(4 * ULLAGE_LANES)));

ULLAGE_INLINE Vec splat(float value) { return Vec{} + value; }

ULLAGE_INLINE Vec load(const float* from) {
  Vec v;
  memcpy(&v, from, sizeof v);
  return v;
}

ULLAGE_INLINE UVec load_words(const void* from) {
  UVec v;
  memcpy(&v, from, sizeof v);
  return v;
}

ULLAGE_INLINE void store(float* to, Vec v) { memcpy(to, &v, sizeof v); }

ULLAGE_INLINE Vec maximum(Vec a, Vec b) { return a > b ? a : b; }

ULLAGE_INLINE float sum(Vec v) {
  float total = 0;
  for (int i = 0; i < kLanes; ++i) total += v[i];
  return total;
}

ULLAGE_INLINE float largest(Vec v) {
  float best = v[0];
  for (int i = 1; i < kLanes; ++i) best = v[i] > best ? v[i] : best;
  return best;
}

// e^x to about 2 ulp: 2^n * 2^f with f in [-1/2, 1/2], 2^f by its Taylor polynomial of degree 6. Below -87 gives 0.
// NaN stays NaN: what goes wrong inside must show in the logits.
ULLAGE_INLINE Vec exponential(Vec x) {
  const Vec tiny = splat(-87.0f), huge = splat(88.0f);
  Vec y = x < tiny ? tiny : x;
  y = y > huge ? huge : y;
  const Vec scaled = y * splat(1.44269504088896341f);
  const Vec rounder = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to the nearest whole number
  const Vec whole = (scaled + rounder) - rounder;
  // In two parts, so that y - n ln 2 is exact.
  const Vec t = (y - whole * splat(0.693359375f)) + whole * splat(2.12194440e-4f);
  Vec p = splat(1.0f / 720.0f);
  p = p * t + splat(1.0f / 120.0f);
  p = p * t + splat(1.0f / 24.0f);
  p = p * t + splat(1.0f / 6.0f);
  p = p * t + splat(0.5f);
  p = p * t + splat(1.0f);
  p = p * t + splat(1.0f);
  const IVec exponent = __builtin_convertvector(whole, IVec);
  const Vec power = (Vec)((exponent + 127) << 23);
  const Vec result = p * power;
  return x < tiny ? splat(0.0f) : result;
}

ULLAGE_INLINE float from_bf16(uint16_t bits) {
  const uint32_t word = static_cast<uint32_t>(bits) << 16;
  float value;
  memcpy(&value, &word, 4);
  return value;
}

// Round to nearest, ties to even. Values are finite.
ULLAGE_INLINE uint16_t to_bf16(float value) {
  uint32_t word;
  memcpy(&word, &value, 4);
  return static_cast<uint16_t>((word + 0x7fff + ((word >> 16) & 1)) >> 16);
}
