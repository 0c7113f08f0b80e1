// From float32 rows to panels, once, when a model is loaded.
#pragma once

#include "decoder.h"

namespace ullage {

// Where row r of a source matrix goes: groups of 16 rows are `group_stride` outputs apart, so that gate and up rows can
// take turns (stride 32, first_output 0 and 16); stride 16 puts them one after another.
struct Placement {
  int first_output;
  int group_stride;

  int output_of(int row) const { return first_output + row / kPanel * group_stride + row % kPanel; }
};

// bf16 rounds to nearest even; int8 is symmetric in each group: w = scale * (q - 128), scale = max|w| / 127.
void pack_rows(const float* rows, int num_rows, Placement placement, const Matrix& matrix, uint8_t* tiles);

}  // namespace ullage
