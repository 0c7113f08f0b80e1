// The step for one instruction set; CMakeLists.txt gives this file its compiler flags.
#define ULLAGE_ISA portable
#define ULLAGE_ISA_NAME "portable"
#include "isa.inl"
