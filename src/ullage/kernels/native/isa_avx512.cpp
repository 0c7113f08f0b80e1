// The step for one instruction set; CMakeLists.txt gives this file its compiler flags.
#include <math.h>
#include <string.h>

#include <type_traits>

#include <immintrin.h>
#include "decoder.h"

namespace ullage::avx512 {
namespace {
#include "step.inl"

#include "roofline.inl"
}  // namespace

extern const StepFunction step = &run_step;
extern const PeakFunction peak = &peak_loop;
}  // namespace ullage::avx512
