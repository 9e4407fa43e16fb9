#include "runtime/decode/session.h"
#include "runtime/fidelity/attention_statement.h"

// Apart from what only reads a statement, which needs no session.
namespace hayloft::runtime {

void AttentionStatement::add(const Session& session) {
  for (const auto& [method, count] : session.methods_used()) methods[method] += count;
  attended += session.attended_share() * static_cast<double>(session.steps());
  steps += session.steps();
  predicted += session.predicted_error();
  add_reading(session.context_read_by());
  if (left_out(session.prefill_read())) add_reading("sparse: " + prefill_read_line(session.prefill_read()));
  for (const std::string& method : session.earlier_approximate_tokens().methods) {
    add_reading(method + ApproximateTokens::suffix);
  }
  for (const std::string& way : session.read_by().methods) add_reading(way);
  int8_products = int8_products || session.products() == gpu::Products::int8;
  rows = std::max(rows, rows_attended_to(session));
  over_ranks = over_ranks || session.over_ranks();
}

offload::RowFormat rows_attended_to(const Session& session) {
  const Cache& cache = session.cache();
  return cache.host_bytes() > 0 ? cache.options().rows : offload::RowFormat::f16;
}

}  // namespace hayloft::runtime
