// What this machine can do at best, measured: the bandwidth of reading, and the rate of each dot product. No kernel
// runs here; benchmarks divide by these figures.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace ullage {

// Seconds that all threads together took to read `num_bytes` once, for each pass. The memory lies on huge pages where
// the system has them; the first pass, which warms caches, isn't reported. Each thread reads a share of its own and
// prefetches `prefetch_bytes` ahead (0: not at all).
std::vector<double> read_seconds(size_t num_bytes, int num_threads, int num_passes, size_t prefetch_bytes);

// Operations a second (a multiplication and an addition are two) of the instruction that the kernels of an instruction
// set use for weights of this type, register to register, on all threads: the best of some tries.
double peak_operations(const std::string& isa, const std::string& weight_type, int num_threads);

}  // namespace ullage
