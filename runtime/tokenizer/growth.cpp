#include "runtime/tokenizer/growth.h"

#include "offload/error.h"

namespace hayloft::runtime {

void Growth::step(std::size_t bytes) {
  if (bytes > most_) {
    fail(
        "{}: makes more than {} bytes of a text of {}, as no tokenizer does: damaged or hostile; take the file of the "
        "model's makers",
        where_, most_, bytes_);
  }
  if (bytes > work_) {
    fail(
        "{}: its steps take a text of {} bytes through more than {} in all, as no tokenizer does: damaged or hostile; "
        "take the file of the model's makers",
        where_, bytes_, 4 * most_);
  }
  work_ -= bytes;
}

}  // namespace hayloft::runtime
