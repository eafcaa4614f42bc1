// These functions test the bits of x, because a driver may assume that all floats are finite and replace isnan() and isinf() by false.
bool finite(float x) { return (floatBitsToUint(x) & 0x7f800000u) != 0x7f800000u; }
bool not_a_number(float x) { return (floatBitsToUint(x) & 0x7fffffffu) > 0x7f800000u; }
#define NOT_A_NUMBER uintBitsToFloat(0x7fc00000u)
const float LOWEST = -3.402823466e38;
