#pragma once

#include "runtime/serve/contexts.h"
#include "runtime/serve/ranks/led_session.h"

namespace hayloft::runtime::serve {

// Does what a rank that is not the first does while that one's Engine runs over the same ranks: with sessions of its
// own what the engine does with its own, until that one closes. The model, the options and the method are those of the
// engine; contexts lie where this rank has them. While there is nothing to do it takes no processor. Throws what goes
// wrong here, of which the others know nothing.
void follow(const ModelSource& source, offload::Arena& arena, const Contexts& contexts, const SessionOptions& options,
            const SharedMethod& method);

}  // namespace hayloft::runtime::serve
