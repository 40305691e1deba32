// Gloo's abstract transport over a lane of the kit's, for one collective. Gloo's algorithms know their peers
// by index into the members; what they send and receive are a Region's sends and receives.
#pragma once

#include <gloo/context.h>
#include <gloo/transport/context.h>
#include <gloo/transport/unbound_buffer.h>

#include "modules/kit/collectives.h"

namespace hvdgloo {

class Transport final : public gloo::transport::Context {
 public:
  /// Gloo's allreduce looks whether there are pairs, its older algorithms, which are not called, use them:
  /// there are some, and whatever is asked of one throws.
  explicit Transport(hvdkit::Party& party);

  std::unique_ptr<gloo::transport::Pair>& createPair(int rank) override;
  std::unique_ptr<gloo::transport::UnboundBuffer> createUnboundBuffer(void* memory, size_t size) override;

 private:
  hvdkit::Party& party_;
};

class Context final : public gloo::Context {
 public:
  explicit Context(hvdkit::Party& party) : gloo::Context(party.me, party.size()) {
    transportContext_ = std::make_shared<Transport>(party);
    setTimeout(std::chrono::hours(24));  // the lane's own last resort comes first
  }
};

}  // namespace hvdgloo
