// The step for one instruction set; CMakeLists.txt gives this file its compiler flags.
#define ULLAGE_ISA avx2
#define ULLAGE_ISA_NAME "avx2"
#include "isa.inl"
