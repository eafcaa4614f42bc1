// Where layers find keys and values: in a cache, beside their own rows, or where an earlier layer left them (Attention::kv_from). A row
// that goes from one stage to the next carries those that layers of later stages read.
#pragma once

#include <map>
#include <vector>

#include "model/writer.h"

namespace pumice::model {

class SharedKv {
 public:
  // For a program that ends before layer `last`. `cached`: keys and values go to caches.
  SharedKv(Writer& writer, bool cached, std::size_t last) : w_(writer), cached_(cached), last_(last) {}

  // The columns in a row before layer `border`: keys, then values, of each earlier layer that a layer from the border on reads.
  std::int32_t width(std::size_t border) const;
  // Reads them from a row of the stage before; those that layers of this program read go to caches of its own.
  void take(View columns, std::size_t border);
  std::vector<View> give(std::size_t border) const;

  // Says in `op` where the layer's keys and values are, and stores its own in a cache. `v` lies beside `k`.
  void attend(std::size_t layer, const Attention& attention, const View& k, const View& v, Attend& op);
  // After attention: keeps the layer's own keys and values that others read and no cache of this program holds.
  void keep(std::size_t layer, const View& k);

 private:
  std::vector<std::size_t> read_beyond(std::size_t border) const;
  bool read_in(std::size_t layer, std::size_t first, std::size_t last) const;
  void store(std::size_t layer, const Attention& attention, const View& k, const View& v);

  Writer& w_;
  const bool cached_;
  const std::size_t last_;
  std::map<std::size_t, CacheId> caches_;  // of this program, by layer
  std::map<std::size_t, View> kept_;       // keys, then values, by layer, where no cache holds them
};

}  // namespace pumice::model
