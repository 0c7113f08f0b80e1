// From rows of a model file to tiles, once, when a model is loaded.
#pragma once

#include "grouped_row.h"

namespace ullage {

// Where row r of a source matrix goes: groups of 16 rows are `group_stride` outputs apart, so that gate and up rows can
// take turns (stride 32, first_output 0 and 16); stride 16 puts them one after another.
struct Placement {
  int first_output;
  int group_stride;

  int output_of(int row) const { return first_output + row / kPanel * group_stride + row % kPanel; }
};

// Rounds float rows of `k` numbers to the matrix's format: bf16, int8 or int4_min. `tiles` is zeroed memory.
void pack_rows(const float* rows, int num_rows, int k, Placement placement, const Matrix& matrix, uint8_t* tiles);

// Carries stored rows over without loss. False when the format can't hold them or a scale isn't finite.
bool pack_blocks(BlockType type, const uint8_t* rows, int num_rows, int k, Placement placement, const Matrix& matrix,
                 uint8_t* tiles);

}  // namespace ullage
