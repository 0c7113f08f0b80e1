#pragma once

#include <nanobind/nanobind.h>

namespace ullage {

// Adds read_seconds and peak_operations to the module.
void bind_roofline(nanobind::module_& m);

}  // namespace ullage
