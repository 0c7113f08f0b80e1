// The step for one instruction set; CMakeLists.txt gives this file its compiler flags.
#define ULLAGE_ISA amx_imitated
#define ULLAGE_ISA_NAME "amx-imitated"
#define ULLAGE_TILES 2
#include "isa.inl"
