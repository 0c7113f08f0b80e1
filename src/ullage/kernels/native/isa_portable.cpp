// The step for one instruction set; CMakeLists.txt gives this file its compiler flags.
#include <math.h>
#include <string.h>

#include <type_traits>

#include "decoder.h"

namespace ullage::portable {
namespace {
#include "step.inl"
#include "sampling.h"
}  // namespace

extern const StepFunction step = &run_step;
extern const SampleFunction sample = &sample_rows;
}  // namespace ullage::portable
