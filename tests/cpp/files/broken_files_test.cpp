// Tens of thousands of broken files: each number of a header is set to boundary values, each bit of a header is flipped, and each file is
// cut off at each byte. Each such file must either be refused with a typed error, or load with everything unchanged except the part that
// was broken.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iostream>
#include <optional>
#include <span>

#include "core/checksum.h"
#include "files/build_files.h"
#include "files/contents.h"
#include "files/expect_error.h"

namespace pumice::files::testing {
namespace {

// Returns values to write in place of `value`: 0, 1, -1, the limits of integers of 8 to 64 bits and their neighbours, and numbers near
// `value` and `file_size`.
std::vector<std::uint64_t> boundary_values(std::uint64_t value, std::uint64_t file_size) {
  std::vector<std::uint64_t> values = {0, 1, 2, 3, ~0ull, ~0ull - 1, 1ull << 60, (1ull << 42) + 1};
  for (const int bits : {7, 8, 15, 16, 24, 31, 32, 33, 61, 62, 63}) {
    for (const int near : {-1, 0, 1}) values.push_back((1ull << bits) + static_cast<std::uint64_t>(near));
  }
  const auto add = [&](std::initializer_list<std::uint64_t> more) { values.insert(values.end(), more); };
  add({value - 1, value + 1, value + 2, value * 2, value / 2, value + 32, value - 32, value + (1ull << 32)});
  add({file_size, file_size - 1, file_size + 1, file_size / 2});
  return values;
}

using Loads = std::optional<Contents> (*)(const std::string& path, std::string* unsound);

class Campaign {
 public:
  // `written` is the path of the file that is broken, and `opened` is the path from which the model is loaded. `most_lost` is the maximum
  // number of metadata and tensor entries that one broken value may change.
  Campaign(std::string name, std::string written, std::string opened, const std::string& bytes, std::size_t most_lost = 1,
           Loads loads = load)
      : name_(std::move(name)),
        written_(std::move(written)),
        opened_(std::move(opened)),
        bytes_(bytes),
        most_lost_(most_lost),
        loads_(loads) {
    put(bytes_);
    std::string unsound;
    original_ = loads_(opened_, &unsound).value();
  }
  ~Campaign() {
    put(bytes_);
    std::cout << "  " << name_ << ": " << files_ << " broken files, " << loaded_ << " of them loaded, the rest refused\n";
  }

  void check(const std::string& broken, const std::string& what) {
    if (broken == bytes_) return;
    ++files_;
    put(broken);
    std::string unsound;
    const auto got = loads_(opened_, &unsound);
    if (!unsound.empty()) ADD_FAILURE() << name_ << ", " << what << ": " << unsound;
    if (!got) return;
    ++loaded_;
    std::size_t changed = differences(original_.metadata, got->metadata) + differences(original_.tensors, got->tensors);
    EXPECT_LE(changed, most_lost_) << name_ << ", " << what << ": loaded with other changes than the broken part";
    // A tensor that was moved or renamed must not change the bytes of its neighbours.
    EXPECT_LE(differences(original_.data, got->data), most_lost_) << name_ << ", " << what << ": the bytes of other tensors changed";
  }

  std::size_t files() const { return files_; }
  std::size_t loaded() const { return loaded_; }

  // Sets each of the fields, which are little-endian numbers, to boundary values. `finish` may change the file after that.
  void set_every_field(const std::vector<Field>& fields, const std::function<void(std::string&)>& finish = {}) {
    for (const Field& field : fields) {
      std::uint64_t value = 0;
      for (std::size_t i = 0; i < field.size; ++i) {
        value |= std::uint64_t{static_cast<unsigned char>(bytes_[field.offset + i])} << (8 * i);
      }
      for (const std::uint64_t broken_value : boundary_values(value, bytes_.size())) {
        std::string broken = bytes_;
        for (std::size_t i = 0; i < field.size; ++i) broken[field.offset + i] = static_cast<char>(broken_value >> (8 * i));
        if (finish) finish(broken);
        check(broken, str(field.name, " set to ", broken_value));
      }
    }
  }
  void cut_everywhere() {
    for (std::size_t size = 0; size < bytes_.size(); ++size) check(bytes_.substr(0, size), str("cut to ", size, " bytes"));
  }
  void flip_every_bit(std::size_t end) {
    for (std::size_t i = 0; i < end; ++i) {
      for (int bit = 0; bit < 8; ++bit) {
        std::string broken = bytes_;
        broken[i] = static_cast<char>(broken[i] ^ 1 << bit);
        check(broken, str("bit ", bit, " of byte ", i, " flipped"));
      }
    }
  }
  void set_every_byte(std::size_t end, std::string_view values) {
    for (std::size_t i = 0; i < end; ++i) {
      for (const char value : values) {
        std::string broken = bytes_;
        broken[i] = value;
        check(broken, str("byte ", i, " set to ", int{static_cast<unsigned char>(value)}));
      }
    }
  }

 private:
  using Map = std::map<std::string, std::string>;
  void put(const std::string& bytes) const { std::ofstream(written_, std::ios::binary | std::ios::trunc) << bytes; }
  // Returns the number of entries that are missing or changed in `after`, or the number that are new or changed if that is larger. So a
  // renamed entry, which is both missing and new, counts once.
  static std::size_t differences(const Map& before, const Map& after) {
    const auto missing = [](const Map& from, const Map& in) {
      std::size_t n = 0;
      for (const auto& [key, value] : from) {
        const auto found = in.find(key);
        n += found == in.end() || found->second != value;
      }
      return n;
    };
    return std::max(missing(before, after), missing(after, before));
  }

  std::string name_, written_, opened_, bytes_;
  std::size_t most_lost_;
  Loads loads_;
  Contents original_;
  std::size_t files_ = 0, loaded_ = 0;
};

void break_gguf(const std::string& name, const std::string& written, const std::string& opened, const Built& built, std::size_t& total) {
  Campaign campaign(name, written, opened, built.bytes);
  campaign.set_every_field(built.fields);
  campaign.flip_every_bit(built.header_bytes);
  campaign.cut_everywhere();
  total += campaign.files();
}

void break_safetensors(const std::string& name, const std::string& written, const std::string& opened, const Built& built, Loads loads,
                       std::size_t& total) {
  Campaign campaign(name, written, opened, built.bytes, 1, loads);
  for (const Field& field : built.fields) {
    std::uint64_t value = 0;
    const bool text = field.size != 8 || field.offset != 0;
    if (text) value = std::strtoull(built.bytes.substr(field.offset, field.size).c_str(), nullptr, 10);
    for (std::size_t i = 0; !text && i < 8; ++i) value |= std::uint64_t{static_cast<unsigned char>(built.bytes[i])} << (8 * i);
    for (const std::uint64_t broken_value : boundary_values(value, built.bytes.size())) {
      if (!text) {
        std::string broken = built.bytes;
        for (std::size_t i = 0; i < 8; ++i) broken[i] = static_cast<char>(broken_value >> (8 * i));
        campaign.check(broken, str(field.name, " set to ", broken_value));
        continue;
      }
      // safetensors_raw() writes the length that the broken header has, so that only this number is wrong.
      for (const char* sign : {"", "-"}) {
        std::string header = built.bytes.substr(8, built.header_bytes - 8);
        header.replace(field.offset - 8, field.size, str(sign, broken_value));
        campaign.check(safetensors_raw(header, built.bytes.substr(built.header_bytes)), str(field.name, " set to ", sign, broken_value));
      }
    }
  }
  campaign.flip_every_bit(built.header_bytes);
  campaign.set_every_byte(built.header_bytes, std::string_view("\0\"{}[],:0-e\xFF", 12));
  campaign.cut_everywhere();
  total += campaign.files();
}

// Everything in a file of save_prefix() is summed, so each change must be refused. Where the checksum of the head is made right after the
// change, as an attacker would, the file may load, but only with the changed part.
void break_prefix(const std::string& path, std::size_t& total) {
  const Built built = write_prefix(path);
  for (const bool right_sum : {false, true}) {
    Campaign campaign(right_sum ? "saved prefix with a right checksum" : "saved prefix", path, path, built.bytes, 1, load_prefix);
    const auto sum = [&](std::string& file) {
      if (!right_sum || file.size() < built.header_bytes) return;
      const auto bytes = [&](std::size_t from, std::size_t to) {
        return std::span(reinterpret_cast<const std::uint8_t*>(file.data()) + from, to - from);
      };
      const std::uint64_t value = checksum(bytes(64, built.header_bytes), checksum(bytes(0, 56)));
      for (std::size_t i = 0; i < 8; ++i) file[56 + i] = static_cast<char>(value >> (8 * i));
    };
    campaign.set_every_field(built.fields, sum);
    if (!right_sum) {
      campaign.flip_every_bit(built.bytes.size());
      campaign.cut_everywhere();
      EXPECT_EQ(campaign.loaded(), 0u);
    }
    total += campaign.files();
  }
}

TEST(BrokenFiles, AreRefusedOrLoadUnharmed) {
  const auto start = std::chrono::steady_clock::now();
  const TempFolder folder;
  std::size_t total = 0;

  for (const std::uint32_t version : {2u, 3u}) {
    const std::string path = folder.path("model.gguf");
    break_gguf(str("GGUF version ", version), path, path, sample_gguf(version).build(), total);
  }
  {
    const auto part = [](std::uint16_t number) {
      GgufBuilder builder;
      builder.key("split.no", 2, number).key("split.count", 2, std::uint16_t{2}).key("split.tensors.count", 5, std::int32_t{2});
      return builder.tensor(number == 0 ? "first" : "second", {8}, 0, pattern(32, number)).build();
    };
    const std::string first = folder.path("m-00001-of-00002.gguf"), second = folder.path("m-00002-of-00002.gguf");
    folder.write(first, part(0).bytes);
    folder.write(second, part(1).bytes);
    break_gguf("GGUF part 1 of 2", first, first, part(0), total);
    break_gguf("GGUF part 2 of 2", second, first, part(1), total);
  }

  folder.write("st/config.json", "{}");
  break_safetensors("safetensors", folder.path("st/model.safetensors"), folder.path("st"), safetensors(sample_tensors()), load, total);
  {
    const std::string path = folder.path("adapter_model.safetensors");
    break_safetensors("adapter in safetensors", path, path, safetensors(sample_factors()), load_weights, total);
  }
  break_gguf("adapter in GGUF", folder.path("adapter.gguf"), folder.path("adapter.gguf"), sample_adapter().build(), total);
  break_prefix(folder.path("prefix"), total);
  {
    const std::string config =
        R"({"model_type":"llama","hidden_size":64,"rms_norm_eps":1e-05,"tie":true,"none":null,)"
        R"("eos_token_id":[1,2],"architectures":["A"],"rope_scaling":{"factor":8.0,"rope_type":"llama3"},"list":[{"k":1},{"k":2}]})";
    Campaign campaign("config.json", folder.path("st/config.json"), folder.path("st"), config,
                      3);  // renaming the list changes its own key and those of both its entries
    campaign.flip_every_bit(config.size());
    campaign.set_every_byte(config.size(), std::string_view("\0\"{}[],:0-e\xFF", 12));
    campaign.cut_everywhere();
    total += campaign.files();
  }
  {
    const auto tensors = sample_tensors();
    folder.write("sharded/config.json", "{}");
    folder.write("sharded/a.safetensors", safetensors({tensors[0], tensors[1]}).bytes);
    folder.write("sharded/b.safetensors", safetensors({tensors[3]}).bytes);
    const std::string index =
        R"({"metadata":{"total_size":44},"weight_map":{"position_ids":"a.safetensors","scalar":"a.safetensors","weight":"b.safetensors"}})";
    Campaign campaign("index.json", folder.path("sharded/model.safetensors.index.json"), folder.path("sharded"), index);
    campaign.flip_every_bit(index.size());
    campaign.set_every_byte(index.size(), std::string_view("\0\"{}[],:/.\xFF", 12));
    campaign.cut_everywhere();
    total += campaign.files();
  }
  for (const PackedFolder& packed : sample_packed()) {
    folder.write(packed.name + "/config.json", packed.config);
    folder.write(packed.name + "/model.safetensors", safetensors(packed.tensors).bytes);
    // A changed word may turn the packing off, which brings back the tensors that the matrix consists of.
    Campaign campaign(packed.name, folder.path(packed.name + "/config.json"), folder.path(packed.name), packed.config, 16);
    campaign.flip_every_bit(packed.config.size());
    campaign.cut_everywhere();
    total += campaign.files();
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  std::cout << "  " << total << " broken files in " << seconds << " s\n";
  RecordProperty("broken_files", static_cast<int>(total));
  EXPECT_GE(total, 40'000u);
}

}  // namespace
}  // namespace pumice::files::testing
