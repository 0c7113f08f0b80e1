// The step for one instruction set; CMakeLists.txt gives this file its compiler flags.
#define ULLAGE_ISA avx512
#define ULLAGE_ISA_NAME "avx512"
#include "isa.inl"
