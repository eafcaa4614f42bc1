// Dot product of four signed bytes in each of two words. glslang 13 has no GL_EXT_integer_dot_product, so OpSDot is named by number, with the
// capabilities DotProduct and DotProductInput4x8BitPacked of SPV_KHR_integer_dot_product; format 0 is PackedVectorFormat4x8Bit.
#extension GL_EXT_spirv_intrinsics : require
spirv_instruction(extensions = ["SPV_KHR_integer_dot_product"], capabilities = [6019, 6018], id = 4450)
int packed_dot(int a, int b, spirv_literal int format);
int dot_bytes(uint a, uint b) { return packed_dot(int(a), int(b), 0); }
