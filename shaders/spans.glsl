// Spans of rows, and the slabs of states that are bound. See "Conv and Scan" in params.h. Included by shaders that declare `meta`.
struct Span {
  uint first, rows, before, after, source, saves_at, saves;
};

Span span_of(uint index) {
  const uint at = p.spans_at + index * kSpanWords;
  return Span(meta[at], meta[at + 1], meta[at + 2], meta[at + 3], meta[at + 4], meta[at + 5], meta[at + 6]);
}

// Whether state number `state` is in a slab that holds states [first, first + count).
bool holds(uint first, uint count, uint state) { return state >= first && state - first < count; }

// Whether this dispatch runs the span. All lanes of a group get the same answer.
bool runs_here(Span span) {
  if (span.source == kNoState ? p.from_first != 0 : !holds(p.from_first, p.from_count, span.source)) return false;
  for (uint i = 0; i < span.saves; ++i) {
    if (holds(p.to_first, p.to_count, meta[span.saves_at + 2 * i + 1])) return true;
  }
  return span.saves == 0 && p.to_first == 0;
}

// The saves of a span, in turn: take_save() returns whether the next save comes after `rows` rows of the segment. If it does, `state` is
// its number, or kNoState if this dispatch does not write it.
uint save_index;
bool take_save(Span span, uint rows, out uint state) {
  state = kNoState;
  if (save_index == span.saves || meta[span.saves_at + 2 * save_index] != rows) return false;
  const uint number = meta[span.saves_at + 2 * save_index + 1];
  if (holds(p.to_first, p.to_count, number)) state = number;
  ++save_index;
  return true;
}
