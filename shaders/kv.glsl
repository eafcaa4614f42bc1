// Computes where keys and values lie in a page (layout: params.h). The including shader defines FORMAT, KEY_DIM and VALUE_DIM.
const uint K_DIM = (KEY_DIM + 7) / 8 * 8, V_DIM = (VALUE_DIM + 7) / 8 * 8;  // equal to padded_dim() in params.h
const uint PER_WORD = FORMAT == kKvF32 ? 1 : FORMAT == kKvF16 ? 2 : 4;
const uint K_UNITS = K_DIM / PER_WORD, V_UNITS = V_DIM / PER_WORD;
// ..._BLOCK_WORDS is the number of words in a kv head's block. ..._SCALES_AT is the word of the block at which the scales of q8_0 begin.
const uint K_SCALES_AT = kPagePositions * K_UNITS, V_SCALES_AT = kPagePositions * V_UNITS;
const uint K_BLOCK_WORDS = FORMAT == kKvQ8 ? K_SCALES_AT + kPagePositions : K_SCALES_AT;
const uint V_BLOCK_WORDS = FORMAT == kKvQ8 ? V_SCALES_AT + kPagePositions : V_SCALES_AT;

// Return the index of the word in a block that holds dimensions d to d + PER_WORD - 1 of a position.
uint k_word(uint position, uint d) { return d / PER_WORD * kPagePositions + position; }
uint v_word(uint position, uint d) { return position * V_UNITS + d / PER_WORD; }
