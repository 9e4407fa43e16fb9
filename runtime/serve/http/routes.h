#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

#include "runtime/serve/context_jobs.h"
#include "runtime/serve/engine.h"
#include "runtime/serve/openai/request.h"

namespace hayloft::runtime::serve::http {

struct Call {
  std::string method;  // GET, POST, DELETE
  std::string path;    // without the query
  std::string body;
  std::string query = {};  // what stands behind the path's '?'
};

struct Reply {
  int status = 200;
  std::string type = "application/json";
  std::string body;
  std::string allow = {};  // the methods that the path takes, of status 405
};

// A call is answered at once, or by the engine.
using Outcome = std::variant<Reply, openai::Request>;

// Does what each path is for. Thread-safe; what it is given outlives it.
class Routes {
 public:
  Routes(const openai::Served& served, const ModelSource& source, Engine& engine, ContextJobs& context_jobs)
      : served_(served), source_(source), engine_(engine), context_jobs_(context_jobs) {}

  // Never throws: whatever is wrong with the call is a reply.
  Outcome outcome(const Call& call) const;

  const openai::Served& served() const { return served_; }
  Engine& engine() const { return engine_; }

  // Paths that a browser or a probe may ask for without a key.
  static bool open_to_all(const std::string& path) { return path == "/" || path == "/health"; }

 private:
  Outcome dispatch(const Call& call) const;
  void require_alone() const;  // where contexts are written
  // Throws Error where the request's saved context is of another model, which the engine would find before an answer.
  void require_own_context(const openai::Request& request) const;
  Reply response(const Call& call, const std::string& id) const;
  Reply models() const;
  Reply tokenize(const Call& call) const;
  Reply detokenize(const Call& call) const;
  Reply tokenizer_info() const;
  Reply contexts(const Call& call) const;
  Reply context(const Call& call, const std::string& name) const;

  const openai::Served& served_;
  const ModelSource& source_;
  Engine& engine_;
  ContextJobs& context_jobs_;
};

// The API of a path, which is that of its errors.
openai::Api api_of(std::string_view path);

// The form of the error is that of the path's API.
Reply error_reply_at(std::string_view path, int status, const std::string& message, const std::string& field = {},
                     const std::string& code = {});
Reply error_reply(int status, const std::string& message, const std::string& field = {}, const std::string& code = {});

}  // namespace hayloft::runtime::serve::http
