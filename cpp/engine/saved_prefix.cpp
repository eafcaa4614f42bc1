#include "engine/saved_prefix.h"

#include <algorithm>

#include "engine/text_request.h"
#include "files/prefix_file.h"
#include "files/text.h"

namespace pumice::engine {
namespace {

constexpr std::uint64_t kPieceBytes = 8 << 20;  // number of bytes that are read or written between two checks of `cancel`

std::size_t pages_at_once(std::uint64_t page_bytes) {
  return static_cast<std::size_t>(std::max<std::uint64_t>(1, kPieceBytes / std::max<std::uint64_t>(1, page_bytes)));
}

}  // namespace

std::uint64_t save_prefix(const Model& model, const std::string& path, std::span<const std::int32_t> ids, const Cancel& cancel) {
  Runtime& runtime = model.decoder();
  PagePool& pool = *runtime.pages;
  check_text(runtime, ids);
  files::PrefixWriter writer(path, {.model = model.fingerprint(),
                                    .made_by = model.made_by(),
                                    .ids = {ids.begin(), ids.end()},
                                    .page_bytes = pool.page_bytes(),
                                    .state_bytes = pool.state_bytes()});
  TextRequest text(model.scheduler(), ids, TextTask::Wants::pages);
  text.run(cancel);
  const std::size_t pages = (ids.size() + kPageTokens - 1) / kPageTokens, at_once = pages_at_once(pool.page_bytes());
  std::vector<std::uint8_t> bytes;
  for (std::size_t first = 0; first < pages; first += at_once) {
    cancel.check();
    bytes.resize(std::min(at_once, pages - first) * pool.page_bytes());
    pool.read(text.table(), first, bytes);
    writer.write(bytes);
  }
  if (pool.has_states()) {
    bytes.resize(pool.state_bytes());
    pool.read_state(text.table(), bytes);
    writer.write_state(bytes);
  }
  return writer.finish();
}

LoadedPrefix load_prefix(const Model& model, const std::string& path, const Cancel& cancel) {
  Runtime& runtime = model.decoder();
  PagePool& pool = *runtime.pages;
  const auto file = files::PrefixFile::open(path, runtime.n_ctx - 1);
  const files::PrefixHead& head = file.head();
  if (head.model != model.fingerprint())
    files::fail_at(ErrorKind::model_format, path, "model", 24, "was saved by another model than ", model.file().path(),
                   ", or its file was changed since: its tokens may mean something else. Save it again with this one");
  LoadedPrefix result{.ids = head.ids, .recomputed = {}};
  if (head.made_by != model.made_by() || head.page_bytes != pool.page_bytes() || head.state_bytes != pool.state_bytes()) {
    result.recomputed =
        str("its keys and values were made by ", files::printable(head.made_by), "; here they are made by ", model.made_by());
    TextRequest(model.scheduler(), result.ids, TextTask::Wants::pages).run(cancel);
    return result;
  }
  TextRequest text(model.scheduler(), result.ids, TextTask::Wants::room);
  text.run(cancel);
  // `known` is the number of pages that are in the prefix cache already. These pages are not written to the pool, but they are read from
  // the file, because a damaged file must be an error in any case.
  const std::size_t page = pool.page_bytes(), pages = static_cast<std::size_t>(head.pages()), at_once = pages_at_once(page),
                    known = PagePool::unpublished(text.table());
  std::vector<std::uint8_t> bytes;
  for (std::size_t first = 0; first < pages; first += at_once) {
    cancel.check();
    bytes.resize(std::min(at_once, pages - first) * page);
    file.read(first, bytes);
    const std::size_t skipped = std::min(known > first ? known - first : 0, page > 0 ? bytes.size() / page : 0);
    if (skipped * page < bytes.size()) pool.write(text.table(), first + skipped, std::span(bytes).subspan(skipped * page));
  }
  if (pool.has_states()) {
    bytes.resize(pool.state_bytes());
    file.read_state(bytes);
    pool.write_state(text.table(), bytes);
  }
  text.written();
  return result;
}

}  // namespace pumice::engine
