// The step for one instruction set; CMakeLists.txt gives this file its compiler flags.
#define ULLAGE_ISA amx
#define ULLAGE_ISA_NAME "amx"
#define ULLAGE_TILES 1
#include "isa.inl"
