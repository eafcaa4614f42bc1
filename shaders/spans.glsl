// Functions for spans of rows, and for the slabs of states that are bound. See "Conv and Scan" in params.h. The including shader declares
// `meta`.
struct Span {
  uint first, rows, before, after, source, saves_at, saves;
};

Span span_of(uint index) {
  const uint at = p.spans_at + index * kSpanWords;
  return Span(meta[at], meta[at + 1], meta[at + 2], meta[at + 3], meta[at + 4], meta[at + 5], meta[at + 6]);
}

// Returns whether a slab with states [first, first + count) has state number `state`.
bool holds(uint first, uint count, uint state) { return state >= first && state - first < count; }

// Returns whether this dispatch computes the span. The result is the same for all lanes of a group.
bool runs_here(Span span) {
  if (span.source == kNoState ? p.from_first != 0 : !holds(p.from_first, p.from_count, span.source)) return false;
  for (uint i = 0; i < span.saves; ++i) {
    if (holds(p.to_first, p.to_count, meta[span.saves_at + 2 * i + 1])) return true;
  }
  return span.saves == 0 && p.to_first == 0;
}

// take_save() goes through the saves of a span in order; save_index is the index of the next save. It returns whether the next save is due
// after `rows` rows of the segment. If so, `state` is the number of the state to write, or kNoState if this dispatch does not write it.
uint save_index;
bool take_save(Span span, uint rows, out uint state) {
  state = kNoState;
  if (save_index == span.saves || meta[span.saves_at + 2 * save_index] != rows) return false;
  const uint number = meta[span.saves_at + 2 * save_index + 1];
  if (holds(p.to_first, p.to_count, number)) state = number;
  ++save_index;
  return true;
}
