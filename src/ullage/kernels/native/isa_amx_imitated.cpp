// The step for one instruction set; CMakeLists.txt gives this file its compiler flags.
#include <math.h>
#include <string.h>

#include <chrono>
#include <type_traits>

#include <immintrin.h>
#include "decoder.h"

#define ULLAGE_TILES 2

namespace ullage::amx_imitated {
namespace {
#include "step.inl"
}  // namespace

extern const StepFunction step = &run_step;
}  // namespace ullage::amx_imitated
