// Puts the SPIR-V of every shader in the build's list (cmake/vulkan.cmake) between two labels. Compiling the files as C arrays would take a
// hundred times longer. ELF is the object format of Linux, Mach-O that of macOS, where symbols of C begin with an underscore. In Apple's
// assembler a semicolon begins a comment, so each instruction has a line of its own, in a macro of the assembler.
#if defined(__APPLE__)
#define PUMICE_HIDDEN .private_extern
#define PUMICE_SHADER(name, path) pumice_shader _pumice_spirv_##name, _pumice_spirv_end_##name, path
#else
#define PUMICE_HIDDEN .hidden
#define PUMICE_SHADER(name, path) pumice_shader pumice_spirv_##name, pumice_spirv_end_##name, path
#endif

.macro pumice_shader begin, end, path
    .balign 16
    PUMICE_HIDDEN \begin
    .globl \begin
\begin:
    .incbin "\path"
    PUMICE_HIDDEN \end
    .globl \end
\end:
.endm

#if defined(__APPLE__)
    .section __TEXT,__const
#else
    .section .rodata
#endif
#include "shaders.def"
#if !defined(__APPLE__)
    .section .note.GNU-stack, "", %progbits
#endif
