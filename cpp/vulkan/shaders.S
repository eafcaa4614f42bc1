// Every file of the build's list of shaders (cmake/vulkan.cmake) between two labels. As C arrays they would take the compiler a hundred times longer.
#define PUMICE_SHADER(name, path) \
    .balign 16; .hidden pumice_spirv_##name; .globl pumice_spirv_##name; pumice_spirv_##name: .incbin path; \
    .hidden pumice_spirv_end_##name; .globl pumice_spirv_end_##name; pumice_spirv_end_##name:;

    .section .rodata
#include "shaders.def"
    .section .note.GNU-stack, "", %progbits
