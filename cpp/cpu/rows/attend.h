// Attention over cache pages. One small matrix product, product(), computes both the scores and the weighted sums of values. For scores, it
// multiplies queries by the rows of a page's keys (one row per dimension, one column per key). For sums, it multiplies softmax weights by
// the rows of a page's values (one row per key, one column per dimension). It computes sixteen columns at a time. Each output element is
// one chain of fused multiply-adds in ascending order of rows. The bits of a query's result therefore depend neither on the division of the
// work into blocks nor on the other queries of a call.
// Keys may have any number of dimensions from 1 to kMaxKeyDim, and values any number from 1 to kMaxValueDim. If the number is a multiple of
// 16, all vectors are full.
#pragma once

#include "cpu/kernels.h"
#include "cpu/rows/lanes.h"
#include "cpu/rows/math.h"
#include "cpu/rows/sixteens.h"

namespace pumice::cpu {
namespace {

inline constexpr int kChunkPages = kChunkKeys / kPageTokens;
inline constexpr float kCounts[kLanes] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

// Pointers into the page of one kv head (kernels.h describes the layout of a page). T is the type of the stored elements: std::uint16_t for
// f16, float for f32, std::int8_t for q8_0.
template <class T>
struct Page {
  static constexpr bool kScaled = sizeof(T) == 1;
  T *keys, *values;
  float *key_scales = nullptr, *value_scales = nullptr;

  PUMICE_INLINE Page(std::uint8_t* page, int key_dim, int value_dim) {
    const Int plane = Int{kPageTokens} * key_dim * static_cast<Int>(sizeof(T));
    const Int scales = kScaled ? kPageTokens * static_cast<Int>(sizeof(float)) : 0;
    keys = reinterpret_cast<T*>(page);
    values = reinterpret_cast<T*>(page + plane + scales);
    if constexpr (kScaled) {
      key_scales = reinterpret_cast<float*>(page + plane);
      value_scales = reinterpret_cast<float*>(page + plane + scales + Int{kPageTokens} * value_dim);
    }
  }
};
template <class T>
PUMICE_INLINE Page<T> page_at(const AttendCall& call, Int index) {
  return Page<T>(const_cast<std::uint8_t*>(call.pages[index]), call.key_dim, call.value_dim);
}

// with_element() calls f with Element<T>{}, where T is the type in which the format stores elements.
template <class T>
struct Element {
  using Type = T;
};
template <class F>
PUMICE_INLINE void with_element(KvFormat format, F f) {
  switch (format) {
    case KvFormat::f16:
      return f(Element<std::uint16_t>{});
    case KvFormat::f32:
      return f(Element<float>{});
    case KvFormat::q8_0:
      return f(Element<std::int8_t>{});
  }
}

// ---------------------------------------------------------------- storing
template <Lanes16 Lanes, class T>
PUMICE_INLINE float encode_row(const float* x, int n, T* out) {
  if constexpr (sizeof(T) == 1) {
    BitsOf<Lanes> largest = Lanes::set_bits(0);
    sixteens(n, [&](Int i, int count) __attribute__((always_inline)) { largest = max(largest, magnitude(load<Lanes>(x + i, count))); });
    const Scale s = scale_of(max_lane(largest), 127.0f);
    sixteens(n, [&](Int i, int count) __attribute__((always_inline)) {
      store(out + i, codes_of(load<Lanes>(x + i, count), Lanes::set(s.inverse), 127.0f), count);
    });
    return s.scale;
  } else {
    sixteens(n, [&](Int i, int count) __attribute__((always_inline)) { store(out + i, load<Lanes>(x + i, count), count); });
    return 1.0f;
  }
}

template <Lanes16 Lanes, class T>
void store_as(int key_dim, int value_dim, const float* k, const float* v, Int k_stride, Int v_stride, int slot, int count,
              std::uint8_t* bytes) {
  const Page<T> page(bytes, key_dim, value_dim);
  for (int t = 0; t < count; ++t) {
    const int at = slot + t;
    T key[kMaxKeyDim];
    const float key_scale = encode_row<Lanes>(k + t * k_stride, key_dim, key);
    for (int d = 0; d < key_dim; ++d) page.keys[d * kPageTokens + at] = key[d];
    const float value_scale = encode_row<Lanes>(v + t * v_stride, value_dim, page.values + Int{at} * value_dim);
    if constexpr (Page<T>::kScaled) {
      page.key_scales[at] = key_scale;
      page.value_scales[at] = value_scale;
    }
  }
}

template <Lanes16 Lanes>
void kv_store(KvFormat format, int key_dim, int value_dim, const float* k, const float* v, Int k_stride, Int v_stride, int slot, int count,
              std::uint8_t* page) {
  with_element(format, [&](auto element) __attribute__((always_inline)) {
    store_as<Lanes, typename decltype(element)::Type>(key_dim, value_dim, k, v, k_stride, v_stride, slot, count, page);
  });
}

// ---------------------------------------------------------------- the small product
// `count` consecutive rows of a page, beginning at `rows`. While tile() reads these rows, it prefetches the rows beginning at `next`, which
// are read afterwards. The prefetch is needed because the hardware prefetcher does not continue from one page to the next.
template <class T>
struct Strip {
  const T *rows, *next;
  Int stride;
  int count;
  PUMICE_INLINE Strip from_column(int column) const { return {rows + column, next + column, stride, count}; }
};

// Prevents the compiler from moving loads across this point. Otherwise the compiler would load more rows and factors in advance than there
// are registers, and would spill sums to memory. Each multiply-add that adds to a spilled sum takes 12 cycles.
PUMICE_INLINE void in_this_order() { __asm__ volatile("" ::: "memory"); }

// Computes c[q][j] = sum over i of a[q][i] * b.rows[i][j] for Q rows q and for W vectors of sixteen columns j. The last vector has only
// `last` columns. Unless `fresh` is true, the sums start from the values in c.
template <Lanes16 Lanes, int Q, int W, class T>
PUMICE_INLINE void tile(const float* const* a, const Strip<T>& b, bool fresh, float* c, Int c_stride, int last) {
  constexpr int kLine = 64, kBytes = W * kLanes * static_cast<int>(sizeof(T));
  Lanes total[Q][W];
#pragma GCC unroll 8
  for (int q = 0; q < Q; ++q) {
#pragma GCC unroll 8
    for (int w = 0; w < W; ++w)
      total[q][w] = fresh ? Lanes::set(0.0f) : load<Lanes>(c + q * c_stride + w * kLanes, w == W - 1 ? last : kLanes);
  }
  for (int i = 0; i < b.count; ++i) {
    const T* row = b.rows + i * b.stride;
#pragma GCC unroll 8
    for (int byte = 0; byte < kBytes; byte += kLine) Lanes::prefetch(reinterpret_cast<const char*>(b.next + i * b.stride) + byte);
#pragma GCC unroll 8
    for (int w = 0; w < W; ++w) {
      const Lanes column = load<Lanes>(row + w * kLanes, w == W - 1 ? last : kLanes);
#pragma GCC unroll 8
      for (int q = 0; q < Q; ++q) total[q][w] = fma(Lanes::set(a[q][i]), column, total[q][w]);
      if constexpr (W > 1 && Q > 1) in_this_order();
    }
  }
#pragma GCC unroll 8
  for (int q = 0; q < Q; ++q) {
#pragma GCC unroll 8
    for (int w = 0; w < W; ++w) store(c + q * c_stride + w * kLanes, total[q][w], w == W - 1 ? last : kLanes);
  }
}

// Computes all columns with tile(): first W vectors of columns at a time, then W / 2, and so on down to 1, and finally the columns that do
// not fill a vector.
template <Lanes16 Lanes, int Q, int W, class T>
void product_by(const float* const* a, const Strip<T>& b, bool fresh, float* c, Int c_stride, int columns) {
  int at = 0;
  for (; at + W * kLanes <= columns; at += W * kLanes) tile<Lanes, Q, W>(a, b.from_column(at), fresh, c + at, c_stride, kLanes);
  if (at == columns) return;
  if constexpr (W > 1) {
    product_by<Lanes, Q, W / 2>(a, b.from_column(at), fresh, c + at, c_stride, columns - at);
  } else {
    tile<Lanes, Q, 1>(a, b.from_column(at), fresh, c + at, c_stride, columns - at);
  }
}

template <Lanes16 Lanes>
constexpr int vectors_for(int queries) {
  return Lanes::kAccumulators / queries >= 4 ? 4 : Lanes::kAccumulators / queries >= 2 ? 2 : 1;
}

template <Lanes16 Lanes, int Q, class T>
void product_of(int queries, const float* const* a, const Strip<T>& b, bool fresh, float* c, Int c_stride, int columns) {
  if constexpr (Q > 1) {
    if (queries < Q) return product_of<Lanes, Q - 1>(queries, a, b, fresh, c, c_stride, columns);
  }
  product_by<Lanes, Q, vectors_for<Lanes>(Q)>(a, b, fresh, c, c_stride, columns);
}
template <Lanes16 Lanes, class T>
void product(int queries, const float* const* a, const Strip<T>& b, bool fresh, float* c, Int c_stride, int columns) {
  product_of<Lanes, Lanes::kAccumulators>(queries, a, b, fresh, c, c_stride, columns);
}

// ---------------------------------------------------------------- one chunk
// The keys [first, last) of this chunk that a query attends to, counted from the start of the chunk. `query` is the index of the query in
// the call.
struct Seen {
  int query, first, last;
};
PUMICE_INLINE int smaller(int a, int b) { return a < b ? a : b; }
PUMICE_INLINE int larger(int a, int b) { return a > b ? a : b; }

// Returns the values of the bias table (Query::bias) for 16 neighbouring keys. The first key is at distance `d`. If only some of the 16
// distances are inside the table, the lanes are filled one by one, which happens at most twice per query.
template <Lanes16 Lanes>
PUMICE_INLINE Lanes bias_of(const float* bias, Int reach, Int d) {
  if (d >= -reach && d + kLanes - 1 <= reach) return Lanes::load(bias + reach + d);
  if (d >= reach) return Lanes::set(bias[2 * reach]);
  if (d + kLanes - 1 <= -reach) return Lanes::set(bias[0]);
  float clamped[kLanes];
  for (int l = 0; l < kLanes; ++l) {
    const Int at = d + l;
    clamped[l] = bias[reach + (at < -reach ? -reach : at > reach ? reach : at)];
  }
  return Lanes::load(clamped);
}
template <Lanes16 Lanes>
PUMICE_INLINE Lanes by_distance(const AttendCall& call, const Query& query, const Lanes& score, Int d) {
  Lanes y = score;
  if (query.bias) y = y + bias_of<Lanes>(query.bias, call.reach, d);
  if (query.slope != 0.0f) y = fnma(Lanes::set(query.slope), abs(Lanes::set(static_cast<float>(d)) + Lanes::load(kCounts)), y);
  return y;
}

// Returns the terms from Query::by_query and Query::by_key for 16 neighbouring keys. The first key has the number `key` and is at distance
// `d`. Lanes outside [first, last) are 0. The lanes are filled one by one, because each key has its own row of by_key, and keys after the
// text's last token have no row.
template <Lanes16 Lanes>
PUMICE_INLINE Lanes by_place(const AttendCall& call, const Query& query, Int key, Int d, int first, int last) {
  float found[kLanes] = {};
  for (int l = larger(first, 0); l < smaller(last, kLanes); ++l) {
    const Int at = d + l < -call.reach ? -call.reach : d + l > call.reach ? call.reach : d + l;
    const Int place = static_cast<Int>(call.places[call.reach + at]);
    if (query.by_query) found[l] = query.by_query[place];
    if (query.by_key) found[l] += query.by_key[(key + l) * call.by_key_stride + place];
  }
  return Lanes::load(found);
}

// Converts raw products to softmax weights in place: weights[j] = exp(score[j] - maximum) for keys j in [seen.first, seen.last), and 0 for
// the other keys of the same pages. Writes the maximum to partial[0] and the sum of the weights to partial[1]. With q8_0, each weight is
// then also multiplied by the scale of the key's value.
template <Lanes16 Lanes, class T>
void soften(const AttendCall& call, const Query& query, const Seen& seen, float* weights, float* partial) {
  const int begin = seen.first / kPageTokens * kPageTokens;
  const int end = (seen.last + kPageTokens - 1) / kPageTokens * kPageTokens;
  const Int first_page = call.chunk * kChunkPages;
  const float inverse_cap = call.softcap > 0.0f ? 1.0f / call.softcap : 0.0f;
  const bool positioned = query.bias || query.slope != 0.0f;
  const Int chunk_key = call.chunk * kChunkKeys, distance = chunk_key - query.position;  // distance of the chunk's first key from the query
  Lanes top = Lanes::set(-kInfinity), total = Lanes::set(0.0f);
  for (int j = begin; j < end; j += kLanes) {
    Lanes score = Lanes::load(weights + j);
    if constexpr (Page<T>::kScaled) {
      score = score * Lanes::load(page_at<T>(call, first_page + j / kPageTokens).key_scales + j % kPageTokens);
    }
    if (call.places) score = score + by_place<Lanes>(call, query, chunk_key + j, distance + j, seen.first - j, seen.last - j);
    score = score * Lanes::set(call.scale);
    if (call.softcap > 0.0f) score = capped(score, call.softcap, inverse_cap);
    if (positioned) score = by_distance(call, query, score, distance + j);
    if (j < seen.first || j + kLanes > seen.last)
      score = select(Lanes::between(seen.first - j, seen.last - j), score, Lanes::set(-kInfinity));
    top = max(score, top);
    store(weights + j, score);
  }
  const float largest = max_lane(top);
  for (int j = begin; j < end; j += kLanes) {
    Lanes weight = exp_negative(Lanes::load(weights + j) - Lanes::set(largest));
    if (j < seen.first || j + kLanes > seen.last) weight = select(Lanes::between(seen.first - j, seen.last - j), weight, Lanes::set(0.0f));
    total = total + weight;
    if constexpr (Page<T>::kScaled) {
      weight = weight * Lanes::load(page_at<T>(call, first_page + j / kPageTokens).value_scales + j % kPageTokens);
    }
    store(weights + j, weight);
  }
  partial[0] = largest;
  partial[1] = sum(total);
}

// Consecutive queries whose products are computed together. Every key that any of these queries attends to is in [seen_first, seen_last).
// Every query of the block attends to all keys in [common_first, common_last).
struct Block {
  int first, count;
  int seen_first, seen_last, common_first, common_last;
};

template <Lanes16 Lanes, class T>
void attend_as(const AttendCall& call, const Query* queries, int count, float* partial) {
  const int key_dim = call.key_dim, value_dim = call.value_dim;
  const Int stride = value_dim + 2, first_page = call.chunk * kChunkPages, chunk_start = call.chunk * kChunkKeys;
  alignas(64) float weights[kMaxQueries * kChunkKeys];
  alignas(64) float values[kMaxQueries * kMaxValueDim];
  Seen seen[kMaxQueries];
  int known = 0;
  for (int i = 0; i < count; ++i) {
    const Int first = queries[i].first_key - chunk_start, last = queries[i].last_key - chunk_start;
    const Int from = first > 0 ? first : 0, to = last < kChunkKeys ? last : kChunkKeys;
    if (from < to) {
      seen[known++] = {i, static_cast<int>(from), static_cast<int>(to)};
    } else {
      float* empty = partial + i * stride;
      __builtin_memset(empty, 0, static_cast<std::size_t>(stride) * sizeof(float));
      empty[0] = -kInfinity;
    }
  }
  if (known == 0) return;

  Block blocks[kMaxQueries];
  int block_count = (known + Lanes::kAccumulators - 1) / Lanes::kAccumulators;
  for (int b = 0, at = 0; b < block_count; ++b) {
    const int size = (known - at) / (block_count - b);
    Block& block = blocks[b] = {at, size, kChunkKeys, 0, 0, kChunkKeys};
    for (int q = at; q < at + size; ++q) {
      block.seen_first = smaller(block.seen_first, seen[q].first);
      block.seen_last = larger(block.seen_last, seen[q].last);
      block.common_first = larger(block.common_first, seen[q].first);
      block.common_last = smaller(block.common_last, seen[q].last);
    }
    if (block.common_first >= block.common_last) block.common_first = block.common_last = kChunkKeys;
    at += size;
  }

  __builtin_memset(values, 0, static_cast<std::size_t>(known) * static_cast<std::size_t>(value_dim) * sizeof(float));
  const float* factors[kMaxQueries];

  // Pages [begin, end) of the chunk contain all keys that the queries attend to. While the keys of the last page are multiplied, the values
  // of the first page are prefetched. While the values of the last page are multiplied, the keys of the next chunk are prefetched if a
  // query attends to any of them.
  int begin = kChunkPages, end = 0;
  bool goes_on = false;
  for (int q = 0; q < known; ++q) {
    begin = smaller(begin, seen[q].first / kPageTokens);
    end = larger(end, (seen[q].last + kPageTokens - 1) / kPageTokens);
    goes_on |= queries[seen[q].query].last_key > chunk_start + kChunkKeys;
  }
  for (int p = begin; p < end; ++p) {
    const int page_first = p * kPageTokens, page_last = page_first + kPageTokens;
    const T* keys = page_at<T>(call, first_page + p).keys;
    const T* next = p + 1 < end ? page_at<T>(call, first_page + p + 1).keys : page_at<T>(call, first_page + begin).values;
    for (int b = 0; b < block_count; ++b) {
      const Block& block = blocks[b];
      if (block.seen_first >= page_last || block.seen_last <= page_first) continue;
      for (int q = 0; q < block.count; ++q) factors[q] = queries[seen[block.first + q].query].q;
      product<Lanes>(block.count, factors, Strip<T>{keys, next, kPageTokens, key_dim}, true,
                     weights + block.first * kChunkKeys + page_first, kChunkKeys, kPageTokens);
    }
  }
  for (int q = 0; q < known; ++q) {
    soften<Lanes, T>(call, queries[seen[q].query], seen[q], weights + q * kChunkKeys, partial + seen[q].query * stride);
  }

  // If only some queries of a block attend to a key, the key is processed query by query. The value of a key is then never multiplied by
  // the weight of a query that does not attend to the key. That weight would be 0, but unwritten rows of a page may hold NaN, and 0 * NaN
  // is NaN.
  for (int p = begin; p < end; ++p) {
    const int page_first = p * kPageTokens, page_last = page_first + kPageTokens;
    const T* rows = page_at<T>(call, first_page + p).values;
    const T* next = p + 1 < end ? page_at<T>(call, first_page + p + 1).values : goes_on ? page_at<T>(call, first_page + end).keys : rows;
    for (int b = 0; b < block_count; ++b) {
      const Block& block = blocks[b];
      if (block.seen_first >= page_last || block.seen_last <= page_first) continue;
      const auto add = [&](int query, int many, int from, int to) {
        from = larger(from, page_first);
        to = smaller(to, page_last);
        if (from >= to) return;
        for (int q = 0; q < many; ++q) factors[q] = weights + (query + q) * kChunkKeys + from;
        const Int skipped = Int{from - page_first} * value_dim;
        product<Lanes>(many, factors, Strip<T>{rows + skipped, next + skipped, value_dim, to - from}, false,
                       values + Int{query} * value_dim, value_dim, value_dim);
      };
      const int block_end = block.first + block.count;
      for (int q = block.first; q < block_end; ++q) add(q, 1, seen[q].first, smaller(seen[q].last, block.common_first));
      add(block.first, block.count, block.common_first, block.common_last);
      for (int q = block.first; q < block_end; ++q) add(q, 1, larger(seen[q].first, block.common_last), seen[q].last);
    }
  }
  for (int q = 0; q < known; ++q) {
    __builtin_memcpy(partial + seen[q].query * stride + 2, values + Int{q} * value_dim,
                     static_cast<std::size_t>(value_dim) * sizeof(float));
  }
}

template <Lanes16 Lanes>
void attend(const AttendCall& call, const Query* queries, int count, float* partial) {
  with_element(call.format, [&](auto element) __attribute__((always_inline)) {
    attend_as<Lanes, typename decltype(element)::Type>(call, queries, count, partial);
  });
}

// Combines the partial results of all chunks, and the sink, into one softmax (Milakov and Gimelshein 2018). The factor of each chunk is
// exp(maximum of the chunk - maximum of all chunks and the sink).
template <Lanes16 Lanes>
void merge(const float* partials, Int chunks, Int stride, int value_dim, float sink, float* out) {
  float top = sink;
  for (Int c = 0; c < chunks; ++c) {
    const float largest = partials[c * stride];
    top = largest > top ? largest : top;
  }
  float total = sink == -kInfinity ? 0.0f : first_lane(exp_negative(Lanes::set(sink - top)));
  __builtin_memset(out, 0, static_cast<std::size_t>(value_dim) * sizeof(float));
  for (Int c = 0; c < chunks; ++c) {
    const float* part = partials + c * stride;
    if (part[0] == -kInfinity && part[1] == 0.0f) continue;  // the query attends to no key of this chunk
    const Lanes weight = exp_negative(Lanes::set(part[0] - top));
    total = __builtin_fmaf(first_lane(weight), part[1], total);
    sixteens(value_dim, [&](Int i, int count) __attribute__((always_inline)) {
      store(out + i, fma(weight, load<Lanes>(part + 2 + i, count), load<Lanes>(out + i, count)), count);
    });
  }
  const Lanes inverse = Lanes::set(1.0f / total);
  sixteens(value_dim,
           [&](Int i, int count) __attribute__((always_inline)) { store(out + i, load<Lanes>(out + i, count) * inverse, count); });
}

}  // namespace
}  // namespace pumice::cpu
