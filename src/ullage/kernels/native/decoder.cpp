#include "decoder.h"

namespace ullage {

// One for each instruction set this build has (CMakeLists.txt says which).
namespace portable {
extern const StepFunction step;
extern const PeakFunction peak;
}
#if ULLAGE_AVX
namespace avx2 {
extern const StepFunction step;
extern const PeakFunction peak;
}
namespace avx512 {
extern const StepFunction step;
extern const PeakFunction peak;
}
#endif

int available_isas(const Isa* out[3]) {
  int count = 0;
#if ULLAGE_AVX
  static const Isa avx512_isa = {"avx512", avx512::step, avx512::peak};
  static const Isa avx2_isa = {"avx2", avx2::step, avx2::peak};
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni") &&
      __builtin_cpu_supports("avx512bf16"))
    out[count++] = &avx512_isa;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) out[count++] = &avx2_isa;
#endif
  static const Isa portable_isa = {"portable", portable::step, portable::peak};
  out[count++] = &portable_isa;
  return count;
}

}  // namespace ullage
