#include "decoder.h"

#if ULLAGE_AMX
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace ullage {

// One for each instruction set this build has (CMakeLists.txt says which).
namespace portable {
extern const Isa isa;
}
#if ULLAGE_AVX
namespace avx2 {
extern const Isa isa;
}
namespace avx512 {
extern const Isa isa;
}
namespace amx_imitated {
extern const Isa isa;
}
#endif
#if ULLAGE_AMX
namespace amx {
extern const Isa isa;
bool usable();
}  // namespace amx

namespace {

// The processor has bf16 tiles, the system lets this process use them, and they compute what they should.
bool has_amx() {
  unsigned eax, ebx, ecx, edx;
  if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) || !(edx >> 22 & 1) || !(edx >> 24 & 1)) return false;
  constexpr int kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0 && amx::usable();
}

}  // namespace
#endif

int available_isas(const Isa* out[kMaxIsas]) {
  int count = 0;
#if ULLAGE_AVX
  __builtin_cpu_init();
  const bool has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                          __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bf16");
#if ULLAGE_AMX
  static const bool amx_found = has_avx512 && has_amx();
  if (amx_found) out[count++] = &amx::isa;
#endif
  if (has_avx512) out[count++] = &avx512::isa;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) out[count++] = &avx2::isa;
#endif
  out[count++] = &portable::isa;
#if ULLAGE_AVX
  if (has_avx512) out[count++] = &amx_imitated::isa;
#endif
  return count;
}

}  // namespace ullage
