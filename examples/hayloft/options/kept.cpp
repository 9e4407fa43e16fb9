#include "examples/hayloft/options/kept.h"

#include <fmt/format.h>

#include "examples/hayloft/options/session.h"
#include "examples/hayloft/process/messages.h"
#include "offload/error.h"
#include "offload/store/layout.h"

namespace hayloft::cli {
namespace {

template <class T>
void require_same(const CLI::App& app, const char* option, const T& asked, const T& kept, const std::string& file) {
  if (app.get_option(option)->count() == 0 || asked == kept) return;
  fail("{} {}: {} was begun with {}, which stays; leave the option out or make another context", option, asked, file,
       kept);
}

}  // namespace

void check_kept_blocks(const CLI::App& app, int asked, int kept, const std::string& file) {
  require_same(app, "--block-tokens", asked, kept, file);
}

void check_kept_layout(const CLI::App& app, const runtime::SessionOptions& asked, const runtime::SessionOptions& kept,
                       const std::string& file) {
  check_kept_blocks(app, asked.cache.block_tokens, kept.cache.block_tokens, file);
  require_same<std::string>(app, "--columns", offload::name(asked.cache.columns), offload::name(kept.cache.columns),
                            file);
  require_same<std::string>(app, "--rows", offload::name(asked.cache.rows), offload::name(kept.cache.rows), file);
  if (app.get_option("--batch")->count() > 0 && asked.chunk_tokens != kept.chunk_tokens) {
    note("note: --batch {} has no effect: {} was begun with {}, which stays\n", asked.chunk_tokens, shown(file),
         kept.chunk_tokens);
  }
}

void check_kept_options(const CLI::App& app, const runtime::SessionOptions& asked, const runtime::SessionOptions& kept,
                        const std::string& file) {
  using Kind = runtime::PrefillOptions::Kind;
  const runtime::PrefillOptions& now = asked.prefill;
  const runtime::PrefillOptions& then = kept.prefill;
  require_same<std::string>(app, "--prefill", name(now.kind), name(then.kind), file);
  note_unused_prefill(app, {&then, 1});
  if (then.kind == Kind::sparse) {
    require_same<std::string>(app, "--prefill", prefill_label(now), prefill_label(then), file);
    return check_kept_layout(app, asked, kept, file);
  }
  if (then.kind != Kind::exact) require_same(app, "--prefill-window", now.window, then.window, file);
  if (then.kind == Kind::window) require_same(app, "--prefill-sinks", now.sinks, then.sinks, file);
  if (then.kind == Kind::topk) require_same(app, "--prefill-k", now.k.text(), then.k.text(), file);
  check_kept_layout(app, asked, kept, file);
}

}  // namespace hayloft::cli
