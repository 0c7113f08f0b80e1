// All that is compiled once per instruction set, in a namespace of its own.
#include <math.h>
#include <string.h>

#include <chrono>
#include <type_traits>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "decoder.h"

namespace ullage::ULLAGE_ISA {
namespace {
#include "step.inl"
#include "sampling.h"
#include "roofline.inl"
}  // namespace

extern const Isa isa = {ULLAGE_ISA_NAME, &run_step, &sample_rows, &peak_loop};

#if ULLAGE_TILES
bool usable() { return tiles_work(); }
#endif
}  // namespace ullage::ULLAGE_ISA
