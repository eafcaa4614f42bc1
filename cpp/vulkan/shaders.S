// Puts the SPIR-V of every shader in the build's list (cmake/vulkan.cmake) between two labels. Compiling the files as C arrays would take a
// hundred times longer.
#define PUMICE_SHADER(name, path) \
    .balign 16; .hidden pumice_spirv_##name; .globl pumice_spirv_##name; pumice_spirv_##name: .incbin path; \
    .hidden pumice_spirv_end_##name; .globl pumice_spirv_end_##name; pumice_spirv_end_##name:;

    .section .rodata
#include "shaders.def"
    .section .note.GNU-stack, "", %progbits
