#include "bind_roofline.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "roofline.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace ullage {

void bind_roofline(nb::module_& m) {
  m.def("read_seconds", &read_seconds, "num_bytes"_a, "num_threads"_a, "num_passes"_a, "prefetch_bytes"_a,
        nb::call_guard<nb::gil_scoped_release>());
  m.def("peak_operations", &peak_operations, "isa"_a, "weight_type"_a, "num_threads"_a,
        nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace ullage
