// The step for one instruction set; CMakeLists.txt gives this file its compiler flags.
#include <math.h>
#include <string.h>

#include <chrono>
#include <type_traits>

#include "decoder.h"

namespace ullage::avx2 {
namespace {
#include "step.inl"
}  // namespace

extern const StepFunction step = &run_step;
}  // namespace ullage::avx2
