#include "decoder.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <thread>

namespace ullage {

void Barrier::wait() {
  const uint32_t phase = phase_.load(std::memory_order_relaxed);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == num_threads_) {
    arrived_.store(0, std::memory_order_relaxed);
    phase_.store(phase + 1, std::memory_order_release);
    return;
  }
  // The others are microseconds away, unless the machine is busy: then give the core to whoever holds us up.
  for (int spins = 0; phase_.load(std::memory_order_acquire) == phase; ++spins) {
    if (spins > 20000) std::this_thread::yield();
#if defined(__x86_64__)
    _mm_pause();
#endif
  }
}

namespace portable {
extern const StepFunction step;
}
#if defined(__x86_64__)
namespace avx2 {
extern const StepFunction step;
}
namespace avx512 {
extern const StepFunction step;
}
#endif

int available_isas(const Isa* out[4]) {
  int count = 0;
#if defined(__x86_64__)
  static const Isa avx512_isa = {"avx512", avx512::step};
  static const Isa avx2_isa = {"avx2", avx2::step};
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bf16"))
    out[count++] = &avx512_isa;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) out[count++] = &avx2_isa;
#endif
  static const Isa portable_isa = {"portable", portable::step};
  out[count++] = &portable_isa;
  return count;
}

}  // namespace ullage
