// Where a key or value lies in a page (params.h), for shaders with the specialisation constants FORMAT and HEAD_DIM.
const uint DIM = (HEAD_DIM + 7) / 8 * 8;  // padded_dim()
const uint PER_WORD = FORMAT == kKvF32 ? 1 : FORMAT == kKvF16 ? 2 : 4;
const uint UNITS = DIM / PER_WORD;
const uint BLOCK_WORDS = kPagePositions * (FORMAT == kKvQ8 ? UNITS + 1 : UNITS);  // of one kv head
const uint SCALES_AT = kPagePositions * UNITS;                                    // within a block, q8_0

// Word of a block that holds dimension d (and the next PER_WORD - 1) of a position.
uint k_word(uint position, uint d) { return d / PER_WORD * kPagePositions + position; }
uint v_word(uint position, uint d) { return position * UNITS + d / PER_WORD; }
