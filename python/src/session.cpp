#include <algorithm>
#include <optional>

#include "offload/snapshot/writer.h"
#include "python/src/audit.h"
#include "python/src/bindings.h"
#include "python/src/model.h"
#include "python/src/prefill.h"
#include "runtime/context/column_choice.h"
#include "runtime/context/reading_note.h"
#include "runtime/decode/drafting.h"
#include "runtime/fidelity/attention_statement.h"
#include "runtime/machine/profile.h"
#include "runtime/tokenizer/text_stream.h"

namespace hayloft::python {
namespace {

// Options as hayloft.Session has them.
struct Options {
  std::string attn = "dense";
  std::string prefill = "exact";  // as read_prefill() reads it
  int chunk_tokens = 2048;
  int block_tokens = 4096;
  std::string columns = "f16";
  std::string rows = "f16";
};

runtime::SessionOptions session_options(const Options& options) {
  runtime::SessionOptions session;
  session.prefill = read_prefill(options.prefill);
  session.chunk_tokens = options.chunk_tokens;
  session.cache.block_tokens = options.block_tokens;
  session.cache.columns = column_format(options.columns);
  session.cache.rows = row_format(options.rows);
  return session;
}

// The method of those words; `auto` predicts by the profile that hayloft link keeps, where there is one.
runtime::SharedMethod method_of(const std::string& attn, const OpenModel& model) {
  const runtime::ModelConfig& config = model.model.config();
  runtime::MethodOptions options = runtime::parse_method(attn, {});
  if (options.name == "auto") {
    std::optional<runtime::plan::MachineProfile> profile;
    try {
      profile = runtime::plan::find_profile();
    } catch (const Error&) {  // nobody asked for it
    }
    options.rates = runtime::plan::machine_rates(profile, model.model.backend().name(), config.global_layers());
  }
  return runtime::make_method(options, config.head_dim);
}

// A session with the ids of its tokens. One thread at a time may use it; another is refused with an Error.
class OpenSession {
 public:
  OpenSession(std::shared_ptr<OpenModel> model, const Options& options)
      : model_(std::move(model)),
        reading_(session_options(options)),
        read_by_(reading_.prefill),
        session_(model_->model, *model_->arena, reading_) {
    set_method(options.attn);
  }

  static std::unique_ptr<OpenSession> open(std::shared_ptr<OpenModel> model, const std::string& path,
                                           const Options& options) {
    model->require_rope_of_contexts();
    const offload::Snapshot snapshot = offload::Snapshot::open(path);
    const auto method = method_of(options.attn, *model);
    runtime::Session session =
        runtime::open_context(model->source(), *model->arena, snapshot, session_options(options), method.get());
    session.set_method(runtime::with_column_recall(method, snapshot));
    const runtime::SessionOptions reading = runtime::as_read(snapshot, session_options(options));
    auto opened =
        std::unique_ptr<OpenSession>(new OpenSession(std::move(model), reading, std::move(session), snapshot.tokens()));
    opened->attn_ = options.attn;
    return opened;
  }

  std::unique_ptr<OpenSession> fork() {
    const Use use(*this);
    auto copy = std::unique_ptr<OpenSession>(new OpenSession(model_, reading_, session_.fork(), tokens_));
    copy->attn_ = attn_;
    copy->read_by_ = read_by_;
    return copy;
  }

  void set_method(const std::string& attn) {
    const Use use(*this);
    session_.set_method(method_of(attn, *model_));
    attn_ = attn;
  }

  void append(const std::vector<std::int32_t>& tokens, const py::object& progress) {
    const Use use(*this);
    const bool watched = [&] {
      const py::gil_scoped_acquire locked;
      return !progress.is_none();
    }();
    const auto report = [&](std::int64_t done, std::int64_t total) {
      check_signals();
      if (!watched) return;
      const py::gil_scoped_acquire locked;
      progress(done, total);
    };
    const std::int64_t before = session_.tokens();
    try {
      session_.append(tokens, report);
    } catch (...) {
      note_reading(before);
      keep(std::span(tokens).first(static_cast<std::size_t>(session_.tokens() - before)));
      throw;
    }
    note_reading(before);
    keep(tokens);
  }

  std::vector<float> step(std::int32_t token) {
    const Use use(*this);
    std::vector<float> logits = session_.step(token);
    keep({&token, 1});
    return logits;
  }

  std::int32_t next(std::int32_t token, runtime::Sampler& sampler) {
    const Use use(*this);
    const std::int32_t drawn = session_.next(token, sampler);
    keep({&token, 1});
    return drawn;
  }

  // Decodes `token` and what follows, several tokens a pass, and returns what was drawn: `most` tokens, or as many as
  // come up to one of `ends`. All but the last of them are in the session then.
  std::pair<std::vector<std::int32_t>, runtime::DraftFigures> draft(std::int32_t token, runtime::Sampler& sampler,
                                                                    int most, const std::vector<std::int32_t>& ends,
                                                                    const std::string& drafts, int most_drafted) {
    const Use use(*this);
    runtime::DraftOptions options = runtime::parse_draft(drafts);
    if (most_drafted < 1 || most_drafted > 63) fail("draft_max {}: must be 1 to 63", most_drafted);
    options.most = most_drafted;
    if (attn_ != "dense") {
      fail("draft: drafts are verified by exact attention: set attn to 'dense', which is '{}', or leave draft out",
           attn_);
    }
    if (model_->model.backend().tokens_verified_at_once(1) <= 1) {
      fail("draft: the {} backend verifies one token at a time as yet: leave draft out",
           model_->model.backend().name());
    }
    if (options.self) {
      const auto method = runtime::make_method(*options.self, model_->model.config().head_dim);
      session_.prepare(*method);
      session_.set_draft_method(method);
    }
    if (options.head) session_.draft_costs(runtime::DraftSource::head);  // refuses where there is none
    runtime::Drafting drafting(options);
    drafting.read(tokens_);
    drafting.read({&token, 1});
    std::vector<std::int32_t> drawn;
    bool ended = false;
    const auto keep_read = [&] {
      std::vector<std::int32_t> made{token};
      made.insert(made.end(), drawn.begin(), drawn.end());
      made.resize(static_cast<std::size_t>(session_.tokens()) - tokens_.size());
      keep(made);
    };
    try {
      while (!ended && static_cast<int>(drawn.size()) < most) {
        check_signals();
        drafting.next(session_, sampler, most - static_cast<int>(drawn.size()), [&](std::int32_t next) {
          drawn.push_back(next);
          ended = std::ranges::find(ends, next) != ends.end();
          return !ended;
        });
      }
    } catch (...) {
      keep_read();
      throw;
    }
    keep_read();
    return {drawn, drafting.figures()};
  }

  // Writes logits [tokens, vocabulary], chunk by chunk, as Session::score goes through them anyway.
  void score(const std::vector<std::int32_t>& tokens, float* logits) {
    const Use use(*this);
    for (std::span<const std::int32_t> left(tokens); !left.empty();) {
      const auto chunk = left.first(std::min(left.size(), static_cast<std::size_t>(reading_.chunk_tokens)));
      const std::vector<float> of_chunk = session_.score(chunk);
      keep(chunk);
      logits = std::ranges::copy(of_chunk, logits).out;
      left = left.subspan(chunk.size());
      check_signals();
    }
  }

  // rate 0: one of a hundred steps x layers, as far as two hundredths of the decoding time go; else that share of them.
  std::shared_ptr<OpenAudit> audit(double rate, std::uint64_t seed) {
    const Use use(*this);
    runtime::AuditOptions options;
    options.seed = seed;
    if (rate != 0) {
      options.rate = rate;
      options.time_share = 0;
    }
    auto audit = std::make_shared<OpenAudit>(model_->model.backend(), options);
    session_.add_observer(audit);
    return audit;
  }

  void save(const std::string& path, bool overwrite) {
    const Use use(*this);
    model_->require_rope_of_contexts();
    const runtime::Cache& cache = session_.cache();
    const offload::SnapshotDescription description{
        model_->source().identity(), cache.store().shape(), model_->model.config().layers,
        runtime::write_note({reading_.chunk_tokens, read_by_, 0, session_.products(), session_.approximate_tokens()})};
    std::vector<offload::SnapshotAttachment> beside;
    const bool sparse = read_by_.kind == runtime::PrefillOptions::Kind::sparse;
    if (const runtime::PrefillRead& read = session_.prefill_read(); sparse ? counts_all() : !read.empty()) {
      beside.push_back({std::string(runtime::prefill_read_name), runtime::save_prefill_read(read)});
    }
    const std::vector<offload::SnapshotTail> tails = cache.tails();
    std::vector<offload::TailImage> images;
    for (const offload::SnapshotTail& tail : tails) images.push_back(tail.image());
    offload::save_snapshot(path, description, cache.store(), tokens_, images, overwrite, beside);
  }

  std::string attention() {
    const Use use(*this);
    runtime::AttentionStatement statement;
    statement.add(session_);
    return statement.text();
  }

  const std::vector<std::int32_t>& tokens() const { return tokens_; }
  const std::string& attn() const { return attn_; }
  const runtime::Session& session() const { return session_; }
  const OpenModel& model() const { return *model_; }

 private:
  OpenSession(std::shared_ptr<OpenModel> model, runtime::SessionOptions reading, runtime::Session session,
              std::vector<std::int32_t> tokens)
      : model_(std::move(model)),
        reading_(std::move(reading)),
        read_by_(reading_.prefill),
        session_(std::move(session)),
        tokens_(std::move(tokens)) {
    // A sparse reading without figures is how a note says that nobody knows what was left out.
    if (!counts_all() && runtime::reads_all(read_by_, session_.tokens())) {
      read_by_.kind = runtime::PrefillOptions::Kind::sparse;
    }
  }

  // For the length of a call.
  struct Use {
    explicit Use(OpenSession& session) : lock(session.busy_, std::try_to_lock) {
      if (!lock.owns_lock()) fail("the session is in use by another thread; fork it for each thread");
    }
    std::unique_lock<std::mutex> lock;
  };

  // Notes how all behind the first `before` tokens was read. There is one note: where a part was read by a window or
  // topk that left something out, it says of all of the context what it says of that part. What is read sparsely is
  // counted instead.
  void note_reading(std::int64_t before) {
    using Kind = runtime::PrefillOptions::Kind;
    const runtime::PrefillOptions& now = session_.prefill_options();
    const std::int64_t total = session_.tokens();
    if (total == before) return;
    const bool by_parts = read_by_.kind != Kind::sparse;
    if (by_parts ? !runtime::reads_all(read_by_, before) : !counts_all()) return;
    const bool leaves_out = now.kind != Kind::sparse && !runtime::reads_all(now, total);
    if (leaves_out || (by_parts && !runtime::reads_all(read_by_, total))) read_by_ = now;
  }

  // Returns false of a context that was read sparsely and saved without its figures, or whose figures are damaged; also
  // of one that was read by a window or topk that left something out, which its note says.
  bool counts_all() const { return session_.context_read_by().empty(); }

  // Notes tokens that have been read. Others may ask for the list meanwhile, which they do with the interpreter's lock.
  void keep(std::span<const std::int32_t> tokens) {
    const py::gil_scoped_acquire locked;
    tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  }

  std::shared_ptr<OpenModel> model_;
  runtime::SessionOptions reading_;
  runtime::PrefillOptions read_by_;  // as the context's note will say
  runtime::Session session_;
  std::vector<std::int32_t> tokens_;
  std::string attn_ = "dense";
  std::mutex busy_;
};

// Pieces of text as tokens come, with what they are made by.
class OpenTextStream {
 public:
  OpenTextStream(std::shared_ptr<OpenModel> model, std::int32_t last_of_prompt)
      : model_(std::move(model)), stream_(model_->tokenizer, last_of_prompt) {}
  std::string push(std::int32_t token) { return stream_.push(token); }
  std::string finish() { return stream_.finish(); }

 private:
  std::shared_ptr<OpenModel> model_;
  runtime::TextStream stream_;
};

std::int64_t vocabulary(const OpenSession& session) {
  return session.model().model.config().vocab_size;
}

}  // namespace

void bind_session(py::module_& module) {
  const auto unlocked = py::call_guard<py::gil_scoped_release>();
  py::class_<runtime::Sampler>(module, "Sampler")
      .def(py::init([](float temperature, int top_k, float top_p, float min_p, std::uint64_t seed) {
             return std::make_unique<runtime::Sampler>(runtime::SamplerOptions{temperature, top_k, top_p, min_p, seed});
           }),
           py::arg("temperature"), py::arg("top_k"), py::arg("top_p"), py::arg("min_p"), py::arg("seed"));

  py::class_<OpenTextStream>(module, "TextStream")
      .def(py::init<std::shared_ptr<OpenModel>, std::int32_t>(), py::arg("model").none(false), py::arg("last"))
      .def("push", &OpenTextStream::push)
      .def("finish", &OpenTextStream::finish);

  py::class_<Options>(module, "SessionOptions")
      .def(py::init<>())
      .def_readwrite("attn", &Options::attn)
      .def_readwrite("prefill", &Options::prefill)
      .def_readwrite("chunk_tokens", &Options::chunk_tokens)
      .def_readwrite("block_tokens", &Options::block_tokens)
      .def_readwrite("columns", &Options::columns)
      .def_readwrite("rows", &Options::rows);

  py::class_<OpenAudit, std::shared_ptr<OpenAudit>>(module, "OpenAudit")
      .def("finish", &OpenAudit::finish, unlocked)
      .def("json", &OpenAudit::json, unlocked)
      .def("table", &OpenAudit::table, unlocked);

  py::class_<OpenSession>(module, "OpenSession")
      .def(py::init<std::shared_ptr<OpenModel>, const Options&>(), py::arg("model").none(false), py::arg("options"))
      .def_static("open", &OpenSession::open, unlocked, py::arg("model").none(false), py::arg("path"),
                  py::arg("options"))
      .def("fork", &OpenSession::fork, unlocked)
      .def("set_method", &OpenSession::set_method, unlocked)
      .def("append", &OpenSession::append, unlocked)
      .def("next", &OpenSession::next, unlocked)
      .def("draft",
           [](OpenSession& session, std::int32_t token, runtime::Sampler& sampler, int most,
              const std::vector<std::int32_t>& ends, const std::string& drafts, int most_drafted) {
             std::pair<std::vector<std::int32_t>, runtime::DraftFigures> made;
             {
               const py::gil_scoped_release released;
               made = session.draft(token, sampler, most, ends, drafts, most_drafted);
             }
             const runtime::DraftFigures& figures = made.second;
             py::dict counts;
             counts["passes"] = figures.passes;
             counts["tokens"] = figures.tokens;
             counts["drafted"] = figures.drafted;
             counts["accepted"] = figures.accepted;
             counts["link_bytes"] = figures.link_bytes;
             return py::make_tuple(std::move(made.first), counts);
           })
      .def("save", &OpenSession::save, unlocked)
      .def("audit", &OpenSession::audit, unlocked, py::keep_alive<0, 1>())  // which keeps the model
      .def("step",
           [](OpenSession& session, std::int32_t token) {
             std::vector<float> logits;
             {
               const py::gil_scoped_release released;
               logits = session.step(token);
             }
             return make_array(logits, {vocabulary(session)});
           })
      .def("score",
           [](OpenSession& session, const std::vector<std::int32_t>& tokens) {
             py::object logits = empty_array<float>({static_cast<std::int64_t>(tokens.size()), vocabulary(session)});
             const py::buffer_info values = py::buffer(logits).request(true);
             {
               const py::gil_scoped_release released;
               session.score(tokens, static_cast<float*>(values.ptr));
             }
             return logits;
           })
      .def_property_readonly("tokens", &OpenSession::tokens)
      .def_property_readonly("length", [](const OpenSession& session) { return session.session().tokens(); })
      .def_property_readonly("attn", &OpenSession::attn)
      .def_property_readonly("steps", [](const OpenSession& session) { return session.session().steps(); })
      .def_property_readonly("attended_share",
                             [](const OpenSession& session) { return session.session().attended_share(); })
      .def_property_readonly("attention", [](OpenSession& session) { return session.attention(); })
      .def_property_readonly("counters",
                             [](const OpenSession& session) { return counters_dict(session.session().counters()); });
}

}  // namespace hayloft::python
